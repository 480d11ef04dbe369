//go:build system

package system

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

const hangHint = "this test needs root, loop devices, and Debian's mount, util-linux and e2fsprogs"

// ownDisk puts what a node keeps on a file system of its own, which can be frozen.
func ownDisk(t *testing.T, n *testNode) (mount string) {
	t.Helper()
	dir := t.TempDir()
	image, mount := filepath.Join(dir, "image"), filepath.Join(dir, "disk")
	if err := os.MkdirAll(mount, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(image, 64<<20); err != nil {
		t.Fatal(err)
	}
	for _, c := range [][]string{{"mkfs.ext4", "-q", "-F", image}, {"mount", "-o", "loop", image, mount}} {
		if out, err := exec.Command(c[0], c[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s: %s", c, err, out, hangHint)
		}
	}
	t.Cleanup(func() { _ = exec.Command("umount", mount).Run() })
	n.disk = filepath.Join(mount, "data")
	return mount
}

// A leader whose file system is frozen steps aside: a node that dies meanwhile is
// removed, and so is the leader. It comes back when the file system goes on.
func TestClusterLeadersDiskHangs(t *testing.T) {
	c := layOut(t, 5, true, "--max-lock-ttl", "2h")
	mounts := map[string]string{}
	for _, n := range c.nodes {
		mounts[n.id] = ownDisk(t, n)
	}
	for _, n := range c.nodes {
		n.run()
	}
	t.Cleanup(func() { // before the processes are ended: one that waits for its disk cannot be
		for _, m := range mounts {
			_ = exec.Command("fsfreeze", "--unfreeze", m).Run()
		}
	})
	c.ready(c.nodes...)
	c.protected(c.nodes...)
	k := fill(t, c.nodes[0], 100)
	st, _ := c.nodes[0].clusterStatus()
	var leader, dead *testNode
	var well []*testNode
	for _, n := range c.nodes {
		switch {
		case n.id == st.Leader:
			leader = n
		case dead == nil:
			dead = n
		default:
			well = append(well, n)
		}
	}
	both := 0 // whose owner and standby are lost
	for i := range k.n {
		o, s := well[0].placeOf(stateKey(i))
		if o == leader.id && s == dead.id || o == dead.id && s == leader.id {
			both++
		}
	}
	if out, err := exec.Command("fsfreeze", "--freeze", mounts[leader.id]).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s: %s", err, out, hangHint)
	}
	began := time.Now()
	dead.kill()
	for _, gone := range []*testNode{dead, leader} {
		eventually(t, gone.id+" is removed", func() bool {
			st, ok := well[0].clusterStatus()
			return ok && !slices.Contains(st.Members, gone.id)
		})
		t.Logf("%s is removed %s after %s died", gone.id, time.Since(began).Round(10*time.Millisecond), dead.id)
	}
	eventually(t, "it says what is the matter", func() bool {
		st, ok := leader.clusterStatus()
		return ok && strings.Contains(st.Degraded, "has hung for") && strings.Contains(st.NotReady, "has hung for")
	})
	if wrong, err := k.countWrong(t, well[0]); err != nil || max(wrong[0], wrong[1], wrong[2]) > both {
		t.Errorf("of %d each, %v are wrong, and %d have lost owner and standby; %v", k.n, wrong, both, err)
	}
	if out, err := exec.Command("fsfreeze", "--unfreeze", mounts[leader.id]).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	dead.run()
	c.ready(c.nodes...)
	if st, _ := leader.clusterStatus(); st.Degraded != "" {
		t.Errorf("it still says: %s", st.Degraded)
	}
}
