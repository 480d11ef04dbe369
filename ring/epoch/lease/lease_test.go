package lease

import (
	"slices"
	"testing"
)

var a, b = key{1, 1}, key{2, 1}

// agreed is what all nodes count by.
var agreed = Config{TTL: ttl, Margin: margin}

// leads is a leader that may grant to a and b, since the moment 0.
func leads(term uint64) *Grants[key] {
	g := NewGrants[key](Config{TTL: ttl, Margin: margin})
	g.BeginTerm(term, 0)
	g.Ready(agreed)
	g.Members(0, []key{a, b})
	return g
}

// ticks lets a leader look at its clock all the time between two moments.
func ticks(g *Grants[key], from, to int64) {
	for now := from; now <= to; now += ttl / 10 {
		g.Tick(now)
	}
}

// granted asks for a lease that must be granted.
func granted(t *testing.T, g *Grants[key], k key, received int64, lastTerm, lastGrant uint64) uint64 {
	t.Helper()
	n, v := g.Grant(k, received, lastTerm, lastGrant)
	if v != Granted {
		t.Fatalf("%v at %d: the verdict is %d", k, received, v)
	}
	return n
}

// TestTrap03GrantAfterProposedRemoval: the proposal may be committed at any time.
func TestTrap03GrantAfterProposedRemoval(t *testing.T) {
	findsOut(t, wrong{silentRemoval: true})
	g := leads(1)
	ticks(g, 0, 2*ttl)
	if over := g.Expired(2 * ttl); len(over) != 2 {
		t.Fatalf("expired: %v", over)
	}
	g.Removing([]key{a})
	if _, v := g.Grant(a, 2*ttl, 0, 0); v != NotNow {
		t.Errorf("the verdict on one that is being removed is %d", v)
	}
	g.Members(2*ttl, []key{a, b}) // whatever becomes of the proposal
	if _, v := g.Grant(a, 2*ttl, 0, 0); v != NotNow || g.Alive(a, 2*ttl) {
		t.Errorf("after another look at the table it is %d", v)
	}
	granted(t, g, b, 2*ttl, 0, 0)
	g.Members(2*ttl, []key{b})
	if _, v := g.Grant(a, 2*ttl, 0, 0); v != NotMember {
		t.Errorf("when it is removed, %d", v)
	}
}

// TestTrap02NewLeaderWaits: it does not know what was granted before.
func TestTrap02NewLeaderWaits(t *testing.T) {
	g := leads(2)
	ticks(g, 0, 3*ttl)
	if over := g.Expired(ttl + margin - 1); len(over) > 0 {
		t.Errorf("%v are called expired before a TTL of the term has passed", over)
	}
	if over := g.Expired(ttl + margin); len(over) != 2 {
		t.Errorf("after it, only %v", over)
	}
	// One that appears in the table later is another matter.
	g.Members(2*ttl, []key{a, b, {3, 1}})
	if over := g.Expired(3*ttl + margin - 1); slices.Contains(over, key{3, 1}) {
		t.Error("a new member is called expired before a TTL has passed")
	}
}

// TestTrap06SleepingLeader: a leader that wakes up hears the living first.
func TestTrap06SleepingLeader(t *testing.T) {
	g := leads(1)
	ticks(g, 0, ttl)
	granted(t, g, a, ttl, 0, 0)
	woke := int64(5 * ttl)
	if !g.Tick(woke) {
		t.Error("it does not see the gap")
	}
	if over := g.Expired(woke); len(over) > 0 {
		t.Errorf("as soon as it is awake it calls %v expired", over)
	}
	g.Release(b) // gave its lease up: nobody has to wait for that
	if over := g.Expired(woke); !slices.Equal(over, []key{b}) {
		t.Errorf("expired: %v, and %v was released", over, b)
	}
	granted(t, g, a, woke, 0, 0)
	ticks(g, woke, woke+2*ttl)
	if over := g.Expired(woke + ttl + margin); !slices.Contains(over, a) {
		t.Errorf("a TTL later, %v", over)
	}
	if g.Tick(woke + 2*ttl + ttl/4) {
		t.Error("a quarter of a TTL is no gap")
	}
}

// TestTrap07OneWayLoss: a node whose renewals arrive and whose answers do not is
// not kept alive by them.
func TestTrap07OneWayLoss(t *testing.T) {
	g := leads(3)
	last := granted(t, g, a, 100, 0, 0)
	last = granted(t, g, a, 400, 3, last) // it names the one before
	unheard := last
	for now := int64(700); ; now += 300 {
		if now > 10*ttl {
			t.Fatal("it is kept alive by renewals that name no grant")
		}
		ticks(g, now-700, now)
		if n, v := g.Grant(a, now, 3, unheard-1); v != Granted {
			if n != 0 || now != 1000 {
				t.Errorf("extending stopped at %d", now)
			}
			break
		}
	}
	ticks(g, 1000, 2*ttl)
	if over := g.Expired(700 + ttl + margin); !slices.Contains(over, a) {
		t.Errorf("expired: %v", over)
	}
	// It names grants of another term, or ones that there were not.
	g = leads(3)
	granted(t, g, a, 100, 2, 50)
	granted(t, g, a, 200, 2, 50)
	if _, v := g.Grant(a, 300, 2, 50); v != NotNow {
		t.Errorf("a grant of another term counts as heard: %d", v)
	}
	granted(t, g, a, 400, 3, 50)
	granted(t, g, a, 500, 0, 0)
	if _, v := g.Grant(a, 600, 0, 0); v != NotNow {
		t.Errorf("a grant that was not counts for later ones: %d", v)
	}
}

// TestTrap07DroppedIsHeard: a node that gives its lease up for doubts of its clock
// has still heard of what was granted, and is granted more.
func TestTrap07DroppedIsHeard(t *testing.T) {
	g := leads(3)
	var h Holding
	first, second := h.Send(100), h.Send(200)
	one, two := granted(t, g, a, 110, first.Term, first.Grant), granted(t, g, a, 210, second.Term, second.Grant)
	h.Drop()
	if h.Received(first, ttl, 3, one); h.Received(second, ttl, 3, two) != 0 {
		t.Error("what was sent before counts")
	}
	third := h.Send(300)
	granted(t, g, a, 310, third.Term, third.Grant)
}

// TestHolding tells how a node's own lease goes.
func TestHolding(t *testing.T) {
	var h Holding
	if h.Until() != 0 {
		t.Errorf("the zero Holding runs until %d", h.Until())
	}
	first, second := h.Send(100), h.Send(200)
	h.Received(second, ttl, 1, 2)
	if got := h.Received(first, ttl, 1, 1); got != 200+ttl {
		t.Errorf("a late answer leaves it at %d", got)
	}
	if s := h.Send(300); s.Term != 1 || s.Grant != 2 {
		t.Errorf("the last grant is named as %d of term %d", s.Grant, s.Term)
	}
	h.Received(h.Send(400), ttl, 2, 1)
	if s := h.Send(500); s.Term != 2 || s.Grant != 1 {
		t.Errorf("the last grant is named as %d of term %d", s.Grant, s.Term)
	}
	before := h.Send(600)
	h.Drop()
	if h.Until() != 0 {
		t.Errorf("given up, it runs until %d", h.Until())
	}
	if got := h.Received(before, ttl, 2, 2); got != 0 {
		t.Errorf("what was sent before brings it back until %d", got)
	}
	if s := h.Send(650); s.Term != 2 || s.Grant != 2 {
		t.Errorf("given up, the last grant that arrived is named as %d of term %d", s.Grant, s.Term)
	}
	if got := h.Received(h.Send(700), ttl, 2, 3); got != 700+ttl {
		t.Errorf("asked for anew, it runs until %d", got)
	}
	before = h.Send(800)
	h.Forget()
	if s := h.Send(900); s.Term != 0 || s.Grant != 0 || h.Until() != 0 || h.Received(before, ttl, 0, 0) != 0 {
		t.Errorf("another incarnation names grant %d of term %d", s.Grant, s.Term)
	}
}

// TestGrantsFollow: one that does not lead has nothing to say.
func TestGrantsFollow(t *testing.T) {
	g := leads(1)
	granted(t, g, a, 10, 0, 0)
	if !g.Alive(a, 20) || g.Alive(b, 20) || g.Alive(a, 10+ttl+margin) {
		t.Error("only those to whom it granted are alive, as long as that runs")
	}
	g.Follow()
	g.Members(20, []key{a})
	if _, v := g.Grant(a, 20, 0, 0); v != NotNow || g.IsReady() || g.Term() != 0 || g.Alive(a, 20) || len(g.Expired(9*ttl)) > 0 {
		t.Errorf("it acts as if it led: %d", v)
	}
	g.BeginTerm(2, 5*ttl)
	if g.IsReady() {
		t.Error("it is ready in a new term without a barrier")
	}
	g.Ready(agreed)
	g.Members(5*ttl, []key{a})
	if g.Alive(a, 5*ttl) {
		t.Error("what was granted in another term counts")
	}
	if n := granted(t, g, a, 5*ttl, 1, 1); n != 1 {
		t.Errorf("the first grant of the term is %d", n)
	}
	if _, v := g.Grant(key{9, 9}, 5*ttl, 0, 0); v != NotMember {
		t.Errorf("a stranger: %d", v)
	}
}

// TestAgreedTTL: a leader that was started with a shorter TTL than the cluster
// was made with counts by the cluster's.
func TestAgreedTTL(t *testing.T) {
	g := NewGrants[key](Config{TTL: ttl / 10, Margin: margin / 10})
	g.BeginTerm(2, 0)
	g.Members(0, []key{a})
	ticks(g, 0, ttl/2)
	g.Ready(agreed)
	g.Members(ttl/2, []key{a})
	for now := int64(ttl / 2); now <= 2*ttl+margin; now += ttl / 20 {
		g.Tick(now)
		if over := g.Expired(now); (len(over) > 0) != (now >= ttl/2+ttl+margin) {
			t.Fatalf("at %d expired: %v", now, over)
		}
	}
}

// TestOutlives: of two that renew every third of a TTL, one has outlived the other if it was granted a lease half a TTL
// after the last one of that.
func TestOutlives(t *testing.T) {
	g := NewGrants[string](Config{TTL: 60, Margin: 5})
	g.BeginTerm(1, 0)
	g.Ready(Config{TTL: 60, Margin: 5})
	g.Members(0, []string{"a", "b"})
	for k, at := range map[string]int64{"a": 100, "b": 129} {
		if _, v := g.Grant(k, at, 1, 0); v != Granted {
			t.Fatal(v)
		}
	}
	if g.Outlives("b", "a") || g.Outlives("a", "b") || g.Outlives("c", "a") {
		t.Error("they may have died together")
	}
	if g.Grant("b", 130, 1, 1); !g.Outlives("b", "a") {
		t.Error("one lives on")
	}
	g.Release("b")
	if !g.Outlives("a", "b") || !g.Outlives("a", "c") {
		t.Error("one has given its lease up")
	}
}
