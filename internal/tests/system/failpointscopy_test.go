//go:build points

package system

import (
	"slices"
	"sync"
	"testing"
	"time"

	clusterpb "github.com/keystead/keystead/proto/keystead/cluster/v1"
)

// A standby is put in, and the owner does not learn that (traps 11 and 15). The
// drained node D stood by for the rows:
//
//	A  has copied rows to B: their answers wait for D and B from now on
//	A  proposes Sync(B); L agrees, and every answer to A says that the outcome is unknown
//	A  goes by the table of before for 5 s, in which D is the standby
//	C  adds at A; B does not take the records in yet
//	A  must not answer: D does not count any more. A dies
//	L  removes A: B owns the rows, and has all that was answered
func TestPointsSyncAnswerLost(t *testing.T) {
	t.Parallel()
	c := pointedCluster(t, false, shortLease...)
	d, a, b := c.roles() // D leads
	keys := c.keysAt(a, d, 8)
	count(a, keys)
	a.arm("handoffSyncFlushed", `1*sleep("1s")`)
	d.drain(d)
	a.reached("handoffSyncFlushed")
	d.arm("epochApplied", `return("sync")`)
	a.arm("handoffUnsyncPropose", held)
	a.arm("epochLearn", `1*sleep("5s")`)
	standby := func(at, is *testNode) bool {
		return !slices.ContainsFunc(at.owners(keys...), func(o *clusterpb.KeyOwner) bool { return o.Owner != a.id || o.Standby != is.id })
	}
	eventually(t, "the leader has B as the standby", func() bool { return standby(d, b) })
	b.arm("handoffTargetInstall", `1*sleep("3s")`)
	asked := make([]*once, len(keys))
	told := make([]bool, len(keys))
	var calls sync.WaitGroup
	for i, k := range keys {
		asked[i] = newOnce()
		calls.Go(func() {
			_, err := asked[i].add(a, k, 1, 800*time.Millisecond)
			told[i] = err == nil
		})
	}
	calls.Wait()
	if !standby(a, d) {
		t.Error("the owner has learned who its standby is; it was not held up for long enough")
	}
	a.kill()
	d.disarm("epochApplied")
	want := make([]int64, len(keys))
	for i, k := range keys {
		if want[i] = 1; told[i] {
			want[i] = 2
		}
		if got := d.value(k); got < want[i] {
			t.Errorf("%s is %d, and %d was answered", k, got, want[i])
		}
		asked[i].added(d, k, 1)
		if got := b.value(k); got != 2 {
			t.Errorf("%s is %d after two adds", k, got)
		}
	}
}

// A standby is taken out, and the owner is told that this is not known:
//
//	B  does not acknowledge
//	A  proposes Unsync(B); L agrees, and every answer to A says that the outcome is unknown
//	A  learns the table, and answers alone
//	B  goes on: it forgets what it has, and gets a new copy
//	A  dies: B owns the rows, and has all that was answered
func TestPointsUnsyncAnswerLost(t *testing.T) {
	t.Parallel()
	c := pointedCluster(t, false, shortLease...)
	leads, a, b := c.roles()
	k := fill(t, leads, 100)
	keys := c.keysAt(a, b, 8)
	count(a, keys)
	leads.arm("epochApplied", `return("unsync")`)
	b.arm("feedAckSend", `1*sleep("2s")`)
	began := time.Now()
	for _, key := range keys {
		newOnce().added(a, key, 1)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("without its standby, the owner answered after %s", took)
	}
	if leads.hit("epochApplied") == 0 || b.hit("feedAckSend") == 0 {
		t.Error("no standby was taken out, or the answer was not lost")
	}
	leads.disarm("epochApplied")
	a.said("a standby is taken out")
	c.protected(c.nodes...)
	for _, key := range keys {
		newOnce().added(a, key, 1)
	}
	a.kill()
	c.awaitOwned(leads)
	holds(leads, keys, 3)
	k.stays(leads)
}

// A record of an owner that is removed already comes to be installed (trap 17):
//
//	A  decides an add, and sends its record to B
//	B  is about to take it in, for 4 s
//	A  dies unanswered; L removes it: B owns the row
//	C  adds 10 at B: answered. It repeats the first add: B does it
//	B  goes on with A's record, which is the state before all that: it is dropped
func TestPointsRecordOfTheRemoved(t *testing.T) {
	t.Parallel()
	c := pointedCluster(t, false, shortLease...)
	leads, a, b := c.roles()
	key := c.keysAt(a, b, 1)[0]
	newOnce().added(a, key, 1)
	a.arm("handoffUnsyncPropose", held)
	b.arm("handoffTargetInstall", `1*sleep("4s")`)
	first := newOnce()
	answer := make(chan error, 1)
	go func() {
		_, err := first.add(a, key, 1, 10*time.Second)
		answer <- err
	}()
	b.reached("handoffTargetInstall")
	over := time.After(4500 * time.Millisecond)
	a.kill()
	if err := <-answer; err == nil {
		t.Fatal("the owner has answered before its standby had the record")
	}
	if r := newOnce().added(leads, key, 10); r.Value != 11 {
		t.Errorf("after 1 and 10 it is %d", r.Value)
	}
	if r := first.added(leads, key, 1); r.Value != 12 || r.Replay != nil {
		t.Errorf("the first add, repeated: %v", r)
	}
	select {
	case <-over:
		t.Fatal("the record was not held up for long enough")
	default:
	}
	<-over
	if got := b.value(key); got != 12 {
		t.Errorf("a record of the removed owner counts: it is %d, want 12", got)
	}
}

// A standby acknowledges what an owner decided that has lost its lease meanwhile:
//
//	A  decides an add, and sends its record to B
//	B  takes it in, and does not acknowledge yet
//	A  sends no renewals any more: its lease ends; L removes it: B owns the row
//	C  adds 10 at B: answered
//	B  acknowledges A's record: A must not answer, its right to is over
//	C  repeats the first add at B, which has it: it is done once
func TestPointsLateAcknowledgement(t *testing.T) {
	t.Parallel()
	c := pointedCluster(t, false, shortLease...)
	leads, a, b := c.roles()
	key := c.keysAt(a, b, 1)[0]
	newOnce().added(a, key, 1)
	a.arm("handoffUnsyncPropose", `sleep("5s")`)
	b.arm("feedAckSend", `1*sleep("4s")`)
	first := newOnce()
	answer := make(chan error, 1)
	go func() {
		_, err := first.add(a, key, 1, 20*time.Second)
		answer <- err
	}()
	b.reached("feedAckSend")
	over := time.After(4 * time.Second)
	a.arm("epochRenewSend", `sleep("6s")`)
	if r := newOnce().added(leads, key, 10); r.Value != 12 {
		t.Errorf("after 1, 1 and 10 it is %d", r.Value)
	}
	select {
	case <-over:
		t.Fatal("the acknowledgement was not held up for long enough")
	default:
	}
	err := <-answer
	if why, _ := reason(err); why != "OUTCOME_UNKNOWN" {
		t.Errorf("an owner whose lease was over has answered: %v", err)
	}
	if r := first.added(leads, key, 1); r.Replay == nil || r.Value != 2 {
		t.Errorf("the first add, repeated: %v", r)
	}
	if got := b.value(key); got != 12 {
		t.Errorf("it is %d, want 12", got)
	}
}

// A standby is killed and started at once under its name, on its disk (trap 13):
//
//	B  is killed, and started: another process, with nothing in memory
//	A  does not propose Unsync(B) yet
//	C  adds at A: no answer, B as it was does not acknowledge any more, and B as it is
//	   does not count
//	A  proposes Unsync(B); L removes B as it was, and admits B as it is, which gets copies
//	A  dies: all that was answered is there
func TestPointsStandbyRestarts(t *testing.T) {
	t.Parallel()
	c := pointedCluster(t, true, "--lease-ttl", "5s")
	leads, a, b := c.roles()
	k := fill(t, leads, 100)
	key := c.keysAt(a, b, 1)[0]
	count(a, []string{key})
	l := startLoad(t, c, 20*time.Millisecond)
	for _, n := range []*testNode{leads, a} {
		n.arm("handoffUnsyncPropose", `1*sleep("4s")`)
	}
	b.kill()
	b.flags = append(slices.DeleteFunc(b.flags, func(f string) bool { return f == "--bootstrap" }), "--join", c.addrs(b))
	b.run()
	a.reached("handoffUnsyncPropose")
	eventually(t, "B follows the log again", func() bool {
		is, _, err := b.status()
		if err != nil {
			return false
		}
		st, _, err := leads.status()
		return err == nil && is.Epoch == st.Epoch
	})
	first := newOnce()
	if r, err := first.add(a, key, 1, time.Second); err == nil {
		t.Errorf("answered without the standby, which is still in the table: %v", r)
	}
	first.added(a, key, 1)
	c.ready(c.nodes...)
	c.protected(c.nodes...)
	holds(b, []string{key}, 2)
	k.stays(b)
	a.kill()
	c.awaitOwned(b)
	k.stays(b)
	holds(b, []string{key}, 2)
	l.end(t, leads)
}

// A target is killed and started at once under its name, on its disk, when it has
// all that it is to own (trap 20):
//
//	S  freezes rows, flushes them: T has all
//	T  is killed, and started: another process, with nothing in memory
//	S  proposes Flip(S → T as it was)
//	L  removes T as it was: if the flip was agreed, S, the standby, owns the rows again
//	L  admits T as it is, which gets copies, and the rows
func TestPointsTargetRestarts(t *testing.T) {
	t.Parallel()
	c := pointedCluster(t, true)
	k := fill(t, c.nodes[0], 100)
	l := startLoad(t, c, 20*time.Millisecond)
	n4, from := c.joiner(8)
	moving := slices.Concat(from["n1"], from["n2"], from["n3"])
	count(c.nodes[0], moving)
	n4.withPoints()
	for _, n := range c.nodes {
		n.arm("handoffFlipFlushed", `1*sleep("1.5s")`)
	}
	n4.run()
	eventually(t, "all is flushed", func() bool {
		return !slices.ContainsFunc(c.nodes, func(n *testNode) bool { return n.hit("handoffFlipFlushed") == 0 })
	})
	n4.kill()
	n4.run()
	c.nodes = append(c.nodes, n4)
	c.ready(c.nodes...)
	c.protected(c.nodes...)
	holds(n4, moving, 1)
	for i, o := range n4.owners(moving...) {
		if o.Owner != "n4" {
			t.Errorf("%s is %s's in the end", moving[i], o.Owner)
		}
	}
	k.stays(c.nodes[1])
	l.end(t, c.nodes[0])
}
