package owner

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/across"
	"github.com/keystead/keystead/owner/counter"
	"github.com/keystead/keystead/owner/reqid"
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

// TestVotesAreCounted: votes count as memory, also on admissions that are there. Without memory nothing is held any more,
// and denials have some more; then nothing is said.
func TestVotesAreCounted(t *testing.T) {
	const most = 1 << 20
	s := newStore(t, func(c *Config) { c.MaxBytes = most })
	now, i := int64(0), uint64(0)
	at := func() Ref { return Ref{Key: fmt.Sprint(i % 4), Name: "admission"} }
	for _, fill := range []struct {
		what  string
		bytes int64
		do    func() (AcrossAnswer, error)
	}{
		{"holds", most, func() (AcrossAnswer, error) {
			key, other := at().Key, strings.Repeat("x", 400)
			op := HoldAcross{Terms: across.Terms{Keys: []string{key, other}, Of: []uint8{0, 1}, Names: []uint32{NameAcross(key, "a"), 1}, Hold: 24 * 3600 * second}, Epoch: 1, Demands: []Demand{tokens("a", 1, 1e9)}}
			return s.HoldAcross(now, at(), reqid.ID{Client: reqid.Client{Hi: 1, Lo: i % 16}, Sequence: 1 + i}, op, nil)
		}},
		{"marks", most + most/idReserve, func() (AcrossAnswer, error) {
			return s.AskAcross(now, at(), across.Question{ID: across.ID{Client: reqid.Client{Hi: 1}, Sequence: 1 + i}})
		}},
	} {
		var err error
		from := i
		for ; err == nil && i < from+4*across.MaxHeld; i++ {
			now += second / 100
			_, err = fill.do()
		}
		if b := s.Stats().Bytes; reason(err) != failure.StoreFull || b > fill.bytes+16<<10 {
			t.Errorf("%s: %d bytes for %d: %v", fill.what, b, i-from, err)
		}
	}
}

// TestMarksMakeRoom: marks of requests that one client had refused elsewhere do not keep others out, also at the next
// owner; what was marked stays refused.
func TestMarksMakeRoom(t *testing.T) {
	for what, mark := range map[string]func(p *party, id across.ID) (AcrossAnswer, error){
		"asked": func(p *party, id across.ID) (AcrossAnswer, error) {
			return p.store.AskAcross(0, p.ref, across.Question{ID: id, Epoch: 1})
		},
		"cancelled": func(p *party, id across.ID) (AcrossAnswer, error) {
			return p.store.TellAcross(0, p.ref, across.Word{ID: id, Epoch: 1, Phase: across.Cancelled})
		},
	} {
		p := newParty(t, acrossKeys[0])
		last := id(9)
		for last.Sequence = 1; last.Sequence < across.MaxDenied; last.Sequence++ {
			must(mark(p, across.ID{Client: last.Client, Sequence: last.Sequence}))
		}
		must(mark(p, across.ID{Client: last.Client, Sequence: last.Sequence}))
		p.fails(t, second)
		other := reqid.ID{Client: reqid.Client{Hi: 77}, Sequence: 1}
		if a, err := holdAt(t, p, second, other, 0, second, bounded("used", 5, 10)); err != nil || a.Phase != across.Held {
			t.Errorf("%s: another client's: %+v, %v", what, a, err)
		}
		if a, err := holdAt(t, p, second, last, 0, second, bounded("used", 5, 10)); err != nil || !a.Phase.Denies() {
			t.Errorf("%s: what was marked: %+v, %v", what, a, err)
		}
		if a := must(p.store.AskAcross(second, p.ref, across.Question{ID: across.ID{Client: last.Client, Sequence: last.Sequence}})); a.Phase != across.Aborted {
			t.Errorf("%s: asked again: %+v", what, a)
		}
	}
}

// TestAskedAboutAnotherRequest: an id that was used for another request has not held this one, whatever that became.
func TestAskedAboutAnotherRequest(t *testing.T) {
	p := newParty(t, acrossKeys[0])
	if a := must(p.store.Admit(0, p.ref, id(1), Admit{Demands: []Demand{bounded("used", 5, 10)}}, nil)); !a.Admitted {
		t.Fatalf("%+v", a)
	}
	if _, err := holdAt(t, p, 0, id(1), 0, second, bounded("used", 5, 10)); reason(err) != failure.RequestIDReused {
		t.Error(err)
	}
	if a := must(p.store.AskAcross(second, p.ref, across.Question{ID: across.ID{Client: id(1).Client, Sequence: 1}, Epoch: 1})); a.Phase != across.Aborted {
		t.Errorf("%+v", a)
	}
}

// TestRetryOfAnyAge: what a caller says of its age makes a request no younger.
func TestRetryOfAnyAge(t *testing.T) {
	p := newParty(t, acrossKeys[0])
	must(holdAt(t, p, second, id(1), 0, second, bounded("used", 5, 10)))
	again := id(1)
	again.Age = math.MaxInt64
	if a := must(holdAt(t, p, 2*second, again, 0, second, bounded("used", 5, 10))); a.Phase != across.Held {
		t.Errorf("%+v", a)
	}
	p.store.Asks() // of before
	for now := 3 * second; now < 1000*second; now += 10 * second {
		p.store.Wake(now)
		for _, ask := range p.store.Asks() {
			for _, q := range ask.Questions {
				if q.Age < now-second {
					t.Fatalf("%+v", q)
				}
			}
		}
	}
	p.fails(t, 1000*second)
	if v := p.vote(across.ID{Client: id(1).Client, Sequence: 1}); v.Phase != across.Held {
		t.Errorf("%+v", v)
	}
}
