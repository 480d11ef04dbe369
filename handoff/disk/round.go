package disk

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/keystead/keystead/handoff/record"
	"github.com/keystead/keystead/owner"
)

// anew makes an empty store beside the present one.
func (k *Keeper) anew() error {
	if err := k.makeDir(); err != nil {
		return err
	}
	numbers, err := k.stores()
	if err != nil {
		return err
	}
	number := 1
	if len(numbers) > 0 {
		number = numbers[len(numbers)-1] + 1
	}
	s, err := Open(k.dir(number), k.cfg.Options)
	if err != nil {
		return fmt.Errorf("%s: %w", k.dir(number), err)
	}
	if k.store != nil {
		_ = k.store.Close()
	}
	k.set(s, number)
	//guard:disk-tenures-again nil -> k.onDisk
	k.begun, k.onDisk = false, nil
	//guard:disk-streams-again
	k.rewriteStreams()
	k.whole.Store(false)
	return nil
}

func (k *Keeper) set(s *Store, number int) {
	k.store, k.number = s, number
	k.shown.Store(s)
}

// makeDir makes the directory of the stores, so that it is still there after a crash.
func (k *Keeper) makeDir() error {
	f := k.fs()
	if err := f.MkdirAll(k.cfg.Dir, 0o700); err != nil {
		return err
	}
	parent, err := f.OpenDir(f.PathDir(k.cfg.Dir))
	if err != nil {
		return err
	}
	//guard:disk-directory-synced parent.Sync() -> nil
	return errors.Join(parent.Sync(), parent.Close())
}

func (k *Keeper) run() {
	every := k.cfg.Settings.Interval / 2
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-k.ctx.Done():
			return
		case <-k.wake:
		case <-tick.C:
		case ask := <-k.enlists:
			err := k.enlist(ask.incarnation)
			ask.done <- err
			if k.store.Err() != nil || !k.begun {
				k.fail(err)
			}
			continue
		case asked := <-k.asked:
			err := k.step(true)
			asked <- k.snapshot(err)
			if err != nil {
				k.fail(err)
			}
			continue
		}
		if err := k.step(false); err != nil {
			k.fail(err)
		}
	}
}

// Snapshot does a round, and returns the store as it is at the end of that: all objects, and the
// entries about their request ids, are of this moment. No round waits for the reader.
func (k *Keeper) Snapshot(ctx context.Context) (*Snapshot, error) {
	ctx, cancel := context.WithTimeout(ctx, snapshotPatience)
	defer cancel()
	done := make(chan snapshotAsked, 1)
	select {
	case k.asked <- done:
	case <-k.ctx.Done():
		return nil, ErrClosed
	case <-ctx.Done():
		return nil, fmt.Errorf("no round on disk has ended: %w", ctx.Err())
	}
	select {
	case a := <-done:
		return a.p, a.err
	case <-ctx.Done():
		go func() {
			if a := <-done; a.p != nil {
				a.p.Close()
			}
		}()
		return nil, fmt.Errorf("the round on disk has not ended: %w", ctx.Err())
	}
}

// snapshot is that of the round that has ended so.
func (k *Keeper) snapshot(err error) (a snapshotAsked) {
	if a.err = err; err == nil {
		a.p, a.err = k.store.Snapshot()
	}
	return a
}

// step does a round: what has changed until now is on disk when it returns nil. tend has it look
// after the rest as well, as it does now and then.
func (k *Keeper) step(tend bool) error {
	soon := int64(0)
	if k.cfg.Settings.For(owner.KindLimit) == Interval {
		soon = int64(k.cfg.Settings.Interval)
	}
	return k.take(tend, soon)
}

// everything does a round that leaves nothing out: a limit that will soon be full again is not absent yet.
func (k *Keeper) everything() error {
	//guard:disk-former-skipped
	k.objects.Unskip()
	return k.take(true, 0)
}

// take does a round for which a limit is absent that is full again in less than soon, ns.
func (k *Keeper) take(tend bool, soon int64) error {
	began := k.cfg.Now()
	n := k.note()
	k.round++
	k.batch, k.failing, k.puts = k.store.NewBatch(), nil, 0
	//guard:disk-over k.over -> k.over[:0]
	for _, ref := range k.over {
		k.Delete(ref.Hash, []byte(ref.Key), []byte(ref.Name))
	}
	k.over = nil
	if !k.objects.Gather(began, k.round, soon, k) {
		return k.failing
	}
	//guard:disk-tended began-k.tended >= int64(tendEvery) -> false
	tend = tend || began-k.tended >= int64(tendEvery)
	//guard:disk-epoch-writes n.head.Epoch > k.epoch.Load() -> false
	if tend || k.puts > 0 || n.head.Epoch > k.epoch.Load() {
		if err := k.commit(n, tend, false); err != nil {
			return err
		}
	} else {
		n.synced() // all that was there is on disk already
	}
	k.stats.rounds.Add(1)
	k.end(began)
	return nil
}

// noted is what is noted when a round begins.
type noted struct {
	head    Head
	streams []Stream
	synced  func()
}

// note is what a round begins with: what is said when all of it is synced is of this moment, or before.
func (k *Keeper) note() noted {
	n := noted{synced: func() {}}
	if k.cfg.Noted != nil {
		n.synced = k.cfg.Noted()
	}
	if k.cfg.Streams != nil {
		n.streams = k.cfg.Streams()
	}
	n.head = k.cfg.Head()
	n.head.Epoch = max(n.head.Epoch, k.floor)
	return n
}

// commit writes what is left of a round with a head, and syncs all of it.
func (k *Keeper) commit(n noted, tend, clean bool) error {
	now := k.cfg.Now()
	//guard:disk-head-first n.head -> k.cfg.Head()
	h := n.head
	//guard:disk-versions-of-round k.versions -> 0
	h.Clock, h.Round, h.Clean, h.Versions = k.clock(now), k.round, clean, k.versions
	if tend {
		k.tended = now
		k.look()
		k.batch.DropLog(h.Clock - k.window(&h) - int64(logSlack))
	}
	h.Durability = k.cfg.Settings.String()
	k.batch.SetHead(h)
	list := k.had(clean)
	if !slices.Equal(list, k.onDisk) {
		k.batch.SetTenures(list)
		k.dropping = true
	}
	//guard:disk-streams-first n.streams -> k.cfg.Streams()
	k.putStreams(k.batch, n.streams, list)
	//guard:disk-synced true -> false
	if err := k.store.Commit(k.batch, true); err != nil {
		return err
	}
	if !k.begun {
		k.begun = true
		k.removeOthers()
	}
	if k.onDisk = list; clean {
		k.list.Store(&list)
	}
	k.whole.Store(true)
	k.epoch.Store(h.Epoch)
	k.written.Store(h.Round)
	k.stats.synced.Add(1)
	k.stats.puts.Add(k.puts)
	//guard:disk-note-first n.synced -> k.cfg.Noted()
	n.synced()
	return nil
}

// window returns for how long request ids are kept: what a cluster has agreed on may be longer than what the process is told.
func (k *Keeper) window(h *Head) int64 {
	//guard:disk-window-agreed h.Window -> 0
	return max(int64(k.cfg.Window()), h.Window)
}

// look notes how much room the file system has left. A disk that hangs may hold it up, as it
// does a round.
func (k *Keeper) look() {
	free := int64(-1)
	if u, err := k.fs().GetDiskUsage(k.cfg.Dir); err == nil {
		free = int64(min(u.AvailBytes, math.MaxInt64))
	}
	k.stats.free.Store(free)
}

// removeOthers removes the stores that the present one stands for.
func (k *Keeper) removeOthers() {
	numbers, _ := k.stores()
	for _, n := range numbers {
		if n != k.number {
			_ = k.remove(n)
		}
	}
}

// removing is what the name of a store ends in that is being removed: one of which files are missing would be damaged.
const removing = ".removing"

// remove removes a store, in two steps, so that a crash leaves all of it or nothing that counts.
func (k *Keeper) remove(n int) error {
	gone := k.dir(n) + removing
	if err := k.fs().RemoveAll(gone); err != nil {
		return err
	}
	//guard:disk-removed-whole k.fs().Rename(k.dir(n), gone) -> k.fs().RemoveAll(k.dir(n))
	if err := k.fs().Rename(k.dir(n), gone); err != nil {
		return err
	}
	d, err := k.fs().OpenDir(k.cfg.Dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close(), k.fs().RemoveAll(gone))
}

// clear removes what a removal has left that a crash has ended.
func (k *Keeper) clear() error {
	names, err := k.fs().List(k.cfg.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, name := range names {
		if strings.HasSuffix(name, removing) {
			if err := k.fs().RemoveAll(filepath.Join(k.cfg.Dir, name)); err != nil {
				return err
			}
		}
	}
	return nil
}

// fail is called when a write has failed. What is on disk stays as it is; all that the
// objects are is written anew, beside it. It returns when that is done, or at the end.
func (k *Keeper) fail(err error) {
	k.begun = false
	k.whole.Store(false)
	for {
		k.stats.failures.Add(1)
		k.refuse(fmt.Sprintf("writing to %s has failed: %v", k.cfg.Dir, err), err)
		_ = k.store.Close()
		timer := time.NewTimer(anewEvery)
		select {
		case <-k.ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		if err = k.anew(); err != nil {
			continue
		}
		//guard:disk-anew false -> true
		k.objects.Track(false)
		if err = k.step(true); err == nil {
			return
		}
		_ = k.store.Close()
		_ = k.remove(k.number)
	}
}

// Put implements owner.Gatherer.
func (k *Keeper) Put(r *owner.Record) {
	if k.kinds[r.Kind] == None && !k.all {
		return
	}
	k.buf = binary.BigEndian.AppendUint64(k.buf[:0], uint64(k.clock(r.At)))
	if k.puts++; r.Whole || r.More {
		k.buf = record.AppendIDs(k.buf, r, r.At)
		k.batch.Log(k.clock(r.At), k.buf)
		return
	}
	k.buf = record.AppendAt(record.Level, k.buf, r, r.At)
	k.batch.Put(r.Hash, r.Key, r.Name, k.buf)
	// A store that is not whole counts for nothing yet, so that its batches need not be of one
	// moment; and all that a shard has may be more than fits one.
	if !k.begun && k.failing == nil {
		k.part()
	}
}

// Delete implements owner.Gatherer.
func (k *Keeper) Delete(hash uint64, key, name []byte) {
	k.puts++
	k.batch.Delete(hash, key, name)
}

// IDs implements owner.Gatherer.
func (k *Keeper) IDs(entries []byte) {
	for len(entries) > 0 {
		n := binary.BigEndian.Uint32(entries)
		entry := entries[4 : 4+n]
		k.batch.Log(int64(binary.BigEndian.Uint64(entry)), entry)
		entries = entries[4+n:]
		k.puts++
	}
}

// Discard implements owner.Gatherer.
func (k *Keeper) Discard(now int64, in owner.Span) {
	k.puts++
	//guard:disk-spans-deleted
	k.batch.DeleteRange(in.After, in.UpTo)
	//guard:disk-spans-void
	k.batch.Void(k.clock(now), in.After, in.UpTo)
}

// End implements owner.Gatherer.
func (k *Keeper) End(version uint64) bool {
	k.versions = max(k.versions, version)
	return k.part()
}

// part commits what a round has until now, if that is much.
func (k *Keeper) part() bool {
	if k.failing != nil || k.batch.Size() < k.maxPart {
		return k.failing == nil
	}
	k.failing = k.store.Commit(k.batch, false)
	k.batch = k.store.NewBatch()
	return k.failing == nil
}
