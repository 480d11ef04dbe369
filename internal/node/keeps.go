package node

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/keystead/keystead/handoff/disk"
	"github.com/keystead/keystead/handoff/disk/statefile"
	"github.com/keystead/keystead/owner"
)

const (
	// keepPause is between two tries to write the state.
	keepPause = time.Second
	// keepSaid is between two lines of the log that say so.
	keepSaid = 10 * time.Second
	// roomEvery is how often the room for the state is looked after.
	roomEvery = 5 * time.Second
	// roomSlack is more than the file takes beside the objects, in bytes.
	roomSlack = 1 << 20
)

// keeps is what a node does for its next process: it holds room for the state while it
// runs, and writes that when it stops.
type keeps struct {
	cfg   *Config
	until time.Time    // tries go on so long; set before Stop
	busy  atomic.Bool  // the file is being written
	tries atomic.Int64 // that have failed
	short atomic.Int64 // bytes for which there is no room
	err   error        // why the state was not kept; read after Stop

	hurried chan struct{} // closed by hurry
	once    sync.Once
}

func newKeeps(cfg *Config) *keeps { return &keeps{cfg: cfg, hurried: make(chan struct{})} }

func (k *keeps) hurry() { k.once.Do(func() { close(k.hurried) }) }

// unlessHurried is a context that ends when the node is told to hurry.
func (k *keeps) unlessHurried(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-k.hurried:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(); <-done }
}

// KeepUntil has a Stop that cannot write the state try until then. Without it, there is
// one try. It is called before Stop.
func (n *Node) KeepUntil(t time.Time) { n.keeps.until = t }

// Hurry has a drain and a Stop that are under way wait for nothing any more.
func (n *Node) Hurry() {
	n.keeps.hurry()
	if n.rpc != nil {
		n.rpc.Hurry()
	}
}

// Keeping reports whether the state is being written.
func (n *Node) Keeping() bool { return n.keeps.busy.Load() }

// Kept returns why Stop could not write the state, nil if it did or there was none to
// write.
func (n *Node) Kept() error { return n.keeps.err } //guard:keep-error n.keeps.err -> nil

// KeepsState reports whether an orderly stop keeps what the node has for its next
// process.
func (n *Node) KeepsState() bool { return keepsState(n.cfg) }

func keepsState(c Config) bool { return c.DataDir != "" }

// writesState reports whether an orderly stop writes a state file: where the store on disk counts, it needs none.
func (n *Node) writesState() bool {
	return n.keeper() == nil || n.cluster != nil && !n.cluster.durable()
}

// keep writes the state, as a program that knows this level reads it: of a node that runs
// alone, any. A disk that has no room, or fails, may be mended meanwhile: it
// is tried again.
func (k *keeps) keep(head func() statefile.Header, level uint32, store *owner.Store) {
	k.err = k.tryOn(func() error {
		return keepState(k.cfg.DataDir, head(), level, store, k.cfg.Clock, k.cfg.Log)
	})
	if k.err != nil {
		k.cfg.Log.Error("the state was not kept for the next process: limits, counters and locks end with this one",
			"data directory", k.cfg.DataDir, "error", k.err)
	}
}

// tryOn writes the state until that works, the time for it is over, or the node is told to
// hurry.
func (k *keeps) tryOn(write func() error) (err error) {
	k.busy.Store(true)
	defer k.busy.Store(false)
	ctx, release := k.unlessHurried(context.Background())
	defer release()
	var said time.Time
	for {
		if err = write(); err != nil {
			k.tries.Add(1)
		}
		left := time.Until(k.until)
		//guard:keep-tries-on true
		if err == nil || left <= 0 || ctx.Err() != nil {
			return err
		}
		if time.Since(said) >= keepSaid {
			said = time.Now()
			k.cfg.Log.Error("the state cannot be written; trying on: make room on the disk of --data-dir",
				"data directory", k.cfg.DataDir, "error", err, "for", left.Round(time.Second))
		}
		k.busy.Store(false) // between tries nothing is torn
		pause(ctx, keepPause)
		k.busy.Store(true)
	}
}

// finish has the disk take the last of what was decided. A disk that has no room, or fails, may be
// mended meanwhile: it is tried again.
func (k *keeps) finish(store *disk.Keeper) {
	//guard:disk-closed-in-order k.tryOn(store.Finish) -> nil
	k.err = k.tryOn(store.Finish)
	if k.err != nil {
		k.cfg.Log.Error("the last of what was decided is not on disk", "data directory", k.cfg.DataDir, "error", k.err)
	}
	if err := store.Close(); err != nil {
		k.cfg.Log.Warn("closing the store on disk", "data directory", k.cfg.DataDir, "error", err)
	}
}

// holdRoom looks after the room for the state until the context ends, as long as it is to be written.
func (k *keeps) holdRoom(ctx context.Context, store *owner.Store, written func() bool) {
	for {
		var short int64
		var err error
		if written() {
			short, err = statefile.Reserve(k.cfg.DataDir, store.Stats().Bytes+roomSlack)
		} else {
			err = statefile.Release(k.cfg.DataDir)
		}
		switch was := k.short.Swap(short); {
		case short > 0 && was == 0:
			k.cfg.Log.Warn("there is too little room for the state: a stop of this node would lose it; make room on the disk of --data-dir",
				"data directory", k.cfg.DataDir, "missing bytes", short, "error", err)
		case short == 0 && was > 0:
			k.cfg.Log.Info("there is room for the state again", "data directory", k.cfg.DataDir)
		}
		if !pause(ctx, roomEvery) {
			return
		}
	}
}

// roomWarning returns what the status says when there is too little room.
func (k *keeps) roomWarning() (problem, hint string) {
	short := k.short.Load()
	if short == 0 {
		return "", ""
	}
	return fmt.Sprintf("the disk of %s has too little room for the state: %s more are needed, and an orderly stop would lose it", k.cfg.DataDir, inMiB(short)),
		"make room there, or give the node a larger --data-dir"
}

// inMiB writes a number of bytes as people make room for it, rounded up.
func inMiB(bytes int64) string { return fmt.Sprintf("%d MiB", (bytes+1<<20-1)>>20) }

// leave gives back the room of a node that has nothing to keep.
func (k *keeps) leave() {
	if k.cfg.DataDir != "" {
		_ = statefile.Release(k.cfg.DataDir)
	}
}
