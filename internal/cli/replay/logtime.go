package replay

import (
	"context"
	"errors"
	"math"
	"sync"
	"time"

	"github.com/keystead/keystead/internal/cli/accesslog"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/counter"
	"github.com/keystead/keystead/owner/limit"
	"github.com/keystead/keystead/owner/reqid"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
)

// Bounds of the store that decides in the log's own time. Keys bound it (Config.MaxKeys
// and maxKeyBytes): it never has to refuse.
const (
	maxStoreBytes  = 16 << 30
	maxStoreShards = 1 << 12
	sweepEvery     = 1 << 16 // decisions; a sweep inspects one of 64 shards
)

// lastSecond is the latest time that a log may have, in seconds since 1970: the year
// 2200. Later ones, and those before 1970, are taken for the nearest that can be.
const lastSecond = 7_258_118_400

// standalone is the serving rule of a process that owns every key, because there is no
// other.
type standalone struct{}

// Admit implements owner.Rule.
func (standalone) Admit(uint64, int64) (owner.Permit, error) {
	return owner.Permit{Epoch: 1, Since: math.MinInt64}, nil
}

// Confirm implements owner.Rule.
func (standalone) Confirm(owner.Permit, int64) error { return nil }

// Exhausted implements owner.Rule. Tokens are those of locks; a log takes none.
func (standalone) Exhausted(uint64) (uint64, error) { return 0, errors.New("there are no tokens") }

// Terms implements owner.Rule.
func (standalone) Terms() owner.Terms { return owner.Terms{} }

// judge decides entries in the log's own time, by a store of its own.
type judge struct {
	run   *run
	store *owner.Store
	op    limit.Op

	mu      sync.Mutex // guards what follows
	order   *order
	decided int64
	closed  bool // no further entries
}

// judgeFor returns a judge for a run in the log's own time.
func judgeFor(r *run) (*judge, error) {
	cfg := &r.cfg
	shards := owner.DefaultShards
	for int64(shards)<<20 < int64(cfg.MaxKeys) && shards < maxStoreShards {
		shards *= 2
	}
	store, err := owner.New(owner.Config{Rule: standalone{}, Shards: shards, MaxObjects: min(int64(cfg.MaxKeys), int64(shards)<<20), MaxBytes: maxStoreBytes}, 0)
	if err != nil {
		return nil, err
	}
	j := &judge{run: r, store: store}
	if cfg.Mode == Limits {
		j.op = cfg.op()
	}
	j.order = newOrder(maxHeld, j.decideLocked)
	return j, nil
}

// op returns the check that each entry asks for.
func (c *Config) op() limit.Op {
	op := limit.Op{Params: limit.Params{Limit: c.Limit, Period: int64(c.Period), Burst: c.Burst}, Cost: max(c.Cost, 1)}
	switch c.Algorithm {
	case limitpb.Algorithm_ALGORITHM_FIXED_WINDOW:
		op.Algorithm = limit.FixedWindow
	case limitpb.Algorithm_ALGORITHM_SLIDING_WINDOW:
		op.Algorithm = limit.SlidingWindow
	}
	return op
}

// second is a time of a log, in seconds since 1970.
func second(t time.Time) int64 { return min(max(t.Unix(), 0), lastSecond) }

// add receives an entry; false = the run is over.
func (j *judge) add(at time.Time, s *keyStat) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		return false
	}
	j.order.add(second(at), s)
	return true
}

// close decides what was held back, and takes nothing from then on.
func (j *judge) close() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.closed {
		j.closed = true
		j.order.flush()
	}
}

// lateEntries counts the entries that came when a later one was decided already.
func (j *judge) lateEntries() int64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.order.late
}

// decideLocked decides one entry at its moment.
func (j *judge) decideLocked(second int64, s *keyStat) {
	now, cfg := second*int64(time.Second), &j.run.cfg
	ref := owner.Ref{Key: s.key, Name: cfg.Name}
	var o outcome
	var err error
	if cfg.Mode == Count {
		var a owner.AddAnswer
		a, err = j.store.Add(now, ref, reqid.ID{}, counter.AddOp{Delta: 1})
		o.yes = a.Applied
	} else {
		var a owner.CheckAnswer
		a, err = j.store.Check(now, ref, reqid.ID{}, j.op)
		o.yes = a.Allowed
	}
	if err != nil {
		o = refusal(err)
	}
	j.run.table.tally(s, &o)
	if j.decided++; j.decided%sweepEvery == 0 {
		j.store.Sweep(now)
	}
}

// refusal returns the outcome of an entry that the store could not decide.
func refusal(err error) outcome {
	return outcome{reason: "INVALID", detail: err.Error()}
}

// inLogTime decides the whole log. When it is cancelled, what was read by then is
// decided.
func (r *run) inLogTime(ctx context.Context) error {
	fed := make(chan error, 1)
	go func() { fed <- r.deal(ctx, accesslog.NewReader(&source{ctx: ctx, run: r}), r.judge.add) }()
	var err error
	select {
	case err = <-fed:
	case <-ctx.Done():
		// A Read that waits for more of the log cannot be interrupted.
		select {
		case <-fed:
		case <-time.After(feedGrace):
		}
	}
	r.judge.close()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// verifyInLogTime compares every counter of the judge's store with the log.
func (r *run) verifyInLogTime(v *verification) {
	r.phase.Store(true)
	j := r.judge
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, s := range r.table.all() {
		a, err := j.store.Get(j.order.reached*int64(time.Second), owner.Ref{Key: s.key, Name: r.cfg.Name})
		o := outcome{value: a.Value}
		if err != nil {
			o = refusal(err)
		}
		r.compare(v, s, &o)
	}
	v.done = true
	v.sort()
}

// validateLogTime is validate for a run in the log's own time. What is wrong with the
// limit is a *failure.Error that names the field.
func (c *Config) validateLogTime() error {
	if c.Mode != Limits {
		return nil
	}
	return c.op().Validate()
}
