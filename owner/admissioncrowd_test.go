package owner

import (
	"testing"

	"github.com/keystead/keystead/owner/across"
	"github.com/keystead/keystead/owner/counter"
)

// crowd has a party remember as many denials as there is room for.
func (p *party) crowd(t testing.TB, now int64, from uint64) {
	t.Helper()
	for n := range uint64(across.MaxDenied) {
		if a := must(p.store.TellAcross(now, p.ref, across.Word{ID: across.ID{Client: id(1).Client, Sequence: from + n}, Epoch: 1, Phase: across.Cancelled})); a.Phase != across.Aborted {
			t.Fatalf("%d: %+v", n, a)
		}
	}
}

// TestCrowdedCopy: what was given back once is given back once, also by the next owner, however many denials there are.
func TestCrowdedCopy(t *testing.T) {
	p := newParty(t, acrossKeys[0])
	must(p.store.Add(0, Ref{Key: p.ref.Key, Name: "used"}, noID, counter.AddOp{Delta: 7}))
	must(holdAt(t, p, 0, id(1), 0, second, bounded("used", 5, 100)))
	p.crowd(t, 0, 100)
	cancelled := across.Word{ID: across.ID{Client: id(1).Client, Sequence: 1}, Epoch: 1, Phase: across.Cancelled}
	for range 3 { // the last of them had a copy of all
		if a := must(p.store.TellAcross(second, p.ref, cancelled)); a.Phase != across.Cancelled || p.used(second) != 7 {
			t.Errorf("%+v, %d used", a, p.used(second))
		}
		p.fails(t, second)
	}
	for n := range uint64(across.MaxDenied) {
		if v := p.vote(across.ID{Client: id(1).Client, Sequence: 100 + n}); v.Phase != across.Aborted {
			t.Fatalf("%d: %+v", n, v)
		}
	}
}

// TestCrowdedOwnerIsAsked: where there is no room for denials, those that are known otherwise make room for the answer
// to a question, and for a Cancel that overtakes its Hold.
func TestCrowdedOwnerIsAsked(t *testing.T) {
	p := newParty(t, acrossKeys[0])
	must(p.store.Add(0, Ref{Key: p.ref.Key, Name: "used"}, noID, counter.AddOp{Delta: 10}))
	question := across.Question{ID: across.ID{Client: id(1).Client, Sequence: 1 << 20}, Epoch: 1}
	cancelled := across.Word{ID: across.ID{Client: id(1).Client, Sequence: 1<<20 + 1}, Epoch: 1, Phase: across.Cancelled}
	seq := uint64(0)
	for i, asked := range []func(now int64) (AcrossAnswer, error){
		func(now int64) (AcrossAnswer, error) { return p.store.AskAcross(now, p.ref, question) },
		func(now int64) (AcrossAnswer, error) { return p.store.TellAcross(now, p.ref, cancelled) },
	} {
		at := int64(1+2*i) * second
		for !p.crowded() {
			seq++
			of := id(seq)
			of.Settled = seq
			if a := must(holdAt(t, p, at, of, 0, second, bounded("used", 5, 10))); a.Phase != across.Refused {
				t.Fatalf("%d: %+v", seq, a)
			}
		}
		if a, err := asked(at + second); err != nil || a.Phase != across.Aborted {
			t.Errorf("at %d: %+v, %v", at, a, err)
		}
	}
}

func (p *party) crowded() (is bool) {
	t := target{ref: p.ref, kind: KindAdmission}
	if t.enter(p.store) == nil {
		defer t.leave()
		is = t.hasAdmission() && t.votesLocked().Crowded()
	}
	return is
}
