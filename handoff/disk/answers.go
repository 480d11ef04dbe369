package disk

import (
	"context"
	"fmt"
	"time"

	"github.com/keystead/keystead/internal/failure"
)

// end tells the calls that wait that a round is over.
func (k *Keeper) end(began int64) {
	k.safe.Store(began)
	k.completed.Store(k.round)
	//guard:disk-slow-round k.isLate(began) -> false
	k.late.Store(k.isLate(began))
	if k.refusing.Swap(nil) != nil {
		k.cfg.Log.Info("the disk keeps up again", "dir", k.cfg.Dir)
		k.stats.problem.Store(nil)
	}
	k.tell()
}

// tell has the calls that wait look again.
func (k *Keeper) tell() {
	next := make(chan struct{})
	if was := k.ended.Swap(&next); was != nil {
		close(*was)
	}
}

// refuse lets nothing new in, and has the calls that wait give up.
func (k *Keeper) refuse(problem string, err error) {
	k.stats.problem.Store(&problem)
	if k.refusing.Swap(&failure.Error{Reason: failure.Unavailable, RetryAfter: time.Second,
		Message: "the disk of the node does not take what is decided: " + problem + "; nothing happened",
		Hint:    "make room, or mend the disk of --data-dir: the node goes on by itself; `keystead status` shows it"}) == nil {
		k.cfg.Log.Error("the disk does not take what is decided: operations are refused until it does", "dir", k.cfg.Dir, "why", problem, "error", err)
	}
	k.tell()
}

// watch judges whether the disk keeps up, beside the rounds, which may hang.
func (k *Keeper) watch() {
	tick := time.NewTicker(k.judging())
	defer tick.Stop()
	for {
		select {
		case <-k.ctx.Done():
			return
		case <-tick.C:
			k.judge()
		}
	}
}

// judging is how often it is judged whether the disk keeps up.
func (k *Keeper) judging() time.Duration { return k.cfg.Settings.Interval / 20 }

// judge has answers wait for a disk that is behind, and gives it up when it stays so.
func (k *Keeper) judge() {
	interval := k.cfg.Settings.Interval
	safe := k.safe.Load()
	behind := time.Duration(k.cfg.Now() - safe)
	//guard:disk-late
	if k.isLate(safe) {
		k.late.Store(true)
	}
	if behind <= interval {
		k.lates = 0
		return
	}
	// By how often it was seen, not by the clock: a process that was suspended has done nothing
	// meanwhile.
	k.lates++
	if time.Duration(k.lates)*k.judging() > patience && k.refusing.Load() == nil {
		k.refuse(fmt.Sprintf("nothing was synced there for %s", behind.Round(time.Millisecond)), nil)
	}
}

// isLate reports whether what was decided since a moment may be older than the interval before that is judged again.
func (k *Keeper) isLate(since int64) bool {
	return time.Duration(k.cfg.Now()-since) > k.cfg.Settings.Interval-2*k.judging()
}

// Admit returns why an operation must not be let in; nil = it may.
func (k *Keeper) Admit() error {
	if err := k.refusing.Load(); err != nil {
		return err
	}
	//guard:disk-ungathered
	if k.objects != nil && k.objects.Ungathered() > maxUngathered {
		return errUngathered
	}
	return nil
}

var errUngathered = &failure.Error{Reason: failure.Unavailable, RetryAfter: 200 * time.Millisecond,
	Message: "more has changed than the disk of the node has taken; nothing happened",
	Hint:    "try again; if it stays so, the disk is too slow for the load: see `keystead status`"}

// Durable reports whether answers about keys at this position may be told, as far as the disk
// is concerned.
func (k *Keeper) Durable(hash uint64) bool { return k.told(k.objects.Awaits(hash)) }

// Await waits until they may be. It returns false if it gave up: the disk does not take what
// was decided.
func (k *Keeper) Await(ctx context.Context, hash uint64) bool {
	awaited, all := k.objects.Awaits(hash)
	return k.await(ctx, func() bool { return k.told(awaited, all) })
}

// await has rounds done until something is so.
func (k *Keeper) await(ctx context.Context, is func() bool) bool {
	for {
		ended := *k.ended.Load()
		switch {
		case is():
			return true
		case k.refusing.Load() != nil || k.closed.Load():
			return false
		}
		k.nudge()
		select {
		case <-ended:
		case <-ctx.Done():
			return false
		}
	}
}

// told reports whether an answer may be told, by the rounds that it waits for: see owner.Store.Awaits. When the disk is late,
// that is when all that it tells is on disk: so even one that is slow for good lets answers out.
func (k *Keeper) told(awaited, all uint64) bool {
	//guard:disk-late-own all -> awaited
	return k.completed.Load() >= awaited && (!k.late.Load() || k.completed.Load() >= all)
}
