package epoch

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
	"github.com/keystead/keystead/ring/epoch/table"
)

// TestNothingBeforeTheRise: a leader that may have to raise the epoch commits nothing
// that others propose before it has.
func TestNothingBeforeTheRise(t *testing.T) {
	t.Parallel()
	g := form(t, newPool(), 1, nil)[0]
	eventually(t, "it takes commands", func() bool {
		_, err := g.Propose(t.Context(), table.Command{Raise: &table.Raise{Above: g.Table().Epoch}})
		return err == nil
	})
	g.risen.Store(0) // as at the beginning of a term
	if e, err := g.Propose(t.Context(), table.Command{Raise: &table.Raise{Above: g.Table().Epoch}}); !errors.Is(err, table.ErrNotProposed) {
		t.Errorf("raised to %d: %v", e, err)
	}
}

// TestFloorOfACandidate: what a node remembers of another life is a floor for the
// cluster that admits it, as far as the clock has come.
func TestFloorOfACandidate(t *testing.T) {
	t.Parallel()
	p := newPool()
	var off atomic.Int64 // of the clock of the first node
	off.Store(int64(-24 * time.Hour))
	first := form(t, p, 1, func(c *Config) {
		c.Wall = func() time.Time { return time.Now().Add(time.Duration(off.Load())) }
	})[0]
	floor := first.Table().Epoch + uint64(12*time.Hour/time.Second)*EpochsPerSecond
	for _, node := range []string{"n2", "n3"} {
		g := join(t, p, node, func(c *Config) { c.EpochFloor = floor })
		tab := until(t, first, "admitted", func(tab *table.Table) bool { return tab.Holds(g.Self()) })
		if is := tab.Epoch >= floor; is != (off.Load() == 0) {
			t.Errorf("%s is admitted in the epoch %d, its floor is %d, the clock's %d", node, tab.Epoch, floor, WallEpoch(first.cfg.Wall()))
		}
		off.Store(0) // the clock is set on
	}
}

// TestAheadOfTheLeader: one that has applied what the leader does not come to know is granted
// nothing any more, also when the leader gets as far.
func TestAheadOfTheLeader(t *testing.T) {
	t.Parallel()
	g := form(t, newPool(), 1, nil)[0]
	h := table.Holder{Node: "n2", Incarnation: 7} // which is not admitted: another node has its hash key
	ask := func(epoch uint64) peerv1.Refusal {
		t.Helper()
		resp, err := g.renew(t.Context(), &peerv1.RenewRequest{Node: h.Node, Incarnation: h.Incarnation, HashKey: "n1", Epoch: epoch, Level: table.Level})
		if err != nil {
			t.Fatal(err)
		}
		return resp.Refusal
	}
	const never = 1 << 38
	for _, applied := range []uint64{g.Table().Epoch + 1, never} {
		if why := ask(applied); why != peerv1.Refusal_REFUSAL_NOT_MEMBER {
			t.Errorf("ahead by a moment: %s", why)
		}
		raiseEpoch(t, g)
		if applied != never && ask(0) != peerv1.Refusal_REFUSAL_NOT_MEMBER {
			t.Error("the leader has got there")
		}
	}
	eventually(t, "it follows another history", func() bool { return ask(0) == peerv1.Refusal_REFUSAL_NOT_NOW })
}
