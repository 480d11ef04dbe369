package config

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// FuzzFile reads anything as a file: the result is settings or *Error values.
func FuzzFile(f *testing.F) {
	for _, seed := range []string{
		"", "---", "grpc-addr: x\npeers: [a, b]\n", "grpc:\n  addr: x\n", "? [a]\n: b\n", "<<: *a\n", "a: &a [*a]\n",
		"points: !!binary aGk=\n", "points: |\n  1\n  2\n", "%YAML 1.1\n---\nttl: 1s\n...\n", "\xff\xfe", "{{{{", "a: b: c",
		"peers: [[a]]\n", "points: 1\n---\n- 2\n", "weights: \"1,2\"\n", "\t- x",
	} {
		f.Add([]byte(seed))
	}
	path := filepath.Join(f.TempDir(), "keystead.yaml")
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		s := newSettings()
		got, err := Load(s.FlagSet, Input{Environ: []string{"KEYSTEAD_CONFIG=" + path}})
		if err != nil {
			joined, ok := err.(interface{ Unwrap() []error })
			if !ok {
				t.Fatalf("not a joined error: %v", err)
			}
			for _, e := range joined.Unwrap() {
				if typed := (*Error)(nil); !errors.As(e, &typed) || typed.Source.Kind != File {
					t.Fatalf("not an *Error about the file: %#v", e)
				}
			}
			return
		}
		for _, v := range got.Settings {
			if v.Source.Kind == File && v.Source.Line == 0 {
				t.Fatalf("%s came from no line", v.Name)
			}
			if v.Source.Kind != File && v.Source.Kind != Default {
				t.Fatalf("%s came from %v", v.Name, v.Source)
			}
		}
	})
}
