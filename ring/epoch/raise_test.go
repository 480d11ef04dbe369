package epoch

import (
	"context"
	"testing"
	"time"

	"github.com/keystead/keystead/ring/epoch/table"
)

func TestOnlyRaised(t *testing.T) {
	t.Parallel()
	n1 := table.Member{Node: "n1", Incarnation: 1, HashKey: "n1"}
	was := (*table.Table)(nil)
	for _, step := range []struct {
		table.Command
		only bool
	}{
		{table.Command{Init: &table.Init{Cluster: "c", Epoch: 7}}, false},
		{table.Command{Raise: &table.Raise{Above: 7}}, true},
		{table.Command{Admit: &table.Admit{Member: n1}}, false},
		{table.Command{Begin: &table.Begin{Want: []table.Holder{n1.Holder()}}}, false},
		{table.Command{Raise: &table.Raise{Above: 10}}, true},
		{table.Command{End: &table.End{Transition: 10}}, false},
		{table.Command{Raise: &table.Raise{Above: 12}}, true},
		{table.Command{Resume: &table.Resume{Member: table.Member{Node: "n1", Incarnation: 3}, Old: 1}}, false},
	} {
		before := was
		if before == nil {
			before = &table.Table{}
		}
		is, err := before.Apply(step.Command)
		if err != nil {
			t.Fatalf("%s: %v", step.Kind(), err)
		}
		if got := onlyRaised(was, is); got != step.only {
			t.Errorf("%s: %v", step.Kind(), got)
		}
		was = is
	}
}

// TestPlansDoNotWaitForRaises: a leader that waits until nothing changes is not
// held up by nodes that raise the epoch again and again.
func TestPlansDoNotWaitForRaises(t *testing.T) {
	t.Parallel()
	groups := form(t, newPool(), 3, nil)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	raises := 0
	done := make(chan struct{})
	stop := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(CompactAfter / 10)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
			case <-stop:
				return
			}
			if _, err := groups[0].Propose(ctx, table.Command{Raise: &table.Raise{Above: groups[0].Table().Epoch}}); err == nil {
				raises++
			}
		}
	}()
	if _, err := groups[0].Propose(ctx, table.Command{Drain: &table.Drain{Member: groups[2].Self()}}); err != nil {
		t.Error(err)
	}
	until(t, groups[1], "the rows of the one that has left are joined", func(t *table.Table) bool { return len(t.Rows) == 2*256 })
	close(stop)
	if <-done; raises < 5 {
		t.Errorf("the epoch was raised %d times", raises)
	}
}
