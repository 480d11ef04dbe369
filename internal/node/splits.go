package node

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/keystead/keystead/hotkey/divide"
	"github.com/keystead/keystead/hotkey/plan"
	"github.com/keystead/keystead/internal/rpc"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/limit"
	"github.com/keystead/keystead/ring"
	"github.com/keystead/keystead/ring/epoch/table"
)

const (
	// openPatience is how long an object may be in the opening phase, when nobody serves
	// it. After that it stays whole.
	openPatience = time.Second
	// splitPause is how long a home waits before it tries a step again.
	splitPause = 20 * time.Millisecond
)

// What packages that do not know each other have in common: indexes out of range do not
// compile.
var (
	_ = [1]int{}[limit.Whole-table.WholeWeight]
	_ = [1]int{}[plan.FullWeight-table.WholeWeight]
	_ = [1]int{}[plan.MaxParts-table.MaxParts]
	_ = [1]int{}[plan.MinParts-table.MinParts]
	_ = [1]int{}[plan.DefaultMaxSplits-table.MaxSplits]
)

// Split implements owner.Splits.
func (m *inCluster) Split(hash uint64) bool { return m.rule.Table().MaySplit(hash) }

// May implements owner.Splits: who may act as what is agreed, and this node goes by the
// table that it has applied.
func (m *inCluster) May(ref owner.Ref, kind owner.Kind) (weight uint32, err error) {
	return divide.May(m.rule.Table(), ref, kind)
}

// stalePart says whether the object under a key is a part of a split that is over.
func (m *inCluster) stalePart(_ uint64, key []byte) bool { return divide.Stale(m.rule.Table(), key) }

// splits is the node's part in splitting objects: it does what is for the home of an
// object to do, and decides which of its objects are split.
type splits struct {
	c    *cluster
	rpc  *rpc.Server
	heat *observer
	log  *slog.Logger

	mu      sync.Mutex
	driven  map[uint64]bool // guarded by mu: splits that a goroutine drives
	closing map[uint64]bool // guarded by mu: splits that are being closed for an operation

	running sync.WaitGroup
	plan    *decisions
	pauses  *prometheus.HistogramVec
}

// newSplits prepares the node's part; it is nil on one that runs alone. Its rpc is set
// when there is one.
func (n *Node) newSplits() (*splits, error) {
	c := n.cluster
	if c == nil {
		return nil, nil
	}
	p, err := newDecisions(n.cfg.Hot, c.hotNodes)
	if err != nil {
		return nil, err
	}
	return &splits{c: c, heat: n.heat, log: c.log, driven: map[uint64]bool{}, closing: map[uint64]bool{}, plan: p, pauses: newPauses()}, nil
}

// hotNodes are the nodes that are for hot keys.
func (c *cluster) hotNodes() map[string]bool {
	hot := map[string]bool{}
	for _, f := range c.pool.Facts() {
		if f.Ours && f.Self.Hot {
			hot[f.Self.Node] = true
		}
	}
	return hot
}

// reason is why a split is as it is, as long as the table takes it.
func reason(s string) string {
	if len(s) > table.MaxReason {
		s = strings.ToValidUTF8(s[:table.MaxReason], "")
	}
	return s
}

// run does so until the node stops.
func (s *splits) run() {
	s.running.Go(s.follow)
	s.running.Go(s.decide)
	<-s.c.ctx.Done()
	s.running.Wait()
}

// follow drives the splits whose home this node is.
func (s *splits) follow() {
	for t := s.c.group.Table(); ; {
		for i := range t.Splits {
			if sp := &t.Splits[i]; s.isHome(t, sp) {
				s.start(sp.ID)
			}
		}
		next, err := s.c.group.Await(s.c.ctx, t.Epoch)
		if err != nil {
			return
		}
		t = next
	}
}

// isHome says whether this process is the home of a split.
func (s *splits) isHome(t *table.Table, sp *table.Split) bool {
	m, _, ok := t.Owner(ring.Hash(sp.Key))
	return ok && m.Holder() == s.c.Self()
}

// start has a split driven.
func (s *splits) start(id uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.driven[id] {
		return
	}
	s.driven[id] = true
	s.running.Go(func() { s.drive(id) })
}

// drive does what a split needs next, until it is over or its home is elsewhere.
func (s *splits) drive(id uint64) {
	d := &drive{s: s, began: time.Now(), log: s.log.With("split", id)}
	for {
		t := s.c.group.Table()
		sp, ok := t.SplitOf(id)
		if !ok || !s.isHome(t, sp) {
			s.mu.Lock()
			delete(s.driven, id)
			delete(s.closing, id)
			s.mu.Unlock()
			s.plan.forget(id)
			// It may have come back between the look and now.
			if t = s.c.group.Table(); t.Epoch > 0 && s.c.ctx.Err() == nil {
				if sp, ok = t.SplitOf(id); ok && s.isHome(t, sp) {
					s.start(id)
				}
			}
			return
		}
		wait := d.step(t, sp)
		ctx, cancel := context.WithTimeout(s.c.ctx, wait)
		_, _ = s.c.group.Await(ctx, t.Epoch)
		cancel()
		if s.c.ctx.Err() != nil {
			return
		}
	}
}

// propose brings a command before the leader. What became of it, the table tells: with
// no error, this node goes by it, unless the time was over.
func (s *splits) propose(ctx context.Context, c table.Command) (uint64, error) {
	if why := s.c.group.Table().Knows(c); why != nil {
		return 0, why
	}
	try, cancel := context.WithTimeout(ctx, drainTry)
	defer cancel()
	c.ID = s.c.newID()
	at, err := s.c.group.Propose(try, c)
	if err == nil {
		_, _ = s.c.group.Await(try, at-1)
	}
	return at, err
}

// close has it agreed that the parts of a split are to be put together.
func (s *splits) close(ctx context.Context, id uint64, why string) error {
	_, err := s.propose(ctx, table.Command{CloseSplit: &table.CloseSplit{ID: id, Reason: reason(why)}})
	return err
}

// Whole implements rpc.Splits.
func (s *splits) Whole(id uint64, why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing[id] || len(s.closing) >= 2*table.MaxSplits || s.c.ctx.Err() != nil {
		return
	}
	s.closing[id] = true
	s.running.Go(func() {
		err := s.close(s.c.ctx, id, wholeReason+why)
		if err == nil {
			s.log.Info("a split object is made whole", "split", id, "why", why)
		} else { // another node was first, or it is tried again, as often as somebody calls
			s.log.Debug("closing a split", "split", id, "why", why, "error", err)
		}
		s.pause(s.c.ctx)
		s.mu.Lock()
		delete(s.closing, id)
		s.mu.Unlock()
	})
}

// byHand is the reason of what somebody has asked for.
const byHand = "by hand"

// wholeReason begins the reason of a split that was closed for an operation.
const wholeReason = "whole: "

func (s *splits) pause(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, splitPause)
	defer cancel()
	<-ctx.Done()
}
