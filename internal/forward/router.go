package forward

import (
	"context"
	"errors"
	"net"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/keystead/keystead/internal/failure"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
	"github.com/keystead/keystead/ring/epoch/table"
)

// NoForward is the header by which a caller asks for NOT_OWNER instead of being
// forwarded. Its value does not matter.
const NoForward = "x-keystead-no-forward"

// StaysHere reports whether the caller asked not to be forwarded.
func StaysHere(ctx context.Context) bool {
	return len(metadata.ValueFromIncomingContext(ctx, NoForward)) > 0
}

// Cluster is what is known of the other nodes.
type Cluster interface {
	Table
	// Self is this process.
	Self() table.Holder
}

// Config is what a Router needs. All of it is required but Dial.
type Config struct {
	Node    string // id of this node
	Cluster Cluster
	// Decide does a call on this node, and confirms its answer. Its error is one of the
	// reason failure.NotOwner if the node does not act for the key.
	Decide func(ctx context.Context, c *Call) (Message, error)
	// Choose chooses the part of a split object for a call with this request id, nil if it
	// has none.
	Choose func(t *table.Table, sp *table.Split, id *commonpb.RequestId) (int, error)
	// MakeWhole has a split object made whole, for a call that no part can do. It does not
	// wait.
	MakeWhole func(split uint64)
	// Waiting returns the error for callers of a node that has not heard of its cluster,
	// nil if it has, or is starting.
	Waiting func(t *table.Table) error
	// Gone returns the error of a call whose caller has left.
	Gone func(ctx context.Context) error
	// Wire returns an error as it travels: what a Remote has, as it is.
	Wire func(error) *commonpb.Error
	// Stopping is closed when this node stops, and Stopped the error of calls from then on.
	Stopping <-chan struct{}
	Stopped  error
	// Full is the error of a call for which there is no room.
	Full error
	// Dial connects to other nodes. nil = TCP.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
	// MaxMessage bounds the bytes of a message that is sent, and MaxReceive of one that
	// is received.
	MaxMessage, MaxReceive int
}

// Router brings calls to the owners of their keys.
type Router struct {
	*Links
	cfg Config
}

// New returns a Router that has to be closed.
func New(cfg Config) *Router {
	return &Router{cfg: cfg, Links: NewLinks(LinksConfig{Table: cfg.Cluster, Dial: cfg.Dial, Full: cfg.Full, MaxMessage: cfg.MaxMessage, MaxReceive: cfg.MaxReceive})}
}

// Pass gets a call answered that this node could not let in: by the owner of its
// key, or here, when the key has come here meanwhile. The error is one for the
// caller; nothing has been counted for it yet. The call came at began; the zero time is now.
func (r *Router) Pass(ctx context.Context, c *Call, began time.Time) (Message, error) {
	return newRoute(ctx, r, c, began).run()
}

// PassToPart gets a call answered by the owner of a part of a split object, on whichever
// node that is. With once, it is sent at most once.
func (r *Router) PassToPart(ctx context.Context, c *Call, part *peerv1.Part, once bool) (Message, error) {
	rt := newRoute(ctx, r, c, time.Time{})
	rt.fixed, rt.once, rt.part = true, once, part
	return rt.run()
}

// PassTo gets a call answered by a member, whatever it owns. It is sent once.
func (r *Router) PassTo(ctx context.Context, c *Call, to table.Member) (Message, error) {
	rt := newRoute(ctx, r, c, time.Now())
	answer, again, err := rt.conclude(rt.send(to, 0))
	if again {
		return nil, errUnreached
	}
	return answer, err
}

// stopped reports whether this node stops.
func (r *Router) stopped() bool {
	select {
	case <-r.cfg.Stopping:
		return true
	default:
		return false
	}
}

// notOwner returns the error of a call that must not be forwarded: who owns the key.
func (r *Router) notOwner(t *table.Table, hash uint64) *commonpb.Error {
	w := r.cfg.Wire(ErrNotOwner)
	if m, since, ok := t.Owner(hash); ok {
		w.Owner, w.OwnerAddr, w.Epoch = m.Node, m.GRPCAddr, since
	}
	return w
}

// isElsewhere reports whether a call was not let in because this node does not act for its
// key.
func isElsewhere(err error) bool {
	var e *failure.Error
	return errors.As(err, &e) && e.Reason == failure.NotOwner
}

// ErrNotOwner is the error of a call that this node does not act for, and does not pass on.
var ErrNotOwner = &failure.Error{Reason: failure.NotOwner, RetryAfter: 50 * time.Millisecond,
	Message: "another node owns the key; nothing happened",
	Hint:    "call that node, or leave out the header " + NoForward}

var errNoOwner = &failure.Error{Reason: failure.Unavailable, RetryAfter: 200 * time.Millisecond,
	Message: "nobody serves the key now: its owner is gone, or it is being handed over; nothing happened",
	Hint:    "try again: another node takes over within seconds"}

// noOwner returns the error of a call about a position that nobody serves.
func noOwner(t *table.Table, hash uint64) error {
	i := t.Find(hash)
	if i < 0 || !t.Rows[i].Cold() {
		return errNoOwner
	}
	disks := t.Rows[i].Was.Node
	if s := t.Rows[i].Stood; !s.None() {
		disks += " or " + s.Node
	}
	return &failure.Error{Reason: failure.Unavailable, RetryAfter: coldRetry,
		Message: "nobody serves the key now: its state is on the disk of " + disks + ", which has died; nothing happened",
		Hint:    "try again; it is served when that node has started with its --data-dir: see `keystead status`"}
}

// coldRetry is when to try again what waits for a node to start.
const coldRetry = time.Second

var errUnreached = &failure.Error{Reason: failure.Unavailable, RetryAfter: 200 * time.Millisecond,
	Message: "the owner of the key cannot be reached; nothing happened",
	Hint:    "try again: it comes back, or another node takes over within seconds"}

// Remote is an error that came from another node; it goes on as it is.
type Remote struct{ Wire *commonpb.Error }

func (r *Remote) Error() string { return r.Wire.Message }
