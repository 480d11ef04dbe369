package node

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/keystead/keystead/hotkey/home"
	"github.com/keystead/keystead/owner"
)

// rankedKeys is how many of the busiest objects have a metric each, by rank: a person who
// chooses keys must not choose how many series there are.
const rankedKeys = 10

// hotCollector shows Prometheus how busy the busiest objects are.
type hotCollector struct {
	o               *home.Observer
	hot, rate, left *prometheus.Desc
}

func newHotCollector(o *home.Observer) *hotCollector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("keystead_"+name, help, labels, nil)
	}
	return &hotCollector{
		o:    o,
		hot:  desc("hot_keys", "Objects that are hot.", "kind"),
		rate: desc("hot_rate", "Operations a second of the busiest objects, at most, the busiest with rank 1.", "rank"),
		left: desc("hot_left_out_total", "Times that an object was hot enough at a look and there was no room for it."),
	}
}

// Describe implements prometheus.Collector.
func (c *hotCollector) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, ch) }

// Collect implements prometheus.Collector.
func (c *hotCollector) Collect(ch chan<- prometheus.Metric) {
	seen := c.o.Last()
	hot := map[owner.Kind]int{}
	for _, k := range seen.Keys {
		if k.Hot {
			hot[k.Kind]++
		}
	}
	for _, k := range owner.Kinds() {
		ch <- prometheus.MustNewConstMetric(c.hot, prometheus.GaugeValue, float64(hot[k]), k.String())
	}
	for i := range rankedKeys {
		rate := 0.0
		if i < len(seen.Keys) {
			rate = seen.Keys[i].RateMax
		}
		ch <- prometheus.MustNewConstMetric(c.rate, prometheus.GaugeValue, rate, strconv.Itoa(i+1))
	}
	ch <- prometheus.MustNewConstMetric(c.left, prometheus.CounterValue, float64(seen.LeftOut))
}
