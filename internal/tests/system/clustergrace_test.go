package system

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"

	"github.com/keystead/keystead/client"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
)

// What is lost is waited for: a second less than what a test is willing to wait.
const graceTTL = 8 * time.Second

// graceNames are of objects of one key, and so lost together.
const (
	liveLock = "live" // held by a client that renews it
	deadLock = "dead" // held by one that does not
	twoLock  = "two"  // held by one, after another one that does not know that it is over
)

// graceTest is a key that two nodes at most know of, who die.
type graceTest struct {
	t    *testing.T
	c    *testCluster
	via  *testNode // one that lives
	key  string
	lock lockpb.LockServiceClient
}

// ctx bounds a call.
func (g *graceTest) ctx() context.Context {
	ctx, cancel := context.WithTimeout(g.t.Context(), callTime)
	g.t.Cleanup(cancel)
	return ctx
}

// mustAcquire takes a lock of the key, and does no more for it.
func (g *graceTest) mustAcquire(name, holder string, ttl time.Duration) (token uint64) {
	g.t.Helper()
	eventually(g.t, holder+" takes the lock "+name, func() bool {
		r, err := g.lock.Acquire(g.ctx(), &lockpb.AcquireRequest{Key: g.key, Name: name, Holder: holder, TtlNs: int64(ttl), WaitNs: int64(time.Second)})
		token = r.GetToken()
		return err == nil && r.Acquired
	})
	return token
}

// reclaim renews with a claim.
func (g *graceTest) reclaim(name, holder string, token uint64) *lockpb.RenewResponse {
	g.t.Helper()
	r, err := g.lock.Renew(g.ctx(), &lockpb.RenewRequest{Key: g.key, Name: name, Token: token, TtlNs: int64(graceTTL),
		Reclaim: &lockpb.Reclaim{LeftNs: int64(graceTTL / 2), Holder: holder}})
	if err != nil {
		g.t.Fatalf("%s claims %s: %v", holder, name, err)
	}
	return r
}

// Locks whose owner and standby die at once: nothing is granted as long as they may
// be held, who renews them keeps them, and what was granted last counts.
func TestClusterGrace(t *testing.T) {
	t.Parallel()
	flags := []string{"--max-lock-ttl", graceTTL.String(), "--lost-limits", "empty", "--lease-ttl", "1s", "--lease-margin", "25ms"}
	t.Run("owner and standby", func(t *testing.T) {
		t.Parallel()
		c := newCluster(t, 5, false, flags...)
		c.protected(c.nodes...)
		g := &graceTest{t: t, c: c, via: c.nodes[4]}
		for i := 0; g.key == ""; i++ { // the two are not the one that is asked
			key := "key-" + strconv.Itoa(i)
			if o := g.via.owners(key)[0]; o.Owner != g.via.id && o.Standby != g.via.id {
				g.key = key
			}
		}
		o := g.via.owners(g.key)[0]
		g.run(func() {
			for _, n := range c.nodes {
				if n.id == o.Owner || n.id == o.Standby {
					n.kill()
				}
			}
		})
	})
	t.Run("all there is", func(t *testing.T) {
		t.Parallel()
		c := newCluster(t, 1, true, flags...)
		g := &graceTest{t: t, c: c, via: c.nodes[0], key: "key"}
		g.run(func() {
			c.nodes[0].kill()
			c.nodes[0].run()
		})
	})
}

func (g *graceTest) run(lose func()) {
	t := g.t
	t.Helper()
	g.lock = lockpb.NewLockServiceClient(g.via.conn)
	kc, err := client.Dial(t.Context(), g.via.grpc)
	if err != nil {
		t.Fatal(err)
	}
	defer kc.Close()
	live, err := kc.Lock(liveLock).Acquire(t.Context(), g.key, client.TTL(graceTTL), client.Metadata([]byte("m")))
	if err != nil {
		t.Fatal(err)
	}
	former := g.mustAcquire(twoLock, "former", 10*time.Millisecond)
	last := g.mustAcquire(twoLock, "last", graceTTL)
	dead := g.mustAcquire(deadLock, "dead", graceTTL)
	over := time.Now().Add(graceTTL) // of the leases that nobody renews
	if _, err := g.via.add(g.key, 5); err != nil {
		t.Fatal(err)
	}
	lose()

	var refused error
	eventually(t, "the next owner answers, and grants nothing", func() bool {
		_, refused = g.lock.Acquire(g.ctx(), &lockpb.AcquireRequest{Key: g.key, Name: deadLock, Holder: "x", TtlNs: int64(time.Second), WaitNs: int64(time.Second)})
		if refused == nil && time.Now().Before(over) {
			t.Fatal("it was granted while it was held")
		}
		why, _ := reason(refused)
		return why == "RECOVERING"
	})
	if left := retryIn(refused); left <= 0 || left > 2*graceTTL {
		t.Errorf("it is to be tried again in %s: %v", left, refused)
	}
	g.claims(former, last)
	g.marks(live)

	next, err := kc.Lock(deadLock).Acquire(t.Context(), g.key, client.TTL(time.Second), client.Wait(patience))
	if err != nil {
		t.Fatal(err)
	}
	if now := time.Now(); now.Before(over) || next.Token() <= dead {
		t.Errorf("token %d after %d, granted %s after its lease", next.Token(), dead, now.Sub(over))
	}
	if next.Meta().LostEpoch != 0 {
		t.Errorf("the grace is over, and the answer says %+v", next.Meta())
	}
	if err := next.Release(t.Context()); err != nil {
		t.Error(err)
	}
	eventually(t, "no row is in grace", func() bool {
		st, _, err := g.via.status()
		return err == nil && st.RowsInGrace == 0
	})
	if s, err := kc.Lock(liveLock).Inspect(t.Context(), g.key); err != nil || s.Holder == nil || s.Holder.Token != live.Token() || s.LostEpoch != 0 {
		t.Errorf("the lock of the one that lives: %+v, %v", s, err)
	}
	if err := live.Release(t.Context()); err != nil {
		t.Errorf("giving it back: %v", err)
	}
}

func retryIn(err error) time.Duration {
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.RetryInfo); ok {
			return info.RetryDelay.AsDuration()
		}
	}
	return 0
}

// claims: the one that is late comes first, and the last one gets the lock.
func (g *graceTest) claims(former, last uint64) {
	t := g.t
	t.Helper()
	if r := g.reclaim(twoLock, "former", former); !r.Renewed || !r.Reclaimed || r.LostEpoch == 0 {
		t.Errorf("the former holder: %v", r)
	}
	if r := g.reclaim(twoLock, "last", last); !r.Renewed || !r.Reclaimed || r.TtlNs != int64(graceTTL/2) {
		t.Errorf("the last holder: %v", r)
	}
	if r := g.reclaim(twoLock, "former", former); r.Renewed || r.Holder.GetToken() != last {
		t.Errorf("the former holder again: %v", r)
	}
	if r := g.reclaim(twoLock, "last", last); !r.Renewed || r.Reclaimed {
		t.Errorf("the last holder renews: %v", r)
	}
	_, err := g.lock.Renew(g.ctx(), &lockpb.RenewRequest{Key: g.key, Name: deadLock, Token: last, TtlNs: int64(time.Second)})
	if why, _ := reason(err); why != "RECOVERING" {
		t.Errorf("a renewal without a claim: %v", err)
	}
}

// marks: the one that lives notices nothing, and all answers say what was lost.
func (g *graceTest) marks(live *client.HeldLock) {
	t := g.t
	t.Helper()
	eventually(t, "the one that lives has its lock back", func() bool {
		r, err := g.lock.Inspect(g.ctx(), &lockpb.InspectRequest{Key: g.key, Name: liveLock})
		if !live.Held() {
			t.Fatalf("it has lost it: %v", context.Cause(live.Context()))
		}
		return err == nil && r.LostEpoch != 0 && r.Holder.GetToken() == live.Token() && string(r.Holder.GetMetadata()) == "m"
	})
	st, _, err := g.via.status()
	if err != nil || st.RowsInGrace == 0 || st.RowsInGrace > st.Rows {
		t.Errorf("%v, %v", st, err)
	}
	if r, err := g.via.add(g.key, 1); err != nil || r.Value != 1 || r.LostEpoch == 0 {
		t.Errorf("a counter: %v, %v", r, err)
	}
	r, err := limitpb.NewLimitServiceClient(g.via.conn).Check(g.ctx(), &limitpb.CheckRequest{Key: g.key, Limit: 1, PeriodNs: int64(time.Hour)})
	if err != nil || r.Allowed || r.LostEpoch == 0 {
		t.Errorf("a limit: %v, %v", r, err)
	}
	for want, args := range map[string][]string{
		"not known to be held  (what was kept of the key was lost in epoch ": {"lock", g.key, "--name", deadLock, "--inspect"},
		`"lost_epoch":`:         {"counter", "get", g.key, "--name", "n", "--json"},
		"its grace period runs": {"limit", "peek", g.key, "--limit", "1/1h"},
		" in grace":             {"status"},
	} {
		if out := succeeds(t, append(args, "--addr", g.via.grpc)...); !strings.Contains(out, want) {
			t.Errorf("%q says %q", args, out)
		}
	}
	if _, body, err := g.via.get("/metrics"); err != nil || !strings.Contains(body, "\nkeystead_cluster_rows_in_grace ") {
		t.Errorf("the metrics do not say it: %v", err)
	}
}
