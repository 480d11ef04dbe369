package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"path/filepath"
	"time"

	"github.com/keystead/keystead/handoff/disk/statefile"
	"github.com/keystead/keystead/handoff/record"
	"github.com/keystead/keystead/internal/clock"
	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/ring"
	"github.com/keystead/keystead/ring/epoch"
	"github.com/keystead/keystead/ring/epoch/table"
)

// findState opens the state that an earlier process left in the data directory,
// nil if there is none that this one may go on from. fits says why it may not. A
// file that is of no use is put aside, never deleted.
func findState(dir string, log *slog.Logger, fits func(statefile.Header) error) (*statefile.State, error) {
	if dir == "" {
		return nil, nil
	}
	s, err := statefile.Open(dir)
	if errors.Is(err, statefile.ErrDamaged) {
		log.Error("the state of the last process is not used: limits, counters and locks begin anew", "why", err, "kept in", statefile.Refused)
		return nil, nil
	}
	if errors.Is(err, statefile.ErrNewer) {
		err = fmt.Errorf("%w: start that program, or move %s away if nobody minds what is in it", err, filepath.Join(dir, statefile.Name))
	}
	if s == nil || err != nil {
		return nil, err
	}
	if err := fits(s.Header); err != nil {
		log.Error("the state of the last process is not used: limits, counters and locks begin anew", "why", err, "kept in", statefile.Refused)
		return nil, s.Refuse()
	}
	return s, nil
}

// loadState puts a state into a store that nobody uses yet.
func loadState(s *statefile.State, store *owner.Store, c clock.Clock, log *slog.Logger) error {
	began, n := time.Now(), 0
	var r owner.Record
	err := s.Records(func(b []byte) error {
		now := c.Now()
		if err := record.Decode(b, now, &r); err != nil {
			return err
		}
		n++
		return store.Install(now, &r, func(uint64) bool { return true })
	})
	if err != nil {
		return fmt.Errorf("reading the state of the last process: %w", fullHint(err))
	}
	//guard:state-versions s.Header.Versions -> 0
	if err := store.RaiseVersions(s.Header.Versions); err != nil {
		return fmt.Errorf("reading the state of the last process: %w", err)
	}
	log.Info("read the state of the last process", "records", n, "took", time.Since(began).Round(time.Millisecond))
	return nil
}

// fullHint says what to do about a state that does not fit.
func fullHint(err error) error {
	var full *failure.Error
	if errors.As(err, &full) && full.Reason == failure.StoreFull {
		return fmt.Errorf("it does not fit: %w: raise --max-objects or --max-memory to what the last process had", err)
	}
	return err
}

// keepState writes what a store holds, which nobody uses any more, for the next
// process.
func keepState(dir string, h statefile.Header, level uint32, store *owner.Store, c clock.Clock, log *slog.Logger) error {
	began := time.Now()
	h.Versions = store.LastVersion()
	n, err := statefile.Write(dir, h, func(put func([]byte) error) (err error) {
		var b []byte
		store.Export(c.Now, func(uint64) bool { return true }, func(r *owner.Record, now int64) bool {
			b = record.AppendAt(level, b[:0], r, now)
			err = put(b)
			return err == nil
		}, func() bool { return true })
		return err
	})
	if err == nil {
		log.Info("kept the state for the next process", "records", n, "took", time.Since(began).Round(time.Millisecond))
	}
	return err
}

// beginStandalone has a node that runs alone go on from the state of the process before,
// under a higher epoch. Where there was a process before, and it has left no state, its
// loss is declared.
func (n *Node) beginStandalone() error {
	log, now, dir := n.cfg.Log, n.cfg.Clock.Now(), n.cfg.DataDir
	n.rule.start, n.rule.node = now, n.cfg.ID
	if n.cfg.Fresh {
		n.rule.start = math.MinInt64 / 2 // below every moment, less every window
	}
	if err := neverInCluster(dir); err != nil {
		return err
	}
	if err := neverAnothers(dir, n.cfg.ID, n.diskOf()); err != nil {
		return err
	}
	last, next, err := n.rule.choose(dir, n.cfg.EpochFloor, n.cfg.Wires.Wall())
	if err != nil {
		return err
	}
	s, err := findState(dir, log, func(h statefile.Header) error {
		//guard:state-once
		if h.Epoch != last {
			return fmt.Errorf("it is of epoch %d, and the node has served in epoch %d since", h.Epoch, last)
		}
		return nil
	})
	if err != nil {
		return err
	}
	begin, resumed := n.leaveDisk, false
	if n.rule.keeper != nil {
		begin = n.resume
	}
	if resumed, err = begin(last, next, now, s); err == nil && s != nil {
		err = n.resumeFile(s, now)
	}
	if err != nil {
		if s != nil {
			err = errors.Join(err, s.Close())
		}
		return err
	}
	switch {
	case resumed || s != nil:
	//guard:lone-loss
	case last > 0:
		n.declareLoss(next, now, "the state of the last process is lost: it did not stop in order; limits, counters and locks begin anew")
	case dir != "": // nothing was ever done here
		n.rule.start = math.MinInt64
	}
	return n.beginAs(next, resumed, now, s)
}

// beginAs has the node act under an epoch, with what was found in its store. file is the state file that it is from, if it is.
func (n *Node) beginAs(next uint64, resumed bool, now int64, file *statefile.State) error {
	//guard:disk-epoch-last -> _ = n.rule.set(next)
	n.rule.begins = next
	if n.rule.keeper != nil {
		if err := n.keepOnDisk(resumed); err != nil {
			return err
		}
	}
	if err := n.rule.set(next); err != nil {
		return err
	}
	n.store.Own(now, func(uint64) bool { return true }, owner.OwnGrace)
	if n.cfg.DataDir != "" {
		n.clearDisk()
	}
	if file != nil {
		return file.Done()
	}
	return nil
}

// resumeFile has a node that runs alone go on from a state file.
func (n *Node) resumeFile(s *statefile.State, now int64) error {
	if err := loadState(s, n.store, n.cfg.Clock, n.cfg.Log); err != nil {
		return err
	}
	if n.rule.start = math.MinInt64; s.Header.Unknown > 0 {
		n.rule.start = now - s.Header.Unknown
	}
	n.rule.lost, n.rule.lostUntil = s.Header.Lost, now+s.Header.LostLeft
	return nil
}

// declareLoss says that what the process before had is lost: it has served, and did not
// stop in order. Answers name the loss for as long as locks of before may be held. There
// is no grace period: those locks are granted anew, under higher tokens.
func (n *Node) declareLoss(epoch uint64, now int64, what string) {
	n.rule.lost, n.rule.lostUntil = epoch, now+cmp.Or(n.cfg.Store.MaxLockTTL, int64(DefaultLockTTL))
	n.lostRows = ring.PointsPerNode
	n.cfg.Log.Warn(what, "data directory", n.cfg.DataDir, "epoch", epoch)
}

// lossWarning returns what the status says of a declared loss; "" if there was none, or it is
// long ago.
func (n *Node) lossWarning() (problem, hint string) {
	if n.rule == nil || n.rule.lost == 0 || n.cfg.Clock.Now() >= n.rule.lostUntil {
		return "", ""
	}
	if n.restored != 0 {
		return fmt.Sprintf("restored in epoch %d from a backup of %s: what was answered since is lost", n.rule.lost, dateOf(n.restored)),
			"tell the users of counters and quotas; answers name the loss for --max-lock-ttl"
	}
	if n.keeper() != nil && n.lossPartial {
		return fmt.Sprintf("the last process did not stop in order, in epoch %d: what it answered in its last %s may be lost, and what it did not keep on disk is", n.rule.lost, n.keeper().Status().Settings.Interval),
			"--durability always loses nothing that was answered; answers name the loss for --max-lock-ttl"
	}
	if n.lostRows == 0 { // by a process before the last one, which has told this one of it
		return fmt.Sprintf("state of an earlier process was lost in epoch %d, all of it or what it had answered last", n.rule.lost),
			"answers name the loss for --max-lock-ttl"
	}
	return fmt.Sprintf("the state of the last process was lost in epoch %d: counters, limits and locks began anew", n.rule.lost),
		"stop it with SIGTERM, and it keeps its state; answers name the loss for --max-lock-ttl"
}

// keepStandalone writes the state of a node that runs alone.
func (n *Node) keepStandalone() {
	if k := n.keeper(); k != nil && !n.killed.Load() {
		n.keeps.finish(k)
		return
	}
	if n.killed.Load() || n.cfg.DataDir == "" {
		return
	}
	head := func() statefile.Header {
		now := n.cfg.Clock.Now()
		h := statefile.Header{Node: n.cfg.ID, Epoch: n.rule.epoch.Load(), Version: n.cfg.Version}
		if n.rule.start != math.MinInt64 {
			h.Unknown = max(1, now-n.rule.start)
		}
		if left := n.rule.lostUntil - now; n.rule.lost != 0 && left > 0 {
			h.Lost, h.LostLeft = n.rule.lost, left
		}
		return h
	}
	//guard:state-forms record.Level -> 0
	n.keeps.keep(head, record.Level, n.store)
}

// findState looks for the state of an earlier process of this node in its cluster.
func (c *cluster) findState() (err error) {
	c.saved, err = findState(c.cfg.DataDir, c.log, func(h statefile.Header) error {
		if h.Cluster != c.self.Cluster || h.UID != c.self.UID || h.Node != c.self.Node || h.Incarnation == 0 || h.Next == 0 {
			return fmt.Errorf("it is of node %q in cluster %q (%s), not of node %q in cluster %q (%s)", h.Node, h.Cluster, h.UID, c.self.Node, c.self.Cluster, c.self.UID)
		}
		return nil
	})
	return err
}

// restore puts the state of an earlier process into the store. What of it counts,
// the first table decides that names this process.
func (c *cluster) restore(store *owner.Store) error {
	if c.disk != nil {
		return c.disk.begin(store)
	}
	if c.saved == nil {
		return nil
	}
	if err := loadState(c.saved, store, c.cfg.Clock, c.log); err != nil {
		return err
	}
	c.serving.Load(c.saved.Header.Epoch)
	return nil
}

// laterOf puts a state file aside that was written before what the store on disk has: a process has acted
// since.
func (c *cluster) laterOf() error {
	//guard:disk-after-file c.disk.found.Epoch <= c.saved.Header.Epoch -> true
	if c.saved == nil || c.disk == nil || c.disk.found.Epoch <= c.saved.Header.Epoch || c.disk.hasFile() {
		return nil
	}
	c.log.Error("the state file of an earlier process is not used: another one has kept a store on disk since", "kept in", statefile.Refused)
	saved := c.saved
	c.saved = nil
	return saved.Refuse()
}

// resumed is called before the node goes by a table that names it: the state must
// not be found by another process any more.
func (c *cluster) resumed(t *table.Table) {
	saved, rows := c.saved, 0
	c.saved = nil
	for _, r := range t.Rows {
		if r.Owner == c.serving.Self() && r.Lost <= saved.Header.Epoch {
			rows++
		}
	}
	end := saved.Done
	if rows > 0 {
		c.log.Info("goes on from the state of the last process", "rows", rows, "epoch", t.Epoch)
	} else {
		end = saved.Refuse
		c.log.Warn("the state of the last process does not count: it came too late, and others have taken over what that process owned", "kept in", statefile.Refused)
	}
	if err := end(); err != nil {
		c.serving.Quiet()
		c.serving.Extend(0)
		select {
		case c.broken <- fmt.Errorf("the state of the last process cannot be removed, and would count again: %w", err):
		default:
		}
	}
}

// forgo leaves a state that nobody has acted by to the next process.
func (c *cluster) forgo() {
	if c.saved != nil {
		_ = c.saved.Close()
	}
}

// keep has what this process holds kept for the next one: in the store on disk, where that counts, and in a
// file elsewhere.
func (c *cluster) keep() {
	if c.disk == nil || !c.durable() {
		c.writeState()
	}
	if c.disk != nil {
		ctx, cancel := context.WithTimeout(context.Background(), cleanTime)
		defer cancel()
		_ = c.serving.AwaitClean(ctx, c.group.Table().Epoch) // what is not discarded by then, the head says
		c.disk.finish(c.keeps)
	}
}

// checkDisk is told of each table before the node acts by it. It ends a process whose store is of another cluster.
func (c *cluster) checkDisk(t *table.Table) {
	if c.disk == nil {
		return
	}
	c.disk.learned(t)
	if err := c.disk.ofOthers(t); err != nil {
		c.serving.Quiet()
		c.serving.Extend(0)
		select {
		case c.broken <- err:
		default:
		}
	}
}

// unbegun lets go of what a node holds that does not come so far as to join.
func (c *cluster) unbegun() {
	if !c.begun {
		c.cancel()
		if err := c.abandon(); err != nil {
			c.log.Warn("ending before the node has joined", "error", err)
		}
	}
}

// closeDisk lets go of the disk, if that was not done.
func (c *cluster) closeDisk() {
	if c.disk != nil {
		c.disk.close()
	}
}

// writeState writes down what this process holds, if it still has rows.
func (c *cluster) writeState() {
	t, self := c.group.Table(), c.group.Self()
	if c.cfg.DataDir == "" || !t.Holds(self) {
		return
	}
	if !c.awaitClean(t.Epoch) {
		c.keeps.err = errNotClean
		return
	}
	rows := 0
	for i := range t.Rows {
		if t.MayHold(i, self) {
			rows++
		}
	}
	if rows == 0 {
		return
	}
	next := max(epoch.NewIncarnation(c.cfg.Wires.Wall()), self.Incarnation+2)
	c.keeps.keep(func() statefile.Header {
		return statefile.Header{
			Cluster: c.self.Cluster, UID: t.UID, Node: self.Node, Incarnation: self.Incarnation, Next: next,
			Epoch: t.Epoch, Version: c.cfg.Version,
		}
	}, t.Level, c.store)
}

// errNotClean says why a state was not kept that would count what others have.
var errNotClean = errors.New("what this process has lost is not discarded yet")

// awaitClean waits until what this process has lost is discarded: in the file it
// would count.
func (c *cluster) awaitClean(epoch uint64) bool {
	ctx, cancel := context.WithTimeout(context.Background(), cleanTime)
	defer cancel()
	if c.serving.AwaitClean(ctx, epoch) != nil {
		c.log.Error("the state was not kept for the next process", "why", errNotClean)
		return false
	}
	return true
}

// cleanTime bounds that wait: discarding millions of objects takes less.
const cleanTime = 5 * time.Second
