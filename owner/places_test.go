package owner

import (
	"fmt"
	"testing"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/hold"
	"github.com/keystead/keystead/owner/lock"
	"github.com/keystead/keystead/owner/queue"
	"github.com/keystead/keystead/owner/reqid"
)

// TestOlderAttemptChangesNothing: an attempt that was held up and comes after its
// retry is superseded, and the retry goes on waiting in its place.
func TestOlderAttemptChangesNothing(t *testing.T) {
	s := newStore(t, nil)
	first, _ := acquire(t, s, 0, noID, asks("a", 10*second, 0))
	_, b := acquire(t, s, 5*second, retry(1, second), asks("b", second, 60*second))
	_, c := acquire(t, s, 5*second, noID, asks("c", second, 60*second))
	for _, age := range []int64{0, second - 1} {
		if a, w, err := s.Acquire(5*second, door, retry(1, age), asks("b", second, 60*second)); reason(err) != failure.Superseded || w != nil {
			t.Errorf("an attempt of age %d after one of age %d: %+v %v", age, second, a, err)
		}
	}
	if b.finished() {
		_, err := b.Answer()
		t.Fatalf("the retry was answered: %v", err)
	}
	must(s.Release(6*second, door, noID, first.Token))
	if a, err := answered(t, b); err != nil || !a.Acquired {
		t.Errorf("the retry: %+v %v", a, err)
	}
	if c.finished() {
		t.Error("c came before b")
	}
}

// TestManyLeaveWhileNobodyActs: those that leave while the node may not act for the
// lock are dropped together by the next step, for one record and one token.
func TestManyLeaveWhileNobodyActs(t *testing.T) {
	const many = 1000
	rule, records, moved := &testRule{epoch: 100}, 0, 0
	s := newStore(t, func(c *Config) {
		c.Rule = rule
		c.Sink = sinkOf(func(r *Record) { records, moved = records+1, moved+len(r.Done) })
	})
	first, _ := acquire(t, s, 0, noID, asks("a", 10*second, 0))
	var waits []*Wait[GrantAnswer]
	for i := range many {
		_, w := acquire(t, s, 0, id(uint64(i+1)), asks(fmt.Sprint(i), second, 60*second))
		waits = append(waits, w)
	}
	_, last := acquire(t, s, 0, noID, asks("last", second, 60*second))
	rule.admit = errMoved
	for _, w := range waits {
		w.GiveUp(second)
		if _, err := answered(t, w); reason(err) != failure.NotOwner {
			t.Fatal(err)
		}
	}
	rule.admit, records = nil, 0
	must(s.Release(2*second, door, noID, first.Token))
	a, err := answered(t, last)
	if err != nil || a.Token != first.Token+1 || records != 1 {
		t.Errorf("granted with token %d after %d, %d records: %v", a.Token, first.Token, records, err)
	}
	if st := s.Stats(); st.Waiting != 0 || len(s.shard(Hash(door.Key)).waits) != 0 {
		t.Errorf("%d still wait, %d are registered", st.Waiting, len(s.shard(Hash(door.Key)).waits))
	}
	if moved != 0 {
		t.Errorf("%d request ids of those that left are remembered", moved)
	}
}

type sinkOf func(r *Record)

func (f sinkOf) Changed(r *Record) { f(r) }

// TestDetachedCount: places whose callers were detached are waiters until their
// grace is over, and one that has no request id is none.
func TestDetachedCount(t *testing.T) {
	s := newStore(t, func(c *Config) { c.MaxWaiters = 2 })
	acquire(t, s, 0, noID, asks("a", 10*second, 0))
	_, b := acquire(t, s, 0, id(1), asks("b", second, 60*second))
	_, c := acquire(t, s, 0, noID, asks("c", second, 60*second))
	if b.Detach(second) || c.Detach(second) {
		t.Error("granted")
	}
	if st := s.Stats(); st.Waiting != 1 {
		t.Errorf("%d wait", st.Waiting)
	}
	acquire(t, s, second, noID, asks("d", second, 60*second))
	if _, _, err := s.Acquire(second, door, noID, asks("e", second, second)); reason(err) != failure.TooManyWaiters {
		t.Errorf("a third waiter: %v", err)
	}
	s.Wake(second + OwnGrace)
	if st := s.Stats(); st.Waiting != 1 {
		t.Errorf("%d wait after the grace", st.Waiting)
	}
}

// TestDetachAfterGrant: the answer of a grant may be lost with the way of its
// caller. A retry gets it; if none comes, GiveUp gives it back.
func TestDetachAfterGrant(t *testing.T) {
	for _, retried := range []bool{false, true} {
		s := newStore(t, nil)
		first, _ := acquire(t, s, 0, noID, asks("a", 10*second, 0))
		_, b := acquire(t, s, 0, id(1), asks("b", 10*second, 60*second))
		must(s.Release(second, door, noID, first.Token))
		if !b.Detach(second) {
			t.Error("the grant is not reported")
		}
		if retried {
			if a, _ := acquire(t, s, second, id(1), asks("b", 10*second, 60*second)); !a.Replayed || a.TTL != 10*second {
				t.Errorf("the retry: %+v", a)
			}
		}
		b.GiveUp(second + OwnGrace)
		if a := must(s.Inspect(second+OwnGrace, door, 1)); (a.Holding.Token != 0) != retried {
			t.Errorf("retried %v: %+v", retried, a)
		}
	}
}

func moveOf(n uint64, gone bool) Move {
	return Move{Gone: gone, Waiter: hold.Waiter{
		Caller:  queue.Caller{ID: reqid.ID{Client: reqid.Client{Hi: 9}, Sequence: n}, Print: 1},
		Request: hold.Request{Weight: lock.All, Name: "h", TTL: second}, GiveUp: 60 * second,
	}}
}

func byPlace(moves ...Move) *Record {
	r := &Record{Key: []byte(door.Key), Name: []byte(door.Name), Version: 1}
	return r.SetMoves(hold.State{Holders: []hold.Holder{{Name: "a", Token: 9, Weight: lock.All, Expires: 60 * second}}, LastToken: 9}, moves...)
}

// TestMovesBeforeDismiss: a record of the new owner may come before this node has told
// those that wait that the lock has moved. They are told then, and keep their places.
func TestMovesBeforeDismiss(t *testing.T) {
	rule := &testRule{epoch: 100}
	s := newStore(t, func(c *Config) { c.Rule = rule })
	acquire(t, s, 0, noID, asks("a", 60*second, 0))
	_, b := acquire(t, s, 0, id(1), asks("b", second, 60*second))
	_, c := acquire(t, s, 0, noID, asks("c", second, 60*second))
	rule.admit = errMoved
	if err := s.Install(second, byPlace(moveOf(7, false)), func(uint64) bool { return true }); err != nil {
		t.Fatal(err)
	}
	for _, w := range []*Wait[GrantAnswer]{b, c} {
		if _, err := answered(t, w); reason(err) != failure.NotOwner {
			t.Error(err)
		}
	}
	rule.admit = nil
	a := must(s.Inspect(second, door, 10))
	if a.Waiting != 2 || a.First[0].Name != "b" || a.First[1].Name != "h" {
		t.Errorf("%+v", a.View)
	}
}

// TestMovesAreBounded: a copy whose queue would grow beyond the longest one is not that
// of the owner's: the record is refused, and the copy made anew.
func TestMovesAreBounded(t *testing.T) {
	s := newStore(t, nil)
	var all []Move
	for i := range MaxQueue {
		all = append(all, moveOf(uint64(i+1), false))
	}
	install := func(moves ...Move) error {
		return s.Install(second, byPlace(moves...), func(uint64) bool { return true })
	}
	if err := install(all...); err != nil {
		t.Fatal(err)
	}
	if err := install(moveOf(MaxQueue+1, false)); reason(err) != failure.Invalid {
		t.Errorf("one more: %v", err)
	}
	if err := install(all[0], moveOf(1, true), moveOf(1, true), moveOf(MaxQueue+1, false)); err != nil {
		t.Errorf("one for another, and what is known: %v", err)
	}
	if n := len(s.shard(Hash(door.Key)).waitIDs); n != MaxQueue {
		t.Errorf("%d places", n)
	}
}

// TestWakeOfACopyThatIsFree: a copy that could not be owned is tried again. By then a
// record may have said that nobody has it and nobody waits, while its request ids stay.
func TestWakeOfACopyThatIsFree(t *testing.T) {
	rule := &testRule{epoch: 100, admit: errMoved}
	s := newStore(t, func(c *Config) { c.Rule = rule })
	install := func(r *Record) {
		t.Helper()
		if err := s.Install(second, r, always); err != nil {
			t.Fatal(err)
		}
	}
	install(byPlace(moveOf(7, false)))
	s.Own(second, always, OwnGrace)
	free := byPlace().SetMoves(hold.State{LastToken: 9}, moveOf(7, true))
	free.Done = []Done{{ID: reqid.ID{Client: reqid.Client{Hi: 9}, Sequence: 7}}}
	install(free)
	if _, ok := s.NextWake(); !ok {
		t.Fatal("nothing is to be tried again")
	}
	s.Wake(second + retryWake)
	if _, ok := s.NextWake(); ok {
		t.Error("it is tried again although nobody waits")
	}
}
