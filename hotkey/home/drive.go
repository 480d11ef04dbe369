package home

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/keystead/keystead/hotkey/divide"
	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/ring/epoch/table"
)

// drive is a split in the hands of its home. It belongs to one goroutine. All that it
// knows is found out again by the next home: what counts is in the table and in the
// objects.
type drive struct {
	h      *Home
	log    *slog.Logger
	began  time.Time // of the phase, as seen here
	phase  table.SplitPhase
	logged bool // that it is not split
	seen   reports
}

// step does what the split needs next, and returns how long to wait for the table to
// change before the next step.
func (d *drive) step(t *table.Table, sp *table.Split) time.Duration {
	if d.phase != sp.Phase {
		d.phase, d.began = sp.Phase, time.Now()
	}
	home := d.h.cfg.Cluster.Self()
	switch sp.Phase {
	case table.Opening:
		return d.opening(home, sp)
	case table.Open:
		// Tables change more often than parts are to be asked; new weights are news.
		if rest := pollEvery - time.Since(d.seen.at); rest > 0 && d.seen.weighed == sp.Weighed {
			return rest
		}
		d.balance(home, t, sp)
		return pollEvery
	}
	if err := d.close(home, sp); err != nil {
		d.log.Debug("closing", "error", err)
	}
	return retryPause
}

// opening tries to open a split, and gives it up when it cannot be or takes too long.
func (d *drive) opening(home table.Holder, sp *table.Split) time.Duration {
	err := d.open(home, sp)
	switch {
	case err == nil:
		return proposeTime
	case indivisible(err) && !d.logged:
		d.logged = true
		d.log.Info("not split", "key", sp.Key, "kind", sp.Kind, "name", sp.Name, "why", err)
		d.h.decisions.forbid(sp)
	case indivisible(err): // and the end of that is not agreed on yet
	case time.Since(d.began) < openPatience:
		d.log.Debug("opening", "error", err)
		return retryPause
	case d.over(sp):
		return retryPause
	case !d.logged:
		d.logged = true
		d.h.decisions.forbid(sp)
		d.log.Warn("not split: its parts could not be planted in time", "key", sp.Key, "kind", sp.Kind, "name", sp.Name, "error", err)
	}
	d.end(home, sp)
	return retryPause
}

// over reports whether a split has left the phase in which it is here.
func (d *drive) over(sp *table.Split) bool {
	now, ok := d.h.cfg.Cluster.Table().SplitOf(sp.ID)
	return !ok || now.Since != sp.Since
}

// indivisible reports whether an error means that the object cannot be split.
func indivisible(err error) bool {
	var e *failure.Error
	return errors.Is(err, divide.ErrKind) || errors.Is(err, divide.ErrWindow) || errors.Is(err, divide.ErrTTL) || errors.Is(err, divide.ErrLarge) || errors.Is(err, divide.ErrKeys) ||
		errors.As(err, &e) && (e.Reason == failure.KindMismatch || e.Reason == failure.Invalid)
}

// stepTime bounds a step: what it waits for is planted, read or agreed on by then, or it
// begins anew.
const stepTime = 2 * time.Second

// open plants the parts, and has them opened when all have theirs.
func (d *drive) open(home table.Holder, sp *table.Split) error {
	ctx, cancel := context.WithTimeout(d.h.ctx, min(stepTime, openPatience))
	defer cancel()
	whole, now, err := d.h.readWhole(sp)
	if err != nil {
		return fmt.Errorf("reading the whole: %w", err)
	}
	parts, base, err := divide.Divide(whole, sp, now)
	if err != nil {
		return err
	}
	// gofail: var homePlant struct{}

	if err := each(len(parts), func(i int) error { return d.h.parts.Plant(ctx, sp, i, parts[i], now) }); err != nil {
		return fmt.Errorf("planting: %w", err)
	}
	// gofail: var homePlanted struct{}

	if err = d.h.propose(ctx, table.Command{OpenSplit: &table.OpenSplit{ID: sp.ID, Home: home, Base: base}}); err != nil {
		return err
	}
	d.paused(table.Opening)
	d.log.Info("split", "key", sp.Key, "kind", sp.Kind, "name", sp.Name, "parts", len(sp.Parts), "took", time.Since(d.began), "why", sp.Reason)
	return nil
}

// close puts the whole together, of what all parts have.
func (d *drive) close(home table.Holder, sp *table.Split) error {
	ctx, cancel := context.WithTimeout(d.h.ctx, stepTime)
	defer cancel()
	parts := make([][]*owner.Record, len(sp.Parts))
	err := each(len(sp.Parts), func(i int) (err error) {
		parts[i], err = d.h.parts.Reap(ctx, sp, i)
		return err
	})
	if err != nil {
		return fmt.Errorf("reading the parts: %w", err)
	}
	// gofail: var homeReaped struct{}

	now := d.h.cfg.Now()
	whole, err := divide.Unite(parts, sp, now)
	if err != nil {
		return err
	}
	if err := d.h.putWhole(sp, whole); err != nil {
		return fmt.Errorf("writing the whole: %w", err)
	}
	// gofail: var homeUnited struct{}

	d.h.decisions.closed(sp, now)
	if d.end(home, sp) {
		d.h.decisions.merged()
		d.paused(table.Closing)
		d.log.Info("merged", "key", sp.Key, "kind", sp.Kind, "name", sp.Name, "took", time.Since(d.began), "why", sp.Reason)
	}
	return nil
}

// end has the whole object served again.
func (d *drive) end(home table.Holder, sp *table.Split) bool {
	err := d.h.propose(d.h.ctx, table.Command{EndSplit: &table.EndSplit{ID: sp.ID, Home: home, Since: sp.Since}})
	if err != nil {
		d.log.Debug("ending", "error", err)
	}
	return err == nil
}

// paused reports how long calls have waited in a phase.
func (d *drive) paused(phase table.SplitPhase) {
	if f := d.h.cfg.Paused; f != nil {
		f(phase, time.Since(d.began))
	}
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
