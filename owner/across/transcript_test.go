package across

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"pgregory.net/rapid"

	"github.com/keystead/keystead/owner/reqid"
	"github.com/keystead/keystead/owner/wire"
)

// TestTranscripts runs testdata/transcripts: each file tells one death.
//
//	hold <p> [no] [epoch=1] [age=] [for=] [charge] [at=]   the Hold comes to p, which has room, or not
//	ask  <p> <q> [at=]                                     p asks q, and hears the answer
//	tell <p> admitted|cancelled|settled [cost=] [all] [at=]
//	settle <p> cost= [at=]                                 by the caller
//	due  <p> [at=]                                         what p sends, and what it is told
//	expire <p> [at=]
//	lose <p> epoch= [at=]                                  the row of p is lost
//	die  <p>                                               what only the owner had heard is gone
//
// Participants are a, b and c, and there is one request. All three stand after each step.
func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata/transcripts", func(t *testing.T, path string) {
		sc := &script{states: map[string]*State{}}
		for _, p := range participants {
			sc.states[p] = NewState(Config{Window: int64(5 * time.Minute)})
		}
		datadriven.RunTest(t, path, sc.run)
	})
}

var participants = []string{"a", "b", "c"}

var phaseNames = [phases]string{"unknown", "held", "admitted", "charged", "released", "settled", "refused", "aborted", "cancelled", "lost", "forgotten"}

type script struct {
	states map[string]*State
	now    int64
}

var theID = ID{reqid.Client{Hi: 1}, 1}

func place(p string) uint8 { return uint8(slices.Index(participants, p)) }

func (sc *script) run(t *testing.T, d *datadriven.TestData) string {
	var at string
	if d.MaybeScanArgs(t, "at", &at); at != "" {
		moment, err := time.ParseDuration(at)
		if err != nil {
			d.Fatalf(t, "%v", err)
		}
		sc.now = int64(moment)
	}
	p := d.CmdArgs[0].Key
	s := sc.states[p]
	var out []string
	effect := func(by string, e Effect) {
		if e.To != Unknown {
			out = append(out, fmt.Sprintf("→ %s: %s, %s before", by, phaseNames[e.To], phaseNames[e.From]))
		}
	}
	deliver := func(q Question) {
		a, _ := sc.states[q.Key].Asked(&q, sc.now)
		out = append(out, fmt.Sprintf("%s → %s: %s", q.Key, p, phaseNames[a.Phase]))
		e, _ := s.Answered(theID, q.To, a, sc.now)
		effect(p, e)
	}
	switch d.Cmd {
	case "hold":
		out = append(out, sc.hold(t, d, s, place(p)))
	case "ask":
		q := d.CmdArgs[1].Key
		v := s.Find(theID)
		deliver(Question{ID: theID, To: place(q), Key: q, Epoch: v.Epoch, Age: sc.now - v.Began})
	case "tell":
		w := Word{ID: theID, To: place(p), Key: p, Epoch: 1, Phase: Phase(slices.Index(phaseNames[:], d.CmdArgs[1].Key)), All: d.HasArg("all")}
		if d.HasArg("cost") {
			var cost uint64
			d.ScanArgs(t, "cost", &cost)
			w.Costs = []uint64{cost, cost, cost}
		}
		a, e, _ := s.Told(&w, sc.now)
		out = append(out, phaseNames[a.Phase])
		effect(p, e)
	case "settle":
		var cost uint64
		d.ScanArgs(t, "cost", &cost)
		a, e, _ := s.Settle(theID, []uint64{cost, cost, cost}, sc.now)
		out = append(out, phaseNames[a.Phase])
		effect(p, e)
	case "due":
		questions, words := s.Due(theID, sc.now)
		for _, q := range questions {
			deliver(q)
		}
		for _, w := range words {
			a, e, _ := sc.states[w.Key].Told(&w, sc.now)
			out = append(out, fmt.Sprintf("%s → %s: %s; %s → %s: %s", p, w.Key, phaseNames[w.Phase], w.Key, p, phaseNames[a.Phase]))
			effect(w.Key, e)
			e, _ = s.Answered(theID, w.To, a, sc.now)
			effect(p, e)
		}
	case "expire":
		e, _ := s.Expire(theID, sc.now)
		effect(p, e)
	case "lose":
		lost := NewState(s.Config)
		d.ScanArgs(t, "epoch", &lost.Lost)
		lost.Since = sc.now
		sc.states[p] = lost
	case "die":
		if v := s.Find(theID); v != nil {
			v.heard = 0
		}
	default:
		d.Fatalf(t, "unknown command %s", d.Cmd)
	}
	return strings.Join(append(out, sc.view()), "\n") + "\n"
}

func (sc *script) hold(t *testing.T, d *datadriven.TestData, s *State, self uint8) string {
	h := Hold{ID: theID, Self: self, Epoch: 1, Terms: Terms{Keys: participants, Of: []uint8{0, 1, 2}, Names: []uint32{1, 2, 3}, Charge: d.HasArg("charge")}}
	d.MaybeScanArgs(t, "epoch", &h.Epoch)
	for name, to := range map[string]*int64{"age": &h.Age, "for": &h.Hold} {
		var text string
		if d.MaybeScanArgs(t, name, &text); text != "" {
			v, err := time.ParseDuration(text)
			if err != nil {
				d.Fatalf(t, "%v", err)
			}
			*to = int64(v)
		}
	}
	v, a, _ := s.Judge(&h, sc.now)
	switch v {
	case TooOld:
		return "too old"
	case Fresh:
		var no *Refusal
		if d.HasArg("no") {
			no = &Refusal{Demands: One(self), RetryAt: sc.now + 1}
		}
		a = s.Vote(&h, sc.now, no)
	}
	return phaseNames[a.Phase]
}

func (sc *script) view() string {
	var all []string
	for _, p := range participants {
		text := p + " -"
		if v := sc.states[p].Find(theID); v != nil {
			text = p + " " + phaseNames[v.Phase]
		}
		all = append(all, text)
	}
	return strings.Join(all, ", ")
}

// TestVotesTravel: what is read is what was written, whatever it is, and nothing else is read.
func TestVotesTravel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.SliceOfN(rapid.Byte(), 0, 200).Draw(t, "bytes")
		r := wire.Reader{B: text, Now: 1 << 50}
		v, ok := ReadVote(&r, theID)
		if !ok {
			return
		}
		w := wire.Writer{Now: 1 << 50}
		AppendVote(&w, &v)
		again := wire.Reader{B: w.B, Now: 1 << 50}
		back, ok := ReadVote(&again, theID)
		second := wire.Writer{Now: 1 << 50}
		if AppendVote(&second, &back); !ok || !bytes.Equal(w.B, second.B) {
			t.Fatalf("%+v was read back as %+v", v, back)
		}
	})
}

// TestRetryByANewerTable: the first attempt's Hold comes late to a participant that holds for
// a retry. The retry went by a table of after the loss, the first attempt by one of before.
func TestRetryByANewerTable(t *testing.T) {
	cfg := Config{Window: int64(5 * time.Minute)}
	terms := Terms{Keys: participants[:2], Of: []uint8{0, 1}, Names: []uint32{1, 2}}
	a, b := NewState(cfg), NewState(cfg)
	now := int64(time.Hour)

	first := NewCoordinator(theID, terms, 7, 0, now+20*Patience)
	holds := first.Holds(0)
	b.Vote(&holds[1], now, nil)
	first.Answered(1, Answer{Phase: Held})
	b = NewState(cfg) // and its standby, after the answer
	b.Lost, b.Since = 8, now+2*Patience

	now += 3 * Patience
	again := NewCoordinator(theID, terms, 9, 3*Patience, now+20*Patience).Holds(3 * Patience)
	if v, _, _ := a.Judge(&again[0], now); v != Fresh {
		t.Fatal(v)
	}
	a.Vote(&again[0], now, nil)

	now += Patience
	questions, _ := a.Due(theID, now)
	answer, _ := b.Asked(&questions[0], now) // which is on its way for a while

	_, vote, _ := a.Judge(&holds[0], now)
	told, _ := first.Answered(0, vote)
	if told == nil || told.Phase != Admitted {
		t.Fatalf("the caller was told %+v", told)
	}
	if e, _ := a.Answered(theID, 1, answer, now); e.To != Charged {
		t.Errorf("admitted, and then %+v by %+v", e, answer)
	}
}

// TestTooOld: what may have been forgotten is not done.
func TestTooOld(t *testing.T) {
	s := NewState(Config{Window: int64(5 * time.Minute)})
	h := Hold{ID: theID, Epoch: 1, Terms: Terms{Keys: participants[:2], Of: []uint8{0, 1}, Names: []uint32{1, 2}}}
	s.Told(&Word{ID: theID, Epoch: 1, Phase: Cancelled}, 1)
	s.Expire(theID, s.Window+1)
	h.Age = s.Window
	if v, _, _ := s.Judge(&h, s.Window+1); s.Len() != 0 || v != TooOld {
		t.Errorf("verdict %d on a Hold whose mark is forgotten", v)
	}
}

// TestRoom: without room a participant denies as long as it can remember that, and then says nothing.
func TestRoom(t *testing.T) {
	s := NewState(Config{Window: int64(5 * time.Minute)})
	long := strings.Repeat("k", 500)
	terms := Terms{Keys: []string{"a", long}, Of: []uint8{0, 1}, Names: []uint32{1, 2}}
	id := func(n int) ID { return ID{reqid.Client{Hi: 2}, uint64(n)} }
	held := 0
	for n := 1; s.Len() < held+MaxDenied; n++ {
		if held > MaxHeld {
			t.Fatal("there is room for any number")
		}
		h := Hold{ID: id(n), Epoch: 1, Terms: terms}
		v, a, changed := s.Judge(&h, 1)
		if v == Fresh {
			a, changed = s.Vote(&h, 1, nil), true
			held++
		}
		if a.Phase == Unknown || !changed || a.Phase == Held && held < n {
			t.Fatalf("hold %d is %s, changed %v", n, phaseNames[a.Phase], changed)
		}
	}
	if held > MaxHeld || held*len(long) > MaxText || held*MaxVote < MaxText/2 {
		t.Errorf("%d hold", held)
	}
	if _, a, changed := s.Judge(&Hold{ID: id(1 << 20), Epoch: 1, Terms: terms}, 1); a.Phase != Unknown || changed {
		t.Errorf("a Hold without room for a denial: %s", phaseNames[a.Phase])
	}
	if a, changed := s.Asked(&Question{ID: id(1 << 20), Epoch: 1}, 1); a.Phase != Unknown || changed {
		t.Errorf("asked without room for a mark: %s", phaseNames[a.Phase])
	}
}
