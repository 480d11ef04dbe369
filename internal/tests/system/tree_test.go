//go:build system

package system

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/keystead/keystead/client"
)

// A tree of phasers goes on when the owner of its parent and of a child is killed. Nobody passes a
// phase before all parties of all children have arrived for it.
func TestTreeOutlivesItsOwners(t *testing.T) {
	t.Parallel()
	const rounds, killed = 60, 15
	c := newCluster(t, 3, false, "--max-lock-ttl", "1m")
	_, others := c.leader()
	victim, survivor := others[0], others[1]
	k, err := client.Dial(t.Context(), survivor.grpc)
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	root := c.keys(2)[victim.id][1]
	var parties []*client.Registered
	for _, of := range c.keys(1) {
		for _, id := range []string{"a", "b"} {
			eventually(t, "it is registered", func() bool { // when the level is committed
				m, err := k.Phaser("").Register(t.Context(), of[0], id, client.WithParent(root))
				if err == nil {
					parties = append(parties, m)
				}
				return err == nil
			})
		}
	}
	begun := make([]atomic.Int64, len(parties))
	kill := make(chan struct{})
	failed := make(chan error, len(parties))
	var wg sync.WaitGroup
	for i, m := range parties {
		wg.Go(func() {
			for round := int64(1); round <= rounds; round++ {
				if i == 0 && round == killed {
					close(kill)
				}
				begun[i].Store(round)
				if _, err := m.Wait(t.Context()); err != nil {
					failed <- fmt.Errorf("party %d in round %d: %w", i, round, err)
					return
				}
				for j := range begun {
					if n := begun[j].Load(); n < round {
						failed <- fmt.Errorf("party %d has passed round %d, and party %d is in %d", i, round, j, n)
						return
					}
				}
			}
		})
	}
	select {
	case <-kill:
		victim.kill()
	case err := <-failed:
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); wg.Wait() }()
	select {
	case <-done:
	case err := <-failed:
		t.Error(err)
	}
}
