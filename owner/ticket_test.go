package owner

import (
	"testing"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/hold"
	"github.com/keystead/keystead/owner/reqid"
)

// later is when nothing is unknown any more of before the process began.
const later = 1000 * second

// ticket asks for a place that stands for so long without its caller.
func ticket(holder string, ttl, wait, keep int64) AcquireLock {
	op := asks(holder, ttl, wait)
	op.Keep = keep
	return op
}

// TestTicketOutlivesItsCaller: a place with a ticket is not passed, and is there for the caller when
// it comes again, with all of its lease.
func TestTicketOutlivesItsCaller(t *testing.T) {
	s := newStore(t, nil)
	first, _ := acquire(t, s, 0, noID, asks("a", 100*second, 0))
	poll := func(now, age int64) GrantAnswer {
		t.Helper()
		a, w := acquire(t, s, now, retry(1, age), ticket("b", 5*second, 0, 60*second))
		if w != nil {
			t.Fatal("a poll that does not wait has to wait")
		}
		return a
	}
	if a := poll(0, 0); a.Acquired || !a.Waiting || a.Place != 1 || a.Holder.Name != "a" {
		t.Errorf("%+v", a)
	}
	_, c := acquire(t, s, second, noID, asks("c", 5*second, 300*second))
	s.Wake(50 * second)
	if a := poll(50*second, 50*second); !a.Waiting || a.Place != 1 {
		t.Errorf("%+v", a)
	}
	must(s.Release(80*second, door, noID, first.Token))
	if c.finished() {
		t.Fatal("a ticket was passed")
	}
	a := poll(84*second, 84*second)
	if !a.Acquired || a.Waiting || a.TTL != 5*second || a.Waited != 84*second {
		t.Errorf("%+v", a)
	}
	if again := poll(85*second, 85*second); !again.Acquired || !again.Replayed || again.Token != a.Token {
		t.Errorf("the same again: %+v", again)
	}
	must(s.Release(86*second, door, noID, a.Token))
	if a, err := answered(t, c); err != nil || !a.Acquired {
		t.Errorf("the next one: %+v %v", a, err)
	}
}

// TestTicketNotFetchedGoesOn: what the head of the line does not fetch goes to the next after the
// lease that it asked for, and a copy knows when.
func TestTicketNotFetchedGoesOn(t *testing.T) {
	var told []*Record
	s := newStore(t, func(c *Config) { c.Sink = sinkOf(func(r *Record) { told = append(told, r.Clone()) }) })
	first, _ := acquire(t, s, 0, noID, asks("a", 100*second, 0))
	acquire(t, s, 0, id(1), ticket("b", 5*second, 0, 3600*second))
	_, c := acquire(t, s, 0, id(2), asks("c", 5*second, 300*second))
	told = nil
	must(s.Release(10*second, door, noID, first.Token))
	if len(told) == 0 {
		t.Fatal("no record")
	}
	if places := told[len(told)-1].Hold(); places.Queue.Len() == 0 || places.Queue.Places[0].GiveUp != 15*second || !places.Queue.Places[0].Kept {
		t.Errorf("told of %+v", places)
	}
	s.Wake(15*second - 1)
	if c.finished() {
		t.Error("the turn was too short")
	}
	s.Wake(15 * second)
	if a, err := answered(t, c); err != nil || !a.Acquired {
		t.Errorf("%+v %v", a, err)
	}
	if a, _ := acquire(t, s, 16*second, retry(1, 10*second), ticket("b", 5*second, 0, 60*second)); !a.Waiting || a.Place != 1 {
		t.Errorf("one that missed its turn: %+v", a)
	}
}

// TestManyTicketsNotFetched: each head that does not come costs those behind it one lease.
func TestManyTicketsNotFetched(t *testing.T) {
	s := newStore(t, nil)
	first, _ := acquire(t, s, 0, noID, asks("a", 100*second, 0))
	for i := range uint64(5) {
		acquire(t, s, 0, id(i+1), ticket("b", 2*second, 0, 3600*second))
	}
	_, c := acquire(t, s, 0, noID, asks("c", 5*second, 300*second))
	must(s.Release(0, door, noID, first.Token))
	for now := int64(0); now < 10*second; now += second / 2 {
		if s.Wake(now); c.finished() {
			t.Fatalf("at %d", now)
		}
	}
	s.Wake(10 * second)
	if a, err := answered(t, c); err != nil || !a.Acquired {
		t.Errorf("%+v %v", a, err)
	}
	if st := s.Stats(); st.Waiting != 0 {
		t.Errorf("%d wait", st.Waiting)
	}
}

// TestTicketRunsOut: a place whose caller does not come again goes with its ticket, and counts as a
// waiter until then.
func TestTicketRunsOut(t *testing.T) {
	s := newStore(t, func(c *Config) { c.MaxWaiters = 1 })
	acquire(t, s, 0, noID, asks("a", 100*second, 0))
	acquire(t, s, 0, id(1), ticket("b", 5*second, 0, 10*second))
	if _, _, err := s.Acquire(9*second, door, id(2), ticket("c", 5*second, 0, 10*second)); reason(err) != failure.TooManyWaiters {
		t.Error(err)
	}
	s.Wake(10 * second)
	if a, _ := acquire(t, s, 11*second, id(2), ticket("c", 5*second, 0, 10*second)); !a.Waiting || a.Place != 1 {
		t.Errorf("%+v", a)
	}
}

// TestTicketCallerGone: a caller that is gone while it waits has its place when it comes again, and
// what it was granted in that moment.
func TestTicketCallerGone(t *testing.T) {
	for _, keyed := range []bool{false, true} {
		now, again := id(1), retry(1, 30*second)
		if keyed {
			now = reqid.KeyID("k")
			again = now
		}
		s := newStore(t, nil)
		first, _ := acquire(t, s, later, noID, asks("a", 100*second, 0))
		_, w := acquire(t, s, later, now, ticket("b", 40*second, 20*second, 60*second))
		acquire(t, s, later, noID, asks("c", 40*second, 3600*second))
		w.GiveUp(later + second)
		s.Wake(70 * second)
		if a, _ := acquire(t, s, later+70*second, again, ticket("b", 40*second, 0, 60*second)); !a.Waiting || a.Place != 1 {
			t.Errorf("gone while it waited: %+v", a)
		}
		again.Age = 2 * again.Age
		_, w = acquire(t, s, later+71*second, again, ticket("b", 40*second, 20*second, 60*second))
		must(s.Release(later+72*second, door, noID, first.Token))
		w.GiveUp(72 * second)
		if a, _ := acquire(t, s, later+73*second, again, ticket("b", 40*second, 0, 60*second)); !a.Acquired || a.TTL != 39*second {
			t.Errorf("gone when it was granted: %+v", a)
		}
	}
}

// TestTicketNoOneActs: a caller whose wait is over while the node may not act is told so, and keeps
// its place.
func TestTicketNoOneActs(t *testing.T) {
	rule := &testRule{epoch: 100}
	s := newStore(t, func(c *Config) { c.Rule = rule })
	acquire(t, s, 0, noID, asks("a", 100*second, 0))
	_, w := acquire(t, s, 0, id(1), ticket("b", 5*second, 10*second, 60*second))
	rule.admit = errMoved
	if a, err := Park(w, 10*second); reason(err) != failure.NotOwner {
		t.Errorf("%+v %v", a, err)
	}
	rule.admit = nil
	if a, _ := acquire(t, s, 50*second, retry(1, 50*second), ticket("b", 5*second, 0, 60*second)); !a.Waiting || a.Waited != 0 || a.Place != 1 {
		t.Errorf("%+v", a)
	}
	if st := s.Stats(); st.Waiting != 1 {
		t.Errorf("%d wait", st.Waiting)
	}
}

// TestTicketOlderAttempt: of two polls that are here, the one that was sent later has the place; an
// older one that comes when nobody is here changes nothing but when the ticket ends.
func TestTicketOlderAttempt(t *testing.T) {
	s := newStore(t, nil)
	first, _ := acquire(t, s, 0, noID, asks("a", 100*second, 0))
	acquire(t, s, 0, id(1), ticket("b", 5*second, 0, 60*second))
	_, w := acquire(t, s, 10*second, retry(1, 10*second), ticket("b", 5*second, 20*second, 60*second))
	if _, _, err := s.Acquire(11*second, door, retry(1, 5*second), ticket("b", 5*second, 0, 60*second)); reason(err) != failure.Superseded {
		t.Errorf("an older one beside a later one: %v", err)
	}
	if a, err := Park(w, 30*second); err != nil || !a.Waiting {
		t.Fatalf("%+v %v", a, err)
	}
	if a, _ := acquire(t, s, 31*second, retry(1, 5*second), ticket("b", 5*second, 0, 60*second)); !a.Waiting || a.Place != 1 {
		t.Errorf("an older one alone: %+v", a)
	}
	must(s.Release(32*second, door, noID, first.Token))
	if a, _ := acquire(t, s, 33*second, retry(1, 33*second), ticket("b", 5*second, 0, 60*second)); !a.Acquired {
		t.Errorf("%+v", a)
	}
	if _, _, err := s.Acquire(33*second, door, retry(1, 33*second), ticket("x", 5*second, 0, 60*second)); reason(err) != failure.RequestIDReused {
		t.Errorf("another request under the id: %v", err)
	}
}

// TestTicketLeaves: the same without a ticket and without a wait leaves, for good.
func TestTicketLeaves(t *testing.T) {
	s := newStore(t, nil)
	first, _ := acquire(t, s, 0, noID, asks("a", 100*second, 0))
	acquire(t, s, 0, id(1), ticket("b", 5*second, 0, 60*second))
	must(s.Release(second, door, noID, first.Token))
	_, w := acquire(t, s, 2*second, retry(1, 2*second), asks("b", 5*second, 0))
	s.Wake(2 * second)
	if a, err := answered(t, w); err != nil || a.Acquired || a.Waiting {
		t.Errorf("%+v %v", a, err)
	}
	if a, _ := acquire(t, s, 3*second, retry(1, second), ticket("b", 5*second, 0, 60*second)); a.Acquired || a.Waiting || !a.Replayed {
		t.Errorf("a poll that was held up: %+v", a)
	}
	if a, _ := acquire(t, s, 3*second, noID, asks("c", 5*second, 0)); !a.Acquired {
		t.Errorf("%+v", a)
	}
}

// TestTicketLongerThanIDs: a place is found under its id however long that is, though ids are
// forgotten sooner.
func TestTicketLongerThanIDs(t *testing.T) {
	s := newStore(t, func(c *Config) { c.RequestIDs.Window = 10 * second })
	first, _ := acquire(t, s, later, noID, asks("a", 1000*second, 0))
	for _, of := range []reqid.ID{id(1), reqid.KeyID("k")} {
		acquire(t, s, later, of, ticket("b", 5*second, 0, 600*second))
	}
	for now := 100 * second; now <= 500*second; now += 100 * second {
		s.Wake(later + now)
		sweepAll(s, later+now)
		sweepAll(s, later+now)
	}
	for i, of := range []reqid.ID{retry(1, 500*second), reqid.KeyID("k")} {
		if a, _ := acquire(t, s, later+500*second, of, ticket("b", 5*second, 0, 600*second)); !a.Waiting || a.Place != i+1 {
			t.Errorf("%+v", a)
		}
	}
	must(s.Release(later+501*second, door, noID, first.Token))
	if a, _ := acquire(t, s, later+502*second, retry(1, 502*second), ticket("b", 5*second, 0, 600*second)); !a.Acquired {
		t.Errorf("%+v", a)
	}
}

// TestTicketsAreRefused: of callers that could not come back, beyond the longest wait, and while a
// member of the cluster does not know of them.
func TestTicketsAreRefused(t *testing.T) {
	rule := &levelRule{testRule: testRule{epoch: 1}, level: TicketLevel - 1}
	s := newStore(t, func(c *Config) { c.Rule = rule })
	acquire(t, s, 0, noID, asks("a", 100*second, 0))
	if _, _, err := s.Acquire(0, door, id(1), ticket("b", second, 0, second)); reason(err) != failure.Unavailable {
		t.Errorf("before its level: %v", err)
	}
	rule.level++
	for name, call := range map[string]func() error{
		"no id": func() error { _, _, err := s.Acquire(0, door, noID, ticket("b", second, 0, second)); return err },
		"too short": func() error {
			_, _, err := s.Acquire(0, door, id(1), ticket("b", second, 0, hold.MinTTL-1))
			return err
		},
		"negative": func() error { _, _, err := s.Acquire(0, door, id(1), ticket("b", second, 0, -1)); return err },
		"too long": func() error {
			_, _, err := s.Acquire(0, door, id(1), ticket("b", second, second, hold.MaxWait))
			return err
		},
	} {
		if err := call(); reason(err) != failure.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	if a, _ := acquire(t, s, 0, id(1), ticket("b", second, 0, hold.MaxWait)); !a.Waiting {
		t.Errorf("%+v", a)
	}
}

// TestTicketAfterLoss: nothing is known of the places of a row that was lost: polls are told so, and
// queue anew when its grace is over.
func TestTicketAfterLoss(t *testing.T) {
	rule := &testRule{epoch: 100, lost: 100, terms: Terms{Grace: 30 * second}}
	s := newStore(t, func(c *Config) { c.Rule = rule })
	if _, _, err := s.Acquire(later+0, door, retry(1, second), ticket("b", second, 0, 60*second)); reason(err) != failure.Recovering {
		t.Errorf("%v", err)
	}
	rule.lost = 0
	if a, _ := acquire(t, s, later+31*second, retry(1, 32*second), ticket("b", second, 0, 60*second)); !a.Acquired {
		t.Errorf("%+v", a)
	}
}

// TestTicketMoves: with its row, a place with a ticket stands for as long as it said, also if the
// call that was there first had none.
func TestTicketMoves(t *testing.T) {
	sc := newHandover(t)
	from, to := sc.nodes[0], sc.nodes[1]
	from.partial = true
	acquire(t, from.store, 0, noID, asks("a", 100*second, 0))
	_, b := acquire(t, from.store, 0, id(1), asks("b", 5*second, 50*second))
	acquire(t, from.store, second, retry(1, second), ticket("b", 5*second, 0, 60*second))
	if _, err := answered(t, b); reason(err) != failure.Superseded {
		t.Error(err)
	}
	to.rule.admit, from.rule.admit, to.rule.epoch = nil, to.rule.admit, 2
	from.store.Dismiss(always)
	to.store.Own(2*second, always, OwnGrace)
	to.store.Wake(61*second - 1)
	if a, _ := acquire(t, to.store, 61*second-1, noID, asks("c", 5*second, 0)); a.Place != 2 {
		t.Errorf("%+v", a)
	}
	to.store.Wake(61 * second)
	if a, _ := acquire(t, to.store, 61*second, noID, asks("c", 5*second, 0)); a.Place != 1 {
		t.Errorf("%+v", a)
	}
}

// TestTicketOverWhileItWaits: a node that stood still until a ticket was over, with its caller there,
// has lost the place. The caller is not told that it was refused: its id would be used up.
func TestTicketOverWhileItWaits(t *testing.T) {
	for _, of := range []reqid.ID{id(1), reqid.KeyID("k")} {
		s := newStore(t, nil)
		first, _ := acquire(t, s, later, noID, asks("a", 100*second, 0))
		_, w := acquire(t, s, later, of, ticket("b", 5*second, 2*second, second))
		s.Wake(later + 4*second)
		if a, err := answered(t, w); reason(err) != failure.Unavailable {
			t.Errorf("%+v %v", a, err)
		}
		if !of.Keyed() {
			of.Age = 4 * second
		}
		if a, _ := acquire(t, s, later+4*second, of, ticket("b", 5*second, 0, second)); !a.Waiting || a.Replayed {
			t.Errorf("%+v", a)
		}
		must(s.Release(later+4*second, door, noID, first.Token))
		if a, _ := acquire(t, s, later+4*second, of, ticket("b", 5*second, 0, second)); !a.Acquired {
			t.Errorf("%+v", a)
		}
	}
}

// TestTicketsLeaveRoom: tickets cost a caller no connection. They are let into the first half of what
// may wait at a node, so that nobody keeps all others from waiting for a day with them.
func TestTicketsLeaveRoom(t *testing.T) {
	s := newStore(t, func(c *Config) { c.MaxWaiters = 4 })
	acquire(t, s, 0, noID, asks("a", 100*second, 0))
	for i := range uint64(2) {
		acquire(t, s, 0, id(i+1), ticket("b", 5*second, 0, 3600*second))
	}
	if _, _, err := s.Acquire(0, door, id(3), ticket("b", 5*second, 0, 3600*second)); reason(err) != failure.TooManyWaiters {
		t.Errorf("%v", err)
	}
	for range 2 {
		if _, w := acquire(t, s, second, noID, asks("c", 5*second, 60*second)); w == nil {
			t.Error("nobody may wait")
		}
	}
	if a, _ := acquire(t, s, 2*second, retry(1, 2*second), ticket("b", 5*second, 0, 3600*second)); !a.Waiting || a.Place != 1 {
		t.Errorf("one that has its place: %+v", a)
	}
}

// TestTicketTurnAfterADelay: what is kept after an unclean end is not free: the turn of a place begins
// when that is over.
func TestTicketTurnAfterADelay(t *testing.T) {
	s := newStore(t, nil)
	first := asks("a", 100*second, 0)
	first.Delay = 20 * second
	held, _ := acquire(t, s, 0, noID, first)
	acquire(t, s, 0, id(1), ticket("b", 5*second, 0, 3600*second))
	_, c := acquire(t, s, 0, noID, asks("c", 5*second, 300*second))
	if a, err := s.RevokeLock(10*second, door, noID, held.Token); err != nil || !a.Released {
		t.Fatalf("%+v %v", a, err)
	}
	for _, now := range []int64{29 * second, 30 * second, 34 * second} {
		if s.Wake(now); c.finished() {
			t.Fatalf("granted at %d", now)
		}
	}
	if a, _ := acquire(t, s, 34*second, retry(1, 34*second), ticket("b", 5*second, 0, 3600*second)); !a.Acquired || a.TTL != 5*second {
		t.Errorf("%+v", a)
	}
	s.Wake(39 * second)
	if a, err := answered(t, c); err != nil || !a.Acquired {
		t.Errorf("%+v %v", a, err)
	}
}

// TestTicketOfAReader: readers behind a ticket wait for its turn to be over, and then come together.
func TestTicketOfAReader(t *testing.T) {
	s := newStore(t, nil)
	shared := func(op AcquireLock) AcquireLock { op.Shared = true; return op }
	held, _ := acquire(t, s, 0, noID, asks("a", 100*second, 0))
	acquire(t, s, 0, id(1), shared(ticket("b", 5*second, 0, 3600*second)))
	var readers []*Wait[GrantAnswer]
	for range 3 {
		_, w := acquire(t, s, 0, noID, shared(asks("c", 60*second, 300*second)))
		readers = append(readers, w)
	}
	must(s.Release(10*second, door, noID, held.Token))
	for _, w := range readers {
		if w.finished() {
			t.Error("a ticket was passed")
		}
	}
	s.Wake(15 * second)
	for _, w := range readers {
		if a, err := answered(t, w); err != nil || !a.Acquired {
			t.Errorf("%+v %v", a, err)
		}
	}
	if a, _ := acquire(t, s, 16*second, retry(1, 10*second), shared(ticket("b", 5*second, 0, 3600*second))); !a.Acquired {
		t.Errorf("one that missed its turn, among readers: %+v", a)
	}
}
