package rpc

import (
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/keystead/keystead/internal/forward"
	"github.com/keystead/keystead/owner"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
)

// call gives all members the name of their cluster, and a level.
func (g *group) called(uid string, level uint32) {
	for _, m := range g.nodes {
		t := *m.Table()
		t.UID, t.Level = uid, level
		m.Set(&t)
	}
}

// TestAddressOfAnotherCluster: a member cannot be reached, and a node of another cluster is
// at its address by now, which owns the key by its own table. It decides nothing for
// callers of the first one; nor does a node of the same cluster that is not the one meant.
func TestAddressOfAnotherCluster(t *testing.T) {
	for what, to := range map[string]string{"another cluster": "n2", "another node": "n3"} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				strangers := grouped(t, 3, false, nil)
				there := func(ctx context.Context) (net.Conn, error) { return strangers.nodes[to].dial(ctx, "") }
				g := grouped(t, 3, false, func(c *Config) {
					own := c.Dial
					c.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
						if addr == "n2:7400" {
							return there(ctx)
						}
						return own(ctx, addr)
					}
				})
				g.called("one", 2)
				strangers.called(map[string]string{"n2": "two", "n3": "one"}[to], 2)
				key := g.keys("n2", 1, nil)[0]
				if to == "n3" { // which takes the key for its own
					strangers.without("n2")
					strangers.called("one", 2)
					key = g.keys("n2", 1, func(h uint64) bool { m, _, _ := strangers.board.Table().Owner(h); return m.Node == "n3" })[0]
				}
				_, err := g.nodes["n1"].counters.Add(bound(t), &counterpb.AddRequest{Key: key, Delta: 1})
				unavailable.check(t, err)
				s := strangers.nodes[to]
				if a := must(s.store.Get(s.clock.Now(), owner.Ref{Key: key, Name: "counter"}))(t); a.Version != 0 {
					t.Errorf("the stranger has counted to %d", a.Value)
				}
			})
		})
	}
}

// TestStreamNamesItsTarget: which streams from other nodes are accepted, by what they say
// and by what the cluster uses.
func TestStreamNamesItsTarget(t *testing.T) {
	for what, tc := range map[string]struct {
		headers []string
		level   uint32
		refused bool
	}{
		"a version before":                     {nil, 2, false},
		"a version before, when all are later": {nil, 3, true},
		"as it should be":                      {[]string{forward.ClusterHeader, "one", forward.TargetHeader, "n1"}, 3, false},
		"... while others are older":           {[]string{forward.ClusterHeader, "one", forward.TargetHeader, "n1"}, 2, false},
		"another cluster":                      {[]string{forward.ClusterHeader, "two", forward.TargetHeader, "n1"}, 2, true},
		"another node":                         {[]string{forward.ClusterHeader, "one", forward.TargetHeader, "n2"}, 2, true},
		"no node":                              {[]string{forward.ClusterHeader, "one"}, 3, true},
		"two clusters":                         {[]string{forward.ClusterHeader, "one", forward.ClusterHeader, "two", forward.TargetHeader, "n1"}, 3, true},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := grouped(t, 1, false, nil)
				g.called("one", tc.level)
				ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(t.Context(), tc.headers...), time.Second)
				defer cancel()
				stream, err := peerv1.NewForwardServiceClient(g.nodes["n1"].conn).Forward(ctx)
				if err != nil {
					t.Fatal(err)
				}
				md, err := stream.Header()
				if accepted := err == nil && md != nil; accepted == tc.refused {
					t.Errorf("%v, %v", md, err)
				}
				if tc.refused {
					if _, err := stream.Recv(); status.Code(err) != codes.FailedPrecondition {
						t.Error(err)
					}
				}
			})
		})
	}
}
