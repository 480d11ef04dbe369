package home

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/keystead/keystead/hotkey/plan"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/limit"
	"github.com/keystead/keystead/ring"
	"github.com/keystead/keystead/ring/epoch/table"
)

const (
	// openPatience is how long an object may be in the opening phase, when no node serves
	// it. After that it stays whole.
	openPatience = time.Second
	// retryPause is how long a home waits before it tries a step again.
	retryPause = 20 * time.Millisecond
	// proposeTime bounds one try to have a command agreed on.
	proposeTime = time.Second
)

// What packages that do not know each other have in common: indexes out of range do not
// compile.
var (
	_ = [1]int{}[limit.FullWeight-table.FullWeight]
	_ = [1]int{}[plan.FullWeight-table.FullWeight]
	_ = [1]int{}[plan.MaxParts-table.MaxParts]
	_ = [1]int{}[plan.MinParts-table.MinParts]
	_ = [1]int{}[plan.DefaultMaxSplits-table.MaxSplits]
)

// Cluster is what a home needs of the nodes around it.
type Cluster interface {
	// Self is this process.
	Self() table.Holder
	// Table is the ownership table as this node knows it; it is never nil.
	Table() *table.Table
	// Await returns the first table that this node learns of whose epoch is above after,
	// or the error of the context.
	Await(ctx context.Context, after uint64) (*table.Table, error)
	// Propose brings a command before the leader, and returns the epoch in which it took
	// effect. After table.ErrNotProposed and a *table.Refused it has changed nothing; after other
	// errors that is unknown. It gives the command its ID.
	Propose(ctx context.Context, c table.Command) (epoch uint64, err error)
}

// Store is the store of this node: an *owner.Store.
type Store interface {
	Read(now int64, ref owner.Ref, kind owner.Kind, emit func(r *owner.Record, now int64)) (owner.Meta, error)
	Put(now int64, ref owner.Ref, records []*owner.Record) (owner.Meta, error)
	Confirm(p owner.Permit, now int64) error
}

// Copies are what a home waits for before it goes on from what it has read or written.
type Copies interface {
	// Await returns true when the standby has the last that was decided about keys at this
	// position, and false when this node gave up waiting because it lost its lease.
	Await(hash uint64) bool
}

// Parts asks the owners of parts, on whichever node they are.
type Parts interface {
	// Plant has the owner of a part store these records as the part. The times of the
	// records are of this node's clock, and now is of it. It returns when the standby has it.
	Plant(ctx context.Context, sp *table.Split, part int, records []*owner.Record, now int64) error
	// Ask asks the owner of a part that is served how the part does.
	Ask(ctx context.Context, sp *table.Split, part int, q Question) (Report, error)
	// Reap returns all records of a part that is served no longer. Their times are of this
	// node's clock.
	Reap(ctx context.Context, sp *table.Split, part int) ([]*owner.Record, error)
}

// Question tells the owner of a part what the home knows of the others.
type Question struct {
	Elsewhere int64    // of a counter: the base and the sum of the other parts
	Left      []uint64 // of a limit: tokens left in each part
}

// Report is how a part does. What it counts begins at 0 with each owner.
type Report struct {
	Value                      int64  // of a counter
	Left                       uint64 // of a limit: tokens
	Operations, Asked, Refused uint64 // operations, and tokens asked for and refused
	Weighed                    uint64 // epoch of the weights that the owner goes by
}

// Config is what a Home needs. All fields but HotNodes and Paused are required.
type Config struct {
	Settings Settings
	Cluster  Cluster
	Store    Store
	Copies   Copies
	Now      func() int64    // the clock of the store, in nanoseconds
	Hot      func() *HotKeys // what was seen of this node's busiest objects at the last poll
	// HotNodes are the nodes that take parts before others. nil = there are none.
	HotNodes func() map[string]bool
	// Paused is called with how long the calls of an object waited in a phase. nil = no calls.
	Paused func(phase table.SplitPhase, took time.Duration)
	Log    *slog.Logger
}

// Home is a node's part in splitting objects: it decides about the objects whose key the
// node owns, and takes their splits from phase to phase.
type Home struct {
	cfg   Config
	log   *slog.Logger
	ctx   context.Context // ends when Run is to return
	end   context.CancelFunc
	parts Parts // set by Run, before anything is driven

	mu      sync.Mutex
	driven  map[uint64]bool // guarded by mu: splits that a goroutine drives
	closing map[uint64]bool // guarded by mu: splits that are being closed for an operation

	running   sync.WaitGroup
	decisions *decisions
}

// New returns a home that does nothing before Run. Its policy may be in error.
func New(cfg Config) (*Home, error) {
	d, err := newDecisions(cfg.Settings)
	if err != nil {
		return nil, err
	}
	h := &Home{cfg: cfg, log: cfg.Log, driven: map[uint64]bool{}, closing: map[uint64]bool{}, decisions: d}
	h.ctx, h.end = context.WithCancel(context.Background())
	return h, nil
}

// Run decides about objects and drives their splits until the context ends.
func (h *Home) Run(ctx context.Context, parts Parts) {
	h.parts = parts
	h.running.Go(h.follow)
	h.running.Go(h.decide)
	<-ctx.Done()
	h.end()
	h.running.Wait()
}

// follow drives the splits whose home this node is.
func (h *Home) follow() {
	for t := h.cfg.Cluster.Table(); ; {
		for i := range t.Splits {
			if sp := &t.Splits[i]; h.Of(t, sp) {
				h.start(sp.ID)
			}
		}
		next, err := h.cfg.Cluster.Await(h.ctx, t.Epoch)
		if err != nil {
			return
		}
		t = next
	}
}

// Of reports whether this process is the home of a split.
func (h *Home) Of(t *table.Table, sp *table.Split) bool {
	m, _, ok := t.Owner(ring.Hash(sp.Key))
	return ok && m.Holder() == h.cfg.Cluster.Self()
}

// start drives a split, unless a goroutine does so already.
func (h *Home) start(id uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.driven[id] {
		return
	}
	h.driven[id] = true
	h.running.Go(func() { h.drive(id) })
}

// drive does what a split needs next, until it is over or its home is elsewhere.
func (h *Home) drive(id uint64) {
	d := &drive{h: h, began: time.Now(), log: h.log.With("split", id)}
	for {
		t := h.cfg.Cluster.Table()
		sp, ok := t.SplitOf(id)
		if !ok || !h.Of(t, sp) {
			h.mu.Lock()
			delete(h.driven, id)
			delete(h.closing, id)
			h.mu.Unlock()
			h.decisions.forget(id)
			// It may have come back meanwhile.
			if t = h.cfg.Cluster.Table(); t.Epoch > 0 && h.ctx.Err() == nil {
				if sp, ok = t.SplitOf(id); ok && h.Of(t, sp) {
					h.start(id)
				}
			}
			return
		}
		wait := d.step(t, sp)
		ctx, cancel := context.WithTimeout(h.ctx, wait)
		_, _ = h.cfg.Cluster.Await(ctx, t.Epoch)
		cancel()
		if h.ctx.Err() != nil {
			return
		}
	}
}

// propose brings a command before the leader. The table shows what became of it: after no
// error, this node goes by it, unless the time was over.
func (h *Home) propose(ctx context.Context, c table.Command) error {
	if why := h.cfg.Cluster.Table().Knows(c); why != nil {
		return why
	}
	try, cancel := context.WithTimeout(ctx, proposeTime)
	defer cancel()
	at, err := h.cfg.Cluster.Propose(try, c)
	if err == nil {
		_, _ = h.cfg.Cluster.Await(try, at-1)
	}
	return err
}

// close has it agreed that the parts of a split are to be put together.
func (h *Home) close(ctx context.Context, id uint64, why string) error {
	return h.propose(ctx, table.Command{CloseSplit: &table.CloseSplit{ID: id, Reason: reason(why)}})
}

// reason is why a split is as it is, as long as the table takes it.
func reason(s string) string {
	if len(s) > table.MaxReason {
		s = strings.ToValidUTF8(s[:table.MaxReason], "")
	}
	return s
}

// MakeWhole has a split object made whole, for an operation that no part can do. It does
// not wait, and does nothing while that is under way.
func (h *Home) MakeWhole(id uint64, why string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closing[id] || len(h.closing) >= 2*table.MaxSplits || h.ctx.Err() != nil {
		return
	}
	h.closing[id] = true
	h.running.Go(func() {
		err := h.close(h.ctx, id, wholeReason+why)
		if err == nil {
			h.log.Info("a split object is made whole", "split", id, "why", why)
		} else { // another node was first, or it is tried again, as often as somebody calls
			h.log.Debug("closing a split", "split", id, "why", why, "error", err)
		}
		h.pause(h.ctx)
		h.mu.Lock()
		delete(h.closing, id)
		h.mu.Unlock()
	})
}

// byHand is the reason of what a person has asked for.
const byHand = "by hand"

// wholeReason begins the reason of a split that was closed for an operation.
const wholeReason = "whole: "

func (h *Home) pause(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, retryPause)
	defer cancel()
	<-ctx.Done()
}
