package owner

import (
	"fmt"
	"math"
	"testing"

	"github.com/keystead/keystead/owner/counter"
	"github.com/keystead/keystead/owner/reqid"
)

// paper is a disk that has addresses of objects.
type paper struct {
	has     map[string]bool
	deletes int
}

func (p *paper) AppendIDs(to []byte, _ *Record) []byte { return append(to, 1) }
func (p *paper) Awaited(Kind) bool                     { return true }
func (p *paper) Crowded()                              {}
func (p *paper) IDs([]byte)                            {}
func (p *paper) End(uint64) bool                       { return true }
func (p *paper) Put(r *Record)                         { p.has[string(r.Key)] = true }
func (p *paper) Delete(_ uint64, key, _ []byte)        { p.deletes++; delete(p.has, string(key)) }
func (p *paper) Discard(_ int64, in Span) {
	for key := range p.has {
		if h := Hash(key); in.After == in.UpTo || h-in.After-1 < in.UpTo-in.After {
			delete(p.has, key)
		}
	}
}

// TestRoundWhileItIsDiscarded: a round may come between two steps of a Discard. It puts what is still there, and the next one
// deletes it.
func TestRoundWhileItIsDiscarded(t *testing.T) {
	disk := &paper{has: map[string]bool{}}
	s := newStore(t, func(c *Config) { c.Shards, c.Journal = 1, disk })
	s.Track(false)
	const n = 3 * sweepStep
	for i := range n {
		if _, err := s.Add(1, Ref{Key: fmt.Sprint("k", i), Name: "c"}, reqid.ID{}, counter.AddOp{Delta: 5}); err != nil {
			t.Fatal(err)
		}
	}
	s.Gather(1, 1, 0, disk)
	if len(disk.has) != n {
		t.Fatalf("%d of %d are on disk", len(disk.has), n)
	}
	all := []stretch{{0, math.MaxUint64}}
	d := &discarding{in: all, lost: func(uint64) bool { return true }}
	sh := &s.shards[0]
	var at uint32
	var shifts uint64
	rounds := uint64(1)
	for first, done := true, false; !done; first = false {
		done, _ = sh.discardStep(d, sweepStep, &at, &shifts, first)
		rounds++
		s.Gather(1, rounds, 0, disk)
		if int64(len(disk.has)) != s.Stats().Objects[KindCounter] {
			t.Fatalf("%d are on disk, there are %d", len(disk.has), s.Stats().Objects[KindCounter])
		}
	}
	if rounds < 3 || len(disk.has) != 0 || disk.deletes != 0 {
		t.Errorf("after %d rounds %d are on disk; %d were deleted one by one", rounds, len(disk.has), disk.deletes)
	}
}

// TestStretches: what shards have of spans, together, is what is in the spans.
func TestStretches(t *testing.T) {
	edges := []uint64{0, 1, 7, 1<<62 - 1, 1 << 62, 1<<62 + 1, 1 << 63, math.MaxUint64 - 1, math.MaxUint64}
	for _, shards := range []int{1, 4} {
		s := newStore(t, func(c *Config) { c.Shards = shards })
		for _, a := range edges {
			for _, b := range edges {
				spans := []Span{{a, b}, {b, a + 3}}
				for _, h := range edges {
					want, is := false, 0
					for _, p := range spans {
						want = want || p.After == p.UpTo || h-p.After-1 < p.UpTo-p.After
					}
					for i := range shards {
						in := s.stretches(spans, i)
						if within(in, h) {
							is++
							if s.shard(h) != &s.shards[i] {
								t.Errorf("%d is in a stretch of another shard", h)
							}
						}
						for j := range in {
							if back := in[j].span(); in[j].first > in[j].last || back.After+1 != in[j].first || j > 0 && in[j-1].last >= in[j].first-1 {
								t.Errorf("stretches %v", in)
							}
						}
					}
					if (is == 1) != want || is > 1 {
						t.Fatalf("%d shards: %d in %v: %v, by %d shards", shards, h, spans, want, is)
					}
				}
			}
		}
	}
}
