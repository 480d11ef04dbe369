package hold

import (
	"errors"
	"fmt"
	"slices"

	"github.com/keystead/keystead/internal/failure"
)

// ended are tokens whose grants ended while claims were accepted: a claim that was held up
// does not bring them back. A grant empties it, for then no claim is accepted any more.
type ended struct {
	capacity uint32   // that the highest claim knew
	tokens   []uint64 // rising
	floor    uint64   // tokens up to it count as ended
}

// maxEnded bounds the tokens that are remembered one by one.
const maxEnded = MaxHolders

func (e *ended) add(token uint64) {
	if e == nil {
		return
	}
	i, found := slices.BinarySearch(e.tokens, token)
	if found {
		return
	}
	if len(e.tokens) == maxEnded {
		e.floor = max(e.floor, e.tokens[0])
		e.tokens = e.tokens[1:]
		i = max(i-1, 0)
	}
	//guard:claim-ended-stays
	e.tokens = slices.Insert(e.tokens, i, token)
}

func (e *ended) has(token uint64) bool {
	if e == nil {
		return false
	}
	_, found := slices.BinarySearch(e.tokens, token)
	return found || token <= e.floor
}

// Remembers reports whether claims were accepted in this state: it knows what ended since.
func (s *State) Remembers() bool { return s.over != nil }

// Knows reports whether the state knows of a grant with this token: that it is in force, or
// that it has ended while claims were accepted.
func (s *State) Knows(token uint64) bool { return s.index(token) >= 0 || s.over.has(token) }

// Outlived reports whether a grant with this token was over when another was granted that is in
// force: one that has all that there is. It is for objects whose capacity never changes.
func (s *State) Outlived(token uint64) bool {
	for i := s.search(token + 1); i < len(s.Holders); i++ {
		if s.Holders[i].Weight == s.Capacity {
			return true
		}
	}
	return false
}

// Reclaim asks for a grant back that was lost with the state: its owner and all copies are
// gone, and its holder still counts on it.
type Reclaim struct {
	Token    uint64  // of the grant, 1 to MaxToken
	Name     string  // as in Acquire
	Weight   uint32  // as in Acquire
	Capacity uint32  // of the object, as the holder knows it
	Delay    int64   // as in Acquire
	Metadata []byte  // as in Acquire
	Session  Session // as in Acquire
	Left     int64   // ns that the holder still counts on, 1 to MaxTTL
	// Alone says that the grant had all that such an object ever has: whatever was granted
	// before it was over by then, and it is over if anything was granted after it.
	Alone bool
	// Unique is that of Acquire: of two grants of a name, the earlier is over.
	Unique bool
}

// Validate reports a field that is out of range, as a *failure.Error. State.Reclaim
// expects a claim that passed it.
func (op Reclaim) Validate() error {
	switch {
	case op.Token == 0 || op.Token > MaxToken:
		return failure.Invalidf("token", "must be from 1 to %d, is %d", uint64(MaxToken), op.Token)
	case op.Left < 1 || op.Left > MaxTTL:
		return failure.Invalidf("reclaim.left_ns", "must be from 1 to %d (24 h), is %d: a lease that is over is not given back", int64(MaxTTL), op.Left)
	case op.Capacity == 0:
		return failure.Invalidf("reclaim.capacity", "is missing: the one that the Acquire was answered with")
	}
	err := Acquire{Name: op.Name, Weight: op.Weight, Delay: op.Delay, Metadata: op.Metadata, TTL: MinTTL, Capacity: MaxCapacity, Session: op.Session}.Validate()
	if err == nil {
		err = ValidateCapacity(op.Capacity)
	}
	if f := (*failure.Error)(nil); errors.As(err, &f) {
		return failure.Invalidf("reclaim."+f.Field, "%s", f.Message)
	}
	return err
}

// ReclaimResult answers a Reclaim.
type ReclaimResult struct {
	Reclaimed bool
	Expires   int64 // the end, else 0
	Ended     int   // how many grants with lower tokens ended for it
}

// Reclaim gives a grant that this state does not know back to its holder, under its own
// token, for the time that the holder still counts on. It is for a state that was lost,
// while grants of before the loss may be in force elsewhere: nothing may be granted then.
// All that were in force fit, so what does not fit shows that a claim is of a grant that
// was over: those with the highest tokens were granted last, and stay. What they have to fit is
// the capacity that the highest of them knows, for all below it were held when it was granted.
// It is the capacity of the object, unless SetCapacity has said one since: that takes nothing
// from holders.
func (s *State) Reclaim(op Reclaim, now int64, fx *Effects) ReclaimResult {
	if err := op.Validate(); err != nil {
		panic(fmt.Sprintf("hold: a claim was not validated: %v", err))
	}
	now = s.begin(now, fx)
	defer s.settle()
	if s.Knows(op.Token) {
		return ReclaimResult{}
	}
	//guard:reclaim-highest
	if op.Alone && op.Token <= s.LastToken {
		return s.refuse(op.Token)
	}
	same := -1
	if op.Unique {
		same = s.named(op.Name)
	}
	//guard:claims-of-a-name
	if same >= 0 && s.Holders[same].Token > op.Token {
		return s.refuse(op.Token)
	}
	capacity := s.Capacity
	if s.over != nil && s.over.capacity != 0 { // else claims of before were accepted elsewhere
		capacity = s.over.capacity
	}
	if op.Token > s.LastToken || capacity == 0 {
		capacity = op.Capacity
	}
	i := s.search(op.Token)
	above := uint64(op.Weight)
	for j := i; j < len(s.Holders); j++ {
		above += uint64(s.Holders[j].Weight)
	}
	//guard:claims-fit
	if above > uint64(capacity) || len(s.Holders)-i >= MaxHolders {
		return s.refuse(op.Token)
	}
	s.claimed()
	if same >= 0 { // it comes before the token, which stands where it did
		s.remove(same, now, fx)
		i--
	}
	res := ReclaimResult{Reclaimed: true, Expires: now + op.Left}
	s.add(i, Holder{
		Name: op.Name, Token: op.Token, Weight: op.Weight, Since: now, Expires: res.Expires, Delay: op.Delay, Metadata: op.Metadata, Session: op.Session,
	})
	s.over.capacity, s.LastToken = capacity, max(s.LastToken, op.Token)
	//guard:claims-keep-set-capacity !s.Fixed -> true
	if !s.Fixed {
		s.Capacity = capacity
	}
	//guard:reclaim-alone
	if op.Alone {
		s.over.floor = max(s.over.floor, op.Token-1)
	}
	fx.Holders = append(fx.Holders, op.Token)
	for s.used > uint64(capacity) || len(s.Holders) > MaxHolders {
		s.remove(0, now, fx)
		res.Ended++
	}
	s.changed(now, fx)
	fx.News = true
	return res
}

// refuse answers a claim whose grant is over.
func (s *State) refuse(token uint64) ReclaimResult {
	s.claimed().add(token)
	return ReclaimResult{}
}

// claimed has the state remember from now on what ends.
func (s *State) claimed() *ended {
	if s.over == nil {
		s.over = &ended{}
	}
	return s.over
}
