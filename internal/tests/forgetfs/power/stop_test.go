package power

import (
	"context"
	"math/rand/v2"
	"sync"
	"syscall"
	"testing"

	"github.com/keystead/keystead/client"
)

// What a process leaves that stops in order is there after a power cut right behind it.
func TestStopKept(t *testing.T) {
	t.Parallel()
	for _, durability := range []string{"none", "interval", "always"} {
		t.Run(durability, func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(*seed, 7))
			n := newLone(t, "--durability", durability)
			for i := range int64(3) {
				n.start()
				c := n.await()
				v, err := c.Counter("power").Add(t.Context(), "k", 1)
				must(t, err)
				if v.Value != i+1 {
					t.Errorf("after %d stops in order the counter is %d", i, v.Value)
				}
				c.Close()
				must(t, n.cmd.Process.Signal(syscall.SIGTERM))
				<-n.ended
				if !n.cmd.ProcessState.Success() {
					t.Fatalf("told to stop, the node ends with %v", n.cmd.ProcessState)
				}
				n.cut(int(i), r)
			}
		})
	}
}

// So it is with a cluster that stops in order, all nodes at once.
func TestClusterStopKept(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(*seed, 8))
	x := newThree(t)
	x.await()
	for i := range int64(3) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		c, err := client.Dial(ctx, x.c.Nodes()[0].Addr())
		must(t, err)
		for _, key := range []string{"a", "b", "c", "d"} {
			v, err := c.Counter("power").Add(ctx, key, 1)
			must(t, err)
			if v.Value != i+1 {
				t.Errorf("after %d stops in order %s is %d", i, key, v.Value)
			}
		}
		c.Close()
		cancel()
		var wg sync.WaitGroup
		for _, n := range x.c.Nodes() {
			wg.Go(func() {
				if err := n.Terminate(patience, 0); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		x.cut(int(i), r)
		x.start()
		x.await()
	}
}
