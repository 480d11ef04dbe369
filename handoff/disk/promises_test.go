package disk

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/keystead/keystead/owner"
)

// shot is what a shard was when a round took it.
type shot struct {
	shard, done int // how much had been done then
	state       map[string]string
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
				state := map[string]string{}
				for at, is := range l.objects() {
					if shardOf(at) == shard {
						state[at] = is
					}
				}
				shots = append(shots, shot{shard, done, state})
				shard++
				some(4)
			})
		}
		mu.Lock()
		left, clones = 1<<30, append(clones, clone{mem.CrashClone(vfs.CrashCloneCfg{}), acked})
		mu.Unlock()
		for i, c := range clones {
			k, err := OpenKeeper(Config{Dir: "disk", Settings: l.k.cfg.Settings, Options: Options{FS: c.fs, tune: small}, Now: l.k.cfg.Now, Window: l.k.cfg.Window, Head: l.k.cfg.Head})
			if err != nil {
				t.Fatal(err)
			}
			back := &life{t: t, at: l.at, k: k}
			if back.objs, err = owner.New(owner.Config{Rule: &rule{100}, Shards: 4, Journal: k}, l.at); err != nil {
				t.Fatal(err)
			}
			if _, err := k.Load(back.objs); err != nil {
				t.Fatal(err)
			}
			// least is what each shard has to have.
			least := max(c.acked, since[k.HeadEpoch()])
			for _, s := range k.FoundStreams() {
				least = max(least, int(s.Number))
			}
			if k.HeadEpoch() > 7 {
				epochs++
			}
			var got [4]map[string]string
			for j := range got {
				got[j] = map[string]string{}
			}
			for at, is := range back.objects() {
				got[shardOf(at)][at] = is
			}
			found := -1
			for p := len(shots); p >= 0 && found < 0; p-- {
				var is [4]shot
				for _, s := range shots[:p] {
					is[s.shard] = s
				}
				ok := true
				for j := range is {
					ok = ok && maps.Equal(is[j].state, got[j]) && is[j].done >= least
				}
				if ok {
					found = p
				}
			}
			if found < 0 {
				t.Fatalf("seed %d, crash %d of %d: no round has taken the shards like this since %d had been done (%d acknowledged, epoch %d)\n%v", seed, i, len(clones), least, c.acked, k.HeadEpoch(), got)
			}
			if found%4 != 0 {
				parts++
			}
			if err := k.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if epochs < 20 || parts < 20 {
		t.Errorf("%d crashes after an epoch had risen, %d between the parts of a round", epochs, parts)
	}
}
