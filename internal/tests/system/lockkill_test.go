//go:build system

package system

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/keystead/keystead/client"
)

// TestLockOfADeadNode: when the only node is killed, or stands still, the context of a lock
// ends before its lease does, and no sooner than it must.
func TestLockOfADeadNode(t *testing.T) {
	t.Parallel()
	const ttl = 3 * time.Second
	for what, signal := range map[string]syscall.Signal{"killed": syscall.SIGKILL, "stopped": syscall.SIGSTOP} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			n := startNode(t, nil, "server", "--id", "a")
			c, err := client.Dial(t.Context(), n.grpc)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			asked := time.Now()
			held, err := c.Lock("nightly").Acquire(t.Context(), "report", client.TTL(ttl))
			if err != nil {
				t.Fatal(err)
			}
			n.signal(t, signal)
			<-held.Context().Done()
			const late = time.Second // that a busy machine tells it; client's own tests have it exactly
			if took := time.Since(asked); took > ttl+late || took < ttl/2 || held.Held() || !errors.Is(context.Cause(held.Context()), client.ErrLockLost) {
				t.Errorf("after %s of %s: held %t, %v", took, ttl, held.Held(), context.Cause(held.Context()))
			}
			if signal == syscall.SIGSTOP {
				n.signal(t, syscall.SIGCONT)
			}
		})
	}
}
