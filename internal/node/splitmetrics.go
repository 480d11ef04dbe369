package node

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/keystead/keystead/hotkey/home"
	"github.com/keystead/keystead/ring/epoch/table"
)

// splitCollector shows Prometheus what this node has to do with split objects.
type splitCollector struct {
	c                             *cluster
	h                             *home.Home
	splits, parts, decided, whole *prometheus.Desc
	left                          *prometheus.Desc
}

func newSplitCollector(c *cluster, h *home.Home) *splitCollector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("keystead_"+name, help, labels, nil)
	}
	return &splitCollector{
		c: c, h: h,
		splits:  desc("splits", "Split objects whose key this node owns, by phase.", "phase"),
		parts:   desc("split_parts", "Parts of split objects that this node owns."),
		decided: desc("split_decisions_total", "Decisions of this node about objects whose key it owns: to split one, to divide it anew (another number of parts, or other nodes), to move weight between its parts.", "decision"),
		whole:   desc("split_merges_total", "Split objects that this node has put together again, whatever the reason."),
		left:    desc("split_left_out_total", "Times that an object was to be split and there was no room for it."),
	}
}

// newPauses measures how long objects were not served because they were being divided or
// put together.
func newPauses() *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "keystead_split_pause_seconds",
		Help:    "Time for which a split object's calls have waited, by the phase: opening, until its parts are served; closing, until it is whole.",
		Buckets: []float64{2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5, 1, 2.5},
	}, []string{"phase"})
}

// Describe implements prometheus.Collector.
func (c *splitCollector) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, ch) }

// Collect implements prometheus.Collector.
func (c *splitCollector) Collect(ch chan<- prometheus.Metric) {
	t, self := c.c.Table(), c.c.Self()
	phases, parts := map[table.SplitPhase]int{}, 0
	for i := range t.Splits {
		sp := &t.Splits[i]
		if c.h.Of(t, sp) {
			phases[sp.Phase]++
		}
		for p := range sp.Parts {
			if m, _, ok := t.Owner(sp.PartHash(p)); ok && m.Holder() == self {
				parts++
			}
		}
	}
	for _, phase := range []table.SplitPhase{table.Opening, table.Open, table.Closing} {
		ch <- prometheus.MustNewConstMetric(c.splits, prometheus.GaugeValue, float64(phases[phase]), phase.String())
	}
	ch <- prometheus.MustNewConstMetric(c.parts, prometheus.GaugeValue, float64(parts))
	n := c.h.Counts()
	for decision, n := range map[string]int64{"split": n.Splits, "divide_anew": n.Resizes, "weigh": n.Reweighs} {
		ch <- prometheus.MustNewConstMetric(c.decided, prometheus.CounterValue, float64(n), decision)
	}
	ch <- prometheus.MustNewConstMetric(c.whole, prometheus.CounterValue, float64(n.Merges))
	ch <- prometheus.MustNewConstMetric(c.left, prometheus.CounterValue, float64(n.LeftOut))
}
