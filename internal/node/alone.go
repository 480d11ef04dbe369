package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/keystead/keystead/handoff/disk/statefile"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/ring/epoch"
	"github.com/keystead/keystead/ring/epoch/table"
)

// A data directory may be that of a node that runs alone, and later that of one in a
// cluster, but not the other way round. Epochs rise meanwhile: a cluster that the node
// makes begins above what it has served under alone, and one that is below that does
// not get it as a member.

// servedAlone returns the epoch up to which the node has served alone in its data directory;
// 0 = it has not. It fails if the node must not be part of a cluster.
func servedAlone(cfg Config) (uint64, error) {
	if err := checkFloor(cfg.EpochFloor, cfg.Wires.Wall(), cfg.DataDir != "" || cfg.Wires.Storage != nil); err != nil || cfg.DataDir == "" {
		return 0, err
	}
	path := epochPath(cfg.DataDir)
	last, err := readEpoch(path)
	if err == nil && last >= owner.MaxEpoch {
		err = fmt.Errorf("%s: all epochs are used up", path)
	}
	return last, err
}

// neverAnothers refuses to run alone where another node has served: what it has counted
// would be put aside by the first start under a wrong name, such as that of a new host.
// The file of the epoch names the node; where an older program wrote that, the state
// does, if the node was stopped in order, or the store on disk, which is of the node disk.
func neverAnothers(dir, id, disk string) error {
	if dir == "" {
		return nil
	}
	f, err := readEpochFile(epochPath(dir))
	if err != nil {
		return err
	}
	h, found, err := statefile.Peek(dir)
	if err != nil {
		return err
	}
	name := f.Node
	switch {
	case found && h.Cluster != "":
		return fmt.Errorf("the data directory %s holds the state of the node %q in the cluster %q: set that --cluster-id and --id, or another --data-dir", dir, h.Node, h.Cluster)
	case found && name == "":
		name = h.Node
	case name == "":
		name = disk
	}
	//guard:lone-directory true
	if name == "" || name == id {
		return nil
	}
	return fmt.Errorf("the data directory %s belongs to the node %q, not to %q: use that --id, or another --data-dir", dir, name, id)
}

// floor returns the least epoch of a cluster that this node makes.
func (c *cluster) floor() uint64 { return max(c.cfg.EpochFloor, c.standaloneEpoch+1) } //guard:alone-floor c.standaloneEpoch+1 -> 0

// belongs ends a process that a cluster has admitted whose epoch this node has passed
// when it ran alone: by its right it would give fencing tokens and ids that it has given
// before.
func (c *cluster) belongs(t *table.Table) {
	if t.Epoch > c.standaloneEpoch || !t.Holds(c.serving.Self()) {
		return
	}
	c.serving.Quiet()
	c.serving.Extend(0)
	select {
	case c.broken <- fmt.Errorf("the cluster is in epoch %d, and this node has served alone up to epoch %d (%s): its fencing tokens and ids would come a second time; use another --data-dir, or move that file away if nobody minds",
		t.Epoch, c.standaloneEpoch, epochPath(c.cfg.DataDir)):
	default:
	}
}

// neverInCluster refuses to run alone on the data directory of a node that has been in
// a cluster: that has counted on from its epochs, and goes on doing so.
func neverInCluster(dir string) error {
	if dir == "" {
		return nil
	}
	if _, err := os.Stat(filepath.Join(dir, epoch.Directory)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	s, err := epoch.OpenStorage(dir)
	if err != nil {
		return err
	}
	empty, err := s.Empty()
	if err = errors.Join(err, s.Close()); err == nil && !empty {
		err = fmt.Errorf("the data directory %s holds the log of a cluster: a node that runs alone would not go on from its state, nor from its epoch; set --cluster-id, or another --data-dir and --epoch-floor above the last epoch of the cluster", dir)
	}
	return err
}
