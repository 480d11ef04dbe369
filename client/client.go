package client

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/metadata"

	"github.com/keystead/keystead/internal/clock"
	"github.com/keystead/keystead/internal/fallback"
	"github.com/keystead/keystead/ring"
)

// Client calls the nodes of a cluster, each key's owner directly. Its methods
// may be called from any goroutine.
type Client struct {
	cfg   Config
	addrs []string // given to Dial
	clock clock.Clock
	// holder is the default one of locks.
	holder string
	pool   pool
	view   atomic.Pointer[view] // nil until a table is known

	// Two identities: a caller that waits long for a lock must not keep the ids of all
	// others unsettled.
	ops, waits *identity
	generation atomic.Uint64 // of the last session
	// Slots of calls under way.
	opSlots, waitSlots chan struct{}

	watch watch
	stats stats

	alone     *fallback.Table // of limits when no node is reached; nil until it is needed
	aloneOnce sync.Once

	ctx  context.Context // ends at Close
	stop context.CancelCauseFunc
	mu   sync.Mutex     // guards closed against wg.Go
	wg   sync.WaitGroup // of all goroutines
	done bool           // guarded by mu: Close was called
}

// Dial connects with the zero Config: see Config.Dial.
func Dial(ctx context.Context, addrs ...string) (*Client, error) {
	return Config{}.Dial(ctx, addrs...)
}

// Dial connects to a cluster through any of these nodes (host:port). It asks all of
// them for the table of owners until one answers or ctx ends; a ctx without a deadline
// gets that of Config.Timeout. The client then follows the changes of the table. Close it
// when it is no longer needed.
func (cfg Config) Dial(ctx context.Context, addrs ...string) (*Client, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(addrs); err != nil {
		return nil, about(err, "dial", "", "")
	}
	if ctx == nil {
		return nil, about(errNoContext(), "dial", "", "")
	}
	c := &Client{
		cfg: cfg, addrs: append([]string(nil), addrs...), clock: cfg.clock,
		ops: newIdentity(cfg.clock), waits: newIdentity(cfg.clock),
		opSlots: make(chan struct{}, cfg.MaxInFlight), waitSlots: make(chan struct{}, cfg.MaxInFlight),
	}
	c.pool = pool{c: c, nodes: map[string]*node{}, retired: map[*node]bool{}}
	host, _ := os.Hostname() // an empty name is as good as any
	c.holder = fmt.Sprintf("%.100s:%d", host, os.Getpid())
	base := context.Background()
	if cfg.noForward {
		base = metadata.AppendToOutgoingContext(base, noForwardHeader, "1")
	}
	c.ctx, c.stop = context.WithCancelCause(base)
	ctx, cancel := c.bounded(ctx, cfg.Timeout)
	defer cancel()
	from, err := c.learn(ctx)
	if err != nil {
		c.Close()
		return nil, about(err, "dial "+strings.Join(addrs, ", "), "", "")
	}
	c.wg.Go(func() { c.keepWatch(from) })
	return c, nil
}

// Close ends the watch, all calls under way and the renewal of all locks, and
// waits for its goroutines. The contexts of locks end with the cause ErrClosed;
// the locks themselves stay held until their TTL ends. It may be called more than
// once.
func (c *Client) Close() {
	c.mu.Lock()
	c.done = true
	c.mu.Unlock()
	c.stop(errClosed())
	c.pool.close()
	c.wg.Wait()
}

// start runs a goroutine that Close waits for. It reports false after Close.
func (c *Client) start(f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done {
		return false
	}
	c.wg.Go(f)
	return true
}

// stats counts what a client did.
type stats struct {
	attempts, retries, forwarded, messages, items atomic.Int64
}

// Stats are figures of a client since Dial.
type Stats struct {
	Attempts  int64 // of operations on keys, each item of a batch counted
	Retries   int64 // … that were not the first of their operation
	Forwarded int64 // answers by another node than the one that was asked
	Messages  int64 // batches that were put together of single calls
	Items     int64 // … the calls in them
	Nodes     int   // with a connection that is up
	Epoch     uint64
}

// Stats returns the current figures.
func (c *Client) Stats() Stats {
	s := Stats{
		Attempts: c.stats.attempts.Load(), Retries: c.stats.retries.Load(), Forwarded: c.stats.forwarded.Load(),
		Messages: c.stats.messages.Load(), Items: c.stats.items.Load(), Nodes: c.pool.live(),
	}
	if v := c.view.Load(); v != nil {
		s.Epoch = v.epoch
	}
	return s
}

// route is where a call goes.
type route struct {
	keyed bool
	reads bool // nothing is changed: an attempt without an answer is no loss
	quiet bool // no Observer is told
	hash  uint64
	hint  string // address that a node named, when the table was …
	at    *view  // … this one
	avoid string // address that did not answer

	what, key string // the operation and its key, for errors

	object object     // which may be split
	op     *operation // by whose id its part is chosen, and which says how it ended; nil = any part
}

func toKey(key string, reads bool) route {
	return route{keyed: true, reads: reads, hash: ring.Hash(key), key: key}
}

// toObject returns the route of a call about an object; op is nil if it changes nothing.
func toObject(o object, op *operation) route {
	return route{keyed: true, reads: op == nil, hash: ring.Hash(o.key), object: o, op: op, key: o.key}
}

// of returns the route of the operation that is named so in errors.
func (r route) of(what string) route {
	r.what = what
	return r
}

// learn notes where the next attempt goes, after one at an address failed that went by
// the table v.
func (r *route) learn(c *Client, e *Error, v *view, addr string) {
	r.hint, r.avoid = "", ""
	switch {
	case e.broken, !r.keyed: // where there is no owner, any other may do better
		r.avoid = addr
	case e.Reason == ErrNotOwner:
		c.watch.behind(e.epoch)
		if r.hint, r.at = e.ownerAddr, v; r.hint == "" {
			r.avoid = addr
		}
	}
}

// pick chooses the node for an attempt. It must be released.
func (c *Client) pick(r *route) (*node, *view, error) {
	v := c.view.Load()
	n, err := c.pool.acquire(c.address(v, r))
	return n, v, err
}

// address returns that of the owner of the key, or of a part of what is split. If that is not
// known, or did not answer just now, any other node will do: it forwards.
func (c *Client) address(v *view, r *route) string {
	if r.hint != "" && v != r.at && r.moved(r.at, v) {
		r.hint = "" // the table knows better now
	}
	if r.hint != "" && r.hint != r.avoid {
		return r.hint
	}
	if r.keyed {
		if a := c.anyPart(v, r); a != "" {
			return a
		}
		if m := r.owner(v); m != nil && m.addr != r.avoid {
			return m.addr
		}
	}
	var known [64]string // enough for most, without an allocation
	if a := c.pool.lighter(others(known[:0], v, r.avoid), c.clock.Now()); a != "" {
		return a
	}
	if r.avoid != "" {
		return r.avoid // there is no other
	}
	return c.addrs[0]
}

// others appends the addresses of all members but one.
func others(to []string, v *view, but string) []string {
	if v == nil {
		return to
	}
	for i := range v.members {
		if a := v.members[i].addr; a != but {
			to = append(to, a)
		}
	}
	return to
}

// answered notes which node gave an answer and in which epoch.
func (c *Client) answered(v *view, n *node, owner string, epoch uint64) {
	if owner == "" || v == nil || v.cluster == "" {
		return
	}
	for i := range v.members {
		if m := &v.members[i]; m.id == owner {
			if m.addr != n.addr {
				c.stats.forwarded.Add(1)
			}
			break
		}
	}
	if epoch > v.epoch {
		c.watch.behind(epoch)
	}
}
