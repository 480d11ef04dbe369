package member

import (
	"context"
	"errors"
	"testing"
	"time"
)

// TestAsk: what a process says of itself now, before it is shown, and of a
// process that is not heard of at all.
func TestAsk(t *testing.T) {
	slow := onLoopback(t, "a")
	slow.Settle = MaxSettle
	a, b := start(t, slow), start(t, onLoopback(t, "b"))
	for i := range 3 {
		s := self("b")
		s.Incarnation = uint64(10 + i)
		if i > 0 {
			s.UID = "drawn"
		}
		if err := b.SetSelf(s); err != nil {
			t.Fatal(err)
		}
		facts, err := a.Ask(t.Context(), []string{b.Addr()})
		if err != nil || len(facts) != 2 || facts[0].Name != "a" || facts[1].Self != s || facts[1].State != Alive {
			t.Errorf("%v, %v; want %v", facts, err, s)
		}
	}
	if f := fact(a, "b"); f.Self.UID != "" {
		t.Errorf("it is shown already: %v", f)
	}
	b.Stop()
	if facts, err := a.Ask(t.Context(), []string{b.Addr()}); err == nil {
		t.Errorf("nobody is there: %v", facts)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := a.Ask(ended, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("a context that has ended: %v", err)
	}
	a.Stop()
	if _, err := a.Ask(t.Context(), nil); !errors.Is(err, ErrStopped) {
		t.Errorf("after Stop: %v", err)
	}
}

// TestReconnect: the rounds of reconnects are those that serf is given.
func TestReconnect(t *testing.T) {
	for p, want := range map[Profile]time.Duration{Local: 2 * time.Second, LAN: 10 * time.Second, WAN: 30 * time.Second, "": 10 * time.Second} {
		if got := (Config{Profile: p}).serfConfig().ReconnectInterval; got != want || p.Reconnect() != want {
			t.Errorf("%q: serf's is %s, Reconnect %s, want %s", p, got, p.Reconnect(), want)
		}
	}
}
