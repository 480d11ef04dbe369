package fault

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/keystead/keystead/internal/tests/nemesis/cluster"
)

// Injector does faults to a cluster, one at a time.
type Injector struct {
	Cluster *cluster.Cluster
	// Now is the clock of the history, in ns.
	Now func() int64
	// Keys are those of the history: their owners are victims by preference.
	Keys []string
	// Standbys reports whether the cluster keeps synced standbys: a fault is over
	// when all rows have one again.
	Standbys bool

	joined []*cluster.Node // nodes that came by Join and run
}

// Event is a fault that was done. Times are by the clock of the history.
type Event struct {
	Fault   Fault    `json:"fault"`
	Victims []string `json:"victims"` // nodes that were harmed
	From    int64    `json:"from"`
	Healed  int64    `json:"healed"`  // from here on all nodes are well
	Settled int64    `json:"settled"` // … and the cluster is as before, or it was given up
	// Untouched are keys whose owner before was not harmed, nor the leader: they
	// have no reason to pause.
	Untouched []string `json:"untouched"`
	// Skipped says why the fault could not be done at all.
	Skipped string `json:"skipped,omitempty"`
	// Trouble is what should not happen: a node that does not stop or drain, a
	// cluster that does not recover.
	Trouble string `json:"trouble,omitempty"`
}

// Bounds of the steps. A stop drains itself first, for 30 s at most.
const (
	viewTime    = 10 * time.Second
	stopTime    = 45 * time.Second
	drainTime   = 30 * time.Second
	recoverTime = 30 * time.Second
	// slowTime is how long links are slow before a SlowKill kills.
	slowTime = time.Second
	// mostJoined is how many nodes are added before they leave again.
	mostJoined = 2
)

// Do does a fault, heals it, and waits until the cluster has recovered. The error
// is ctx's end, or that nothing can go on.
func (x *Injector) Do(ctx context.Context, f Fault) (Event, error) {
	look, cancel := context.WithTimeout(ctx, viewTime)
	view, err := x.awaitView(look)
	cancel()
	if err != nil {
		return Event{Fault: f, Trouble: err.Error()}, fmt.Errorf("fault: before %s: %w", f, err)
	}
	victims := x.victims(f, view)
	e := Event{Fault: f, From: x.Now()}
	if e.Skipped = x.cannot(f, victims); e.Skipped != "" {
		e.Healed, e.Settled = e.From, e.From
		return e, nil
	}
	leaves := f.Kind == Join && len(x.joined) >= mostJoined
	switch {
	case leaves:
		victims = x.joined[len(x.joined)-1:]
	case f.Kind == Join:
		victims = nil
	case f.Kind == StopAll || f.Kind == KillAll:
		victims = x.Cluster.Running()
	}
	for _, v := range victims {
		e.Victims = append(e.Victims, v.ID)
	}
	e.Untouched = x.untouched(view, e.Victims)
	trouble := x.do(ctx, f, victims, leaves)
	e.Healed = x.Now()
	if errors.Is(trouble, cluster.ErrUnsupported) {
		e.Skipped, e.Settled = trouble.Error(), e.Healed
		return e, ctx.Err()
	}
	settle, cancel := context.WithTimeout(ctx, recoverTime)
	defer cancel()
	if _, err := x.Cluster.Await(settle, x.Standbys); err != nil {
		trouble = errors.Join(trouble, fmt.Errorf("fault: not recovered: %w", err))
	}
	e.Settled = x.Now()
	if trouble != nil && ctx.Err() == nil {
		e.Trouble = trouble.Error()
	}
	return e, ctx.Err()
}

// awaitView waits until somebody knows the cluster.
func (x *Injector) awaitView(ctx context.Context) (cluster.View, error) {
	for {
		v, err := x.Cluster.Inspect(ctx)
		if err == nil || !rest(ctx, 50*time.Millisecond) {
			return v, err
		}
	}
}

// victims returns the nodes to harm: the one of the role, and those after it.
func (x *Injector) victims(f Fault, view cluster.View) []*cluster.Node {
	running := x.Cluster.Running()
	if len(running) == 0 {
		return nil
	}
	id := ""
	switch {
	case f.Role == Leader:
		id = view.Leader
	case f.Role == Owner && len(x.Keys) > 0:
		id = view.Owner(x.Keys[f.Draw%len(x.Keys)])
	}
	first := slices.IndexFunc(running, func(n *cluster.Node) bool { return n.ID == id })
	if first < 0 {
		first = f.Draw % len(running)
	}
	var victims []*cluster.Node
	for i := range min(f.Victims, len(running)) {
		victims = append(victims, running[(first+i)%len(running)])
	}
	return victims
}

// cannot says why a fault cannot be done, "" if it can.
func (x *Injector) cannot(f Fault, victims []*cluster.Node) string {
	switch {
	case len(victims) == 0:
		return "no node runs"
	case slices.Contains(Islands, f.Kind) && !x.Cluster.Islands():
		return "the nodes are not on islands"
	case slices.Contains(Proxied, f.Kind) && !x.Cluster.Proxied():
		return "the links cannot be slowed down"
	case slices.Contains(Disked, f.Kind) && !x.Cluster.Disks():
		return "the nodes have no disks of their own"
	case slices.Contains([]Kind{Drain, Stop, KillLeader, Partition, Oneway, RaftPort}, f.Kind) && len(x.Cluster.Running()) < 3,
		f.Kind == HungKill && len(x.Cluster.Running()) < 5:
		return "there are too few nodes"
	}
	return ""
}

// untouched returns the keys that have no reason to pause.
func (x *Injector) untouched(view cluster.View, victims []string) []string {
	if slices.Contains(victims, view.Leader) || len(victims) > (len(x.Cluster.Running())-1)/2 {
		return nil // of the leader, and of a majority, all leases depend
	}
	var keys []string
	for _, key := range x.Keys {
		if !slices.Contains(victims, view.Owner(key)) {
			keys = append(keys, key)
		}
	}
	return keys
}

// do does a fault and heals it. It heals also when ctx ends.
func (x *Injector) do(ctx context.Context, f Fault, victims []*cluster.Node, leaves bool) error {
	switch f.Kind {
	case Kill, Wipe:
		return x.kill(ctx, f, victims)
	case Pause:
		return x.pause(ctx, f, victims)
	case Stop:
		err := victims[0].Terminate(stopTime, f.again())
		rest(ctx, f.For)
		return errors.Join(err, victims[0].Start())
	case StopAll:
		return x.stopAll(ctx, f, victims)
	case KillAll:
		return x.killAll(ctx, f, victims)
	case Join:
		if leaves {
			x.joined = x.joined[:len(x.joined)-1]
			return victims[0].Terminate(stopTime, 0)
		}
		return x.join()
	case Drain:
		return x.drain(ctx, f, victims[0])
	case Slow:
		slow(victims, f.Late)
		rest(ctx, f.For)
		slow(victims, 0)
		return nil
	case SlowKill:
		all := x.Cluster.Running()
		slow(all, f.Late)
		rest(ctx, slowTime)
		err := x.kill(ctx, f, victims)
		slow(all, 0)
		return err
	case KillLeader:
		err := x.join()
		rest(ctx, f.Late)
		// Who leads may have changed; the one that led is killed all the same.
		return errors.Join(err, x.kill(ctx, f, victims))
	case Partition, Oneway, RaftPort:
		return x.cut(ctx, f, victims[0])
	case FullDisk:
		return x.disk(ctx, f, victims[0], victims[0].Fill)
	case HungDisk, HungKill:
		return x.disk(ctx, f, victims[0], victims[0].Hang)
	}
	return fmt.Errorf("fault: unknown kind %q", f.Kind)
}

// stopAll tells nodes to stop at once, and starts them one after the other within
// the fault's time.
func (x *Injector) stopAll(ctx context.Context, f Fault, nodes []*cluster.Node) error {
	errs := make([]error, len(nodes))
	var ends sync.WaitGroup
	for i, n := range nodes {
		ends.Go(func() { errs[i] = n.Terminate(stopTime, f.again()) })
	}
	ends.Wait()
	return errors.Join(errors.Join(errs...), startAll(ctx, f, nodes))
}

// killAll kills nodes at once, and starts them one after the other within the fault's time.
func (x *Injector) killAll(ctx context.Context, f Fault, nodes []*cluster.Node) (err error) {
	for _, n := range nodes {
		err = errors.Join(err, n.Kill())
	}
	return errors.Join(err, startAll(ctx, f, nodes))
}

func startAll(ctx context.Context, f Fault, nodes []*cluster.Node) (err error) {
	for i := range nodes {
		err = errors.Join(err, nodes[(f.Draw+i)%len(nodes)].Start())
		rest(ctx, f.For/time.Duration(len(nodes)))
	}
	return err
}

func slow(nodes []*cluster.Node, by time.Duration) {
	for _, n := range nodes {
		n.Slow(by)
	}
}

func (x *Injector) join() error {
	n, err := x.Cluster.Join()
	if err == nil {
		x.joined = append(x.joined, n)
	}
	return err
}

func (x *Injector) kill(ctx context.Context, f Fault, victims []*cluster.Node) (err error) {
	for _, v := range victims {
		err = errors.Join(err, v.Kill())
	}
	rest(ctx, f.For)
	for _, v := range victims {
		if f.Kind == Wipe {
			err = errors.Join(err, v.Wipe())
		}
		err = errors.Join(err, v.Start())
	}
	return err
}

func (x *Injector) pause(ctx context.Context, f Fault, victims []*cluster.Node) (err error) {
	for _, v := range victims {
		err = errors.Join(err, v.Pause(true))
	}
	rest(ctx, f.For)
	for _, v := range victims {
		err = errors.Join(err, v.Pause(false))
	}
	return err
}

func (x *Injector) drain(ctx context.Context, f Fault, n *cluster.Node) error {
	bounded, cancel := context.WithTimeout(ctx, drainTime)
	defer cancel()
	if err := x.Cluster.Drain(bounded, n); err != nil {
		return err
	}
	err := x.Cluster.AwaitDrained(bounded, n)
	rest(ctx, f.For)
	back, end := context.WithTimeout(context.WithoutCancel(ctx), drainTime)
	defer end()
	return errors.Join(err, x.Cluster.Undrain(back, n))
}

// again returns when a stopped process is signalled for the second time, 0 for not at all.
func (f Fault) again() time.Duration {
	if !f.Reverse {
		return 0
	}
	return time.Duration(1+f.Draw%4) * time.Millisecond
}

// disk harms the disk of a node, and heals it. A process that has ended by that is
// started again. HungKill kills the node after the victim meanwhile.
func (x *Injector) disk(ctx context.Context, f Fault, n *cluster.Node, harm func(on bool) error) error {
	err := harm(true)
	var killed *cluster.Node
	if f.Kind == HungKill {
		running := x.Cluster.Running()
		killed = running[(slices.Index(running, n)+1)%len(running)]
		err = errors.Join(err, killed.Kill())
	}
	rest(ctx, f.For)
	err = errors.Join(err, harm(false))
	if killed != nil {
		err = errors.Join(err, killed.Start())
	}
	if !n.Runs() {
		err = errors.Join(err, n.Start())
	}
	return err
}

// cut cuts a node off from all others, in both directions or in one.
func (x *Injector) cut(ctx context.Context, f Fault, n *cluster.Node) error {
	set := func(on bool) (err error) {
		for _, o := range x.Cluster.Running() {
			if o == n {
				continue
			}
			if f.Kind == RaftPort {
				err = errors.Join(err, x.Cluster.CutRaft(n, o, on))
				continue
			}
			if f.Kind == Partition || !f.Reverse {
				err = errors.Join(err, x.Cluster.Cut(n, o, on))
			}
			if f.Kind == Partition || f.Reverse {
				err = errors.Join(err, x.Cluster.Cut(o, n, on))
			}
		}
		return err
	}
	err := set(true)
	rest(ctx, f.For)
	return errors.Join(err, set(false))
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
