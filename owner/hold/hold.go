package hold

import (
	"slices"
	"time"
	"unicode/utf8"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/queue"
)

// Bounds, with their reasons. Times are in nanoseconds.
const (
	MinTTL      = 10_000_000         // 10 ms: below, a lease ends while its grant travels
	MaxTTL      = 86_400_000_000_000 // 24 h: longer is a record in a database, not a lease
	MaxWait     = queue.MaxWait      // 24 h: as long as a holder may hold
	MaxName     = 128                // bytes of the name of a holder: a host name, a process, a thread
	MaxMetadata = 1024               // bytes: a note for others, not a value
	// MaxToken is the greatest fencing token, so that it fits signed 64 bits in whatever it
	// protects.
	MaxToken    = 1<<63 - 1
	MaxDelay    = 60_000_000_000 // 1 min: what is not over by then is not late but broken
	MaxCapacity = 1 << 20        // what counts further is a limit or a counter
	// MaxHolders bounds the grants that are in force or whose delay runs: a record of the
	// whole object has all of them, beside the queue.
	MaxHolders = 500
	// keepLeft is the room for waiters that have left that an Effects keeps.
	keepLeft = 2 * queue.MaxExpire
	// MaxGrants bounds what a step grants: some microseconds.
	MaxGrants = 32
)

// State is what is held of one object. The zero value equals one that never was.
//
// The state keeps names and metadata that it is given: they must not change afterwards.
type State struct {
	// Capacity is the sum of the weights that may be held; 0 = nobody has said yet.
	// Invariant: somebody holds or waits, or Fixed ⇔ Capacity > 0.
	Capacity uint32
	// Fixed says that the capacity is what SetCapacity said, and stays when nobody holds.
	Fixed bool

	// Holders are the grants, by token.
	// Invariant: tokens rise, and none is above LastToken.
	Holders []Holder

	// Queue has the callers that wait. None asks for more than the capacity.
	Queue queue.Queue[Request]

	// LastToken is the greatest token that was granted or claimed in this state; 0 if none.
	LastToken uint64

	// At is the moment of the last change. Time does not run backwards: an earlier `now`
	// counts as At.
	At int64

	// used is the sum of the holders' weights, due a moment before which time changes none
	// of them. They follow from Holders.
	used uint64
	due  int64
	text int // bytes that the holders refer to

	over *ended // nil if no claim was accepted since the last grant
}

// Holder is a grant.
type Holder struct {
	Name     string
	Token    uint64
	Weight   uint32
	Since    int64 // moment of the grant
	Expires  int64 // moment from which it is no longer held
	Waited   int64 // ns that its holder had been in the queue
	Delay    int64 // ns after an unclean end for which its room is kept
	Metadata []byte
	Session  Session // that keeps it alive; zero = its holder does
	Ended    bool    // uncleanly: its Delay runs
	// Told says that a retry has heard of the grant, so that it is the retry's: the caller
	// that left does not give it back. It is true in one process only.
	Told bool
}

// size returns how many bytes a holder refers to.
func (h *Holder) size() int { return len(h.Name) + cap(h.Metadata) }

// frees returns the moment at which time frees the room of a holder, or ends its grant.
func (h *Holder) frees() int64 {
	if h.Ended {
		return h.Expires + h.Delay
	}
	return h.Expires
}

// Request is what a caller in the queue asks for.
type Request struct {
	Name     string
	Weight   uint32
	TTL      int64 // ns, from the grant
	Delay    int64
	Metadata []byte
	Session  Session
}

// Waiter is a place in the queue.
type Waiter = queue.Place[Request]

// Tokens are candidates for the grants of a step: from First on, each by one.
type Tokens struct {
	First uint64
	Count int // 1 or more
}

// Acquire asks for a grant.
type Acquire struct {
	Name     string  // 1 to MaxName bytes of UTF-8
	Weight   uint32  // 1 to MaxCapacity
	Capacity uint32  // of the object, 1 to MaxCapacity; 0 = what it has
	TTL      int64   // ns, MinTTL to MaxTTL
	Wait     int64   // ns in the queue at most, 0 to MaxWait; 0 tries once
	Delay    int64   // ns for which the room is kept after an unclean end, 0 to MaxDelay, in whole ms
	Metadata []byte  // at most MaxMetadata bytes
	Session  Session // that keeps the grant alive; zero = none
	// Keep is a ticket: ns for which the place stands when Wait is over or the caller is gone, MinTTL
	// to MaxWait less Wait; 0 = it goes with the caller. See State.call.
	Keep int64

	// Unique says that a name has one grant: another of its name ends for this one, in the same
	// step. Such an object has no queue.
	Unique bool
	// After is the token of the last grant that the caller had under its name, 0 if it had none:
	// if the name has a later one, that stays, and this is refused. It goes with Unique.
	After uint64
	// Amid says that claims are still accepted: what has ended stays known.
	Amid bool

	// Of the place in the queue, if it comes to that.
	Ticket uint64
	Caller queue.Caller
}

// delayUnit is what a delay is a multiple of.
const delayUnit = 1_000_000

// Validate reports a field that is out of range, as a *failure.Error. State.Acquire
// expects an operation that passed it.
func (op Acquire) Validate() error {
	switch {
	case op.Name == "":
		return failure.Invalidf("holder", "is empty")
	case len(op.Name) > MaxName:
		return failure.Invalidf("holder", "has %d bytes; at most %d are allowed", len(op.Name), MaxName)
	case !utf8.ValidString(op.Name):
		return failure.Invalidf("holder", "is not valid UTF-8")
	case op.Capacity > MaxCapacity:
		return failure.Invalidf("capacity", "is %d; at most %d is allowed", op.Capacity, MaxCapacity)
	case op.Weight < 1 || op.Weight > MaxCapacity:
		return failure.Invalidf("permits", "are %d; choose 1 to %d", op.Weight, MaxCapacity)
	case op.Capacity != 0 && op.Weight > op.Capacity:
		return failure.Invalidf("permits", "are %d, more than the capacity, %d: they would never be granted", op.Weight, op.Capacity)
	case op.Wait < 0 || op.Wait > MaxWait:
		return failure.Invalidf("wait_ns", "is %s; choose 0 to 24h", time.Duration(op.Wait))
	case op.Keep != 0 && (op.Keep < MinTTL || op.Keep > MaxWait):
		return failure.Invalidf("ticket_ttl_ns", "is %s; choose 10ms to 24h", time.Duration(op.Keep))
	case op.Wait+op.Keep > MaxWait:
		return failure.Invalidf("ticket_ttl_ns", "and wait_ns are %s; together they may be 24h", time.Duration(op.Wait+op.Keep))
	case op.Delay < 0 || op.Delay > MaxDelay || op.Delay%delayUnit != 0:
		return failure.Invalidf("delay_ns", "is %s; choose 0 to 1m, in whole milliseconds", time.Duration(op.Delay))
	}
	if err := ValidateMetadata(op.Metadata); err != nil {
		return err
	}
	if err := ValidateTTL(op.TTL); err != nil {
		return err
	}
	return op.Session.validateIfGiven()
}

// ValidateTTL reports a TTL that is out of range, as a *failure.Error. State.Renew expects one
// that passed it.
func ValidateTTL(ttl int64) error {
	if ttl < MinTTL || ttl > MaxTTL {
		return failure.Invalidf("ttl_ns", "is %s; choose 10ms to 24h", time.Duration(ttl))
	}
	return nil
}

// ValidateMetadata reports metadata that are too long, as a *failure.Error.
func ValidateMetadata(b []byte) error {
	if len(b) > MaxMetadata {
		return failure.Invalidf("metadata", "has %d bytes; at most %d are allowed", len(b), MaxMetadata)
	}
	return nil
}

// ValidateCapacity reports a capacity that SetCapacity does not take, as a *failure.Error.
func ValidateCapacity(n uint32) error {
	if n > MaxCapacity {
		return failure.Invalidf("capacity", "is %d; choose 1 to %d, or 0 to leave it to the next Acquire", n, MaxCapacity)
	}
	return nil
}

// Effects is what a step did to others than its caller. One Effects serves many steps: each
// resets it, keeping its room, so that no step allocates for it in the long run. Lists are
// valid until the next step with this Effects.
type Effects struct {
	// Grants went to the queue, in its order.
	Grants []Grant
	// TimedOut are the waiters whose time to give up had come, in the order of the queue.
	TimedOut []queue.Left
	// TooLarge are waiters for more than the capacity is by now.
	TooLarge []queue.Left
	// Holders are the tokens of the holders that have come, changed, or gone.
	Holders []uint64
	// Called is the ticket of a place whose turn it is while its caller is away, 0 if none: it gives up
	// sooner than before.
	Called uint64
	// Lapsed is how many grants were found to have ended by their TTL.
	Lapsed int
	// Changed reports that the step wrote to the state. Without it, the state is what it
	// was.
	Changed bool
	// News reports that the grants that are in force are others than before, or have other
	// weights or metadata, or that another capacity was set: what is worth telling to watchers. A
	// renewal is not.
	News bool
}

// Reset empties it and keeps its room.
func (fx *Effects) Reset() {
	fx.Grants, fx.TimedOut, fx.TooLarge, fx.Holders = fx.Grants[:0], fx.TimedOut[:0], fx.TooLarge[:0], fx.Holders[:0]
	fx.Called, fx.Lapsed, fx.Changed, fx.News = 0, 0, false, false
	if cap(fx.TooLarge) > keepLeft {
		fx.TooLarge = nil
	}
}

// tell adds a token to Holders, once.
func (fx *Effects) tell(token uint64) {
	if !slices.Contains(fx.Holders, token) {
		fx.Holders = append(fx.Holders, token)
	}
}

// Grant is one to a waiter. If nobody is there to take it, Release it by its token.
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
	Refused Outcome = iota // it does not fit or others wait, and the caller did not want to wait
	Granted
	Queued
	QueueFull       // as many wait as may
	CapacityDiffers // the object has another capacity than the caller says
	NoCapacity      // the object has none, and the caller does not say one
	TooLarge        // the caller asks for more than the capacity
)

func (o Outcome) String() string {
	names := [...]string{"refused", "granted", "queued", "queue full", "capacity differs", "no capacity", "too large"}
	if int(o) < len(names) {
		return names[o]
	}
	return "unknown outcome"
}

// AcquireResult answers an Acquire.
type AcquireResult struct {
	Outcome  Outcome
	Capacity uint32 // of the object as it is now; 0 if nobody has said
	Token    uint64 // Granted: the fencing token, else 0
	Expires  int64  // Granted: moment from which it is no longer held, else 0
	Later    uint64 // Refused: the token of the later grant of the name that stays, else 0
	Place    int    // Queued: the place; Refused, QueueFull: the one it would have had. 1 is next
}

// RenewResult answers a Renew.
type RenewResult struct {
	Renewed bool
	Expires int64 // the new end, else 0
}

// DowngradeResult answers a Downgrade.
type DowngradeResult struct {
	Held   bool   // the token holds something
	Weight uint32 // as it is now
}
