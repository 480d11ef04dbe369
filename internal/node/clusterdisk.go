package node

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/keystead/keystead/handoff/disk"
	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner"
	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
	"github.com/keystead/keystead/ring/epoch/table"
)

// disks reports whether nodes of clusters keep a store on disk: this program knows how rows say
// whose disk counts.
func (c Config) disks() bool { return max(c.Wires.Level, table.Level) >= table.DiskLevel }

// clusterDisk is the store on disk of a node in a cluster. What the last process has left is in
// memory before this one asks for admission; from then on what is in memory is on disk, a moment
// later. Which rows it counts for, the table says.
type clusterDisk struct {
	c        *cluster
	keeper   *disk.Keeper
	settings disk.Settings
	store    *owner.Store // set by begin
	began    uint64       // incarnation of this process at its start; set by begin
	found    disk.Head    // what the last process has left; zero = nothing
	uid      string       // of the cluster, as the log said at the start; "" = it did not know

	mu      sync.Mutex               // guards what follows
	epoch   uint64                   // of what memory has for rows that wait for an earlier process of the node
	streams map[streamID]disk.Stream // the last that was known of each stream of this process
}

// streamID names a stream of records.
type streamID struct {
	of          uint64 // incarnation of this node
	node        string // at the other end
	incarnation uint64
	out         bool
}

// maxStreams bounds the streams that are remembered: more than one to and one from every node.
const maxStreams = 1024

// openDisk opens the store on disk of this node, if it keeps one. A store that is another's is
// put aside.
func (c *cluster) openDisk() error {
	s, err := c.cfg.durability()
	if err != nil {
		return err
	}
	dir := filepath.Join(c.cfg.DataDir, diskDirectory)
	if !s.Kept() {
		if _, err := c.fs().Stat(dir); c.cfg.DataDir != "" && err == nil {
			c.log.Warn("there is a store on disk, and this process keeps none: what is there counts for nothing that is decided from now on", "directory", dir)
		}
		return nil
	}
	//guard:cluster-disk-kinds s.OfCluster() -> s
	if all := s.OfCluster(); all.String() != s.String() {
		c.log.Info("other nodes count on the disk of this one: it keeps all kinds, those with none as under interval", "durability", all.String())
		s = all
	}
	d := &clusterDisk{c: c, settings: s, uid: c.self.UID, streams: map[streamID]disk.Stream{}}
	for {
		if d.keeper, err = disk.OpenKeeper(d.config()); err != nil {
			return fmt.Errorf("opening the store on disk: %w", clusterDiskHint(dir, err))
		}
		why := d.misfit()
		if why == nil {
			break
		}
		if err := errors.Join(d.keeper.Close(), c.putAside(dir, why)); err != nil {
			return err
		}
	}
	d.found, _ = d.keeper.Found()
	c.disk = d
	return nil
}

func (c *cluster) fs() vfs.FS {
	if c.cfg.Wires.Disk != nil {
		return c.cfg.Wires.Disk
	}
	return vfs.Default
}

// clusterDiskHint says what to do about a store that cannot be opened.
func clusterDiskHint(dir string, err error) error {
	switch {
	case errors.Is(err, disk.ErrNewer):
		return fmt.Errorf("%w: start that program, or move %s away: the cluster then goes on with what other nodes have", err, dir)
	case errors.Is(err, disk.ErrDamaged):
		return fmt.Errorf("%w: move %s away: the cluster then goes on with what other nodes have, and `keystead status` shows what waits for this one; `keystead disk verify` says what is wrong", err, dir)
	}
	return err
}

// misfit says why a store is of no use to this node.
func (d *clusterDisk) misfit() error {
	h, found := d.keeper.Found()
	self := &d.c.self
	switch {
	case !found:
		return nil
	case h.Cluster == "":
		return fmt.Errorf("it is of the node %q that ran alone, not of a cluster", h.Node)
	case h.Cluster != self.Cluster || h.Node != self.Node,
		h.UID != "" && self.UID != "" && h.UID != self.UID: //guard:disk-of-another h.UID != self.UID -> false
		// One of before the node knew has none.
		return fmt.Errorf("it is of node %q in cluster %q (%s), not of node %q in cluster %q (%s)", h.Node, h.Cluster, h.UID, self.Node, self.Cluster, self.UID)
	}
	return nil
}

// putAside moves the stores away, so that nothing of them is lost.
func (c *cluster) putAside(dir string, why error) error {
	aside := dir + ".aside"
	for n := 2; ; n++ {
		if _, err := c.fs().Stat(aside); errors.Is(err, fs.ErrNotExist) {
			break
		} else if err != nil {
			return err
		}
		aside = dir + ".aside-" + strconv.Itoa(n)
	}
	c.log.Error("the store on disk is not used: this node begins without one", "why", why, "kept in", aside)
	if err := c.fs().Rename(dir, aside); err != nil {
		return fmt.Errorf("the store on disk is not this node's (%w), and cannot be put aside: %w", why, err)
	}
	parent, err := c.fs().OpenDir(filepath.Dir(dir))
	if err != nil {
		return err
	}
	return errors.Join(parent.Sync(), parent.Close())
}

func (d *clusterDisk) config() disk.Config {
	conf := keeperConfig(&d.c.cfg, d.settings)
	conf.Head, conf.Noted, conf.Streams = d.head, d.noted, d.current
	return conf
}

// head is what the store says of this process when a round begins.
func (d *clusterDisk) head() disk.Head {
	c := d.c
	t := c.serving.Table()
	return disk.Head{
		Cluster: c.self.Cluster, UID: cmp.Or(t.UID, d.uid, d.found.UID),
		Node: c.self.Node, Incarnation: c.serving.Self().Incarnation, Epoch: c.serving.CleanEpoch(),
		//guard:disk-window-found cmp.Or(t.IDWindow, d.found.Window) -> 0
		Window:  cmp.Or(t.IDWindow, d.found.Window), // the log is read after the first rounds
		Version: c.cfg.Version, Written: c.cfg.Wires.Wall().UnixNano(),
	}
}

// noted has what was received acknowledged as kept when the round that begins is synced.
func (d *clusterDisk) noted() func() {
	if in := d.c.state.intake.Load(); in != nil {
		return in.Note()
	}
	return func() {}
}

// current returns how far the streams of records are, to this node and from it.
func (d *clusterDisk) current() []disk.Stream {
	now := d.c.state.streams()
	of := d.c.serving.Self().Incarnation
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.streams) > maxStreams {
		clear(d.streams)
	}
	for i := range now {
		id := streamID{of, now[i].Node, now[i].Incarnation, now[i].Out}
		now[i].Of, now[i].PeerRounds = of, max(now[i].PeerRounds, d.streams[id].PeerRounds)
		d.streams[id] = now[i]
	}
	return now
}

// first returns the incarnation of this process: one that no process has had that had the disk. Where the clock has gone
// back, it goes by chance as well: of two processes on copies of the disk, each has its own.
func (d *clusterDisk) first(drawn uint64) uint64 {
	for _, t := range d.keeper.List() {
		//guard:disk-incarnation t.Incarnation >= drawn -> false
		if t.Incarnation >= drawn {
			//guard:disk-incarnation-by-chance 2*rand.Uint64N(1<<19) -> 0
			drawn = t.Incarnation + 2 + 2*rand.Uint64N(1<<19)
		}
	}
	return drawn
}

// begin puts what the last process had into the store, unless a state file has told it, and keeps
// that from now on.
func (d *clusterDisk) begin(store *owner.Store) error {
	c, k := d.c, d.keeper
	d.store, d.began = store, c.self.Incarnation
	loaded := false
	switch _, found := k.Found(); {
	case c.saved != nil && !d.hasFile():
		if err := loadState(c.saved, store, c.cfg.Clock, c.log); err != nil {
			return err
		}
		d.epoch = c.saved.Header.Epoch
	case found:
		began := time.Now()
		n, err := k.Load(store)
		if err != nil {
			return fmt.Errorf("reading the store on disk: %w", clusterDiskHint(filepath.Join(c.cfg.DataDir, diskDirectory), fullHint(err)))
		}
		loaded, d.epoch = true, d.found.Epoch
		c.log.Info("read the store on disk", "objects", n, "epoch", d.found.Epoch, "in order", d.found.Clean, "took", time.Since(began).Round(time.Millisecond))
	}
	if c.saved != nil {
		d.epoch = c.saved.Header.Epoch
	}
	c.serving.OnDisk(d.list(), d.epoch, loaded || c.saved != nil)
	if err := k.Run(store, loaded); err != nil {
		return fmt.Errorf("writing the store on disk: %w", err)
	}
	return d.enlist(c.self.Incarnation)
}

// hasFile reports whether the store has what the state file has: the same process has finished both.
func (d *clusterDisk) hasFile() bool {
	list := d.keeper.List()
	return len(list) > 0 && list[len(list)-1].Stopped && list[len(list)-1].Incarnation == d.c.saved.Header.Incarnation
}

// list returns the incarnations that have had the disk.
func (d *clusterDisk) list() (all []uint64) {
	for _, t := range d.keeper.List() {
		all = append(all, t.Incarnation)
	}
	return all
}

// learned forgets those that have had the disk and that no row waits for any more.
func (d *clusterDisk) learned(t *table.Table) {
	self, list := d.c.serving.Self(), d.keeper.List()
	// A table may be from before this process began to become the next incarnation: later ones may name the one that it was.
	//guard:disk-named-late list[len(list)-1].Incarnation != self.Incarnation -> false
	if !t.Holds(self) || len(list) < 2 || list[len(list)-1].Incarnation != self.Incarnation {
		return
	}
	waits := map[uint64]bool{}
	for i := range t.Rows {
		r := &t.Rows[i]
		for _, h := range [4]table.Holder{r.Owner, r.Standby, r.Was, r.Stood} {
			if h.Node == self.Node {
				waits[h.Incarnation] = true
			}
		}
	}
	//guard:disk-awaited waits[incarnation] -> false
	d.keeper.Named(func(incarnation uint64) bool { return waits[incarnation] })
}

// become is called before this process asks to be admitted, also when it does so again as another incarnation: what
// it has then counts for the rows that wait for the one that it was.
func (d *clusterDisk) become(incarnation uint64) error {
	epoch := d.c.serving.CleanEpoch()
	if err := d.enlist(incarnation); err != nil || incarnation == d.began {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.epoch = epoch
	return nil
}

func (d *clusterDisk) enlist(incarnation uint64) error {
	if err := d.keeper.Enlist(incarnation); err != nil {
		return fmt.Errorf("writing which process has the disk to %s: %w", filepath.Join(d.c.cfg.DataDir, diskDirectory), err)
	}
	d.c.serving.OnDisk(d.list(), 0, false)
	return nil
}

// report is what the node tells the leader of its disk. It never waits.
func (d *clusterDisk) report(full bool) *peerv1.DiskReport {
	r := &peerv1.DiskReport{Durability: uint32(promised(d.settings)), Whole: d.keeper.Whole() && d.caughtUp()}
	if !full {
		return r
	}
	for _, t := range d.keeper.List() {
		r.Incarnations, r.Rounds = append(r.Incarnations, t.Incarnation), append(r.Rounds, t.Rounds)
		if t.Stopped {
			r.Stopped = append(r.Stopped, t.Incarnation)
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	//guard:disk-epoch-found d.epoch -> d.c.serving.CleanEpoch()
	r.Epoch = d.epoch
	all := slices.Concat(d.keeper.FoundStreams(), slices.Collect(maps.Values(d.streams)))
	slices.SortFunc(all, func(a, b disk.Stream) int { return cmp.Compare(a.Of, b.Of) }) // the last one of a peer counts
	for _, s := range all {
		r.Streams = append(r.Streams, &peerv1.DiskStream{Node: s.Node, Incarnation: s.Incarnation, Out: s.Out, Session: s.Session, Number: s.Number, PeerRounds: s.PeerRounds})
	}
	return r
}

// caughtUp reports whether the disk has the copies by which rows name this process. Before anything is agreed, a Sync or a
// Flip does not wait for that; from then on the disk counts for these rows.
func (d *clusterDisk) caughtUp() bool {
	t := d.c.serving.Table()
	//guard:disk-caught-up true
	if t.Durable != table.Undurable || d.keeper.HeadEpoch() >= t.Concerns(d.c.serving.Self()) {
		return true
	}
	d.keeper.Crowded()
	return false
}

// promised returns what settings promise, as tables say it.
func promised(s disk.Settings) table.Durability {
	always := false
	for _, k := range owner.Kinds() {
		always = always || s.For(k) == disk.Always
	}
	switch {
	case !s.Kept():
		return table.Undurable
	case s.Whole():
		return table.Entire
	case always:
		return table.Always
	}
	return table.Interval
}

// durable reports whether the cluster counts on disks.
func (c *cluster) durable() bool { return c.serving.Table().Durable != table.Undurable }

// maxUntaken is how many bytes may wait for a disk on which nothing counts yet: what answers wait
// for is bounded by the store.
const maxUntaken = 64 << 20

var errUntaken = &failure.Error{Reason: failure.Unavailable, RetryAfter: 200 * time.Millisecond,
	Message: "more has changed than the disk of the node has taken; nothing happened",
	Hint:    "make room, or mend the disk of --data-dir: see `keystead status`"}

// admit returns why an operation must not be let in; nil = it may.
func (d *clusterDisk) admit() error {
	if d.c.durable() { //guard:cluster-disk-admits d.c.durable() -> false
		return d.keeper.Admit()
	}
	if d.store.Ungathered() > maxUntaken {
		return errUntaken
	}
	return nil
}

// untold returns the error of an answer that waits for the disk of this node in vain; nil = it waits for others.
func (d *clusterDisk) untold() *failure.Error {
	if d.c.durable() && d.keeper.Admit() != nil {
		return errNotOnDisk
	}
	return nil
}

// ofOthers ends a process whose store is of another cluster with the same name: the node did not know
// its own when it opened that.
func (d *clusterDisk) ofOthers(t *table.Table) error {
	//guard:disk-of-another-later
	if t.UID != "" && d.found.UID != "" && t.UID != d.found.UID {
		return fmt.Errorf("the store in %s is of another cluster of the same name (%s, and this one is %s): move it away",
			filepath.Join(d.c.cfg.DataDir, diskDirectory), d.found.UID, t.UID)
	}
	return nil
}

// forHandoff is the disk as answers wait for it. It implements handoff.Disk.
type forHandoff struct{ *disk.Keeper }

// Always reports whether answers about objects of a kind wait until they are on disk.
func (f forHandoff) Always(k owner.Kind) bool { return f.Status().Settings.For(k) == disk.Always }

// Urge asks for a round soon.
func (f forHandoff) Urge() { f.Crowded() }

// Interval returns by how much the disk may be behind.
func (f forHandoff) Interval() time.Duration { return f.Status().Settings.Interval }

// finish has the disk take the last of what was decided, and lets go of it.
func (d *clusterDisk) finish(keeps *keeps) {
	if d.c.durable() {
		keeps.finish(d.keeper)
		return
	}
	if err := d.keeper.Finish(); err != nil { // the state file has it all
		d.c.log.Warn("the last of what was decided is not in the store on disk", "error", err)
	}
	d.close()
}

// close lets go of the disk, if that was not done.
func (d *clusterDisk) close() {
	if err := d.keeper.Close(); err != nil {
		d.c.log.Warn("closing the store on disk", "data directory", d.c.cfg.DataDir, "error", err)
	}
}
