package heat

import (
	"math/bits"
	"unsafe"
)

const (
	// Tick is how often counts decay, in nanoseconds.
	Tick = 1_000_000_000
	// Forget is the part of a count that a tick takes away: one in so many.
	Forget = 10
	// unit is a touch in counts: rounding down at a tick loses less than one of them, and
	// ten in all are less than a touch.
	unit = 16
	// ways are the places of a set. With its stamp it fills a cache line.
	ways = 5
)

// Bounds of the number of sets.
const (
	MinSets     = 1
	MaxSets     = 1 << 16 // 4 MiB
	DefaultSets = 64      // 4 KiB, 320 places: with 64 sketches on a node, 1 part in 20,480
)

// set is a cache line of tags with their counts. A place with count 0 is empty.
type set struct {
	tags   [ways]uint32
	counts [ways]uint32 // in units
	debts  [ways]uint32 // in units: what may have been counted for others
	stamp  uint32       // the tick up to which it is decayed, modulo 2^32
	// Invariant: debts[i] <= counts[i].
}

// A set fills one cache line.
var _ [64]struct{} = [unsafe.Sizeof(set{})]struct{}{}

// Sketch counts touches by tag. The zero Sketch counts nothing; see NewSketch.
type Sketch struct {
	sets  []set
	shift uint8 // of a spread tag, to its set
}

// NewSketch returns a sketch of so many sets, a power of two from MinSets to MaxSets; any other
// number is rounded up, within these bounds.
func NewSketch(sets int) *Sketch {
	sets = min(max(sets, MinSets), MaxSets)
	n := bits.Len(uint(sets - 1))
	return &Sketch{sets: make([]set, 1<<n), shift: uint8(32 - n)}
}

// spread is odd, so that sets go by all bits of a tag.
const spread = 0x9E3779B1

func (s *Sketch) set(tag uint32) *set {
	return &s.sets[uint64(tag*spread)>>s.shift] // of 64 bits: a shift by 32 leaves set 0
}

// tickOf returns the number of a tick, modulo 2^32.
func tickOf(now int64) uint32 { return uint32(uint64(now) / Tick) }

// Touch counts one more for a tag.
func (s *Sketch) Touch(tag uint32, now int64) {
	t := s.set(tag)
	if tick := tickOf(now); t.stamp != tick {
		t.decay(tick)
	}
	least := 0
	for i := range ways {
		if t.tags[i] == tag && t.counts[i] != 0 {
			t.counts[i] = up(t.counts[i])
			return
		}
		if t.counts[i] < t.counts[least] {
			least = i
		}
	}
	//guard:hot-debt t.counts[least] -> 0
	t.tags[least], t.debts[least] = tag, t.counts[least]
	t.counts[least] = up(t.counts[least])
}

// up adds a touch to a count, which stops before it overflows: at 26 million a second.
func up(count uint32) uint32 {
	if count > 1<<32-1-unit {
		return count
	}
	return count + unit
}

// maxLag is how many ticks of the past leave a set as it is: operations arrive a little out
// of order. Anything else is the future, which comes around after 136 years.
const maxLag = 60

// decay brings a set to a tick.
func (t *set) decay(tick uint32) {
	by := tick - t.stamp
	if by > 1<<32-1-maxLag {
		return
	}
	t.stamp = tick
	for i := range ways {
		t.counts[i], t.debts[i] = decayed(t.counts[i], by), decayed(t.debts[i], by)
	}
}

// decayed is a count some ticks later.
func decayed(count, ticks uint32) uint32 {
	for ; ticks > 0 && count > 0; ticks-- {
		//guard:hot-decay (count + Forget - 1) / Forget -> 0
		count -= (count + Forget - 1) / Forget
	}
	return count
}

// Count is what a sketch knows of a tag, as operations a second over the last ten
// seconds or so.
type Count struct {
	Tag     uint32
	RateMax float64 // but for rounding; see the package
	RateMin float64
}

// Each calls f for every tag that has a place and some count left, in no order. It
// brings all counts to now, so that the next poll of an idle sketch is a short one.
func (s *Sketch) Each(now int64, f func(Count)) {
	tick, per := tickOf(now), perSecond(now)
	for i := range s.sets {
		t := &s.sets[i]
		if tick != t.stamp {
			t.decay(tick)
		}
		for w := range ways {
			if t.counts[w] > 0 {
				f(Count{Tag: t.tags[w], RateMax: float64(t.counts[w]) * per, RateMin: float64(t.counts[w]-t.debts[w]) * per})
			}
		}
	}
}

// perSecond turns counts into rates: a constant rate has counted nine seconds when a tick
// begins, and ten when it ends.
func perSecond(now int64) float64 {
	part := float64(uint64(now)%Tick) / Tick
	return 1 / (unit * (Forget - 1 + part))
}

// Size returns the memory of a sketch in bytes.
func (s *Sketch) Size() int { return len(s.sets) * int(unsafe.Sizeof(set{})) }
