//go:build points

package system

import (
	"slices"
	"sync"
	"testing"
	"time"

	clusterpb "github.com/keystead/keystead/proto/keystead/cluster/v1"
)

// drain orders a drain at a node.
func (n *testNode) drain(at *testNode) {
	n.t.Helper()
	if r := keystead(n.t, "drain", n.id, "--force", "--addr", at.grpc); r.code != 0 {
		n.t.Fatalf("drain of %s: %d %s%s", n.id, r.code, r.out, r.err)
	}
}

// The answer to a flip is lost, and the source does not hear of the commit either
// (traps 19 and 25):
//
//	S  freezes rows, flushes them, proposes Flip(S → T)
//	L  commits it; every answer to S says that the outcome is unknown
//	S  goes by the table of before for 2.5 s, with a lease that runs
//	C  asks T, which owns the rows: T takes S out as the standby, and answers
//	C  asks S at the same time: S must not decide
//	S  learns the table, and passes on what has waited
func TestPointsFlipAnswerLost(t *testing.T) {
	t.Parallel()
	c := pointedCluster(t, false)
	leads, s, other := c.roles()
	keys := c.keys(8)[s.id]
	count(s, keys)
	s.arm("handoffFlipFlushed", `1*sleep("1s")`)
	s.drain(leads)
	s.reached("handoffFlipFlushed")
	leads.arm("epochApplied", `return("flip")`)
	s.arm("epochLearn", `1*sleep("2.5s")`)
	s.reached("epochLearn")

	var calls sync.WaitGroup
	stale := make([]*once, len(keys)) // asked at S
	told := make([]bool, len(keys))   // S has answered itself
	for i, k := range keys {
		stale[i] = newOnce()
		calls.Go(func() {
			r, err := stale[i].add(s, k, 1, 1500*time.Millisecond)
			told[i] = err == nil && r.Owner == s.id
		})
	}
	for _, k := range keys {
		newOnce().added(other, k, 1)
	}
	calls.Wait()
	for i, k := range keys {
		if told[i] {
			t.Errorf("%s has decided about %s, which is not its own any more", s.id, k)
		}
		stale[i].added(other, k, 1)
	}
	if leads.hit("epochApplied") == 0 {
		t.Error("no answer was lost")
	}
	leads.disarm("epochApplied")
	s.drained(leads)
	holds(s, keys, 3)
}

// The target dies when it has taken a record in that it has not acknowledged, or
// when it has all that it is to own:
//
//	S  copies rows to T, the node that joins
//	T  installs record 30, and dies
//	S  goes on as the owner; L removes T
//	T  comes back, gets all of it, and owns its rows
//
//	S  freezes rows, flushes them: T has all. T dies
//	S  proposes Flip(S → T); L does not know of T's death, and agrees
//	L  removes T: S, the standby of its rows, owns them again
func TestPointsTargetDies(t *testing.T) {
	for _, tc := range []struct{ name, atTarget, atSource string }{
		{name: "after install", atTarget: "handoffTargetInstalled=30*off->panic"},
		{name: "after flush", atSource: "handoffFlipFlushed"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			c := pointedCluster(t, false)
			k := fill(t, c.nodes[0], 100)
			l := startLoad(t, c, 20*time.Millisecond)
			n4, from := c.joiner(4)
			count(c.nodes[0], slices.Concat(from["n1"], from["n2"], from["n3"]))
			n4.withPoints(tc.atTarget)
			if tc.atSource != "" {
				for _, n := range c.nodes {
					n.arm(tc.atSource, `1*sleep("700ms")`)
				}
			}
			n4.run()
			if tc.atSource == "" {
				<-n4.done // by its panic
			} else {
				eventually(t, "all is flushed", func() bool {
					return !slices.ContainsFunc(c.nodes, func(n *testNode) bool { return n.hit(tc.atSource) == 0 })
				})
				n4.kill()
				for _, n := range c.nodes { // long before n4 is removed
					n.said("handed rows over", "to=n4")
				}
			}
			c.ready(c.nodes...)
			c.protected(c.nodes...)
			k.stays(c.nodes[1])
			n4.withPoints()
			n4.run()
			c.nodes = append(c.nodes, n4)
			c.ready(c.nodes...)
			k.stays(n4)
			for _, keys := range from {
				holds(c.nodes[0], keys, 1)
				if o := n4.owners(keys[0]); len(o) != 1 || o[0].Owner != "n4" {
					t.Errorf("%s is owned by %v, not by n4", keys[0], o)
				}
			}
			l.end(t, c.nodes[0])
		})
	}
}

// The source dies when it has frozen rows, before it has flushed or proposed
// anything:
//
//	S  freezes rows that T is to get, and dies
//	L  removes S: B owns the rows, and answers
//	B  hands them over to T
func TestPointsSourceDiesFrozen(t *testing.T) {
	for _, step := range []string{"handoffFlipFrozen", "handoffFlipFlushed"} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			c := pointedCluster(t, false, shortLease...)
			leads, s, other := c.roles()
			k := fill(t, leads, 100)
			l := startLoad(t, c, 20*time.Millisecond)
			n4, from := c.joiner(8)
			count(s, from[s.id])
			before := map[string]grant{}
			for _, key := range from[s.id] {
				before[key] = s.mustAcquire(key)
			}
			s.arm(step, held)
			n4.run()
			s.reached(step)
			s.kill()
			died := time.Now()
			for _, key := range from[s.id] {
				if g := other.mustAcquire(key); g.token <= before[key].token {
					t.Errorf("%q: %+v after %+v", key, g, before[key])
				}
			}
			if took := time.Since(died); took > 10*time.Second {
				t.Errorf("the keys of the source were served %s after its death", took)
			}
			left := []*testNode{leads, other, n4}
			c.protected(left...)
			holds(n4, from[s.id], 1)
			k.stays(leads)
			l.end(t, other)
		})
	}
}

// A flip comes before the leader when its source is dead and its rows have moved on
// (trap 18):
//
//	S  freezes rows, flushes them, proposes Flip(S → T), and dies
//	   the proposal is on its way, for 4 s
//	L  removes S: B owns the rows, and counts on
//	B  begins to copy them to T, which does not take that in yet
//	L  gets the proposal: it is refused. T owned what S had, without B's counts
func TestPointsFlipComesLate(t *testing.T) {
	t.Parallel()
	c := pointedCluster(t, false, shortLease...)
	leads, s, other := c.roles()
	n4, from := c.joiner(8)
	keys := from[s.id]
	count(s, keys)
	s.arm("handoffFlipFlushed", `1*sleep("3s")`)
	n4.withPoints()
	n4.run()
	s.reached("handoffFlipFlushed")
	leads.arm("epochProposeReceived", `1*sleep("4s")`)
	leads.reached("epochProposeReceived")
	late := time.After(5 * time.Second)
	leads.disarm("epochProposeReceived")
	n4.arm("handoffTargetBegin", `1*sleep("5s")`)
	s.kill()
	for _, k := range keys {
		newOnce().added(other, k, 1)
	}
	<-late
	holds(leads, keys, 2)
	c.protected(leads, other, n4)
	holds(leads, keys, 2)
	for i, o := range leads.owners(keys...) {
		if o.Owner != "n4" {
			t.Errorf("%s is %s's in the end", keys[i], o.Owner)
		}
	}
}

// A drain is ordered at two nodes at once, and by the node's own hook; rows are on
// their way when the node gets SIGTERM, which drains it too:
//
//	C  orders the drain of S at both others and at S; L says that it does not know
//	   what became of any of them
//	S  freezes the first rows; SIGTERM comes
//	S  hands all rows over, once, and ends
func TestPointsDoubleDrain(t *testing.T) {
	t.Parallel()
	c := pointedCluster(t, false)
	leads, s, other := c.roles()
	k := fill(t, other, 100)
	l := startLoad(t, c, 20*time.Millisecond)
	s.arm("handoffFlipFrozen", `1*sleep("1.5s")`)
	leads.arm("epochApplied", `return("drain")`)
	var orders sync.WaitGroup
	for _, at := range []*testNode{leads, other} {
		p := start(t, nil, "drain", s.id, "--addr", at.grpc, "--json")
		orders.Go(func() {
			if code := p.wait(); code != 0 {
				t.Errorf("an order at %s: %d %s%s", at.id, code, p.out(), p.err())
			}
		})
	}
	orders.Go(func() {
		if code, d := s.post("?timeout=1ns"); code != 504 && code != 503 || d.Drained {
			t.Errorf("its own hook says %d %+v", code, d)
		}
	})
	s.reached("handoffFlipFrozen")
	orders.Wait()
	if m := s.stands(leads); m.GetMember().GetPhase() != clusterpb.Phase_PHASE_LEAVING {
		t.Errorf("while rows are frozen, it stands so: %v", m)
	}
	s.signal(t, 15)
	s.ends(t, 0)
	s.said("drained: this node owns nothing")
	leads.disarm("epochApplied")
	left := []*testNode{leads, other}
	c.protected(left...)
	k.stays(leads)
	k.stays(other)
	l.end(t, other)
}
