package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"pgregory.net/rapid"
)

// Every name that a flag may have is reached from the environment and from the
// file in each spelling, also where one name starts with another.
func TestNamesRoundTrip(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keystead.yaml")
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.StringMatching(flagName.String()).Filter(func(n string) bool {
			return reserved(Variable(n)) == "" && isSetting(&pflag.Flag{Name: n}) && len(n) < 40
		}).Draw(t, "name")
		if back, ok := settingOf(Variable(name)); back != name || !ok {
			t.Fatalf("%s → %s → %s, %v", name, Variable(name), back, ok)
		}
		cut := rapid.IntRange(0, strings.Count(name, "-")).Draw(t, "nested words")
		yaml := `"` + strings.Replace(name, "-", `": {"`, cut) + `": "value"` + strings.Repeat("}", cut)
		if rapid.Bool().Draw(t, "underscores") {
			yaml = strings.ReplaceAll(yaml, "-", "_")
		}
		if err := os.WriteFile(path, []byte(yaml), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, environ := range [][]string{{Variable(name) + "=value"}, {"KEYSTEAD_CONFIG=" + path}} {
			fs := pflag.NewFlagSet("", pflag.ContinueOnError)
			got := fs.String(name, "", "")
			longer := fs.String(name+"-and-more", "", "")
			if _, err := Load(fs, Input{Environ: environ}); err != nil || *got != "value" || *longer != "" {
				t.Fatalf("%s: %q, %q, %v\n%s", environ, *got, *longer, err, yaml)
			}
		}
	})
}

func TestNamesThatCannotBe(t *testing.T) {
	for _, name := range []string{"Upper", "under_score", "dot.ted", "double--hyphen", "9lives", "port", "service-host", "port-1-tcp", "fencing-token"} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("accepted")
				}
			}()
			fs := pflag.NewFlagSet("", pflag.ContinueOnError)
			fs.String(name, "", "")
			_, _ = Load(fs, Input{})
		})
	}
}

func TestDistance(t *testing.T) {
	for _, tc := range []struct {
		a, b string
		want int
	}{
		{"", "", 0}, {"", "abc", 3}, {"abc", "abc", 0}, {"abc", "acb", 1}, {"abc", "ab", 1},
		{"abc", "axc", 1}, {"kitten", "sitting", 3}, {"grpc-adr", "grpc-addr", 1}, {"ca", "abc", 3},
	} {
		if got := distance(tc.a, tc.b); got != tc.want {
			t.Errorf("distance(%q, %q) = %d, want %d", tc.a, tc.b, got, tc.want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		a, b := rapid.StringN(0, 12, -1).Draw(t, "a"), rapid.StringN(0, 12, -1).Draw(t, "b")
		ab, ba := distance(a, b), distance(b, a)
		if ab != ba || (ab == 0) != (a == b) || ab > max(len(a), len(b)) {
			t.Fatalf("%q, %q: %d and %d", a, b, ab, ba)
		}
	})
}

func TestNearest(t *testing.T) {
	known := []string{"addr", "grpc-addr", "peers", "ttl"}
	for name, want := range map[string]string{
		"grpc-adr": "grpc-addr", "pear": "", "peer": "peers", "tl": "ttl", "x": "", "address": "",
		strings.Repeat("a", maxNameLen+1): "",
	} {
		if got := Nearest(name, known); got != want {
			t.Errorf("Nearest(%q) = %q, want %q", name, got, want)
		}
	}
}
