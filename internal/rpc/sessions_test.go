package rpc

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/keystead/keystead/internal/heldset"
	"github.com/keystead/keystead/owner"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	electionpb "github.com/keystead/keystead/proto/keystead/election/v1"
	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
	semaphorepb "github.com/keystead/keystead/proto/keystead/semaphore/v1"
	sessionpb "github.com/keystead/keystead/proto/keystead/session/v1"
)

const sessionTTL = int64(15 * time.Second)

func testSession(generation uint64) *commonpb.Session {
	return &commonpb.Session{Client: []byte("0123456789abcdef"), Generation: generation}
}

// envelopedSessions are those of enveloped that are of sessions.
func envelopedSessions() []envelopedCall {
	return []envelopedCall{
		{sessionKeepAlive, &sessionpb.KeepAliveRequest{Session: testSession(4), TtlNs: 1e9, Holds: []uint64{1}, Digest: 2}, "",
			"08011002180380015a8a012f0a140a10303132333435363738396162636465661004108094ebdc031a080100000000000000210200000000000000",
			&sessionpb.KeepAliveResponse{Node: "n1", All: true}, "", "0801705a7a06100132026e31", false},
		{sessionEnd, &sessionpb.EndRequest{Session: testSession(4)}, "",
			"08011002180380015b8a01160a140a10303132333435363738396162636465661004",
			&sessionpb.EndResponse{Node: "n1", Released: 3}, "", "0801705b7a0608031a026e31", false},
	}
}

// holdAt acquires the permit of a key under a session, and returns its token and its hash.
func (m *member) holdAt(t *testing.T, key string, of *commonpb.Session) (token, hash uint64) {
	t.Helper()
	a := must(m.permits.Acquire(bound(t), &semaphorepb.AcquireRequest{Key: key, Holder: "h", Capacity: 1, TtlNs: sessionTTL, Session: of}))(t)
	if !a.Acquired {
		t.Fatal(a)
	}
	return a.Token, heldset.Hash(key, "semaphore", a.Token)
}

func (m *member) left(t *testing.T, key string, token uint64) time.Duration {
	t.Helper()
	return time.Duration(must(m.permits.Verify(bound(t), &semaphorepb.VerifyRequest{Key: key, Token: token}))(t).GetHolder().GetTtlNs())
}

// inSessions runs a test with three nodes that know sessions.
func inSessions(t *testing.T, f func(t *testing.T, g *group)) {
	synctest.Test(t, func(t *testing.T) {
		g := grouped(t, 3, false, nil)
		g.called("c", owner.SessionLevel)
		f(t, g)
	})
}

func keep(of *commonpb.Session, holds ...uint64) *sessionpb.KeepAliveRequest {
	return &sessionpb.KeepAliveRequest{Session: of, TtlNs: sessionTTL, Holds: holds}
}

// TestKeepAliveIsOfANode: it renews what the node that is asked owns, by hashes and by a digest,
// and tells what was not named.
func TestKeepAliveIsOfANode(t *testing.T) {
	inSessions(t, func(t *testing.T, g *group) {
		us, n1 := testSession(4), g.nodes["n1"]
		mine, theirs := g.keys("n1", 2, nil), g.key("n2")
		a, hashA := n1.holdAt(t, mine[0], us)
		b, hashB := n1.holdAt(t, mine[1], us)
		c, hashC := n1.holdAt(t, theirs, us) // through another node
		time.Sleep(5 * time.Second)
		session := sessionpb.NewSessionServiceClient(n1.conn)
		r := must(session.KeepAlive(bound(t), keep(us, hashA, hashC)))(t)
		if r.All || !slices.Equal(r.Covered, []uint64{hashA}) || r.Node != "n1" || len(r.Unnamed) != 1 {
			t.Fatalf("%v", r)
		}
		if u := r.Unnamed[0]; u.Key != mine[1] || u.Name != "semaphore" || u.Token != b || u.Kind != commonpb.Kind_KIND_SEMAPHORE {
			t.Errorf("%v", u)
		}
		for key, x := range map[string]struct {
			token uint64
			left  time.Duration
		}{mine[0]: {a, 15 * time.Second}, mine[1]: {b, 10 * time.Second}, theirs: {c, 10 * time.Second}} {
			if l := n1.left(t, key, x.token); l != x.left {
				t.Errorf("%s: %v left", key, l)
			}
		}
		digest := keep(us)
		if digest.Digest = hashA; !must(session.KeepAlive(bound(t), digest))(t).Differs {
			t.Error("another set does not differ")
		}
		if l := n1.left(t, mine[1], b); l != 10*time.Second {
			t.Errorf("one that differs renews: %v", l)
		}
		digest.Digest = hashA ^ hashB
		if r := must(session.KeepAlive(bound(t), digest))(t); !r.All || r.Differs || r.Covered != nil {
			t.Errorf("%v", r)
		}
		if l := n1.left(t, mine[1], b); l != 15*time.Second {
			t.Errorf("%v", l)
		}
	})
}

// TestKindsUnderASession: each kind that is held names its session in the answer and to others, and is
// claimed for it.
func TestKindsUnderASession(t *testing.T) {
	inSessions(t, func(t *testing.T, g *group) {
		us, n1, key := testSession(4), g.nodes["n1"], g.key("n2")
		p := must(n1.permits.Acquire(bound(t), &semaphorepb.AcquireRequest{Key: key, Holder: "h", Permits: 2, Capacity: 3, TtlNs: sessionTTL, Session: us}))(t)
		l := must(n1.locks.Acquire(bound(t), &lockpb.AcquireRequest{Key: key, Holder: "h", TtlNs: sessionTTL, Session: us}))(t)
		e := must(n1.elections.Campaign(bound(t), &electionpb.CampaignRequest{Key: key, Candidate: "h", TtlNs: sessionTTL, Session: us}))(t)
		if p.Permits != 2 || p.Session.GetGeneration() != 4 || l.Session.GetGeneration() != 4 || !e.Elected {
			t.Error(p, l, e)
		}
		led := must(n1.elections.Inspect(bound(t), &electionpb.InspectRequest{Key: key}))(t).Leader
		held := must(n1.locks.Inspect(bound(t), &lockpb.InspectRequest{Key: key}))(t).Holder
		if led.GetSession().GetGeneration() != 4 || held.GetSession().GetGeneration() != 4 {
			t.Error(led, held)
		}
		hashes := []uint64{heldset.Hash(key, "semaphore", p.Token), heldset.Hash(key, "lock", l.Token), heldset.Hash(key, "election", e.Token)}
		if r := must(sessionpb.NewSessionServiceClient(g.nodes["n2"].conn).KeepAlive(bound(t), keep(us, hashes...)))(t); !r.All || r.Unnamed != nil {
			t.Error(r)
		}
		_, err := n1.elections.Renew(bound(t), &electionpb.RenewRequest{Key: key, Token: e.Token, TtlNs: sessionTTL,
			Reclaim: &electionpb.Reclaim{LeftNs: 1, Candidate: "h", Session: &commonpb.Session{Client: []byte("short")}}})
		badField("session.client").check(in(t, "a claim"), err)
		_, err = n1.elections.Campaign(bound(t), &electionpb.CampaignRequest{Key: key, Candidate: "h", TtlNs: 1e9, Session: us})
		badField("ttl_ns").check(in(t, "too short"), err)
	})
}

// TestKeepAliveEverywhere: any node asks all, and joins what they say; it tells who did not.
func TestKeepAliveEverywhere(t *testing.T) {
	inSessions(t, func(t *testing.T, g *group) {
		us, n1, n3 := testSession(4), g.nodes["n1"], g.nodes["n3"]
		_, a := n1.holdAt(t, g.key("n1"), us)
		token, b := n1.holdAt(t, g.key("n2"), us)
		time.Sleep(5 * time.Second)
		session := sessionpb.NewSessionServiceClient(n3.conn)
		q := keep(us, b, a, a)
		q.Everywhere = true
		if r := must(session.KeepAlive(bound(t), q))(t); !r.All || r.Covered != nil || r.Unanswered != nil {
			t.Errorf("%v", r)
		}
		if l := n1.left(t, g.key("n2"), token); l != 15*time.Second {
			t.Errorf("%v", l)
		}
		q.Digest = a ^ b
		_, err := session.KeepAlive(bound(t), q)
		badField("digest").check(in(t, "a digest everywhere"), err)
		q.Digest = 0
		g.nodes["n2"].stop()
		if r := must(session.KeepAlive(bound(t), q))(t); r.All || !slices.Equal(r.Covered, []uint64{a}) || !slices.Equal(r.Unanswered, []string{"n2"}) {
			t.Errorf("%v", r)
		}
		e := must(session.End(bound(t), &sessionpb.EndRequest{Session: us, Everywhere: true}))(t)
		if e.Released != 1 || !slices.Equal(e.Unanswered, []string{"n2"}) {
			t.Errorf("%v", e)
		}
	})
}

// TestStreamKeepAlive: one stream to a node, an answer to each message, errors among them.
func TestStreamKeepAlive(t *testing.T) {
	inSessions(t, func(t *testing.T, g *group) {
		us, n1 := testSession(4), g.nodes["n1"]
		_, a := n1.holdAt(t, g.key("n1"), us)
		ctx, cancel := context.WithCancel(bound(t))
		defer cancel()
		stream := must(sessionpb.NewSessionServiceClient(n1.conn).StreamKeepAlive(ctx))(t)
		everywhere := keep(us, a)
		everywhere.Everywhere = true
		for i, q := range []*sessionpb.KeepAliveRequest{keep(us, a), nil, everywhere, {TtlNs: sessionTTL}, {Session: us}, keep(us, a)} {
			if err := stream.Send(&sessionpb.StreamKeepAliveRequest{Tag: uint64(i), KeepAlive: q}); err != nil {
				t.Fatal(err)
			}
			r := must(stream.Recv())(t)
			if good := i == 0 || i == 5; r.Tag != uint64(i) || good != r.GetKept().GetAll() || good != (r.Error == nil) {
				t.Errorf("%d: %v", i, r)
			}
		}
	})
}

// TestARowMovesUnderKeepAlives: who does not own a row any more covers nothing of it, and its
// next owner finds it.
func TestARowMovesUnderKeepAlives(t *testing.T) {
	inSessions(t, func(t *testing.T, g *group) {
		us, n1 := testSession(4), g.nodes["n1"]
		_, hash := n1.holdAt(t, g.key("n1"), us)
		session := sessionpb.NewSessionServiceClient(n1.conn)
		moved := func() { // between the decision and its answer
			g.without("n1")
			g.called("c", owner.SessionLevel)
		}
		n1.confirm.Store(&moved)
		if r := must(session.KeepAlive(bound(t), keep(us, hash)))(t); r.All || r.Covered != nil {
			t.Errorf("told of a row that it had lost: %v", r)
		}
		if r := must(session.KeepAlive(bound(t), keep(us, hash)))(t); r.All || r.Covered != nil || r.Unnamed != nil {
			t.Errorf("%v", r)
		}
	})
}

// TestSessionsNeedTheirLevel: before it is committed nothing is granted under a session, here
// or at another node.
func TestSessionsNeedTheirLevel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := grouped(t, 2, false, nil)
		g.called("c", owner.SessionLevel-1)
		n1, us := g.nodes["n1"], testSession(4)
		next := *g.nodes["n2"].Table() // it has heard of the level already
		next.Level = owner.SessionLevel
		g.nodes["n2"].Set(&next)
		early := refusal{code: codes.Unavailable, why: commonpb.Reason_REASON_UNAVAILABLE, hint: true, retry: time.Second}
		for _, at := range []string{"n1", "n2"} {
			_, err := n1.permits.Acquire(bound(t), &semaphorepb.AcquireRequest{Key: g.key(at), Holder: "h", Capacity: 1, TtlNs: sessionTTL, Session: us})
			early.check(in(t, "acquire at "+at), err)
		}
		session := sessionpb.NewSessionServiceClient(n1.conn)
		_, err := session.KeepAlive(bound(t), keep(us))
		early.check(in(t, "keep alive"), err)
		_, err = session.End(bound(t), &sessionpb.EndRequest{Session: us})
		early.check(in(t, "end"), err)
	})
}

// TestBadSessions are told what is wrong.
func TestBadSessions(t *testing.T) {
	inSessions(t, func(t *testing.T, g *group) {
		n1 := g.nodes["n1"]
		session := sessionpb.NewSessionServiceClient(n1.conn)
		us, short := testSession(1), &commonpb.Session{Client: []byte("short"), Generation: 1}
		for what, x := range map[string]struct {
			q     *sessionpb.KeepAliveRequest
			field string
		}{
			"no session":    {&sessionpb.KeepAliveRequest{TtlNs: sessionTTL}, "session"},
			"a short one":   {keep(short), "session.client"},
			"generation 0":  {keep(testSession(0)), "session.generation"},
			"too short":     {&sessionpb.KeepAliveRequest{Session: us, TtlNs: 1e9}, "ttl_ns"},
			"too many":      {keep(us, make([]uint64, owner.MaxSessionHolds+1)...), "holds"},
			"two ways":      {&sessionpb.KeepAliveRequest{Session: us, TtlNs: sessionTTL, Holds: []uint64{1}, Digest: 1}, "digest"},
			"another's set": {&sessionpb.KeepAliveRequest{Session: us, TtlNs: 1e9, Digest: 1}, "ttl_ns"},
		} {
			_, err := session.KeepAlive(bound(t), x.q)
			badField(x.field).check(in(t, what), err)
		}
		_, err := session.End(bound(t), &sessionpb.EndRequest{})
		badField("session").check(in(t, "an end of nobody's"), err)
		_, err = n1.permits.Acquire(bound(t), &semaphorepb.AcquireRequest{Key: "k", Holder: "h", Capacity: 1, TtlNs: sessionTTL, Session: short})
		badField("session.client").check(in(t, "an acquire"), err)
	})
}

// TestSessionAnswersWait: what a KeepAlive covers is with the copies, as any change is.
func TestSessionAnswersWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		copies := &lapsing{}
		g := grouped(t, 2, false, func(c *Config) {
			if c.Node == "n1" {
				c.Copies = copies
			}
		})
		g.called("c", owner.SessionLevel)
		us, n1 := testSession(4), g.nodes["n1"]
		copies.had.Store(true)
		_, hash := n1.holdAt(t, g.key("n1"), us)
		copies.had.Store(false)
		if r := must(sessionpb.NewSessionServiceClient(n1.conn).KeepAlive(bound(t), keep(us, hash)))(t); r.All || r.Covered != nil {
			t.Errorf("told before the standby had it: %v", r)
		}
	})
}
