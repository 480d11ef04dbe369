package disk

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/counter"
	"github.com/keystead/keystead/owner/reqid"
)

// standby has what an owner decides installed here, as its records come.
type standby struct{ l *life }

func (s standby) Changed(r *owner.Record) {
	if err := s.l.objs.Install(r.At, r.Clone(), anywhere); err != nil {
		s.l.t.Error(err)
	}
}

// TestIDsOfStandby: the disk of a standby has the request ids of what came with each record, not only those
// of the copy.
func TestIDsOfStandby(t *testing.T) {
	l := begin(t, vfs.NewCrashableMem(), 5, "always")
	from, err := owner.New(owner.Config{Rule: &rule{100}, Shards: 4, Sink: standby{l}}, l.at)
	if err != nil {
		t.Fatal(err)
	}
	ref := owner.Ref{Key: "a", Name: "c"}
	add := func(s *owner.Store, sequence uint64) bool {
		a, err := s.Add(l.at, ref, reqid.ID{Client: reqid.Client{Lo: 1}, Sequence: sequence}, counter.AddOp{Delta: 1})
		if err != nil {
			t.Fatal(err)
		}
		return a.Replayed
	}
	for i := range uint64(3) {
		add(from, i+1)
		l.round()
	}
	if !add(l.objs, 3) {
		t.Error("the memory of the standby does not know an id")
	}
	l = begin(t, l.crash(rand.New(rand.NewPCG(3, 3))), 5, "always")
	for i := range uint64(3) {
		if !add(l.objs, i+1) {
			t.Errorf("id %d is not known after a crash: its retry acts twice", i+1)
		}
	}
}

// TestIDsOfStandbyAreBounded: what a standby takes in while its disk hangs does not fill its memory, and is on disk in the
// end.
func TestIDsOfStandbyAreBounded(t *testing.T) {
	l := begin(t, vfs.NewCrashableMem(), 5, "always")
	from, err := owner.New(owner.Config{Rule: &rule{100}, Shards: 4, Sink: standby{l}}, l.at)
	if err != nil {
		t.Fatal(err)
	}
	const ids = 1000
	add := func(s *owner.Store, key int, sequence uint64) bool {
		a, err := s.Add(l.at, owner.Ref{Key: fmt.Sprintf("%0500d", key), Name: "c"}, reqid.ID{Client: reqid.Client{Lo: 1}, Sequence: sequence}, counter.AddOp{Delta: 1})
		if err != nil {
			t.Fatal(err)
		}
		return a.Replayed
	}
	const keys = 120
	for key := range keys {
		add(from, key, 1)
	}
	l.round()
	for key := range keys {
		for i := range uint64(ids - 1) {
			add(from, key, i+2)
		}
	}
	if n := l.objs.Ungathered(); n > 48<<20 {
		t.Errorf("%d MiB wait for the disk", n>>20)
	}
	l.round()
	l = begin(t, l.crash(rand.New(rand.NewPCG(3, 3))), 5, "always")
	for key := range keys {
		for i := range uint64(ids) {
			if !add(l.objs, key, i+1) {
				t.Fatalf("id %d of key %d is not known after a crash", i+1, key)
			}
		}
	}
}

// TestWindowOfCluster: ids are kept for as long as the cluster has agreed on, though this process was told less.
func TestWindowOfCluster(t *testing.T) {
	agreed := func(window time.Duration) func(*Config) {
		return func(c *Config) {
			c.Head = func() Head { return Head{Node: "n1", Epoch: 7, Window: int64(window)} }
		}
	}
	of := func(l *life) (n int) {
		h, _ := l.k.Found()
		if err := l.k.store.Entries(h.Clock-l.k.window(&h), func(int64, []byte) error { n++; return nil }); err != nil {
			t.Fatal(err)
		}
		return n
	}
	for window, want := range map[time.Duration]int{0: 0, 3 * testWindow: 1} {
		l := beginAs(t, vfs.NewCrashableMem(), int64(time.Hour), "interval", agreed(window))
		if _, err := l.objs.Add(l.at, owner.Ref{Key: "a", Name: "c"}, reqid.ID{Client: reqid.Client{Lo: 1}, Sequence: 1}, counter.AddOp{Delta: 1}); err != nil {
			t.Fatal(err)
		}
		l.round()
		l.at += 2 * int64(testWindow)
		if err := l.k.step(true); err != nil {
			t.Fatal(err)
		}
		l = beginAs(t, l.crash(rand.New(rand.NewPCG(3, 3))), 5, "interval", agreed(window))
		if n := of(l); n != want {
			t.Errorf("with an agreed window of %s, %d ids of %s ago are there, want %d", window, n, 2*testWindow, want)
		}
	}
}
