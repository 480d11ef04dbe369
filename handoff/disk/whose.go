package disk

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Tenure is the time for which a process has had a disk.
type Tenure struct {
	Incarnation uint64 `json:"incarnation"`
	// Stopped says that it stopped in order, or that it was removed and went on as the next one: the disk lacks nothing that it
	// answered. That stays true when the next one writes: it has all of that, and takes away only what tables demand, or what
	// is over.
	Stopped bool `json:"stopped,omitempty"`
	// Rounds is how many of its rounds the disk has, as the next one found it, or as it became the next one itself;
	// 0 = nobody knows. Others may have heard of more from it: then the disk was set back.
	Rounds uint64 `json:"rounds,omitempty"`
}

// maxTenures bounds the list of those that have had a disk: a leader is told of it. Rows may name each of them until Named
// says otherwise. A list becomes full only of processes that came and went without a table in which they were members. Rows
// name those that were before them, so the oldest stay, and of the others the last one alone.
const maxTenures = 64

// Errors of Enlist.
var (
	// ErrHadBefore is the error of an incarnation that is not above all that have had the disk.
	ErrHadBefore = errors.New("an incarnation that is not above all that have had the disk")
	// ErrForeign is the error of a disk that is another node's, or another cluster's.
	ErrForeign = errors.New("the store on disk is of another node or cluster: move its directory away, or start that node with it")
)

// enlisting is an Enlist that the goroutine of the rounds is asked for.
type enlisting struct {
	incarnation uint64
	done        chan error // capacity 1
}

// Enlist notes on disk that a process has it, under this incarnation: it is there for good when Enlist returns nil. A process
// does so before it asks to be admitted by this name. A store that was found is enlisted where it is; if there is none
// yet, the first one has it when Run returns. It may wait for the disk, for restPatience at the most, and be called again if it
// fails. Before Run it is for the goroutine that calls that.
func (k *Keeper) Enlist(incarnation uint64) error {
	if !k.running.Load() {
		return k.enlist(incarnation)
	}
	ask := enlisting{incarnation, make(chan error, 1)}
	timer := time.NewTimer(k.patience)
	defer timer.Stop()
	select {
	case k.enlists <- ask:
	case <-k.ctx.Done():
		return ErrClosed
	case <-timer.C:
		return errHangs
	}
	select {
	case err := <-ask.done:
		return err
	case <-k.ctx.Done():
		return ErrClosed
	case <-timer.C:
		return errHangs
	}
}

// enlist adds to the list, and writes that to the store, if there is one.
func (k *Keeper) enlist(incarnation uint64) error {
	list := k.List()
	last := Tenure{}
	if len(list) > 0 {
		last = list[len(list)-1]
	}
	//guard:disk-enlist-above false
	if incarnation < last.Incarnation || incarnation == last.Incarnation && !(k.mine && !last.Stopped) {
		return fmt.Errorf("%w: %d, and the last one is %d", ErrHadBefore, incarnation, last.Incarnation)
	}
	if h, has := k.Found(); has && k.strange(h) {
		return ErrForeign
	}
	if incarnation > last.Incarnation {
		//guard:disk-former k.mine -> false
		if n := len(list); n > 0 && k.mine {
			stopped, err := k.former()
			if err != nil {
				return err
			}
			list[n-1].Stopped = stopped
			//guard:disk-rounds-become
			list[n-1].Rounds = k.written.Load()
		}
		if len(list) == maxTenures {
			list, k.dropping = list[:maxTenures-1], true
		}
		list = append(list, Tenure{Incarnation: incarnation})
		k.list.Store(&list)
		k.mine = true
	}
	if k.store == nil {
		return nil
	}
	if _, has := k.store.Head(); !has || slices.Equal(k.onDisk, list) {
		return nil
	}
	b := k.store.NewBatch()
	b.SetTenures(list)
	//guard:disk-enlist-synced true -> false
	if err := k.store.Commit(b, true); err != nil {
		return err
	}
	k.onDisk = list
	return nil
}

// former writes all that this process has decided under its last name, which decides nothing any more, and reports whether
// the disk lacks nothing of that: then it is as if that one had stopped in order, although the process lives on.
// Kinds that are not kept are in memory alone, and the process may still die.
func (k *Keeper) former() (stopped bool, err error) {
	//guard:disk-former-partly k.cfg.Settings.partly() -> false
	if !k.running.Load() || !k.begun || k.cfg.Settings.partly() {
		return false, nil
	}
	//guard:disk-former-written k.everything() -> nil
	if err = k.everything(); err != nil {
		k.begun = false // it lacks what the round has taken
	}
	return err == nil, err
}

// strange reports whether a head that was found is of another node or cluster.
func (k *Keeper) strange(h Head) bool {
	now := k.cfg.Head()
	other := func(a, b string) bool { return a != "" && b != "" && a != b }
	return other(h.Node, now.Node) || other(h.Cluster, now.Cluster) || other(h.UID, now.UID)
}

// List returns which processes have had the disk, in order: the last one is the present process, if it has enlisted.
func (k *Keeper) List() []Tenure {
	if p := k.list.Load(); p != nil {
		return slices.Clone(*p)
	}
	return nil
}

// Named forgets which processes have had the disk and is not named by any row any more. A caller goes by a table in which the last one of
// the list is a member: so nobody before it is, and no later table can name one of those that this one does not.
// It is forgotten on disk with the next round that writes.
func (k *Keeper) Named(is func(incarnation uint64) bool) {
	for {
		was := k.list.Load()
		if was == nil {
			return
		}
		last := len(*was) - 1
		var list []Tenure
		for i, t := range *was {
			//guard:disk-named-stay i == last || is(t.Incarnation) -> i == last
			if i == last || is(t.Incarnation) {
				list = append(list, t)
			}
		}
		if len(list) == len(*was) || k.list.CompareAndSwap(was, &list) {
			return
		}
	}
}

// had is the list as a round writes it.
func (k *Keeper) had(clean bool) []Tenure {
	list := k.List()
	if n := len(list); clean && n > 0 && k.mine {
		//guard:disk-stopped
		list[n-1].Stopped = true
	}
	return list
}

// Rounds returns how many rounds of this process the store on disk has. What it has told of them to others stays true.
func (k *Keeper) Rounds() uint64 { return k.written.Load() }

// counted fills in how many rounds of the last process a store has that was found.
func counted(list []Tenure, h Head) {
	for i := range list {
		if t := &list[i]; t.Incarnation == h.Incarnation {
			t.Rounds = max(t.Rounds, h.Round)
		}
	}
}

// HeadEpoch returns the epoch of the head that is on disk: that of the last round of which all is synced, as it was
// when that began.
func (k *Keeper) HeadEpoch() uint64 { return k.epoch.Load() }

// AwaitEpoch waits until the epoch of the head on disk is this one or above it. It returns false if it gave up, as Await
// does. The epoch of Config.Head has to have come so far.
func (k *Keeper) AwaitEpoch(ctx context.Context, epoch uint64) bool {
	return k.await(ctx, func() bool { return k.epoch.Load() >= epoch })
}

// Whole reports whether the disk has all that the objects are, and takes what is decided.
func (k *Keeper) Whole() bool {
	return k.whole.Load() && k.refusing.Load() == nil && !k.closed.Load()
}

// disown forgets all that have had the disk, but this process: what they have left is not in the objects.
func (k *Keeper) disown() {
	list := k.List()
	if k.mine {
		list = list[len(list)-1:]
	} else {
		list = nil
	}
	k.list.Store(&list)
	k.epoch.Store(0)
	k.streams = map[streamID]streamAt{}
}
