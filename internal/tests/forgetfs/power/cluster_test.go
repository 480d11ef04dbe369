package power

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	raftboltdb "github.com/hashicorp/raft-boltdb/v2"

	"github.com/keystead/keystead/client"
	"github.com/keystead/keystead/internal/tests/forgetfs/forget"
	"github.com/keystead/keystead/internal/tests/nemesis/cluster"
)

// three is a cluster of three nodes, each on a disk of its own.
type three struct {
	t     *testing.T
	c     *cluster.Cluster
	disks []*forget.Disk
	terms []uint64 // of each node, as its disk had it last
	votes []uint64
	epoch uint64
	next  map[string]uint64 // the greatest token seen, by key
}

func newThree(t *testing.T, flags ...string) *three {
	t.Helper()
	dir, x := t.TempDir(), &three{t: t, terms: make([]uint64, 3), votes: make([]uint64, 3), next: map[string]uint64{}}
	where := func(id string) string { return filepath.Join(dir, id, "disk") }
	for i := range 3 {
		x.disks = append(x.disks, mounted(t, where(fmt.Sprint("n", i+1))))
	}
	c, err := cluster.Start(cluster.Config{Binary: binary, Dir: dir, Nodes: 3, Flags: flags, DataDir: func(id string) string { return x.data(where(id)) }})
	must(t, err)
	x.c = c
	t.Cleanup(func() {
		c.Close()
		for i := range 3 {
			text, err := os.ReadFile(filepath.Join(dir, fmt.Sprint("n", i+1, ".log")))
			if err == nil && t.Failed() {
				t.Logf("n%d says, in the end:\n%s", i+1, text[max(0, len(text)-4000):])
			}
		}
	})
	return x
}

// data returns the data directory in a disk, or in what that keeps.
func (x *three) data(disk string) string { return filepath.Join(disk, "keystead") }

// await waits until the cluster serves, and all of its nodes run.
func (x *three) await() {
	x.t.Helper()
	ctx, cancel := context.WithTimeout(x.t.Context(), patience)
	defer cancel()
	v, err := x.c.Await(ctx, true)
	if n := len(x.c.Running()); err != nil || n != 3 {
		x.t.Fatalf("%d nodes run: %v", n, err)
	}
	if v.Epoch < x.epoch {
		x.t.Fatalf("the table has epoch %d after %d", v.Epoch, x.epoch)
	}
	x.epoch = v.Epoch
}

// work acquires locks at all nodes until it is stopped, and checks their tokens. It returns
// when one was granted: after a loss that takes as long as locks may last.
func (x *three) work() (stop func()) {
	granted := make(chan struct{})
	var once sync.Once
	var last error // guarded by mu
	ctx, cancel := context.WithCancel(x.t.Context())
	var wg sync.WaitGroup
	var mu sync.Mutex
	for i, n := range x.c.Nodes() {
		wg.Go(func() {
			c, err := client.Dial(ctx, n.Addr())
			if err != nil {
				return
			}
			defer c.Close()
			for j := 0; ctx.Err() == nil; j++ {
				key := fmt.Sprint(i, "-", j%16)
				l, err := c.Lock("l").TryAcquire(ctx, key, client.TTL(cluster.MaxLockTTL))
				mu.Lock()
				if err != nil {
					last = err
					mu.Unlock()
					pause(5 * time.Millisecond)
					continue
				}
				if l.Token() <= x.next[key] {
					x.t.Errorf("%s: token %d after %d", key, l.Token(), x.next[key])
				}
				x.next[key] = l.Token()
				mu.Unlock()
				once.Do(func() { close(granted) })
				_ = l.Release(ctx)
			}
		})
	}
	select {
	case <-granted:
	case <-time.After(patience):
		mu.Lock()
		x.t.Errorf("no lock was granted within %s: %v", patience, last)
		mu.Unlock()
	}
	return func() { cancel(); wg.Wait() }
}

// cut cuts the power of all nodes, one shortly after the other, as it is in life.
func (x *three) cut(cycle int, r *rand.Rand) {
	x.t.Helper()
	for _, i := range r.Perm(3) {
		crash(x.t, x.disks[i], cycle, r)
		if r.IntN(2) == 0 {
			pause(time.Duration(r.IntN(20)) * time.Millisecond)
		}
	}
	for _, n := range x.c.Running() {
		must(x.t, n.Kill())
	}
	for i, d := range x.disks {
		must(x.t, d.Remount())
		x.log(i)
	}
}

// log reads the log of a node, as it was kept: its term and its vote never go back.
func (x *three) log(i int) {
	x.t.Helper()
	from := filepath.Join(x.data(x.disks[i].Path), "raft", "log.db")
	if _, err := os.Stat(from); os.IsNotExist(err) && x.terms[i] == 0 {
		return // it was cut off before it could make it
	}
	copied := filepath.Join(x.t.TempDir(), "log.db")
	must(x.t, copyFile(copied, from))
	db, err := raftboltdb.New(raftboltdb.Options{Path: copied})
	if err != nil {
		x.t.Fatalf("the log of n%d cannot be opened: %v", i+1, err)
	}
	defer db.Close()
	for key, last := range map[string]*uint64{"CurrentTerm": &x.terms[i], "LastVoteTerm": &x.votes[i]} {
		v, err := db.GetUint64([]byte(key))
		if err != nil && *last > 0 || v < *last {
			x.t.Fatalf("n%d: %s is %d after %d: %v", i+1, key, v, *last, err)
		}
		*last = v
	}
}

func copyFile(to, from string) error {
	r, err := os.Open(from)
	if err != nil {
		return err
	}
	defer r.Close()
	w, err := os.Create(to)
	if err != nil {
		return err
	}
	defer w.Close()
	_, err = io.Copy(w, r)
	return err
}

// A cluster whose power is cut comes back with its log: all nodes start, and neither epochs
// and tokens, nor terms and votes go back. A cycle takes seconds: there are half as many.
func TestClusterLog(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(*seed, 2))
	x := newThree(t)
	x.await() // once, for it must have been made before it is looked for
	var slowest time.Duration
	cuts := 0
	for cycle := range (*cycles + 1) / 2 {
		if t.Failed() {
			return
		}
		stop := x.work()
		pause(time.Duration(r.IntN(500)) * time.Millisecond)
		x.cut(cycle, r)
		cuts++
		stop()
		if cycle%3 == 2 { // cut off again, while it starts
			x.start()
			pause(time.Duration(r.IntN(1500)) * time.Millisecond)
			x.cut(cycle, r)
			cuts++
		}
		began := time.Now()
		x.start()
		x.await()
		slowest = max(slowest, time.Since(began))
	}
	t.Logf("%d power cuts, up to %s until served with standbys; terms %d, epoch %d, tokens of %d keys", cuts, slowest, x.terms, x.epoch, len(x.next))
}

func (x *three) start() {
	x.t.Helper()
	for _, n := range x.c.Nodes() {
		must(x.t, n.Start())
	}
}
