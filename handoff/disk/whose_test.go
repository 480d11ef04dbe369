package disk

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/counter"
	"github.com/keystead/keystead/owner/limit"
	"github.com/keystead/keystead/owner/reqid"
)

// add adds one to a counter.
func (l *life) add(key string) {
	l.t.Helper()
	if _, err := l.objs.Add(l.at, owner.Ref{Key: key, Name: "counter"}, reqid.ID{}, counter.AddOp{Delta: 1}); err != nil {
		l.t.Fatal(err)
	}
}

func (l *life) enlist(incarnation uint64) {
	l.t.Helper()
	if err := l.k.Enlist(incarnation); err != nil {
		l.t.Fatal(err)
	}
}

// wantList fails unless those have had the disk; those that stopped in order are negative.
func wantList(t *testing.T, list []Tenure, want ...int) {
	t.Helper()
	var got []int
	for _, l := range list {
		n := int(l.Incarnation)
		if l.Stopped {
			n = -n
		}
		got = append(got, n)
	}
	if !slices.Equal(got, want) {
		t.Errorf("the disk was had by %v, not %v", got, want)
	}
}

// TestTenures: who has had a disk is on it for good when Enlist returns, before Run and after, and whether it stopped
// in order; a store that is begun anew takes the list over, and one whose content was not loaded does not.
func TestTenures(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	fs := vfs.NewCrashableMem()
	l := begin(t, fs, 1e9, "")
	l.add("a")
	l.enlist(5)
	left := l.crash(rng)
	wantList(t, begin(t, left, 1e9, "").k.List(), 5)
	l.enlist(5) // once more
	if err := l.k.Enlist(4); !errors.Is(err, ErrHadBefore) {
		t.Errorf("an earlier one: %v", err)
	}
	l.enlist(7) // the next one of the same process
	l.add("a")
	l.round()
	wantList(t, l.k.List(), 5, 7)
	if err := l.k.Finish(); err != nil {
		t.Fatal(err)
	}
	wantList(t, l.k.List(), 5, -7)
	if err := l.k.Close(); err != nil {
		t.Fatal(err)
	}

	// A store that was found is enlisted where it is.
	k, err := OpenKeeper(l.k.cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := k.Enlist(7); !errors.Is(err, ErrHadBefore) {
		t.Errorf("one that has stopped: %v", err)
	}
	if err := k.Enlist(9); err != nil {
		t.Fatal(err)
	}
	died := fs.CrashClone(vfs.CrashCloneCfg{})
	if err := k.Close(); err != nil {
		t.Fatal(err)
	}
	l = begin(t, died, 2e9, "") // writes
	wantList(t, l.k.List(), 5, -7, 9)
	l.enlist(11)
	l.add("a")
	l.round()
	wantList(t, begin(t, l.crash(rng), 3e9, "").k.List(), 5, -7, 9, 11)

	// The rows name some of them, and the others are forgotten.
	l.k.Named(func(n uint64) bool { return n == 7 })
	l.add("a")
	l.round()
	left = l.crash(rng)
	wantList(t, begin(t, left.CrashClone(vfs.CrashCloneCfg{}), 3e9, "").k.List(), -7, 11)

	// Begun anew by the same process, it has the list; by one that has loaded nothing, only that one.
	if err := l.k.anew(); err != nil {
		t.Fatal(err)
	}
	l.objs.Track(false)
	if err := l.k.step(true); err != nil {
		t.Fatal(err)
	}
	wantList(t, begin(t, l.crash(rng), 3e9, "").k.List(), -7, 11)
	cfg := l.k.cfg
	cfg.Options.FS = left
	if k, err = OpenKeeper(cfg); err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	if err := k.Enlist(13); err != nil {
		t.Fatal(err)
	}
	if k.HeadEpoch() != 7 {
		t.Errorf("the epoch that was found is %d", k.HeadEpoch())
	}
	objs, err := owner.New(owner.Config{Rule: &rule{100}, Shards: 4, Journal: k}, l.at)
	if err != nil {
		t.Fatal(err)
	}
	if err := k.start(objs, false); err != nil {
		t.Fatal(err)
	}
	wantList(t, begin(t, left.CrashClone(vfs.CrashCloneCfg{}), 3e9, "").k.List(), 13)
}

// TestTenuresWhileRoundsRun: Enlist goes through the goroutine of the rounds. When the disk fails it returns an error, and the
// next store has it.
func TestTenuresWhileRoundsRun(t *testing.T) {
	fs := vfs.NewCrashableMem()
	var failing atomic.Bool
	l := beginAs(t, fs, 1e9, "always", func(c *Config) {
		c.Options.FS = errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
			if failing.Load() && op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
				return syscall.EIO
			}
			return nil
		}))
	})
	if err := l.k.Run(l.objs, true); err != nil {
		t.Fatal(err)
	}
	l.enlist(3)
	wantList(t, begin(t, fs.CrashClone(vfs.CrashCloneCfg{}), 1e9, "").k.List(), 3)
	failing.Store(true)
	if err := l.k.Enlist(4); !errors.Is(err, syscall.EIO) {
		t.Errorf("the disk fails: %v", err)
	}
	failing.Store(false)
	l.enlist(4)
	wantList(t, begin(t, fs.CrashClone(vfs.CrashCloneCfg{}), 1e9, "").k.List(), -3, 4)
	if err := l.k.Close(); err != nil {
		t.Fatal(err)
	}
	if err := l.k.Enlist(6); !errors.Is(err, ErrClosed) {
		t.Errorf("it is closed: %v", err)
	}
}

// TestFormer: a process that becomes the next one of its node has lost nothing: what it decided before is on disk, and that
// says that the former one has stopped. It does not say so where a kind is in memory alone.
func TestFormer(t *testing.T) {
	for settings, want := range map[string]int{"interval": -5, "interval,locks=none": 5} {
		l := begin(t, vfs.NewCrashableMem(), 1e9, settings)
		if err := l.k.Run(l.objs, true); err != nil {
			t.Fatal(err)
		}
		l.enlist(5)
		fast := limit.Op{Params: limit.Params{Limit: 1000, Period: int64(time.Second)}, Cost: 10}
		if _, err := l.objs.Check(l.at, owner.Ref{Key: "fast", Name: "l"}, reqid.ID{}, fast); err != nil {
			t.Fatal(err)
		}
		if _, err := l.k.Snapshot(t.Context()); err != nil { // a round, which skips it
			t.Fatal(err)
		}
		l.add("a")
		was := l.objects()
		l.enlist(7)
		next := begin(t, l.fs.CrashClone(vfs.CrashCloneCfg{}), 1e9, settings)
		wantList(t, next.k.List(), want, 7)
		if want < 0 {
			next.same(was, "after it became the next one")
		}
		if list := next.k.List(); list[0].Rounds == 0 {
			t.Errorf("nobody knows how many rounds it had: %v", list)
		}
	}
}

// TestForeignDisk: nobody enlists on the disk of another node or cluster.
func TestForeignDisk(t *testing.T) {
	for i, other := range []Head{{Node: "n2"}, {Node: "n1", Cluster: "d"}, {Node: "n1", Cluster: "c", UID: "v"}} {
		fs := vfs.NewCrashableMem()
		head := Head{Node: "n1", Cluster: "c", UID: "u"}
		l := beginAs(t, fs, 1e9, "", func(c *Config) { c.Head = func() Head { return head } })
		l.enlist(1)
		if err := l.k.Close(); err != nil {
			t.Fatal(err)
		}
		cfg := l.k.cfg
		cfg.Head = func() Head { return other }
		k, err := OpenKeeper(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if err := k.Enlist(2); !errors.Is(err, ErrForeign) {
			t.Errorf("%d: %v", i, err)
		}
		if err := k.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestTenuresAreBounded: of more than there is room for, the first ones stay, and the last.
func TestTenuresAreBounded(t *testing.T) {
	l := begin(t, vfs.NewCrashableMem(), 1e9, "")
	for i := range uint64(maxTenures + 20) {
		l.enlist(i + 1)
	}
	list := l.k.List()
	if len(list) != maxTenures || list[0].Incarnation != 1 || list[maxTenures-2].Incarnation != maxTenures-1 || list[maxTenures-1].Incarnation != maxTenures+20 {
		t.Errorf("the list is %v", list)
	}
}

// TestNoted: what is said when a round has been synced is of the moment when it began, and all that was there then is on
// disk after a crash. So is what the epoch in the head promises.
func TestNoted(t *testing.T) {
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 3))
		fs := vfs.NewCrashableMem()
		var l *life
		epoch := uint64(1)
		has := func() (at [3]uint64) {
			for i := range at {
				if a, err := l.objs.Get(l.at, owner.Ref{Key: fmt.Sprint("k", i), Name: "counter"}); err == nil {
					at[i] = uint64(a.Value)
				}
			}
			return at
		}
		var kept [3]uint64 // what is acknowledged
		l = &life{}
		l = beginAs(t, fs, 1e9, "", func(c *Config) {
			c.Noted = func() func() {
				var noted [3]uint64
				if l.objs != nil {
					noted = has()
				}
				return func() { kept = noted }
			}
			c.Head = func() Head { return Head{Node: "n1", Epoch: epoch} }
		})
		for range 40 {
			switch rng.IntN(4) {
			case 0, 1:
				l.add(fmt.Sprint("k", rng.IntN(3)))
			case 2:
				epoch++
			default:
				// What comes while the round goes on is not acknowledged.
				inside := rng.IntN(2) == 0
				before, at := has(), epoch
				if head := l.k.cfg.Head; inside {
					l.k.cfg.Head = func() Head {
						h := head()
						l.add("k0")
						epoch++
						return h
					}
					l.round()
					l.k.cfg.Head = head
				} else {
					l.round()
				}
				if kept != before {
					t.Fatalf("seed %d: acknowledged is %v, and the round began with %v", seed, kept, before)
				}
				if l.k.HeadEpoch() != at {
					t.Fatalf("seed %d: the epoch on disk is %d, and the round began with %d", seed, l.k.HeadEpoch(), at)
				}
			}
			if rng.IntN(8) == 0 {
				again := beginAs(t, l.crash(rng), l.at, "", func(c *Config) { c.Noted = func() func() { return func() {} } })
				for i, n := range kept {
					if a, err := again.objs.Get(again.at, owner.Ref{Key: fmt.Sprint("k", i), Name: "counter"}); err != nil || uint64(a.Value) < n {
						t.Fatalf("seed %d: %v, %v: %d was acknowledged", seed, a, err, n)
					}
				}
			}
		}
	}
}

// TestNotedAndNothingWritten: a round with nothing to write acknowledges at once, writes when the epoch has risen, and
// not again after that.
func TestNotedAndNothingWritten(t *testing.T) {
	epoch, ended := uint64(7), 0
	l := beginAs(t, vfs.NewCrashableMem(), 1e9, "", func(c *Config) {
		c.Noted = func() func() { return func() { ended++ } }
		c.Head = func() Head { return Head{Node: "n1", Epoch: epoch} }
	})
	synced := func() int64 { return l.k.stats.synced.Load() }
	was, before := synced(), ended
	l.round()
	l.round()
	if synced() != was || ended != before+2 {
		t.Errorf("two rounds write nothing: %d are written, %d are acknowledged", synced()-was, ended-before)
	}
	epoch = 9
	if l.k.HeadEpoch() != 7 {
		t.Errorf("the epoch on disk is %d", l.k.HeadEpoch())
	}
	l.round()
	if synced() != was+1 || l.k.HeadEpoch() != 9 {
		t.Errorf("the epoch has risen: %d are written, it is %d on disk", synced()-was, l.k.HeadEpoch())
	}
	l.round()
	if synced() != was+1 {
		t.Error("it is written again")
	}
}

// TestAwaitEpoch: a wait for an epoch on disk has a round done that begins after the epoch has risen.
func TestAwaitEpoch(t *testing.T) {
	var epoch atomic.Uint64
	epoch.Store(7)
	l := beginAs(t, vfs.NewCrashableMem(), 1e9, "", func(c *Config) {
		c.Head = func() Head { return Head{Node: "n1", Epoch: epoch.Load()} }
		c.Settings.Interval = time.Hour
	})
	if err := l.k.Run(l.objs, true); err != nil {
		t.Fatal(err)
	}
	if !l.k.AwaitEpoch(t.Context(), 7) {
		t.Error("it is on disk")
	}
	epoch.Store(9)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if l.k.HeadEpoch() == 7 && l.k.AwaitEpoch(ctx, 9) {
		t.Error("it does not wait")
	}
	if !l.k.AwaitEpoch(t.Context(), 9) || l.k.HeadEpoch() < 9 {
		t.Errorf("the epoch on disk is %d", l.k.HeadEpoch())
	}
	if err := l.k.Close(); err != nil {
		t.Fatal(err)
	}
	if l.k.AwaitEpoch(t.Context(), 11) {
		t.Error("it is closed")
	}
}

// TestNotedOfAFailure: nothing is acknowledged by a store that is not whole.
func TestNotedOfAFailure(t *testing.T) {
	fs := vfs.NewCrashableMem()
	var failing atomic.Bool
	ended := 0
	l := beginAs(t, fs, 1e9, "", func(c *Config) {
		c.Noted = func() func() { return func() { ended++ } }
		c.Options.FS = errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
			if failing.Load() && op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
				return syscall.EIO
			}
			return nil
		}))
	})
	if !l.k.Whole() {
		t.Error("it is not whole")
	}
	l.add("a")
	failing.Store(true)
	was := ended
	if err := l.k.step(false); err == nil {
		t.Fatal("the round does not fail")
	}
	failing.Store(false)
	if err := l.k.anew(); err != nil {
		t.Fatal(err)
	}
	l.objs.Track(false)
	if ended != was || l.k.Whole() {
		t.Errorf("%d rounds are acknowledged, whole: %v", ended-was, l.k.Whole())
	}
	if err := l.k.step(true); err != nil {
		t.Fatal(err)
	}
	if ended != was+1 || !l.k.Whole() {
		t.Errorf("%d rounds are acknowledged, whole: %v", ended-was, l.k.Whole())
	}
}

// TestEpochOfWhatWasLoaded: the epoch of the head that was found holds for what was loaded, though the process has not
// come that far yet.
func TestEpochOfWhatWasLoaded(t *testing.T) {
	l := begin(t, vfs.NewCrashableMem(), 1e9, "")
	l.add("a")
	l.round()
	left := l.fs.CrashClone(vfs.CrashCloneCfg{})
	next := beginAs(t, left, 1e9, "", func(c *Config) { c.Head = func() Head { return Head{Node: "n1", Epoch: 2} } })
	next.add("a")
	next.round()
	if n := next.k.HeadEpoch(); n != 7 {
		t.Errorf("the epoch is %d", n)
	}
	if h, _ := next.k.store.Head(); h.Epoch != 7 {
		t.Errorf("the epoch on disk is %d", h.Epoch)
	}
}

// TestRounds: how many rounds of each process a disk has is on it: at least as many as it has told of. A process that becomes
// the next one leaves as many as it had.
func TestRounds(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 5))
	fs := vfs.NewCrashableMem()
	want := map[uint64]uint64{}
	for of := uint64(1); of < 30; of += 2 {
		now := of
		l := beginAs(t, fs, 1e9, "always", func(c *Config) { c.Head = func() Head { return Head{Node: "n1", Incarnation: now} } })
		rounds := func() {
			for range rng.IntN(4) {
				l.add("k")
				l.round()
				l.round() // nothing is to be written
			}
		}
		if len(l.k.List()) > 0 && rng.IntN(2) == 0 {
			rounds() // before it is on the list
		}
		l.enlist(now)
		rounds()
		if rng.IntN(2) == 0 {
			want[now] = l.k.Rounds()
			now++
			l.enlist(now)
			rounds()
		}
		if h, _ := l.k.Found(); h.Round != l.k.Rounds() {
			t.Fatalf("it says that it has %d rounds, and the head says %d", l.k.Rounds(), h.Round)
		} else if h.Incarnation == now {
			want[now] = h.Round
		}
		fs = l.crash(rng)
	}
	for _, had := range begin(t, fs, 1e9, "").k.List() {
		if had.Rounds != want[had.Incarnation] {
			t.Errorf("it has %d rounds of %d, and %d were told", had.Rounds, had.Incarnation, want[had.Incarnation])
		}
	}
}
