package hold

import (
	"reflect"
	"testing"

	"github.com/keystead/keystead/owner/queue"
	"github.com/keystead/keystead/owner/reqid"
	"github.com/keystead/keystead/owner/wire"
)

const sec = int64(1_000_000_000)

var us = Session{reqid.Client{Hi: 1, Lo: 2}, 4}

func under(of Session, ttl int64) Acquire {
	return Acquire{Name: "h", Weight: 1, Capacity: 4, TTL: ttl, Session: of}
}

// TestExtend: the session of a grant prolongs it, no other does, nothing shortens it, and what
// is over is not revived.
func TestExtend(t *testing.T) {
	var s State
	var fx Effects
	at := func(first uint64) Tokens { return Tokens{first, 8} }
	a := s.Acquire(under(us, 15*sec), 0, at(1), 0, &fx)
	b := s.Acquire(under(Session{}, 15*sec), 0, at(2), 0, &fx)
	later := us
	later.Generation++
	for _, of := range []Session{{}, later, {reqid.Client{Hi: 1, Lo: 3}, 4}} {
		if s.Extend(a.Token, of, 60*sec, sec, at(3), &fx).Renewed {
			t.Errorf("%v extends what is another's", of)
		}
	}
	if s.Extend(b.Token, us, 60*sec, sec, at(3), &fx).Renewed {
		t.Error("the session extends what it does not hold")
	}
	if r := s.Extend(a.Token, us, 60*sec, 6*sec, at(3), &fx); !r.Renewed || r.Expires != 66*sec || !fx.Changed {
		t.Errorf("%+v %+v", r, fx)
	}
	if r := s.Extend(a.Token, us, 15*sec, 7*sec, at(3), &fx); !r.Renewed || r.Expires != 66*sec {
		t.Errorf("one that was held up: %+v", r)
	}
	if r := s.Renew(a.Token, 15*sec, 7*sec, at(3), &fx); !r.Renewed || r.Expires != 66*sec {
		t.Errorf("a renewal that was held up: %+v", r)
	}
	if r := s.Renew(b.Token, sec, 7*sec, at(3), &fx); !r.Renewed || r.Expires != 8*sec {
		t.Errorf("without a session: %+v", r)
	}
	if s.Extend(a.Token, us, 15*sec, 66*sec, at(3), &fx).Renewed || fx.Lapsed != 2 {
		t.Errorf("what is over is extended: %+v", fx)
	}
	if err := s.Valid(); err != nil {
		t.Error(err)
	}
}

// TestSessionOfAMember: it is written behind what a member had before there were sessions, of
// which not a byte changes. A place knows the client of its session by its caller.
func TestSessionOfAMember(t *testing.T) {
	h := Holder{Name: "h", Token: 7, Weight: 1, Since: 2 * sec, Expires: 17 * sec}
	q := Waiter{Caller: queue.Caller{ID: reqid.ID{Client: us.Client, Sequence: 1}}, Request: Request{Name: "h", Weight: 1, TTL: 15 * sec}, Since: sec, GiveUp: 9 * sec}
	var bare, with, bareAt, withAt wire.Writer
	AppendHolder(&bare, &h, 3*sec)
	AppendWaiter(&bareAt, &q, 3*sec)
	h.Session, q.Request.Session = us, us
	AppendHolder(&with, &h, 3*sec)
	AppendWaiter(&withAt, &q, 3*sec)
	if n := len(bare.B); string(with.B[:n]) != string(bare.B) || len(with.B) != n+1+16+1 {
		t.Errorf("%x, and with a session %x", bare.B, with.B)
	}
	if n := len(bareAt.B); string(withAt.B[:n]) != string(bareAt.B) || len(withAt.B) != n+1+1 {
		t.Errorf("%x, and with a session %x", bareAt.B, withAt.B)
	}
	r, rAt := wire.Reader{B: with.B}, wire.Reader{B: withAt.B}
	if back := ReadHolder(&r, 7, 3*sec); !r.Ends() || !reflect.DeepEqual(back, h) {
		t.Errorf("%+v, not %+v", back, h)
	}
	if back := ReadWaiter(&rAt, q.Caller, 3*sec); !rAt.Ends() || !reflect.DeepEqual(back, q) {
		t.Errorf("%+v, not %+v", back, q)
	}
	for i := len(bare.B) + 1; i < len(with.B); i++ {
		if r := (wire.Reader{B: with.B[:i]}); ReadHolder(&r, 7, 3*sec).Session.Given() || !r.Bad {
			t.Errorf("%d of %d bytes are read", i, len(with.B))
		}
	}
	for _, wrong := range []string{"\x03", "\x01", "\x01\x00", "\x02\x02", "\x02\x01\x01"} {
		r, rAt := wire.Reader{B: append(bare.B[:len(bare.B):len(bare.B)], wrong...)}, wire.Reader{B: append(bareAt.B[:len(bareAt.B):len(bareAt.B)], wrong...)}
		if ReadHolder(&r, 7, 3*sec); r.Ends() {
			t.Errorf("a holder with %q behind it is read", wrong)
		}
		if ReadWaiter(&rAt, q.Caller, 3*sec); rAt.Ends() {
			t.Errorf("a place with %q behind it is read", wrong)
		}
	}
	for _, of := range []Session{{}, us} { // a ticket stands behind it, and behind places alone
		q.Request.Session, q.Kept = of, true
		var kept wire.Writer
		AppendWaiter(&kept, &q, 3*sec)
		r := wire.Reader{B: kept.B}
		if back := ReadWaiter(&r, q.Caller, 3*sec); !r.Ends() || !reflect.DeepEqual(back, q) {
			t.Errorf("%+v, not %+v", back, q)
		}
	}
	if r := (wire.Reader{B: append(bare.B[:len(bare.B):len(bare.B)], withTicket)}); ReadHolder(&r, 7, 3*sec).Token == 0 || r.Ends() {
		t.Error("a holder with a ticket is read")
	}
	h.Session.Generation = 0
	if h.valid(3*sec) == nil {
		t.Error("a session without a generation is valid")
	}
}
