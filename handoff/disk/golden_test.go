package disk

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "write the golden directories anew: only for a new version of the format")

// golden is a store of the first format, that was closed or whose process has died, and what it holds.
func golden(t testing.TB, kind string) (m, want map[string]string) {
	t.Helper()
	dir := filepath.Join("testdata", "format1", kind)
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	m = map[string]string{}
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		m[e.Name()] = string(b)
	}
	b, err := os.ReadFile(dir + ".json")
	if err := errors.Join(err, json.Unmarshal(b, &want)); err != nil {
		t.Fatal(err)
	}
	return m, want
}

// TestGolden: what a program of the first format wrote is read, for ever.
func TestGolden(t *testing.T) {
	for _, kind := range []string{"closed", "died"} {
		if *rewrite {
			m, want := few(t, kind == "closed")
			dir := filepath.Join("testdata", "format1", kind)
			j, err := json.MarshalIndent(want, "", "\t")
			if err := errors.Join(err, os.RemoveAll(dir), os.MkdirAll(dir, 0o755), os.WriteFile(dir+".json", append(j, '\n'), 0o644)); err != nil {
				t.Fatal(err)
			}
			for name, b := range m {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(b), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		}
		m, want := golden(t, kind)
		for _, reader := range []bool{true, false} {
			if wholeOrDamaged(t, m, want, reader, kind) {
				t.Errorf("%s, reader %v: the golden store is damaged", kind, reader)
			}
		}
		if len(want) < 14 {
			t.Errorf("%s: it holds %v", kind, want)
		}
		for name, b := range m { // the versions of the engine that are known to read it are in its options
			if name == formatName && b != formatLine(Format) {
				t.Errorf("%s: its format is %q", kind, b)
			}
		}
	}
}

// FuzzOpen: a store of which a part is anything is damaged, or holds what it held. Its seeds are changes of
// the golden stores.
func FuzzOpen(f *testing.F) {
	for _, died := range []bool{false, true} {
		for file := range byte(12) {
			f.Add(died, file, uint16(0), []byte{})
			f.Add(died, file, uint16(7), []byte("\x00\x00\x00\x00\x00\x00\x00"))
			f.Add(died, file, uint16(100), []byte("\xff\xff\xff\x7f keystead"))
		}
	}
	type store struct{ m, want map[string]string }
	var stores []store
	for _, kind := range []string{"closed", "died"} {
		m, want := golden(f, kind)
		stores = append(stores, store{m, want})
	}
	f.Fuzz(func(t *testing.T, died bool, file byte, at uint16, to []byte) {
		s := stores[0]
		if died {
			s = stores[1]
		}
		names := slices.Sorted(maps.Keys(s.m))
		name := names[int(file)%len(names)]
		b := []byte(s.m[name])
		at = uint16(min(int(at), len(b)))
		if len(to) == 0 {
			b = b[:at]
		} else {
			b = append(b, make([]byte, max(0, int(at)+len(to)-len(b)))...)
			copy(b[at:], to)
		}
		m := maps.Clone(s.m)
		m[name] = string(b)
		what := fmt.Sprintf("%s at %d", name, at)
		within(t, what, func() { wholeOrDamaged(t, m, s.want, at%2 == 0, what) })
	})
}
