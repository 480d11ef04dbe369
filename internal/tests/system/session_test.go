//go:build system

package system

import (
	"context"
	"testing"
	"time"

	"github.com/keystead/keystead/client"
)

// TestSessionOutlivesItsOwners: a process holds something at each of three nodes under one
// session. One of them is killed: what it owned is kept alive at its standby, and nothing is
// lost by the time when a lease would have run out.
func TestSessionOutlivesItsOwners(t *testing.T) {
	t.Parallel()
	const ttl = 10 * time.Second
	c := newCluster(t, 3, false, "--max-lock-ttl", "1m")
	_, others := c.leader()
	victim, survivor := others[0], others[1]
	k, err := client.Dial(t.Context(), survivor.grpc)
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	s, err := k.Session(t.Context(), client.TTL(ttl))
	if err != nil {
		t.Fatal(err)
	}
	held := map[string]*client.HeldPermits{}
	for _, of := range c.keys(3) {
		for _, key := range of {
			eventually(t, "it is held under a session", func() bool { // when the level is committed
				held[key], err = s.Semaphore("", 1).Acquire(t.Context(), key, 1)
				if err != nil {
					t.Log(err)
				}
				return err == nil
			})
		}
	}
	victim.kill()
	<-time.After(ttl + ttl/2)
	for key, h := range held {
		v, err := k.Semaphore("", 1).Inspect(t.Context(), key)
		if err != nil || !h.Held() || v.Holding != 1 || v.Holders[0].Token != h.Token() {
			t.Errorf("%s: held %t, %v; %+v, %v", key, h.Held(), context.Cause(h.Context()), v, err)
		}
	}
	if s.Err() != nil || s.Held() != 9 {
		t.Errorf("%d held: %v", s.Held(), s.Err())
	}
	_ = s.Close(t.Context()) // the dead node may still be a member: what it keeps, it keeps no more
	for key := range held {
		if v, err := k.Semaphore("", 1).Inspect(t.Context(), key); err != nil || v.Holding != 0 {
			t.Errorf("%s is not free: %+v, %v", key, v, err)
		}
	}
}
