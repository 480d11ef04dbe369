package member

import "time"

// holdFactor times Settle is the longest that a change is held back because its
// member does not come to rest.
const holdFactor = 10

// debouncer debounces facts: it knows what is shown, and what is to be shown once
// it has been stable. It is a plain state machine; time is an argument.
type debouncer struct {
	self      string // name of the own node, whose facts are shown at once
	stableFor time.Duration
	shown     map[string]Fact
	// pending holds what differs from what is shown.
	// Invariant: pending[n].fact != shown[n].
	pending map[string]pending
	urgent  bool // something is to be shown at once
}

type pending struct {
	fact  Fact
	first time.Time // since when the member has differed from what is shown
	since time.Time // since when it has been as it is
}

func newDebouncer(self string, stableFor time.Duration) *debouncer {
	return &debouncer{self: self, stableFor: stableFor, shown: map[string]Fact{}, pending: map[string]pending{}}
}

// update takes in the members as they are now. Touched are those of whom serf had
// an event since the last look: they have moved, even if they look the same.
func (s *debouncer) update(now time.Time, members map[string]Fact, touched map[string]bool) {
	for name, f := range members {
		shown, ok := s.shown[name]
		if ok && shown == f {
			delete(s.pending, name)
			continue
		}
		p, differed := s.pending[name]
		if !differed {
			p.first = now
		}
		if !differed || p.fact != f || touched[name] {
			p.fact, p.since = f, now
		}
		s.pending[name] = p
		if s.atOnce(f) {
			s.urgent = true
		}
	}
	for name := range s.pending {
		if _, ok := members[name]; !ok {
			delete(s.pending, name)
		}
	}
	for name := range s.shown {
		if _, ok := members[name]; !ok {
			delete(s.shown, name)
			s.urgent = true
		}
	}
}

// atOnce reports whether a fact is shown without waiting.
func (s *debouncer) atOnce(f Fact) bool {
	return f.State == Leaving || f.State == Left || f.Name == s.self
}

// due returns when a pending fact is stable enough.
func (s *debouncer) due(p pending) time.Time {
	if s.atOnce(p.fact) {
		return p.since
	}
	due, last := p.since.Add(s.stableFor), p.first.Add(holdFactor*s.stableFor)
	if last.Before(due) {
		return last
	}
	return due
}

// turn moves what is due to what is shown. What is due waits for what is not,
// Settle at most, so that a burst becomes one change. It returns whether
// something changed, and when to ask again, zero for not before the next look.
func (s *debouncer) turn(now time.Time) (changed bool, next time.Time) {
	var due []string
	var oldest, soonest time.Time
	for name, p := range s.pending {
		at := s.due(p)
		if at.After(now) {
			soonest = earlier(soonest, at)
			continue
		}
		due = append(due, name)
		oldest = earlier(oldest, at)
	}
	if len(due) > 0 && !s.urgent && !soonest.IsZero() && now.Sub(oldest) < s.stableFor {
		return false, earlier(soonest, oldest.Add(s.stableFor))
	}
	for _, name := range due {
		s.shown[name] = s.pending[name].fact
		delete(s.pending, name)
	}
	changed = s.urgent || len(due) > 0
	s.urgent = false
	return changed, soonest
}

// earlier returns the earlier of two times, of which zero is none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}
