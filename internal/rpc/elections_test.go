package rpc

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/keystead/keystead/owner"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	electionpb "github.com/keystead/keystead/proto/keystead/election/v1"
	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
)

// envelopedElections are those of enveloped that are of elections.
func envelopedElections() []envelopedCall {
	id := &commonpb.RequestId{Client: []byte("0123456789abcdef"), Sequence: 7, Settled: 5, AgeNs: 9}
	return []envelopedCall{
		{electionCampaign.operation, &electionpb.CampaignRequest{Key: "k", Candidate: "c", Value: []byte("v"), TtlNs: 1e9, WaitNs: 2e9, DelayNs: 1e6, RequestId: id}, "", "0801100218038001308a01330a016b1a0163220176288094ebdc033080a8d6b90738c0843d42180a10303132333435363738396162636465661007180520099201016b9a01180a1030313233343536373839616263646566100718052009a00180a8d6b907",
			&electionpb.CampaignResponse{Elected: true, Token: 8}, "", "080170307a0408011008", false},
		{electionRenew.operation, &electionpb.RenewRequest{Key: "k", Token: 8, TtlNs: 1e9, Reclaim: &electionpb.Reclaim{LeftNs: 5, Candidate: "c"}}, "", "0801100218038001318a01120a016b1808208094ebdc032a0508051201639201016b",
			&electionpb.RenewResponse{Renewed: true, Reclaimed: true}, "", "080170317a0408011801", false},
		{electionProclaim.operation, &electionpb.ProclaimRequest{Key: "k", Token: 8, Value: []byte("v"), RequestId: id}, "", "0801100218038001328a01220a016b18082201762a180a10303132333435363738396162636465661007180520099201016b9a01180a1030313233343536373839616263646566100718052009",
			&electionpb.ProclaimResponse{Proclaimed: true}, "", "080170327a020801", false},
		{electionResign.operation, &electionpb.ResignRequest{Key: "k", Token: 8, RequestId: id}, "", "0801100218038001338a011f0a016b180822180a10303132333435363738396162636465661007180520099201016b9a01180a1030313233343536373839616263646566100718052009",
			&electionpb.ResignResponse{Resigned: true}, "", "080170337a020801", false},
		{electionVerify.operation, &electionpb.VerifyRequest{Key: "k", Token: 8}, "", "0801100218038001348a01050a016b18089201016b",
			&electionpb.VerifyResponse{Leads: true, Leader: &electionpb.Leader{Token: 8, Candidate: "c"}}, "", "080170347a09080112050a01631008", false},
		{electionRevoke.operation, &electionpb.RevokeRequest{Key: "k", Token: 8, RequestId: id}, "", "0801100218038001358a011f0a016b180822180a10303132333435363738396162636465661007180520099201016b9a01180a1030313233343536373839616263646566100718052009",
			&electionpb.RevokeResponse{Revoked: true}, "", "080170357a020801", false},
		{electionInspect.operation, &electionpb.InspectRequest{Key: "k", MaxListed: 3}, "", "0801100218038001368a01050a016b18039201016b",
			&electionpb.InspectResponse{Leader: &electionpb.Leader{Token: 8}, Waiting: 2}, "", "080170367a060a0210082002", false},
		{electionAwait.operation, &peerv1.AwaitRequest{Key: "k", Seen: &peerv1.Seen{Position: 6, Exists: true}, WaitNs: 2e9}, "", "0801100218038001608a010f0a016b1a04080610012080a8d6b9079201016ba00180a8d6b907",
			&electionpb.ObserveResponse{Leader: &electionpb.Leader{Token: 8}, Version: 9}, "", "080170607a06120210081809", false},
	}
}

// observe observes an election until the test ends.
func observe(t *testing.T, m *member, key string, after uint64) grpc.ServerStreamingClient[electionpb.ObserveResponse] {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute) // of the bubble
	t.Cleanup(cancel)
	return must(m.elections.Observe(ctx, &electionpb.ObserveRequest{Key: key, AfterVersion: after}))(t)
}

// nextLeader returns the next message that is no heartbeat.
func nextLeader(t *testing.T, o grpc.ServerStreamingClient[electionpb.ObserveResponse]) *electionpb.ObserveResponse {
	t.Helper()
	for range 100 {
		r := must(o.Recv())(t)
		if !r.Heartbeat {
			return r
		}
		if r.Leader != nil || r.Version != 0 || r.StaleAfterNs != int64(watchStale) || r.Owner == "" {
			t.Errorf("a heartbeat says %v", r)
		}
	}
	t.Fatal("nothing but heartbeats")
	return nil
}

// Through any node: candidates lead one after the other, say what they have to say, and each
// observer hears of each, of the end of the last one at its very moment.
func TestElections(t *testing.T) {
	inGroup(t, func(t *testing.T, g *group) {
		g.called("c", owner.ElectionLevel)
		for _, n := range []string{"n1", "n2", "n3"} {
			electionThrough(t, g.nodes[n], "of "+n)
		}
	})
}

func electionThrough(t *testing.T, m *member, key string) {
	const second = int64(time.Second)
	ctx := bound(t)
	campaign := func(candidate string, wait int64) *electionpb.CampaignRequest {
		return &electionpb.CampaignRequest{Key: key, Candidate: candidate, Value: []byte("at " + candidate), TtlNs: 10 * second, WaitNs: wait}
	}
	o := observe(t, m, key, 0)
	first := nextLeader(t, o)
	if first.Leader != nil || first.Version == 0 {
		t.Error(first)
	}
	a := must(m.elections.Campaign(ctx, campaign("a", 0)))(t)
	if !a.Elected || a.Token == 0 || a.TtlNs != 10*second || a.Owner == "" || a.Epoch == 0 || a.Leader != nil {
		t.Fatal(a)
	}
	seen := nextLeader(t, o)
	if seen.Leader.GetToken() != a.Token || string(seen.Leader.Value) != "at a" || seen.Version <= first.Version {
		t.Error(seen)
	}
	if r := must(m.elections.Campaign(ctx, campaign("x", 0)))(t); r.Elected || r.Leader.GetCandidate() != "a" || r.QueuePosition != 1 {
		t.Error(r)
	}
	if r := must(m.elections.Proclaim(ctx, &electionpb.ProclaimRequest{Key: key, Token: a.Token, Value: []byte("moved"), RequestId: requestN(1, 3)}))(t); !r.Proclaimed {
		t.Error(r)
	}
	moved := nextLeader(t, o)
	if moved.Leader.GetToken() != a.Token || string(moved.Leader.Value) != "moved" || moved.Version <= seen.Version {
		t.Error(moved)
	}
	waited := make(chan *electionpb.CampaignResponse, 1)
	go func() {
		r, _ := m.elections.Campaign(ctx, campaign("b", 60*second))
		waited <- r
	}()
	synctest.Wait()
	v := must(m.elections.Inspect(ctx, &electionpb.InspectRequest{Key: key, Name: "election"}))(t)
	if v.Leader.GetToken() != a.Token || v.Leader.TtlNs <= 0 || v.Waiting != 1 || v.Candidates[0].Id != "b" {
		t.Error(v)
	}
	if r := must(m.elections.Resign(ctx, &electionpb.ResignRequest{Key: key, Token: a.Token}))(t); !r.Resigned {
		t.Error(r)
	}
	b := <-waited
	if next := nextLeader(t, o); !b.GetElected() || next.Leader.GetToken() != b.Token || next.Version <= moved.Version {
		t.Error(next, b) // with nobody in between
	}
	if r := must(m.elections.Proclaim(ctx, &electionpb.ProclaimRequest{Key: key, Token: a.Token}))(t); r.Proclaimed {
		t.Error(r)
	}
	if r := must(m.elections.Verify(ctx, &electionpb.VerifyRequest{Key: key, Token: b.Token}))(t); !r.Leads || r.Leader.Candidate != "b" {
		t.Error(r)
	}
	if r := must(m.elections.Renew(ctx, &electionpb.RenewRequest{Key: key, Token: b.Token, TtlNs: second / 50}))(t); !r.Renewed {
		t.Error(r)
	}
	for nobody := (*electionpb.ObserveResponse)(nil); nobody == nil; { // the owner's clock is no bubble's
		if r := must(o.Recv())(t); !r.Heartbeat {
			nobody = r
			if r.Leader != nil || r.LostEpoch != 0 || r.Version < moved.Version {
				t.Error(r)
			}
		}
	}
	c := must(m.elections.Campaign(ctx, campaign("c", 0)))(t)
	if r := must(m.elections.Revoke(ctx, &electionpb.RevokeRequest{Key: key, Token: c.Token, RequestId: requestN(1, 7)}))(t); !r.Revoked {
		t.Error(r)
	}
}

// A node that awaits an object is answered when time alone has made it another one, not a beat later.
func TestAwaitInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := grouped(t, 1, false, nil).nodes["n1"]
		began, looks := time.Now(), 0
		news, err := h.server.awaitNews(frame{ctx: bound(t), wait: int64(10 * time.Second)}, func(int64) (<-chan struct{}, int64, error) {
			if looks++; looks == 2 {
				return nil, 0, nil
			}
			return make(chan struct{}), int64(3 * time.Second), nil
		})
		if took := time.Since(began); !news || err != nil || took != 3*time.Second {
			t.Errorf("%v, %v after %s", news, err, took)
		}
	})
}

// All observers of an election at a node are one to its owner, and one that begins again goes on
// from what it has.
func TestObserversShareATopic(t *testing.T) {
	inGroup(t, func(t *testing.T, g *group) {
		g.called("c", owner.ElectionLevel)
		m, key := g.nodes["n1"], g.key("n2")
		const many = 50
		var all []grpc.ServerStreamingClient[electionpb.ObserveResponse]
		for range many {
			all = append(all, observe(t, m, key, 0))
			nextLeader(t, all[len(all)-1])
		}
		synctest.Wait()
		row := g.nodes["n2"].server.row(electionAwait.operation)
		before := count(t, row.no)
		time.Sleep(10 * time.Second)
		if n := count(t, row.no) - before; n < 8 || n > 12 {
			t.Errorf("the owner was asked %v times in 10 s by %d observers", n, many)
		}
		a := must(m.elections.Campaign(bound(t), &electionpb.CampaignRequest{Key: key, Candidate: "a", TtlNs: int64(time.Minute)}))(t)
		version := uint64(0)
		for _, o := range all {
			r := nextLeader(t, o)
			if version = r.Version; r.Leader.GetToken() != a.Token {
				t.Fatal(r)
			}
		}
		for range 5 { // beats: the owner says that nothing is new, and the leader stays
			if r := must(all[0].Recv())(t); !r.Heartbeat || r.Version != 0 {
				t.Fatalf("nothing has happened, and an observer was told %v", r)
			}
		}
		if r := must(observe(t, m, key, version).Recv())(t); !r.Heartbeat {
			t.Errorf("one that has it already was told %v", r)
		}
	})
}

// A cluster with nodes that know no elections has none; a counter is none.
func TestElectionRefusals(t *testing.T) {
	inGroup(t, func(t *testing.T, g *group) {
		g.called("c", owner.ElectionLevel-1)
		m, ctx := g.nodes["n1"], bound(t)
		_, err := m.elections.Campaign(ctx, &electionpb.CampaignRequest{Key: "k", Candidate: "a", TtlNs: int64(time.Second)})
		refusal{code: codes.Unavailable, why: commonpb.Reason_REASON_UNAVAILABLE, hint: true, retry: time.Second}.check(t, err)
		_, err = observe(t, m, "k", 0).Recv()
		refusal{code: codes.Unavailable, why: commonpb.Reason_REASON_UNAVAILABLE, hint: true, retry: time.Second}.check(t, err)
		g.called("c", owner.ElectionLevel)
		_, err = m.elections.Campaign(ctx, &electionpb.CampaignRequest{Key: "k", TtlNs: int64(time.Second)})
		badField("candidate").check(t, err)
		_, err = m.elections.Campaign(ctx, &electionpb.CampaignRequest{Key: "k", Candidate: "a", Value: make([]byte, 1025), TtlNs: int64(time.Second)})
		badField("value").check(t, err)
	})
}
