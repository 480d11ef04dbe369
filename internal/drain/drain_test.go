package drain

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/internal/tests/agreed"
	"github.com/keystead/keystead/ring/epoch/table"
)

// TestGiveTellsWhatIsKnown: an order that the leader did not get says that nothing
// happened, and one that it may have got that this is not known.
func TestGiveTellsWhatIsKnown(t *testing.T) {
	for name, c := range map[string]struct {
		propose func(g *council) func(table.Command) (uint64, error)
		why     failure.Reason
		already bool
	}{
		"no leader": {func(*council) func(table.Command) (uint64, error) {
			return func(table.Command) (uint64, error) { return 0, table.ErrNotProposed }
		}, failure.Unavailable, false},
		"no answer": {func(*council) func(table.Command) (uint64, error) {
			return func(table.Command) (uint64, error) { return 0, errors.New("cut off") }
		}, failure.OutcomeUnknown, false},
		"the answer is lost": {func(g *council) func(table.Command) (uint64, error) {
			return func(c table.Command) (uint64, error) { _, _ = g.Apply(c); return 0, errors.New("cut off") }
		}, 0, false},
		"another was first": {func(g *council) func(table.Command) (uint64, error) {
			return func(c table.Command) (uint64, error) {
				_, _ = g.Apply(c)
				return 0, &table.Refused{Why: "it is being drained already"}
			}
		}, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDrains(t, 3, table.StopLevel, table.StopLevel)
				d.g.propose = c.propose(d.g)
				began := time.Now()
				s, err := d.Give(t.Context(), Order{Node: "n2"})
				if failure.ReasonOf(err) != c.why || (err == nil) != (c.why == 0) || s.Already != c.already || time.Since(began) > patience {
					t.Errorf("%+v, %v after %s", s, err, time.Since(began))
				}
				if err == nil && s.Member.Phase != table.Leaving {
					t.Errorf("n2 is %s", s.Member.Phase)
				}
				for _, asked := range d.g.asked {
					if asked.ID != "id1" {
						t.Errorf("one order, proposed as %q", asked.ID)
					}
				}
			})
		})
	}
}

// TestStopBeforeItsLevelIsCommitted: a cluster that is told to stop in its first moments
// keeps what it has on every node, and the order shuts out no program of the level before.
// A cluster with a member that would not understand it is drained as ever.
func TestStopBeforeItsLevelIsCommitted(t *testing.T) {
	d := newDrains(t, 3, table.Level, 1)
	for i := 1; i <= 3; i++ {
		if s, err := d.Give(t.Context(), Order{Node: agreed.Nth(i).Node, Stop: true, Force: true}); err != nil || !s.Member.Stopping {
			t.Errorf("%+v, %v", s, err)
		}
	}
	for i := 1; i <= 3; i++ {
		if !d.g.Table().Stopped(agreed.Nth(i)) {
			t.Errorf("n%d gives away what it has", i)
		}
	}
	if neighbour := uint32(table.Level - 1); neighbour >= table.StopLevel {
		d.g.Must(table.Command{Admit: &table.Admit{Member: table.Member{Node: "n9", Incarnation: 1, HashKey: "k9", Level: neighbour}}})
	}

	old := newDrains(t, 3, table.StopLevel-1, 1)
	if s, err := old.Give(t.Context(), Order{Node: "n1", Stop: true, Force: true}); err != nil || s.Member.Stopping || s.Member.Phase != table.Leaving {
		t.Errorf("a node does not know it: %+v, %v", s, err)
	}
}

// TestAllStopWithAnOlderNode: where a node would not understand that all stop, the last of
// them takes what the others give.
func TestAllStopWithAnOlderNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDrains(t, 2, table.StopLevel-1, 1)
		d.g.Must(leave(2))
		done := make(chan struct{})
		go func() { defer close(done); d.BeforeStop(t.Context(), time.Minute) }()
		synctest.Wait()
		select {
		case <-done:
			t.Fatal("it did not wait for n2")
		default:
		}
		d.g.empties()
		<-done
		d.says("leaves without a drain: this is the last node")
		if s := d.State(); s.Member.Phase != table.Active || s.Owned != len(d.g.Table().Rows) {
			t.Errorf("%+v", s)
		}
	})
}

// empties has the members that leave give all away.
func (g *council) empties() {
	g.t.Helper()
	var want []table.Holder
	for _, m := range g.Table().Members {
		if m.MayReceive() {
			want = append(want, m.Holder())
		}
	}
	g.Must(table.Command{Begin: &table.Begin{Want: want}})
	g.FlipAll()
	g.End()
}

// TestDrainWaits until the node is empty, also if somebody else has given the order, or
// until it is clear that it never will be.
func TestDrainWaits(t *testing.T) {
	for name, c := range map[string]struct {
		meanwhile func(g *council)
		err       error
		final     bool
	}{
		"it is empty":    {func(g *council) { g.empties() }, nil, false},
		"taken back":     {func(g *council) { g.Must(table.Command{Drain: &table.Drain{Member: agreed.Nth(1), Undo: true}}) }, errTakenBack, true},
		"nobody is left": {func(g *council) { g.Must(table.Command{Remove: &table.Remove{Members: []table.Holder{agreed.Nth(2)}}}) }, errAllLeave, true},
		"it is removed":  {func(g *council) { g.Must(table.Command{Remove: &table.Remove{Members: []table.Holder{agreed.Nth(1)}}}) }, errRemoved, false},
		"not in time":    {func(*council) {}, context.DeadlineExceeded, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDrains(t, 2, table.StopLevel, table.StopLevel)
				d.g.Must(leave(1))
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				go func() { synctest.Wait(); c.meanwhile(d.g) }()
				s, err := d.Drain(ctx)
				if !errors.Is(err, c.err) || Final(err) != c.final || !s.Already || s.Member.Node != "n1" {
					t.Errorf("%+v, %v", s, err)
				}
			})
		})
	}
}

// TestBeforeStop: a node that stops waits for its drain no longer than it has to, and its
// log says why it left.
func TestBeforeStop(t *testing.T) {
	for name, c := range map[string]struct {
		prepare   func(d *drains)
		meanwhile func(d *drains, hurry func())
		least     time.Duration
		most      time.Duration
		says      string
	}{
		"drained": {
			meanwhile: func(d *drains, _ func()) { d.g.empties() },
			says:      "drained: this node owns nothing"},
		"not ready": {
			prepare: func(d *drains) { d.ready = errors.New("no lease") },
			says:    "leaves without a drain: the node is not ready"},
		"no leader": {
			prepare: func(d *drains) { d.g.leader = "" },
			says:    "leaves without a drain: the cluster has no leader"},
		"told to hurry": {
			meanwhile: func(_ *drains, hurry func()) { hurry() },
			says:      "leaves before it was drained: it was told to"},
		"stuck": {
			least: stuckAfter, most: stuckAfter + time.Second,
			says: "leaves before it was drained: nothing has moved"},
		"copies move": {
			meanwhile: func(d *drains, _ func()) {
				for range 2 * 60 {
					time.Sleep(stuckPoll)
					d.sent.Add(1)
				}
			},
			least: time.Minute, most: time.Minute,
			says: "--drain-timeout is over"},
		"all stop": {
			prepare: func(d *drains) {
				for i := 2; i <= 3; i++ {
					d.g.Must(table.Command{Drain: &table.Drain{Member: agreed.Nth(i), Stop: true}})
				}
			},
			says: "all nodes stop, and each keeps what it has"},
		"the last, whose givers are cut off": {
			prepare:   func(d *drains) { d.g.Must(leave(2), leave(3)) },
			meanwhile: func(d *drains, _ func()) { d.g.mu.Lock(); d.g.leader = ""; d.g.mu.Unlock() },
			least:     leaderless, most: leaderless + 2*tryTime,
			says: `this is the last node" "being drained still"=2`},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDrains(t, 3, table.StopLevel, table.StopLevel)
				if c.prepare != nil {
					c.prepare(d)
				}
				ctx, hurry := context.WithCancel(t.Context())
				defer hurry()
				began, over := time.Now(), make(chan struct{})
				go func() {
					defer close(over)
					synctest.Wait()
					if c.meanwhile != nil {
						c.meanwhile(d, hurry)
					}
				}()
				d.BeforeStop(ctx, time.Minute)
				if took := time.Since(began); took < c.least || took > c.most {
					t.Errorf("it took %s", took)
				}
				<-over
				d.says(c.says)
			})
		})
	}
}

// TestHeard: a node acts on fresh events that name it, and of one for nobody the leader
// speaks.
func TestHeard(t *testing.T) {
	fresh := func(context.Context) (bool, error) { return false, nil }
	for _, c := range []struct {
		name  string
		event Event
		phase table.Phase
		says  string // "" = nothing
	}{
		{"for this node", Event{EventDrain, []byte("n1"), fresh}, table.Leaving, "applied an event"},
		{"for another", Event{EventDrain, []byte("n2"), fresh}, table.Active, ""},
		{"for nobody", Event{EventDrain, []byte("n9"), fresh}, table.Active, "an event names no member of the cluster"},
		{"another's", Event{"deploy", []byte("n1"), fresh}, table.Active, ""},
		{"stale", Event{EventDrain, []byte("n1"), func(context.Context) (bool, error) { return true, errors.New("older") }}, table.Active, "ignored a stale event"},
		{"perhaps stale", Event{EventDrain, []byte("n1"), func(context.Context) (bool, error) { return false, errors.New("nobody answers") }}, table.Active, "say it again"},
		{"of nothing to take back", Event{EventUndrain, []byte("n1"), fresh}, table.Active, "already=true"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newDrains(t, 3, table.StopLevel, table.StopLevel)
			d.Heard(t.Context(), c.event)
			if m, _ := d.g.Table().Member("n1"); m.Phase != c.phase {
				t.Errorf("n1 is %s", m.Phase)
			}
			if d.says(c.says); c.says == "" && d.log.Len() > 0 {
				t.Errorf("it says %s", d.log)
			}
		})
	}
	d := newDrains(t, 3, table.StopLevel, table.StopLevel)
	d.g.leader = "n2"
	if d.Heard(t.Context(), Event{EventDrain, []byte("n9"), fresh}); d.log.Len() > 0 {
		t.Errorf("a follower says %s", d.log)
	}
}
