package forward

import (
	"context"

	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
	"github.com/keystead/keystead/ring/epoch/table"
)

// Copies are what answers wait for: a decision is told to nobody before those
// processes have it that would go on from it if this one died.
type Copies interface {
	// Behind are those that do not have the last that was decided about keys at this
	// position.
	Behind(hash uint64) table.Behind
	// AwaitOf returns true when one of those has, or need not any more. It returns false
	// if it gave up before, or the context ended.
	AwaitOf(ctx context.Context, hash uint64, of table.Holder) bool
}

// Calls counts calls that are under way.
type Calls interface {
	// Begin counts calls in, if there is room for them, which it reports.
	Begin(n int64) bool
	// End counts calls out.
	End(n int64)
	// Busy counts what a stop of the node waits for.
	Busy(n int64)
}

// ServiceConfig is what a Service needs. All of it is required but Copies and MaxHeld.
type ServiceConfig[D any] struct {
	// Known finds the operations that nodes send each other.
	Known Operations
	// Decide does a call on this node. With later it may leave the answer unconfirmed, and
	// adds what was decided to it then.
	Decide func(ctx context.Context, c *Call, later *Later[D]) (Message, error)
	// Confirm does the check before an answer that was left for later, unless the wait for
	// the copies has failed with an error already, and counts the operation. now is by the
	// clock of Now. With an error the answer must not be told.
	Confirm func(d *D, now int64, err error) error
	// Now is the clock of this node, in ns.
	Now func() int64
	// Copies are what answers wait for. nil = nothing.
	Copies Copies
	// Untold returns the error of an answer for which the wait was given up; reads says that
	// the operation changed nothing.
	Untold func(reads bool) error
	// Calls counts calls.
	Calls Calls
	// Received counts calls that other nodes have passed on.
	Received func(n int)
	// Check returns the error of a message that is too large, nil if it is not.
	Check func(*peerv1.ForwardRequest) error
	// Refuse counts what is turned away with an error, and returns its status.
	Refuse func(error) error
	// MaxMessage bounds the bytes of a message of answers.
	MaxMessage int
	// MaxHeld bounds the answers that wait for one process. 0 = 65,536.
	MaxHeld int
}

// Service is the ForwardService: calls that other nodes pass on. D is what the node has to
// know of a decision to confirm it later; it is only carried here.
type Service[D any] struct {
	peerv1.UnimplementedForwardServiceServer
	r     *Router
	cfg   ServiceConfig[D]
	lanes *lanes[D]
}

// NewService returns a Service beside a Router, which has to be closed.
func NewService[D any](r *Router, cfg ServiceConfig[D]) *Service[D] {
	s := &Service[D]{r: r, cfg: cfg}
	s.lanes = newLanes(s)
	return s
}

// Close gives up the answers that still wait. No calls come any more.
func (s *Service[D]) Close() { s.lanes.close() }

// behind returns the processes whose acknowledgement an answer waits for.
func (s *Service[D]) behind(u *Unconfirmed[D]) (none table.Behind) {
	if s.cfg.Copies == nil || u.Alone {
		return none
	}
	return s.cfg.Copies.Behind(u.Hash)
}

// Unconfirmed is a decision whose answer was not told yet.
type Unconfirmed[D any] struct {
	Hash     uint64 // position of the key
	Alone    bool   // the answer waits for no copies
	Reads    bool   // the operation changed nothing
	Decision D

	place int // of the answer in its message; -1 = it has none yet
}

// Later are the unconfirmed decisions of one message.
type Later[D any] []Unconfirmed[D]

// Add adds the decision of the call that is being done.
func (l *Later[D]) Add(u Unconfirmed[D]) {
	u.place = -1
	*l = append(*l, u)
}
