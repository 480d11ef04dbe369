package lock

import (
	"time"
	"unicode/utf8"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/queue"
)

// Bounds, with their reasons. Times are in nanoseconds.
const (
	MinTTL            = 10_000_000         // 10 ms: below, a lock ends while its grant travels
	MaxTTL            = 86_400_000_000_000 // 24 h: longer is a record in a database, not a lease
	MaxWait           = queue.MaxWait      // 24 h: as long as a holder may hold
	MaxHolder         = 128                // bytes: a host name, a process, a thread
	MaxMetadata       = 1024               // bytes: a note for others, not a value
	DefaultMaxWaiters = 1024               // a longer queue is a mistake more often than a wish

	// MaxToken is the greatest fencing token, so that it fits signed 64 bits in
	// whatever the lock protects.
	MaxToken = 1<<63 - 1
)

// State is one lock. The zero value is free, nobody waits: it equals a lock that
// never was.
//
// The state keeps the holder and metadata that it is given: they must not change
// afterwards.
type State struct {
	// The grant. Token is 0 when the lock is free, and so is the rest then.
	// Invariant: held ⇒ Since <= At, Since < Expires <= At + MaxTTL.
	Holder   string
	Token    uint64
	Since    int64 // moment of the grant
	Expires  int64 // moment from which the lock is no longer held
	Waited   int64 // ns that the holder had been in the queue
	Metadata []byte

	// Queue has the callers that wait.
	// Invariant: Queue.Len() > 0 ⇒ Token != 0 or Queue.Head() == nil. After a step
	// moreover: Expires and every GiveUp lie after At.
	Queue queue.Queue[Request]

	// LastToken is the greatest token granted in this state, 0 if none.
	// Invariant: held ⇒ Token == LastToken.
	LastToken uint64

	// At is the moment of the last change. Time does not run backwards: an
	// earlier `now` counts as At.
	At int64
}

// Request is what a caller in the queue asks for.
type Request struct {
	Holder   string
	TTL      int64 // ns, from the grant
	Metadata []byte
}

// Waiter is a place in the queue.
type Waiter = queue.Place[Request]

// Acquire asks for the lock.
type Acquire struct {
	Holder   string // 1 to MaxHolder bytes of UTF-8
	TTL      int64  // ns, MinTTL to MaxTTL
	Wait     int64  // ns in the queue at most, 0 to MaxWait; 0 tries once
	Metadata []byte // at most MaxMetadata bytes

	// Of the place in the queue, if it comes to that.
	Ticket uint64
	Caller queue.Caller
}

// Validate reports a field that is out of range, as a *failure.Error. State.Acquire
// expects an operation that passed it.
func (op Acquire) Validate() error {
	switch {
	case op.Holder == "":
		return failure.Invalidf("holder", "is empty")
	case len(op.Holder) > MaxHolder:
		return failure.Invalidf("holder", "has %d bytes; at most %d are allowed", len(op.Holder), MaxHolder)
	case !utf8.ValidString(op.Holder):
		return failure.Invalidf("holder", "is not valid UTF-8")
	case op.Wait < 0 || op.Wait > MaxWait:
		return failure.Invalidf("wait_ns", "is %s; choose 0 to 24h", time.Duration(op.Wait))
	case len(op.Metadata) > MaxMetadata:
		return failure.Invalidf("metadata", "has %d bytes; at most %d are allowed", len(op.Metadata), MaxMetadata)
	}
	return ValidateTTL(op.TTL)
}

// ValidateTTL reports a TTL that is out of range, as a *failure.Error. State.Renew
// expects one that passed it.
func ValidateTTL(ttl int64) error {
	if ttl < MinTTL || ttl > MaxTTL {
		return failure.Invalidf("ttl_ns", "is %s; choose 10ms to 24h", time.Duration(ttl))
	}
	return nil
}

// Effects is what a step did to others than its caller. One Effects serves many
// steps: each resets it, keeping the room of TimedOut, so that no step allocates
// for it in the long run.
type Effects struct {
	// Grant is the lock going to the head of the queue. Token 0 = it did not.
	Grant Grant
	// TimedOut are the waiters whose time to give up had come, in the order of
	// the queue. Valid until the next step with this Effects.
	TimedOut []queue.Left
	// Lapsed reports that the TTL of a grant was found to have ended.
	Lapsed bool
	// Changed reports that the step wrote to the state. Without it, the state is
	// what it was.
	Changed bool
}

func (fx *Effects) reset() {
	*fx = Effects{TimedOut: fx.TimedOut[:0]}
}

// Grant is the lock going to a waiter. If nobody is there to take it, Release it
// by its token.
type Grant struct {
	Ticket  uint64
	Caller  queue.Caller
	Token   uint64
	Waited  int64 // ns in the queue
	Expires int64 // moment from which it is no longer held
}

// Outcome is how an Acquire went.
type Outcome uint8

const (
	Refused Outcome = iota // held by another, and the caller did not want to wait
	Granted
	Queued
	QueueFull // as many wait as may
)

func (o Outcome) String() string {
	switch o {
	case Refused:
		return "refused"
	case Granted:
		return "granted"
	case Queued:
		return "queued"
	case QueueFull:
		return "queue full"
	}
	return "unknown outcome"
}

// AcquireResult answers an Acquire. State.Holding returns
// the holder of the lock if that is not the caller.
type AcquireResult struct {
	Outcome Outcome
	Token   uint64 // Granted: the fencing token, else 0
	Expires int64  // Granted: moment from which the lock is no longer held, else 0
	Place   int    // Queued: the place; Refused, QueueFull: the one it would have had. 1 is next
}

// RenewResult answers a Renew.
type RenewResult struct {
	Renewed bool
	Expires int64 // the new end, else 0
}

// ReleaseResult answers a Release.
type ReleaseResult struct {
	Released bool // the token held the lock until now
}
