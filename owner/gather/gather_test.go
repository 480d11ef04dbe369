package gather

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/keystead/keystead/owner/wire"
)

const second = int64(1_000_000_000)

// house is a state with the numbers of phases that it takes, and what it has told.
type house struct {
	State
	fx    Effects
	now   int64
	token uint64
}

func (h *house) next() uint64 { return max(h.token, h.Phase) + 1 }

func (h *house) arrive(op Arrive) (Outcome, uint64) {
	out, phase := h.Arrive(op, h.now, h.next(), &h.fx)
	h.token = max(h.token, h.Phase)
	return out, phase
}

func (h *house) expire() {
	h.Expire(h.now, h.next(), &h.fx)
	h.token = max(h.token, h.Phase)
}

// A phase is passed by as many parties as there are, not by one that arrives again.
func TestRetryOfAnArrivalCountsOnce(t *testing.T) {
	var h house
	for range 5 {
		if out, phase := h.arrive(Arrive{Party: "a", Need: 2}); out != Done || phase != 1 || h.fx.Ended != 0 {
			t.Fatalf("%v %d, %+v", out, phase, h.fx)
		}
	}
	if out, phase := h.arrive(Arrive{Party: "b", Need: 2}); out != Done || phase != 1 || h.fx.Ended != 1 || h.Judge(1) != Passed || h.Judge(h.Phase) != UnderWay {
		t.Fatalf("%v %d, %+v", out, phase, h.fx)
	}
}

// What comes late for a phase counts in no other one.
func TestPartyOfTheLastPhaseIsNotCountedInTheNext(t *testing.T) {
	var h house
	h.arrive(Arrive{Party: "a", Need: 2})
	h.arrive(Arrive{Party: "b", Need: 2, Phase: 1})
	if out, phase := h.arrive(Arrive{Party: "a", Need: 2, Phase: 1}); out != Over || phase != h.Phase || h.Arrived != 0 {
		t.Fatalf("%v %d: %d arrived", out, phase, h.Arrived)
	}
	h.arrive(Arrive{Party: "c", Need: 2})
	if h.Leave(Leave{Party: "c", Phase: 1}, h.now, h.next(), &h.fx) || h.Arrived != 1 {
		t.Fatal("a Leave of the last phase takes a party of this one away")
	}
}

// Those who wait hear that their phase was broken, also when the next is under way.
func TestResetWhileSomeWait(t *testing.T) {
	var h house
	h.arrive(Arrive{Party: "a", Need: 3})
	if h.Break(h.now, h.next(), &h.fx) != 1 || h.Judge(1) != Broken || h.Cause != Reset {
		t.Fatalf("%+v", h.State)
	}
	for _, p := range []string{"a", "b", "c"} {
		h.arrive(Arrive{Party: p, Need: 3})
	}
	if h.Judge(1) != Broken || h.Judge(h.fx.Ended) != Passed {
		t.Fatalf("%v, %v", h.Judge(1), h.Judge(h.fx.Ended))
	}
	second := h.Phase
	h.Break(h.now, h.next(), &h.fx)
	if h.Judge(1) != Unknown || h.Judge(second) != Broken {
		t.Errorf("after another break: %v, %v", h.Judge(1), h.Judge(second))
	}
}

// A party that is dead blocks nobody for ever: its lease ends, or the deadline of the phase
// comes.
func TestDeadPartyDoesNotBlock(t *testing.T) {
	for breaks, want := range map[bool]Verdict{true: Broken, false: Passed} {
		var h house
		h.Register(Register{Party: "dead", TTL: second, Breaks: breaks}, h.now, h.next(), &h.fx)
		_, phase := h.Register(Register{Party: "alive", TTL: 5 * second, Breaks: false}, h.now, h.next(), &h.fx)
		h.arrive(Arrive{Party: "alive"})
		if h.now = second; h.Judge(phase) != UnderWay {
			t.Fatal("it is passed early")
		}
		if at, ok := h.NextWake(); !ok || at != second {
			t.Fatalf("wakes at %d, %v", at, ok)
		}
		h.expire()
		if h.Judge(phase) != want || h.fx.Lapsed != 1 || len(h.Parties) != 1 || want == Broken && h.Who != "dead" {
			t.Errorf("breaks: %v: %v, %+v", breaks, h.Judge(phase), h.State)
		}
	}
	var h house
	_, phase := h.arrive(Arrive{Party: "a", Need: 2, Within: 3 * second})
	h.arrive(Arrive{Party: "a", Need: 2, Within: second, Phase: phase})
	h.now = 3 * second
	if h.expire(); h.Judge(phase) != Broken || h.Cause != Late {
		t.Errorf("after its deadline: %v, %v", h.Judge(phase), h.Cause)
	}
}

// Leases of many that end at once break one phase, not the next ones, too: of the first it stays
// known that it was broken. Those that do not break one are gone in the same step.
func TestLeasesOfManyEndAtOnce(t *testing.T) {
	for _, breaks := range []bool{true, false} {
		var h house
		for i := range MaxParties - 1 {
			h.Register(Register{Party: fmt.Sprint(i), TTL: second, Breaks: breaks}, h.now, h.next(), &h.fx)
		}
		h.Register(Register{Party: "alive", TTL: 5 * second, Breaks: false}, h.now, h.next(), &h.fx)
		_, phase := h.arrive(Arrive{Party: "alive"})
		h.now = 2 * second
		for at, ok := h.NextWake(); ok && at <= h.now; at, ok = h.NextWake() {
			h.expire()
		}
		want := Passed
		if breaks {
			want = Broken
		}
		if got := h.Judge(phase); got != want || len(h.Parties) != 1 || h.Arrived != 0 {
			t.Errorf("breaks: %v: the phase is %v; %d parties are left, %d of them arrived", breaks, got, len(h.Parties), h.Arrived)
		}
	}
}

func BenchmarkExpireAll(b *testing.B) {
	for b.Loop() {
		b.StopTimer()
		var h house
		for i := range MaxParties {
			h.Register(Register{Party: fmt.Sprint(i), TTL: second, Breaks: true}, h.now, h.next(), &h.fx)
		}
		h.now = second
		b.StartTimer()
		h.expire()
	}
}

func TestRefusals(t *testing.T) {
	var h house
	if out, _ := h.arrive(Arrive{Party: "a"}); out != NotThere {
		t.Errorf("without a number: %v", out)
	}
	h.arrive(Arrive{Party: "a", Need: 2})
	if out, _ := h.arrive(Arrive{Party: "b", Need: 3}); out != Differs {
		t.Errorf("another number: %v", out)
	}
	if out, _ := h.Register(Register{Party: "b", TTL: second, Breaks: true}, h.now, h.next(), &h.fx); out != Differs {
		t.Errorf("registered at a barrier: %v", out)
	}
	if !h.Leave(Leave{Party: "a", Phase: 0}, h.now, h.next(), &h.fx) || h.Deadline != 0 {
		t.Error("an arrival is not taken back")
	}
	for i := range MaxParties {
		h.Register(Register{Party: fmt.Sprint(i), TTL: second, Breaks: true}, h.now, h.next(), &h.fx)
	}
	if out, _ := h.Register(Register{Party: "more", TTL: second, Breaks: true}, h.now, h.next(), &h.fx); out != TooMany {
		t.Errorf("too many: %v", out)
	}
	if out, _ := h.arrive(Arrive{Party: "x", Need: 2}); out != Differs {
		t.Errorf("a number for a phaser: %v", out)
	}
}

// model is what a barrier is, said simply.
type model struct {
	phase   uint64
	fate    map[uint64]Verdict // of phases that are over
	parties map[string]int64   // of a phaser: when their leases end
	breaks  map[string]bool
	here    map[string]bool // arrived for the phase
	need    int
}

func (m *model) turn(v Verdict, next uint64) {
	m.fate[m.phase], m.phase, m.here = v, next, map[string]bool{}
}

func (m *model) complete(next uint64) {
	need := m.need
	if need == 0 {
		need = len(m.parties)
	}
	if len(m.here) > 0 && len(m.here) >= need {
		m.turn(Passed, next)
	}
}

// The state does what the model does, and so does a copy that gets a record of each change.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var h house
		var copied State
		h.now = second
		phaser := rapid.Bool().Draw(t, "phaser")
		m := model{fate: map[uint64]Verdict{}, parties: map[string]int64{}, breaks: map[string]bool{}, here: map[string]bool{}}
		if !phaser {
			m.need = rapid.IntRange(1, 4).Draw(t, "need")
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			p := rapid.SampledFrom([]string{"a", "b", "c", "d", "e"}).Draw(t, "party")
			h.now += rapid.Int64Range(0, 2).Draw(t, "later") * second / 2
			for at, ok := h.NextWake(); ok && at <= h.now; at, ok = h.NextWake() {
				h.expire()
				m.lapse(h.now, h.Phase)
				follow(t, &copied, &h)
			}
			next := h.next()
			switch rapid.IntRange(0, 6).Draw(t, "op") {
			case 0, 1, 2, 3:
				op := Arrive{Party: p, Need: uint32(m.need), Phase: rapid.SampledFrom([]uint64{0, h.Phase, max(h.Phase, 1) - 1}).Draw(t, "phase")}
				out, phase := h.arrive(op)
				m.arrive(t, op, out, phase, next, h.Phase)
			case 4:
				if !phaser {
					break
				}
				breaks := rapid.Bool().Draw(t, "breaks")
				h.Register(Register{Party: p, TTL: 2 * second, Breaks: breaks}, h.now, next, &h.fx)
				m.parties[p], m.breaks[p], m.phase = h.now+2*second, breaks, h.Phase
			case 5:
				left := h.Leave(Leave{Party: p, Phase: 0}, h.now, next, &h.fx)
				_, registered := m.parties[p]
				if was := registered || m.here[p]; left != was {
					t.Fatalf("%s left: %v, was there: %v", p, left, was)
				}
				delete(m.parties, p)
				if delete(m.here, p); phaser && left {
					m.complete(next)
				}
			case 6:
				if h.Break(h.now, next, &h.fx) != 0 {
					m.turn(Broken, next)
				}
			}
			h.token = max(h.token, h.Phase)
			follow(t, &copied, &h)
			m.compare(t, &h)
		}
	})
}

func (m *model) lapse(now int64, phase uint64) {
	broken, dropped := false, false
	for p, until := range m.parties {
		if until <= now {
			broken, dropped = broken || m.breaks[p], true
			delete(m.parties, p)
			delete(m.here, p)
		}
	}
	if broken {
		m.turn(Broken, phase)
	} else if dropped {
		m.complete(phase)
	}
}

func (m *model) arrive(t *rapid.T, op Arrive, out Outcome, phase, next, now uint64) {
	_, registered := m.parties[op.Party]
	want := Done
	switch {
	case op.Phase != 0 && op.Phase != m.phase:
		want = Over
	case m.need == 0 && !registered:
		want = NotThere
	}
	if out != want {
		t.Fatalf("%+v: %v, want %v", op, out, want)
	}
	if want != Done {
		return
	}
	if m.phase == 0 {
		m.phase, next = next, next+1
	}
	if phase != m.phase {
		t.Fatalf("%+v: for phase %d, not %d", op, phase, m.phase)
	}
	m.here[op.Party] = true
	m.complete(next)
}

func (m *model) compare(t *rapid.T, h *house) {
	if h.Phase != m.phase || h.Arrived != len(m.here) {
		t.Fatalf("phase %d with %d, want %d with %v", h.Phase, h.Arrived, m.phase, m.here)
	}
	for phase, want := range m.fate {
		if got := h.Judge(phase); got != want && got != Unknown || got == Unknown && (h.Broken == 0 || phase >= h.Since) {
			t.Fatalf("phase %d: %v, want %v", phase, got, want)
		}
	}
}

// follow has a copy take in what a step has changed, as a record of it says.
func follow(t *rapid.T, c *State, h *house) {
	if !h.fx.Changed {
		return
	}
	w := wire.Writer{Now: h.now}
	h.AppendTo(&w)
	var head State
	r := wire.Reader{B: w.B, Now: h.now}
	if head.ReadFrom(&r); !r.Ends() || head.ValidHead() != nil {
		t.Fatalf("read as %+v, %v", head, head.ValidHead())
	}
	at := max(c.At, head.At)
	c.SetHead(&head)
	c.At = at
	for _, number := range h.fx.Parties {
		p := h.Numbered(number)
		if p == nil {
			c.Drop(number)
			continue
		}
		w := wire.Writer{}
		AppendParty(&w, p, h.At)
		r := wire.Reader{B: w.B}
		q := ReadParty(&r, number, h.At)
		if !r.Ends() || q != *p || c.ValidParty(&q) != nil {
			t.Fatalf("read as %+v, not %+v: %v", q, *p, c.ValidParty(&q))
		}
		c.Put(q)
	}
	if c.Arrived != h.Arrived || len(c.Parties) != len(h.Parties) || c.Phase != h.Phase || c.Quorum() != h.Quorum() || c.Deadline != h.Deadline {
		t.Fatalf("the copy is\n%+v\nof\n%+v", c, h.State)
	}
	for i := range h.Parties {
		if p := c.Find(h.Parties[i].Name); p == nil || *p != h.Parties[i] {
			t.Fatalf("the copy has %+v of %+v", p, h.Parties[i])
		}
	}
}
