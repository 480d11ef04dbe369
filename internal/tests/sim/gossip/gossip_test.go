package gossip

import (
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

const (
	one = "10.0.0.1:7946"
	two = "10.0.0.2:7946"
)

// pair returns a network with two transports, which end with the test.
func pair(t *testing.T) (*Network, *Transport, *Transport) {
	t.Helper()
	n := NewNetwork(1)
	a, b := n.Transport(one), n.Transport(two)
	t.Cleanup(func() {
		_ = a.Shutdown()
		_ = b.Shutdown()
	})
	return n, a, b
}

// arrive returns what has arrived after a second.
func arrive(t *Transport) []string {
	time.Sleep(time.Second)
	var got []string
	for {
		select {
		case p := <-t.PacketCh():
			got = append(got, p.From.String()+" "+string(p.Buf))
		default:
			return got
		}
	}
}

func send(t *testing.T, from *Transport, to, text string) {
	t.Helper()
	if _, err := from.WriteTo([]byte(text), to); err != nil {
		t.Fatalf("WriteTo %s: %v", to, err)
	}
}

func TestPackets(t *testing.T) {
	for _, tt := range []struct {
		name  string
		set   func(*Network)
		there int // of ten packets from one to two
		back  int
	}{
		{name: "all arrive", set: func(*Network) {}, there: 10, back: 10},
		{name: "all lost", set: func(n *Network) { n.SetLoss(1) }},
		{name: "all twice", set: func(n *Network) { n.SetDuplicates(1) }, there: 20, back: 20},
		{name: "cut one way", set: func(n *Network) { n.Cut(one, two, true) }, back: 10},
		{name: "cut the other way", set: func(n *Network) { n.Cut(two, one, true) }, there: 10},
		{name: "isolated", set: func(n *Network) { n.Isolate(one, true) }},
		{name: "healed", set: func(n *Network) { n.Isolate(one, true); n.Cut(two, one, true); n.Heal() }, there: 10, back: 10},
		{name: "cut and joined", set: func(n *Network) { n.Cut(one, two, true); n.Cut(one, two, false) }, there: 10, back: 10},
		{name: "too slow", set: func(n *Network) { n.SetDelay(time.Minute, time.Minute) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n, a, b := pair(t)
				tt.set(n)
				for range 10 {
					send(t, a, two, "there")
					send(t, b, one, "back")
				}
				if got := len(arrive(b)); got != tt.there {
					t.Errorf("%d packets arrived at two, want %d", got, tt.there)
				}
				if got := len(arrive(a)); got != tt.back {
					t.Errorf("%d packets arrived at one, want %d", got, tt.back)
				}
			})
		})
	}
}

// TestSeed sends the same twice through losses.
func TestSeed(t *testing.T) {
	run := func(seed uint64) (got []string) {
		synctest.Test(t, func(t *testing.T) {
			n := NewNetwork(seed)
			n.SetLoss(0.5)
			a, b := n.Transport(one), n.Transport(two)
			for r := 'a'; r <= 'z'; r++ {
				send(t, a, two, string(r))
			}
			got = arrive(b)
			_, _ = a.Shutdown(), b.Shutdown()
		})
		return got
	}
	first, again, other := run(1), run(1), run(2)
	if !slices.Equal(first, again) || slices.Equal(first, other) || len(first) == 0 || len(first) == 26 {
		t.Errorf("seed 1: %v\nagain:  %v\nseed 2: %v", first, again, other)
	}
}

// TestNobodyThere sends to an address that is free, is freed and is taken again.
func TestNobodyThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, a, b := pair(t)
		send(t, a, "10.0.0.3:7946", "void")
		for range packetRoom + 10 { // nobody reads them
			send(t, a, two, "full")
		}
		if got := len(arrive(b)); got != packetRoom {
			t.Errorf("%d packets waited, want %d", got, packetRoom)
		}
		if err := errors.Join(b.Shutdown(), b.Shutdown()); err != nil {
			t.Error(err)
		}
		send(t, a, two, "gone")
		time.Sleep(time.Second)
		if _, err := a.DialTimeout(two, time.Second); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("dialing a transport that is down: %v", err)
		}
		if _, err := b.WriteTo([]byte("x"), one); !errors.Is(err, net.ErrClosed) {
			t.Errorf("writing from a transport that is down: %v", err)
		}
		b = n.Transport(two)
		send(t, a, two, "again")
		if got := arrive(b); !slices.Equal(got, []string{one + " again"}) {
			t.Errorf("the new one got %v", got)
		}
		want := Stats{Sent: packetRoom + 13, Unwanted: 12, Delivered: packetRoom + 1}
		if got := n.Stats(); got != want {
			t.Errorf("stats %+v, want %+v", got, want)
		}
		_ = b.Shutdown()
	})
}

// dial opens a stream from a to b.
func dial(t *testing.T, a, b *Transport) (near, far net.Conn) {
	t.Helper()
	near, err := a.DialTimeout(b.Addr(), time.Second)
	if err != nil {
		t.Fatal(err)
	}
	return near, <-b.StreamCh()
}

func TestStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, a, b := pair(t)
		near, far := dial(t, a, b)
		if near.RemoteAddr().String() != two || far.RemoteAddr().String() != one {
			t.Errorf("the ends are %v and %v", near, far)
		}
		text := strings.Repeat("0123456789", 100_000)
		go func() {
			_, _ = io.WriteString(near, text)
			_ = near.Close()
		}()
		got, err := io.ReadAll(far)
		if err != nil || string(got) != text {
			t.Errorf("read %d bytes, %v; want %d", len(got), err, len(text))
		}
		_ = far.Close()
	})
}

// TestStreamStandsStill cuts a stream, which goes on when the cut is healed.
func TestStreamStandsStill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, a, b := pair(t)
		near, far := dial(t, a, b)
		n.Cut(one, two, true)
		_, _ = io.WriteString(near, "held up")
		_ = far.SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := far.Read(make([]byte, 7)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("reading through the cut: %v", err)
		}
		_, _ = io.WriteString(far, "back") // the other direction works
		buf := make([]byte, 7)
		if k, err := near.Read(buf); string(buf[:k]) != "back" {
			t.Errorf("the other way: %q, %v", buf[:k], err)
		}
		n.Cut(one, two, false)
		_ = far.SetReadDeadline(time.Now().Add(time.Second))
		if k, err := far.Read(buf); string(buf[:k]) != "held up" {
			t.Errorf("after the cut: %q, %v", buf[:k], err)
		}
		n.Cut(two, one, true)
		_ = far.Close() // near does not learn of it
		_ = near.SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := near.Read(buf); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("reading while the end is held up: %v", err)
		}
		n.Heal()
		_ = near.SetReadDeadline(time.Now().Add(time.Second))
		if _, err := near.Read(buf); err != io.EOF {
			t.Errorf("reading at the end: %v", err)
		}
		_ = near.Close()
	})
}

func TestDialThroughACut(t *testing.T) {
	for _, w := range []way{{one, two}, {two, one}} {
		synctest.Test(t, func(t *testing.T) {
			n, a, _ := pair(t)
			n.Cut(w.from, w.to, true)
			start := time.Now()
			if _, err := a.DialTimeout(two, 3*time.Second); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(start) != 3*time.Second {
				t.Errorf("cut %v: %v after %v", w, err, time.Since(start))
			}
			time.AfterFunc(time.Second, func() { n.Heal() })
			if c, err := a.DialTimeout(two, 3*time.Second); err != nil {
				t.Errorf("cut %v: not healed in time: %v", w, err)
			} else {
				_ = c.Close()
			}
		})
	}
}

// TestShutdownEndsStreams ends one side: the other reads the end, and no relay is
// left, or the bubble could not end.
func TestShutdownEndsStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, a, b := pair(t)
		near, far := dial(t, a, b)
		go func() {
			time.Sleep(time.Second)
			_ = b.Shutdown()
		}()
		if _, err := near.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("reading from one that is down: %v", err)
		}
		if _, err := far.Read(make([]byte, 1)); err == nil {
			t.Error("reading at a transport that is down")
		}
		_ = near.Close()
	})
}

func TestTaken(t *testing.T) {
	n := NewNetwork(1)
	for _, addr := range []string{"nobody", one} {
		func() {
			defer func() {
				if r := recover(); r == nil {
					t.Errorf("Transport(%q) did not panic", addr)
				}
			}()
			defer n.Transport(one).Shutdown()
			n.Transport(addr)
		}()
	}
}
