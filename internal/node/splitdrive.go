package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/keystead/keystead/hotkey/divide"
	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/internal/rpc"
	"github.com/keystead/keystead/owner"
	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
	"github.com/keystead/keystead/ring/epoch/table"
)

// drive is a split in the hands of its home. It belongs to one goroutine. All that it
// knows is found out again by the next home: what counts is in the table and in the
// objects.
type drive struct {
	s     *splits
	log   *slog.Logger
	began time.Time // of the phase, as seen here
	phase table.SplitPhase
	said  bool // that it is not split
	looks looks
}

// step does what the split needs next, and says how long to wait for the table to change
// before the next step.
func (d *drive) step(t *table.Table, sp *table.Split) time.Duration {
	if d.phase != sp.Phase {
		d.phase, d.began = sp.Phase, time.Now()
	}
	home := d.s.c.Self()
	switch sp.Phase {
	case table.Opening:
		err := d.open(home, sp)
		switch {
		case err == nil:
			return drainTry
		case indivisible(err) && !d.said:
			d.said = true
			d.log.Info("not split", "key", sp.Key, "kind", sp.Kind, "name", sp.Name, "why", err)
			d.s.plan.forbid(sp)
		case indivisible(err): // and the end of that is not agreed on yet
		case time.Since(d.began) < openPatience:
			d.log.Debug("opening", "error", err)
			return splitPause
		case d.over(sp):
			return splitPause
		case !d.said:
			d.said = true
			d.s.plan.forbid(sp)
			d.log.Warn("not split: its parts could not be planted in time", "key", sp.Key, "kind", sp.Kind, "name", sp.Name, "error", err)
		}
		d.end(home, sp)
		return splitPause
	case table.Open:
		// Tables change more often than parts are to be asked; new weights are news.
		if rest := lookEvery - time.Since(d.looks.at); rest > 0 && d.looks.weighed == sp.Weighed {
			return rest
		}
		d.balance(home, t, sp)
		return lookEvery
	}
	if err := d.close(home, sp); err != nil {
		d.log.Debug("closing", "error", err)
	}
	return splitPause
}

// over says whether a split has left the phase in which it is here.
func (d *drive) over(sp *table.Split) bool {
	now, ok := d.s.c.group.Table().SplitOf(sp.ID)
	return !ok || now.Since != sp.Since
}

// indivisible says whether an object is one that is not split.
func indivisible(err error) bool {
	var e *failure.Error
	return errors.Is(err, divide.ErrWindow) || errors.Is(err, divide.ErrTTL) || errors.Is(err, divide.ErrLarge) ||
		errors.As(err, &e) && (e.Reason == failure.KindMismatch || e.Reason == failure.Invalid)
}

// stepTime bounds a step: what it waits for is planted, read or agreed on by then, or it
// begins anew.
const stepTime = 2 * time.Second

// open plants the parts, and has them opened when all have theirs.
func (d *drive) open(home table.Holder, sp *table.Split) error {
	ctx, cancel := context.WithTimeout(d.s.c.ctx, min(stepTime, openPatience))
	defer cancel()
	whole, now, err := d.s.rpc.TakeWhole(sp)
	if err != nil {
		return fmt.Errorf("reading the whole: %w", err)
	}
	parts, base, err := divide.Divide(whole, sp, now)
	if err != nil {
		return err
	}
	// gofail: var nodePlant struct{}

	if err := each(len(parts), func(i int) error { return d.s.rpc.Plant(ctx, sp, i, parts[i], now) }); err != nil {
		return fmt.Errorf("planting: %w", err)
	}
	// gofail: var nodePlanted struct{}

	if _, err = d.s.propose(ctx, table.Command{OpenSplit: &table.OpenSplit{ID: sp.ID, Home: home, Base: base}}); err != nil {
		return err
	}
	d.paused(table.Opening)
	d.log.Info("split", "key", sp.Key, "kind", sp.Kind, "name", sp.Name, "parts", len(sp.Parts), "took", time.Since(d.began), "why", sp.Reason)
	return nil
}

// close puts the whole together, of what all parts have.
func (d *drive) close(home table.Holder, sp *table.Split) error {
	ctx, cancel := context.WithTimeout(d.s.c.ctx, stepTime)
	defer cancel()
	encoded := make([][][]byte, len(sp.Parts))
	err := each(len(sp.Parts), func(i int) error {
		r, err := d.s.rpc.ReadPart(ctx, sp, i, &peerv1.ReadPartRequest{All: true})
		encoded[i] = r.GetRecords()
		return err
	})
	if err != nil {
		return fmt.Errorf("reading the parts: %w", err)
	}
	// gofail: var nodeReaped struct{}

	now := d.s.c.cfg.Clock.Now()
	parts := make([][]*owner.Record, len(encoded))
	for i := range encoded {
		if parts[i], err = rpc.ReadRecords(encoded[i], now); err != nil {
			return fmt.Errorf("part %d: %w", i, err)
		}
	}
	if err := d.s.rpc.PutWhole(sp, divide.Unite(parts, sp, now)); err != nil {
		return fmt.Errorf("writing the whole: %w", err)
	}
	// gofail: var nodeUnited struct{}

	d.s.plan.closed(sp, now)
	if d.end(home, sp) {
		d.s.plan.merged()
		d.paused(table.Closing)
		d.log.Info("merged", "key", sp.Key, "kind", sp.Kind, "name", sp.Name, "took", time.Since(d.began), "why", sp.Reason)
	}
	return nil
}

// end has the whole object served again.
func (d *drive) end(home table.Holder, sp *table.Split) bool {
	_, err := d.s.propose(d.s.c.ctx, table.Command{EndSplit: &table.EndSplit{ID: sp.ID, Home: home, Since: sp.Since}})
	if err != nil {
		d.log.Debug("ending", "error", err)
	}
	return err == nil
}

// each does something for each of n parts at once, and returns the errors.
func each(n int, f func(i int) error) error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { errs[i] = f(i) })
	}
	wg.Wait()
	return errors.Join(errs...)
}
