package epoch

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
	"github.com/keystead/keystead/ring/epoch/table"
)

func process(node string, incarnation uint64) table.Holder {
	return table.Holder{Node: node, Incarnation: incarnation}
}

// grown applies commands that must take effect.
func grown(t *testing.T, tab *table.Table, commands ...table.Command) *table.Table {
	t.Helper()
	for _, c := range commands {
		next, err := tab.Apply(c)
		if err != nil {
			t.Fatalf("%s: %v", c.Kind(), err)
		}
		tab = next
	}
	return tab
}

func admission(node string, incarnation uint64) table.Command {
	return table.Command{Admit: &table.Admit{Member: table.Member{Node: node, Incarnation: incarnation, HashKey: node, Level: table.DiskLevel}}}
}

// durableTable is of n1 to n<n>, with a durability agreed. Nobody stands by for anybody.
func durableTable(t *testing.T, n int, d table.Durability) *table.Table {
	t.Helper()
	tab := grown(t, &table.Table{}, table.Command{Init: &table.Init{Cluster: "test", Epoch: 100}})
	var want []table.Holder
	for i := range n {
		h := process(fmt.Sprintf("n%d", i+1), 1)
		want = append(want, h)
		tab = grown(t, tab, admission(h.Node, h.Incarnation))
	}
	tab = grown(t, tab, table.Command{Begin: &table.Begin{Want: want}})
	return grown(t, tab, table.Command{End: &table.End{Transition: tab.Transition.ID}},
		table.Command{Adopt: &table.Adopt{Level: table.DiskLevel, Durable: d}})
}

// standsBy makes a process the synced standby of all that an owner has and it may hold.
func standsBy(t *testing.T, tab *table.Table, owner, standby table.Holder) *table.Table {
	t.Helper()
	c := &table.Sync{WantSince: tab.WantSince, Owner: owner, Standby: standby, Kept: true}
	for i, r := range tab.Rows {
		if after, upTo := tab.Segment(i); r.Owner == owner && tab.MayHold(i, standby) {
			c.Rows = append(c.Rows, table.Stamp{After: after, End: upTo, Since: r.Since})
		}
	}
	return grown(t, tab, table.Command{Sync: c})
}

// allDead is a cluster of two, each of which stands by for the other, of which both are dead and
// their nodes' next processes are members.
func allDead(t *testing.T, d table.Durability) *table.Table {
	t.Helper()
	tab := durableTable(t, 2, d)
	n1, n2 := process("n1", 1), process("n2", 1)
	tab = standsBy(t, standsBy(t, tab, n1, n2), n2, n1)
	return grown(t, tab, table.Command{Remove: &table.Remove{Members: []table.Holder{n1, n2}}}, admission("n1", 2), admission("n2", 2))
}

// report is what a disk says that these have had.
func report(had ...uint64) *peerv1.DiskReport {
	return &peerv1.DiskReport{Durability: 1, Whole: true, Incarnations: had, Epoch: 1000}
}

func stopped(r *peerv1.DiskReport, by ...uint64) *peerv1.DiskReport {
	r.Stopped = by
	return r
}

func streams(r *peerv1.DiskReport, s ...*peerv1.DiskStream) *peerv1.DiskReport {
	r.Streams = s
	return r
}

func old(r *peerv1.DiskReport) *peerv1.DiskReport { r.Epoch = 1; return r }

// rounds says how many the processes have written that had the disk.
func rounds(r *peerv1.DiskReport, of ...uint64) *peerv1.DiskReport { r.Rounds = of; return r }

// told is a short form of what a command says about rows.
func told(c table.Command, ok bool) string {
	switch {
	case !ok:
		return "wait"
	case c.Recover != nil:
		whole := ""
		if c.Recover.Whole {
			whole = " whole"
		}
		return fmt.Sprintf("%s/%d from %s/%d%s", c.Recover.To.Node, c.Recover.To.Incarnation, c.Recover.Of.Node, c.Recover.Of.Incarnation, whole)
	case c.Forgo != nil:
		var who []string
		for _, h := range c.Forgo.Holders {
			who = append(who, fmt.Sprintf("%s/%d", h.Node, h.Incarnation))
		}
		return "forgo " + strings.Join(who, " ")
	}
	return c.Kind()
}

func everybody(table.Holder) bool { return true }

// TestColdLeaves: a process that is about to stop is given no rows from its disk, which would be
// refused again and again; what else there is to do is done meanwhile.
func TestColdLeaves(t *testing.T) {
	tab := allDead(t, table.Always)
	tab = grown(t, tab, table.Command{Drain: &table.Drain{Member: process("n1", 2), Stop: true}})
	k := newCold(0, 0)
	k.learned(tab, 0)
	k.hear(process("n1", 2), report(1, 2))
	if c, ok := k.next(0, everybody); ok {
		t.Fatalf("it proposes %s", told(c, ok))
	}
	k.hear(process("n2", 2), report(1, 2))
	c, ok := k.next(int64(judgeEvery), everybody)
	if told(c, ok) != "n2/2 from n2/1" {
		t.Fatalf("it proposes %s", told(c, ok))
	}
	grown(t, tab, c)
}

// TestColdChoice: from which disk rows go on that n1/1 owned and n2/1 stood by for, and after how
// long.
func TestColdChoice(t *testing.T) {
	const resume, recover = 30 * time.Second, 5 * time.Minute
	out := func(session, number uint64) *peerv1.DiskStream {
		return &peerv1.DiskStream{Node: "n2", Incarnation: 1, Out: true, Session: session, Number: number}
	}
	in := func(session, number uint64) *peerv1.DiskStream {
		return &peerv1.DiskStream{Node: "n1", Incarnation: 1, Session: session, Number: number}
	}
	heard := func(node string, rounds uint64) *peerv1.DiskStream { // of the first process of a node
		return &peerv1.DiskStream{Node: node, Incarnation: 1, Out: true, PeerRounds: rounds}
	}
	const always, entire = table.Always, table.Entire
	for _, c := range []struct {
		name    string
		durable table.Durability // Interval
		n1, n2  *peerv1.DiskReport
		n3      *peerv1.DiskReport // it has had none of the rows
		alone   bool               // there was no standby
		gone    uint64
		after   time.Duration
		want    string
	}{
		{name: "both", n1: report(1, 2), n2: report(1, 2), want: "n1/2 from n1/1"},
		{name: "both, all promised", durable: table.Entire, n1: report(1, 2), n2: report(1, 2), want: "n1/2 from n1/1 whole"},
		{name: "both, some promised", durable: table.Always, n1: report(1, 2), n2: report(1, 2), want: "n1/2 from n1/1"},
		{name: "the standby was stopped in order", n1: report(1, 2), n2: stopped(report(1, 2), 1), want: "n2/2 from n2/1 whole"},
		{name: "both were stopped in order", n1: stopped(report(1, 2), 1), n2: stopped(report(1, 2), 1), want: "n1/2 from n1/1 whole"},
		{name: "another process was stopped in order", n1: report(1, 2), n2: stopped(report(1, 2), 2), want: "n1/2 from n1/1"},
		{name: "the standby is further", n1: streams(report(1, 2), out(7, 10)), n2: streams(report(1, 2), in(7, 11)), want: "n2/2 from n2/1"},
		{name: "the owner is further", n1: streams(report(1, 2), out(7, 11)), n2: streams(report(1, 2), in(7, 10)), want: "n1/2 from n1/1"},
		{name: "as far", n1: streams(report(1, 2), out(7, 10)), n2: streams(report(1, 2), in(7, 10)), want: "n1/2 from n1/1"},
		{name: "another session", n1: streams(report(1, 2), out(8, 1)), n2: streams(report(1, 2), in(7, 10)), want: "n1/2 from n1/1"},
		{name: "another stream", n1: streams(report(1, 2), out(7, 1)), n2: streams(report(1, 2), out(7, 10)), want: "n1/2 from n1/1"},
		{name: "the owner's is of before the loss", gone: 500, n1: old(report(1, 2)), n2: report(1, 2), want: "n2/2 from n2/1"},
		{name: "both are of before the loss", gone: 500, durable: table.Entire, n1: old(report(1, 2)), n2: old(report(1, 2)), want: "n1/2 from n1/1"},
		{name: "one", n1: report(1, 2), after: resume, want: "n1/2 from n1/1"},
		{name: "one, the standby", n2: report(1, 2), after: resume, want: "n2/2 from n2/1"},
		{name: "one, stopped in order", n2: stopped(report(1, 2), 1), after: stoppedWait, want: "n2/2 from n2/1 whole"},
		{name: "one, the other was emptied", n1: report(2), n2: report(1, 2), after: resume, want: "n2/2 from n2/1"},
		{name: "the owner's was set back", durable: entire, n1: rounds(report(1, 2), 4, 0), n2: streams(report(1, 2), heard("n1", 5)), want: "n2/2 from n2/1 whole"},
		{name: "the standby's was set back", n1: streams(report(1, 2), heard("n2", 5), out(7, 1)), n2: rounds(streams(report(1, 2), in(7, 2)), 4, 0), want: "n1/2 from n1/1"},
		{name: "it was heard of as far", durable: entire, n1: rounds(report(1, 2), 5, 0), n2: streams(report(1, 2), heard("n1", 5)), want: "n1/2 from n1/1 whole"},
		{name: "it does not say how far", durable: entire, n1: rounds(report(1, 2), 0, 0), n2: streams(report(1, 2), heard("n1", 5)), want: "n1/2 from n1/1 whole"},
		{name: "both were set back", durable: entire, n1: rounds(streams(report(1, 2), heard("n2", 9)), 4, 0),
			n2: rounds(streams(report(1, 2), heard("n1", 5)), 4, 0), want: "n1/2 from n1/1"},
		{name: "one, set back", n1: rounds(report(1, 2), 4, 0), n3: streams(report(3), heard("n1", 5)), after: recover, want: "n1/2 from n1/1"},
		{name: "one, set back, and answers waited", durable: always, n1: rounds(report(1, 2), 4, 0), n3: streams(report(3), heard("n1", 5)), after: 1000 * time.Hour, want: "wait"},
		{name: "set back, and there is no other one", durable: entire, alone: true, n1: rounds(stopped(report(1, 2), 1), 4, 0), n3: streams(report(3), heard("n1", 5)), want: "n1/2 from n1/1"},
		{name: "none", after: recover, want: "forgo n1/1 n2/1"},
		{name: "none, both are there", n1: report(2), n2: report(2), after: recover, want: "forgo n1/1 n2/1"},
		{name: "none, and answers waited for them", durable: table.Always, after: 1000 * time.Hour, want: "wait"},
		{name: "none, and all answers did", durable: table.Entire, after: 1000 * time.Hour, want: "wait"},
	} {
		t.Run(c.name, func(t *testing.T) {
			tab := *allDead(t, max(c.durable, table.Interval))
			tab.Rows = slices.Clone(tab.Rows)
			for i := range tab.Rows {
				tab.Rows[i].Was, tab.Rows[i].Stood, tab.Rows[i].Gone = process("n1", 1), process("n2", 1), c.gone
				if c.alone {
					tab.Rows[i].Stood = table.Holder{}
				}
			}
			k := newCold(resume, recover)
			const began = int64(time.Hour)
			k.learned(&tab, began)
			k.hear(process("n1", 2), c.n1)
			k.hear(process("n2", 2), c.n2)
			k.hear(process("n3", 3), c.n3)
			if c.after > 0 {
				if got := told(k.next(began+int64(c.after)-1, everybody)); got != "wait" {
					t.Errorf("before %s: %s", c.after, got)
				}
			}
			command, ok := k.next(began+int64(c.after)+int64(judgeEvery), everybody)
			if got := told(command, ok); got != c.want {
				t.Fatalf("%s, not %s", got, c.want)
			}
			if command.Recover != nil && len(command.Recover.Rows) != len(tab.Rows) {
				t.Errorf("%d of %d rows", len(command.Recover.Rows), len(tab.Rows))
			}
		})
	}
}

// TestHeardOfAwaited: a node that has nothing of what waits says what it has heard of those that have.
func TestHeardOfAwaited(t *testing.T) {
	tab := allDead(t, table.Interval)
	all := []*peerv1.DiskStream{{Node: "n2", Incarnation: 1, Out: true, PeerRounds: 7}, {Node: "n2", Incarnation: 2, Out: true, PeerRounds: 9}, {Node: "n3", Incarnation: 1, PeerRounds: 4}}
	if of := ofAwaited(tab, all); len(of) != 1 || of[0] != all[0] {
		t.Errorf("it says %v", of)
	}
	if of := ofAwaited(durableTable(t, 2, table.Interval), all); len(of) > 0 {
		t.Errorf("no row waits, and it says %v", of)
	}
}

// TestColdOneOwner: a row that had no standby waits for nobody beside its owner.
func TestColdOneOwner(t *testing.T) {
	tab := durableTable(t, 2, table.Always)
	tab = grown(t, tab, table.Command{Remove: &table.Remove{Members: []table.Holder{process("n1", 1)}}}, admission("n1", 2))
	k := newCold(time.Minute, time.Hour)
	k.learned(tab, 0)
	if got := told(k.next(0, everybody)); got != "wait" {
		t.Error(got)
	}
	k.hear(process("n1", 2), report(1, 2))
	if got := told(k.next(int64(judgeEvery), func(table.Holder) bool { return false })); got != "wait" {
		t.Errorf("a disk that was heard of once, of a process without a lease: %s", got)
	}
	c, ok := k.next(2*int64(judgeEvery), everybody)
	if got := told(c, ok); got != "n1/2 from n1/1" {
		t.Fatal(got)
	}
	k.learned(grown(t, tab, c), 0)
	if got := told(k.next(3*int64(judgeEvery), everybody)); got != "wait" || len(k.groups) > 0 {
		t.Errorf("%s, and %d groups", got, len(k.groups))
	}
}

// TestColdSplitsCommands: rows of several processes, and many rows, take several commands.
func TestColdSplitsCommands(t *testing.T) {
	tab := allDead(t, table.Always)
	k := newCold(time.Minute, time.Hour)
	k.learned(tab, 0)
	k.hear(process("n1", 2), report(1, 2))
	k.hear(process("n2", 2), report(1, 2))
	var did []string
	for {
		c, ok := k.next(0, everybody)
		if !ok {
			break
		}
		did = append(did, told(c, ok))
		tab = grown(t, tab, c)
		k.learned(tab, 0)
	}
	if !slices.Equal(did, []string{"n1/2 from n1/1", "n2/2 from n2/1"}) && !slices.Equal(did, []string{"n2/2 from n2/1", "n1/2 from n1/1"}) {
		t.Errorf("did %v", did)
	}
	many := *tab
	many.Rows, many.Durable = nil, table.Always
	k.of, k.groups = &many, []table.ColdRows{{Was: process("n1", 1), Rows: make([]table.Stamp, maxRecovered+1)}}
	if c, _ := k.next(0, everybody); c.Recover == nil || len(c.Recover.Rows) != maxRecovered {
		t.Errorf("%s", told(c, true))
	}
}

// TestColdCountsAnew: what waits on keeps its time when the table changes, and the next leader
// begins anew.
func TestColdCountsAnew(t *testing.T) {
	tab := allDead(t, table.Interval)
	k := newCold(time.Minute, time.Hour)
	k.learned(tab, 0)
	k.learned(grown(t, tab, admission("n3", 1)), int64(time.Hour)-1)
	if got := told(k.next(int64(time.Hour)-1, everybody)); got != "wait" {
		t.Error(got)
	}
	if got := told(k.next(int64(time.Hour)+int64(judgeEvery), everybody)); got != "forgo n1/1 n2/1" {
		t.Error(got)
	}
	if k.settles(int64(time.Minute)) || !k.settles(int64(time.Minute)-1) {
		t.Error("the ring is changed at once, or never")
	}
	k = newCold(time.Minute, time.Hour)
	k.learned(tab, int64(time.Hour))
	if got := told(k.next(int64(time.Hour)+int64(judgeEvery), everybody)); got != "wait" {
		t.Error(got)
	}
}

// TestColdOverTerms: for the second disk leaders wait together, however often they change, and each long enough to hear who
// is there; none gives up for what others have waited.
func TestColdOverTerms(t *testing.T) {
	const resume = 30 * time.Second
	tab := allDead(t, table.Interval)
	var others cold
	at := int64(time.Hour)
	for range int64(resume/time.Second) + 5 { // others lead
		others.passed(at)
		others.know(tab, at)
		at += int64(time.Second)
	}
	k := others.anew(resume, time.Minute)
	k.learned(tab, at)
	k.hear(process("n1", 2), report(1, 2))
	if got := told(k.next(at+int64(stoppedWait)-1, everybody)); got != "wait" || !k.settles(at+int64(stoppedWait)-1) {
		t.Errorf("before it has led for a while: %s", got)
	}
	if got := told(k.next(at+int64(stoppedWait)+int64(judgeEvery), everybody)); got != "n1/2 from n1/1" || k.settles(at+int64(stoppedWait)) {
		t.Errorf("after that: %s", got)
	}
	var follower cold
	follower.know(tab, 0)
	k = follower.anew(resume, time.Minute)
	k.learned(tab, int64(time.Hour))
	if got := told(k.next(int64(time.Hour+time.Minute)-1, everybody)); got != "wait" {
		t.Errorf("what it has not waited for itself is given up: %s", got)
	}
	follower.know(grown(t, tab, table.Command{Forgo: &table.Forgo{Holders: []table.Holder{process("n1", 1), process("n2", 1)}}}), 0)
	if len(follower.known) > 0 {
		t.Errorf("%d are known that do not wait", len(follower.known))
	}
}

// TestColdSleeps: a leader that has slept, as all others may have, gives nothing up for that.
func TestColdSleeps(t *testing.T) {
	tab := allDead(t, table.Interval)
	k := newCold(time.Minute, time.Hour)
	at := int64(time.Hour)
	k.passed(at)
	k.learned(tab, at)
	for range 60 { // a minute, awake
		at += int64(time.Second)
		k.passed(at)
	}
	at += int64(2 * time.Hour)
	k.passed(at)
	if got := told(k.next(at, everybody)); got != "wait" || k.settles(at) {
		t.Errorf("%s; the minute before counts: %v", got, !k.settles(at))
	}
	at += int64(time.Hour - time.Minute)
	k.passedAt = at
	if got := told(k.next(at, everybody)); got != "forgo n1/1 n2/1" {
		t.Error(got)
	}
}

// TestColdTells: people are told whose disk is waited for, and until when: once, and each minute.
func TestColdTells(t *testing.T) {
	tab := allDead(t, table.Always)
	k := newCold(time.Minute, time.Hour)
	k.learned(tab, 0)
	k.hear(process("n1", 2), report(1, 2))
	k.hear(process("n2", 2), report(2))
	got := k.tell(0, everybody)
	if len(got) != 1 || got[0].of != process("n2", 1) || got[0].rows != len(tab.Rows) || got[0].until != int64(time.Minute) || !got[0].emptied {
		t.Errorf("told %+v", got)
	}
	if got := k.tell(int64(tellEvery)-1, everybody); len(got) > 0 {
		t.Errorf("told again: %+v", got)
	}
	k.hear(process("n1", 2), nil)
	got = k.tell(int64(tellEvery), everybody)
	if len(got) != 2 || got[0].of != process("n1", 1) || got[0].until != math.MaxInt64 || got[0].emptied || !got[1].emptied {
		t.Errorf("told %+v", got)
	}
}

// TestPromise: what disks promise together is what the least of them keeps, and that some promise
// more is known. A disk that is not whole promises nothing.
func TestPromise(t *testing.T) {
	say := func(durability uint32, whole bool) *peerv1.DiskReport {
		return &peerv1.DiskReport{Durability: durability, Whole: whole}
	}
	for _, c := range []struct {
		name  string
		n1    *peerv1.DiskReport
		n2    *peerv1.DiskReport
		alive bool
		want  table.Durability
	}{
		{name: "the same", n1: say(1, true), n2: say(1, true), alive: true, want: table.Interval},
		{name: "one more", n1: say(1, true), n2: say(2, true), alive: true, want: table.Always},
		{name: "one all", n1: say(3, true), n2: say(1, true), alive: true, want: table.Always},
		{name: "all", n1: say(3, true), n2: say(3, true), alive: true, want: table.Entire},
		{name: "one nothing", n1: say(3, true), n2: say(0, true), alive: true},
		{name: "one without", n1: say(3, true), alive: true},
		{name: "one is not whole", n1: say(3, true), n2: say(3, false), alive: true},
		{name: "one of a later program", n1: say(3, true), n2: say(9, true), alive: true},
		{name: "one without a lease", n1: say(3, true), n2: say(3, true)},
	} {
		t.Run(c.name, func(t *testing.T) {
			tab := allDead(t, table.Interval)
			k := newCold(0, 0)
			k.learned(tab, 0)
			k.hear(process("n1", 2), c.n1)
			k.hear(process("n2", 2), c.n2)
			if got := k.promise(tab, func(h table.Holder) bool { return c.alive || h.Node == "n1" }); got != c.want {
				t.Errorf("%d, not %d", got, c.want)
			}
		})
	}
	if got := new(cold).promise(&table.Table{}, everybody); got != table.Undurable {
		t.Errorf("nobody promises %d", got)
	}
}

// TestAgreeable: members agree on less when nobody promises more any more, but not while rows wait for disks.
func TestAgreeable(t *testing.T) {
	warm, waiting := durableTable(t, 2, table.Always), allDead(t, table.Always)
	for _, c := range []struct {
		name    string
		tab     *table.Table
		of      uint64 // their incarnation
		promise uint32
		want    table.Durability
	}{
		{name: "the same", tab: warm, of: 1, promise: 2, want: table.Undurable},
		{name: "more", tab: warm, of: 1, promise: 3, want: table.Entire},
		{name: "less", tab: warm, of: 1, promise: 1, want: table.Interval},
		{name: "nothing", tab: warm, of: 1, promise: 0, want: table.Undurable},
		{name: "more while rows wait", tab: waiting, of: 2, promise: 3, want: table.Entire},
		{name: "less while rows wait", tab: waiting, of: 2, promise: 1, want: table.Undurable},
	} {
		k := newCold(0, 0)
		k.learned(c.tab, 0)
		for _, node := range []string{"n1", "n2"} {
			k.hear(process(node, c.of), &peerv1.DiskReport{Durability: c.promise, Whole: true})
		}
		if got := k.agreeable(c.tab, everybody); got != c.want {
			t.Errorf("%s: %d, not %d", c.name, got, c.want)
		}
	}
}

// TestTurnsAway: a node that does not keep what the cluster has agreed on is not admitted.
func TestTurnsAway(t *testing.T) {
	for _, c := range []struct {
		agreed table.Durability
		disk   *peerv1.DiskReport
		want   bool
	}{
		{agreed: table.Undurable},
		{agreed: table.Interval, want: true},
		{agreed: table.Interval, disk: &peerv1.DiskReport{}, want: true},
		{agreed: table.Interval, disk: &peerv1.DiskReport{Durability: 1}},
		{agreed: table.Always, disk: &peerv1.DiskReport{Durability: 1}},
		{agreed: table.Entire, want: true},
		{agreed: table.Entire, disk: &peerv1.DiskReport{}, want: true},
		{agreed: table.Entire, disk: &peerv1.DiskReport{Durability: 2}},
		{agreed: table.Entire, disk: &peerv1.DiskReport{Durability: 3}},
	} {
		if why := turnsAway(&table.Table{Durable: c.agreed}, c.disk); (why != "") != c.want {
			t.Errorf("%d, with %v: %q", c.agreed, c.disk, why)
		}
	}
}

// TestReportsAreBounded: what a leader keeps of a report is bounded; the latest counts.
func TestReportsAreBounded(t *testing.T) {
	r := report()
	for i := range uint64(3 * maxReported) {
		r.Incarnations, r.Stopped = append(r.Incarnations, i), append(r.Stopped, i)
		r.Streams = append(r.Streams, &peerv1.DiskStream{Number: i})
	}
	k := newCold(0, 0)
	k.hear(process("n1", 1), r)
	got := k.heard[process("n1", 1)]
	last := uint64(3*maxReported - 1)
	if len(got.Incarnations) != maxReported || len(got.Stopped) != maxReported || len(got.Streams) != maxReported ||
		got.Incarnations[maxReported-1] != last || got.Streams[maxReported-1].Number != last {
		t.Errorf("%d incarnations, %d stopped, %d streams", len(got.Incarnations), len(got.Stopped), len(got.Streams))
	}
	k.learned(allDead(t, table.Interval), 0)
	if len(k.heard) > 0 {
		t.Error("one that is no member is remembered")
	}
}
