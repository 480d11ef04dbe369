package client

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	grouppb "github.com/keystead/keystead/proto/keystead/group/v1"
)

// watchedGroup is what a watcher is told, as it comes.
func watchedGroup(t *testing.T, g Group, key string, after uint64) (next func() WatchedGroup) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	told := make(chan WatchedGroup, 100)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for s, err := range g.Watch(ctx, key, after) {
			if err != nil {
				t.Error(err)
			}
			told <- s
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return func() WatchedGroup {
		t.Helper()
		select {
		case s := <-told:
			return s
		case <-time.After(time.Minute): // of the bubble
			t.Fatal("nothing is told")
			return WatchedGroup{}
		}
	}
}

// whoIs says who is there, with what they say.
func whoIs(members []GroupMember) string {
	var all []string
	for _, m := range members {
		all = append(all, m.ID+"="+string(m.Metadata))
	}
	return strings.Join(all, " ")
}

func expect(t *testing.T, s WatchedGroup, want string) {
	t.Helper()
	if who := whoIs(s.Members); who != want {
		t.Errorf("there are %q, want %q: %+v", who, want, s)
	}
}

// ends waits until a membership is over for good.
func ends(t *testing.T, m *Membership) {
	t.Helper()
	select {
	case <-m.Done():
	case <-time.After(time.Minute): // of the bubble
		t.Fatal("it is not over")
	}
}

func TestMembership(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		w.agree()
		g := w.client(direct, "n1").Group("workers")
		next := watchedGroup(t, g, "k", 0)
		if s := next(); len(s.Members) != 0 || s.Version == 0 || s.Stale || s.Partial() {
			t.Errorf("%+v", s)
		}
		a := must(g.Join(soon(t), "k", HeldBy("a"), Metadata([]byte("1"))))(t)
		expect(t, next(), "a=1")
		b := must(g.Join(soon(t), "k", HeldBy("b")))(t)
		expect(t, next(), "a=1 b=")
		if err := a.Update(soon(t), []byte("2")); err != nil {
			t.Error(err)
		}
		expect(t, next(), "a=2 b=")
		time.Sleep(time.Hour)
		s := must(g.Members(soon(t), "k"))(t)
		if whoIs(s.Members) != "a=2 b=" || s.Members[0].Joined < time.Hour || s.Members[0].TTL <= 0 || s.Members[0].Token != a.Token() || s.Version == 0 || s.Partial() {
			t.Errorf("%+v", s)
		}
		if !a.Held() || a.Err() != nil || a.Token() >= b.Token() {
			t.Errorf("after an hour: %v", a.Err())
		}
		if err := b.Leave(soon(t)); err != nil {
			t.Error(err)
		}
		ends(t, b)
		expect(t, next(), "a=2")
		if ok := must(g.Verify(soon(t), "k", b.Token()))(t); ok || !errors.Is(b.Err(), ErrReleased) || b.Held() {
			t.Errorf("one that has left: %v", b.Err())
		}
		if err := b.Update(soon(t), nil); !errors.Is(err, ErrReleased) {
			t.Error(err)
		}
		if ok := must(g.Update(soon(t), "k", a.Token(), []byte("3")))(t); !ok {
			t.Error("not updated")
		}
		expect(t, next(), "a=3")
		for what, opt := range map[string]LockOption{"Wait": Wait(0), "IdempotencyKey": IdempotencyKey("x"), "Delay": Delay(time.Second), "Shared": Shared(), "HeldBy": HeldBy(strings.Repeat("x", 129))} {
			if _, err := g.Join(soon(t), "k", opt); !errors.Is(err, ErrInvalid) {
				t.Errorf("%s: %v", what, err)
			}
		}
		if err := a.Update(soon(t), make([]byte, MaxMetadata+1)); !errors.Is(err, ErrInvalid) {
			t.Error(err)
		}
	})
}

// A member that is gone, and lives, is there again under another token, with what it said last; and
// what is done meanwhile waits for that.
func TestMembershipComesBack(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		w.agree()
		c, n1 := w.client(direct, "n1"), w.nodes["n1"]
		g := c.Group("")
		a := must(g.Join(soon(t), "k", HeldBy("a"), Metadata([]byte("1"))))(t)
		must(0, a.Update(soon(t), []byte("2")))(t)
		first := a.Token()
		if ok := must(g.Remove(soon(t), "k", first))(t); !ok {
			t.Error("not removed")
		}
		must(0, a.Update(soon(t), []byte("3")))(t) // it learns of it so
		if s := must(g.Members(soon(t), "k"))(t); whoIs(s.Members) != "a=3" || a.Token() <= first || s.Members[0].Token != a.Token() {
			t.Errorf("%+v after token %d", s, first)
		}
		second := a.Token()
		n1.denies.Store(true)
		time.Sleep(time.Minute) // nobody can renew
		if a.Held() || a.Err() != nil {
			t.Errorf("held %v, %v", a.Held(), a.Err())
		}
		n1.denies.Store(false)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if s := must(g.Members(soon(t), "k"))(t); whoIs(s.Members) != "a=3" || a.Token() <= second || !a.Held() {
			t.Errorf("%+v after token %d", s, second)
		}
	})
}

// Of two processes with one id the later one is the member. The earlier one does not come back, and
// says why.
func TestMembershipIsReplaced(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		w.agree()
		g := w.client(direct, "n1").Group("")
		next := watchedGroup(t, g, "k", 0)
		next()
		a := must(g.Join(soon(t), "k", HeldBy("same"), Metadata([]byte("old"))))(t)
		expect(t, next(), "same=old")
		b := must(g.Join(soon(t), "k", HeldBy("same"), Metadata([]byte("new"))))(t)
		expect(t, next(), "same=new")
		ends(t, a)
		if !errors.Is(a.Err(), ErrReplaced) || !b.Held() || b.Err() != nil {
			t.Errorf("%v, %v", a.Err(), b.Err())
		}
		if err := a.Update(soon(t), []byte("late")); !errors.Is(err, ErrReplaced) {
			t.Error(err)
		}
		time.Sleep(time.Hour)
		if s := must(g.Members(soon(t), "k"))(t); whoIs(s.Members) != "same=new" || s.Members[0].Token != b.Token() {
			t.Errorf("%+v", s)
		}
	})
}

// After a loss what is known is partial, until members have claimed what they had; each keeps its
// token, and one that joins meanwhile need not wait.
func TestMembersOutliveTheirOwner(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		w.agree()
		c, n1 := w.client(direct, "n1"), w.nodes["n1"]
		g := c.Group("")
		a := must(g.Join(soon(t), "k", HeldBy("a"), Metadata([]byte("1")), TTL(10*time.Second)))(t)
		must(0, a.Update(soon(t), []byte("2")))(t)
		token := a.Token()
		next := watchedGroup(t, g, "k", 0)
		before := next()
		time.Sleep(2 * time.Second)
		n1.lose()
		lost := next()
		if len(lost.Members) != 0 || !lost.Partial() || lost.Version <= before.Version {
			t.Errorf("%+v after %+v", lost, before)
		}
		b := must(g.Join(soon(t), "k", HeldBy("b")))(t)
		expect(t, next(), "b=")
		back := next()
		if expect(t, back, "a=2 b="); !back.Partial() || back.Members[0].Token != token || a.Token() != token || back.Version <= lost.Version {
			t.Errorf("%+v after %+v", back, lost)
		}
		n1.lostAt.Store(0)
		if s := next(); s.Partial() || whoIs(s.Members) != "a=2 b=" {
			t.Errorf("when the grace period is over: %+v", s)
		}
		for _, m := range []*Membership{a, b} {
			if err := m.Leave(soon(t)); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestGroupIsFull(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		w.agree()
		g := w.client(direct, "n1").Group("")
		var some *Membership
		for i := range MaxMembers {
			some = must(g.Join(soon(t), "k", HeldBy(fmt.Sprint(i))))(t)
		}
		if _, err := g.Join(soon(t), "k", HeldBy("more")); !errors.Is(err, ErrGroupFull) {
			t.Error(err)
		}
		must(g.Join(soon(t), "k", HeldBy("7")))(t)
		must(0, some.Leave(soon(t)))(t)
		must(g.Join(soon(t), "k", HeldBy("more")))(t)
	})
}

// A session keeps memberships alive, and is over when one is lost: nothing is joined anew.
func TestMembershipOfASession(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		w.agree()
		c := w.client(direct, "n1")
		s := must(c.Session(soon(t)))(t)
		a := must(s.Group("").Join(soon(t), "k", HeldBy("a")))(t)
		l := must(s.Lock("").Acquire(soon(t), "l"))(t)
		time.Sleep(time.Hour)
		if !a.Held() || s.Held() != 2 {
			t.Fatal(a.Err())
		}
		must(c.Group("").Remove(soon(t), "k", a.Token()))(t)
		<-s.Done()
		ends(t, a)
		if !errors.Is(a.Err(), ErrLockLost) || l.Held() {
			t.Errorf("%v", a.Err())
		}
		time.Sleep(time.Minute)
		if s := must(c.Group("").Members(soon(t), "k"))(t); len(s.Members) != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// Close ends what keeps a membership, and Leave what joins anew.
func TestEndsOfAMembership(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		w.agree()
		n1 := w.nodes["n1"]
		c := w.client(direct, "n1")
		a := must(c.Group("").Join(soon(t), "k", HeldBy("a")))(t)
		b := must(c.Group("").Join(soon(t), "k", HeldBy("b"), TTL(time.Second)))(t)
		n1.denies.Store(true)
		time.Sleep(5 * time.Second)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := b.Leave(ctx); err == nil || !errors.Is(b.Err(), ErrReleased) {
			t.Errorf("%v, %v", err, b.Err())
		}
		n1.denies.Store(false)
		c.Close()
		ends(t, a)
		if !errors.Is(a.Err(), ErrClosed) {
			t.Error(a.Err())
		}
	})
}

// A membership whose answer was lost is the client's own: it is not taken for that of another which
// has taken the id.
func TestJoinAnewIsNotHeard(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		w.agree()
		var swallow atomic.Bool
		cfg := direct
		cfg.DialOptions = append(cfg.DialOptions, grpc.WithUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			err := invoker(ctx, method, req, reply, cc, opts...)
			if method == grouppb.GroupService_Join_FullMethodName && swallow.Load() {
				return status.Error(codes.Unavailable, "the connection was lost")
			}
			return err
		}))
		g, other := w.client(cfg, "n1").Group(""), w.client(direct, "n1").Group("")
		a := must(g.Join(soon(t), "k", HeldBy("a"), Metadata([]byte("1"))))(t)
		swallow.Store(true)
		must(other.Remove(soon(t), "k", a.Token()))(t)
		time.Sleep(10 * time.Second)
		if s := must(other.Members(soon(t), "k"))(t); whoIs(s.Members) != "a=1" {
			t.Fatalf("%+v", s)
		}
		swallow.Store(false)
		time.Sleep(time.Minute)
		s := must(other.Members(soon(t), "k"))(t)
		if a.Err() != nil || !a.Held() || whoIs(s.Members) != "a=1" || s.Members[0].Token != a.Token() {
			t.Errorf("%v: %+v", a.Err(), s)
		}
	})
}
