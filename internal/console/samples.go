package console

import (
	"context"
	"sync"
	"time"
)

const (
	// sampleEvery is the time between two samples, and what a point of a chart stands for.
	sampleEvery = 5 * time.Second
	// maxSamples bounds the ring: five minutes, and one to begin from.
	maxSamples = 61
	// lately is how many intervals the figures beside the charts are of: a minute.
	lately = 12
)

// Totals are what a node has counted since it started.
type Totals struct {
	// Operations on objects; each item of a batch is one.
	Operations uint64
	// Upper are the upper bounds of the classes of time, in seconds, ascending.
	Upper []float64
	// Calls are the calls in each class, and at last those beyond all bounds.
	Calls []uint64
}

// samples is a ring of totals.
type samples struct {
	mu   sync.Mutex
	at   [maxSamples]time.Time // guarded by mu, like the rest
	of   [maxSamples]Totals
	next int // where the next one goes
	n    int // how many there are
}

// run takes samples until ctx ends.
func (s *samples) run(ctx context.Context, totals func() Totals) {
	s.take(time.Now(), totals())
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			s.take(now, totals())
		}
	}
}

func (s *samples) take(now time.Time, t Totals) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at[s.next], s.of[s.next] = now, t
	s.next, s.n = (s.next+1)%maxSamples, min(s.n+1, maxSamples)
}

// point is what happened between two samples.
type point struct {
	rate   float64       // operations a second
	called bool          // there were calls
	p99    time.Duration // of the calls
}

// history returns what happened between each two samples, the oldest first, and over the
// last minute. It is empty before there are two samples.
func (s *samples) history() (points []point, last point) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := 1; i < s.n; i++ {
		points = append(points, s.between(i-1, i))
	}
	if s.n > 1 {
		last = s.between(max(0, s.n-1-lately), s.n-1)
	}
	return points, last
}

// between compares two samples, by their age: 0 is the oldest.
func (s *samples) between(i, j int) point {
	first := s.next - s.n + maxSamples
	i, j = (first+i)%maxSamples, (first+j)%maxSamples
	a, b := &s.of[i], &s.of[j]
	var p point
	if took := s.at[j].Sub(s.at[i]).Seconds(); took > 0 && b.Operations > a.Operations {
		p.rate = float64(b.Operations-a.Operations) / took
	}
	calls := make([]uint64, len(b.Calls))
	for c := range calls {
		calls[c] = b.Calls[c] - a.Calls[c]
	}
	p.p99, p.called = quantile(0.99, b.Upper, calls)
	return p
}

// quantile returns the time within which a share of calls was answered: exact to the class
// that it falls into, and evenly divided within it. What is beyond all bounds counts as the
// last bound.
func quantile(share float64, upper []float64, calls []uint64) (time.Duration, bool) {
	all := uint64(0)
	for _, n := range calls {
		all += n
	}
	if all == 0 || len(upper) == 0 {
		return 0, false
	}
	seconds, rank, below, from := upper[len(upper)-1], share*float64(all), 0.0, 0.0
	for i, bound := range upper {
		n := float64(calls[i])
		if below+n >= rank {
			seconds = from + (bound-from)*(rank-below)/n
			break
		}
		below, from = below+n, bound
	}
	return time.Duration(seconds * float64(time.Second)), true
}
