package forgo

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/internal/tests/agreed"
	"github.com/keystead/keystead/ring/epoch/table"
)

// council is a Group whose commands take effect as propose says; nil = at once.
type council struct {
	*agreed.Cluster
	propose func(c table.Command) (uint64, error)
	asked   []table.Command
}

func (g *council) Propose(_ context.Context, c table.Command) (uint64, error) {
	g.asked = append(g.asked, c)
	if g.propose != nil {
		return g.propose(c)
	}
	return g.Apply(c)
}

// dead is a cluster of n1 to n4 of which some have died at once. The rows of n1 had n2 as their
// standby, where the ring wants that.
func dead(t *testing.T, of ...int) *council {
	t.Helper()
	g := &council{Cluster: agreed.New(t, 1, agreed.Numbered(4, table.DiskLevel)...)}
	g.Must(table.Command{Adopt: &table.Adopt{Level: table.DiskLevel, Durable: table.Always}})
	n1, n2 := agreed.Nth(1), agreed.Nth(2)
	c := &table.Sync{WantSince: g.Table().WantSince, Owner: n1, Standby: n2, Kept: true}
	for i, r := range g.Table().Rows {
		if owner, standby := g.Table().Wants(r.End); owner == n1 && standby == n2 {
			after, upTo := g.Table().Segment(i)
			c.Rows = append(c.Rows, table.Stamp{After: after, End: upTo, Since: r.Since})
		}
	}
	g.Must(table.Command{Sync: c})
	var all []table.Holder
	for _, i := range of {
		all = append(all, agreed.Nth(i))
	}
	g.Must(table.Command{Remove: &table.Remove{Members: all}})
	return g
}

func give(g *council, ctx context.Context, o Order) (State, error) {
	return (&Giver{Group: g, NewID: func() string { return "id" }}).Give(ctx, o)
}

// TestGive: what an order does is what it says, a dry run does nothing, and what waits for
// another disk goes on waiting.
func TestGive(t *testing.T) {
	g := dead(t, 1, 2)
	both, own := 0, 0 // rows of n1, and those of n2
	for _, c := range g.Table().ColdRows() {
		if !c.Stood.None() {
			both += len(c.Rows)
		} else if c.Was == agreed.Nth(2) {
			own += len(c.Rows)
		}
	}
	if both == 0 || own == 0 {
		t.Fatalf("%d rows wait for two disks, %d for n2's alone", both, own)
	}
	epoch := g.Table().Epoch
	dry, err := give(g, t.Context(), Order{Node: "n2", DryRun: true})
	if err != nil || dry.Rows != both+own || dry.Lost != own || dry.Other != both || !slices.Equal(dry.Incarnations, []uint64{1}) || dry.Epoch != epoch || g.Table().Epoch != epoch {
		t.Fatalf("%+v, %v", dry, err)
	}
	for _, o := range []Order{{Node: "n3"}, {Node: "n9", DryRun: true}, {Node: "n2", Incarnations: []uint64{2}}, {}} {
		if _, err := give(g, t.Context(), o); failure.ReasonOf(err) != failure.UnknownNode {
			t.Errorf("%+v: %v", o, err)
		}
	}
	if len(g.asked) > 0 {
		t.Errorf("%v was proposed", g.asked)
	}
	did, err := give(g, t.Context(), Order{Node: "n2", Incarnations: []uint64{7, 1}, Reason: "test"})
	if dry.Epoch = did.Epoch; err != nil || did.Lost != dry.Lost || did.Other != dry.Other || did.Epoch != g.Table().Epoch {
		t.Fatalf("%+v, %v", did, err)
	}
	lost := 0
	for _, r := range g.Table().Rows {
		if r.Gone == did.Epoch {
			lost++
		}
	}
	if lost != own || len(g.Table().Awaited("n2")) > 0 || len(g.Table().Awaited("n1")) == 0 {
		t.Errorf("%d rows are lost; they wait for %v and %v", lost, g.Table().Awaited("n1"), g.Table().Awaited("n2"))
	}
	if _, err := give(g, t.Context(), Order{Node: "n2"}); failure.ReasonOf(err) != failure.UnknownNode {
		t.Errorf("again: %v", err)
	}
	if last, err := give(g, t.Context(), Order{Node: "n1"}); err != nil || last.Lost != last.Rows || last.Other != 0 || g.Table().Cold() > 0 {
		t.Errorf("%+v, %v", last, err)
	}
}

// TestGiveTellsWhatIsKnown: an order that the leader did not get says that nothing happened, and
// one that it may have got that this is not known.
func TestGiveTellsWhatIsKnown(t *testing.T) {
	for name, c := range map[string]struct {
		propose func(g *council) func(table.Command) (uint64, error)
		why     failure.Reason
	}{
		"no leader": {func(*council) func(table.Command) (uint64, error) {
			return func(table.Command) (uint64, error) { return 0, table.ErrNotProposed }
		}, failure.Unavailable},
		"no answer": {func(*council) func(table.Command) (uint64, error) {
			return func(table.Command) (uint64, error) { return 0, errors.New("cut off") }
		}, failure.OutcomeUnknown},
		"the answer is lost": {func(g *council) func(table.Command) (uint64, error) {
			return func(c table.Command) (uint64, error) { _, _ = g.Apply(c); return 0, errors.New("cut off") }
		}, 0},
		"refused": {func(g *council) func(table.Command) (uint64, error) {
			return func(table.Command) (uint64, error) { return 0, &table.Refused{Why: "a later table"} }
		}, failure.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := dead(t, 1, 2)
				g.propose = c.propose(g)
				began := time.Now()
				s, err := give(g, t.Context(), Order{Node: "n2"})
				if failure.ReasonOf(err) != c.why || (err == nil) != (c.why == 0) || time.Since(began) > patience || s.Rows == 0 {
					t.Errorf("%+v, %v after %s", s, err, time.Since(began))
				}
				for _, asked := range g.asked {
					if asked.ID != "id" {
						t.Errorf("one order, proposed as %q", asked.ID)
					}
				}
			})
		})
	}
}
