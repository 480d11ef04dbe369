package disk

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/counter"
	"github.com/keystead/keystead/owner/reqid"
)

// between does something after each shard of a round.
type between struct {
	*Keeper
	f func()
}

func (b between) End(version uint64) bool {
	b.f()
	return b.Keeper.End(version)
}

// roundWith is a round with something done after each shard of it.
func (l *life) roundWith(f func()) {
	l.t.Helper()
	if err := l.tryRound(f); err != nil {
		l.t.Fatal(err)
	}
}

func (l *life) tryRound(f func()) error {
	n := l.k.note()
	l.k.round++
	l.k.batch, l.k.failing, l.k.puts = l.k.store.NewBatch(), nil, 0
	if !l.objs.Gather(l.at, l.k.round, 0, between{l.k, f}) {
		return l.k.failing
	}
	if err := l.k.commit(n, true, false); err != nil {
		return err
	}
	l.k.end(l.at)
	return nil
}

// shardOf returns the shard of an address of objects.
func shardOf(at string) int {
	key, _, _ := strings.Cut(at, "/")
	return int(owner.Hash(key) >> 62)
}

// discard discards some stretches, or all that something says.
func (l *life) discard(rng *rand.Rand) {
	at := func() uint64 {
		if rng.IntN(6) == 0 {
			return []uint64{0, 1, math.MaxUint64, 1 << 62, 1<<62 - 1}[rng.IntN(5)]
		}
		return owner.Hash(fmt.Sprint("k", rng.IntN(12))) - uint64(rng.IntN(2))
	}
	odd := rng.Uint64()
	some := func(h uint64) bool { return (h^odd)%2 == 0 }
	if rng.IntN(3) == 0 {
		some = func(uint64) bool { return true }
	}
	if rng.IntN(4) == 0 {
		l.objs.Discard(some)
		return
	}
	var spans []owner.Span
	for range 1 + rng.IntN(3) {
		spans = append(spans, owner.Span{After: at(), UpTo: at()})
	}
	l.objs.DiscardSpans(spans, some)
}

// copyFrom installs what another process has of a key.
func (l *life) copyFrom(from *life, key string) {
	var all []*owner.Record
	from.objs.Export(func() int64 { return l.at }, func(h uint64) bool { return h == owner.Hash(key) }, func(r *owner.Record, _ int64) bool {
		all = append(all, r.Clone())
		return true
	}, func() bool { return true })
	for _, r := range all {
		if err := l.objs.Install(l.at, r, anywhere); err != nil {
			l.t.Fatal(err)
		}
	}
}

// TestDiscardedLives: what is discarded is gone after a crash, with its ids, and what came since is there: also if it
// is discarded and comes again while a round goes on, in which each shard is of one moment.
func TestDiscardedLives(t *testing.T) {
	for seed := range uint64(60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 19))
			l := begin(t, vfs.NewCrashableMem(), rng.Int64N(1<<40), "always")
			other := begin(t, vfs.NewCrashableMem(), l.at, "always")
			some := func() {
				other.at = l.at
				for range rng.IntN(30) {
					switch rng.IntN(14) {
					case 0:
						l.discard(rng)
					case 1, 2:
						l.copyFrom(other, fmt.Sprint("k", rng.IntN(12)))
					case 3:
						other.discard(rng)
					case 4, 5, 6:
						other.step(rng)
					default:
						l.step(rng)
					}
					l.at = max(l.at, other.at)
					other.at = l.at
				}
			}
			for range 6 {
				var left *vfs.MemFS
				var was map[string]string
				for range 1 + rng.IntN(5) {
					some()
					was = map[string]string{}
					shard, now := 0, l.at
					l.roundWith(func() {
						for at, is := range l.objects() {
							if shardOf(at) == shard {
								was[at] = is
							}
						}
						shard++
						for range rng.IntN(3) {
							switch rng.IntN(3) {
							case 0:
								l.discard(rng)
							case 1:
								l.copyFrom(other, fmt.Sprint("k", rng.IntN(12)))
							default:
								l.step(rng)
							}
							l.at = now
						}
					})
					left = l.crash(rng)
				}
				next := begin(t, left, rng.Int64N(1<<40), "always")
				next.same(was, "after a crash")
				l = next
				other = begin(t, vfs.NewCrashableMem(), l.at, "always")
			}
		})
	}
}

// TestDiscardedAtOnce: of a million objects that are discarded, no address waits for a round, nor is one written, and
// nothing is back.
func TestDiscardedAtOnce(t *testing.T) {
	const many = 20_000
	l := begin(t, vfs.NewCrashableMem(), 1e9, "always")
	for i := range many {
		id := reqid.ID{Client: reqid.Client{Lo: uint64(i%7) + 1}, Sequence: uint64(i) + 1}
		if _, err := l.objs.Add(l.at, owner.Ref{Key: fmt.Sprint("a key with a name that is not short ", i), Name: "c"}, id, counter.AddOp{Delta: 1}); err != nil {
			t.Fatal(err)
		}
	}
	l.round()
	l.round() // what the first one took keeps its room until then
	before, puts := l.objs.Ungathered(), l.k.stats.puts.Load()
	l.objs.DiscardSpans([]owner.Span{{After: 5, UpTo: 5}}, func(uint64) bool { return true })
	if n := l.objs.Ungathered() - before; n > 1000 {
		t.Errorf("%d bytes wait for the next round", n)
	}
	if awaited, _ := l.objs.Awaits(owner.Hash("a key with a name that is not short 7")); awaited != l.k.round+1 {
		t.Errorf("an answer about what is discarded waits for round %d, the last one is %d", awaited, l.k.round)
	}
	l.add("new")
	l.round()
	if n := l.k.stats.puts.Load() - puts; n > 20 {
		t.Errorf("%d are written", n)
	}
	next := begin(t, l.crash(rand.New(rand.NewPCG(1, 1))), 1e9, "always")
	if all := next.objects(); len(all) != 1 || all["new/counter"] == "" {
		t.Errorf("%d objects are back", len(all))
	}
}

// TestVoids: an entry is void if a stretch with its object was discarded after it, whatever the stretches are.
func TestVoids(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 23))
		type span struct {
			owner.Span
			at place
		}
		var v voids
		var all []span
		edge := func() uint64 {
			return []uint64{0, 1, 2, math.MaxUint64, math.MaxUint64 - 1, uint64(rng.IntN(20)), uint64(rng.IntN(20)) << 58}[rng.IntN(7)]
		}
		for range rng.IntN(12) {
			s := span{owner.Span{After: edge(), UpTo: edge()}, place{rng.Uint64N(4), uint32(rng.IntN(4))}}
			all = append(all, s)
			v.add(s.After, s.UpTo, s.at)
		}
		v.prepare()
		for range 200 {
			h, at := edge(), place{rng.Uint64N(4), uint32(rng.IntN(4))}
			want := false
			for _, s := range all {
				want = want || (s.After == s.UpTo || h-s.After-1 < s.UpTo-s.After) && at.before(s.at)
			}
			if v.is(h, at) != want {
				t.Fatalf("seed %d: %d at %v is void: %v; of %+v", seed, h, at, !want, all)
			}
		}
	}
}

// TestVoidsAreDropped: with the entries that they are about.
func TestVoidsAreDropped(t *testing.T) {
	s := mustOpen(t, vfs.NewMem(), "d")
	b := s.NewBatch()
	b.Log(1*Bucket, []byte("an entry"))
	b.Void(1*Bucket, 7, 7)
	b.Log(2*Bucket, []byte("an entry"))
	b.Void(2*Bucket, 7, 7)
	b.SetHead(Head{Node: "n"})
	mustCommit(t, s, b, true)
	if _, err := s.Verify(context.Background(), nil); err != nil {
		t.Error(err)
	}
	b = s.NewBatch()
	b.DropLog(2 * Bucket)
	mustCommit(t, s, b, true)
	n := 0
	if err := s.scan([]byte{voidPrefix}, []byte{voidPrefix + 1}, func(_, _ []byte) (error, error) { n++; return nil, nil }); err != nil || n != 1 {
		t.Errorf("%d are left, %v", n, err)
	}
	mustClose(t, s)
}
