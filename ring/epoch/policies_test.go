package epoch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"sync"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/keystead/keystead/ring/epoch/serving"
	"github.com/keystead/keystead/ring/epoch/table"
)

func policies(t *testing.T, id string, expect uint64, text string) table.Command {
	t.Helper()
	packed, err := table.PackPolicies([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return table.Command{ID: id, Policies: &table.SetPolicies{Expect: expect, Packed: packed}}
}

// agreed are the policies that each node was told of.
type agreed struct {
	mu sync.Mutex
	of map[string][]*table.Policies // guarded by mu; by node
}

func (a *agreed) listen(c *Config) {
	node := c.Node
	c.Policies = func(p *table.Policies) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.of[node] = append(a.of[node], p)
	}
}

// last returns the version and the text that a node was told of last.
func (a *agreed) last(node string) (uint64, string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := a.of[node]
	if len(all) == 0 {
		return 0, ""
	}
	text, err := all[len(all)-1].Text()
	return all[len(all)-1].Version, fmt.Sprint(string(text), err)
}

// Of several that expect the same version one has its policies, all nodes are told of them
// under one version, and so is one that joins later, and one that starts anew.
func TestPoliciesAreAgreedOn(t *testing.T) {
	t.Parallel()
	p, a := newPool(), &agreed{of: map[string][]*table.Policies{}}
	dir, addr := filepath.Join(t.TempDir(), "n3"), ""
	change := func(c *Config) {
		a.listen(c)
		if c.Node != "n3" {
			return
		}
		s, err := OpenStorage(dir)
		if err != nil {
			t.Fatal(err)
		}
		c.Storage = s
		if addr != "" {
			c.listenAt(addr)
		}
		addr = c.RaftAddr
	}
	groups := form(t, p, 3, change)
	until(t, groups[0], "the level", func(tab *table.Table) bool { return tab.Uses(table.PoliciesLevel) })
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	version, won := uint64(0), ""
	for round := range 3 {
		var wg sync.WaitGroup
		var mu sync.Mutex
		winners, expect := 0, version
		for i, g := range groups {
			wg.Go(func() {
				text := fmt.Sprintf("%d of %d", i, round)
				got, err := g.Propose(ctx, policies(t, text, expect, text))
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					winners, version, won = winners+1, got, text
				} else if !errors.As(err, new(*table.Refused)) {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if winners != 1 {
			t.Fatalf("%d have their policies", winners)
		}
	}
	told := func(node string) func() bool {
		return func() bool { v, text := a.last(node); return v == version && text == won+"<nil>" }
	}
	for _, n := range []string{"n1", "n2", "n3"} {
		eventually(t, n+" is told", told(n))
	}
	if err := groups[0].raft.Snapshot().Error(); err != nil && !errors.Is(err, raft.ErrNothingNewToSnapshot) {
		t.Error(err)
	}
	flips(t, join(t, p, "n4", a.listen))
	eventually(t, "one that joins is told", told("n4"))
	groups[2].Kill()
	a.mu.Lock()
	delete(a.of, "n3")
	a.mu.Unlock()
	join(t, p, "n3", change)
	eventually(t, "one that starts anew is told", told("n3"))
}

// What a node decides by is in force before it acts by a later table, whether it follows the
// log or gets a snapshot.
func TestPoliciesComeBeforeLaterTables(t *testing.T) {
	t.Parallel()
	made := func(log *[]string) *fsm {
		rule := serving.New(table.Holder{Node: "n1", Incarnation: 1})
		f := newFSM(rule, &cleaner{discard: func([]serving.Range) {}, cleaned: rule.Cleaned})
		f.learned, f.fail = func(*table.Table) {}, func(err error) { t.Error(err) }
		f.before = func(tab *table.Table) { *log = append(*log, fmt.Sprintf("table %d", tab.Epoch)) }
		f.agreed = func(p *table.Policies) { *log = append(*log, fmt.Sprintf("policies %d", p.Version)) }
		return f
	}
	var log []string
	f := made(&log)
	var logs []*raft.Log
	for i, c := range []table.Command{
		{Init: &table.Init{Cluster: "test", UID: "u", Epoch: 7, Level: table.Level}},
		policies(t, "a", 0, "a"),
		{Raise: &table.Raise{Above: 7}},
		policies(t, "b", 7, "b"),
		policies(t, "c", 7, "c"),
		{Raise: &table.Raise{Above: 8}},
	} {
		logs = append(logs, &raft.Log{Index: uint64(i + 1), Data: c.Encode()})
	}
	out := f.ApplyBatch(logs)
	if got := fmt.Sprint(log); got != "[table 7 policies 7 table 8 policies 8 table 9]" {
		t.Error(got)
	}
	if o := out[4].(outcome); o.refused == nil || o.epoch != 8 {
		t.Errorf("%+v", o)
	}
	snap, err := f.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	store := raft.NewInmemSnapshotStore()
	sink, err := store.Create(1, 1, 1, raft.Configuration{}, 1, nil)
	if err == nil {
		err = snap.Persist(sink)
	}
	if err != nil {
		t.Fatal(err)
	}
	_, r, err := store.Open(sink.ID())
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	var late []string
	if err := made(&late).Restore(io.NopCloser(bytes.NewReader(text))); err != nil || fmt.Sprint(late) != "[policies 8 table 9]" {
		t.Error(late, err)
	}
}
