package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/keystead/keystead/handoff/disk"
	"github.com/keystead/keystead/handoff/disk/statefile"
	"github.com/keystead/keystead/internal/durably"
	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner"
	clusterpb "github.com/keystead/keystead/proto/keystead/cluster/v1"
	"github.com/keystead/keystead/ring/epoch/table"
)

// diskDirectory is where the store on disk is, in the data directory.
const diskDirectory = "disk"

// errNotOnDisk is the error of an operation that the disk did not take in time.
var errNotOnDisk = &failure.Error{Reason: failure.OutcomeUnknown, RetryAfter: time.Second,
	Message: "the disk of the node did not take the operation; it may have taken effect, and be lost with the process",
	Hint:    "try again with the same request id to learn what became of it; `keystead status` shows what is wrong with the disk"}

// notOnDisk is rpc.Config.Untold of a node that waits for nothing else.
func notOnDisk() *failure.Error { return errNotOnDisk }

// durability returns what the settings say.
func (c Config) durability() (disk.Settings, error) {
	if c.DataDir == "" || c.Cluster.ID != "" && !c.disks() {
		return disk.Settings{Default: disk.None}, nil
	}
	return disk.ParseSettings(c.Durability, c.DurabilityInterval)
}

func (c Config) validateDurability() error {
	s, err := disk.ParseSettings(c.Durability, c.DurabilityInterval)
	switch {
	case err != nil:
		return err
	case c.Durability == "":
		return nil
	case s.Kept() && c.DataDir == "":
		return fmt.Errorf("--durability %s needs a disk: set --data-dir too", c.Durability)
	case s.Kept() && c.Cluster.ID != "" && !c.disks():
		return fmt.Errorf("--durability %s is for a node that runs alone: one of a cluster keeps its state with its standby, and on disk at an orderly stop of all; leave it out, or choose none", c.Durability)
	}
	for _, k := range owner.Kinds() {
		if s.For(k) == disk.Always && slices.Contains(c.AckOwner, k.String()+"s") {
			return fmt.Errorf("--ack-owner %ss and --durability %s contradict each other: the first tells answers before anybody else has them", k, c.Durability)
		}
	}
	return nil
}

// keeper is what keeps the store on disk; nil = nothing does.
func (n *Node) keeper() *disk.Keeper {
	switch {
	case n.rule != nil:
		return n.rule.keeper
	case n.cluster != nil && n.cluster.disk != nil:
		return n.cluster.disk.keeper
	}
	return nil
}

// diskOf returns the node of which the store on disk is; "" = none.
func (n *Node) diskOf() string {
	if n.rule.keeper == nil {
		return ""
	}
	h, _ := n.rule.keeper.Found()
	return h.Node
}

// openDisk opens the store on disk of a node that runs alone and keeps one. That of a node in a cluster
// is open already: see cluster.openDisk.
func (n *Node) openDisk() error {
	s, err := n.cfg.durability()
	if err != nil || n.cluster != nil || !s.Kept() {
		return err
	}
	conf := keeperConfig(&n.cfg, s)
	conf.Head = n.head
	k, err := disk.OpenKeeper(conf)
	if err != nil {
		return fmt.Errorf("opening the store on disk: %w", n.diskHint(err))
	}
	n.rule.keeper, n.cfg.Store.Journal = k, k
	n.stops = append(n.stops, func() { _ = k.Close() }) // unless it was closed in order
	return nil
}

// keeperConfig is that of a store on disk, but for its Head.
func keeperConfig(cfg *Config, s disk.Settings) disk.Config {
	log := cfg.Log.With("part", "disk")
	return disk.Config{
		Dir: filepath.Join(cfg.DataDir, diskDirectory), Settings: s, Options: disk.Options{FS: cfg.Wires.Disk, Log: log}, Log: log,
		Now: cfg.Clock.Now,
		Window: func() time.Duration {
			return time.Duration(cmp.Or(cfg.Store.RequestIDs.Window, owner.DefaultIDWindow))
		},
	}
}

// diskHint says what to do about a store that cannot be opened.
func (n *Node) diskHint(err error) error {
	switch dir := filepath.Join(n.cfg.DataDir, diskDirectory); {
	case errors.Is(err, disk.ErrNewer):
		return fmt.Errorf("%w: start that program, or move %s away if nobody minds what is in it", err, dir)
	case errors.Is(err, disk.ErrDamaged):
		return fmt.Errorf("%w: restore a backup, or move %s away and start with what is lost: `keystead disk verify` says what is wrong", err, dir)
	}
	return err
}

// head is what the store on disk says of this process.
func (n *Node) head() disk.Head {
	h := disk.Head{Node: n.cfg.ID, Epoch: max(n.rule.epoch.Load(), n.rule.begins), Version: n.cfg.Version, Written: n.cfg.Wires.Wall().UnixNano()}
	now := n.cfg.Clock.Now()
	if n.rule.start != math.MinInt64 {
		h.Unknown = max(1, now-n.rule.start)
	}
	if left := n.rule.lostUntil - now; n.rule.lost != 0 && left > 0 {
		h.Lost, h.LostLeft, h.LostSince = n.rule.lost, left, n.restored
	}
	return h
}

// resume has a node that runs alone go on from what is on disk, if that is what the process before had.
// last is the epoch in which that served, and file its state file, if there is one.
func (n *Node) resume(last, next uint64, now int64, file *statefile.State) (resumed bool, err error) {
	k := n.rule.keeper
	h, found := k.Found()
	//guard:disk-of-a-cluster
	if found && h.Cluster != "" {
		return false, fmt.Errorf("the data directory %s holds the store on disk of the node %q in the cluster %q: set that --cluster-id and --id, or another --data-dir", n.cfg.DataDir, h.Node, h.Cluster)
	}
	served, err := readEpochFile(epochPath(n.cfg.DataDir))
	if err != nil {
		return false, err
	}
	//guard:disk-of-before h.Epoch >= last -> true
	if !found || file != nil || !(served.Disk || h.Epoch >= last) {
		if found && file == nil {
			n.cfg.Log.Error("what is on disk is not used: a process has served since that did not keep it", "epoch", h.Epoch, "served", last)
		}
		return false, nil
	}
	began := time.Now()
	objects, err := k.Load(n.store)
	if err != nil {
		return false, fmt.Errorf("reading the store on disk: %w", n.diskHint(fullHint(err)))
	}
	n.rule.start = math.MinInt64
	if h.Unknown > 0 {
		n.rule.start = now - h.Unknown
	}
	n.rule.lost, n.rule.lostUntil = h.Lost, now+h.LostLeft
	n.cfg.Log.Info("goes on from the store on disk", "objects", objects, "took", time.Since(began).Round(time.Millisecond), "in order", h.Clean)
	n.restored = h.LostSince
	//guard:restored-loss
	if h.Restored != 0 {
		n.restored = h.Restored
		n.declareLoss(next, now, "restored from a backup of "+dateOf(h.Restored)+": what was answered since is lost")
		return true, nil
	}
	before, err := disk.ParseSettings(h.Durability, 0)
	//guard:disk-loss !h.Clean -> false
	if !h.Clean && (err != nil || !before.Whole()) {
		n.lossPartial, n.restored = true, 0
		n.declareLoss(next, now, "what the last process answered in its last moments may be lost, and all of the kinds that it did not keep on disk: it did not stop in order")
	}
	return true, nil
}

// dateOf writes a time of day, in ns since 1970.
func dateOf(unix int64) string { return time.Unix(0, unix).UTC().Format(time.RFC3339) }

// keepOnDisk has the store kept from now on. It comes before the epoch is kept: until then what an earlier process has left
// counts, and from then on what is written here.
func (n *Node) keepOnDisk(resumed bool) error {
	if err := n.rule.keeper.Run(n.store, resumed); err != nil {
		return fmt.Errorf("writing the store on disk: %w", err)
	}
	return nil
}

// leaveDisk reads what an earlier process kept on disk that this one does not keep any more.
func (n *Node) leaveDisk(last, next uint64, now int64, file *statefile.State) (resumed bool, err error) {
	dir := filepath.Join(n.cfg.DataDir, diskDirectory)
	if _, err := os.Stat(dir); n.cfg.DataDir == "" || errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	conf := keeperConfig(&n.cfg, disk.Settings{Default: disk.None, Interval: disk.DefaultInterval})
	conf.Head = n.head
	if n.rule.keeper, err = disk.OpenKeeper(conf); err != nil {
		return false, fmt.Errorf("opening the store on disk: %w", n.diskHint(err))
	}
	k := n.rule.keeper
	resumed, err = n.resume(last, next, now, file)
	n.rule.keeper = nil
	if err = errors.Join(err, k.Close()); err != nil {
		return false, err
	}
	return resumed, nil
}

// clearDisk removes the store on disk of an earlier process, if this one keeps none, in two steps: one that is removed in
// part would be damaged. The epoch is kept by then, so that it does not count any more.
func (n *Node) clearDisk() {
	dir := filepath.Join(n.cfg.DataDir, diskDirectory)
	gone := dir + ".removing"
	err := os.RemoveAll(gone)
	if _, there := os.Stat(dir); err == nil && there == nil && n.rule.keeper == nil {
		err = errors.Join(os.Rename(dir, gone), durably.Names(n.cfg.DataDir), os.RemoveAll(gone))
	}
	if err != nil {
		n.cfg.Log.Warn("a store on disk that does not count any more cannot be removed", "directory", dir, "error", err)
	}
}

// onDisk has answers wait for the disk. It implements rpc.Copies.
type onDisk struct{ k *disk.Keeper }

func (d onDisk) Replicated(hash uint64) bool { return d.k.Durable(hash) }

func (d onDisk) Await(hash uint64) bool { return d.k.Await(context.Background(), hash) }

func (d onDisk) Behind(hash uint64) (behind table.Behind) {
	if !d.k.Durable(hash) {
		behind[0] = table.OwnDisk
	}
	return behind
}

func (d onDisk) AwaitOf(ctx context.Context, hash uint64, _ table.Holder) bool {
	return d.k.Await(ctx, hash)
}

// disk tells of the store on disk.
func (n *Node) disk() *clusterpb.Disk {
	st := n.keeper().Status()
	return &clusterpb.Disk{Durability: st.Settings.String(), IntervalNs: int64(st.Settings.Interval), BehindNs: int64(st.Behind),
		Bytes: st.Store.DiskBytes, Taking: st.Problem == "", Agreed: n.agreed()}
}

// agreed returns what the cluster has agreed that disks promise; "" = the node runs alone.
func (n *Node) agreed() string {
	if n.cluster == nil {
		return ""
	}
	return agreedText(n.cluster.group.Table().Durable)
}

func agreedText(d table.Durability) string {
	switch d {
	case table.Undurable:
		return "none"
	case table.Interval:
		return "interval"
	case table.Always:
		return "partly always"
	case table.Entire:
		return "always"
	}
	return fmt.Sprint("unknown: ", uint8(d)) // of a newer program
}

// diskWarning returns what the status says of a store on disk that takes nothing.
func (n *Node) diskWarning() (problem, hint string) {
	k := n.keeper()
	if problem, hint := n.promisesLess(); problem != "" {
		return problem, hint
	}
	if k == nil {
		return "", ""
	}
	st := k.Status()
	if p := st.Problem; p != "" {
		if n.cluster != nil && !n.cluster.durable() {
			return "the store on disk takes nothing: " + p, "make room there, or mend the disk: until then the cluster agrees on no durability"
		}
		return "the store on disk takes nothing: " + p, "make room there, or mend the disk; operations are refused until it does, and then it goes on by itself"
	}
	//guard:disk-room st.Short() -> 0
	if short := st.Short(); short > 0 {
		return fmt.Sprintf("the disk of %s is nearly full: %s are left, and the store ought to have %s", n.cfg.DataDir, inMiB(st.Free), inMiB(st.Room())),
			"make room there, or give the node a larger --data-dir, before it refuses operations"
	}
	return "", ""
}

// promisesLess returns that a node is not admitted because of what its disk promises: see turnsAway of ring/epoch.
func (n *Node) promisesLess() (problem, hint string) {
	if n.cluster == nil {
		return "", ""
	}
	own := table.Undurable
	if d := n.cluster.disk; d != nil {
		own = promised(d.settings)
	}
	return promiseText(own, n.cluster.group.Table().Durable)
}

// promiseText is what a node says of which the disk promises less than the cluster has agreed on.
func promiseText(own, agreed table.Durability) (problem, hint string) {
	//guard:promises-less
	if own == table.Undurable && agreed != table.Undurable {
		return fmt.Sprintf("the cluster keeps its state on disk (%s), and this node keeps none: it is not admitted", agreedText(agreed)),
			"start it with --data-dir and --durability interval or always; give no disk up because of it"
	}
	return "", ""
}
