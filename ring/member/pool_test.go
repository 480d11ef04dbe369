package member

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/hashicorp/serf/serf"
)

func TestJoinLeaveFail(t *testing.T) {
	a := start(t, onLoopback(t, "a"))
	if got := shows(a); got != "a alive" {
		t.Errorf("alone: %s", got)
	}
	b := start(t, onLoopback(t, "b", a.Addr()))
	c := start(t, onLoopback(t, "c", a.Addr()))
	for _, p := range []*Pool{a, b, c} {
		awaitShows(t, p, "a alive, b alive, c alive")
		if !p.Joined() {
			t.Error("not joined")
		}
	}
	want := Fact{Name: "b", Self: self("b"), Ours: true, Addr: b.Addr(), State: Alive}
	if got := fact(a, "b"); got != want {
		t.Errorf("a says %+v, want %+v", got, want)
	}
	if err := b.Leave(t.Context()); err != nil {
		t.Errorf("Leave: %v", err)
	}
	for _, p := range []*Pool{a, b, c} {
		awaitShows(t, p, "a alive, b left, c alive")
	}
	b.Stop()
	c.Stop()
	c.Stop()
	awaitShows(t, a, "a alive, b left, c failed")
	if err := c.SetSelf(self("c")); err != ErrStopped {
		t.Errorf("SetSelf after Stop: %v", err)
	}
	await(t, a, "alone", func() bool { return !a.Joined() })
}

func TestSetSelf(t *testing.T) {
	a := start(t, onLoopback(t, "a"))
	b := start(t, onLoopback(t, "b", a.Addr()))
	awaitShows(t, a, "a alive, b alive")
	s := self("b")
	var running sync.WaitGroup
	for i := range 4 { // at the same time: the last one wins, whichever it is
		running.Go(func() {
			s := self("b")
			s.Incarnation = uint64(10 + i)
			if err := b.SetSelf(s); err != nil {
				t.Errorf("SetSelf: %v", err)
			}
		})
	}
	running.Wait()
	s.Incarnation, s.UID, s.HashKey = 2, "drawn", "other"
	if err := b.SetSelf(s); err != nil {
		t.Fatal(err)
	}
	for _, p := range []*Pool{a, b} {
		await(t, p, "the new tags", func() bool { return fact(p, "b").Self == s })
	}
	for _, change := range []func(*Self){
		func(s *Self) { s.Node = "c" }, func(s *Self) { s.Cluster = "other" }, func(s *Self) { s.Incarnation = 0 },
		func(s *Self) { s.Version = strings.Repeat("x", 512) },
	} {
		bad := s
		change(&bad)
		if err := b.SetSelf(bad); err == nil {
			t.Errorf("%+v was accepted", bad)
		}
	}
}

// TestComesUpLater joins an address where nobody is yet, and one that is the
// node's own.
func TestComesUpLater(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0") // a port that is free for both, most likely
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	_ = l.Close()
	a := start(t, onLoopback(t, "a", addr))
	await(t, a, "the first change", func() bool { return a.Stats().Changes > 0 })
	own := onLoopback(t, "b", addr, a.Addr())
	own.Bind = addr
	b := start(t, own)
	for _, p := range []*Pool{a, b} {
		awaitShows(t, p, "a alive, b alive")
	}
}

// TestHostName joins by name, and advertises by name.
func TestHostName(t *testing.T) {
	cfg := onLoopback(t, "a")
	cfg.Bind, cfg.Advertise = "localhost:0", "localhost:0"
	a := start(t, cfg)
	_, port, _ := net.SplitHostPort(a.Addr())
	if a.Addr() != "127.0.0.1:"+port || port == "0" {
		t.Fatalf("advertised %s", a.Addr())
	}
	start(t, onLoopback(t, "b", "nobody.invalid:1", "localhost:"+port))
	awaitShows(t, a, "a alive, b alive")
}

func TestRestartAtAnotherPort(t *testing.T) {
	a := start(t, onLoopback(t, "a"))
	b := start(t, onLoopback(t, "b", a.Addr()))
	awaitShows(t, a, "a alive, b alive")
	b.Stop()
	cfg := onLoopback(t, "b", a.Addr())
	cfg.Self.Incarnation = 2
	again := start(t, cfg)
	for _, p := range []*Pool{a, again} {
		await(t, p, "the new b", func() bool {
			f := fact(p, "b")
			return f.State == Alive && f.Addr == again.Addr() && f.Self.Incarnation == 2
		})
	}
}

// TestForeignMembers has an agent without our tags in the pool, and one of
// another cluster.
func TestForeignMembers(t *testing.T) {
	a := start(t, onLoopback(t, "a"))
	conf := serf.DefaultConfig()
	conf.NodeName, conf.Tags, conf.LogOutput = "stock", map[string]string{"role": "web"}, io.Discard
	conf.MemberlistConfig = memberlist.DefaultLocalConfig()
	quick(conf)
	conf.MemberlistConfig.BindAddr, conf.MemberlistConfig.BindPort, conf.MemberlistConfig.LogOutput = "127.0.0.1", 0, io.Discard
	stock, err := serf.Create(conf)
	if err != nil {
		t.Fatal(err)
	}
	defer stock.Shutdown()
	if _, err := stock.Join([]string{a.Addr()}, true); err != nil {
		t.Fatal(err)
	}
	awaitShows(t, a, "a alive, stock alive")
	if f := fact(a, "stock"); f.Ours || f.Self != (Self{}) || !strings.Contains(f.Why, "no keystead node") {
		t.Errorf("the stock agent: %+v", f)
	}
	if a.Joined() {
		t.Error("joined, with nobody of the cluster there")
	}
	cfg := onLoopback(t, "other", a.Addr())
	cfg.Self.Cluster = "prod"
	start(t, cfg)
	awaitShows(t, a, "a alive, other alive, stock alive")
	if f := fact(a, "other"); f.Ours || f.Self != (Self{}) || !strings.Contains(f.Why, `cluster "prod"`) {
		t.Errorf("the other cluster's: %+v", f)
	}
}

// TestEvents says things to the pool, by Announce and as `serf event` does.
func TestEvents(t *testing.T) {
	a := start(t, onLoopback(t, "a"))
	b := start(t, onLoopback(t, "b", a.Addr()))
	awaitShows(t, a, "a alive, b alive")
	awaitShows(t, b, "a alive, b alive")
	if err := a.Announce("drain", nil); err == nil {
		t.Error("an event without our prefix")
	}
	if err := a.Announce("keystead-x", make([]byte, 600)); err == nil {
		t.Error("an event of 600 bytes")
	}
	if err := a.serf.UserEvent("deploy", []byte("not ours"), false); err != nil {
		t.Fatal(err)
	}
	if err := a.Announce("keystead-drain", []byte("b")); err != nil {
		t.Fatal(err)
	}
	for _, p := range []*Pool{a, b} {
		select {
		case e := <-p.Events():
			if e.Name != "keystead-drain" || string(e.Payload) != "b" || e.LTime == 0 {
				t.Errorf("got %+v", e)
			}
		case <-time.After(patience):
			t.Fatal("no event")
		}
	}
	const extra = 10
	for i := range maxEvents + extra {
		if err := a.Announce("keystead-n", fmt.Append(nil, i)); err != nil {
			t.Fatal(err)
		}
	}
	for over := time.After(patience); a.Stats().EventsDropped != extra; {
		select {
		case <-over:
			t.Fatalf("%d events dropped, want %d", a.Stats().EventsDropped, extra)
		case <-time.After(time.Millisecond):
		}
	}
	if e := <-a.Events(); string(e.Payload) != fmt.Sprint(extra) {
		t.Errorf("the oldest that is left is %s", e.Payload)
	}
}

// TestKeys has members with the right key, another and none try to join.
func TestKeys(t *testing.T) {
	key := func(b byte, n int) []byte { return []byte(strings.Repeat(string(b), n)) }
	withKey := func(name string, k []byte, join ...string) *Pool {
		cfg := onLoopback(t, name, join...)
		cfg.Key, cfg.Log = k, nil
		return start(t, cfg)
	}
	a := withKey("a", key('k', 32))
	wrong, none := withKey("wrong", key('x', 32), a.Addr()), withKey("none", nil, a.Addr())
	right := withKey("right", key('k', 32), a.Addr())
	awaitShows(t, a, "a alive, right alive")
	awaitShows(t, right, "a alive, right alive")
	for _, p := range []*Pool{wrong, none} {
		for over := time.After(patience); p.Stats().JoinTries < 3; {
			select {
			case <-over:
				t.Fatal("it does not try on")
			case <-time.After(time.Millisecond):
			}
		}
		if got := len(p.Facts()); got != 1 || p.Joined() {
			t.Errorf("%s shows %s", p.cfg.Self.Node, shows(p))
		}
	}
	if got := shows(a); got != "a alive, right alive" {
		t.Errorf("after the others' tries: %s", got)
	}
	open := withKey("open", nil) // nobody with a key gets into a pool without
	keyed := withKey("keyed", key('k', 16), open.Addr())
	for over := time.After(patience); keyed.Stats().JoinTries < 3; {
		select {
		case <-over:
			t.Fatal("it does not try on")
		case <-time.After(time.Millisecond):
		}
	}
	if shows(open) != "open alive" || shows(keyed) != "keyed alive" {
		t.Errorf("%s; %s", shows(open), shows(keyed))
	}
}

// TestStopIsQuick stops a node that is dialing somebody who does not answer, and
// has streams open that say nothing.
func TestStopIsQuick(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	cfg := onLoopback(t, "a", silent.Addr().String())
	cfg.tune = func(c *serf.Config) {
		quick(c)
		c.MemberlistConfig.TCPTimeout = time.Hour
	}
	a := start(t, cfg)
	dialed, err := silent.Accept() // a waits for an answer
	if err != nil {
		t.Fatal(err)
	}
	defer dialed.Close()
	mute, err := net.Dial("tcp", a.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	stopped := make(chan struct{})
	go func() { defer close(stopped); a.Stop() }()
	select {
	case <-stopped:
	case <-time.After(patience):
		t.Fatal("Stop waits for others")
	}
	for _, c := range []net.Conn{dialed, mute} { // closed, and not left to their deadline
		_ = c.SetReadDeadline(time.Now().Add(patience))
		if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("the stream with %v is still open", c.LocalAddr())
		}
	}
}

// TestAddressTaken starts two nodes at one port.
func TestAddressTaken(t *testing.T) {
	a := start(t, onLoopback(t, "a"))
	cfg := onLoopback(t, "b")
	cfg.Bind = a.Addr()
	if p, err := Start(cfg); err == nil {
		p.Stop()
		t.Error("two at one port")
	} else if !strings.Contains(err.Error(), "cannot gossip at "+a.Addr()) {
		t.Error(err)
	}
}

// TestStopWhileLeaving stops from several goroutines while Leave goes on.
func TestStopWhileLeaving(t *testing.T) {
	a := start(t, onLoopback(t, "a"))
	b := start(t, onLoopback(t, "b", a.Addr()))
	for _, p := range []*Pool{a, b} { // one that knows of nobody leaves without a word
		awaitShows(t, p, "a alive, b alive")
	}
	// A join that is under way ends with the word that b is there, which must not follow the one that it leaves.
	if _, err := b.serf.Join(nil, true); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.Leave(ctx); err != context.Canceled {
		t.Errorf("Leave: %v", err)
	}
	var stops sync.WaitGroup
	for range 3 {
		stops.Go(b.Stop)
	}
	stops.Wait()
	awaitShows(t, a, "a alive, b left")
}
