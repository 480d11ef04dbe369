package disk

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/keystead/keystead/handoff/record"
	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner"
)

// Times of a Keeper, with their reasons.
const (
	// tendEvery is how often the clock is written while nothing changes, and what is over is dropped: what is
	// held has as much more left after a crash.
	tendEvery = 10 * time.Second
	// patience is how long answers wait for a disk that is behind before they are told that
	// nobody knows; new operations are refused from then on.
	patience = 2 * time.Second
	// anewEvery is between two tries to begin anew after a failure.
	anewEvery = time.Second
	// restPatience is how long an end waits for a round that is under way, and for the last one.
	restPatience = 10 * time.Second
	// logSlack is how much longer than their window entries about ids are kept.
	logSlack = 10 * time.Second
	// maxCommit is about how many bytes are committed in one step of a round.
	maxCommit = 4 << 20
	// maxUngathered bounds the memory of what waits for a round, beside the objects: above it nothing new is
	// let in. All of it fits a batch.
	maxUngathered = 32 << 20
)

// Config is what a Keeper needs.
type Config struct {
	Dir      string // of all its stores
	Settings Settings
	Options  Options
	Now      func() int64         // the clock of the process, ns
	Window   func() time.Duration // how long request ids are kept
	// Head says whose it is, and what else a Head tells that the Keeper does not know. It is
	// asked when a round begins: its epoch is one up to which all is discarded by then. When it has risen, a round
	// writes, though nothing else has changed.
	Head func() Head
	// Noted is called when a round begins, before Head and before anything is gathered. What it returns is called when
	// all that was there then is on disk. nil = none.
	Noted func() (synced func())
	// Streams returns how far the streams of this process are. It is asked when a round begins, after Noted; they are written
	// with the rounds that write something else. nil = there are none.
	Streams func() []Stream
	Log     *slog.Logger
}

// Keeper keeps a store of objects on disk: in rounds, each of which writes what has changed since
// the last.
type Keeper struct {
	cfg     Config
	kinds   [256]Durability
	objects *owner.Store
	offset  int64 // by how much the clock of the disk is ahead of that of the process
	begun   bool  // the store has all that the objects are
	buf     []byte
	puts    int64 // of the present round

	// Of the goroutine of the rounds, or before it runs.
	store   *Store
	number  int         // of its directory
	round   uint64      // the last one that has begun
	tended  int64       // when the rest was looked after last
	over    []owner.Ref // what Load has found that is no object any more; the first round deletes it
	batch   *Batch
	failing error // what ended the present Gather

	onDisk   []Tenure // the list in the store
	mine     bool     // the last one of the list is this process
	versions uint64   // the greatest one of a change that a round has taken
	maxPart  int      // maxCommit, but in tests
	floor    uint64   // epoch of the head that was found: it stays true of what Load has put into the objects

	found    []Stream // as they were on disk
	streams  map[streamID]streamAt
	dropping bool // some of the streams are of processes that are not on the list any more

	all      bool          // objects of kinds that are not kept are put as well: nobody changes them any more
	last     chan error    // of a Finish that was given up; nil = there is none
	patience time.Duration // restPatience, but in tests

	shown     atomic.Pointer[Store] // the store, for Status
	completed atomic.Uint64         // the last round of which all is synced
	written   atomic.Uint64         // the last round that the head on disk tells of
	safe      atomic.Int64          // when it began: what was decided before is on disk
	late      atomic.Bool           // what is not on disk is older than the interval allows
	lates     int                   // how often in turn it was seen that it is; of the goroutine of watch
	refusing  atomic.Pointer[failure.Error]
	ended     atomic.Pointer[chan struct{}] // closed and replaced when answers may look again
	wake      chan struct{}                 // capacity 1: somebody waits for a round
	asked     chan chan snapshotAsked       // for snapshots
	enlists   chan enlisting
	running   atomic.Bool              // the goroutine of the rounds is there
	list      atomic.Pointer[[]Tenure] // which processes have had the disk; nil = nobody. Never changed in place
	epoch     atomic.Uint64            // of the head that is on disk
	whole     atomic.Bool              // begun
	closed    atomic.Bool
	stats     keeperStats

	ctx    context.Context
	cancel context.CancelFunc
	work   sync.WaitGroup
}

type keeperStats struct {
	rounds, synced, puts, failures atomic.Int64
	free                           atomic.Int64 // bytes that the file system has left, as of the last look
	problem                        atomic.Pointer[string]
}

// OpenKeeper opens what is on disk, which Found tells of and Load reads. Nothing is written
// before Run.
func OpenKeeper(cfg Config) (*Keeper, error) {
	k := &Keeper{cfg: cfg, wake: make(chan struct{}, 1), asked: make(chan chan snapshotAsked), enlists: make(chan enlisting), streams: map[streamID]streamAt{}, maxPart: maxCommit, patience: restPatience}
	for _, kind := range owner.Kinds() {
		k.kinds[kind] = cfg.Settings.For(kind)
	}
	k.ctx, k.cancel = context.WithCancel(context.Background())
	k.stats.free.Store(-1)
	k.tell()
	numbers, err := k.stores()
	if err == nil {
		err = k.clear()
	}
	if err != nil {
		return nil, err
	}
	for _, n := range slices.Backward(numbers) {
		s, err := Open(k.dir(n), cfg.Options)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", k.dir(n), err)
		}
		// One that was begun anew beside it, and was not whole yet.
		//guard:disk-unfinished
		if _, whole := s.Head(); !whole {
			if err := errors.Join(s.Close(), k.remove(n)); err != nil {
				return nil, err
			}
			continue
		}
		k.set(s, n)
		break
	}
	h, _ := k.Found()
	k.offset = h.Clock - cfg.Now()
	k.epoch.Store(h.Epoch)
	if k.store != nil {
		if k.onDisk, err = k.store.Tenures(); err != nil {
			return nil, errors.Join(fmt.Errorf("%s: %w", k.dir(k.number), err), k.store.Close())
		}
		if k.found, err = k.store.Streams(); err != nil {
			return nil, errors.Join(fmt.Errorf("%s: %w", k.dir(k.number), err), k.store.Close())
		}
		for i := range k.found {
			s := &k.found[i]
			k.streams[s.id()] = streamAt{s.Session, s.Number, s.PeerRounds, true}
		}
		list := slices.Clone(k.onDisk)
		counted(list, h)
		k.list.Store(&list)
	}
	return k, nil
}

// stores returns the numbers of the stores in the directory, in order.
func (k *Keeper) stores() ([]int, error) { return Stores(k.fs(), k.cfg.Dir) }

func (k *Keeper) fs() vfs.FS {
	if fs := k.cfg.Options.FS; fs != nil {
		return fs
	}
	return vfs.Default
}

func (k *Keeper) dir(n int) string { return StoreDir(k.cfg.Dir, n) }

// Found returns what the last process has left, if anything.
func (k *Keeper) Found() (Head, bool) {
	if k.store == nil {
		return Head{}, false
	}
	return k.store.Head()
}

// clock returns the time of the disk's clock at a moment of the process's.
func (k *Keeper) clock(now int64) int64 { return now + k.offset }

// AppendIDs implements owner.Journal.
func (k *Keeper) AppendIDs(to []byte, r *owner.Record) []byte {
	if k.kinds[r.Kind] == None {
		return to
	}
	at := len(to)
	to = append(to, 0, 0, 0, 0)
	to = binary.BigEndian.AppendUint64(to, uint64(k.clock(r.At)))
	to = record.AppendIDs(to, r, r.At)
	binary.BigEndian.PutUint32(to[at:], uint32(len(to)-at-4))
	return to
}

// Awaited implements owner.Journal.
func (k *Keeper) Awaited(kind owner.Kind) bool { return k.kinds[kind] == Always }

// Crowded implements owner.Journal.
func (k *Keeper) Crowded() { k.nudge() }

// nudge asks for a round.
func (k *Keeper) nudge() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// Load puts what was found into a store of objects that nobody uses yet. n is how many there
// were.
func (k *Keeper) Load(objects *owner.Store) (n int, err error) {
	h, ok := k.Found()
	if !ok {
		return 0, nil
	}
	var r owner.Record
	//guard:disk-clock h.Clock -> int64(binary.BigEndian.Uint64(b))
	moment := func(b []byte) int64 { return k.cfg.Now() - (h.Clock - int64(binary.BigEndian.Uint64(b))) }
	err = k.store.Objects(func(hash uint64, key, name, value []byte) error {
		if len(value) < 8 {
			return fmt.Errorf("%w: an object of %d bytes", ErrDamaged, len(value))
		}
		now := moment(value)
		if err := record.Decode(value[8:], now, &r); err != nil {
			return err
		}
		n++
		if err := objects.Install(now, &r, anywhere); err != nil {
			return err
		}
		if ref := (owner.Ref{Key: string(key), Name: string(name), Hash: hash}); !objects.Has(ref) {
			k.over = append(k.over, ref) // its time has ended, and nobody will say that it is gone
		}
		return nil
	})
	if err != nil {
		return n, err
	}
	voids, err := k.store.voids()
	if err != nil {
		return n, err
	}
	err = k.store.entries(h.Clock-k.window(&h), func(at place, _ int64, entry []byte) error {
		if len(entry) < 8 {
			return fmt.Errorf("%w: an entry of %d bytes", ErrDamaged, len(entry))
		}
		now := moment(entry)
		if err := record.DecodeIDs(entry[8:], now, &r); err != nil {
			return err
		}
		//guard:disk-voids false
		if len(voids.parts) > 0 && voids.is(owner.Hash(string(r.Key)), at) {
			return nil
		}
		return objects.Remember(now, &r)
	})
	if err != nil {
		return n, err
	}
	versions := h.Versions
	if !h.Clean {
		versions += lostVersions
	}
	//guard:disk-versions versions -> 0
	return n, objects.RaiseVersions(versions)
}

// lostVersions is more than the versions that a shard gives between two rounds. In a cluster those of another process may come in
// as well, which has raised its own by so much: the round that takes the first of them writes how far they are.
const lostVersions = 1 << 30

func anywhere(uint64) bool { return true }

// Run keeps the objects from now on. loaded says that they are what Load put there, and that nobody has
// changed them since; else all of them are written to a new store. It returns when a crash loses nothing
// of what they are now.
func (k *Keeper) Run(objects *owner.Store, loaded bool) error {
	if err := k.start(objects, loaded); err != nil {
		return err
	}
	k.running.Store(true)
	k.work.Go(k.run)
	k.work.Go(k.watch)
	return nil
}

// start does the first round.
func (k *Keeper) start(objects *owner.Store, loaded bool) error {
	k.objects = objects
	h, _ := k.Found()
	if loaded {
		k.floor = h.Epoch
	} else {
		k.disown()
	}
	if loaded = loaded && k.store != nil && !k.foreign(); loaded {
		k.begun = true
		k.removeOthers() // that a crash has brought back
	} else if err := k.anew(); err != nil {
		return err
	}
	objects.Track(loaded)
	return k.step(true)
}

// foreign reports whether the store may have objects of kinds that are not kept while a process runs: they would come
// back after a crash as they were long before it.
func (k *Keeper) foreign() bool {
	h, _ := k.Found()
	//guard:disk-foreign-kinds false
	return k.cfg.Settings.partly() && (h.Clean || h.Durability != k.cfg.Settings.String())
}

// Finish has all on disk that the objects are, which nobody changes any more: the next process
// finds that nothing was lost. If it fails, it may be called again; it gives up, for now, a disk that hangs.
func (k *Keeper) Finish() error {
	if !k.halt() {
		return errHangs
	}
	if k.last == nil {
		last := make(chan error, 1)
		k.last = last
		go func() { last <- k.finish() }()
	}
	//guard:disk-last-hangs k.patience -> time.Hour
	timer := time.NewTimer(k.patience)
	defer timer.Stop()
	select {
	case err := <-k.last:
		k.last = nil
		return err
	case <-timer.C:
		return errHangs
	}
}

// finish is the last round, or the next try of it.
func (k *Keeper) finish() error {
	// What was not kept until now is, all of it, with the rest.
	//guard:disk-finish-kinds true -> false
	k.all = true
	//guard:disk-finish-anew
	if k.store.Err() != nil || !k.begun || k.cfg.Settings.partly() {
		if err := k.anew(); err != nil {
			return err
		}
		k.objects.Track(false)
	}
	//guard:disk-finish-skipped
	k.objects.Unskip()
	n := k.note()
	k.round++
	k.batch, k.failing, k.puts = k.store.NewBatch(), nil, 0
	var err error
	if k.objects.Gather(k.cfg.Now(), k.round, 0, k) {
		err = k.commit(n, true, true)
	} else {
		err = k.failing
	}
	//guard:disk-finish-whole err != nil -> false
	if err != nil {
		k.begun = false // it lacks what the round has taken
	}
	return err
}

// Close ends the rounds and lets go of the directory. Without a Finish before, it is like the death of the
// process.
func (k *Keeper) Close() error {
	switch {
	case !k.halt() || k.last != nil:
		return errHangs
	case k.store == nil:
		return nil
	}
	return k.store.Close()
}

// errHangs is the error of an end that a disk holds up.
var errHangs = fmt.Errorf("the disk has not taken what was written to it for %s", restPatience)

// halt ends the rounds, and returns false if one of them hangs.
func (k *Keeper) halt() bool {
	k.closed.Store(true)
	k.cancel()
	k.tell()
	done := make(chan struct{})
	go func() { k.work.Wait(); close(done) }()
	timer := time.NewTimer(k.patience)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}

// Status is what people want to know of a Keeper.
type Status struct {
	Settings Settings
	Behind   time.Duration // how old the oldest change may be that is not on disk
	Rounds   int64         // since the start; Synced of them wrote something
	Synced   int64
	Written  int64 // objects, deletions and entries
	Failures int64
	Problem  string // "" = none
	Free     int64  // bytes that the file system has left; -1 = unknown
	Store    Stats
}

// roomSlack is room that a store takes however small it is: logs of two memtables, and a manifest.
const roomSlack = 64 << 20

// Room is how many bytes the file system ought to have left: to merge a large table a store
// takes as much again as that has, about a quarter of all.
func (s Status) Room() int64 { return s.Store.DiskBytes/4 + roomSlack }

// Short is how many bytes of that are missing; 0 = none, or it is unknown.
func (s Status) Short() int64 {
	if s.Free < 0 {
		return 0
	}
	return max(0, s.Room()-s.Free)
}

// Status returns the present one.
func (k *Keeper) Status() Status {
	s := Status{Settings: k.cfg.Settings, Behind: max(0, time.Duration(k.cfg.Now()-k.safe.Load())),
		Rounds: k.stats.rounds.Load(), Synced: k.stats.synced.Load(), Written: k.stats.puts.Load(), Failures: k.stats.failures.Load(), Free: k.stats.free.Load()}
	if p := k.stats.problem.Load(); p != nil {
		s.Problem = *p
	}
	if store := k.shown.Load(); store != nil {
		s.Store = store.Stats()
	}
	return s
}
