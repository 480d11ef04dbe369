package sim

import (
	"errors"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// Disk is what a host keeps beside its log: a file system in memory that knows what was
// synced. A crash of the host leaves that, and by chance what was not.
type Disk struct {
	gate *Gate
	rnd  *rand.Rand
	slow atomic.Int64 // how long a sync takes, in ns
	dir  string       // of the data, which somebody has made
	mem  *vfs.MemFS   // of the goroutine of the cluster
	over *atomic.Bool // the process that has it ends; nil = there was none. Of the same goroutine
}

func newDisk(seed uint64, g *Gate, dir string) *Disk {
	d := &Disk{gate: g, rnd: rand.New(rand.NewPCG(seed, 0x6469736b)), dir: dir}
	d.wipe()
	return d
}

// files returns the file system for a process. A sync of the engine's log waits while the host is paused, and as long as
// the disk is slow, but for the last one: other steps the engine does under its mutexes.
func (d *Disk) files() vfs.FS {
	over := new(atomic.Bool)
	d.over = over
	return errorfs.Wrap(d.mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if over.Load() || op.Kind != errorfs.OpFileSync && op.Kind != errorfs.OpFileSyncData || !strings.HasSuffix(op.Path, ".log") {
			return nil
		}
		d.gate.Pass()
		if by := d.slow.Load(); by > 0 {
			time.Sleep(time.Duration(by))
			d.gate.Pass()
		}
		return nil
	}))
}

// Slow has each sync take so long; 0 = no time at all.
func (d *Disk) Slow(by time.Duration) { d.slow.Store(int64(by)) }

// ends says that the process ends: nothing waits any more.
func (d *Disk) ends() {
	if d.over != nil {
		d.over.Store(true)
	}
}

// end has what the process still writes be lost: it is dead. The power may have gone, too.
func (d *Disk) end(power bool) {
	d.ends()
	keep := vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: d.rnd}
	if power {
		keep.UnsyncedDataPercent = 10 * d.rnd.IntN(11)
	}
	d.mem = d.mem.CrashClone(keep)
}

// wipe empties the disk.
func (d *Disk) wipe() {
	d.mem = vfs.NewCrashableMem()
	if err := d.mem.MkdirAll(d.dir, 0o700); err != nil {
		panic(err)
	}
	for dir := d.dir; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		parent, err := d.mem.OpenDir(filepath.Dir(dir))
		if err == nil {
			err = errors.Join(parent.Sync(), parent.Close())
		}
		if err != nil {
			panic(err)
		}
	}
}
