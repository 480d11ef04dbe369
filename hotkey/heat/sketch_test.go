package heat

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// exact counts as a sketch would if it had room for all and did not round.
type exact struct {
	counts map[uint32]float64
	tick   uint32
}

func (e *exact) touch(tag uint32, now int64) {
	e.to(now)
	e.counts[tag]++
}

func (e *exact) to(now int64) {
	for ; e.tick < tickOf(now); e.tick++ {
		for tag := range e.counts {
			e.counts[tag] *= 1 - 1.0/Forget
		}
	}
}

// sum returns the count of all in the set of a tag.
func (e *exact) sum(s *Sketch, tag uint32) (sum float64) {
	for other, n := range e.counts {
		if s.set(other) == s.set(tag) {
			sum += n
		}
	}
	return sum
}

// holds checks what the package promises of every tag.
func holds(t interface {
	Helper()
	Fatalf(string, ...any)
}, s *Sketch, e *exact, now int64) {
	t.Helper()
	e.to(now)
	seen := map[uint32]bool{}
	s.Each(now, func(c Count) {
		per := perSecond(now) * unit
		most, sure, is := c.RateMax/per, c.RateMin/per, e.counts[c.Tag]
		if seen[c.Tag] {
			t.Fatalf("tag %d has two places", c.Tag)
		}
		if seen[c.Tag] = true; most+1 <= is || sure-1 >= is {
			t.Fatalf("tag %d was touched %.2f times, and counts %.2f to %.2f", c.Tag, is, sure, most)
		}
	})
	for tag, is := range e.counts {
		if seen[tag] {
			continue
		}
		place := *s.set(tag)
		place.decay(tickOf(now))
		if least := float64(slices.Min(place.counts[:])) / unit; is >= least+1 || least > e.sum(s, tag)/ways {
			t.Fatalf("tag %d was touched %.2f times and has no place, where the smallest counts %.2f and the set %.2f", tag, is, least, e.sum(s, tag))
		}
	}
}

func TestBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, e := NewSketch(1<<rapid.IntRange(0, 3).Draw(t, "sets")), &exact{counts: map[uint32]float64{}}
		now := rapid.Int64Range(0, 1<<40).Draw(t, "from")
		e.tick = tickOf(now)
		tags := rapid.Uint32Range(0, uint32(rapid.IntRange(1, 60).Draw(t, "tags")))
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			tag := tags.Draw(t, "tag")
			for range rapid.IntRange(1, 50).Draw(t, "times") {
				s.Touch(tag, now)
				e.touch(tag, now)
			}
			now += rapid.Int64Range(0, 3*Tick).Draw(t, "later")
			holds(t, s, e, now)
		}
	})
}

// A moment before the last one counts in the tick of that, and one long after leaves
// nothing of what was.
func TestTimes(t *testing.T) {
	s := NewSketch(1)
	counted := func(now int64) (rate float64) {
		s.Each(now, func(c Count) { rate += c.RateMax })
		return rate / perSecond(now) / unit
	}
	for range 100 {
		s.Touch(7, 100*Tick)
	}
	s.Touch(7, 98*Tick)
	if n := counted(100 * Tick); n != 101 {
		t.Errorf("%v of 101 touches count", n)
	}
	if n := counted(97 * Tick); n != 101 {
		t.Errorf("%v of 101 touches count for one that looks late", n)
	}
	s.Touch(8, 100*Tick+3600*Tick)
	if n := counted(100*Tick + 3600*Tick); n != 1 {
		t.Errorf("%v touches count after an hour, and there was 1", n)
	}
}

// A constant rate is shown as what it is, at any moment of a tick.
func TestRates(t *testing.T) {
	s := NewSketch(DefaultSets)
	const rate = 5000
	for i := range int64(60 * rate) {
		now := i * Tick / rate
		s.Touch(42, now)
		if i > 50*rate && i%777 == 0 {
			s.Each(now, func(c Count) {
				if math.Abs(c.RateMax/rate-1) > 0.01 || c.RateMax != c.RateMin {
					t.Fatalf("at %d ns: %.0f, at least %.0f, and it is %d a second", now, c.RateMax, c.RateMin, rate)
				}
			})
		}
	}
}

// A count that cannot rise any more does not begin anew.
func TestCountsStop(t *testing.T) {
	s := NewSketch(1)
	s.Touch(1, 0)
	s.sets[0].counts[0] = 1<<32 - 3
	for range 3 {
		s.Touch(1, 0)
	}
	if n := s.sets[0].counts[0]; n != 1<<32-3 {
		t.Errorf("the count is %d", n)
	}
}

// Of traces as skewed as those of users, the sketches of a node show the keys that
// matter, and how much each has.
func TestZipf(t *testing.T) {
	for _, skew := range []float64{0.8, 1.0, 1.2, 1.4} {
		const keys, touches, sketches = 200_000, 500_000, 64
		all := make([]*Sketch, sketches)
		for i := range all {
			all[i] = NewSketch(DefaultSets)
		}
		rnd := rand.New(rand.NewPCG(1, math.Float64bits(skew)))
		draw := zipf(rnd, skew, keys)
		counts := make([]float64, keys)
		for range touches {
			k := draw()
			counts[k]++
			h := hash(uint64(k))
			all[h>>58].Touch(uint32(h), 0)
		}
		found := map[uint64]Count{}
		for i, s := range all {
			s.Each(0, func(c Count) { found[uint64(i)<<32|uint64(c.Tag)] = c })
		}
		var worst float64 // what was said too much, as a part of all
		for k, is := range counts {
			h := hash(uint64(k))
			c, has := found[h>>58<<32|uint64(uint32(h))]
			most, sure := math.Round(c.RateMax/perSecond(0)/unit), math.Round(c.RateMin/perSecond(0)/unit) // no tick was rounded
			switch {
			case !has && is > touches/5000:
				t.Errorf("skew %.1f: key %d has %.3f %% of all and is not shown", skew, k, 100*is/touches)
			case has && (most < is || sure > is):
				t.Errorf("skew %.1f: key %d was touched %.0f times, and counts %.0f to %.0f", skew, k, is, sure, most)
			case has:
				worst = max(worst, (most-is)/touches)
			}
		}
		if worst > 1.0/4000 {
			t.Errorf("skew %.1f: a key is said to have %.4f %% of all too much", skew, 100*worst)
		}
		t.Logf("skew %.1f: the first has %.2f %%; at most %.4f %% of all too much", skew, 100*counts[0]/touches, 100*worst)
	}
}

// zipf draws from 0 on, the k-th by (k+1)^-skew.
func zipf(rnd *rand.Rand, skew float64, n int) func() int {
	sums := make([]float64, n)
	sum := 0.0
	for k := range sums {
		sum += math.Pow(float64(k+1), -skew)
		sums[k] = sum
	}
	return func() int {
		k, _ := slices.BinarySearch(sums, rnd.Float64()*sum)
		return min(k, n-1)
	}
}

// hash is SplitMix64's finish.
func hash(x uint64) uint64 {
	x += 0x9E3779B97F4A7C15
	x = (x ^ x>>30) * 0xBF58476D1CE4E5B9
	x = (x ^ x>>27) * 0x94D049BB133111EB
	return x ^ x>>31
}

func TestSizes(t *testing.T) {
	for sets, want := range map[int]int{-1: 64, 0: 64, 1: 64, 2: 128, 3: 256, DefaultSets: 4096, 1 << 30: 4 << 20} {
		s := NewSketch(sets)
		if s.Size() != want {
			t.Errorf("%d sets take %d bytes, want %d", sets, s.Size(), want)
		}
		for tag := range uint32(1000) { // whatever the tag, there is a set
			s.Touch(tag*2654435761, 0)
		}
	}
}

func TestNoAllocation(t *testing.T) {
	s, tag, now := NewSketch(DefaultSets), uint32(0), int64(0)
	if n := testing.AllocsPerRun(10_000, func() {
		s.Touch(tag, now)
		tag += 7
		now += Tick / 100
	}); n != 0 {
		t.Errorf("%v allocations a touch", n)
	}
}

func BenchmarkTouch(b *testing.B) {
	for name, keys := range map[string]uint32{"one key": 1, "1,000 keys": 1000, "1,000,000 keys": 1_000_000} {
		b.Run(name, func(b *testing.B) {
			all := make([]*Sketch, 64)
			for i := range all {
				all[i] = NewSketch(DefaultSets)
			}
			rnd := rand.New(rand.NewPCG(1, 2))
			tags := make([]uint64, 1<<16)
			for i := range tags {
				tags[i] = hash(uint64(rnd.Uint32N(keys)))
			}
			b.ReportAllocs()
			now := int64(0)
			for i := 0; b.Loop(); i++ {
				h := tags[i&(1<<16-1)]
				all[h>>58].Touch(uint32(h), now)
				now += 1000 // a million a second
			}
		})
	}
}
