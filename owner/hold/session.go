package hold

import (
	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/reqid"
	"github.com/keystead/keystead/owner/wire"
)

// Session names a client that keeps all that it holds alive together, wherever that is. The
// zero Session is none. It is no state of its own: each grant has its own lease, and says
// whose session keeps it alive.
type Session struct {
	Client     reqid.Client // of its request ids
	Generation uint64       // raised by the client whenever it begins anew
}

const (
	// MaxGeneration bounds a generation: a session anew each millisecond, for 139 years. It
	// is what a member has room for.
	MaxGeneration = 1<<42 - 1
	maxGeneration = 6 // bytes
)

// Given reports whether it is a session.
func (s Session) Given() bool { return s != Session{} }

// Validate reports a session that cannot be one, as a *failure.Error.
func (s Session) Validate() error {
	switch {
	case s.Client == reqid.Client{}:
		return failure.Invalidf("session.client", "is all zero: draw one when a process starts")
	case s.Generation < 1 || s.Generation > MaxGeneration:
		return failure.Invalidf("session.generation", "is %d; choose 1 to %d", s.Generation, uint64(MaxGeneration))
	}
	return nil
}

// validateIfGiven is Validate of what may be none.
func (s Session) validateIfGiven() error {
	if !s.Given() {
		return nil
	}
	return s.Validate()
}

// Extend is a Renew by the session of a grant. It never ends a lease sooner: a message that
// was held up says nothing about those after it.
func (s *State) Extend(token uint64, of Session, ttl, now int64, tokens Tokens, fx *Effects) (res RenewResult) {
	mustTTL(ttl)
	now = s.begin(now, fx)
	//guard:session-extends-its-own h.Session == of -> true
	if h := s.holds(token, now); h != nil && h.Session == of {
		s.extend(h, now+ttl, now, fx)
		res = RenewResult{Renewed: true, Expires: h.Expires}
	}
	s.end(now, tokens, fx)
	return res
}

// extend sets the end of a grant.
func (s *State) extend(h *Holder, until, now int64, fx *Effects) {
	//guard:session-never-shortens h.Session.Given() -> false
	if h.Session.Given() {
		until = max(until, h.Expires)
	}
	h.Expires = until
	if s.due = min(s.due, h.Expires); len(s.Holders) == 1 {
		s.due = h.Expires
	}
	fx.Holders = append(fx.Holders, h.Token)
	s.changed(now, fx)
}

// What follows a member: fields that it may have, each with its number, in rising order.
const (
	withSession = 1
	withTicket  = 2 // only behind a place
)

// appendSession writes the session of a holder, if it has one. Members without one are as they
// were before there were sessions.
func appendSession(w *wire.Writer, s Session) {
	if !s.Given() {
		return
	}
	w.Byte(withSession)
	w.Fixed64(s.Client.Hi)
	w.Fixed64(s.Client.Lo)
	w.Uint(s.Generation)
}

func readSession(r *wire.Reader) (s Session) {
	if len(r.B) == 0 {
		return s
	}
	if r.Byte() != withSession {
		r.Fail()
	}
	s.Client = reqid.Client{Hi: r.Fixed64(), Lo: r.Fixed64()}
	if s.Generation = r.Uint(MaxGeneration); r.Bad || s.Validate() != nil {
		r.Fail()
		return Session{}
	}
	return s
}

// appendGeneration is appendSession of a place, whose caller is the client of the session.
func appendGeneration(w *wire.Writer, s Session) {
	if !s.Given() {
		return
	}
	w.Byte(withSession)
	w.Uint(s.Generation)
}

func readGeneration(r *wire.Reader, client reqid.Client) (s Session) {
	if len(r.B) == 0 || r.B[0] != withSession {
		return s
	}
	r.Byte()
	s = Session{client, r.Uint(MaxGeneration)}
	if r.Bad || s.Validate() != nil {
		r.Fail()
		return Session{}
	}
	return s
}

// readTicket reports whether a place is kept while its caller is away.
func readTicket(r *wire.Reader) bool {
	if len(r.B) == 0 {
		return false
	}
	if r.Byte() != withTicket {
		r.Fail()
	}
	return !r.Bad
}
