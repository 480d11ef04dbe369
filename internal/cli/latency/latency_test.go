package latency

import (
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestEmpty(t *testing.T) {
	var h Histogram
	if h.Count() != 0 || h.Max() != 0 || h.Mean() != 0 || h.Quantile(0.5) != 0 {
		t.Fatalf("an empty histogram says %d, %s, %s, %s", h.Count(), h.Max(), h.Mean(), h.Quantile(0.5))
	}
	h.Merge(nil)
	h.Merge(new(Histogram))
	if h.Count() != 0 {
		t.Fatalf("merging nothing gave %d", h.Count())
	}
}

func TestBucketsAreOrderedAndNarrow(t *testing.T) {
	last := -1
	for i := range buckets {
		m := uint64(middle(i))
		if got := bucket(m); got != i {
			t.Fatalf("the middle %d of bucket %d is in bucket %d", m, i, got)
		}
		if int(m) <= last {
			t.Fatalf("bucket %d has its middle at %d, the one before at %d", i, m, last)
		}
		last = int(m)
	}
	if got := bucket(math.MaxInt64); got != buckets-1 {
		t.Fatalf("the longest duration is in bucket %d, want %d", got, buckets-1)
	}
}

func TestQuantileIsClose(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ds := rapid.SliceOfN(rapid.Int64Range(0, 1<<maxBits-1), 1, 200).Draw(t, "durations")
		q := rapid.Float64Range(0, 1).Draw(t, "q")
		var a, b Histogram
		for i, d := range ds {
			[]*Histogram{&a, &b}[i%2].Record(time.Duration(d))
		}
		a.Merge(&b)
		slices.Sort(ds)
		rank := max(int(math.Ceil(q*float64(len(ds)))), 1)
		want, got := ds[rank-1], int64(a.Quantile(q))
		if diff := math.Abs(float64(got - want)); diff > float64(want)/64+1 {
			t.Fatalf("Quantile(%v) = %d, want %d within 1.6 %%", q, got, want)
		}
		if int(a.Count()) != len(ds) || int64(a.Max()) != ds[len(ds)-1] {
			t.Fatalf("count %d, max %d", a.Count(), a.Max())
		}
	})
}

func TestOddInput(t *testing.T) {
	tests := []struct {
		name   string
		record []time.Duration
		q      float64
		want   time.Duration
	}{
		{name: "negative", record: []time.Duration{-time.Second}, q: 0.5, want: 0},
		{name: "q below 0", record: []time.Duration{3, 9}, q: -1, want: 3},
		{name: "q above 1", record: []time.Duration{3, 9}, q: 7, want: 9},
		{name: "q is not a number", record: []time.Duration{3, 9}, q: math.NaN(), want: 3},
		{name: "beyond the last bucket", record: []time.Duration{math.MaxInt64, math.MaxInt64}, q: 0.5, want: math.MaxInt64},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var h Histogram
			for _, d := range tt.record {
				h.Record(d)
			}
			if got := h.Quantile(tt.q); got != tt.want {
				t.Errorf("Quantile(%v) = %d, want %d", tt.q, got, tt.want)
			}
		})
	}
}

func TestMean(t *testing.T) {
	var h Histogram
	for _, d := range []time.Duration{time.Millisecond, 2 * time.Millisecond, 6 * time.Millisecond} {
		h.Record(d)
	}
	if got, want := h.Mean(), 3*time.Millisecond; got != want {
		t.Errorf("Mean() = %s, want %s", got, want)
	}
}

func BenchmarkRecord(b *testing.B) {
	var h Histogram
	b.ReportAllocs()
	for i := range b.N {
		h.Record(time.Duration(i) * 37)
	}
}
