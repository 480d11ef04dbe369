package epoch

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/keystead/keystead/ring/epoch/serving"
	"github.com/keystead/keystead/ring/epoch/table"
)

// TestChoose tells who shall vote. A server is written n, for one that does not
// vote, or N; then L = leads, d = is dead, y = is healthy, and not for long.
func TestChoose(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, servers, up, down string }{
		{name: "nobody"},
		{name: "one", servers: "AL"},
		{name: "two make no majority that survives", servers: "AL b"},
		{name: "three", servers: "AL b c", up: "b c"},
		{name: "a fourth would not help", servers: "AL B C d"},
		{name: "five", servers: "AL B C d e", up: "d e"},
		{name: "no more than five", servers: "AL B C D E f g"},
		{name: "a new one is not stable", servers: "AL b cy"},
		{name: "a dead one does not vote", servers: "AL b cd"},
		{name: "the dead are replaced", servers: "AL B Cd d", up: "d", down: "C"},
		{name: "and by no more than there are", servers: "AL B C Dd Ed f", up: "f", down: "E"},
		{name: "nobody can replace", servers: "AL B Cd"},
		{name: "of two, one is dead", servers: "AL Bd", down: "B"},
		{name: "too many", servers: "A B C D EL F G", down: "F G"},
		{name: "an even number", servers: "A B C DL", down: "C"},
		{name: "the dead go first", servers: "Ad B C DL", down: "A"},
		{name: "not the leader", servers: "A BL", down: "A"},
	} {
		var servers []server
		for _, s := range strings.Fields(c.servers) {
			servers = append(servers, server{
				id: raft.ServerID(strings.ToLower(s[:1])), votes: strings.ToUpper(s[:1]) == s[:1], leads: strings.Contains(s, "L"),
				healthy: !strings.Contains(s[1:], "d"), stable: !strings.ContainsAny(s[1:], "dy"),
			})
		}
		before := 0
		for _, s := range servers {
			if s.votes {
				before++
			}
		}
		up, down := choose(slices.Clone(servers))
		if !slices.Equal(ids(up), strings.Fields(c.up)) || !slices.Equal(ids(down), strings.Fields(strings.ToLower(c.down))) {
			t.Errorf("%s: up %v, down %v", c.name, up, down)
		}
		if after := before + len(up) - len(down); len(servers) > 0 && (after%2 == 0 || after > MaxVoters) {
			t.Errorf("%s: %d voters", c.name, after)
		}
	}
}

func ids(servers []raft.ServerID) []string {
	out := []string{}
	for _, s := range servers {
		out = append(out, string(s))
	}
	slices.Sort(out)
	return out
}

// TestCleaner: what is lost is discarded in order, and a table is called clean
// when all that was lost by it is discarded.
func TestCleaner(t *testing.T) {
	t.Parallel()
	var log []string
	begun, going := make(chan struct{}), make(chan struct{})
	c := &cleaner{
		discard: func(r []serving.Range) {
			begun <- struct{}{}
			<-going
			log = append(log, fmt.Sprint("discard ", len(r)))
		},
		cleaned: func(epoch uint64) { log = append(log, fmt.Sprint("clean ", epoch)) },
	}
	some := make([]serving.Range, 2)
	c.add(nil, 1)
	c.add(some, 2)
	<-begun
	c.add(nil, 3) // while it is at it
	c.add(some[:1], 4)
	c.add(nil, 5)
	going <- struct{}{}
	<-begun
	going <- struct{}{}
	c.done.Wait()
	c.add(nil, 6)
	if got := strings.Join(log, ", "); got != "clean 1, discard 2, clean 2, discard 1, clean 5, clean 6" {
		t.Error(got)
	}
}

// TestFSMSnapshot: a table that was written down is learned as it was, and a
// damaged one stops the node.
func TestFSMSnapshot(t *testing.T) {
	t.Parallel()
	made := func() (*fsm, *error) {
		var failed error
		rule := serving.New(table.Holder{Node: "n1", Incarnation: 1})
		f := newFSM(rule, &cleaner{discard: func([]serving.Range) {}, cleaned: rule.Cleaned})
		f.learned, f.fail = func(*table.Table) {}, func(err error) { failed = err }
		return f, &failed
	}
	f, _ := made()
	for i, c := range []table.Command{
		{Init: &table.Init{Cluster: "test", UID: "u", Epoch: 7}},
		{Admit: &table.Admit{Member: table.Member{Node: "n1", Incarnation: 1, HashKey: "k"}}},
		{Begin: &table.Begin{Want: []table.Holder{{Node: "n1", Incarnation: 1}}}},
	} {
		if out := f.Apply(&raft.Log{Index: uint64(i), Data: c.Encode()}).(outcome); out.refused != nil || out.epoch != uint64(7+i) {
			t.Fatalf("%s: %+v", c.Kind(), out)
		}
	}
	if out := f.Apply(&raft.Log{Data: table.Command{Raise: &table.Raise{Above: 1}}.Encode()}).(outcome); out.refused == nil || out.epoch != 9 {
		t.Errorf("refused: %+v", out)
	}
	snap, err := f.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	store := raft.NewInmemSnapshotStore()
	sink, err := store.Create(1, 1, 1, raft.Configuration{}, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := snap.Persist(sink); err != nil {
		t.Fatal(err)
	}
	_, r, err := store.Open(sink.ID())
	if err != nil {
		t.Fatal(err)
	}
	g, failed := made()
	if err := g.Restore(r); err != nil || *failed != nil {
		t.Fatal(err, *failed)
	}
	if !bytes.Equal(g.table.Encode(), f.table.Encode()) || g.rule.Table() != g.latest.Load().table {
		t.Error("the table is another one")
	}
	if err := g.Restore(io.NopCloser(strings.NewReader(`{"v":9}`))); err == nil || *failed == nil {
		t.Errorf("a snapshot of another version: %v, %v", err, *failed)
	}
}
