package gather

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/keystead/keystead/owner/wire"
)

var root = Parent{Key: "root", Name: "phaser", Party: "x"}

// sent is a message of a child's owner to that of its parent, or of the answer to it.
type sent struct {
	child  int
	what   string // register, arrive, await, leave, or the answer to it
	phase  uint64 // of the child
	above  uint64 // of the parent, in what was sent and in the answer
	fate   Verdict
	answer bool
}

// tree is a phaser and some that are its parties, whose owners speak by messages that are lost,
// repeated and late.
type tree struct {
	t        *rapid.T
	parent   house
	children []house
	flight   []sent
	fates    map[uint64]Verdict // of the parent's phases, as they ended
}

func newTree(t *rapid.T, children int) *tree {
	return &tree{t: t, children: make([]house, children), fates: map[uint64]Verdict{}}
}

func child(i int) string { return fmt.Sprint("child-", i) }

// ended looks at a phase of the parent that has ended.
func (x *tree) ended(h *house) {
	h.token = max(h.token, h.Phase)
	if h != &x.parent || h.fx.Ended == 0 {
		return
	}
	phase := h.fx.Ended
	x.fates[phase] = h.Judge(phase)
	for i := range x.children {
		c := x.children[i].Child()
		if x.fates[phase] == Passed && c.Above == phase && !c.Empty && !c.Sent {
			x.t.Fatalf("phase %d of the parent is passed, and the parties of child %d have not arrived: %+v", phase, i, c)
		}
	}
}

func (x *tree) leaf(i int, party string, op int) {
	h := &x.children[i]
	parent := root
	parent.Party = child(i)
	switch op {
	case 0:
		h.Register(Register{Party: party, TTL: MaxTTL, Parent: parent}, h.now, h.next(), &h.fx)
	case 1, 2, 3, 4:
		h.arrive(Arrive{Party: party})
	case 5:
		h.Leave(Leave{Party: party}, h.now, h.next(), &h.fx)
	case 6:
		h.Break(h.now, h.next(), &h.fx)
	}
	x.ended(h)
}

// owes sends what the owner of a child has to send.
func (x *tree) owes(i int, what int) {
	c := x.children[i].Child()
	m := sent{child: i, phase: c.Phase, above: c.Above}
	switch {
	case !c.Owes():
		return
	case c.Empty && !c.Sent:
		m.what = "leave"
	case c.Above == 0 || what == 0:
		m.what = "register"
	case c.Sent && what == 1:
		m.what = "arrive"
	default:
		m.what = "await"
	}
	x.flight = append(x.flight, m)
}

// deliver has a message come, and puts the answer on its way.
func (x *tree) deliver(m sent) {
	p := &x.parent
	if m.answer {
		x.answered(m)
		return
	}
	a := m
	a.answer = true
	switch m.what {
	case "register":
		out, phase := p.Register(Register{Party: child(m.child), TTL: MaxTTL, Breaks: true, Child: m.phase}, p.now, p.next(), &p.fx)
		if a.above = phase; out != Done {
			return
		}
	case "arrive":
		out, _ := p.arrive(Arrive{Party: child(m.child), Phase: m.above, Child: m.phase})
		x.ended(p)
		if a.fate = p.Judge(m.above); out == NotThere {
			return
		}
	case "await":
		a.fate = p.Judge(m.above)
	case "leave":
		p.Leave(Leave{Party: child(m.child), Child: m.phase}, p.now, p.next(), &p.fx)
	}
	x.ended(p)
	x.flight = append(x.flight, a)
}

func (x *tree) answered(m sent) {
	h := &x.children[m.child]
	before := h.Child()
	switch m.what {
	case "register":
		h.Bind(m.phase, m.above, h.now, &h.fx)
	case "leave":
		h.Leaves(m.phase, h.now, &h.fx)
	default:
		h.Conclude(m.phase, m.above, m.fate, h.now, h.next(), &h.fx)
		if h.fx.Ended != 0 && h.Judge(h.fx.Ended) == Passed && (!before.Sent || x.fates[before.Above] != Passed) {
			x.t.Fatalf("child %d has passed %d for phase %d of the parent, which is %v: %+v", m.child, h.fx.Ended, before.Above, x.fates[before.Above], before)
		}
	}
	x.ended(h)
}

func (x *tree) lose(h *house) { *h = house{token: max(h.token, h.Phase) + 100} }

// No phase of the parent is passed before all parties of the children have arrived for it that take
// part, whatever becomes of messages and owners. When all goes well again, phases are passed.
func TestTree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := newTree(t, rapid.IntRange(1, 3).Draw(t, "children"))
		for range rapid.IntRange(1, 150).Draw(t, "steps") {
			i := rapid.IntRange(0, len(x.children)-1).Draw(t, "child")
			switch op := rapid.IntRange(0, 40).Draw(t, "op"); {
			case op <= 12:
				x.leaf(i, rapid.SampledFrom([]string{"a", "b"}).Draw(t, "party"), rapid.IntRange(0, 6).Draw(t, "of a leaf"))
			case op <= 24:
				x.owes(i, rapid.IntRange(0, 2).Draw(t, "of an owner"))
			case op <= 37 && len(x.flight) > 0:
				n := rapid.IntRange(0, len(x.flight)-1).Draw(t, "message")
				m := x.flight[n]
				if rapid.IntRange(0, 3).Draw(t, "again") > 0 {
					x.flight = slices.Delete(x.flight, n, n+1)
				}
				if rapid.IntRange(0, 7).Draw(t, "lost") > 0 {
					x.deliver(m)
				}
			case op == 38:
				x.lose(&x.children[i])
			case op == 39:
				x.lose(&x.parent)
			case op == 40:
				x.parent.Break(x.parent.now, x.parent.next(), &x.parent.fx)
				x.ended(&x.parent)
			}
		}
		x.goesOn()
	})
}

// goesOn has all parties arrive, and messages come: each child passes another phase.
func (x *tree) goesOn() {
	x.flight = nil
	before := map[int]uint64{}
	settle := func() {
		for what := range 12 {
			for i := range x.children {
				x.owes(i, what%3)
			}
			for len(x.flight) > 0 {
				m := x.flight[0]
				x.flight = x.flight[1:]
				x.deliver(m)
			}
		}
	}
	for round := range 4 {
		for i := range x.children {
			for _, p := range []string{"a", "b"} {
				x.leaf(i, p, 0)
			}
		}
		settle()
		for i := range x.children {
			if before[i] = x.children[i].Passes; round == 3 {
				x.leaf(i, "a", 1)
			}
		}
		settle()
		passes := x.parent.Passes
		for i := range x.children {
			if round == 3 && x.children[i].Passes != before[i] {
				x.t.Fatalf("child %d is passed by one of two", i)
			}
			x.leaf(i, "a", 1)
			x.leaf(i, "b", 1)
		}
		settle()
		if round == 3 && x.parent.Passes != passes+1 {
			x.t.Fatalf("the parent has passed %d phases, not one: %+v", x.parent.Passes-passes, x.parent.State)
		}
	}
	for i := range x.children {
		if x.children[i].Passes != before[i]+1 {
			x.t.Fatalf("child %d has passed %d phases, not %d: %+v; the parent is %+v", i, x.children[i].Passes, before[i]+1, x.children[i].Child(), x.parent.State)
		}
	}
}

// grown is a child with a party, a, whose phase is for a phase of its parent.
func grown(above uint64) *house {
	h := &house{now: second}
	h.Register(Register{Party: "a", TTL: 5 * second, Breaks: true, Parent: root}, h.now, h.next(), &h.fx)
	h.Bind(h.Phase, above, h.now, &h.fx)
	return h
}

// A child whose parties have arrived waits for its parent, and nothing else ends its phase.
func TestChildWaitsForItsParent(t *testing.T) {
	h := grown(7)
	if _, phase := h.arrive(Arrive{Party: "a"}); h.fx.Ended != 0 || !h.Sent || h.Judge(phase) != UnderWay {
		t.Fatalf("it does not wait: %+v", h.State)
	}
	phase := h.Phase
	if h.Break(h.now, h.next(), &h.fx) != 0 {
		t.Error("it is broken, though it has arrived at its parent")
	}
	h.Register(Register{Party: "b", TTL: 50 * second}, h.now, h.next(), &h.fx)
	h.now += 10 * second
	if h.expire(); h.Phase != phase || h.Find("a") != nil || h.Arrived != 1 {
		t.Errorf("the end of a lease ends the phase of the parent here: %+v", h.State)
	}
	if h.Conclude(phase, 6, Passed, h.now, h.next(), &h.fx) || h.Conclude(phase, 7, UnderWay, h.now, h.next(), &h.fx) || h.Conclude(phase-1, 7, Passed, h.now, h.next(), &h.fx) {
		t.Error("another phase of the parent ends it")
	}
	if !h.Conclude(phase, 7, Passed, h.now, h.next(), &h.fx) || h.Judge(phase) != Passed || h.Sent || h.Above != 0 || h.Arrived != 0 {
		t.Errorf("it is not passed as the parent is: %+v", h.State)
	}
}

// What the parent says of a phase for which a child has not arrived passes nothing: broken there is
// broken here, and all else is unknown.
func TestChildOfAPhaseThatEndedWithoutIt(t *testing.T) {
	for said, want := range map[Verdict]Verdict{Passed: Unknown, Unknown: Unknown, Broken: Broken} {
		h := grown(7)
		h.Register(Register{Party: "b", TTL: 50 * second}, h.now, h.next(), &h.fx)
		h.arrive(Arrive{Party: "a"})
		phase := h.Phase
		if !h.Conclude(phase, 7, said, h.now, h.next(), &h.fx) || h.Judge(phase) != want || h.fx.Ended != phase || h.Arrived != 0 {
			t.Errorf("%v at the parent is %v here: %+v", said, h.Judge(phase), h.State)
		}
	}
}

// An answer that comes late, of which phase of the parent is under way, binds no child once more.
func TestChildIsBoundOnce(t *testing.T) {
	h := grown(7)
	if h.Bind(h.Phase, 8, h.now, &h.fx) || h.Bind(h.Phase-1, 8, h.now, &h.fx) || h.Above != 7 {
		t.Errorf("it is for %d by now", h.Above)
	}
}

// What an owner of a child has sent in a phase of it that is over, and is late, does nothing at the
// parent.
func TestLateMessagesOfAChild(t *testing.T) {
	var p house
	of := func(child uint64) Register { return Register{Party: "x", TTL: 5 * second, Breaks: true, Child: child} }
	p.Register(Register{Party: "y", TTL: 5 * second}, p.now, p.next(), &p.fx)
	_, phase := p.Register(of(5), p.now, p.next(), &p.fx)
	if out, _ := p.Register(of(4), p.now, p.next(), &p.fx); out != Stale {
		t.Errorf("a registration: %v", out)
	}
	if out, _ := p.arrive(Arrive{Party: "x", Phase: phase, Child: 4}); out != NotThere || p.Arrived != 0 {
		t.Errorf("an arrival: %v", out)
	}
	if p.Leave(Leave{Party: "x", Child: 4}, p.now, p.next(), &p.fx) || p.Find("x") == nil {
		t.Error("a leave takes it away")
	}
	if out, _ := p.arrive(Arrive{Party: "x", Phase: phase, Child: 5}); out != Done || p.Arrived != 1 {
		t.Errorf("its own: %v", out)
	}
	if p.Register(of(5), p.now, p.next(), &p.fx); p.Arrived != 1 {
		t.Error("a renewal takes the arrival back")
	}
	if p.Register(of(9), p.now, p.next(), &p.fx); p.Arrived != 0 {
		t.Error("the child was lost, and its parties that arrive again have arrived already")
	}
}

// A child that is empty may have left: with its first party it begins another phase, so that a
// leave that is late finds another one.
func TestChildThatWasEmptyBeginsAnotherPhase(t *testing.T) {
	h := grown(7)
	first := h.Phase
	h.Leave(Leave{Party: "a"}, h.now, h.next(), &h.fx)
	if c := h.Child(); !c.Empty || !c.Owes() {
		t.Fatalf("%+v", c)
	}
	h.Register(Register{Party: "b", TTL: second}, h.now, h.next(), &h.fx)
	if h.Leaves(first, h.now, &h.fx) || h.Phase <= first || h.Judge(first) != Unknown || h.Above != 0 || !h.Joined {
		t.Errorf("%+v", h.State)
	}
	h.Leave(Leave{Party: "b"}, h.now, h.next(), &h.fx)
	if c := h.Child(); !h.Leaves(h.Phase, h.now, &h.fx) || !c.Owes() {
		t.Errorf("%+v", c)
	}
	if c := h.Child(); c.Owes() {
		t.Errorf("it has left, and owes something: %+v", c)
	}
	if out, _ := h.Register(Register{Party: "b", TTL: second, Parent: Parent{"other", "phaser", "x"}}, h.now, h.next(), &h.fx); out != OtherParent {
		t.Errorf("another parent: %v", out)
	}
	if out, _ := h.arrive(Arrive{Party: "b", Need: 2}); out != Differs {
		t.Errorf("a number of parties: %v", out)
	}
}

// A copy has what a child owes its parent.
func TestCopyOfAChild(t *testing.T) {
	h := grown(7)
	h.arrive(Arrive{Party: "a"})
	w := wire.Writer{Now: h.now}
	h.AppendTo(&w)
	var head State
	r := wire.Reader{B: w.B, Now: h.now}
	if head.ReadFrom(&r); !r.Ends() || head.ValidHead() != nil || head.Child().Parent != root || !head.Sent || head.Above != 7 || !head.Joined || len(w.B) > MaxObject {
		t.Fatalf("%+v: %v", head, head.ValidHead())
	}
	var c State
	if c.SetHead(&head); !c.Sent || c.Above != 7 || c.Parent != root || !c.Joined {
		t.Errorf("%+v", c)
	}
	head.Parent = Parent{}
	if head.ValidHead() == nil {
		t.Error("it owes something to nobody")
	}
	head.Parent, head.Need = root, 3
	if head.ValidHead() == nil {
		t.Error("a barrier has a parent")
	}
}
