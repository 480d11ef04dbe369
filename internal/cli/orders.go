package cli

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/keystead/keystead/internal/node"
)

const (
	// orderGap is the least time between two signals that are two orders. What comes
	// sooner repeats the order before: GNU timeout signals a process and its group,
	// shells and wrappers pass on what the terminal sends as well, and people press
	// Ctrl-C twice.
	orderGap = time.Second
	// keepBound is how long an order to end at once waits for the write of the state
	// that is under way: some gigabytes on a slow disk.
	keepBound = 30 * time.Second
	// keepPoll is how often that is checked.
	keepPoll = 5 * time.Millisecond
)

// orders are the signals that stop a node, as orders.
type orders struct {
	signals chan os.Signal
	next    chan os.Signal // capacity 1; an order that is not read yet is not repeated
	done    chan struct{}
}

// catchOrders turns signals into orders. From then on none of them ends the process by
// itself.
func catchOrders() *orders {
	o := &orders{signals: make(chan os.Signal, 16), next: make(chan os.Signal, 1), done: make(chan struct{})}
	signal.Notify(o.signals, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		var last time.Time
		for {
			select {
			case s := <-o.signals:
				//guard:order-gap
				if !last.IsZero() && time.Since(last) < orderGap {
					continue
				}
				last = time.Now()
				select {
				case o.next <- s:
				default:
				}
			case <-o.done:
				return
			}
		}
	}()
	return o
}

// end takes no more orders. The process is about to end: a signal that comes in these last
// moments is ignored, where its default would turn a good end into a bad one.
func (o *orders) end() {
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM)
	close(o.done)
}

// startBound is how long an order to stop waits for a node that is starting: a disk that hangs may hold
// that up for ever, and nothing is lost by ending then.
const startBound = 10 * time.Second

// start starts a node. An order that comes meanwhile is followed when it has started, or else soon.
func (f *nodeFlags) start(o *orders, log *slog.Logger) (n *node.Node, err error) {
	started := make(chan struct{})
	go func() {
		defer close(started)
		n, err = node.Start(f.Config)
	}()
	var s os.Signal
	select {
	case <-started:
		return n, err
	case s = <-o.next:
	}
	log.Warn("a signal to stop before the node has started: waiting for that", "at most", startBound)
	over := time.NewTimer(startBound)
	defer over.Stop()
	select {
	case <-started:
		select {
		case o.next <- s:
		default: // there is another one
		}
		return n, err
	case <-o.next:
	case <-over.C:
	}
	log.Error("the node ends before it has started: does the disk of --data-dir hang?", "data directory", f.DataDir)
	end(s)
	return nil, nil
}

// stop stops a node after an order. The next order cuts short what it waits for. The one
// after that ends the process, as soon as no write of the state is under way.
func (f *nodeFlags) stop(n *node.Node, o *orders, log *slog.Logger) (err error) {
	n.KeepUntil(time.Now().Add(f.drainTimeout + f.StopGrace))
	log.Info("stopping", "grace", f.StopGrace, "drain timeout", f.drainTimeout)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		err = f.drain(n)
		n.Stop()
	}()
	select {
	case <-stopped:
		return err
	case <-o.next:
		log.Warn("another signal to stop: waiting is cut short; a further signal ends the process at once")
		n.Hurry()
	}
	select {
	case <-stopped:
		return err
	case s := <-o.next:
		endAtOnce(n, s, log)
		return nil
	}
}

// endAtOnce ends the process by a signal.
func endAtOnce(n *node.Node, s os.Signal, log *slog.Logger) {
	if n.Keeping() {
		log.Warn("ends when the state is written", "in at most", keepBound)
	}
	over := time.After(keepBound)
	for poll := time.NewTicker(keepPoll); n.Keeping(); {
		select {
		case <-poll.C:
			continue
		case <-over:
		}
		break
	}
	end(s)
}

// end ends the process as by a signal.
func end(s os.Signal) {
	code := 1
	if number, ok := s.(syscall.Signal); ok {
		code = 128 + int(number)
	}
	os.Exit(code)
}

// drain drains a node that is to stop, until that is done, another order comes, or the
// node fails.
func (f *nodeFlags) drain(n *node.Node) (err error) {
	done := make(chan struct{})
	go func() { defer close(done); n.DrainBeforeStop(context.Background(), f.drainTimeout) }()
	select {
	case <-done:
	case err = <-n.Failed():
		n.Hurry()
		<-done
	}
	return err
}
