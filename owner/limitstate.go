package owner

import (
	"unsafe"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/limit"
	"github.com/keystead/keystead/owner/reqid"
)

// limits is the kind of rate limits.
type limits struct{}

var limitMachine = machine{name: "limit", cell: unsafe.Sizeof(limitCell{}), states: limits{}, parts: limits{}}

func (limits) absent(_ *shard, e *entry, now int64) bool {
	c := e.limit()
	return c.weight() == 0 && (c.spent == 0 || c.state().Absent(now))
}

func (limits) spent(_ *shard, e *entry) bool { return e.limit().spent != 0 }

func (limits) fades() bool { return true }

func (limits) clear(sh *shard, e *entry) { sh.setLimitLocked(e, &limit.State{}, nil) }

func (limits) record(sh *shard, e *entry, r *Record, _ bool) {
	r.Limit, r.Marks = e.limit().state(), sh.marksLocked(e.limit())
}

// refresh applies a weight that is lower than that under which a part counts. It is a
// change: whoever tells others of it first waits for the copies.
func (limits) refresh(t *target) {
	//guard:split-look-lowers
	if t.ref.Role == Look {
		t.lowerLocked()
	}
}

func (limits) room(t *target, id *reqid.ID, r *Record) *failure.Error {
	return t.roomForLocked(id, r.Marks, true)
}

func (limits) put(t *target, r *Record) { t.sh.setLimitLocked(t.e, &r.Limit, r.Marks) }

func (e *entry) limit() *limitCell { return (*limitCell)(e.state()) }

// limitCell is limit.State without its padding: 40 bytes. The zero cell is the
// zero state.
type limitCell struct {
	at                 int64
	spent, carry, rate uint64 // carry: of a sliding window, where its marks are; see sliding.go. rate: the weight from weightShift on
	period             uint64 // the algorithm in the top byte
}

const (
	algorithmShift = 56 // limit.MaxPeriod is below 2^55
	weightShift    = 40 // limit.MaxLimit is below 2^40
)

func packLimit(s limit.State) limitCell {
	return limitCell{s.At, s.Spent, s.Carry, s.Limit | uint64(s.Weight)<<weightShift, uint64(s.Period) | uint64(s.Algorithm)<<algorithmShift}
}

// weight is that of the state.
func (c *limitCell) weight() uint32 { return uint32(c.rate >> weightShift) }

// weigh gives the state, which has none, a weight.
func (c *limitCell) weigh(weight uint32) { c.rate |= uint64(weight) << weightShift }

func (c *limitCell) state() limit.State {
	s := limit.State{
		Algorithm: limit.Algorithm(c.period >> algorithmShift), Weight: c.weight(), At: c.at,
		Spent: c.spent, Carry: c.carry, Limit: c.rate & (1<<weightShift - 1), Period: int64(c.period & (1<<algorithmShift - 1)),
	}
	if s.Algorithm == limit.SlidingWindow {
		s.Carry = 0
	}
	return s
}

// markCellLocked is the room for marks of a sliding window, nil if it has none.
func (sh *shard) markCellLocked(c *limitCell) []limit.Mark {
	slot, room := c.markCell()
	if slot == 0 {
		return nil
	}
	return unsafe.Slice((*limit.Mark)(sh.marks.At(slot)), room)
}
