package lock

import (
	"bytes"
	"fmt"
	"strings"
	"time"
)

// Held reports whether the lock is held. See the package doc on reads.
func (s *State) Held(now int64) bool {
	return s.Token != 0 && s.clamp(now) < s.Expires
}

// Over reports whether nothing is left to wait for: nobody holds the lock, and the
// time of all waiters is over, whether or not a step has removed them.
func (s *State) Over(now int64) bool {
	if s.Held(now) {
		return false
	}
	now = s.clamp(now)
	for i := range s.Queue.Places {
		if !s.Queue.Over(i, now) {
			return false
		}
	}
	return true
}

// Absent reports whether the lock equals one that never was: nobody holds it, or
// not any more, and nobody waits.
func (s *State) Absent(now int64) bool {
	return s.Queue.Len() == 0 && !s.Held(now)
}

// Holding is a grant that is in force. Token 0 = nobody holds the lock.
type Holding struct {
	Holder   string
	Token    uint64
	Age      int64 // ns since the grant
	Left     int64 // ns until the lock is free without a renewal
	Waited   int64 // ns that the holder had been in the queue
	Metadata []byte
}

// Holding returns the grant that is in force. See the package doc on reads.
func (s *State) Holding(now int64) Holding {
	if !s.Held(now) {
		return Holding{}
	}
	now = s.clamp(now)
	return Holding{
		Holder: s.Holder, Token: s.Token, Age: now - s.Since, Left: s.Expires - now,
		Waited: s.Waited, Metadata: s.Metadata,
	}
}

// View is a lock as it is.
type View struct {
	Holding Holding
	Waiting int     // how many wait
	First   []Place // the first of them, in order
}

// Place is a waiter as Inspect returns it.
type Place struct {
	Ticket uint64
	Holder string
	Waited int64 // ns in the queue so far
	Left   int64 // ns until it gives up
}

// Inspect returns the lock and the first of its waiters, at most limit. See the
// package doc on reads.
func (s *State) Inspect(now int64, limit int) View {
	now = s.clamp(now)
	v := View{Holding: s.Holding(now)}
	for i := range s.Queue.Places {
		w := &s.Queue.Places[i]
		if s.Queue.Over(i, now) {
			continue
		}
		v.Waiting++
		if v.Waiting > limit {
			continue
		}
		if v.First == nil {
			v.First = make([]Place, 0, min(limit, s.Queue.Len()-i))
		}
		v.First = append(v.First, Place{Ticket: w.Ticket, Holder: w.Request.Holder, Waited: now - w.Since, Left: w.GiveUp - now})
	}
	return v
}

// describeWaiters bounds what Describe lists.
const describeWaiters = 20

// Describe prints the lock for people, a line for the holder and one for each
// of the first waiters.
func (s *State) Describe(now int64) string {
	var b strings.Builder
	v := s.Inspect(now, describeWaiters)
	if h := v.Holding; s.Token == 0 && v.Waiting > 0 {
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

// Clone returns a copy that shares nothing with s.
func (s *State) Clone() State {
	c := *s
	c.Metadata = bytes.Clone(s.Metadata)
	c.Queue = s.Queue.Clone()
	for i := range c.Queue.Places {
		r := &c.Queue.Places[i].Request
		r.Metadata = bytes.Clone(r.Metadata)
	}
	return c
}

// maxMoment is the largest time that a valid state contains, in ns and in either
// direction (a grant may be older than the clock of the node that it came to):
// 73 years, so that no sum or difference overflows.
const maxMoment = 1 << 61

// Valid returns which invariant a state breaks, if any. It holds after every
// operation; ask it of a state that came from elsewhere before installing it.
func (s *State) Valid() error {
	if !moments(s.At, s.Since, s.Expires, s.Waited, s.Queue.Grace) || s.Waited < 0 {
		return fmt.Errorf("lock: a time is out of range")
	}
	if s.LastToken > MaxToken {
		return fmt.Errorf("lock: the last token %d is above %d", s.LastToken, uint64(MaxToken))
	}
	if s.Token == 0 {
		if s.Holder != "" || len(s.Metadata) != 0 || s.Since != 0 || s.Expires != 0 || s.Waited != 0 {
			return fmt.Errorf("lock: free, but something is left of a grant")
		}
		if s.Queue.Head() != nil {
			return fmt.Errorf("lock: free, but %d wait", s.Queue.Len())
		}
		return s.validQueue()
	}
	switch {
	case s.Token != s.LastToken:
		return fmt.Errorf("lock: held under token %d, but the last token is %d", s.Token, s.LastToken)
	case s.Since > s.At:
		return fmt.Errorf("lock: granted after the last change")
	case s.Expires <= s.Since || s.Expires-s.At > MaxTTL:
		return fmt.Errorf("lock: the grant ends before it begins, or too late")
	}
	if err := (Acquire{Holder: s.Holder, Metadata: s.Metadata, TTL: MinTTL}).Validate(); err != nil {
		return fmt.Errorf("lock: of the grant, %w", err)
	}
	return s.validQueue()
}

func (s *State) validQueue() error {
	for i := range s.Queue.Places {
		w := &s.Queue.Places[i]
		if err := (Acquire{Holder: w.Request.Holder, Metadata: w.Request.Metadata, TTL: w.Request.TTL}).Validate(); err != nil {
			return fmt.Errorf("lock: of place %d, %w", i+1, err)
		}
		if !moments(w.Since, w.GiveUp) {
			return fmt.Errorf("lock: a time of place %d is out of range", i+1)
		}
	}
	if err := s.Queue.Valid(s.At); err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	return nil
}

func moments(times ...int64) bool {
	for _, t := range times {
		if t < -maxMoment || t > maxMoment {
			return false
		}
	}
	return true
}
