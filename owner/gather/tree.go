package gather

import (
	"errors"
	"unicode/utf8"

	"github.com/keystead/keystead/internal/failure"
)

const (
	maxParentKey  = 512 // bytes
	maxParentName = 128
)

// Parent is a phaser of which another one is a party. The zero Parent is none.
type Parent struct {
	Key, Name string // of the parent
	Party     string // the id that the child has there
}

// Given reports whether it is one.
func (p Parent) Given() bool { return p.Key != "" }

// Validate reports a parent that cannot be one, as a *failure.Error.
func (p Parent) Validate() error {
	switch {
	case !p.Given():
		return nil
	case len(p.Key) > maxParentKey || len(p.Name) > maxParentName || p.Name == "":
		return failure.Invalidf("parent", "has a key of %d bytes and a name of %d; a key has 1 to %d and a name 1 to %d", len(p.Key), len(p.Name), maxParentKey, maxParentName)
	case !utf8.ValidString(p.Key) || !utf8.ValidString(p.Name):
		return failure.Invalidf("parent", "is not valid UTF-8")
	case ValidateName(p.Party) != nil:
		return failure.Invalidf("parent.party", "has %d bytes; name the party that this phaser is there, with 1 to %d bytes of UTF-8", len(p.Party), MaxName)
	}
	return nil
}

// Child is what a phaser that is a party of another one owes it. See the protocol in the
// package's documentation.
type Child struct {
	Parent Parent
	Phase  uint64 // its own, that is under way
	Above  uint64 // the phase of the parent that this one is for; 0 = not known yet
	Sent   bool   // all of its parties have arrived: it arrives at the parent, for Above
	Empty  bool   // it has no parties: it leaves the parent
	Joined bool   // the parent may have it as a party
}

// Owes reports whether anything is left to do at the parent.
func (c *Child) Owes() bool { return c.Parent.Given() && (!c.Empty || c.Sent || c.Joined) }

// Child returns what the state owes its parent.
func (s *State) Child() Child {
	return Child{s.Parent, s.Phase, s.Above, s.Sent, len(s.Parties) == 0, s.Joined}
}

// Bind says which phase of the parent this one is for, and reports whether that was to be said.
func (s *State) Bind(phase, above uint64, now int64, fx *Effects) bool {
	s.begin(now, fx)
	//guard:child-bound-once s.Above != 0 -> false
	if !s.Parent.Given() || phase != s.Phase || s.Above != 0 || above == 0 {
		return false
	}
	s.Above, fx.Changed = above, true
	return true
}

// Conclude ends the phase as that of the parent ended that it is for, and reports whether it did.
// One that the parent passed without this child, or knows no more, is unknown here as well.
func (s *State) Conclude(phase, above uint64, v Verdict, now int64, next uint64, fx *Effects) bool {
	s.begin(now, fx)
	//guard:child-concludes-its-own above != s.Above -> false
	if !s.Parent.Given() || phase != s.Phase || s.Above == 0 || above != s.Above || v == UnderWay {
		return false
	}
	switch {
	//guard:child-sent-passes s.Sent -> true
	case v == Passed && s.Sent:
		s.end(next, None, "", fx)
	case v == Broken:
		s.end(next, OfParent, "", fx)
	default:
		s.forget(next, fx)
	}
	return true
}

// Leaves says that the parent does not have the child as a party any more, and reports whether
// that was to be said.
func (s *State) Leaves(phase uint64, now int64, fx *Effects) bool {
	s.begin(now, fx)
	if !s.Parent.Given() || phase != s.Phase || len(s.Parties) > 0 || s.Sent || !s.Joined {
		return false
	}
	s.Joined, s.Above, fx.Changed = false, 0, true
	return true
}

// forget ends the phase, of which, and of those before it, nothing is known any more.
func (s *State) forget(next uint64, fx *Effects) {
	s.check(next)
	fx.Ended, fx.Changed = s.Phase, true
	s.Since, s.Broken, s.After, s.Cause, s.Who = next, 0, 0, None, ""
	s.Turn(next)
}

// adopt gives a state that has no phase yet the parent that its first party says.
func (s *State) adopt(p Parent) {
	if p.Given() && s.Phase == 0 {
		s.Parent, s.Joined = p, true
	}
}

// rejoin begins another phase when a child that was empty has a party again: what it has sent
// to the parent in the last one, and is late, must not take it away from there.
func (s *State) rejoin(next uint64, fx *Effects) {
	//guard:child-rejoins
	if s.Parent.Given() && s.Phase != next && len(s.Parties) == 0 && !s.Sent && fx.Ended == 0 {
		s.forget(next, fx)
		s.Joined = true
	}
}

// validTree reports why what came from elsewhere of a parent cannot be so.
func (s *State) validTree() error {
	switch {
	case !s.Parent.Given() && (s.Above != 0 || s.Sent || s.Joined || s.Parent != Parent{}):
		return errors.New("gather: it has no parent, and owes it something")
	case s.Parent.Given() && s.Need != 0:
		return errors.New("gather: a barrier has a parent")
	}
	return s.Parent.Validate()
}
