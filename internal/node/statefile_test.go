package node

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/keystead/keystead/handoff/disk/statefile"
	"github.com/keystead/keystead/handoff/record"
	"github.com/keystead/keystead/internal/clock"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/counter"
	"github.com/keystead/keystead/owner/reqid"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
)

// startStandalone starts a standalone node with a data directory, which is kept in a state file.
func startStandalone(t *testing.T, dir string, change func(*Config)) *Node {
	t.Helper()
	return start(t, func(c *Config) {
		c.DataDir, c.AdminAddr, c.Durability = dir, "", "none"
		if change != nil {
			change(c)
		}
	})
}

// used is what a node was asked, and will be asked again.
type used struct {
	id    *commonpb.RequestId
	token uint64
}

// use takes a lock, counts under a request id, and uses a limit up.
func use(t *testing.T, n *Node) used {
	t.Helper()
	u := used{id: &commonpb.RequestId{Client: []byte("0123456789abcdef"), Sequence: 1}}
	conn := dial(t, n)
	if _, err := counterpb.NewCounterServiceClient(conn).Add(bounded(t), &counterpb.AddRequest{Key: "k", Delta: 7, RequestId: u.id}); err != nil {
		t.Fatal(err)
	}
	if r, err := limitpb.NewLimitServiceClient(conn).Check(bounded(t), &limitpb.CheckRequest{Key: "k", Limit: 5, Cost: 5, PeriodNs: 3600e9}); err != nil || !r.Allowed {
		t.Fatalf("%v %v", r, err)
	}
	r, err := lockpb.NewLockServiceClient(conn).Acquire(bounded(t), &lockpb.AcquireRequest{Key: "k", Holder: "h", TtlNs: 3600e9})
	if err != nil || !r.Acquired {
		t.Fatalf("%v %v", r, err)
	}
	u.token = r.Token
	return u
}

// again reports whether the node still knows all of it; it must be all or nothing.
func (u used) again(t *testing.T, n *Node) bool {
	t.Helper()
	conn := dial(t, n)
	u.id.AgeNs = 1
	add, errAdd := counterpb.NewCounterServiceClient(conn).Add(bounded(t), &counterpb.AddRequest{Key: "k", Delta: 7, RequestId: u.id})
	get, err := counterpb.NewCounterServiceClient(conn).Get(bounded(t), &counterpb.GetRequest{Key: "k"})
	if err != nil {
		t.Fatal(err)
	}
	check, err := limitpb.NewLimitServiceClient(conn).Check(bounded(t), &limitpb.CheckRequest{Key: "k", Limit: 5, Cost: 1, PeriodNs: 3600e9})
	if err != nil {
		t.Fatal(err)
	}
	held, err := lockpb.NewLockServiceClient(conn).Inspect(bounded(t), &lockpb.InspectRequest{Key: "k"})
	if err != nil {
		t.Fatal(err)
	}
	other, err := lockpb.NewLockServiceClient(conn).Acquire(bounded(t), &lockpb.AcquireRequest{Key: "other", Name: strconv.FormatUint(n.Status().Epoch, 10), Holder: "h", TtlNs: 10e6})
	if err != nil || other.Token <= u.token {
		t.Errorf("the token %d after %d; %v", other.GetToken(), u.token, err)
	}
	whole := errAdd == nil && add.Replay != nil && get.Value == 7 && !check.Allowed && held.Holder.GetToken() == u.token
	nothing := errAdd != nil && strings.Contains(errAdd.Error(), "forgotten") && get.Value == 0 && check.Allowed && held.Holder == nil
	if whole == nothing {
		t.Fatalf("neither all nor nothing: add %v (%v), counter %v, limit %v, lock %v", add, errAdd, get, check, held)
	}
	return whole
}

func stateFile(dir string) string { return filepath.Join(dir, statefile.Name) }

func isThere(path string) bool { _, err := os.Stat(path); return err == nil }

// TestStateOfALoneNode: a node that was stopped goes on with all that it had, as
// often as that happens; one that was killed begins anew.
func TestStateOfALoneNode(t *testing.T) {
	dir := t.TempDir()
	n := startStandalone(t, dir, nil)
	u := use(t, n)
	for range 2 {
		n.Stop()
		if !isThere(stateFile(dir)) {
			t.Fatal("nothing was kept")
		}
		if n = startStandalone(t, dir, nil); !u.again(t, n) || isThere(stateFile(dir)) {
			t.Fatal("it is not what it was, or may be read again")
		}
	}
	n.Kill()
	if u.again(t, startStandalone(t, dir, nil)) {
		t.Error("what a killed node had is back")
	}
}

// TestStateOfTheDeleted: a counter that was deleted is in no record of the file, and still its
// versions do not come a second time.
func TestStateOfTheDeleted(t *testing.T) {
	dir, ref := t.TempDir(), owner.Ref{Key: "k", Name: "n"}
	last := uint64(0)
	for range 3 {
		n := startStandalone(t, dir, nil)
		now := n.cfg.Clock.Now()
		if _, err := n.store.Add(now, ref, reqid.ID{}, counter.AddOp{Delta: 1}); err != nil {
			t.Fatal(err)
		}
		a, err := n.store.Delete(now, ref, reqid.ID{})
		if err != nil || a.Version <= last+1 { // the add had one, too
			t.Errorf("version %d after %d: %v", a.Version, last, err)
		}
		last = a.Version
		n.Stop()
	}
}

// TestStateThatDoesNotFit: a node that has no room for the state does not start,
// and does not lose it.
func TestStateThatDoesNotFit(t *testing.T) {
	dir := t.TempDir()
	n := startStandalone(t, dir, nil)
	u := use(t, n)
	n.Stop()
	_, err := Start(Config{ID: "n1", GRPCAddr: "127.0.0.1:0", DataDir: dir, Store: owner.Config{MaxObjects: 1}})
	if err == nil || !strings.Contains(err.Error(), "--max-objects") {
		t.Fatalf("it starts with too little room: %v", err)
	}
	if !u.again(t, startStandalone(t, dir, nil)) {
		t.Error("the state is lost")
	}
}

// TestStateRefused: a state that is torn, or older than what the node has done since,
// does not count, and stays for people to look at.
func TestStateRefused(t *testing.T) {
	for name, spoil := range map[string]func(t *testing.T, dir string) (id string){
		"torn": func(t *testing.T, dir string) string {
			if err := os.Truncate(stateFile(dir), 40); err != nil {
				t.Fatal(err)
			}
			return "n1"
		},
		"stale": func(t *testing.T, dir string) string {
			b, err := os.ReadFile(stateFile(dir))
			if err != nil {
				t.Fatal(err)
			}
			startStandalone(t, dir, nil).Kill()
			if err := os.WriteFile(stateFile(dir), b, 0o600); err != nil {
				t.Fatal(err)
			}
			return "n1"
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			n := startStandalone(t, dir, nil)
			u := use(t, n)
			n.Stop()
			id := spoil(t, dir)
			if u.again(t, startStandalone(t, dir, func(c *Config) { c.ID = id })) {
				t.Error("it counts")
			}
			if isThere(stateFile(dir)) || !isThere(filepath.Join(dir, statefile.Refused)) {
				t.Error("it was not put aside")
			}
		})
	}
}

// TestStateOfAnother: a node does not run alone where another one has served, and leaves
// all as it is there, in whichever form it was written.
func TestStateOfAnother(t *testing.T) {
	for name, change := range map[string]func(t *testing.T, dir string){
		"as it is": func(*testing.T, string) {},
		"no state, after a crash": func(t *testing.T, dir string) {
			startStandalone(t, dir, nil).Kill()
		},
		"of an older program": func(t *testing.T, dir string) {
			keep(t, dir, fmt.Sprintf(`{"version":1,"epoch":%d}`, kept(t, dir)))
		},
		"of a cluster": func(t *testing.T, dir string) {
			if _, err := statefile.Write(dir, statefile.Header{Cluster: "c", UID: "u", Node: "n2", Incarnation: 1, Next: 2, Epoch: kept(t, dir)},
				func(func([]byte) error) error { return nil }); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			startStandalone(t, dir, nil).Stop()
			change(t, dir)
			before, had := kept(t, dir), isThere(stateFile(dir))
			n, err := Start(Config{ID: "n2", GRPCAddr: "127.0.0.1:0", DataDir: dir})
			if err == nil {
				n.Stop()
				t.Fatal("it starts")
			}
			if !strings.Contains(err.Error(), "--data-dir") || kept(t, dir) != before || isThere(stateFile(dir)) != had || isThere(filepath.Join(dir, statefile.Refused)) {
				t.Errorf("%v; epoch %d after %d, state %v", err, kept(t, dir), before, isThere(stateFile(dir)))
			}
		})
	}
}

// BenchmarkState writes the state of 10,000 counters and reads it back.
func BenchmarkState(b *testing.B) {
	const objects = 10_000
	c, log, dir := clock.System(), slog.New(slog.DiscardHandler), b.TempDir()
	newStore := func() *owner.Store {
		rule := &standalone{}
		rule.epoch.Store(1)
		s, err := owner.New(owner.Config{Rule: rule}, c.Now())
		if err != nil {
			b.Fatal(err)
		}
		return s
	}
	store := newStore()
	for i := range objects {
		if _, err := store.Add(c.Now(), owner.Ref{Key: "key-of-16-byte-" + strconv.Itoa(i), Name: "n"}, reqid.ID{}, counter.AddOp{Delta: 1}); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		keepState(dir, statefile.Header{Node: "n1", Epoch: 1}, record.Level, store, c, log)
		s, err := statefile.Open(dir)
		if err != nil {
			b.Fatal(err)
		}
		into := newStore()
		if err := loadState(s, into, c, log); err != nil {
			b.Fatal(err)
		}
		if n := into.Stats().Objects[owner.KindCounter]; n != objects {
			b.Fatalf("%d objects", n)
		}
		if err := s.Done(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*objects), "ns/object")
}
