package disk

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

func sorted(all []Stream) []Stream {
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b Stream) int {
		out := func(s Stream) int {
			if s.Out {
				return 1
			}
			return 0
		}
		return cmp.Or(cmp.Compare(a.Of, b.Of), cmp.Compare(out(a), out(b)), cmp.Compare(a.Incarnation, b.Incarnation), cmp.Compare(a.Node, b.Node))
	})
	return all
}

// TestStreams: how far streams were when a round began is on disk when it has been synced, for each that is on the list of
// those that have had the disk; and what changes while the round goes on is not.
func TestStreams(t *testing.T) {
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 29))
		fs := vfs.NewCrashableMem()
		want := []Stream{} // of those before
		var now []Stream
		for life := range uint64(5) {
			own := life*2 + 1
			now = nil
			l := beginAs(t, fs, 1e9, "always", func(c *Config) { c.Streams = func() []Stream { return slices.Clone(now) } })
			if got := sorted(l.k.FoundStreams()); !slices.Equal(got, sorted(want)) {
				t.Fatalf("seed %d, life %d: found\n%v\nwant\n%v", seed, life, got, sorted(want))
			}
			l.enlist(own)
			noted := map[int]Stream{}
			for range rng.IntN(12) {
				for range rng.IntN(4) {
					s := Stream{Node: fmt.Sprint("n", rng.IntN(3)), Incarnation: 5, Out: rng.IntN(2) == 0, Session: uint64(rng.IntN(2)) + 1}
					if i := slices.IndexFunc(now, func(o Stream) bool { return o.Node == s.Node && o.Out == s.Out }); i >= 0 {
						if n := rng.Uint64N(3); n > 0 { // it is written when the number rises
							now[i].Number, now[i].PeerRounds = now[i].Number+n, now[i].PeerRounds+rng.Uint64N(3)
						}
						now[i].Session = max(now[i].Session, s.Session)
					} else {
						now = append(now, s)
					}
				}
				for i, s := range now {
					s.Of = own
					noted[i] = s
				}
				head := l.k.cfg.Head
				l.k.cfg.Head = func() Head { // after they were asked for
					for i := range now {
						now[i].Number++
					}
					return head()
				}
				l.add("k")
				if rng.IntN(10) == 0 {
					if err := l.k.anew(); err != nil {
						t.Fatal(err)
					}
					l.objs.Track(false)
				}
				l.round()
				l.k.cfg.Head = head
			}
			for _, s := range noted {
				want = append(want, s)
			}
			if rng.IntN(3) == 0 {
				gone := uint64(rng.IntN(5))*2 + 1
				if gone != own {
					l.k.Named(func(n uint64) bool { return n != gone })
					want = slices.DeleteFunc(want, func(s Stream) bool { return s.Of == gone })
					for i, s := range now {
						s.Of = own
						want = slices.DeleteFunc(want, func(o Stream) bool { return o.id() == s.id() })
						noted[i] = s
						want = append(want, s)
					}
					l.add("k")
					l.round()
				}
			}
			fs = l.crash(rng)
		}
	}
}

// TestStreamsAreBounded: of too many, those stay that go on.
func TestStreamsAreBounded(t *testing.T) {
	var now []Stream
	fs := vfs.NewCrashableMem()
	l := beginAs(t, fs, 1e9, "always", func(c *Config) { c.Streams = func() []Stream { return now } })
	l.enlist(1)
	for i := range 3 * maxStreams {
		now = []Stream{{Node: "n2", Incarnation: uint64(i) + 1, Session: 1, Number: 7}}
		l.add("k")
		l.round()
		if n := len(l.k.streams); n > maxStreams {
			t.Fatalf("%d streams", n)
		}
	}
	on, err := l.k.store.Streams()
	if err != nil || len(on) != len(l.k.streams) || !slices.ContainsFunc(on, func(s Stream) bool { return s.Incarnation == 3*maxStreams }) {
		t.Errorf("%d are on disk, %d are known; %v", len(on), len(l.k.streams), err)
	}
}

// TestBackupOfAMember: what is in a store for a cluster's sake is read, and left out where it does not belong.
func TestBackupOfAMember(t *testing.T) {
	l := beginAs(t, vfs.NewCrashableMem(), 1e9, "always", func(c *Config) {
		c.Streams = func() []Stream { return []Stream{{Node: "n2", Incarnation: 3, Session: 1, Number: 7}} }
	})
	l.enlist(1)
	l.add("k")
	l.round()
	l.k.round++
	b := l.k.store.NewBatch()
	b.Void(1e9, 5, 5)
	mustCommit(t, l.k.store, b, true)
	if _, err := l.k.store.Verify(context.Background(), nil); err != nil {
		t.Fatal(err)
	}
	p, err := l.k.store.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	var file bytes.Buffer
	if err := p.Backup(&file, nil); err != nil {
		t.Fatal(err)
	}
	fs := vfs.NewMem()
	if err := RestoreBackup(&file, "r", Options{FS: fs}, func(h Head) Head { return h }, nil); err != nil {
		t.Fatal(err)
	}
	s := mustOpen(t, fs, "r")
	defer mustClose(t, s)
	streams, serr := s.Streams()
	list, terr := s.Tenures()
	voids, verr := s.voids()
	if serr != nil || terr != nil || verr != nil || len(streams) != 0 || len(list) != 0 || len(voids.parts) != 1 {
		t.Errorf("streams %v, %v; had by %v, %v; void %v, %v", streams, serr, list, terr, voids, verr)
	}
}
