package member

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/hashicorp/serf/serf"
)

// stockAgent is a real serf without any of our settings.
func stockAgent(t *testing.T, join ...string) *serf.Serf {
	t.Helper()
	conf := serf.DefaultConfig()
	conf.NodeName, conf.LogOutput = "stock", io.Discard
	conf.MemberlistConfig = memberlist.DefaultLocalConfig()
	quick(conf)
	conf.MemberlistConfig.BindAddr, conf.MemberlistConfig.BindPort, conf.MemberlistConfig.LogOutput = "127.0.0.1", 0, io.Discard
	s, err := serf.Create(conf)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Shutdown() })
	if _, err := s.Join(join, false); err != nil {
		t.Fatal(err)
	}
	return s
}

// nextEvent waits for the next event of a pool.
func nextEvent(t *testing.T, p *Pool) Event {
	t.Helper()
	select {
	case e := <-p.Events():
		return e
	case <-time.After(patience):
		t.Fatalf("%s hears of no event", p.cfg.Self.Node)
		return Event{}
	}
}

// TestFreshEvents has a stock agent say something: it is news to all, and the same
// event is not when it is handed to a node that was started again.
func TestFreshEvents(t *testing.T) {
	a := start(t, onLoopback(t, "a"))
	b := start(t, onLoopback(t, "b", a.Addr()))
	stock := stockAgent(t, a.Addr())
	for _, p := range []*Pool{a, b} {
		awaitShows(t, p, "a alive, b alive, stock alive")
	}
	for i := range 2 { // the second time is as new as the first
		if err := stock.UserEvent("keystead-drain", []byte("a"), false); err != nil {
			t.Fatal(err)
		}
		for _, p := range []*Pool{a, b} {
			e := nextEvent(t, p)
			if err := p.Fresh(t.Context(), e); err != nil || string(e.Payload) != "a" {
				t.Errorf("event %d at %s: %v", i, p.cfg.Self.Node, err)
			}
		}
	}
	a.Stop()
	awaitShows(t, b, "a failed, b alive, stock alive")

	// It joins nobody; the others come to it, and bring their past.
	again := onLoopback(t, "a")
	again.Bind, again.Self.Incarnation = a.Addr(), 2
	a = start(t, again)
	awaitShows(t, a, "a alive, b alive, stock alive")
	for range 2 {
		e := nextEvent(t, a)
		if err := a.Fresh(t.Context(), e); !errors.Is(err, ErrStale) {
			t.Errorf("event %d of the past: %v", e.LTime, err)
		}
	}
	if err := a.Fresh(t.Context(), Event{Name: "keystead-drain", LTime: 99}); err == nil || errors.Is(err, ErrStale) {
		t.Errorf("an event that nobody said: %v", err)
	}
	if err := stock.UserEvent("keystead-drain", []byte("a"), false); err != nil {
		t.Fatal(err)
	}
	if err := a.Fresh(t.Context(), nextEvent(t, a)); err != nil {
		t.Errorf("a new event: %v", err)
	}
}

// TestFreshNeedsOthers has a node that is alone believe nothing.
func TestFreshNeedsOthers(t *testing.T) {
	a := start(t, onLoopback(t, "a"))
	if err := a.Announce("keystead-drain", []byte("a")); err != nil {
		t.Fatal(err)
	}
	if err := a.Fresh(t.Context(), nextEvent(t, a)); err == nil || errors.Is(err, ErrStale) {
		t.Errorf("said to oneself: %v", err)
	}
}

// ask asks a query of the pool until so many nodes have answered, or for a moment
// if none shall, and returns the answers by node.
func ask(t *testing.T, s *serf.Serf, name string, want int) map[string]string {
	t.Helper()
	patience := patience
	if want == 0 {
		patience = 500 * time.Millisecond
	}
	resp, err := s.Query(name, []byte("payload"), &serf.QueryParam{Timeout: patience})
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Close()
	answers := map[string]string{}
	for want == 0 || len(answers) < want {
		r, open := <-resp.ResponseCh()
		if !open {
			break
		}
		answers[r.From] = string(r.Payload)
	}
	return answers
}

// TestAnswers asks queries that are ours, and others; and one whose answer takes
// its time, while which gossip goes on.
func TestAnswers(t *testing.T) {
	var waiting atomic.Bool
	release := make(chan struct{})
	answering := func(name string, join ...string) *Pool {
		cfg := onLoopback(t, name, join...)
		cfg.Answer = func(query string, payload []byte) []byte {
			switch query {
			case "keystead-status":
				return fmt.Appendf(nil, "%s %s %s", name, query, payload)
			case "keystead-long":
				return []byte(strings.Repeat("x", MaxAnswer))
			case "keystead-longer":
				return []byte(strings.Repeat("x", MaxAnswer+1))
			case "keystead-slow":
				waiting.Store(true)
				<-release
			}
			return nil
		}
		return start(t, cfg)
	}
	a := answering("a")
	b := answering(strings.Repeat("b", 64), a.Addr())
	await(t, a, "both", func() bool { return a.Joined() && b.Joined() })
	stock := stockAgent(t, a.Addr())
	await(t, b, "the agent", func() bool { return fact(b, "stock").State == Alive })
	t.Cleanup(func() { close(release) }) // before the pools are stopped
	for name, want := range map[string]int{"keystead-status": 2, "keystead-long": 2, "keystead-longer": 0, "other": 0, seenQuery: 0} {
		got := ask(t, stock, name, want)
		if len(got) != want || want > 0 && name == "keystead-status" && got["a"] != "a keystead-status payload" {
			t.Errorf("%s: %v", name, got)
		}
	}
	if got := ask(t, stock, "keystead-slow", 0); len(got) != 0 {
		t.Errorf("slow: %v", got)
	}
	for over := time.After(patience); !waiting.Load(); {
		select {
		case <-over:
			t.Fatal("nobody is asked")
		case <-time.After(time.Millisecond):
		}
	}
	for range 2 * maxQueries {
		resp, err := stock.Query("keystead-status", nil, &serf.QueryParam{Timeout: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Close()
	}
	if err := stock.UserEvent("keystead-n", nil, false); err != nil {
		t.Fatal(err)
	}
	if e := nextEvent(t, a); e.Name != "keystead-n" {
		t.Errorf("while it answers, it hears %v", e)
	}
	for over := time.After(patience); a.Stats().Unanswered == 0; {
		select {
		case <-over:
			t.Fatal("no query was dropped")
		case <-time.After(time.Millisecond):
		}
	}
}

// TestSeenIsBounded notes more events than there is room for: the oldest go.
func TestSeenIsBounded(t *testing.T) {
	s, now := newSeen(), time.Unix(1, 0)
	event := func(i int) [32]byte { return Event{Name: "keystead-x", LTime: uint64(i)}.digest() }
	for i := range maxSeen + 3 {
		s.note(now.Add(time.Duration(i)), event(i))
		s.note(now.Add(time.Hour), event(i)) // again: the first time counts
	}
	if len(s.at) != maxSeen || len(s.order) != maxSeen {
		t.Errorf("%d events, %d in order", len(s.at), len(s.order))
	}
	for i, want := range map[int]bool{0: false, 2: false, 3: true, maxSeen + 2: true} {
		if at, ok := s.when(event(i)); ok != want || ok && at != now.Add(time.Duration(i)) {
			t.Errorf("event %d: %v %v", i, at, ok)
		}
	}
	if (Event{Name: "keystead-a", Payload: []byte("b")}).digest() == (Event{Name: "keystead-ab"}).digest() {
		t.Error("two events have one digest")
	}
}
