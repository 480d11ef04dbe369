package across

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/keystead/keystead/owner/reqid"
)

// steps is one admission of a, b and c, whose coordinator dies at some step.
type steps struct {
	states []*State
	now    int64
	spent  [3]bool // what is charged
	told   *Outcome
}

func (x *steps) effect(i int, e Effect) {
	if e.To == Cancelled || e.To == Released {
		x.spent[i] = false
	}
}

func (x *steps) hold(h *Hold, refuses Set) Answer {
	s := x.states[h.Self]
	v, a, _ := s.Judge(h, x.now)
	if v != Fresh {
		return a
	}
	if refuses.Has(h.Self) {
		return s.Vote(h, x.now, &Refusal{Demands: One(h.Self), RetryAt: x.now + 1})
	}
	x.spent[h.Self] = true
	return s.Vote(h, x.now, nil)
}

// asks has participants ask each other until nothing is open.
func (x *steps) asks() {
	for range 3 {
		x.now += MaxPause
		for i, s := range x.states {
			questions, words := s.Due(theID, x.now)
			for _, q := range questions {
				a, _ := x.states[q.To].Asked(&q, x.now)
				e, _ := s.Answered(theID, q.To, a, x.now)
				x.effect(i, e)
			}
			for _, w := range words {
				a, e, _ := x.states[w.To].Told(&w, x.now)
				x.effect(int(w.To), e)
				s.Answered(theID, w.To, a, x.now)
			}
		}
	}
}

// TestCoordinatorDiesAtEachStep: whatever of its Holds, of their answers and of its words has arrived, and
// whichever Holds come when all is decided, all charge or nobody, and as the caller was told.
func TestCoordinatorDiesAtEachStep(t *testing.T) {
	terms := Terms{Keys: participants, Of: []uint8{0, 1, 2}, Names: []uint32{1, 2, 3}}
	for n := range Set(1 << 15) {
		sent, refuses, heard, reached, late := n&7, n>>3&7, n>>6&7, n>>9&7, n>>12&7
		if heard&^sent != 0 {
			continue
		}
		x := &steps{now: int64(time.Hour)}
		for range participants {
			x.states = append(x.states, NewState(Config{Window: int64(5 * time.Minute)}))
		}
		c := NewCoordinator(theID, terms, 1, 0, x.now+10*Patience)
		holds := c.Holds(0)
		var words []Word
		for i := range holds {
			if !sent.Has(uint8(i)) {
				continue
			}
			if a := x.hold(&holds[i], refuses); heard.Has(uint8(i)) {
				o, more := c.Answered(uint8(i), a)
				words = append(words, more...)
				if o != nil {
					x.told = o
				}
			}
		}
		if o, more := c.Expire(c.Deadline); o != nil {
			x.told, words = o, append(words, more...)
		}
		for i := range words {
			if w := &words[i]; reached.Has(w.To) {
				_, e, _ := x.states[w.To].Told(w, x.now)
				x.effect(int(w.To), e)
			}
		}
		x.asks()
		for i := range holds {
			if late.Has(uint8(i)) {
				x.hold(&holds[i], refuses)
			}
		}
		x.asks()
		x.check(t, n)
		if t.Failed() {
			return
		}
	}
}

func (x *steps) check(t *testing.T, n Set) {
	t.Helper()
	all := [3]bool{true, true, true}
	if x.spent != all && x.spent != [3]bool{} {
		t.Errorf("schedule %015b: charged are %v", n, x.spent)
	}
	if x.told != nil && (x.told.Phase == Admitted && x.spent != all || x.told.Phase == Refused && x.spent == all) {
		t.Errorf("schedule %015b: the caller was told %d, and charged are %v", n, x.told.Phase, x.spent)
	}
	for i, s := range x.states {
		if s.Undecided() != 0 {
			t.Errorf("schedule %015b: %s holds, and does not know", n, participants[i])
		}
	}
}

// TestStateCounts: what a State says of how much it has, and of what is next, is so.
func TestStateCounts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := NewState(Config{Window: int64(5 * time.Minute)})
		now := int64(time.Hour)
		terms := Terms{Keys: participants, Of: []uint8{0, 1, 2}, Names: []uint32{1, 2, 3}, Hold: rapid.Int64Range(0, 3).Draw(t, "hold") * Patience}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			now += rapid.Int64Range(0, 3*Patience).Draw(t, "passed")
			id := ID{reqid.Client{Hi: 1}, uint64(rapid.IntRange(1, 6).Draw(t, "id"))}
			from := uint8(rapid.IntRange(0, 20).Draw(t, "from"))
			p := Phase(rapid.IntRange(0, int(phases)-1).Draw(t, "phase"))
			costs := make([]uint64, rapid.IntRange(0, 4).Draw(t, "costs"))
			switch rapid.IntRange(0, 8).Draw(t, "step") {
			case 0, 1:
				h := Hold{ID: id, Terms: terms, Epoch: 1, Own: []byte("own")}
				if v, _, _ := s.Judge(&h, now); v == Fresh {
					s.Vote(&h, now, nil)
				}
			case 2:
				s.Answered(id, from, Answer{Phase: p, Costs: costs}, now)
			case 3:
				s.Told(&Word{ID: id, Phase: p, Costs: costs, All: from%2 == 0}, now)
			case 4:
				s.Asked(&Question{ID: id, Epoch: 1}, now)
			case 5:
				s.Settle(id, costs, now)
			case 6:
				s.Extend(id, Patience, now)
			case 7:
				s.Prune(func(of ID) bool { return of == id })
			default:
				if at, ok := s.Next(); ok && at <= now {
					next := s.First().ID
					s.Expire(next, now)
					s.Due(next, now)
					if v := s.Find(next); v != nil && v.at() <= now {
						t.Fatalf("%+v is due again at once", v)
					}
				}
			}
			countsHold(t, s)
		}
	})
}

func countsHold(t *rapid.T, s *State) {
	held, open, text, first := 0, 0, 0, int64(1<<62)
	for _, v := range s.votes {
		if first = min(first, v.at()); v.Phase.Holds() {
			held++
			text += textOf(&v.Terms, v.Own)
		}
		if v.Phase == Held {
			open++
		}
		if v.Phase == Settled && len(v.Costs) != len(v.Of) {
			t.Fatalf("%+v is settled by costs of something else", v)
		}
		if s.due[v.place] != (entry{v.at(), v}) {
			t.Fatalf("%+v is not at its place, or not by its time", v)
		}
	}
	if held != s.held || open != s.open || text != s.text || len(s.due) != len(s.votes) {
		t.Fatalf("%d of %d hold, %d undecided, %d bytes; it says %d, %d, %d", held, len(s.votes), open, text, s.held, s.open, s.text)
	}
	if at, ok := s.Next(); ok != (len(s.votes) > 0) || ok && at != first {
		t.Fatalf("next is at %d, and %d by its word", first, at)
	}
}

// TestReusedID: an id that is used for another request has nothing of the first one.
func TestReusedID(t *testing.T) {
	s := NewState(Config{Window: int64(5 * time.Minute)})
	h := Hold{ID: theID, Epoch: 1, Terms: Terms{Keys: participants[:2], Of: []uint8{0, 1}, Names: []uint32{1, 2}, Print: 1}}
	s.Vote(&h, 1, nil)
	if v, a, _ := s.Judge(&h, 2); v != Known || a.Phase != Held {
		t.Errorf("verdict %d on the same again: %+v", v, a)
	}
	h.Print = 2
	if v, a, _ := s.Judge(&h, 2); v != Reused || a.Phase != Unknown {
		t.Errorf("verdict %d on another request: %+v", v, a)
	}
	if a, changed := s.Asked(&Question{ID: theID, Print: 2}, 2); a.Phase != Aborted || changed {
		t.Errorf("asked about another request: %+v", a)
	}
	if a, e, changed := s.Told(&Word{ID: theID, Phase: Cancelled, Print: 2}, 2); a.Phase != Aborted || e.To != Unknown || changed {
		t.Errorf("told of another request: %+v", a)
	}
	if a, _ := s.Asked(&Question{ID: theID, Print: 1}, 2); a.Phase != Held {
		t.Errorf("asked about the first one: %+v", a)
	}
}

// TestFinishedDenials: denials of finished requests make room for others; holds stay.
func TestFinishedDenials(t *testing.T) {
	s := NewState(Config{Window: int64(5 * time.Minute)})
	terms := Terms{Keys: participants[:2], Of: []uint8{0, 1}, Names: []uint32{1, 2}}
	id := func(n int) ID { return ID{reqid.Client{Hi: 2}, uint64(n)} }
	s.Vote(&Hold{ID: id(1), Terms: terms}, 1, nil)
	for n := 2; n < 2+MaxDenied; n++ {
		s.Vote(&Hold{ID: id(n), Terms: terms}, 1, &Refusal{Demands: 1})
	}
	next := Hold{ID: id(1 << 20), Epoch: 1, Terms: terms}
	if v, a, changed := s.Judge(&next, 1); !s.Crowded() || v != Known || a.Phase != Unknown || changed {
		t.Errorf("without room for a denial: verdict %d, %+v", v, a)
	}
	gone := s.Prune(func(id ID) bool { return id.Sequence < 10 })
	slices.SortFunc(gone, func(a, b ID) int { return int(a.Sequence) - int(b.Sequence) })
	if len(gone) != 8 || gone[0] != id(2) || s.Find(id(1)) == nil {
		t.Errorf("forgotten are %v", gone)
	}
	if v, _, _ := s.Judge(&next, 1); v != Fresh {
		t.Errorf("with room: verdict %d", v)
	}
}

// TestFinishedOutcomes: what was spent is forgotten early if its request is finished and all others know of it; what may
// be settled, or asked for, is not.
func TestFinishedOutcomes(t *testing.T) {
	s := NewState(Config{Window: int64(5 * time.Minute)})
	spend := Terms{Keys: participants[:2], Of: []uint8{0, 1}, Names: []uint32{1, 2}}
	hold := spend
	hold.Hold = Patience
	id := func(n int) ID { return ID{reqid.Client{Hi: 2}, uint64(n)} }
	for n, terms := range []Terms{spend, spend, hold, hold, hold} {
		s.Vote(&Hold{ID: id(n), Terms: terms}, 1, nil)
		s.Told(&Word{ID: id(n), Phase: Admitted, All: n != 1}, 1)
	}
	s.Expire(id(2), 2*Patience)
	s.Expire(id(3), 2*Patience)
	s.Settle(id(3), []uint64{0, 0}, 2*Patience)
	s.Told(&Word{ID: id(3), Phase: Settled, Costs: []uint64{0, 0}, All: true}, 2*Patience)
	gone := s.Prune(func(ID) bool { return true })
	slices.SortFunc(gone, func(a, b ID) int { return int(a.Sequence) - int(b.Sequence) })
	if !slices.Equal(gone, []ID{id(0), id(3)}) {
		t.Errorf("forgotten are %v", gone)
	}
}

// TestSettledBeforeTheDecision: what an admission cost is told to the others as soon as it is known that all hold, also if
// its caller has said it before.
func TestSettledBeforeTheDecision(t *testing.T) {
	s := NewState(Config{Window: int64(5 * time.Minute)})
	terms := Terms{Keys: participants[:2], Of: []uint8{0, 1}, Names: []uint32{1, 2}, Hold: int64(time.Minute)}
	s.Vote(&Hold{ID: theID, Terms: terms}, 1, nil)
	costs := []uint64{1, 2}
	if a, _, _ := s.Settle(theID, costs, 2); a.Phase != Held {
		t.Fatalf("%+v", a)
	}
	if questions, words := s.Due(theID, 2); len(questions) != 1 || len(words) != 0 {
		t.Fatalf("to be sent are %v and %v", questions, words)
	}
	if e, _ := s.Answered(theID, 1, Answer{Phase: Held}, 3); e.To != Settled {
		t.Fatalf("%+v", e)
	}
	if _, words := s.Due(theID, 3); len(words) != 1 || words[0].Phase != Settled || !slices.Equal(words[0].Costs, costs) {
		t.Errorf("told is %v", words)
	}
}
