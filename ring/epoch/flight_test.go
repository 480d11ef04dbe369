package epoch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/keystead/keystead/ring/epoch/serving"
	"github.com/keystead/keystead/ring/epoch/table"
)

// busy takes all places at a leader, until it is called.
func busy(t *testing.T, g *Group) (free func()) {
	t.Helper()
	for range atOnce {
		select {
		case g.places <- struct{}{}:
		case <-time.After(patience):
			t.Fatal("no place")
		}
	}
	return func() {
		for range atOnce {
			<-g.places
		}
	}
}

// awaited is a context that counts those that wait for its end.
type awaited struct {
	context.Context
	waits atomic.Int64
}

func (a *awaited) Done() <-chan struct{} {
	a.waits.Add(1)
	return a.Context.Done()
}

// TestRepeatWaitsForTheFirst: a command that is proposed again while the leader is busy is
// one entry of the log, and all that proposed it learn what became of it.
func TestRepeatWaitsForTheFirst(t *testing.T) {
	t.Parallel()
	groups := form(t, newPool(), 2, nil)
	leader := groups[0]
	eventually(t, "n1 leads", func() bool { return leader.leads() != 0 })
	for _, g := range groups {
		// What the leader plans meanwhile may come first: then the epoch is another one, and
		// all are told so.
		tries := 0
		eventually(t, "the epoch is raised once", func() bool { tries++; return raisedOnce(t, leader, groups[1], g, tries) })
	}
}

// raisedOnce has a node propose, again and again, that the epoch is raised, while the leader
// is busy. It reports whether nothing else came between.
func raisedOnce(t *testing.T, leader, other, g *Group, try int) bool {
	t.Helper()
	const repeats = 20
	type outcome struct {
		epoch uint64
		err   error
	}
	free := busy(t, leader)
	was := leader.Table().Epoch
	raise := table.Command{ID: fmt.Sprintf("raise %d by %s", try, g.Self().Node), Raise: &table.Raise{Above: was}}
	impatient, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	if _, err := g.Propose(impatient, raise); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v: the leader is busy, and the outcome is %v", g.Self(), err)
	}
	cancel()
	outcomes := make(chan outcome, repeats)
	ctx := &awaited{Context: t.Context()}
	for range repeats {
		go func() {
			epoch, err := g.Propose(ctx, raise)
			outcomes <- outcome{epoch, err}
		}()
	}
	// One that comes when the first is done is another command, and is refused.
	eventually(t, "all wait", func() bool { return int(ctx.waits.Load())+len(outcomes) >= repeats })
	eventually(t, "the leader knows of it", func() bool { return leader.leading.count() >= 1 })
	if n := other.asking.count(); g == other && n != 1 {
		t.Errorf("%v asks %d times", g.Self(), n)
	}
	last := leader.raft.LastIndex()
	free()
	refused := 0
	for range repeats {
		o := <-outcomes
		switch why := new(table.Refused); {
		case errors.As(o.err, &why):
			refused++
		case o.err != nil:
			t.Errorf("%v: a repeat: %v", g.Self(), o.err)
		case o.epoch != was+1:
			t.Errorf("%v: epoch %d after %d", g.Self(), o.epoch, was)
		}
	}
	if n := leader.raft.LastIndex() - last; n > repeats/2 { // it, the entry that tells of it, and what the leader plans meanwhile
		t.Errorf("%v: %d entries of the log for one command", g.Self(), n)
	}
	eventually(t, "nothing is under way", func() bool { return leader.leading.count()+other.asking.count() == 0 })
	if refused%repeats != 0 {
		t.Errorf("%v: %d of %d are told that it was refused", g.Self(), refused, repeats)
	}
	return refused == 0
}

// TestFlightsAreBounded: a node that proposes ever more is told that nothing was proposed;
// what the leader plans itself is in nobody's way.
func TestFlightsAreBounded(t *testing.T) {
	t.Parallel()
	g := form(t, newPool(), 1, nil)[0]
	free := busy(t, g)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for range maxFlights {
		if _, err := g.Propose(over, table.Command{Compact: &table.Compact{}}); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}
	try, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := g.Propose(try, table.Command{Compact: &table.Compact{}}); !errors.Is(err, table.ErrNotProposed) {
		t.Errorf("one more than may be under way: %v", err)
	}
	if epoch, err := g.apply(table.Command{Raise: &table.Raise{Above: g.Table().Epoch}}); err != nil || epoch != g.Table().Epoch {
		t.Errorf("the leader's own: %d, %v", epoch, err)
	}
	free()
	eventually(t, "nothing is under way", func() bool { return g.leading.count() == 0 })
}

// TestFlightToAnotherLeader: what a leader that is gone was asked is given up, and the next
// one is asked.
func TestFlightToAnotherLeader(t *testing.T) {
	t.Parallel()
	var f flights
	first, err := f.join(t.Context(), "x", "n1", func(ctx context.Context) (uint64, error) {
		<-ctx.Done()
		return 0, ctx.Err()
	})
	if err != nil {
		t.Fatal(err)
	}
	second, err := f.join(t.Context(), "x", "n2", func(context.Context) (uint64, error) { return 7, nil })
	if err != nil {
		t.Fatal(err)
	}
	if _, err := first.wait(t.Context()); !errors.Is(err, context.Canceled) {
		t.Errorf("the first: %v", err)
	}
	if epoch, err := second.wait(t.Context()); epoch != 7 || err != nil || f.count() != 0 {
		t.Errorf("the second: %d, %v; %d under way", epoch, err, f.count())
	}
}

// TestBatchShowsWhatMatters: of Syncs that are committed together the last table is shown,
// and every other command finds the one before it shown.
func TestBatchShowsWhatMatters(t *testing.T) {
	t.Parallel()
	n1, n2, n3 := table.Holder{Node: "n1", Incarnation: 1}, table.Holder{Node: "n2", Incarnation: 1}, table.Holder{Node: "n3", Incarnation: 1}
	f := newFSM(serving.New(n1), &cleaner{cleaned: func(uint64) {}})
	var shown []uint64
	f.before = func(t *table.Table) { shown = append(shown, t.Epoch) }
	f.learned, f.fail = func(*table.Table) {}, func(err error) { t.Error(err) }
	batch := func(commands ...table.Command) (outs []outcome) {
		var logs []*raft.Log
		for _, c := range commands {
			logs = append(logs, &raft.Log{Type: raft.LogCommand, Data: c.Encode()}, &raft.Log{Type: raft.LogConfiguration})
		}
		shown = nil
		for i, out := range f.ApplyBatch(logs) {
			if i%2 == 0 {
				outs = append(outs, out.(outcome))
			}
		}
		return outs
	}
	made := []table.Command{{Init: &table.Init{Cluster: "test", Epoch: 7}}}
	for _, h := range []table.Holder{n1, n2, n3} {
		made = append(made, table.Command{Admit: &table.Admit{Member: table.Member{Node: h.Node, Incarnation: 1, HashKey: h.Node}}})
	}
	made = append(made, table.Command{Begin: &table.Begin{Want: []table.Holder{n1, n2, n3}}})
	batch(made...)
	if want := []uint64{7, 8, 9, 10, 11}; !slices.Equal(shown, want) {
		t.Errorf("shown: %v, want %v", shown, want)
	}
	sync := func(owner, standby table.Holder) table.Command {
		c := &table.Sync{WantSince: 11, Owner: owner, Standby: standby}
		for i, r := range f.table.Rows {
			if _, s := f.table.Wants(r.End); r.Owner == owner && s == standby {
				after, upTo := f.table.Segment(i)
				c.Rows = append(c.Rows, table.Stamp{After: after, End: upTo, Since: r.Since})
			}
		}
		return table.Command{Sync: c}
	}
	outs := batch(sync(n1, n2), sync(n1, n3), sync(n2, n1), table.Command{Raise: &table.Raise{Above: 14}}, sync(n2, n3), sync(n2, n3), sync(n3, n1))
	if want := []uint64{14, 15, 17}; !slices.Equal(shown, want) {
		t.Errorf("shown: %v, want %v", shown, want)
	}
	for i, want := range []uint64{12, 13, 14, 15, 16, 16, 17} {
		if o := outs[i]; o.epoch != want || (o.refused != nil) != (i == 5) {
			t.Errorf("command %d: epoch %d, %v", i, o.epoch, o.refused)
		}
	}
}
