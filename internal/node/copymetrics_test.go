package node

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"github.com/keystead/keystead/handoff"
	"github.com/keystead/keystead/internal/tests/agreed"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/counter"
	"github.com/keystead/keystead/owner/reqid"
	"github.com/keystead/keystead/ring/epoch/serving"
	"github.com/keystead/keystead/ring/epoch/table"
)

// TestCopyMetrics shows a copy to a node that is not reached: it has sent what fits
// a stream, and no more.
func TestCopyMetrics(t *testing.T) {
	tab := agreed.Ring(t, 2)
	rule := serving.New(table.Holder{Node: "n1", Incarnation: 1})
	s := &state{frozen: newFreezes()}
	began := time.Now()
	s.source = handoff.New(handoff.Config{
		Dial: func(context.Context, table.Holder) (grpc.ClientConnInterface, error) {
			return nil, errors.New("not reached")
		},
		Propose: func(ctx context.Context, _ table.Command) (uint64, error) { <-ctx.Done(); return 0, ctx.Err() },
		Rule:    rule, NewID: func() string { return "" }, Now: func() int64 { return int64(time.Since(began)) },
		Log: slog.New(slog.DiscardHandler),
	})
	store, err := owner.New(owner.Config{Rule: &standalone{}, Sink: s.source}, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.Add(0, owner.Ref{Key: "k"}, reqid.ID{}, counter.AddOp{Delta: 1}); err != nil {
		t.Fatal(err)
	}
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(newCopyCollector(s))
	if got := gathered(t, reg); got["keystead_copies"] != 0 || got["keystead_frozen_seconds"] != 0 {
		t.Errorf("before: %v", got)
	}
	s.source.Learn(tab)
	rule.Learn(tab)
	rule.Cleaned(tab.Epoch)
	s.source.Run(store)
	defer s.source.Close()
	s.frozen.observe(12, 3*time.Millisecond)
	s.frozen.observe(13, time.Millisecond)
	rows, _ := rowsOf(tab, rule.Self())
	want := map[string]float64{
		"keystead_copied_objects_total": 1, "keystead_copies": 1, "keystead_copy_rows n2": float64(rows), "keystead_copy_objects n2": 1,
		"keystead_copy_objects_expected n2": 1, "keystead_frozen_seconds": 2, "keystead_frozen_rows": 2,
		"keystead_rows_copied_total": 0, "keystead_rows_synced_total": 0, "keystead_rows_handed_over_total": 0, "keystead_rows_unsynced_total": 0,
	}
	var got map[string]float64
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline) && got["keystead_copied_objects_total"] == 0; {
		got = gathered(t, reg)
	}
	for name, v := range want {
		if g, ok := got[name]; !ok || g != v {
			t.Errorf("%s is %v, want %v", name, g, v)
		}
	}
	if got["keystead_copied_bytes_total"] < 10 || got["keystead_copy_age_seconds n2"] <= 0 {
		t.Errorf("%v", got)
	}
}

// gathered returns the values of a registry by name and label; of a histogram the
// count.
func gathered(t *testing.T, reg *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			name := f.GetName()
			for _, l := range m.Label {
				name += " " + l.GetValue()
			}
			switch f.GetType().String() {
			case "HISTOGRAM":
				values[name] = float64(m.Histogram.GetSampleCount())
			case "COUNTER":
				values[name] = m.Counter.GetValue()
			default:
				values[name] = m.Gauge.GetValue()
			}
		}
	}
	return values
}
