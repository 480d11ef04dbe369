package feed

import (
	"context"
	"slices"
	"sync/atomic"

	"github.com/keystead/keystead/owner"
)

// alwaysSlots is how many numbers LastAlways keeps: what changes at a time is kept by one round
// of the target's disk, so that few are enough.
const alwaysSlots = 1 << 13

// keptOf are the last records whose objects have answers that wait for the target's disk.
type keptOf struct {
	of  []atomic.Uint64 // by the low bits of the hash; nil = there are none
	all atomic.Uint64   // of all, and of what is urgent beside
	// fence is the number of the last Fence: nothing counts as kept before that is.
	fence atomic.Uint64
}

// awaited reports whether answers about one of the objects of a record wait for the target's disk: an admission tells of the
// limits and counters that it has changed as well.
func (s *Sender) awaited(r *owner.Record) bool {
	//guard:feed-always-beside slices.ContainsFunc(r.Beside, func(b owner.Record) bool { return s.cfg.Always(b.Kind) }) -> false
	return s.cfg.Always(r.Kind) || slices.ContainsFunc(r.Beside, func(b owner.Record) bool { return s.cfg.Always(b.Kind) })
}

// urgentLocked has the target's disk do a round when it has the record that was just added.
func (s *Sender) urgentLocked(seq uint64) {
	s.always.all.Store(seq)
	if n := len(s.queue); n > 0 {
		s.queue[n-1].urgent = true
	}
}

// Fence appends a record that says nothing, and returns its number. From now on LastAlways is at
// least that: so the target's disk has what the target had before this stream began. Members of a
// cluster know it from level 5 on.
func (s *Sender) Fence() uint64 {
	seq := s.Versions(0)
	//guard:feed-fence
	s.always.fence.Store(seq)
	return seq
}

// Kept returns the number up to which all records are on the target's disk; 0 = it keeps none.
// Kept is at most Acked.
func (s *Sender) Kept() uint64 { return s.kept.Load() }

// LastAlways is at least the number of the record appended last about an object at this position
// of a kind that is Always, and that of the last Fence; 0 = none.
func (s *Sender) LastAlways(hash uint64) uint64 {
	n := s.always.fence.Load()
	if s.always.of != nil {
		n = max(n, s.always.of[hash%alwaysSlots].Load())
	}
	return n
}

// LastUrgent is at least what LastAlways is for any position; 0 = none.
func (s *Sender) LastUrgent() uint64 { return s.always.all.Load() }

// KeptDone returns a channel that is closed when everything up to seq is kept, when more is kept
// than now, or when the sender has failed; Kept tells which.
func (s *Sender) KeptDone(seq uint64) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.kept.Load() >= seq || s.err != nil {
		return s.past
	}
	if s.rises == nil {
		s.rises = make(chan struct{})
	}
	return s.rises
}

// WaitKept returns nil when everything up to seq is kept. The error is the context's, or the
// failure of the sender.
func (s *Sender) WaitKept(ctx context.Context, seq uint64) error {
	for s.kept.Load() < seq {
		done := s.KeptDone(seq)
		if err := s.Err(); err != nil {
			return err
		}
		select {
		case <-done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// KeptBehind returns for how long, in nanoseconds, the oldest record that was sent has not been
// kept, and the oldest urgent one; 0 = there is none, or the sender has failed. The first may be
// some percent too long.
func (s *Sender) KeptBehind(now int64) (any, urgent int64) {
	return s.unkept.age(now), s.unkeptOf.age(now)
}

// keepLocked takes note that the target's disk has everything up to kept. It returns false if
// that cannot be.
func (s *Sender) keepLocked(kept uint64) bool {
	if s.err != nil {
		return true // too late
	}
	was := s.kept.Load()
	//guard:feed-kept-nonsense kept < was || kept > s.acked.Load() -> false
	if kept < was || kept > s.acked.Load() {
		return false
	}
	if kept > was {
		s.kept.Store(kept)
		s.unkept.keep(kept)
		s.unkeptOf.keep(kept)
		s.letLocked(&s.rises, true)
	}
	return true
}

// Bounds of marks, with their reasons.
const (
	maxMarks = 64        // the age of what was sent is known to 1/32 of the time that the disk was behind
	minStep  = 5_000_000 // ns; rounds of a disk are not shorter for long
)

// marks say when records were sent, until they are kept. What was sent within a step is one
// mark, as old as the first of it. The steps grow when there are too many.
type marks struct {
	list  []mark       // guarded by Sender.mu, in order
	step  int64        // guarded by Sender.mu
	since atomic.Int64 // at of the first one; 0 = there is none
}

type mark struct {
	last uint64 // record
	at   int64  // when the first one was sent
}

// add notes that everything up to last was sent now.
func (m *marks) add(last uint64, now int64) {
	n := len(m.list)
	if n > 0 && m.list[n-1].last >= last {
		return // sent again
	}
	if n < maxMarks/8 {
		m.step /= 2
	}
	m.step = max(m.step, minStep)
	switch {
	case n > 0 && now-m.list[n-1].at < m.step:
		m.list[n-1].last = last
		return
	case n == maxMarks:
		m.step *= 2
		for i := range n / 2 {
			m.list[i] = mark{m.list[2*i+1].last, m.list[2*i].at}
		}
		m.list = m.list[:n/2]
	}
	m.list = append(m.list, mark{last, now})
	m.tell()
}

// keep notes that everything up to kept is kept.
func (m *marks) keep(kept uint64) {
	n := 0
	for n < len(m.list) && m.list[n].last <= kept {
		n++
	}
	m.list = slices.Delete(m.list, 0, n)
	m.tell()
}

// clear forgets all.
func (m *marks) clear() {
	m.list = nil
	m.tell()
}

// tell shows when the first one was sent.
func (m *marks) tell() {
	if len(m.list) == 0 {
		m.since.Store(0)
	} else {
		m.since.Store(max(m.list[0].at, 1))
	}
}

// age returns how old the first one is; 0 = there is none.
func (m *marks) age(now int64) int64 {
	if since := m.since.Load(); since != 0 {
		return max(now-since, 1)
	}
	return 0
}
