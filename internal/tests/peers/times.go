package main

import (
	"context"
	"slices"
)

// span is how long something took, each time.
type span struct {
	What   string    `json:"what"`
	System string    `json:"system"`
	Median float64   `json:"median_ms"`
	Most   float64   `json:"most_ms"`
	Rounds []float64 `json:"rounds_ms"`
}

// kills is how many leaders are killed.
const kills = 5

// timeAll measures what is a time and not a rate.
func timeAll(ctx context.Context, c *clients, progress func(string)) (all []span, err error) {
	s := c.servers
	for _, m := range []struct {
		what, system string
		times        func() ([]float64, error)
	}{
		{told, etcd, func() ([]float64, error) { return fanOut(ctx, c, watchers, puts, etcdWatch, etcdSet) }},
		{told, oneNode, func() ([]float64, error) { return fanOut(ctx, c, watchers, puts, keysteadWatch, keysteadSet) }},
		{failedOver, etcd, func() ([]float64, error) { return failovers(ctx, kills, etcd, s.etcd) }},
		{failedOver, oneNode, func() ([]float64, error) { return failovers(ctx, kills, keystead, s.node) }},
		{failedOver, threeNodes, func() ([]float64, error) { return failovers(ctx, kills, keystead, s.three...) }},
	} {
		progress(m.what + ", " + m.system)
		rounds, err := m.times()
		if err != nil {
			return nil, err
		}
		all = append(all, span{m.what, m.system, median(rounds), slices.Max(rounds), rounds})
	}
	return all, nil
}

// timeRatios returns what of these is compared.
func timeRatios(spans []span) (all []ratio) {
	find := func(what, system string) result {
		i := slices.IndexFunc(spans, func(s span) bool { return s.What == what && s.System == system })
		return result{Rounds: spans[i].Rounds}
	}
	for _, x := range [][2]string{{told, oneNode}, {failedOver, oneNode}, {failedOver, threeNodes}} {
		all = append(all, compare(x[0]+": time", x[1], etcd, find(x[0], x[1]), find(x[0], etcd), false))
	}
	return all
}
