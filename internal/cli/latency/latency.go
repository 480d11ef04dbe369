// Package latency keeps durations in a histogram of bounded size.
//
// Buckets are even within each power of two, as in HdrHistogram: durations
// below 32 ns have a bucket each, and above that a bucket is at most 1/32 as
// wide as where it begins. A quantile is given as the middle of its bucket, so
// it is off by at most 1/64 (1.6 %). A Histogram takes about 10 KiB, however
// much is recorded.
package latency

import (
	"math"
	"math/bits"
	"time"
)

const (
	subBits = 5 // 2^subBits buckets for each power of two
	sub     = 1 << subBits

	// maxBits bounds what is told apart: 2^42 ns are 73 minutes. Longer
	// durations share the last bucket; only Max and Mean know them.
	maxBits = 42
	buckets = (maxBits - subBits + 1) * sub
)

// Histogram counts durations. The zero value is empty and ready for use. It is
// not safe for concurrent use: give each goroutine its own and Merge them.
type Histogram struct {
	counts [buckets]uint64
	count  uint64 // Invariant: the sum of counts
	sum    float64
	max    time.Duration
}

// Record adds one duration. A negative one counts as 0.
func (h *Histogram) Record(d time.Duration) {
	d = max(d, 0)
	h.counts[bucket(uint64(d))]++
	h.count++
	h.sum += float64(d)
	h.max = max(h.max, d)
}

// Merge adds all that o has recorded. o may be nil, and stays as it is.
func (h *Histogram) Merge(o *Histogram) {
	if o == nil {
		return
	}
	for i, n := range o.counts {
		h.counts[i] += n
	}
	h.count += o.count
	h.sum += o.sum
	h.max = max(h.max, o.max)
}

// Count returns the number of durations recorded.
func (h *Histogram) Count() uint64 { return h.count }

// Max returns the longest duration recorded, exactly; 0 if there is none.
func (h *Histogram) Max() time.Duration { return h.max }

// Mean returns the average of the durations recorded; 0 if there is none.
func (h *Histogram) Mean() time.Duration {
	if h.count == 0 {
		return 0
	}
	return time.Duration(h.sum / float64(h.count))
}

// Quantile returns the duration that a part q, from 0 to 1, of those recorded do not
// exceed: Quantile(0.99) is the 99th percentile, Quantile(1) is Max. It is 0 if
// nothing was recorded.
func (h *Histogram) Quantile(q float64) time.Duration {
	if h.count == 0 {
		return 0
	}
	rank := uint64(1)
	if r := math.Ceil(q * float64(h.count)); r > 1 { // false for NaN
		rank = uint64(min(r, float64(h.count)))
	}
	if rank >= h.count {
		return h.max
	}
	var seen uint64
	for i, n := range h.counts {
		if seen += n; seen >= rank {
			if i == buckets-1 {
				break
			}
			return min(middle(i), h.max)
		}
	}
	return h.max
}

// bucket returns the place of v: v itself below sub, else the exponent above the
// leading subBits+1 bits, and those bits without the first.
func bucket(v uint64) int {
	v = min(v, 1<<maxBits-1)
	if v < sub {
		return int(v)
	}
	exp := bits.Len64(v) - subBits - 1
	return exp*sub + int(v>>exp)
}

// middle returns the duration in the middle of bucket i.
func middle(i int) time.Duration {
	if i < sub {
		return time.Duration(i)
	}
	exp := i/sub - 1
	low := uint64(i-exp*sub) << exp
	return time.Duration(low + (1<<exp-1)/2)
}
