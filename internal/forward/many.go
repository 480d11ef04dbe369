package forward

import (
	"context"
	"sync"
	"time"
)

// Item is a call among others.
type Item struct {
	At   int // its place among them
	Call *Call
	Ctx  context.Context // its own, which ends before that of all; nil = it has none
}

// Departed are calls on their way to the owners of their keys.
type Departed struct {
	r        *Router
	items    []Item
	routes   []*route
	attempts []*Attempt // the first ones; nil = none was made
}

// Depart passes items on to the owners of their keys, all at once.
func (r *Router) Depart(ctx context.Context, items []Item) Departed {
	if len(items) == 0 {
		return Departed{}
	}
	began := time.Now()
	d := Departed{r, items, make([]*route, len(items)), make([]*Attempt, len(items))}
	t, self := r.cfg.Cluster.Table(), r.cfg.Cluster.Self()
	for n, x := range items {
		of := ctx
		if x.Ctx != nil {
			of = x.Ctx
		}
		rt := newRoute(of, r, x.Call, began)
		d.routes[n] = rt
		sp, err := rt.aim(t)
		if err != nil || sp != nil && rt.part == nil {
			continue // it waits, or is for all parts
		}
		if m, since, ok := t.Owner(rt.hash); ok && m.Holder() != self && !rt.stays {
			d.attempts[n] = rt.send(m, max(since, sinceOf(sp)))
		}
	}
	return d
}

// Arrive waits for items that have departed, tries those again for which that is
// due, and hands over what became of each.
func (d Departed) Arrive(put func(at int, m Message, err error)) {
	items, routes, attempts := d.items, d.routes, d.attempts
	over := time.Now().Add(MaxAwait) // this node may have waited for copies meanwhile
	answers, failures := make([]Message, len(items)), make([]error, len(items))
	var again [][]int         // what has to be tried again, by key
	place := map[uint64]int{} // of a key in again
	for n, rt := range routes {
		rt.over = over
		retry := attempts[n] == nil
		if !retry {
			answers[n], retry, failures[n] = rt.conclude(attempts[n])
			rt.later = true
			if failures[n] != nil {
				failures[n] = rt.unknownIfSent(failures[n])
			}
		}
		if !retry {
			continue
		}
		at, ok := place[rt.hash]
		if !ok {
			at = len(again)
			place[rt.hash], again = at, append(again, nil)
		}
		again[at] = append(again[at], n)
	}
	slots := make(chan struct{}, maxRetries)
	var wg sync.WaitGroup
	for _, key := range again {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			for _, n := range key { // in order
				answers[n], failures[n] = routes[n].run()
			}
		})
	}
	wg.Wait()
	for n, x := range items {
		put(x.At, answers[n], failures[n])
	}
}

// maxRetries bounds the keys of a batch that are tried again at once.
const maxRetries = 64
