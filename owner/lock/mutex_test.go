package lock

import (
	"fmt"
	"strings"
	"time"

	"github.com/keystead/keystead/owner/hold"
	"github.com/keystead/keystead/owner/queue"
)

// The tests of this package are those of a lock that nobody shares: package hold in the numbers of
// a lock, and in the words of one. A step has one token, and grants at most once.

const (
	MinTTL            = hold.MinTTL
	MaxTTL            = hold.MaxTTL
	MaxWait           = hold.MaxWait
	MaxHolder         = hold.MaxName
	MaxMetadata       = hold.MaxMetadata
	MaxToken          = hold.MaxToken
	DefaultMaxWaiters = 1024

	Refused   = hold.Refused
	Granted   = hold.Granted
	Queued    = hold.Queued
	QueueFull = hold.QueueFull

	maxMoment       = 1 << 61
	describeWaiters = 20
)

type (
	State   struct{ hold.State }
	Waiter  = hold.Waiter
	Request = hold.Request
	Acquire struct {
		Holder    string
		TTL, Wait int64
		Metadata  []byte
		Ticket    uint64
		Caller    queue.Caller
	}
	AcquireResult struct {
		Outcome hold.Outcome
		Token   uint64
		Expires int64
		Place   int
	}
	RenewResult struct {
		Renewed bool
		Expires int64
	}
	ReleaseResult struct{ Released bool }
	Reclaim       struct {
		Token    uint64
		Holder   string
		Metadata []byte
		Left     int64
	}
	ReclaimResult struct {
		Reclaimed bool
		Expires   int64
		Revoked   uint64 // the token of the grant that was in force until now
	}
	Grant   = hold.Grant
	Effects struct {
		Grant           Grant
		TimedOut        []queue.Left
		Lapsed, Changed bool

		of hold.Effects
	}
	Holding struct {
		Holder            string
		Token             uint64
		Age, Left, Waited int64
		Metadata          []byte
	}
	Place struct {
		Ticket       uint64
		Holder       string
		Waited, Left int64
	}
	View struct {
		Holding Holding
		Waiting int
		First   []Place
	}
)

func (op Acquire) hold() hold.Acquire {
	return hold.Acquire{Name: op.Holder, Weight: All, Capacity: All, TTL: op.TTL, Wait: op.Wait, Metadata: op.Metadata, Ticket: op.Ticket, Caller: op.Caller}
}

func (op Acquire) Validate() error { return op.hold().Validate() }

func (op Reclaim) hold() hold.Reclaim {
	return hold.Reclaim{Token: op.Token, Name: op.Holder, Weight: All, Capacity: All, Metadata: op.Metadata, Left: op.Left, Alone: true}
}

func (op Reclaim) Validate() error { return op.hold().Validate() }

func (fx *Effects) reset() { fx.of.Reset(); fx.took() }

func (fx *Effects) took() {
	fx.Grant, fx.TimedOut, fx.Lapsed, fx.Changed = Grant{}, fx.of.TimedOut, fx.of.Lapsed > 0, fx.of.Changed
	if len(fx.of.Grants) > 0 {
		fx.Grant = fx.of.Grants[0]
	}
	if len(fx.of.Grants) > 1 || fx.of.Lapsed > 1 || len(fx.of.TooLarge) > 0 {
		panic(fmt.Sprintf("a lock is no semaphore: %+v", fx.of))
	}
}

// held returns the grant, the zero Holder if there is none.
func (s *State) held() *hold.Holder {
	if len(s.Holders) == 0 {
		return &hold.Holder{}
	}
	return &s.Holders[0]
}

func (s *State) Acquire(op Acquire, now int64, token uint64, maxWaiters int, fx *Effects) AcquireResult {
	defer fx.took()
	res := s.State.Acquire(op.hold(), now, hold.Tokens{First: token, Count: 2}, maxWaiters, &fx.of)
	return AcquireResult{res.Outcome, res.Token, res.Expires, res.Place}
}

func one(token uint64) hold.Tokens { return hold.Tokens{First: token, Count: 1} }

func (s *State) Renew(token uint64, ttl, now int64, next uint64, fx *Effects) RenewResult {
	defer fx.took()
	return RenewResult(s.State.Renew(token, ttl, now, one(next), &fx.of))
}

func (s *State) Release(token uint64, now int64, next uint64, fx *Effects) ReleaseResult {
	defer fx.took()
	return ReleaseResult{s.State.Release(token, now, one(next), &fx.of)}
}

func (s *State) Expire(now int64, next uint64, fx *Effects) {
	defer fx.took()
	s.State.Expire(now, one(next), &fx.of)
}

// Reclaim lets time pass before: nobody does in the grace, when claims come.
func (s *State) Reclaim(op Reclaim, now int64, next uint64, fx *Effects) ReclaimResult {
	if err := op.Validate(); err != nil {
		panic(fmt.Sprintf("lock: a claim was not validated: %v", err))
	}
	s.Expire(now, next, fx)
	before, was := *fx, s.held().Token
	var claimed hold.Effects
	res := s.State.Reclaim(op.hold(), now, &claimed)
	if len(claimed.Grants)+len(claimed.TimedOut)+claimed.Lapsed > 0 || claimed.Changed != res.Reclaimed {
		panic(fmt.Sprintf("a claim did more: %+v", claimed))
	}
	*fx = before
	fx.Changed = before.Changed || claimed.Changed
	if !res.Reclaimed {
		was = 0
	}
	return ReclaimResult{res.Reclaimed, res.Expires, was}
}

func (s *State) Held(now int64) bool { return s.First(now).Token != 0 }

func (s *State) Holding(now int64) Holding {
	h := s.First(now)
	return Holding{h.Name, h.Token, h.Age, h.Left, h.Waited, h.Metadata}
}

func (s *State) Clone() State { return State{s.State.Clone()} }

// told is what records say of a lock.
type told struct {
	At       int64
	Last     uint64
	Capacity uint32
	Holders  []hold.Holder
	Queue    queue.Queue[Request]
}

func (s *State) told() told {
	c := s.Clone()
	return told{c.At, c.LastToken, c.Capacity, c.Holders, c.Queue}
}

// Valid is that of a lock that nobody shares.
func (s *State) Valid() error {
	if h := s.held(); len(s.Holders) > 1 || h.Token != 0 && h.Weight != All {
		return fmt.Errorf("lock: %d have it, the first %d", len(s.Holders), h.Weight)
	} else if h.Token != 0 && h.Token != s.LastToken {
		return fmt.Errorf("lock: held under token %d, but the last token is %d", h.Token, s.LastToken)
	} else if h.Token == 0 && s.Queue.Head() != nil {
		return fmt.Errorf("lock: free, but %d wait", s.Queue.Len())
	}
	return s.State.Valid()
}

func (s *State) Inspect(now int64, limit int) View {
	all := s.State.Inspect(now, limit)
	v := View{Holding: s.Holding(now), Waiting: all.Waiting}
	for _, p := range all.First {
		v.First = append(v.First, Place{p.Ticket, p.Name, p.Waited, p.Left})
	}
	return v
}

// Describe prints the lock, a line for the holder and one for each of the first waiters.
func (s *State) Describe(now int64) string {
	var b strings.Builder
	v := s.Inspect(now, describeWaiters)
	if h := v.Holding; len(s.Holders) == 0 && v.Waiting > 0 {
		b.WriteString("kept for the head of the queue")
	} else if h.Token == 0 {
		b.WriteString("free")
	} else {
		fmt.Fprintf(&b, "held by %s, token %d, for %v, %v left", h.Holder, h.Token, time.Duration(h.Age), time.Duration(h.Left))
	}
	for i, q := range v.First {
		fmt.Fprintf(&b, "\n  %d. %s, ticket %d, has waited %v, gives up in %v", i+1, q.Holder, q.Ticket, time.Duration(q.Waited), time.Duration(q.Left))
	}
	if rest := v.Waiting - len(v.First); rest > 0 {
		fmt.Fprintf(&b, "\n  and %d more", rest)
	}
	return b.String()
}
