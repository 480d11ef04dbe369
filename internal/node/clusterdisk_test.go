package node

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/keystead/keystead/handoff/disk"
	"github.com/keystead/keystead/owner"
	clusterpb "github.com/keystead/keystead/proto/keystead/cluster/v1"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
	"github.com/keystead/keystead/ring/epoch/serving"
	"github.com/keystead/keystead/ring/epoch/table"
	"github.com/keystead/keystead/ring/member"
)

// withDisk is a node that makes a cluster, and keeps a store on disk in it.
func withDisk(dir string, change func(*Config)) func(*Config) {
	return oneOf("n1", dir, func(c *Config) {
		c.Cluster.Bootstrap, c.Durability, c.Wires.Level = true, "interval", table.DiskLevel
		c.Store.MaxLockTTL = int64(2 * time.Hour)
		if change != nil {
			change(c)
		}
	})
}

// had returns which processes have had the store in a data directory.
func had(t *testing.T, dir string) []disk.Tenure {
	t.Helper()
	o := offline(t, dir)
	defer o.Close()
	x := o.Counting()
	if x == nil {
		t.Fatal("no store counts")
	}
	return x.Had
}

// TestDiskOfAClusterNode: a node of a cluster that has agreed on nothing keeps a store on disk as well. An
// orderly stop leaves the state file, from which the next process goes on; each process is on the
// list of those that have had the disk, and a death loses everything, as ever.
func TestDiskOfAClusterNode(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	n := start(t, withDisk(dir, nil))
	token, _ := given(t, n, "first")
	if token == 0 {
		t.Fatal("no token")
	}
	u := use(t, n)
	st, err := clusterpb.NewClusterServiceClient(dial(t, n)).GetStatus(bounded(t), &clusterpb.GetStatusRequest{})
	if err != nil || st.Disk == nil || st.Disk.Agreed != "none" || st.Disk.Durability != "interval" || !st.Disk.Taking {
		t.Errorf("the status says %v of the disk; %v", st.GetDisk(), err)
	}
	first := n.cluster.Self().Incarnation
	eventually(t, "the disk is whole", func() bool { return n.cluster.disk.report(true).Whole })
	if r := n.cluster.disk.report(true); r.Durability != 1 || len(r.Incarnations) != 1 || r.Incarnations[0] != first || len(r.Stopped) != 0 {
		t.Errorf("the report is %v", r)
	}
	n.Stop()
	if err := n.Kept(); err != nil || !isThere(stateFile(dir)) {
		t.Fatalf("nothing was kept: %v", err)
	}
	if is := had(t, dir); len(is) != 1 || is[0] != (disk.Tenure{Incarnation: first, Stopped: true}) {
		t.Errorf("%d has had the disk, and stopped; the list is %v", first, is)
	}
	n = start(t, withDisk(dir, nil))
	given(t, n, "first")
	if !u.again(t, n) {
		t.Fatal("the state is lost")
	}
	second := n.cluster.Self().Incarnation
	if h := n.cluster.disk.found; h.Cluster != "c" || h.Node != "n1" || h.UID == "" || h.UID != n.cluster.Table().UID || second <= first {
		t.Errorf("the head is %+v, and %d follows %d", h, second, first)
	}
	eventually(t, "those are forgotten that no row waits for", func() bool { l := n.keeper().List(); return len(l) == 1 && l[0].Incarnation == second })
	n.Kill()
	n = start(t, withDisk(dir, nil))
	counters := counterpb.NewCounterServiceClient(dial(t, n))
	eventually(t, "it serves", func() bool {
		r, err := counters.Get(bounded(t), &counterpb.GetRequest{Key: "k"})
		if err == nil && r.Value != 0 {
			t.Fatal("what a killed node had is back, though nobody has agreed that it counts")
		}
		return err == nil
	})
}

// TestIncarnationsOfCopies: two processes that start on copies of a disk, by a clock that has gone back, are not one.
func TestIncarnationsOfCopies(t *testing.T) {
	t.Parallel()
	n := start(t, withDisk(t.TempDir(), nil))
	d, seen, last := n.cluster.disk, map[uint64]bool{}, n.cluster.Self().Incarnation
	for range 4 {
		if next := d.first(1); next <= last || next%2 == 0 {
			t.Errorf("%d comes after %d", next, last)
		} else {
			seen[next] = true
		}
	}
	if len(seen) < 2 {
		t.Errorf("all are %v", seen)
	}
}

// TestDiskCatchesUp: before anything is agreed, a disk is not called whole while it may lack copies by which rows name the
// process, however long its interval is; it does a round for that.
func TestDiskCatchesUp(t *testing.T) {
	t.Parallel()
	n := start(t, withDisk(t.TempDir(), func(c *Config) { c.DurabilityInterval = 5 * time.Minute }))
	given(t, n, "first")
	d, self := n.cluster.disk, n.cluster.Self()
	eventually(t, "the disk is whole", func() bool {
		whole := d.report(false).Whole
		tab := n.cluster.Table()
		if behind := d.keeper.HeadEpoch() < tab.Concerns(self); tab.Durable == table.Undurable && whole && behind {
			t.Fatal("the disk is called whole, and may lack what rows name the process for")
		}
		return whole
	})
}

// TestDiskOfAnother: a store of another node, another cluster or a node alone is put aside, and never read.
func TestDiskOfAnother(t *testing.T) {
	t.Parallel()
	other := t.TempDir()
	n := start(t, withDisk(other, nil))
	given(t, n, "first")
	use(t, n)
	n.Stop()
	alone := t.TempDir()
	n = startDurable(t, alone, "always", nil)
	use(t, n)
	n.Stop()
	for from, why := range map[string]string{other: "cluster", alone: "alone"} {
		t.Run(why, func(t *testing.T) {
			dir := t.TempDir()
			start(t, withDisk(dir, nil)).Stop() // the log, and who the node is
			for range 2 {
				if err := os.Rename(filepath.Join(dir, diskDirectory), filepath.Join(t.TempDir(), "away")); err != nil {
					t.Fatal(err)
				}
				if err := os.CopyFS(filepath.Join(dir, diskDirectory), os.DirFS(filepath.Join(from, diskDirectory))); err != nil {
					t.Fatal(err)
				}
				n := start(t, withDisk(dir, nil))
				if n.cluster.disk.found.Node != "" || total(n) > 0 {
					t.Error("what is another's is read")
				}
				n.Stop()
			}
			for _, name := range []string{".aside", ".aside-2"} {
				if !isThere(filepath.Join(dir, diskDirectory+name)) {
					t.Errorf("%s is not there", name)
				}
			}
		})
	}
}

func total(n *Node) (all int64) {
	for _, count := range n.store.Stats().Objects {
		all += count
	}
	return all
}

// TestDiskOfAClusterAlone: a node that runs alone does not go on from the store of a node of a cluster.
func TestDiskOfAClusterAlone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	n := start(t, withDisk(dir, nil))
	given(t, n, "first")
	use(t, n)
	n.Stop()
	remove(t, stateFile(dir))
	if err := os.RemoveAll(filepath.Join(dir, "raft")); err != nil {
		t.Fatal(err)
	}
	for _, durability := range []string{"interval", "none"} {
		_, err := Start(Config{ID: "n1", GRPCAddr: "127.0.0.1:0", DataDir: dir, Durability: durability})
		if err == nil || !strings.Contains(err.Error(), `in the cluster "c"`) {
			t.Errorf("under %s it starts: %v", durability, err)
		}
	}
}

// TestPromised: what the settings of a node promise to the cluster.
func TestPromised(t *testing.T) {
	for text, want := range map[string]table.Durability{
		"none": table.Undurable, "interval": table.Interval, "interval,lock=none": table.Interval, "none,lock=interval": table.Interval,
		"always": table.Entire, "interval,counter=always": table.Always, "always,lock=none": table.Always,
	} {
		s, err := disk.ParseSettings(text, 0)
		if got := promised(s); err != nil || got != want {
			t.Errorf("%s promises %d, not %d; %v", text, got, want, err)
		}
		if got := promised(s.OfCluster()); got != want {
			t.Errorf("%s promises %d, not %d, as the disk of a cluster has it", text, got, want)
		}
	}
}

// TestKindsOfOthers: the disk of a node in a cluster leaves out no kind, for others count on it.
func TestKindsOfOthers(t *testing.T) {
	t.Parallel()
	cfg := Config{ID: "n1", DataDir: t.TempDir(), Durability: "always,counter=none", Cluster: ClusterConfig{ID: "c"}, Wires: Wires{Level: table.DiskLevel}}.withDefaults()
	c := &cluster{cfg: cfg, log: cfg.Log, self: member.Self{Node: "n1", Cluster: "c"}}
	if err := c.openDisk(); err != nil {
		t.Fatal(err)
	}
	defer c.disk.close()
	if got := c.disk.settings.String(); got != "always,counter=interval" {
		t.Errorf("it is kept as %s", got)
	}
}

// TestStateFileOfBefore: a state file that was put back does not count, and what the disk has since is not lost.
func TestStateFileOfBefore(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	n := start(t, withDisk(dir, nil))
	given(t, n, "first")
	use(t, n)
	n.Stop()
	file, err := os.ReadFile(stateFile(dir))
	if err != nil {
		t.Fatal(err)
	}
	n = start(t, withDisk(dir, nil))
	given(t, n, "first")
	settled(t, n)
	second := n.cluster.Self().Incarnation
	n.Kill()
	if err := os.WriteFile(stateFile(dir), file, 0o600); err != nil {
		t.Fatal(err)
	}
	n = start(t, withDisk(dir, nil))
	if third := n.cluster.Self().Incarnation; isThere(stateFile(dir)) || third <= second {
		t.Errorf("the file is read: %d comes after %d", third, second)
	}
}

// TestIncarnationAboveThoseOfTheDisk: though the clock was set back.
func TestIncarnationAboveThoseOfTheDisk(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	n := start(t, withDisk(dir, nil))
	first := n.cluster.Self().Incarnation
	n.Kill()
	n = start(t, withDisk(dir, func(c *Config) {
		c.Wires.Wall = func() time.Time { return time.Now().Add(-time.Hour) }
	}))
	if second := n.cluster.Self().Incarnation; second <= first {
		t.Errorf("%d comes after %d", second, first)
	}
}

// TestDiskOfAnotherClusterOfThatName: a node that did not know its cluster when it read its disk ends when it does.
func TestDiskOfAnotherClusterOfThatName(t *testing.T) {
	c := &cluster{}
	for found, other := range map[string]bool{"": false, "a": false, "b": true} {
		d := clusterDisk{c: c, found: disk.Head{UID: found}}
		if err := d.ofOthers(&table.Table{UID: "a"}); (err != nil) != other {
			t.Errorf("found %q: %v", found, err)
		}
		if err := d.ofOthers(&table.Table{}); err != nil {
			t.Error(err)
		}
	}
}

// bare is what a cluster node has of its disk, without the cluster. A process was there before: the first of the list.
func bare(t *testing.T, fs vfs.FS) (*clusterDisk, *owner.Store) {
	t.Helper()
	cfg := Config{ID: "n1", DataDir: t.TempDir(), Durability: "interval", DurabilityInterval: disk.MinInterval, Cluster: ClusterConfig{ID: "c"}, Wires: Wires{Level: table.DiskLevel, Disk: fs}}.withDefaults()
	for incarnation := uint64(10); ; incarnation += 10 {
		c := &cluster{cfg: cfg, log: cfg.Log, self: member.Self{Node: "n1", Cluster: "c", UID: "u", Incarnation: incarnation},
			serving: serving.New(table.Holder{Node: "n1", Incarnation: incarnation})}
		if err := c.openDisk(); err != nil {
			t.Fatal(err)
		}
		c.state = newState(c, c.serving)
		store, err := owner.New(owner.Config{Rule: c.rule(), Journal: c.disk.keeper}, cfg.Clock.Now())
		if err != nil {
			t.Fatal(err)
		}
		if incarnation == 10 {
			c.serving.Learn(&table.Table{Epoch: 40, IDWindow: 77})
			c.serving.Cleaned(40)
		}
		if err := c.disk.begin(store); err != nil {
			t.Fatal(err)
		}
		if incarnation == 20 {
			t.Cleanup(c.disk.close)
			return c.disk, store
		}
		c.disk.close()
	}
}

// TestReportOfADisk: a disk is of the epoch that was found; for what the process itself had, until it was
// removed, of that moment. Those are remembered that a row waits for.
func TestReportOfADisk(t *testing.T) {
	t.Parallel()
	d, _ := bare(t, nil)
	if h := d.head(); h.Window != 77 {
		t.Errorf("before it knows the table, the window of ids is %d, not what was agreed on", h.Window)
	}
	waiting := &table.Table{Epoch: 60, Durable: table.Interval, Members: []table.Member{{Node: "n1", Incarnation: 20}},
		Rows: []table.Row{{End: 1<<64 - 1, Was: table.Holder{Node: "n1", Incarnation: 10}}}}
	d.learned(waiting)
	d.c.serving.Learn(&table.Table{Epoch: 60, Durable: table.Interval, Members: waiting.Members})
	d.c.serving.Cleaned(60)
	if r := d.report(true); r.Epoch != 40 || !slices.Equal(r.Incarnations, []uint64{10, 20}) || len(r.Stopped) != 0 || !r.Whole {
		t.Errorf("the report is %v", r)
	}
	if err := d.become(20); err != nil || d.report(true).Epoch != 40 {
		t.Errorf("the process that it is already: %v, %v", d.report(true), err)
	}
	d.c.self.Incarnation = 30 // as cluster.follow may have it before
	if err := d.become(30); err != nil || d.report(true).Epoch != 60 {
		t.Errorf("the next one: %v, %v", d.report(true), err)
	}
	if r := d.report(false); len(r.Incarnations) != 0 || r.Epoch != 0 || r.Durability != 1 {
		t.Errorf("the short report is %v", r)
	}
	d.learned(&table.Table{Epoch: 60, Members: waiting.Members}) // late
	if r := d.report(true); !slices.Equal(r.Incarnations, []uint64{10, 20, 30}) {
		t.Errorf("when a table comes late: %v", r)
	}
	d.c.serving.Become(table.Holder{Node: "n1", Incarnation: 30})
	d.learned(&table.Table{Epoch: 61, Members: []table.Member{{Node: "n1", Incarnation: 30}}})
	if r := d.report(true); !slices.Equal(r.Incarnations, []uint64{30}) {
		t.Errorf("when nobody waits for them any more: %v", r)
	}
}

// TestDiskThatTakesNothing: operations are refused because of it where disks count, and nowhere else.
func TestDiskThatTakesNothing(t *testing.T) {
	t.Parallel()
	broken, faulty := brokenDisk()
	d, store := bare(t, faulty)
	d.c.serving.Learn(&table.Table{Epoch: 50})
	broken.Store(true)
	eventually(t, "the disk takes nothing", func() bool {
		store.DiscardSpans([]owner.Span{{}}, func(uint64) bool { return true })
		d.keeper.Crowded()
		return d.keeper.Admit() != nil
	})
	if err := d.admit(); err != nil {
		t.Errorf("nobody has agreed that it counts: %v", err)
	}
	if err := d.untold(); err != nil {
		t.Error(err)
	}
	d.c.serving.Learn(&table.Table{Epoch: 51, Durable: table.Interval})
	if d.admit() == nil || d.untold() != errNotOnDisk || d.report(false).Whole {
		t.Errorf("where it counts: %v, %v, %v", d.admit(), d.untold(), d.report(false))
	}
	broken.Store(false)
	eventually(t, "it takes what is decided again", func() bool { return d.admit() == nil && d.report(false).Whole })
}

// TestStartThatFailsBeforeItJoins: it leaves nothing open that the next start needs.
func TestStartThatFailsBeforeItJoins(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cfg := Config{GRPCAddr: "127.0.0.1:0"}
	withDisk(dir, func(c *Config) { c.Store.MaxObjects = -1 })(&cfg)
	if _, err := Start(cfg); err == nil || !strings.Contains(err.Error(), "MaxObjects") {
		t.Fatalf("it starts: %v", err)
	}
	start(t, withDisk(dir, nil))
}
