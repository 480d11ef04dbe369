package zone

import (
	"strings"
	"testing"
	"time"
)

// TestAllZones: each of them can be read, and is found by its name.
func TestAllZones(t *testing.T) {
	names := Names()
	if len(names) < 400 {
		t.Fatalf("%d zones", len(names))
	}
	for i, name := range names {
		id, ok := Find(name)
		if !ok || id != ID(i) || id.Name() != name || !id.Known() || id.Location() == nil {
			t.Errorf("%s is %d, %v", name, id, ok)
		}
	}
	if id := ID(len(names)); id.Known() {
		t.Error("there is a zone behind the last")
	}
}

func TestNames(t *testing.T) {
	for _, name := range []string{"", UTC} {
		if id, ok := Find(name); !ok || id != 0 || id.Location() != time.UTC {
			t.Errorf("%q is %d, %v", name, id, ok)
		}
	}
	for _, name := range []string{"Local", "local", "Factory", "europe/berlin", "Europe/", "Europe", "../etc/passwd", "Europe/Berlin\x00", strings.Repeat("x", 1<<16)} {
		if _, ok := Find(name); ok {
			t.Errorf("%.20q is a zone", name)
		}
	}
}

// What the machine has installed does not matter.
func TestRulesOfTheProgram(t *testing.T) {
	t.Setenv("ZONEINFO", t.TempDir())
	id, _ := Find("Europe/Berlin")
	if _, off := time.Unix(1_782_000_000, 0).In(id.Location()).Zone(); off != 7200 { // June 2026
		t.Errorf("%d s ahead of UTC", off)
	}
}

func BenchmarkFind(b *testing.B) {
	for b.Loop() {
		if _, ok := Find("America/Argentina/ComodRivadavia"); !ok {
			b.Fatal("not found")
		}
	}
}
