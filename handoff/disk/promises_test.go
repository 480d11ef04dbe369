package disk

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/reqid"
	register "github.com/keystead/keystead/owner/value"
)

// shot is what a shard was when a round took it.
type shot struct {
	shard, done int // how much had been done then
	state       map[string]string
}

// take returns what a shard is.
func (l *life) take(shard, done int) shot {
	s := shot{shard, done, map[string]string{}}
	for at, is := range l.objects() {
		if shardOf(at) == shard {
			s.state[at] = is
		}
	}
	return s
}

// mustPromise fails unless what a crash has left is what rounds have taken, up to some shard of one of them, and no shard of it
// is from before what was acknowledged, or from before what the epoch and the streams there say. It
// returns the epoch, and how many shards those rounds had taken.
func mustPromise(t *testing.T, l *life, left *vfs.MemFS, shots []shot, since map[uint64]int, acked int, what string) (epoch uint64, found int) {
	t.Helper()
	cfg := l.k.cfg
	cfg.Options = Options{FS: left, tune: small}
	k, err := OpenKeeper(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = k.Close() }()
	back := &life{t: t, at: l.at, k: k}
	if back.objs, err = owner.New(owner.Config{Rule: &rule{100}, Shards: 4, Journal: k}, l.at); err != nil {
		t.Fatal(err)
	}
	if _, err := k.Load(back.objs); err != nil {
		t.Fatal(err)
	}
	least := max(acked, since[k.HeadEpoch()])
	for _, s := range k.FoundStreams() {
		least = max(least, int(s.Number))
	}
	var got [4]shot
	for i := range got {
		got[i] = back.take(i, 0)
	}
	for found = len(shots); found >= 0; found-- {
		var is [4]shot
		for _, s := range shots[:found] {
			is[s.shard] = s
		}
		ok := true
		for i := range is {
			ok = ok && maps.Equal(is[i].state, got[i].state) && is[i].done >= least
		}
		if ok {
			return k.HeadEpoch(), found
		}
	}
	t.Fatalf("%s: no round has taken the shards like this since %d had been done (%d acknowledged, epoch %d)\n%v", what, least, acked, k.HeadEpoch(), got)
	return 0, 0
}

// TestPromises: at any moment at which the machine stops, also between the parts of a round, each shard is back as some round has taken it, in
// order; and no shard is from before what had been acknowledged, or from before what the epoch and the
// streams on disk say.
func TestPromises(t *testing.T) {
	epochs, parts := 0, 0
	for seed := range uint64(30) {
		rng, moments := rand.New(rand.NewPCG(seed, 31)), rand.New(rand.NewPCG(seed, 37))
		mem := vfs.NewCrashableMem()
		var mu sync.Mutex // guards what follows
		type clone struct {
			fs    *vfs.MemFS
			acked int
		}
		var clones []clone
		acked, left := 0, moments.IntN(20)
		inject := errorfs.InjectorFunc(func(op errorfs.Op) error {
			if op.Kind.ReadOrWrite() != errorfs.OpIsWrite {
				return nil
			}
			mu.Lock()
			defer mu.Unlock()
			if left--; left < 0 && len(clones) < 16 {
				left = moments.IntN(60)
				clones = append(clones, clone{mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: moments.IntN(101), RNG: moments}), acked})
			}
			return nil
		})
		done, epoch := 0, uint64(7)
		since := map[uint64]int{7: 0} // what was done when the epoch rose
		var shots []shot
		l := beginAs(t, mem, 1e9, "always", func(c *Config) {
			c.Options.FS, c.Options.tune = errorfs.Wrap(mem, inject), small
			c.Noted = func() func() {
				was := done
				return func() {
					mu.Lock()
					defer mu.Unlock()
					acked = was
				}
			}
			c.Streams = func() []Stream { return []Stream{{Node: "n2", Incarnation: 1, Session: 1, Number: uint64(done)}} }
			c.Head = func() Head { return Head{Node: "n1", Epoch: epoch} }
		})
		l.k.maxPart = 500
		l.enlist(5)
		other := begin(t, vfs.NewCrashableMem(), l.at, "always")
		some := func(n int) {
			for range rng.IntN(n) {
				switch rng.IntN(8) {
				case 0:
					l.discard(rng)
					done++
					epoch++
					since[epoch] = done
				case 1:
					l.copyFrom(other, fmt.Sprint("k", rng.IntN(12)))
				case 2, 3:
					other.step(rng)
				default:
					l.step(rng)
				}
				l.at, other.at = 1e9, 1e9
				done++
			}
		}
		for range 12 {
			some(20)
			shard := 0
			l.roundWith(func() {
				shots = append(shots, l.take(shard, done))
				shard++
				some(4)
			})
		}
		mu.Lock()
		left, clones = 1<<30, append(clones, clone{mem.CrashClone(vfs.CrashCloneCfg{}), acked})
		mu.Unlock()
		for i, c := range clones {
			epoch, found := mustPromise(t, l, c.fs, shots, since, c.acked, fmt.Sprintf("seed %d, crash %d of %d", seed, i, len(clones)))
			if epoch > 7 {
				epochs++
			}
			if found%4 != 0 {
				parts++
			}
		}
	}
	if epochs < 20 || parts < 20 {
		t.Errorf("%d crashes after an epoch had risen, %d between the parts of a round", epochs, parts)
	}
}

// TestPromisesWhenWritesFail: whichever write fails, what is left is what was promised, nothing is acknowledged until all is on another
// store, and then that is what counts.
func TestPromisesWhenWritesFail(t *testing.T) {
	failures := 0
	for at := int64(0); ; at++ {
		rng := rand.New(rand.NewPCG(uint64(at), 41))
		f := &fault{what: errorfs.OpIsWrite, err: syscall.EIO}
		f.at.Store(1 << 60)
		mem := vfs.NewCrashableMem()
		done, acked, epoch := 0, 0, uint64(7)
		since := map[uint64]int{7: 0}
		var shots []shot
		l := beginAs(t, mem, 1e9, "always", func(c *Config) {
			c.Options.FS, c.Options.tune = errorfs.Wrap(mem, f), small
			c.Noted = func() func() {
				was := done
				return func() { acked = was }
			}
			c.Streams = func() []Stream { return []Stream{{Node: "n2", Incarnation: 1, Session: 1, Number: uint64(done)}} }
			c.Head = func() Head { return Head{Node: "n1", Epoch: epoch} }
		})
		l.k.maxPart = 500
		l.enlist(5)
		f.at.Store(f.seen.Load() + at)
		check := func(what string) {
			mustPromise(t, l, l.crash(rng), shots, since, acked, fmt.Sprintf("write %d (%v): %s", at, f.hit.Load(), what))
		}
		for range 10 {
			for range rng.IntN(30) {
				if l.step(rng); rng.IntN(8) == 0 {
					l.discard(rng)
					epoch++
					since[epoch] = done + 1
				}
				l.at = 1e9
				done++
			}
			shard, before := 0, acked
			err := l.tryRound(func() { shots = append(shots, l.take(shard, done)); shard++ })
			if err == nil {
				continue
			}
			failures++
			if acked != before {
				t.Fatalf("write %d: a round that has failed is acknowledged", at)
			}
			check("it has failed")
			if err := l.k.anew(); err != nil {
				t.Fatal(err)
			}
			l.objs.Track(false)
			check("the next store is empty")
			for shard := range 4 {
				shots = append(shots, l.take(shard, done))
			}
			if l.k.Whole() {
				t.Error("an empty store is whole")
			}
			if err := l.k.step(true); err != nil {
				t.Fatal(err)
			}
			if !l.k.Whole() || acked != done {
				t.Errorf("all is written: whole %v, %d of %d acknowledged", l.k.Whole(), acked, done)
			}
		}
		check("at the end")
		wantList(t, l.k.List(), 5)
		if err := l.k.Close(); f.hit.Load() == nil {
			if err != nil || failures < 20 {
				t.Errorf("%d failures; %v", failures, err)
			}
			return
		}
	}
}

// TestAllAtOnce: operations, copies, discards, enlisting and what people ask go on while rounds do; what is there at the end is
// what the next process finds.
func TestAllAtOnce(t *testing.T) {
	var number atomic.Uint64
	l := beginAs(t, vfs.NewCrashableMem(), 1e9, "always", func(c *Config) {
		c.Settings.Interval = time.Millisecond * 50
		c.Noted = func() func() { return func() {} }
		c.Streams = func() []Stream {
			return []Stream{{Node: "n2", Incarnation: 1, Session: 1, Number: number.Load()}}
		}
		c.Head = func() Head { return Head{Node: "n1", Epoch: number.Load()} }
	})
	l.enlist(5)
	if err := l.k.Run(l.objs, true); err != nil {
		t.Fatal(err)
	}
	var work sync.WaitGroup
	for i := range 3 {
		work.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(i), 43))
			one := &life{t: t, at: 1e9, objs: l.objs}
			for range 300 {
				one.step(rng)
				one.at = 1e9
				one.discard(rng)
				number.Add(1)
				l.k.nudge()
			}
		})
	}
	work.Go(func() {
		for i := range uint64(50) {
			if err := l.k.Enlist(7 + i); err != nil {
				t.Error(err)
			}
			l.k.Named(func(n uint64) bool { return n == 5 })
			if !l.k.Whole() || !l.k.AwaitEpoch(t.Context(), min(number.Load(), 200)) {
				t.Error("the disk does not take what is decided")
			}
		}
	})
	work.Wait()
	was := l.objects()
	if err := errors.Join(l.k.Finish(), l.k.Close()); err != nil {
		t.Fatal(err)
	}
	next := begin(t, l.fs.CrashClone(vfs.CrashCloneCfg{}), 1e9, "always")
	next.same(was, "after an orderly stop")
	wantList(t, next.k.List(), -5, -56)
	if s := next.k.FoundStreams(); len(s) == 0 || s[len(s)-1] != (Stream{Of: 56, Node: "n2", Incarnation: 1, Session: 1, Number: 900}) {
		t.Errorf("the streams are %v", s)
	}
}

// TestMuchOfAShard: a round takes all that a shard has changed: a disk that works is not taken for one that has failed.
func TestMuchOfAShard(t *testing.T) {
	l := begin(t, vfs.NewMem(), 5, "interval")
	for i := range 1200 {
		if _, err := l.objs.SetRegister(l.at, owner.Ref{Key: "a", Name: fmt.Sprint(i)}, reqid.ID{}, owner.SetRegister{Set: register.Set{Value: make([]byte, 60<<10)}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.k.step(false); err != nil {
		t.Errorf("a round: %v", err)
	}
}
