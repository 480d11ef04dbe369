package p2c

import (
	"math"
	"sync"
	"sync/atomic"
)

const (
	// downAfter is how many failures in a row make a backend down: by chance, with
	// one call in a hundred that fails, they come together once in a million.
	downAfter = 3
	// maxDoublings bounds how often the interval between probes of a backend that
	// is down doubles.
	maxDoublings = 3
	// fadeTo is the part of a latency that stays, however long nothing is seen of
	// the backend: an old peak comes back into play when the others are busy, and
	// rare calls still find the backend that was slow.
	fadeTo = 0.25
)

// Load is what is known of one backend. Times are nanoseconds of any clock that
// does not go back. Its methods may be called from any goroutine; those that
// only read take no lock.
type Load struct {
	cfg Config

	inFlight atomic.Int64 // Invariant: 0 <= inFlight
	seen     atomic.Int64 // when a call last began
	patience atomic.Int64 // how long after seen a probe is due, in ns

	// mu guards the writing of what follows. Readers may see one value older than
	// another, by one call.
	mu        sync.Mutex
	heard     atomic.Bool   // something was learnt
	latency   atomic.Uint64 // ns, bits of a float64; 0 = there was no answer yet
	latencyAt atomic.Int64  // when it was learnt
	failing   atomic.Uint64 // share of calls that failed, bits of a float64. Invariant: 0 <= failing <= 1
	failingAt atomic.Int64
	run       atomic.Int64 // failures since the last answer

	downAt    int64 // when it went down; guarded by mu
	doublings int   // of patience since then; guarded by mu
}

// NewLoad returns the load of a backend that was not called yet. cfg must come from
// Config.WithDefaults.
func NewLoad(cfg Config, now int64) *Load {
	l := &Load{cfg: cfg}
	l.seen.Store(now)
	l.patience.Store(int64(cfg.Probe))
	return l
}

// Begin notes that a call goes to the backend. End must follow.
func (l *Load) Begin(now int64) {
	l.inFlight.Add(1)
	l.seen.Store(now)
}

// End notes the outcome of a call that began at begin.
func (l *Load) End(begin, now int64, o Outcome) {
	l.inFlight.Add(-1)
	took := max(now-begin, 1)
	if o == Unknown || o != Failed && took > int64(Longest) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch o {
	case Answered:
		l.observeLocked(took, now)
		l.judgeLocked(0, now)
		l.run.Store(0)
		l.doublings = 0
		l.patience.Store(int64(l.cfg.Probe))
	case Abandoned:
		l.atLeastLocked(took, now)
	case Failed:
		l.atLeastLocked(took, now)
		l.judgeLocked(1, now)
		l.failedLocked(begin, now)
	}
	l.heard.Store(true)
}

// observeLocked records the latency of an answer: at once if it is slower than what
// is known, else by how long ago that was learnt.
func (l *Load) observeLocked(took, now int64) {
	v, sample := math.Float64frombits(l.latency.Load()), float64(took)
	if v > sample {
		sample += (v - sample) * l.left(l.latencyAt.Load(), now)
	}
	l.latency.Store(math.Float64bits(sample))
	l.latencyAt.Store(max(now, l.latencyAt.Load()))
}

// atLeastLocked records the time for which a call had no answer.
func (l *Load) atLeastLocked(took, now int64) {
	if v := math.Float64frombits(l.latency.Load()); v != 0 && float64(took) >= v && took <= int64(Longest) {
		l.observeLocked(took, now)
	}
}

// judgeLocked moves the share of failures towards 0 or 1.
func (l *Load) judgeLocked(to float64, now int64) {
	share := to
	if l.heard.Load() {
		share += (math.Float64frombits(l.failing.Load()) - to) * l.left(l.failingAt.Load(), now)
	}
	l.failing.Store(math.Float64bits(share))
	l.failingAt.Store(max(now, l.failingAt.Load()))
}

// failedLocked counts a failure. Only a call that began when the backend was down
// already makes the next probe wait longer: many that fail together are one event.
func (l *Load) failedLocked(begin, now int64) {
	was := l.Down()
	l.run.Add(1)
	switch {
	case !l.Down():
	case !was:
		l.downAt = now
	case begin >= l.downAt && l.doublings < maxDoublings:
		l.doublings++
		l.downAt = now
		l.patience.Store(int64(l.cfg.Probe) << l.doublings)
	}
}

// left returns the part that is left at now of what was learnt at then.
func (l *Load) left(then, now int64) float64 {
	return math.Exp(-float64(max(now-then, 0)) / float64(l.cfg.Decay))
}

// InFlight returns how many calls have begun and not ended.
func (l *Load) InFlight() int64 { return l.inFlight.Load() }

// Down reports whether the last calls all failed: three in a row, or as many as there
// were.
func (l *Load) Down() bool {
	run := l.run.Load()
	return run >= downAfter || run > 0 && l.latency.Load() == 0
}

// Cost returns the load in nanoseconds, never negative: the expected latency of a call,
// times the calls in flight and this one. It is 0 for a backend that was never called.
func (l *Load) Cost(now int64) float64 {
	n := float64(max(l.inFlight.Load(), 0))
	v := math.Float64frombits(l.latency.Load())
	switch {
	case v != 0:
		v *= max(l.left(l.latencyAt.Load(), now), fadeTo)
	case n == 0 && !l.heard.Load():
		return 0
	default:
		v = float64(l.cfg.Penalty)
	}
	if f := math.Float64frombits(l.failing.Load()); f > 0 {
		v += f * l.left(l.failingAt.Load(), now) * float64(l.cfg.Penalty)
	}
	return v * (n + 1)
}

// due returns when a probe is due if no call begins before.
func (l *Load) due() int64 { return l.seen.Load() + l.patience.Load() }
