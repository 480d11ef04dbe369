package handoff

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/keystead/keystead/handoff/feed"
	"github.com/keystead/keystead/handoff/record"
	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/ring/epoch/serving"
	"github.com/keystead/keystead/ring/epoch/table"
)

// cleanTime bounds the wait until what a node had before of the rows of a copy is
// discarded.
const cleanTime = 5 * time.Second

// TargetConfig is what a Target needs.
type TargetConfig struct {
	Rule  *serving.Rule
	Store *owner.Store
	// Await waits until this node goes by a table of this epoch, or a later one.
	Await func(ctx context.Context, epoch uint64) error
	Now   func() int64
	// NoRoom is told of each copy that was refused because the store is full. Default:
	// nobody.
	NoRoom func()
	// Urgent is told of each batch of which a source waits until this process's disk has it. It
	// must not wait. Default: nobody.
	Urgent func()
	// Rounds returns how many rounds of this process its disk has. Default: it keeps none.
	Rounds func() uint64
	Log    *slog.Logger
}

// Target is the receiving side: it installs the records of copies. A record is dropped
// if the table names another owner, or does not let this node hold a copy: no process
// that may still answer waits for it.
type Target struct {
	cfg     TargetConfig
	records sync.Pool // of records that were installed: their lists are used again
	Intake  *feed.Intake
}

// NewTarget returns a target whose Intake is to be served.
func NewTarget(cfg TargetConfig) *Target {
	if cfg.NoRoom == nil {
		cfg.NoRoom = func() {}
	}
	t := &Target{cfg: cfg, records: sync.Pool{New: func() any { return &owner.Record{} }}}
	t.Intake = feed.NewIntake(feed.IntakeConfig{
		Self: cfg.Rule.Self, Await: cfg.Await, Begin: t.begin, Versions: cfg.Store.RaiseVersions, Install: t.install, Urgent: cfg.Urgent, Rounds: cfg.Rounds, Log: cfg.Log,
	})
	return t
}

// begin forgets what the node has of the rows of a copy that begins.
func (t *Target) begin(from table.Holder, ranges []serving.Range) error {
	ctx, cancel := context.WithTimeout(context.Background(), cleanTime)
	defer cancel()
	if t.cfg.Rule.AwaitClean(ctx, t.cfg.Rule.Table().Epoch) != nil {
		return errors.New("what this node had of the rows before is not discarded yet")
	}
	// gofail: var handoffTargetBegin struct{}

	spans := make([]owner.Span, len(ranges))
	for i, r := range ranges {
		spans[i] = owner.Span(r)
	}
	t.cfg.Store.DiscardSpans(spans, func(h uint64) bool {
		//guard:begin-discards false
		return t.cfg.Rule.Accepts(h, from)
	})
	return nil
}

func (t *Target) install(from table.Holder, b []byte) error {
	r := t.records.Get().(*owner.Record)
	defer t.records.Put(r)
	now := t.cfg.Now()
	if err := record.Decode(b, now, r); err != nil {
		return err
	}
	// gofail: var handoffTargetInstall struct{}

	if unclean, err := t.tryInstall(from, r, now); !unclean {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), cleanTime)
	defer cancel()
	for {
		changed := t.cfg.Rule.CleanChanged()
		if unclean, err := t.tryInstall(from, r, now); !unclean {
			return err
		}
		select { // dropped, it would count as had
		case <-changed:
		case <-ctx.Done():
			return errors.New("what this node had of a row before is not discarded yet")
		}
	}
}

// tryInstall takes a record in, or drops it. It reports whether it did neither, because
// what this node had of the row before is not discarded yet.
func (t *Target) tryInstall(from table.Holder, r *owner.Record, now int64) (unclean bool, err error) {
	err = t.cfg.Store.Install(now, r, func(h uint64) bool {
		unclean = t.cfg.Rule.Unclean(h, from)
		//guard:records-of-others true
		return t.cfg.Rule.Accepts(h, from)
	})
	// gofail: var handoffTargetInstalled struct{}
	if errors.Is(err, owner.ErrNotAccepted) {
		//guard:records-of-unclean-rows unclean -> false
		return unclean, nil
	}
	//guard:joiner-full-store
	if failure.ReasonOf(err) == failure.StoreFull {
		t.cfg.NoRoom()
	}
	return false, err
}
