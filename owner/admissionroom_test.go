package owner

import (
	"fmt"
	"testing"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/admission"
	"github.com/keystead/keystead/owner/limit"
	"github.com/keystead/keystead/owner/reqid"
)

// TestHoldsAreCounted: holds count as memory, on admissions that are there too; what would go beyond it is refused and
// charges nothing, and what is settled makes room.
func TestHoldsAreCounted(t *testing.T) {
	const most = 4 << 20
	s := newStore(t, func(c *Config) { c.MaxBytes = most })
	var ids []admission.ID
	var err error
	at := func(i uint64) Ref { return Ref{Key: fmt.Sprint(i % 16), Name: "admission"} }
	op := func(i uint64) Admit {
		return Admit{Demands: []Demand{tokens("a", 1, 1e9), slotsOf(fmt.Sprintf("slots %d", i/16%8), 1, 1e9)}, Hold: 24 * 3600 * second}
	}
	now, i := int64(0), uint64(0)
	for ; err == nil && i < 16*8000; i++ {
		now += second / 8 // what is remembered of requests is forgotten, and leaves room
		s.Sweep(now)
		var a AdmitAnswer
		if a, err = s.Admit(now, at(i), reqid.ID{Client: reqid.Client{Hi: 1, Lo: i % 16}, Sequence: 1 + i}, op(i), nil); err == nil {
			ids = append(ids, a.Hold)
		}
	}
	if b := s.Stats().Bytes; reason(err) != failure.StoreFull || b > most+64<<10 { // the room of a list grows by an eighth
		t.Fatalf("%d holds in %d bytes: %v", len(ids), b, err)
	}
	left := func() uint64 {
		return must(s.Check(now, Ref{Key: at(i - 1).Key, Name: "a"}, noID, limit.Op{Params: tokens("a", 1, 1e9).Params, Cost: 1, Peek: true})).Remaining
	}
	before := left()
	if _, err := s.Admit(now, at(i-1), reqid.ID{Client: reqid.Client{Hi: 1, Lo: i}, Sequence: 1}, op(i-1), nil); reason(err) != failure.StoreFull || left() != before {
		t.Errorf("%d remain, not %d: %v", left(), before, err)
	}
	must(s.Settle(now, at(i-1), noID, ids[len(ids)-16], nil, true))
	if _, err := s.Admit(now, at(i-1), reqid.ID{Client: reqid.Client{Hi: 1, Lo: i}, Sequence: 1}, op(i-1), nil); err != nil {
		t.Errorf("in the place of one that is settled: %v", err)
	}
	now += 24*3600*second + 1
	s.Wake(now)
	if _, err := s.Admit(now, at(i-1), reqid.ID{Client: reqid.Client{Hi: 1, Lo: i}, Sequence: 2}, op(i-1), nil); err != nil {
		t.Errorf("in the place of one that is only remembered: %v", err)
	}
}

// TestCostsNameADemandOnce: a settlement that says two costs of one demand is refused, and changes nothing.
func TestCostsNameADemandOnce(t *testing.T) {
	s := newStore(t, nil)
	a := admit(t, s, 0, id(1), 60*second, tokens("a", 5, 10), tokens("b", 5, 10))
	if b, err := s.Settle(second, gate7, id(2), a.Hold, []Cost{{"a", 1}, {"a", 4}}, false); reason(err) != failure.Invalid {
		t.Errorf("%+v, %v", b, err)
	}
	if n := spentOf(t, s, second, "a", 10); n != 5 {
		t.Errorf("%d spent", n)
	}
}
