package power

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// faults are what happens to a disk, and what ends it.
var faults = []struct{ begins, ends string }{
	{"fail sync 1", ""},
	{"fail sync 3", ""},
	{"fail write 1", ""},
	{"fail sync 1 forever", "fail sync 0"},
	{"fail write 1 forever", "fail write 0"},
	{"readonly", "readonly off"},
	{"full 1", "full 0"},
	{"slow sync 300ms", "slow sync 0s"},
	{"hang", "hang off"},
}

// A disk fails under load, works again, and then the power is cut: what was acknowledged at
// any time of it is there. A sync that failed is not made good by one that succeeds later,
// for the kernel has dropped what the first one should have kept.
func TestDiskFails(t *testing.T) {
	for i, durability := range []string{"always", "interval"} {
		t.Run(durability, func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(*seed, uint64(5+i)))
			n := newLone(t, "--durability", durability, "--max-lock-ttl", lockTTL.String())
			x := newLoad()
			n.start()
			n.await().Close()
			for round, f := range faults {
				stop := x.run(t, n.addr)
				x.more(t, f.begins+" is to come")
				n.tell(f.begins)
				pause(time.Duration(100+r.IntN(1500)) * time.Millisecond)
				if strings.HasPrefix(f.begins, "fail sync") {
					n.failed()
				}
				if f.ends != "" {
					n.tell(f.ends)
				}
				x.more(t, f.begins+" is over")
				n.cut(round, r)
				stop()
				n.start()
				c := n.await()
				lost := x.check(t, c, durability == "always")
				c.Close()
				if t.Failed() {
					t.Fatalf("after %q, seed %d", f.begins, *seed)
				}
				t.Logf("%s, %s: of %d operations acknowledged %d are lost", durability, f.begins, x.answers(), lost)
			}
		})
	}
}

// tell has the disk do a command.
func (n *lone) tell(command string) {
	n.t.Helper()
	_, err := n.disk.Do(strings.Fields(command)...)
	must(n.t, err)
}

// failed waits until a sync has failed.
func (n *lone) failed() {
	n.t.Helper()
	for deadline := time.Now().Add(patience); ; pause(5 * time.Millisecond) {
		s, err := n.disk.Stats()
		must(n.t, err)
		if s.FailedSyncs > 0 {
			return
		}
		if time.Now().After(deadline) {
			n.t.Fatalf("no sync has failed within %s: %+v", patience, s)
		}
	}
}

// more waits until every meter has one more answer.
func (x *load) more(t *testing.T, when string) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for _, m := range x.meters {
		for was := m.count.Load(); m.count.Load() == was; pause(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("when %s, %s %s is answered no more", when, m.what, m.key)
			}
		}
	}
}
