package table

import (
	"strings"
	"testing"
)

// TestLevels: as soon as a cluster has used what an older program does not know,
// such a program is not admitted, and it is told why.
func TestLevels(t *testing.T) {
	tab := deep(cluster(t, 2))
	if tab.Level != 0 || tab.Common() != Level {
		t.Errorf("level %d, common %d", tab.Level, tab.Common())
	}
	for _, c := range everyKind() {
		if why := tab.Knows(c); why != nil {
			t.Errorf("%s: %v", c.Kind(), why)
		}
	}
	tab.Level = 7
	for name, c := range map[string]Command{
		"admit":  admit("n9", 1),
		"resume": {Resume: &Resume{Member: member("n1", 99), Old: tab.Members[0].Incarnation}},
	} {
		if _, err := tab.Apply(c); err == nil || !strings.Contains(err.Error(), "too old") {
			t.Errorf("%s: %v", name, err)
		}
		for _, m := range []*Admit{c.Admit} {
			if m != nil {
				m.Member.Level = 7
			}
		}
		if c.Resume != nil {
			c.Resume.Member.Level = 7
		}
		next, err := tab.Apply(c)
		if err != nil || next.Level != 7 {
			t.Errorf("%s of level 7: %v", name, err)
		}
	}
	if read, err := Restore(tab.Encode()); err != nil || read.Level != 7 {
		t.Errorf("%v", err)
	}
}
