package owner

import (
	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/limit"
	"github.com/keystead/keystead/owner/reqid"
)

// The marks of a sliding window stand in a cell of their own, if there are at least
// two. The limit's cell says in place of the carry where that is, and for how many
// marks it has room; marks of no tokens follow those that are there.

// markRooms are the numbers of marks that a cell may have room for: few, so that
// blocks of cells are shared, and each about twice the one before, so that a window
// rarely changes cells. Most windows of most keys see few hits.
var markRooms = [...]int{2, 4, 8, limit.MaxMarks}

// markSize is the size of a mark in a cell, in bytes.
const markSize = 16

// markRoom returns the room that so many marks are given.
func markRoom(n int) int {
	for _, room := range markRooms {
		if n <= room {
			return room
		}
	}
	panic("owner: a sliding window of too many marks")
}

// markCell returns where the marks of a sliding window are, 0 = nowhere, and for how
// many of them there is room.
func (c *limitCell) markCell() (slot uint32, room int) {
	if limit.Algorithm(c.period>>algorithmShift) != limit.SlidingWindow {
		return 0, 0
	}
	return uint32(c.carry), int(c.carry >> 32)
}

// marksLocked returns the marks of a limit, in their cell.
func (sh *shard) marksLocked(c *limitCell) []limit.Mark {
	marks := sh.markCellLocked(c)
	for len(marks) > 0 && marks[len(marks)-1].Tokens == 0 {
		marks = marks[:len(marks)-1]
	}
	return marks
}

// setLimitLocked puts a state into the cell of a limit, and its marks into one of
// their own. Nothing is taken from marks.
func (sh *shard) setLimitLocked(e *entry, s *limit.State, marks []limit.Mark) {
	c := e.limit()
	slot, room := c.markCell()
	if room == 0 && len(marks) == 0 {
		*c = packLimit(*s)
		return
	}
	need := 0
	if len(marks) > 0 {
		need = markRoom(len(marks))
	}
	if need != room {
		if room != 0 {
			sh.marks.Free(slot)
		}
		if slot = 0; need != 0 {
			slot = sh.marks.Add(need * markSize)
		}
	}
	*c = packLimit(*s)
	if need == 0 {
		return
	}
	c.carry = uint64(slot) | uint64(need)<<32
	cell := sh.markCellLocked(c)
	clear(cell[copy(cell, marks):])
}

// plain reports whether an operation on a state is a check for limit.Apply or limit.Date alone,
// as most are.
func plain(s *limit.State, op *limit.Op) bool { return op.Refund == 0 && !op.Slides(s) }

// checkLocked goes on with a check that is not plain, and has not been done under
// its request id yet. made says that the state is not in the store, but stands for
// one that was lost.
func (t *target) checkLocked(id *reqid.ID, state *limit.State, op *limit.Op, made bool, print uint32) (CheckAnswer, error) {
	next, marks, res, changed := t.decideLocked(state, op)
	res.Capacity += t.slack
	keep := changed || made && (op.Refund == 0 || t.weight != 0) // it is to outlast the grace, if there is room for it
	if !keep && !id.Given() {
		return CheckAnswer{res, t.slack, t.limit, Meta{Permit: t.permit}}, nil
	}
	if err := t.roomForLocked(id, marks, changed); err != nil {
		if !changed && !id.Given() {
			return CheckAnswer{res, t.slack, t.limit, Meta{Permit: t.permit}}, nil
		}
		return CheckAnswer{}, err
	}
	if keep {
		if t.slot == 0 {
			t.createLocked()
		}
		t.sh.setLimitLocked(t.e, &next, marks)
		t.e.limit().weigh(t.weight)
		t.sh.advanceLocked()
	}
	t.changedLocked(id, reqid.Outcome{Print: print, Code: decision(res.Allowed), A: res.Delay})
	return CheckAnswer{res, t.slack, t.limit, Meta{Permit: t.permit}}, nil
}

// decideLocked returns what package limit says of an operation on a limit of the given
// state, that of the target if it is there, and of the end of its override. The marks are valid
// until the shard decides again.
func (t *target) decideLocked(s *limit.State, op *limit.Op) (next limit.State, marks []limit.Mark, res limit.Result, changed bool) {
	if next, marks, res, changed = t.decidedLocked(s, op); t.over != nil {
		as := marks
		if !changed {
			as = t.marksOf(&next)
		}
		t.endsLocked(next, as, op, &res)
	}
	return next, marks, res, changed
}

func (t *target) decidedLocked(s *limit.State, op *limit.Op) (next limit.State, marks []limit.Mark, res limit.Result, changed bool) {
	if op.Refund != 0 && t.startsEmpty() {
		seen := peekAt(*op)
		_, _, res, _ = t.decideLocked(s, &seen)
		res.Allowed, res.RetryAfter, res.Delay = true, 0, 0
		return *s, nil, res, false
	}
	if op.Algorithm == limit.CalendarWindow {
		if t.e != nil && s.Algorithm == limit.SlidingWindow {
			marks = t.sh.marksLocked(t.e.limit())
		}
		next, res, changed = limit.Date(*s, marks, *op, t.now, t.wall)
		return next, nil, res, changed
	}
	if !op.Slides(s) {
		next, res, changed = limit.Apply(*s, *op, t.now)
		return next, nil, res, changed
	}
	sh := t.sh
	if sh.slide == nil {
		sh.slide = make([]limit.Mark, 0, limit.MaxMarks+1)
	}
	sh.slide = sh.slide[:0]
	if t.e != nil {
		sh.slide = append(sh.slide, sh.marksLocked(t.e.limit())...)
	}
	return limit.Slide(*s, sh.slide, *op, t.now)
}

// peekAt is a peek at what an operation is about; of an overdraft, whether a check of 1 passes.
func peekAt(op limit.Op) limit.Op {
	if op.Overdraft {
		op.Cost, op.Overdraft = 1, false
	}
	op.Cost, op.Refund, op.Peek = max(op.Cost, 1), 0, true
	return op
}

// roomForLocked is roomLocked for an operation that may leave marks, too.
func (t *target) roomForLocked(id *reqid.ID, marks []limit.Mark, changed bool) *failure.Error {
	if err := t.roomLocked(id); err != nil || !changed || len(marks) == 0 {
		return err
	}
	sh, need, room := t.sh, markRoom(len(marks)), 0
	if t.e != nil {
		_, room = t.e.limit().markCell()
	}
	if need != room && sh.store.bytes.Load() >= sh.store.cfg.MaxBytes && !sh.marks.Room(need*markSize) {
		return errMemory
	}
	return nil
}
