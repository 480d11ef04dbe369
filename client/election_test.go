package client

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// observed is what an observer is told, as it comes.
func observed(t *testing.T, n Election, key string, after uint64) (next func() Observed) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	told := make(chan Observed, 100)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for o, err := range n.Observe(ctx, key, after) {
			if err != nil {
				t.Error(err)
			}
			told <- o
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return func() Observed {
		t.Helper()
		select {
		case o := <-told:
			return o
		case <-time.After(time.Minute): // of the bubble
			t.Fatal("nothing is told")
			return Observed{}
		}
	}
}

func TestElection(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		w.agree()
		c := w.client(direct, "n1")
		n := c.Election("mains")
		next := observed(t, n, "k", 0)
		if o := next(); o.Leader != nil || o.Version == 0 || o.Stale || o.Unknown() {
			t.Errorf("%+v", o)
		}
		a := must(n.Campaign(soon(t), "k", []byte("at a"), HeldBy("a")))(t)
		first := next()
		if first.Leader == nil || first.Leader.Candidate != "a" || first.Leader.Token != a.Token() || string(first.Leader.Value) != "at a" {
			t.Fatalf("%+v", first)
		}
		_, err := n.TryCampaign(soon(t), "k", nil)
		var e *Error
		if !errors.Is(err, ErrNotElected) || !errors.As(err, &e) || e.Holder.ID != "a" || e.Place != 1 {
			t.Errorf("tried once: %v", err)
		}
		if _, err := n.TryCampaign(soon(t), "k", nil, Wait(time.Second)); !errors.Is(err, ErrInvalid) {
			t.Errorf("with a wait: %v", err)
		}
		if err := a.Proclaim(soon(t), []byte("moved")); err != nil {
			t.Error(err)
		}
		if o := next(); o.Leader.Token != a.Token() || string(o.Leader.Value) != "moved" || o.Version <= first.Version {
			t.Errorf("%+v", o)
		}
		time.Sleep(time.Hour)
		if ok := must(n.Verify(soon(t), "k", a.Token()))(t); !ok || !a.Held() {
			t.Error("not held after an hour")
		}
		got := make(chan *Leadership, 1)
		go func() { got <- must(n.Campaign(context.Background(), "k", []byte("at b"), HeldBy("b")))(t) }()
		time.Sleep(time.Second)
		v := must(n.Inspect(soon(t), "k"))(t)
		if v.Leader.Token != a.Token() || v.Leader.TTL <= 0 || v.Waiting != 1 || v.Candidates[0].Name != "b" {
			t.Errorf("%+v", v)
		}
		if err := a.Resign(soon(t)); err != nil {
			t.Error(err)
		}
		b := <-got
		if o := next(); o.Leader == nil || o.Leader.Token != b.Token() {
			t.Errorf("after a resignation: %+v", o)
		}
		if err := a.Proclaim(soon(t), []byte("late")); !errors.Is(err, ErrLockLost) {
			t.Errorf("a late leader: %v", err)
		}
		if ok := must(n.Revoke(soon(t), "k", b.Token()))(t); !ok {
			t.Error("not revoked")
		}
		if o := next(); o.Leader != nil {
			t.Errorf("%+v", o)
		}
		<-b.Context().Done()
		if !errors.Is(context.Cause(b.Context()), ErrLockLost) || b.Held() {
			t.Errorf("revoked: %v", context.Cause(b.Context()))
		}
	})
}

// An observer is told that a leader is gone whose process died, when its term is over; and one that
// hears nothing any more, that what it has is stale.
func TestObserveTellsWhatIsNotKnown(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		w.agree()
		var deaf atomic.Bool
		other := w.client(direct, "n1").Election("")
		cfg := direct
		cfg.clock = w.clock
		c := must(cfg.dialing(w.deafening(&deaf)).Dial(soon(t), "n1:1"))(t)
		t.Cleanup(c.Close)
		deafNext := observed(t, c.Election(""), "k", 0)
		next := observed(t, other, "k", 0)
		next()
		deafNext()
		a := must(other.Campaign(soon(t), "k", nil, TTL(5*time.Second)))(t)
		if o := next(); o.Leader == nil {
			t.Fatalf("%+v", o)
		}
		deafNext()
		deaf.Store(true)
		began := time.Now()
		if o := deafNext(); !o.Stale || o.Leader == nil || o.Leader.Token != a.Token() {
			t.Errorf("%+v", o)
		}
		if took := time.Since(began); took > 4*time.Second {
			t.Errorf("stale after %s", took)
		}
		a.l.finish(ErrLockLost) // its process is gone: nobody renews
		began = time.Now()
		if o := next(); o.Leader != nil || o.Stale {
			t.Errorf("%+v", o)
		}
		if took := time.Since(began); took > 5*time.Second+100*time.Millisecond {
			t.Errorf("the end of a term of 5s was told after %s", took)
		}
	})
}

// What the owner has lost is taken back under its token, with what was proclaimed last; until then
// an observer is told that it is unknown. Versions do not fall.
func TestLeaderOutlivesItsOwner(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		w.agree()
		c, n1 := w.client(direct, "n1"), w.nodes["n1"]
		n := c.Election("")
		a := must(n.Campaign(soon(t), "k", []byte("1"), TTL(10*time.Second), HeldBy("me"), Delay(time.Second)))(t)
		if err := a.Proclaim(soon(t), []byte("2")); err != nil {
			t.Error(err)
		}
		next := observed(t, n, "k", 0)
		before := next()
		time.Sleep(2 * time.Second)
		n1.lose()
		lost := next()
		if lost.Leader != nil || !lost.Unknown() || lost.Version <= before.Version {
			t.Errorf("%+v after %+v", lost, before)
		}
		back := next()
		if back.Leader == nil || back.Leader.Token != a.Token() || string(back.Leader.Value) != "2" || back.Version <= lost.Version {
			t.Errorf("%+v after %+v", back, lost)
		}
		synctest.Wait()
		time.Sleep(time.Hour)
		if !a.Held() {
			t.Fatal(context.Cause(a.Context()))
		}
		if err := a.Resign(soon(t)); err != nil {
			t.Error(err)
		}
	})
}

// TestTermsUnderASession: a session keeps terms alive, claims them, resigns them, and ends with them.
func TestTermsUnderASession(t *testing.T) {
	inSession(t, []string{"n1", "n2"}, func(t *testing.T, w *town, c *Client) {
		s := must(c.Session(context.Background(), HeldBy("me")))(t)
		key, stray := w.keyOf("n1"), w.keysOf("n2", 2)
		leads := func(key string) *Leader { return must(c.Election("").Inspect(soon(t), key))(t).Leader }
		a := must(s.Election("").Campaign(soon(t), key, []byte("a")))(t)
		b := must(s.Election("").Campaign(soon(t), stray[0], []byte("b")))(t)
		must(s.Lock("").Acquire(soon(t), stray[1]))(t)
		s.mu.Lock()
		delete(s.held, b.l.lease) // as if the answer had never come
		s.mu.Unlock()
		if err := a.Proclaim(soon(t), []byte("new")); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute)
		w.nodes["n1"].lose()
		time.Sleep(time.Hour)
		if l := leads(key); l == nil || l.Token != a.Token() || l.Candidate != "me" || string(l.Value) != "new" || !a.Held() || s.Err() != nil {
			t.Fatalf("%+v; %v", l, s.Err())
		}
		if leads(stray[0]) != nil {
			t.Error("a term that nobody knows of goes on")
		}
		if ok := must(c.Election("").Revoke(soon(t), key, a.Token()))(t); !ok {
			t.Error("not revoked")
		}
		<-s.Done()
		time.Sleep(time.Second)
		if v := must(c.Lock("").Inspect(soon(t), stray[1]))(t); v.Holding != 0 || !errors.Is(s.Err(), ErrLockLost) {
			t.Errorf("%+v %v", v, s.Err())
		}
		w.nodes["n1"].lostAt.Store(0)
		next := must(c.Session(context.Background()))(t)
		must(next.Election("").TryCampaign(soon(t), key, nil))(t)
		if err := next.Close(soon(t)); err != nil || leads(key) != nil {
			t.Errorf("after Close: %v", err)
		}
		if _, err := next.Election("").Campaign(soon(t), key, nil); !errors.Is(err, ErrReleased) {
			t.Error(err)
		}
	})
}
