package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/keystead/keystead/internal/clock"
	"github.com/keystead/keystead/internal/tests/nemesis/cluster"
	"github.com/keystead/keystead/internal/tests/nemesis/fault"
	"github.com/keystead/keystead/internal/tests/nemesis/judge"
	"github.com/keystead/keystead/internal/tests/nemesis/workload"
)

// Bounds of the steps of a history.
const (
	readyTime = 30 * time.Second
	// standbyTime is how long a new cluster has to get its standbys. One that has
	// none by then is taken for one that keeps none.
	standbyTime = 6 * time.Second
	// calm is before the first fault and after the last one.
	calm      = time.Second
	pollEvery = 50 * time.Millisecond
	// wholeTime is how long it may take until all objects are whole at the end.
	wholeTime = 30 * time.Second
)

// history makes one history on a cluster of its own, and judges it.
func (s *settings) history(ctx context.Context, seed uint64, dir string) (r report, err error) {
	r.Seed = seed
	home := filepath.Join(dir, fmt.Sprint("history-", seed))
	if err := os.RemoveAll(home); err != nil { // of an earlier run
		return r, err
	}
	if err := os.MkdirAll(home, 0o755); err != nil {
		return r, err
	}
	c, err := cluster.Start(cluster.Config{Binary: s.binary, Dir: home, Nodes: s.nodes, Lease: s.lease, Flags: s.flags,
		Islands: fault.Any(s.kinds, fault.Islands), Proxied: fault.Any(s.kinds, fault.Proxied),
		Disks: fault.Any(s.kinds, fault.Disked)})
	if err != nil {
		return r, err
	}
	defer c.Close()
	r.Kept = home
	stalled := watchStalls()
	k, noLoss, err := s.record(ctx, c, seed, &r)
	r.Stalled = stalled()
	if err != nil {
		return r, err
	}
	c.Close() // the checks need the processor
	limits := s.limits
	// On a machine that stalls a standby is taken out that does not keep up, and what
	// the next fault hits may stand alone.
	limits.NoLoss = noLoss && (r.Stalled == 0 || s.noLoss != nil)
	limits.Served, limits.Pause = limits.Served+r.Stalled, limits.Pause+r.Stalled
	r.Result = judge.Judge(k, limits)
	if r.Verdict.Fails() {
		return r, judge.Keep(home, k, r.Result)
	}
	r.Kept = ""
	if s.keep == "" {
		return r, os.RemoveAll(home)
	}
	return r, nil
}

// levelTime is how long the cluster may take to use what its nodes know: it does ten
// seconds after its last change.
const levelTime = 30 * time.Second

// record lets clients work while faults happen.
func (s *settings) record(ctx context.Context, c *cluster.Cluster, seed uint64, r *report) (k judge.Case, noLoss bool, err error) {
	begun, standbys, err := s.ready(ctx, c)
	if err != nil {
		return k, false, fmt.Errorf("the cluster does not get ready: %w", err)
	}
	r.Standbys = standbys
	level, cancel := context.WithTimeout(ctx, levelTime)
	err = c.AwaitLevel(level)
	cancel()
	if err != nil {
		return k, false, err
	}
	now := clock.System().Now
	w, err := workload.Start(workload.Config{Clients: s.clients, Keys: s.keys, Kinds: s.objects, Seed: seed, Now: now, Splits: fault.Any(s.kinds, fault.Ordered),
		Nodes: func() int { return len(c.Nodes()) }, Connect: func() ([]*grpc.ClientConn, error) { return connect(c) }})
	if err != nil {
		return k, false, err
	}
	orders := fault.NewOrderer(fault.OrdererConfig{Cluster: c, Now: now, Seed: seed, Kinds: s.kinds, Objects: splittable(w)})
	end := s.order(ctx, orders)
	noLoss = s.harm(ctx, c, w, seed, standbys, &k)
	end(&k)
	rest(ctx, calm)
	s.served(ctx, w, now)
	k.Record = w.Stop()
	r.Events, r.Orders = k.Events, k.Orders
	r.ByParts = k.Record.ByParts()
	r.Operations, r.Unknown, r.Open = k.Record.Operations, k.Record.Lost, k.Record.Open
	bounded, cancel := context.WithTimeout(ctx, readyTime)
	defer cancel()
	last, err := c.Await(bounded, false)
	if err != nil {
		k.Trouble = append(k.Trouble, "at the end: "+err.Error())
		if last, err = c.Inspect(bounded); err != nil {
			k.Trouble = append(k.Trouble, err.Error()) // and what was lost is not known
		}
	}
	k.Moved = last.Epoch != begun.Epoch
	k.LostRows = last.LostRows(begun.Epoch)
	k.Lost = func(key string) bool { return last.Lost(key, begun.Epoch) }
	return k, noLoss, nil
}

// ready waits until the cluster serves, and looks whether it keeps standbys.
func (s *settings) ready(ctx context.Context, c *cluster.Cluster) (cluster.View, bool, error) {
	bounded, cancel := context.WithTimeout(ctx, readyTime)
	defer cancel()
	v, err := c.Await(bounded, false)
	if err != nil || s.nodes == 1 || s.noStandbys {
		return v, false, err
	}
	short, end := context.WithTimeout(bounded, standbyTime)
	defer end()
	with, err := c.Await(short, true)
	if err != nil {
		s.noStandbys = v.Bare == v.Rows // so that the next history need not wait
		return v, false, bounded.Err()
	}
	return with, true, nil
}

// harm does faults until the time is over, and reports whether a loss is a failure.
func (s *settings) harm(ctx context.Context, c *cluster.Cluster, w *workload.Workload, seed uint64, standbys bool, k *judge.Case) (noLoss bool) {
	noLoss = true
	defer func() {
		if s.noLoss != nil {
			noLoss = *s.noLoss
		}
	}()
	end := time.Now().Add(s.length)
	kinds := fault.Without(s.kinds, fault.Ordered)
	if len(kinds) == 0 {
		rest(ctx, s.length)
		return noLoss
	}
	drawer := fault.NewDrawer(seed, kinds, s.nodes, c.Lease())
	x := fault.Injector{Cluster: c, Now: clock.System().Now, Keys: keys(w), Standbys: standbys}
	for rest(ctx, calm) && time.Now().Before(end) {
		f := drawer.Next()
		noLoss = noLoss && (f.Gentle() || s.durable == "always" && f.LeavesDisks())
		e, err := x.Do(ctx, f)
		k.Events = append(k.Events, e)
		if err != nil {
			break // the event says why
		}
	}
	return noLoss
}

// keys returns those of all objects.
func keys(w *workload.Workload) (all []string) {
	for _, o := range w.Objects() {
		all = append(all, o.Key)
	}
	return all
}

// splittable returns the objects that can be split.
func splittable(w *workload.Workload) (all []fault.Object) {
	for _, o := range w.Objects() {
		if o.Kind.Splits {
			all = append(all, fault.Object{Kind: o.Kind.Of.String(), Key: o.Key})
		}
	}
	return all
}

// order has objects split and made whole until end is called. That makes all of them
// whole, and tells the case what was ordered.
func (s *settings) order(ctx context.Context, o *fault.Orderer) (end func(k *judge.Case)) {
	giving, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { o.Run(giving) })
	return func(k *judge.Case) {
		stop()
		wg.Wait()
		bounded, cancel := context.WithTimeout(ctx, wholeTime)
		defer cancel()
		if err := o.MakeWhole(bounded); err != nil {
			k.Trouble = append(k.Trouble, err.Error())
		}
		k.Orders = o.Orders()
	}
}

// served waits until each object was served since now, or will not be.
func (s *settings) served(ctx context.Context, w *workload.Workload, now func() int64) {
	since := now()
	for end := time.Now().Add(s.limits.Served + calm); len(w.Unserved(since)) > 0 && time.Now().Before(end); {
		if !rest(ctx, pollEvery) {
			return
		}
	}
}

// connect connects to all nodes.
func connect(c *cluster.Cluster) (conns []*grpc.ClientConn, err error) {
	for _, n := range c.Nodes() {
		conn, err := c.Connect(n)
		if err != nil {
			for _, open := range conns {
				_ = open.Close()
			}
			return nil, err
		}
		conns = append(conns, conn)
	}
	return conns, nil
}

// rest waits; false if ctx ends before.
func rest(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
