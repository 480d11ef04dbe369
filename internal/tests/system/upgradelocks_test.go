//go:build system

package system

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/keystead/keystead/client"
	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
)

// TestUpgradeOfLocks upgrades a cluster node by node while locks are held and waited for: nothing is
// lost, and what the earlier version does not know is either refused or given back. When all nodes
// are upgraded locks are shared, and sessions hold them; then an owner is killed, and the others go on.
// A version that knows them, as those of level 7 on do, refuses nothing of them.
func TestUpgradeOfLocks(t *testing.T) {
	t.Parallel()
	const ttl = 15 * time.Second
	before := *upgradeFrom
	if before == "" {
		before = binary
	}
	c := layOut(t, 3, true, "--max-lock-ttl", "1m")
	for _, n := range c.nodes {
		n.prepare = func(cmd *exec.Cmd) { cmd.Path, cmd.Args[0] = before, before }
		n.run()
	}
	c.ready(c.nodes...)
	c.protected(c.nodes...)
	st, _, err := c.nodes[0].status()
	if err != nil {
		t.Fatal(err)
	}
	older := st.LevelKnown < 7
	h := holdLocks(t, c, ttl)
	session, err := h.Session(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i, n := range c.nodes {
		stopped(t, n)
		n.flags = slices.DeleteFunc(n.flags, func(f string) bool { return f == "--bootstrap" })
		if !slices.Contains(n.flags, "--join") {
			n.flags = append(n.flags, "--join", c.addrs(n))
		}
		n.prepare = nil
		n.run()
		eventually(t, "it is back", func() bool { st, _, err := n.status(); return err == nil && st.RowsOwned > 0 })
		c.protected(c.nodes...)
		h.check(t, n)
		if i < len(c.nodes)-1 && older {
			h.early(t, c, session)
		}
	}
	h.shares(t, c, session)
	h.check(t, c.nodes[0])
	victim := c.nodes[2]
	victim.kill()
	<-time.After(ttl + ttl/2)
	h.check(t, c.nodes[0])
	if session.Err() != nil {
		t.Error(session.Err())
	}
	h.end(t, session)
}

// heldLocks are locks that are held while a cluster is upgraded.
type heldLocks struct {
	*client.Client
	alone  map[string]*client.HeldLock
	shared []*client.HeldLock
	next   map[string]chan *client.HeldLock // of those that wait for some
}

func holdLocks(t *testing.T, c *testCluster, ttl time.Duration) *heldLocks {
	t.Helper()
	var addrs []string
	for _, n := range c.nodes {
		addrs = append(addrs, n.grpc)
	}
	k, err := client.Dial(t.Context(), addrs...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Close)
	h := &heldLocks{k, map[string]*client.HeldLock{}, nil, map[string]chan *client.HeldLock{}}
	for i := range 30 {
		key := fmt.Sprint("upgrade-lock-", i)
		if h.alone[key], err = k.Lock("").Acquire(t.Context(), key, client.TTL(ttl), client.Metadata([]byte(key))); err != nil {
			t.Fatal(err)
		}
		if i%5 != 0 {
			continue
		}
		got := make(chan *client.HeldLock, 1)
		h.next[key] = got
		go func() {
			held, err := k.Lock("").Acquire(context.WithoutCancel(t.Context()), key, client.TTL(ttl), client.HeldBy("next"))
			if err != nil {
				held = nil
			}
			got <- held
		}()
		eventually(t, "one waits", func() bool {
			s, err := k.Lock("").Inspect(t.Context(), key)
			return err == nil && s.Waiting == 1
		})
	}
	return h
}

// check has all locks held under the tokens that they were granted under, and asks a node for them.
func (h *heldLocks) check(t *testing.T, n *testNode) {
	t.Helper()
	locks := lockpb.NewLockServiceClient(n.conn)
	for key, l := range h.alone {
		r, err := locks.Inspect(t.Context(), &lockpb.InspectRequest{Key: key})
		if err != nil || !l.Held() || r.Holder.GetToken() != l.Token() || string(r.Holder.GetMetadata()) != key || r.Holder.Shared || r.Waiting != uint32(min(1, cap(h.next[key]))) {
			t.Errorf("%s: held %t, %v; %v, %v", key, l.Held(), context.Cause(l.Context()), r, err)
		}
	}
	for _, l := range h.shared {
		if ok, err := l.Verify(t.Context()); !ok || err != nil || !l.Held() || !l.Shared() {
			t.Errorf("a shared lock: %t, %v", ok, err)
		}
	}
}

// early asks each node for what not all nodes know yet, of keys of all owners.
func (h *heldLocks) early(t *testing.T, c *testCluster, s *client.Session) {
	t.Helper()
	for _, of := range c.keys(2) {
		for _, key := range of {
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			if _, err := h.Lock("early").TryAcquire(ctx, key, client.Shared()); err == nil {
				t.Errorf("%s: it was shared", key)
			}
			if _, err := s.Lock("early").TryAcquire(ctx, key); err == nil {
				t.Errorf("%s: it was granted under a session", key)
			}
			cancel()
			for _, n := range c.nodes { // not by the new client
				ctx := t.Context()
				r, err := lockpb.NewLockServiceClient(n.conn).Acquire(ctx, &lockpb.AcquireRequest{Key: key, Name: "early", Holder: "h", TtlNs: int64(time.Minute), Shared: true, DelayNs: int64(time.Second)})
				if err != nil {
					continue
				}
				if !r.Acquired || r.Shared || r.DelayNs != 0 {
					t.Errorf("%s at %s: %v", key, n.id, r)
				}
				if _, err := h.Lock("early").Inspect(t.Context(), key); err != nil {
					t.Error(err)
				}
				if _, err := lockpb.NewLockServiceClient(n.conn).Release(t.Context(), &lockpb.ReleaseRequest{Key: key, Name: "early", Token: r.Token}); err != nil {
					t.Error(err)
				}
			}
		}
	}
}

// shares has all locks of the cluster's level taken: shared ones, and some under a session.
func (h *heldLocks) shares(t *testing.T, c *testCluster, s *client.Session) {
	t.Helper()
	for _, of := range c.keys(3) {
		for _, key := range of {
			var a *client.HeldLock
			eventually(t, "it is shared", func() (ok bool) { // when the level is committed
				var err error
				a, err = h.Lock("shared").Acquire(t.Context(), key, client.Shared(), client.TTL(15*time.Second))
				return err == nil
			})
			b, err := s.Lock("shared").Acquire(t.Context(), key, client.Shared())
			if err != nil {
				t.Fatal(err)
			}
			h.shared = append(h.shared, a, b)
			if _, err := s.Lock("alone").Acquire(t.Context(), key); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// end gives all back, and has those that waited get theirs.
func (h *heldLocks) end(t *testing.T, s *client.Session) {
	t.Helper()
	for key, l := range h.alone {
		if err := l.Release(t.Context()); err != nil {
			t.Errorf("%s: %v", key, err)
		}
	}
	for key, got := range h.next {
		held := <-got
		if held == nil || held.Token() <= h.alone[key].Token() {
			t.Errorf("%s: the one that waited has not got it: %v", key, held)
		}
	}
	_ = s.Close(t.Context()) // the dead node may still be a member
	if v, err := h.Lock("").Inspect(t.Context(), "upgrade-lock-1"); err != nil || v.Holding != 0 {
		t.Errorf("%+v %v", v, err)
	}
}
