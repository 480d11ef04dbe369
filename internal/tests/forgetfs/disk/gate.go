package disk

import (
	"sync"
	"syscall"
	"time"
)

// access is what somebody is about to do.
type access int

const (
	reading  access = iota
	changing        // names, sizes, modes
	writing
	syncing
)

// Failing says which writes, or syncs, fail.
type Failing struct {
	// Nth is the first one that fails, counted from now: 1 is the next. 0 is none.
	Nth int64
	// Forever has all later ones fail, too.
	Forever bool
}

// next counts one, and reports whether it fails.
func (f *Failing) next() bool {
	if f.Nth > 1 {
		f.Nth--
		return false
	}
	if f.Nth == 1 && !f.Forever {
		f.Nth = 0
		return true
	}
	return f.Nth == 1
}

// gate is what all that is asked of a disk goes through: there it fails, or waits.
type gate struct {
	mu       sync.Mutex
	free     *sync.Cond    // nothing hangs, or the disk has crashed
	gone     chan struct{} // closed by the crash
	crashed  bool
	hangs    bool
	readonly bool
	limit    int64         // bytes of all files; 0 is none
	slow     time.Duration // of each sync
	writes   Failing
	syncs    Failing
}

func (g *gate) init() { g.free, g.gone = sync.NewCond(&g.mu), make(chan struct{}) }

// enter returns 0 when somebody may go on, and otherwise what is said.
func (g *gate) enter(a access) syscall.Errno {
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.hangs && !g.crashed {
		g.free.Wait()
	}
	if a == syncing && g.slow > 0 && !g.crashed {
		g.pause(g.slow)
	}
	switch {
	case g.crashed:
		return syscall.EIO
	case g.readonly && (a == changing || a == writing):
		return syscall.EROFS
	case a == writing && g.writes.next(), a == syncing && g.syncs.next():
		return syscall.EIO
	}
	return 0
}

// pause waits without the lock, at most until a crash.
func (g *gate) pause(d time.Duration) {
	g.mu.Unlock()
	defer g.mu.Lock()
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-g.gone:
	}
}

func (g *gate) full(bytes int64) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.limit > 0 && bytes > g.limit
}

func (g *gate) crash() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.crashed {
		g.crashed = true
		close(g.gone)
	}
	g.free.Broadcast()
}

func (g *gate) set(f func(*gate)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f(g)
	g.free.Broadcast()
}

// FailWrites has writes fail with EIO; nothing of them is written.
func (d *Disk) FailWrites(f Failing) { d.gate.set(func(g *gate) { g.writes = f }) }

// FailSyncs has syncs fail with EIO; what they should have kept is dropped.
func (d *Disk) FailSyncs(f Failing) { d.gate.set(func(g *gate) { g.syncs = f }) }

// SlowSyncs has each sync wait for so long before it begins.
func (d *Disk) SlowSyncs(by time.Duration) { d.gate.set(func(g *gate) { g.slow = by }) }

// Limit bounds the size of all files together: beyond it there is ENOSPC. 0 is no bound.
func (d *Disk) Limit(bytes int64) { d.gate.set(func(g *gate) { g.limit = bytes }) }

// ReadOnly has all that changes something fail with EROFS.
func (d *Disk) ReadOnly(on bool) { d.gate.set(func(g *gate) { g.readonly = on }) }

// Hang has all wait, until it is called with false, or the disk crashes.
func (d *Disk) Hang(on bool) { d.gate.set(func(g *gate) { g.hangs = on }) }
