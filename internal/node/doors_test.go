package node

import (
	"strings"
	"testing"

	"github.com/keystead/keystead/internal/tests/agreed"
	"github.com/keystead/keystead/ring/epoch/table"
)

// TestSettledIn: a process that has just been admitted waits for its keys and for the
// copies of all rows, also those of others: it may be the next one that is stopped.
func TestSettledIn(t *testing.T) {
	n1 := table.Holder{Node: "n1", Incarnation: 1}
	if err := checkSettled(agreed.Ring(t, 1), n1); err != nil {
		t.Errorf("alone in its cluster: %v", err)
	}
	tab := agreed.Ring(t, 2)
	if err := checkSettled(tab, n1); err == nil || !strings.Contains(err.Error(), "of 512 rows have no copy yet") {
		t.Errorf("while copies are made: %v", err)
	}
	m := table.Member{Node: "n3", Incarnation: 1, HashKey: "k3"}
	tab, err := tab.Apply(table.Command{Admit: &table.Admit{Member: m}})
	if err != nil {
		t.Fatal(err)
	}
	if err := checkSettled(tab, m.Holder()); err == nil || !strings.Contains(err.Error(), "given its keys") {
		t.Errorf("just admitted: %v", err)
	}
}

func TestOnLoopback(t *testing.T) {
	for addr, want := range map[string]bool{
		"127.0.0.1:7480": true, "[::1]:7480": true, "127.8.9.10:1": true, "[::ffff:127.0.0.1]:1": true,
		"0.0.0.0:7480": false, "[::]:7480": false, "10.0.0.1:7480": false, "nonsense": false,
	} {
		if onLoopback(addr) != want {
			t.Errorf("%s: %v", addr, !want)
		}
	}
}
