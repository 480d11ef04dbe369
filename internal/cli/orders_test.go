package cli

import (
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"
)

// Signals within a second are one order; a later one is another.
func TestOrders(t *testing.T) {
	t.Parallel()
	o := catchOrders()
	defer func() {
		o.end()
		if err := syscall.Kill(syscall.Getpid(), syscall.SIGTERM); err != nil { // changes nothing any more
			t.Error(err)
		}
		signal.Reset(syscall.SIGINT, syscall.SIGTERM)
	}()
	taken := func() os.Signal {
		select {
		case s := <-o.next:
			return s
		case <-time.After(30 * time.Second):
			t.Fatal("no order")
			return nil
		}
	}
	for range 4 {
		o.signals <- syscall.SIGTERM
	}
	first := time.Now()
	if s := taken(); s != syscall.SIGTERM {
		t.Errorf("the order is %s", s)
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			o.signals <- syscall.SIGINT
			continue
		case s := <-o.next:
			if since := time.Since(first); s != syscall.SIGINT || since < orderGap-100*time.Millisecond {
				t.Errorf("another order, %s, after %s", s, since)
			}
		case <-time.After(30 * time.Second):
			t.Error("no second order")
		}
		return
	}
}
