package hold

import (
	"bytes"
	"fmt"
	"math"
	"strings"
	"time"
	"unsafe"

	"github.com/keystead/keystead/owner/queue"
)

// Holding is a grant as it is: in force, or over while its delay runs. Token 0 = none.
type Holding struct {
	Name     string
	Token    uint64
	Weight   uint32
	Age      int64 // ns since the grant
	Left     int64 // ns until it is over without a renewal; 0 = it is over
	Blocked  int64 // … until its room is free, once it is over
	Waited   int64 // ns that the holder had been in the queue
	Delay    int64
	Metadata []byte
	Session  Session
}

// Find returns the grant with this token if it is in force. See the package doc on reads.
func (s *State) Find(token uint64, now int64) Holding {
	if h := s.holds(token, now); h != nil {
		return h.holding(s.clamp(now))
	}
	return Holding{}
}

// First returns the first grant in force, by token; the zero Holding if there is none. See the
// package doc on reads.
func (s *State) First(now int64) Holding {
	now = s.clamp(now)
	for i := range s.Holders {
		if h := &s.Holders[i]; !h.Ended && now < h.Expires {
			return h.holding(now)
		}
	}
	return Holding{}
}

func (h *Holder) holding(now int64) Holding {
	v := Holding{
		Name: h.Name, Token: h.Token, Weight: h.Weight, Age: now - h.Since, Waited: h.Waited,
		Delay: h.Delay, Metadata: h.Metadata, Session: h.Session,
	}
	if v.Left = h.Expires - now; h.Ended || v.Left <= 0 {
		v.Left, v.Blocked = 0, max(h.Expires+h.Delay-now, 0)
	}
	return v
}

// gone reports whether time has freed the room of a holder, whether or not a step has.
func (h *Holder) gone(now int64) bool { return now >= h.Expires+h.Delay }

// Held returns the weight of the grants that are in force, and of those whose delay runs.
// See the package doc on reads.
func (s *State) Held(now int64) (held, blocked uint64) {
	now = s.clamp(now)
	for i := range s.Holders {
		switch h := &s.Holders[i]; {
		case h.gone(now):
		case h.Ended || now >= h.Expires:
			blocked += uint64(h.Weight)
		default:
			held += uint64(h.Weight)
		}
	}
	return held, blocked
}

// Grants returns the first of the grants that are in force, by token and at most limit, how many
// there are, and their weight. See the package doc on reads.
func (s *State) Grants(now int64, limit int) (first []Holding, n int, held uint64) {
	now = s.clamp(now)
	first = make([]Holding, 0, min(len(s.Holders), limit))
	for i := range s.Holders {
		if h := &s.Holders[i]; !h.Ended && now < h.Expires {
			if n++; n <= limit {
				first = append(first, h.holding(now))
			}
			held += uint64(h.Weight)
		}
	}
	return first, n, held
}

// Ends returns the moment at which the first of the grants ends, if time alone does it; false if
// none is in force. A watcher looks again then.
func (s *State) Ends() (at int64, ok bool) {
	at = math.MaxInt64
	for i := range s.Holders {
		if h := &s.Holders[i]; !h.Ended {
			at, ok = min(at, h.Expires), true
		}
	}
	return at, ok
}

// vacant reports whether nobody holds anything, and no delay runs.
func (s *State) vacant(now int64) bool {
	for i := range s.Holders {
		if !s.Holders[i].gone(now) {
			return false
		}
	}
	return true
}

// Over reports whether nothing is left to wait for: nobody holds anything, and the time of
// all waiters is over, whether or not a step has removed them.
func (s *State) Over(now int64) bool {
	now = s.clamp(now)
	if s.Fixed || !s.vacant(now) {
		return false
	}
	for _, p := range s.Queue.All() {
		if !s.Queue.OverAt(p, now) {
			return false
		}
	}
	return true
}

// Absent reports whether the object equals one that never was: nobody holds anything, or
// not any more, nobody waits, and no capacity was set.
func (s *State) Absent(now int64) bool {
	return !s.Fixed && s.Queue.Len() == 0 && s.vacant(s.clamp(now))
}

// View is an object as it is.
type View struct {
	Capacity uint32
	Fixed    bool
	Held     uint64    // weight of the grants that are in force
	Blocked  uint64    // … of those that are over, while their delay runs
	Holders  int       // how many there are, in all
	Longest  []Holding // the first of them, by token
	Waiting  int       // how many wait
	First    []Place   // the first of them, in order
}

// Place is a waiter as Inspect returns it.
type Place struct {
	Ticket uint64
	Name   string
	Weight uint32
	Waited int64 // ns in the queue so far
	Left   int64 // ns until it gives up
}

// Inspect returns the object with the first of its holders and of its waiters, at most limit
// each. See the package doc on reads.
func (s *State) Inspect(now int64, limit int) View {
	now = s.clamp(now)
	v := View{Capacity: s.Capacity, Fixed: s.Fixed}
	v.Held, v.Blocked = s.Held(now)
	for i := range s.Holders {
		h := &s.Holders[i]
		if h.gone(now) {
			continue
		}
		if v.Holders++; v.Holders <= limit {
			v.Longest = append(v.Longest, h.holding(now))
		}
	}
	v.Waiting = s.Queue.Waiting(now)
	for _, w := range s.Queue.All() {
		if len(v.First) == min(limit, v.Waiting) {
			break
		}
		if !s.Queue.OverAt(w, now) {
			v.First = append(v.First, Place{Ticket: w.Ticket, Name: w.Request.Name, Weight: w.Request.Weight, Waited: now - w.Since, Left: w.GiveUp - now})
		}
	}
	return v
}

// describeMost bounds what Describe lists.
const describeMost = 20

// Describe prints the object for people: a line for the capacity, one for each of the first
// holders and of the first waiters.
func (s *State) Describe(now int64) string {
	var b strings.Builder
	v := s.Inspect(now, describeMost)
	fmt.Fprintf(&b, "%d of %d held", v.Held, v.Capacity)
	if v.Fixed {
		b.WriteString(" (set)")
	}
	if v.Blocked > 0 {
		fmt.Fprintf(&b, ", %d kept", v.Blocked)
	}
	for _, h := range v.Longest {
		fmt.Fprintf(&b, "\n  token %d: %s, %d for %v, ", h.Token, h.Name, h.Weight, time.Duration(h.Age))
		if h.Left > 0 {
			fmt.Fprintf(&b, "%v left", time.Duration(h.Left))
		} else {
			fmt.Fprintf(&b, "over, kept for %v", time.Duration(h.Blocked))
		}
		if len(h.Metadata) > 0 {
			fmt.Fprintf(&b, ", %q", h.Metadata)
		}
	}
	for i, q := range v.First {
		fmt.Fprintf(&b, "\n  %d. %s wants %d, ticket %d, has waited %v, gives up in %v", i+1, q.Name, q.Weight, q.Ticket, time.Duration(q.Waited), time.Duration(q.Left))
	}
	if rest := v.Holders - len(v.Longest) + v.Waiting - len(v.First); rest > 0 {
		fmt.Fprintf(&b, "\n  and %d more", rest)
	}
	return b.String()
}

// Clone returns a copy that shares nothing with s.
func (s *State) Clone() State {
	c := *s
	c.Holders = append([]Holder(nil), s.Holders...)
	for i := range c.Holders {
		c.Holders[i].Metadata = bytes.Clone(c.Holders[i].Metadata)
	}
	if s.over != nil {
		c.over = &ended{s.over.capacity, append([]uint64(nil), s.over.tokens...), s.over.floor}
	}
	c.Queue = s.Queue.Clone()
	for _, p := range c.Queue.All() { // it is nobody else's yet
		p.Request.Metadata = bytes.Clone(p.Request.Metadata)
	}
	return c
}

// Count makes what follows from Holders so: call it when they were set from outside.
func (s *State) Count() {
	s.used, s.due, s.text = 0, math.MaxInt64, 0
	for i := range s.Holders {
		s.used += uint64(s.Holders[i].Weight)
		s.due = min(s.due, s.Holders[i].frees())
		s.text += s.Holders[i].size()
	}
}

// Bytes returns how many bytes the state refers to, beside the text of its places.
func (s *State) Bytes() int {
	return s.text + cap(s.Holders)*int(unsafe.Sizeof(Holder{})) + s.Queue.Bytes()
}

// Holder returns the holder with a token, in force or not; nil if there is none. It is valid
// until the next change.
func (s *State) Holder(token uint64) *Holder {
	if i := s.index(token); i >= 0 {
		return &s.Holders[i]
	}
	return nil
}

// Put makes a holder of a copy what a record says, and Drop takes one out of it.
func (s *State) Put(h Holder) {
	i := s.search(h.Token)
	if i < len(s.Holders) && s.Holders[i].Token == h.Token {
		s.drop(i)
	}
	s.add(i, h)
}

// Only makes these all the holders of a copy. It does not keep the list.
func (s *State) Only(holders []Holder) {
	clear(s.Holders[min(len(holders), len(s.Holders)):])
	s.Holders = append(s.Holders[:0], holders...)
	s.Count()
}

// Drop takes the holder with a token out of a copy.
func (s *State) Drop(token uint64) {
	if i := s.index(token); i >= 0 {
		s.drop(i)
	}
}

// Due reports whether time has ended a grant, or freed the room of one, and no step has yet.
func (s *State) Due(now int64) bool { return len(s.Holders) > 0 && s.clamp(now) >= s.due }

// Vacant reports whether nobody is recorded as a holder or a waiter, and no capacity is set.
func (s *State) Vacant() bool { return len(s.Holders) == 0 && s.Queue.Len() == 0 && !s.Fixed }

// maxMoment is the largest time that a valid state contains, in ns and in either direction:
// 73 years, so that no sum or difference overflows.
const maxMoment = 1 << 61

// Valid returns which invariant a state breaks, if any. It holds after every operation; ask
// it of a state that came from elsewhere before installing it.
func (s *State) Valid() error {
	if err := s.ValidHead(); err != nil {
		return err
	}
	switch vacant := len(s.Holders) == 0 && s.Queue.Len() == 0; {
	case s.Capacity == 0 && (s.Fixed || !vacant), s.Capacity != 0 && !s.Fixed && vacant:
		return fmt.Errorf("hold: capacity %d, set %v, %d holders, %d wait", s.Capacity, s.Fixed, len(s.Holders), s.Queue.Len())
	case len(s.Holders) > MaxHolders:
		return fmt.Errorf("hold: %d holders, more than %d", len(s.Holders), MaxHolders)
	}
	last, used := uint64(0), uint64(0)
	for i := range s.Holders {
		h := &s.Holders[i]
		if h.Token <= last || h.Token > s.LastToken {
			return fmt.Errorf("hold: token %d stands behind %d, and the last one is %d", h.Token, last, s.LastToken)
		}
		if err := h.valid(s.At); err != nil {
			return fmt.Errorf("hold: of token %d, %w", h.Token, err)
		}
		last, used = h.Token, used+uint64(h.Weight)
	}
	if used != s.used {
		return fmt.Errorf("hold: %d are held, and %d are counted", used, s.used)
	}
	return s.validQueue()
}

// ValidHead is Valid of what a record says of the object beside its members.
func (s *State) ValidHead() error {
	switch {
	case !moments(s.At, s.Queue.Grace):
		return fmt.Errorf("hold: a time is out of range")
	case s.LastToken > MaxToken:
		return fmt.Errorf("hold: the last token %d is above %d", s.LastToken, uint64(MaxToken))
	case s.Capacity > MaxCapacity:
		return fmt.Errorf("hold: the capacity %d is above %d", s.Capacity, MaxCapacity)
	case s.Capacity == 0 && s.Fixed:
		return fmt.Errorf("hold: a capacity of 0 was set")
	}
	return nil
}

func (h *Holder) valid(at int64) error {
	switch {
	case !moments(h.Since, h.Expires, h.Waited) || h.Waited < 0:
		return fmt.Errorf("a time is out of range")
	case h.Since > at:
		return fmt.Errorf("it was granted after the last change")
	case h.Expires < h.Since || h.Expires-at > MaxTTL:
		return fmt.Errorf("it ends before it begins, or too late")
	}
	return Acquire{Name: h.Name, Weight: h.Weight, Delay: h.Delay, Metadata: h.Metadata, TTL: MinTTL, Session: h.Session}.Validate()
}

func (s *State) validQueue() error {
	for i, w := range s.Queue.All() {
		if err := validWaiter(w); err != nil {
			return fmt.Errorf("hold: of place %d, %w", i+1, err)
		}
		if w.Request.Weight > s.Capacity {
			return fmt.Errorf("hold: place %d waits for %d of %d", i+1, w.Request.Weight, s.Capacity)
		}
	}
	if err := s.Queue.Valid(s.At); err != nil {
		return fmt.Errorf("hold: %w", err)
	}
	return nil
}

func validWaiter(w *Waiter) error {
	if !moments(w.Since, w.GiveUp) {
		return fmt.Errorf("a time is out of range")
	}
	r := &w.Request
	return Acquire{Name: r.Name, Weight: r.Weight, Delay: r.Delay, Metadata: r.Metadata, TTL: r.TTL, Session: r.Session}.Validate()
}

// ValidMember returns what a holder or a place from elsewhere, the one that is not nil, of an
// object whose last change was at a moment, breaks alone, if anything.
func ValidMember(h *Holder, w *Waiter, at int64) error {
	if h != nil {
		if h.Token == 0 || h.Token > MaxToken {
			return fmt.Errorf("hold: token %d is none", h.Token)
		}
		return h.valid(at)
	}
	if err := validWaiter(w); err != nil {
		return err
	}
	one := queue.Queue[Request]{Places: []Waiter{*w}}
	return one.Valid(at)
}

func moments(times ...int64) bool {
	for _, t := range times {
		if t < -maxMoment || t > maxMoment {
			return false
		}
	}
	return true
}
