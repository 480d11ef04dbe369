package rls_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/keystead/keystead/internal/node"
	clusterpb "github.com/keystead/keystead/proto/keystead/cluster/v1"
)

const slots = `
domain: d
descriptors:
- key: team
  descriptors:
  - key: request
    rate_limit: {name: running, keystead: {slots: 2, hold: 10m}}
- key: other
  descriptors:
  - key: request
    rate_limit: {keystead: {slots: 1, hold: 10m}}
- key: short
  descriptors:
  - key: request
    rate_limit: {keystead: {slots: 1, hold: 10ms}}
- key: shadow
  descriptors:
  - key: request
    shadow_mode: true
    rate_limit: {keystead: {slots: 1, hold: 10m}}
- key: daily
  rate_limit: {unit: day, requests_per_unit: 3}
- key: request
  rate_limit: {keystead: {slots: 1, hold: 10m}}
`

// TestSlots: a hit takes a slot, and a negative one gives back what a hit with the same last entry took, once.
func TestSlots(t *testing.T) {
	long := strings.Repeat("x", 5000)
	for _, tc := range []struct {
		name  string
		steps []step
		then  string // in the metrics, at the end
	}{
		{"taken and given back", []step{
			one("team=1,request=a", "ok: ok 1 of 2/unknown running"),
			one("team=1,request=b", "ok: ok 0 of 2/unknown running"),
			one("team=1,request=c", "over: over 0 of 2/unknown running"),
			one("team=2,request=c", "ok: ok 1 of 2/unknown running"),
			one("team=1,request=c -1", "ok: ok 0 of 2/unknown running"), // Envoy tells of refused ones, too
			one("team=1,request=c", "over: over 0 of 2/unknown running"),
			one("team=1,request=a -1", "ok: ok 0 of 2/unknown running"),
			one("team=1,request=a -1", "ok: ok 0 of 2/unknown running"), // doubled
			one("team=1,request=c", "ok: ok 0 of 2/unknown running"),
			one("team=1,request=d", "over: over 0 of 2/unknown running"),
		}, `keystead_rls_slot_releases_total{outcome="unmatched"} 2`},
		{"given back before it is taken", []step{
			one("other=1,request=a -1", "ok: ok 0 of 1/unknown"),
			one("other=1,request=a", "ok: ok 0 of 1/unknown"),
			one("other=1,request=b", "over: over 0 of 1/unknown"),
		}, `keystead_rls_slot_releases_total{outcome="unmatched"} 1`},
		{"one entry for several requests", []step{ // an id that services pass on
			one("team=1,request=a", "ok: ok 1 of 2/unknown running"),
			one("team=1,request=a", "ok: ok 0 of 2/unknown running"),
			one("team=1,request=a", "over: over 0 of 2/unknown running"),
			one("team=1,request=a -1", "ok: ok 0 of 2/unknown running"),
			one("team=1,request=b", "ok: ok 0 of 2/unknown running"),
			one("team=1,request=c", "over: over 0 of 2/unknown running"),
		}, `keystead_rls_slot_releases_total{outcome="given"} 1`},
		{"one entry for several descriptors", []step{
			{ask: []string{"team=1,request=a", "other=1,request=a"}, want: "ok: ok 1 of 2/unknown running, ok 0 of 1/unknown"},
			one("team=1,request=a", "ok: ok 0 of 2/unknown running"),
			{ask: []string{"team=1,request=a -1"}, want: "ok: ok 0 of 2/unknown running"},
			one("other=1,request=b", "over: over 0 of 1/unknown"),
			one("team=1,request=b", "ok: ok 0 of 2/unknown running"),
			{ask: []string{"other=1,request=a -1", "team=1,request=a -1"}, want: "ok: ok 0 of 1/unknown, ok 0 of 2/unknown running"},
			one("other=1,request=b", "ok: ok 0 of 1/unknown"),
		}, `keystead_rls_slot_releases_total{outcome="given"} 3`},
		{"no entry", []step{
			one("team=1,request=", "ok: ok 1 of 2/unknown running"),
			one("team=1,request= -1", "ok: ok 0 of 2/unknown running"), // matches nothing, not even that
			one("team=1,request=", "ok: ok 0 of 2/unknown running"),
			one("team=1,request=", "over: over 0 of 2/unknown running"),
			one("team=1", "ok: ok"),
		}, `keystead_rls_slot_releases_total{outcome="unmatched"} 1`},
		{"hostile entries", []step{
			one("other=1,request="+long, "ok: ok 0 of 1/unknown"),
			one("other=1,request="+long+"x", "over: over 0 of 1/unknown"),
			one("other=1,request="+long+"x -1", "ok: ok 0 of 1/unknown"),
			one("other=1,request=#"+strings.Repeat("0", 64)+" -1", "ok: ok 0 of 1/unknown"),
			one("other=1,request=b", "over: over 0 of 1/unknown"),
			one("other=1,request="+long+" -1", "ok: ok 0 of 1/unknown"),
			one("other=1,request=b", "ok: ok 0 of 1/unknown"),
			one("other="+long+",request=b", "ok: ok 0 of 1/unknown"),
			one("other="+long+",request=c", "over: over 0 of 1/unknown"),
		}, `keystead_rls_slot_releases_total{outcome="unmatched"} 2`},
		{"nothing above", []step{
			one("request=a", "ok: ok 0 of 1/unknown"),
			one("request=b", "over: over 0 of 1/unknown"),
		}, ""},
		{"several at once", []step{
			one("team=1,request=a +0", "ok: ok 2 of 2/unknown running"),
			one("team=1,request=a +3", "over: over 2 of 2/unknown running"),
			one("team=1,request=a +2", "ok: ok 0 of 2/unknown running"),
			one("team=1,request=a +0", "over: over 0 of 2/unknown running"),
			one("team=1,request=a -0", "ok: ok 0 of 2/unknown running"),
			one("team=1,request=a -1", "ok: ok 0 of 2/unknown running"), // all that the request has
			one("team=1,request=b +2", "ok: ok 0 of 2/unknown running"),
		}, ""},
		{"a request without a slot spends nothing of limits", []step{
			{ask: []string{"daily=1", "other=1,request=a"}, want: "ok: ok 2 of 3/day, ok 0 of 1/unknown"},
			{ask: []string{"daily=1", "other=1,request=b"}, want: "over: ok 2 of 3/day, over 0 of 1/unknown"},
			one("daily=1 +0", "ok: ok 2 of 3/day"),
			{ask: []string{"daily=1", "shadow=1,request=a"}, want: "ok: ok 1 of 3/day, ok 0 of 1/unknown"},
			{ask: []string{"daily=1", "shadow=1,request=b"}, want: "ok: ok 0 of 3/day, ok 0 of 1/unknown"},
		}, ""},
		{"a request that is over a limit has no slot", []step{
			{ask: []string{"daily=1", "other=1,request=a"}, hits: 1, want: "ok: ok 2 of 3/day, ok 0 of 1/unknown"},
			one("daily=2 +3", "ok: ok 0 of 3/day"),
			{ask: []string{"daily=2", "other=2,request=a"}, want: "over: over 0 of 3/day, ok 1 of 1/unknown", then: `keystead_rls_refunds_total{outcome="given"} 1`},
			one("other=2,request=b", "ok: ok 0 of 1/unknown"),
		}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, slots, nil)
			for i, st := range tc.steps {
				r, err := s.ask(t, "d", st.hits, st.ask...)
				if err != nil {
					t.Fatalf("step %d, %.100q: %v", i+1, st.ask, err)
				}
				if got := show(r); got != st.want {
					t.Errorf("step %d, %.100q:\n got %s\nwant %s", i+1, st.ask, got, st.want)
				}
				if st.then != "" {
					eventually(t, st.then, func() bool { return strings.Contains(s.metrics(t), st.then+"\n") })
				}
			}
			if !strings.Contains(s.metrics(t), tc.then) {
				t.Errorf("not in the metrics: %s", tc.then)
			}
		})
	}
}

// TestSlotsHeal: a slot that nobody gives back comes back by itself, and what gives it back then gives nothing.
func TestSlotsHeal(t *testing.T) {
	t.Parallel()
	s := serve(t, slots, nil)
	if r, err := s.ask(t, "d", 0, "short=1,request=a"); err != nil || show(r) != "ok: ok 0 of 1/unknown" {
		t.Fatalf("%v %v", r, err)
	}
	eventually(t, "the slot comes back", func() bool {
		r, err := s.ask(t, "d", 0, "short=1,request=b +0")
		return err == nil && r.OverallCode == rlspb.RateLimitResponse_OK
	})
	if _, err := s.ask(t, "d", 0, "short=1,request=a -1"); err != nil {
		t.Error(err)
	}
	if want := `keystead_rls_slot_releases_total{outcome="unmatched"} 1`; !strings.Contains(s.metrics(t), want) {
		t.Error("a slot was given back twice: not", want)
	}
}

// TestSlotsAreExact: whatever comes at once, so many run at a time, and none is left taken.
func TestSlotsAreExact(t *testing.T) {
	t.Parallel()
	s := serve(t, slots, nil)
	var running, ran atomic.Int64
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := range 40 {
				descriptor := fmt.Sprintf("team=1,request=%d.%d", w, i)
				r, err := s.ask(t, "d", 0, descriptor)
				if err != nil {
					t.Error(err)
					return
				}
				if r.OverallCode == rlspb.RateLimitResponse_OK {
					if n := running.Add(1); n > 2 {
						t.Errorf("%d run", n)
					}
					ran.Add(1)
					running.Add(-1)
				}
				for range 1 + i%2 { // also twice, and of those that were refused
					if _, err := s.ask(t, "d", 0, descriptor+" -1"); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	if r, err := s.ask(t, "d", 0, "team=1,request=x +2"); err != nil || show(r) != "ok: ok 0 of 2/unknown running" {
		t.Errorf("after %d requests: %v %v", ran.Load(), r, err)
	}
}

// TestSlotsAfterReload: what was taken is given back under other numbers, and not if there are no slots any more.
func TestSlotsAfterReload(t *testing.T) {
	t.Parallel()
	s := serve(t, slots, nil)
	say := func(descriptor, want string) {
		t.Helper()
		r, err := s.ask(t, "d", 0, descriptor)
		if err != nil || show(r) != want {
			t.Errorf("%s: %v %v, want %s", descriptor, r, err, want)
		}
	}
	reload := func(text string) {
		t.Helper()
		before := s.node.Status().RLS.Read
		write(t, s.file, text)
		eventually(t, "the file is read", func() bool { return s.node.Status().RLS.Read.After(before) })
	}
	say("other=1,request=a", "ok: ok 0 of 1/unknown")
	say("team=1,request=a", "ok: ok 1 of 2/unknown running")
	reload(strings.Replace(slots, "slots: 1, hold: 10m", "slots: 2, hold: 5m", 1))
	say("other=1,request=b", "ok: ok 0 of 2/unknown")
	say("other=1,request=a -1", "ok: ok 0 of 2/unknown")
	say("other=1,request=c", "ok: ok 0 of 2/unknown")
	say("other=1,request=d", "over: over 0 of 2/unknown")
	reload(slots)
	say("other=1,request=b -1", "ok: ok 0 of 1/unknown")
	say("other=1,request=d", "over: over 0 of 1/unknown") // one runs still
	reload("domain: d\ndescriptors:\n- key: team\n  descriptors:\n  - {key: request, rate_limit: {unit: day, requests_per_unit: 5}}\n")
	say("team=1,request=a -1", "ok: ok 5 of 5/day")
	reload(slots)
	say("team=1,request=b", "ok: ok 0 of 2/unknown running")
	say("team=1,request=c", "over: over 0 of 2/unknown running")
}

// TestSlotsThroughAFailover: slots are taken by one node and given back by another, also when their owner has died.
func TestSlotsThroughAFailover(t *testing.T) {
	t.Parallel()
	member := func(id string, change func(*node.ClusterConfig)) *service {
		return serve(t, slots, func(c *node.Config) {
			c.ID, c.StopGrace = id, time.Millisecond
			c.Cluster = node.ClusterConfig{ID: "c", RaftAddr: "127.0.0.1:0", GossipAddr: "127.0.0.1:0", Profile: "local", Settle: 50 * time.Millisecond}
			change(&c.Cluster)
		})
	}
	n1 := member("n1", func(c *node.ClusterConfig) { c.Bootstrap = true })
	gossip := n1.node.Status().Cluster.GossipAddr
	n2 := member("n2", func(c *node.ClusterConfig) { c.Join = []string{gossip} })
	eventually(t, "both own rows, and nothing moves", func() bool {
		a, b := n1.node.Status().Cluster, n2.node.Status().Cluster
		return a.RowsOwned > 0 && b.RowsOwned > 0 && a.RowsToMove == 0 && a.RowsUnprotected == 0 && a.Rows == b.Rows
	})
	team := ""
	for i := 0; team == ""; i++ {
		value := fmt.Sprint(i)
		key := fmt.Sprintf("1:d4:team%d:%s7:request1**", len(value), value)
		r, err := clusterpb.NewClusterServiceClient(dial(t, n1.node)).GetOwners(t.Context(), &clusterpb.GetOwnersRequest{Keys: []string{key}})
		if err != nil {
			t.Fatal(err)
		}
		if r.Owners[0].Owner == "n2" {
			team = value
		}
	}
	say := func(s *service, rest, want string) {
		t.Helper()
		r, err := s.ask(t, "d", 0, "team="+team+",request="+rest)
		if err != nil || show(r) != want {
			t.Errorf("%s: %v %v, want %s", rest, r, err, want)
		}
	}
	say(n1, "a", "ok: ok 1 of 2/unknown running")
	say(n2, "b", "ok: ok 0 of 2/unknown running")
	say(n2, "a -1", "ok: ok 0 of 2/unknown running")
	say(n1, "c", "ok: ok 0 of 2/unknown running")
	n2.node.Kill()
	eventually(t, "n1 has taken over", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := n1.ShouldRateLimit(ctx, request(t, "d", 0, "team="+team+",request=x +0"))
		return err == nil
	})
	say(n1, "d", "over: over 0 of 2/unknown running")
	say(n1, "a -1", "ok: ok 0 of 2/unknown running") // once more
	say(n1, "d", "over: over 0 of 2/unknown running")
	say(n1, "b -1", "ok: ok 0 of 2/unknown running")
	say(n1, "d", "ok: ok 0 of 2/unknown running")
}
