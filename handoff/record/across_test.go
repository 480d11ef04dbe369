package record

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/across"
	"github.com/keystead/keystead/owner/admission"
	"github.com/keystead/keystead/owner/reqid"
)

// largest is the bound of package feed.
const largest = 2 << 20

// TestVotesTravel: a copy that was told of votes by bytes knows all of each, and an object that has as many as it may fits
// a record.
func TestVotesTravel(t *testing.T) {
	to := &cable{t: t, places: true}
	to.to = newStore(t, &rule{epoch: 200}, nil)
	s := newStore(t, &rule{epoch: 100}, to)
	ref := owner.Ref{Key: "team:2", Name: "admission"}
	id := func(n int) reqid.ID {
		return reqid.ID{Client: reqid.Client{Hi: math.MaxUint64, Lo: math.MaxUint64}, Sequence: uint64(n), Settled: uint64(n)}
	}
	hold := func(s *owner.Store, n, keys int, cost uint64) (owner.AcrossAnswer, error) {
		op := owner.HoldAcross{Epoch: owner.MaxEpoch, Terms: across.Terms{Keys: []string{ref.Key}, Of: []uint8{0}, Names: []uint32{owner.NameAcross(ref.Key, "used")}, Hold: admission.MaxHold, Print: math.MaxUint32}}
		for k := range keys {
			op.Keys, op.Of = append(op.Keys, fmt.Sprint("key:", k, strings.Repeat("x", 40))), append(op.Of, uint8(k+1))
			op.Names = append(op.Names, uint32(k))
		}
		op.Demands = []owner.Demand{{Demand: admission.Demand{Term: admission.Term{Of: admission.Counter, Name: "used", Max: 1e11}, Cost: cost}}}
		return s.HoldAcross(second, ref, id(n), op, nil)
	}
	n, held, denied := 1, 0, 0
	for ; denied < across.MaxDenied; n++ {
		keys, cost := 3, uint64(1)
		if n%2 == 0 && denied < across.MaxDenied/2 {
			cost = 1e11 // refused
		}
		a, err := hold(s, n, keys, cost)
		if err != nil {
			t.Fatal(n, err)
		}
		if a.Phase == across.Held {
			held++
		} else {
			denied++
		}
	}
	if held == 0 {
		t.Fatal("nothing is held")
	}
	biggest := 0
	s.Export(func() int64 { return 2 * second }, func(uint64) bool { return true }, func(r *owner.Record, now int64) bool {
		if r.Kind == owner.KindAdmission {
			biggest = max(biggest, len(Append(nil, r, now)))
		}
		return true
	}, func() bool { return true })
	t.Log(held, "held,", denied, "denied,", biggest, "bytes")
	if biggest > largest-admission.MaxText {
		t.Errorf("all votes of an object take %d bytes", biggest)
	}
	for i := 1; i < n; i += 101 {
		q := across.Question{ID: across.ID{Client: id(i).Client, Sequence: id(i).Sequence}, Epoch: 1, Print: math.MaxUint32}
		want, err := s.AskAcross(second, ref, q)
		if err != nil {
			t.Fatal(err)
		}
		got, err := to.to.AskAcross(second, ref, q)
		if err != nil || got.Phase != want.Phase || got.Refusal.Demands != want.Refusal.Demands {
			t.Fatalf("vote %d is %+v, and %+v at the copy: %v", i, want, got, err)
		}
	}
	costs := []uint64{7, 0, 0, 0}
	first := across.ID{Client: id(1).Client, Sequence: 1}
	word := across.Word{ID: first, Phase: across.Settled, Costs: costs, Print: math.MaxUint32}
	if _, err := to.to.TellAcross(second, ref, word); err != nil {
		t.Fatal(err)
	}
	if v, err := to.to.Get(second, owner.Ref{Key: ref.Key, Name: "used"}); err != nil || v.Value != int64(held)+6 {
		t.Errorf("%+v %v", v, err)
	}
}
