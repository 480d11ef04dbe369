package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	clusterpb "github.com/keystead/keystead/proto/keystead/cluster/v1"
)

const (
	// patience is how long a node may lag behind what answers show before the
	// client watches another.
	patience = time.Second
	// watchPause is the longest time between attempts to watch.
	watchPause = 5 * time.Second
)

// watch is the state of the stream that brings the table and its changes.
type watch struct {
	mu     sync.Mutex         // guards what follows
	seen   uint64             // latest epoch of the stream
	want   uint64             // latest epoch seen in any answer
	cancel context.CancelFunc // ends the stream; nil = there is none
	timer  *time.Timer        // until patience ends; nil = the stream is not behind
}

// behind notes that an answer came from a later epoch. If the stream does not reach it
// soon, another node is watched.
func (w *watch) behind(epoch uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.want = max(w.want, epoch)
	if w.timer != nil || w.cancel == nil || w.seen >= w.want {
		return
	}
	w.timer = time.AfterFunc(patience, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.timer = nil
		if w.cancel != nil && w.seen < w.want {
			w.cancel()
		}
	})
}

// heard notes an epoch that the stream has reached.
func (w *watch) heard(epoch uint64) {
	w.mu.Lock()
	w.seen = epoch
	w.mu.Unlock()
	w.behind(0)
}

// begin and end stand around a stream.
func (w *watch) begin(cancel context.CancelFunc) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cancel = cancel
	w.seen = 0
}

func (w *watch) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cancel = nil
	if w.timer != nil {
		w.timer.Stop()
		w.timer = nil
	}
}

// learn asks all addresses at once for the table, again and again until one has
// it or ctx ends, and returns the one that answered first.
func (c *Client) learn(ctx context.Context) (from string, err error) {
	for pause := firstPause; ; pause = min(2*pause, maxPause) {
		if from, err = c.askAll(ctx); err == nil {
			return from, nil
		}
		if e := c.rest(ctx, &route{}, nil, pause); e != nil {
			return "", &Error{Code: codes.Unavailable, Reason: ErrUnavailable, cause: cmp.Or(ctx.Err(), e),
				Message: fmt.Sprintf("no node has sent the table of owners: %v", err)}
		}
	}
}

func (c *Client) askAll(ctx context.Context) (string, error) {
	ctx, cancel := c.limited(ctx, 0)
	defer cancel()
	type answer struct {
		from string
		view *view
		err  error
	}
	answers := make(chan answer, len(c.addrs))
	for _, addr := range c.addrs {
		go func() {
			v, err := c.ask(ctx, addr)
			answers <- answer{addr, v, err}
		}()
	}
	var errs []error
	var first answer
	for range c.addrs { // all, so that none is left running
		a := <-answers
		switch {
		case a.err != nil:
			errs = append(errs, fmt.Errorf("%s: %s", a.from, fromCall(a.err, false).Message))
		case first.view == nil:
			first = a
			cancel()
		}
	}
	if first.view == nil {
		return "", errors.Join(errs...)
	}
	c.install(first.view)
	return first.from, nil
}

// ask gets the table from one node.
func (c *Client) ask(ctx context.Context, addr string) (*view, error) {
	n, err := c.pool.acquire(addr)
	if err != nil {
		return nil, err
	}
	defer c.pool.release(n)
	r, err := clusterpb.NewClusterServiceClient(n.conn()).GetTable(ctx, &clusterpb.GetTableRequest{})
	if err != nil {
		return nil, err
	}
	v, err := newView(r.GetTable(), addr)
	if err == nil && !v.usable() {
		err = errors.New("the node knows of no members yet")
	}
	return v, err
}

// install makes a table the current one, if it is newer.
func (c *Client) install(v *view) {
	old := c.view.Load()
	if !v.usable() || !v.replaces(old) {
		return
	}
	if old != nil && v.cluster != old.cluster {
		c.cfg.Log.Warn("the table is another cluster's now", "was", old.cluster, "is", v.cluster)
	}
	c.view.Store(v)
	c.pool.keep(others(nil, v, ""))
	if old != nil {
		close(old.changed)
	}
}

// keepWatch follows the table until Close, at one node after the other. While a node
// does not answer, calls go by the old table.
func (c *Client) keepWatch(from string) {
	pause := firstPause
	for c.ctx.Err() == nil {
		heard, err := c.follow(from)
		if c.ctx.Err() != nil {
			return
		}
		c.cfg.Log.Info("the watch of the table ended; another node is asked", "node", from, "err", err)
		if heard {
			pause = firstPause
		}
		t := time.NewTimer(pause/2 + time.Duration(rand.Int64N(int64(pause))))
		select {
		case <-t.C:
		case <-c.ctx.Done():
		}
		t.Stop()
		pause = min(2*pause, watchPause)
		from = c.nextWatch(from)
	}
}

// nextWatch returns the node to watch after one that failed: another member, or one
// of the addresses given to Dial, which lead to the cluster again when all members
// of old are gone.
func (c *Client) nextWatch(failed string) string {
	addrs := others(nil, c.view.Load(), failed)
	for _, a := range c.addrs {
		if a != failed {
			addrs = append(addrs, a)
		}
	}
	if len(addrs) == 0 {
		return failed
	}
	return addrs[rand.IntN(len(addrs))]
}

// follow watches the table at one node until the stream ends. heard reports whether
// it brought a table.
func (c *Client) follow(addr string) (heard bool, err error) {
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	c.watch.begin(cancel)
	defer c.watch.end()
	n, err := c.pool.acquire(addr)
	if err != nil {
		return false, err
	}
	defer func() { c.pool.release(n) }()
	// The first message must come soon; the others when there is news.
	hurry := time.AfterFunc(c.cfg.AttemptTimeout, cancel)
	defer hurry.Stop()
	stream, err := clusterpb.NewClusterServiceClient(n.conn()).Watch(ctx, &clusterpb.WatchRequest{})
	if err != nil {
		return false, err
	}
	var v *view
	for {
		if v, err = next(stream, v, addr); err != nil {
			return heard, err
		}
		hurry.Stop()
		heard = true
		c.install(v)
		c.watch.heard(v.epoch)
		if known := c.view.Load(); known != nil && known.cluster == v.cluster && known.epoch > v.epoch {
			c.watch.behind(known.epoch)
		}
	}
}

// next returns the table after the next message of a stream.
func next(stream grpc.ServerStreamingClient[clusterpb.WatchResponse], v *view, via string) (*view, error) {
	m, err := stream.Recv()
	switch {
	case err != nil:
		return nil, err
	case m.Snapshot != nil:
		return newView(m.Snapshot, via)
	case m.Change != nil && v != nil:
		return v.after(m.Change, via)
	}
	return nil, errors.New("a message that says nothing")
}
