package owner

import (
	"time"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/limit"
)

// CalendarLevel is the level of the cluster from which on there are limits by the calendar.
const CalendarLevel = 8

// Dates is what a Rule implements, too, if it knows the time that calendars go by. Under one that
// does not, there are no limits by the calendar.
type Dates interface {
	// Wall returns the time that is agreed on, in ns since 1970, at a moment of the clock of
	// the store. ok is false if it is not known. It is called under the shard lock and must be
	// quick.
	Wall(now int64) (wall int64, ok bool)
}

var errDates = &failure.Error{Reason: failure.Unavailable, RetryAfter: time.Second,
	Message: "this node does not know what time it is: its cluster's clocks have not agreed on one yet; nothing happened",
	Hint:    "see to it that the clocks of more than half of the nodes show the same time within a minute (NTP)"}

// wallAt returns the time that is agreed on at a moment, if it is known.
func (s *Store) wallAt(now int64) (wall int64, ok bool) {
	if s.dates == nil {
		return 0, false
	}
	if wall, ok = s.dates.Wall(now); !ok || wall < 0 || wall > limit.MaxWall {
		return 0, false
	}
	return wall, true
}

// dateLocked takes the time for an operation on a limit of that state where one of both goes by a
// calendar. It makes a state of a calendar one that an operation of another algorithm goes on
// from.
func (t *target) dateLocked(state *limit.State, op *limit.Op) error {
	var ok bool
	t.wall, ok = t.sh.store.wallAt(t.now)
	if op.Algorithm != limit.CalendarWindow {
		*state = state.Undated(op, t.now, t.wall) // if nobody knows the time, its period is on
		return nil
	}
	if !ok {
		return errDates
	}
	return nil
}

// applyLocked decides a check that is plain.
func (t *target) applyLocked(s *limit.State, op *limit.Op) (next limit.State, res limit.Result, changed bool) {
	if op.Algorithm == limit.CalendarWindow {
		next, res, changed = limit.Date(*s, nil, *op, t.now, t.wall)
	} else {
		next = *s
		changed = next.Apply(op, t.now, &res)
	}
	if t.over != nil {
		t.endsLocked(next, nil, op, &res)
	}
	return next, res, changed
}

// emptied returns the state of a limit that stands for one that was lost and is taken to have been
// used up.
func (t *target) emptied(op *limit.Op) limit.State {
	if op.Algorithm == limit.CalendarWindow {
		//guard:calendar-lost-then t.wall-(t.now-t.permit.LostAt) -> t.wall
		return op.EmptiedAt(t.wall-(t.now-t.permit.LostAt), t.wall)
	}
	return op.Emptied(t.permit.LostAt)
}

// usedLocked returns how many tokens of a limit are spent and have not come back.
func (t *target) usedLocked() uint64 {
	c := t.e.limit()
	s := c.state()
	if s.Algorithm != limit.CalendarWindow {
		return s.Used(t.sh.marksLocked(c), t.now)
	}
	wall, _ := t.sh.store.wallAt(t.now)
	spent, _ := s.SpentAt(wall)
	return spent
}
