package owner

import (
	"bytes"
	"fmt"
	"math"
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/once"
	"github.com/keystead/keystead/owner/reqid"
	"github.com/keystead/keystead/owner/value"
)

var order = Ref{Key: "door", Name: "once"} // of the key of the register in these tests

func begins(holder, print string) once.Begin {
	return once.Begin{Print: []byte(print), Holder: []byte(holder), TTL: 10 * second}
}

// firstTurn begins, and is first.
func firstTurn(t testing.TB, s *Store, now int64, id reqid.ID, op once.Begin) Turn {
	t.Helper()
	a, err := s.BeginOnce(now, order, id, op)
	if err != nil || a.Outcome != once.First || a.Token == 0 || a.Left != op.TTL {
		t.Fatalf("%+v %v", a, err)
	}
	return a
}

func completes(t testing.TB, s *Store, now int64, token uint64, result string) {
	t.Helper()
	if a := must(s.CompleteOnce(now, order, noID, token, []byte(result), once.DefaultKeep, TurnClaim{})); !a.OK || a.Left != once.DefaultKeep {
		t.Fatalf("%+v", a)
	}
}

// TestStoredResultSurvivesAFailover: what was completed is what all get at the next owner, too, and
// its turn is over there.
func TestStoredResultSurvivesAFailover(t *testing.T) {
	s, standby := pair(t)
	turn := firstTurn(t, s, 0, noID, begins("a", "body"))
	completes(t, s, second, turn.Token, "receipt")
	for name, next := range map[string]*Store{"the standby": promote(standby), "one that the row moved to": promote(joiner(t, s))} {
		a := must(next.BeginOnce(2*second, order, noID, begins("b", "body")))
		if a.Outcome != once.Done || string(a.Result) != "receipt" || a.Token != turn.Token || a.Left <= 0 {
			t.Errorf("%s: %+v", name, a)
		}
		if a := must(next.RenewOnce(2*second, order, turn.Token, second, TurnClaim{})); a.OK {
			t.Errorf("%s renews what is done: %+v", name, a)
		}
		if a := must(next.CompleteOnce(2*second, order, noID, turn.Token, []byte("other"), once.MinKeep, TurnClaim{})); !a.OK || string(a.Result) != "receipt" {
			t.Errorf("%s, a repetition: %+v", name, a)
		}
	}
}

// TestTurnSurvivesAFailover: the next owner knows whose turn it is, until when, and for what.
func TestTurnSurvivesAFailover(t *testing.T) {
	s, standby := pair(t)
	turn := firstTurn(t, s, 0, id(1), begins("a", "body"))
	next := promote(standby)
	if a := must(next.BeginOnce(second, order, noID, begins("b", "body"))); a.Outcome != once.Busy || string(a.Holder) != "a" || a.Left != 9*second {
		t.Errorf("%+v", a)
	}
	if a := must(next.BeginOnce(second, order, retry(1, second), begins("a", "body"))); a.Outcome != once.First || !a.Replayed || a.Token != turn.Token || a.Left != 9*second {
		t.Errorf("a retry: %+v", a)
	}
	later := must(next.BeginOnce(10*second, order, noID, begins("b", "body")))
	if later.Outcome != once.First || later.Token <= turn.Token || later.Attempt != 2 {
		t.Errorf("the next: %+v", later)
	}
}

// TestLateCompleteOfAnOldTokenOverwritesNothing.
func TestLateCompleteOfAnOldTokenOverwritesNothing(t *testing.T) {
	s := newStore(t, nil)
	old := firstTurn(t, s, 0, noID, begins("a", "body"))
	young := firstTurn(t, s, 10*second, noID, begins("b", "body"))
	late := func(when string) {
		if a := must(s.CompleteOnce(11*second, order, noID, old.Token, []byte("late"), once.MaxKeep, TurnClaim{})); a.OK {
			t.Errorf("%s: %+v", when, a)
		}
		if a := must(s.AbandonOnce(11*second, order, noID, old.Token)); a.OK {
			t.Errorf("%s: %+v", when, a)
		}
	}
	late("while the next one works")
	completes(t, s, 11*second, young.Token, "good")
	late("when that is done")
	if a := must(s.GetOnce(11*second, order)); string(a.Result) != "good" || a.Token != young.Token || a.Left != once.DefaultKeep {
		t.Errorf("%+v", a)
	}
}

// TestTwoFirstsAtAnExpiry: of all who ask when a lease ends, one is first, and the former holder
// is refused from then on; up to then it may conclude.
func TestTwoFirstsAtAnExpiry(t *testing.T) {
	s := newStore(t, nil)
	old := firstTurn(t, s, 0, noID, begins("a", "body"))
	firsts := 0
	for i := range 5 {
		a := must(s.BeginOnce(10*second, order, noID, begins(fmt.Sprint(i), "body")))
		if a.Outcome == once.First {
			firsts++
		}
	}
	if a := must(s.RenewOnce(10*second, order, old.Token, 10*second, TurnClaim{})); firsts != 1 || a.OK {
		t.Errorf("%d are first; the former holder: %+v", firsts, a)
	}
	s = newStore(t, nil)
	old = firstTurn(t, s, 0, noID, begins("a", "body"))
	if a := must(s.RenewOnce(10*second, order, old.Token, 10*second, TurnClaim{})); !a.OK {
		t.Errorf("a late renewal, and nobody else has begun: %+v", a)
	}
	if a := must(s.BeginOnce(10*second, order, noID, begins("b", "body"))); a.Outcome != once.Busy {
		t.Errorf("and then: %+v", a)
	}
}

// TestKeyReusedWithAnotherBody: another fingerprint under the key is refused, and never gets the
// old result: while the work is under way, when it is done, and after a crash.
func TestKeyReusedWithAnotherBody(t *testing.T) {
	s := newStore(t, nil)
	refused := func(when string, now int64) {
		if a, err := s.BeginOnce(now, order, id(uint64(now+1)), begins("b", "other")); reason(err) != failure.OtherFingerprint || a.Result != nil {
			t.Errorf("%s: %+v %v", when, a, err)
		}
	}
	turn := firstTurn(t, s, 0, noID, begins("a", "body"))
	refused("under way", second)
	refused("after a crash", 20*second)
	completes(t, s, 20*second, turn.Token, "receipt")
	refused("done", 21*second)
	if a := must(s.BeginOnce(20*second+once.DefaultKeep, order, noID, begins("b", "other"))); a.Outcome != once.First || a.Attempt != 1 {
		t.Errorf("when all is forgotten: %+v", a)
	}
}

// TestCrashedHolderBlocksNobodyForEver.
func TestCrashedHolderBlocksNobodyForEver(t *testing.T) {
	s := newStore(t, nil)
	token := uint64(0)
	for i := range 3 {
		a := firstTurn(t, s, int64(i)*10*second, noID, begins("a", "body"))
		if a.Token <= token || int(a.Attempt) != i+1 {
			t.Errorf("%d: %+v", i, a)
		}
		token = a.Token
	}
	sweepAll(s, 30*second+once.Linger-1)
	if s.Stats().Objects[KindOnce] != 1 {
		t.Error("a turn that nobody concluded is forgotten too soon")
	}
	sweepAll(s, 30*second+once.Linger)
	if st := s.Stats(); st.Objects[KindOnce] != 0 || st.Lapsed != 0 || st.Expired[KindOnce] != 1 {
		t.Errorf("%+v", st)
	}
}

func TestOnceReplays(t *testing.T) {
	s := newStore(t, func(c *Config) { c.Rule = &testRule{epoch: 100, since: math.MinInt64} })
	turn := firstTurn(t, s, 0, id(1), begins("a", "body"))
	if _, err := s.BeginOnce(second, order, retry(1, second), begins("a", "other")); reason(err) != failure.RequestIDReused {
		t.Errorf("another body under the id: %v", err)
	}
	busy := must(s.BeginOnce(second, order, id(2), begins("b", "body")))
	if busy.Outcome != once.Busy {
		t.Fatalf("%+v", busy)
	}
	if a := must(s.CompleteOnce(2*second, order, id(3), turn.Token, []byte("r"), once.DefaultKeep, TurnClaim{})); !a.OK || a.Replayed {
		t.Fatalf("%+v", a)
	}
	if a := must(s.CompleteOnce(3*second, order, retry(3, second), turn.Token, []byte("r"), once.DefaultKeep, TurnClaim{})); !a.OK || !a.Replayed || a.Age != second {
		t.Errorf("%+v", a)
	}
	if a := must(s.BeginOnce(3*second, order, retry(1, 3*second), begins("a", "body"))); a.Outcome != once.First || a.Token != turn.Token || a.Left != 0 {
		t.Errorf("a retry of a turn that is over: %+v", a)
	}
	if a := must(s.BeginOnce(3*second, order, retry(2, 2*second), begins("b", "body"))); a.Outcome != once.Done || a.Replayed {
		t.Errorf("a retry of what was told to be busy: %+v", a)
	}
	if a := must(s.ForgetOnce(4*second, order, id(4), false)); !a.OK || a.Phase != once.Finished {
		t.Errorf("%+v", a)
	}
	next := firstTurn(t, s, 5*second, id(5), begins("c", "other"))
	if a := must(s.ForgetOnce(6*second, order, retry(4, 2*second), false)); !a.OK || !a.Replayed {
		t.Errorf("a retry forgets what was made since: %+v", a)
	}
	if a := must(s.AbandonOnce(6*second, order, id(6), next.Token)); !a.OK {
		t.Errorf("%+v", a)
	}
	if a := must(s.AbandonOnce(7*second, order, retry(6, second), next.Token)); !a.OK || !a.Replayed {
		t.Errorf("%+v", a)
	}
	keyed := reqid.KeyID("order-7")
	first := must(s.BeginOnce(8*second, order, keyed, begins("d", "body")))
	if a := must(s.BeginOnce(8*second, order, keyed, begins("d", "body"))); !a.Replayed || a.Token != first.Token {
		t.Errorf("under a key: %+v", a)
	}
	op := begins("d", "body")
	op.TTL++
	if _, err := s.BeginOnce(8*second, order, keyed, op); reason(err) != failure.RequestIDReused {
		t.Errorf("another request under the key: %v", err)
	}
}

// TestOnceAfterALoss: nobody begins while a turn of before may be under way; its holder keeps it
// and completes, and what was abandoned stays so.
func TestOnceAfterALoss(t *testing.T) {
	s, rule := lost(t, nil)
	now := cameAt + second
	if _, err := s.BeginOnce(now, order, id(1), begins("x", "body")); reason(err) != failure.Recovering || err.(*failure.Error).RetryAfter == 0 {
		t.Errorf("begin: %v", err)
	}
	old, last := granted(3, 5), granted(3, 9)
	for name, err := range map[string]error{
		"renew":    errOf(s.RenewOnce(now, order, old, second, TurnClaim{})),
		"complete": errOf(s.CompleteOnce(now, order, id(2), old, nil, once.MinKeep, TurnClaim{})),
		"abandon":  errOf(s.AbandonOnce(now, order, id(3), old)),
	} {
		if reason(err) != failure.Recovering {
			t.Errorf("%s: %v", name, err)
		}
	}
	claim := TurnClaim{Print: []byte("body"), Holder: []byte("a"), Left: 8 * second}
	if _, err := s.RenewOnce(now, order, lostIn<<SeqBits|1, second, claim); reason(err) != failure.Invalid {
		t.Errorf("a token that never was: %v", err)
	}
	if a := must(s.RenewOnce(now, order, old, second, claim)); !a.OK || !a.Reclaimed || a.Left != 8*second {
		t.Errorf("a claim: %+v", a)
	}
	if a := must(s.RenewOnce(now, order, last, second, claim)); !a.OK || !a.Reclaimed {
		t.Errorf("a higher one: %+v", a)
	}
	if a := must(s.CompleteOnce(now, order, noID, old, []byte("late"), once.MinKeep, claim)); a.OK {
		t.Errorf("the former holder: %+v", a)
	}
	if a := must(s.AbandonOnce(now, order, noID, last)); !a.OK {
		t.Errorf("%+v", a)
	}
	sweepAll(s, now)
	if a := must(s.RenewOnce(now, order, old, second, claim)); a.OK {
		t.Errorf("a lower token gets what a higher one abandoned: %+v", a)
	}
	higher := granted(2, 1)
	if a := must(s.CompleteOnce(now, order, noID, higher, []byte("good"), once.DefaultKeep, claim)); !a.OK || string(a.Result) != "good" {
		t.Errorf("a claim that completes: %+v", a)
	}
	if a := must(s.BeginOnce(now, order, noID, begins("x", "body"))); a.Outcome != once.Done || string(a.Result) != "good" {
		t.Errorf("what is known is told: %+v", a)
	}
	rule.lost, rule.lostAt, rule.epoch = 0, 0, lostIn+6
	if a := must(s.BeginOnce(now, Ref{Key: "lost", Name: "once"}, noID, begins("x", "body"))); a.Outcome != once.First || a.Token>>SeqBits != lostIn+6 {
		t.Errorf("what was lost is done again: %+v", a)
	}
}

func errOf[A any](_ A, err error) error { return err }

// TestOnceFreesItsRoom: nothing is left of what was abandoned or forgotten, and texts are counted.
func TestOnceFreesItsRoom(t *testing.T) {
	s := newStore(t, func(c *Config) { c.Shards = 1 })
	empty := s.Stats().Bytes
	turn := firstTurn(t, s, 0, noID, begins("a", "body"))
	if a := must(s.AbandonOnce(0, order, noID, turn.Token)); !a.OK || s.Stats().Objects[KindOnce] != 0 {
		t.Errorf("%+v, %d objects", a, s.Stats().Objects[KindOnce])
	}
	room := s.Stats().Bytes // slabs stay
	turn = firstTurn(t, s, 0, noID, begins("a", "body"))
	completes(t, s, 0, turn.Token, string(bytes.Repeat([]byte("r"), once.MaxResult)))
	if more := s.Stats().Bytes - room; more < once.MaxResult || more > once.MaxResult+4096 {
		t.Errorf("%d bytes for a result of %d", more, once.MaxResult)
	}
	if a := must(s.GetOnce(once.DefaultKeep, order)); a.OK || a.Phase != once.Absent {
		t.Errorf("%+v", a)
	}
	sweepAll(s, once.DefaultKeep)
	if st := s.Stats(); st.Bytes > room || st.Objects[KindOnce] != 0 || empty > room {
		t.Errorf("%d bytes are left of %d; %+v", st.Bytes, room, st)
	}
}

// TestResultIsKeptWhenFull: a node that lets nobody begin for want of room keeps the results of
// those who have begun.
func TestResultIsKeptWhenFull(t *testing.T) {
	s := newStore(t, func(c *Config) { c.MaxBytes, c.Shards = 1<<20, 1 })
	turn := firstTurn(t, s, 0, noID, begins("a", "body"))
	i := 0
	for ; ; i++ {
		_, err := s.SetRegister(0, Ref{Key: fmt.Sprint(i), Name: "r"}, noID, SetRegister{Set: value.Set{Value: make([]byte, 30<<10)}})
		if reason(err) == failure.StoreFull {
			break
		}
		must(0, err)
	}
	if _, err := s.SetRegister(0, Ref{Key: "0", Name: "r"}, noID, SetRegister{Set: value.Set{Value: make([]byte, value.MaxValue)}}); reason(err) != failure.StoreFull {
		t.Fatalf("it is not full: %v", err)
	}
	completes(t, s, 0, turn.Token, string(make([]byte, 30<<10)))
	for i := range 4 { // but not beyond all bounds
		ref := Ref{Key: fmt.Sprint("more", i), Name: "once"}
		a, err := s.BeginOnce(0, ref, noID, begins("a", "body"))
		if err == nil {
			_, err = s.CompleteOnce(0, ref, noID, a.Token, make([]byte, once.MaxResult), once.MinKeep, TurnClaim{})
		}
		if reason(err) == failure.StoreFull {
			return
		}
	}
	t.Error("results are kept beyond all bounds")
}

// TestWritesUnderATurn: a register of the key is written in the step that asks whether it is still
// the writer's turn.
func TestWritesUnderATurn(t *testing.T) {
	s := newStore(t, nil)
	old := firstTurn(t, s, 0, noID, begins("a", "body"))
	under := func(token uint64) SetRegister {
		return SetRegister{Set: value.Set{Value: []byte("v")}, Hold: Hold{Name: order.Name, Token: token}}
	}
	if a := must(s.SetRegister(second, config, noID, under(old.Token))); !a.Applied {
		t.Errorf("%+v", a)
	}
	young := firstTurn(t, s, 10*second, noID, begins("b", "body"))
	if a := must(s.SetRegister(10*second, config, noID, under(old.Token))); a.Applied || a.Refusal != value.HoldOver {
		t.Errorf("the former holder: %+v", a)
	}
	if a := must(s.SetRegister(10*second, config, noID, under(young.Token))); !a.Applied {
		t.Errorf("%+v", a)
	}
	completes(t, s, 11*second, young.Token, "")
	if a := must(s.SetRegister(11*second, config, noID, under(young.Token))); a.Applied {
		t.Errorf("after it is done: %+v", a)
	}
	lostStore, _ := lost(t, nil)
	must(lostStore.RenewOnce(cameAt, order, granted(3, 1), second, TurnClaim{Left: second}))
	if _, err := lostStore.SetRegister(cameAt, config, noID, under(granted(3, 2))); reason(err) != failure.Recovering {
		t.Errorf("after a loss: %v", err)
	}
}

// TestCrowdIsNoHerd: of those who wait, one asks; all hear the result; and a result of other work is
// told to none of them.
func TestCrowdIsNoHerd(t *testing.T) {
	s := newStore(t, func(c *Config) { c.MaxWaiters = 3 })
	turn := firstTurn(t, s, 0, noID, begins("a", "body"))
	var waits []*OnceWait
	for range 3 {
		waits = append(waits, must(s.AwaitOnce(order)))
	}
	if _, err := s.AwaitOnce(order); reason(err) != failure.TooManyWaiters || s.Stats().Waiting != 3 {
		t.Errorf("one more than may wait: %v", err)
	}
	asks := func(w *OnceWait) bool {
		select {
		case <-w.Lookout():
			w.Asks()
			return true
		default:
			return false
		}
	}
	if !asks(waits[0]) || asks(waits[1]) || asks(waits[2]) {
		t.Fatal("not one of them asks")
	}
	must(s.AbandonOnce(0, order, noID, turn.Token))
	select {
	case <-waits[0].Stirred():
	default:
		t.Error("nobody is told that the turn is free")
	}
	turn = firstTurn(t, s, 0, noID, begins("b", "other"))
	waits[0].Leave()
	if !asks(waits[1]) || asks(waits[2]) {
		t.Error("the next one does not ask")
	}
	completes(t, s, 0, turn.Token, "receipt")
	<-waits[2].Done()
	if got, ok := waits[2].Turn([]byte("body")); ok {
		t.Errorf("a result of other work: %+v", got)
	}
	if got, ok := waits[2].Turn([]byte("other")); !ok || string(got.Result) != "receipt" || got.Outcome != once.Done || got.Permit.Epoch == 0 {
		t.Errorf("%+v", got)
	}
	late := must(s.AwaitOnce(order)) // is told by asking: what was told before is not repeated
	if !asks(late) {
		t.Error("one that comes later does not ask")
	}
	for _, w := range append(waits[1:], late) {
		w.Leave()
	}
	if n := len(s.shard(Hash(order.Key)).crowds); n != 0 || s.Stats().Waiting != 0 {
		t.Errorf("%d crowds and %d callers are left", n, s.Stats().Waiting)
	}
}

// A store and the one that gets its records agree, whatever is done in whatever order.
func TestOnceOnTheStandby(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s, standby := pair(t)
		now, tokens := int64(0), []uint64{1}
		for range rapid.IntRange(1, 40).Draw(rt, "steps") {
			now += rapid.SampledFrom([]int64{0, second, 10 * second, once.Linger, 60}).Draw(rt, "pass")
			token := rapid.SampledFrom(tokens).Draw(rt, "token")
			asID := reqid.ID{}
			if rapid.Bool().Draw(rt, "id") {
				asID = id(rapid.Uint64Range(1, 1000).Draw(rt, "sequence"))
			}
			switch rapid.IntRange(0, 6).Draw(rt, "op") {
			case 0, 1:
				if a, err := s.BeginOnce(now, order, asID, begins("h", rapid.SampledFrom([]string{"", "a"}).Draw(rt, "print"))); err == nil && a.Outcome == once.First {
					tokens = append(tokens, a.Token)
				}
			case 2:
				must(s.RenewOnce(now, order, token, 10*second, TurnClaim{}))
			case 3:
				_, _ = s.CompleteOnce(now, order, asID, token, []byte(rapid.SampledFrom([]string{"", "r"}).Draw(rt, "result")), second, TurnClaim{})
			case 4:
				_, _ = s.AbandonOnce(now, order, asID, token)
			case 5:
				_, _ = s.ForgetOnce(now, order, asID, true)
			case 6:
				sweepAll(s, now)
			}
			var a, b once.State
			t1 := target{sh: s.shard(Hash(order.Key)), now: now}
			t2 := target{sh: standby.shard(Hash(order.Key)), now: now}
			if slot := t1.sh.findLocked(s.addressTag(order), order); slot != 0 {
				a = onces{}.stateOf(t1.sh, t1.sh.entryLocked(slot))
			}
			if slot := t2.sh.findLocked(standby.addressTag(order), order); slot != 0 {
				b = onces{}.stateOf(t2.sh, t2.sh.entryLocked(slot))
			}
			if a.Phase == once.Absent {
				a = once.State{}
			}
			if !reflect.DeepEqual(a, b) {
				rt.Fatalf("the owner has %+v, its standby %+v", a, b)
			}
		}
	})
}

func BenchmarkBeginComplete(b *testing.B) {
	s := newStore(b, nil)
	refs := make([]Ref, 1<<16)
	for i := range refs {
		refs[i] = Ref{Key: fmt.Sprint("order-", i), Name: "once"}
	}
	op, result := begins("worker-1", "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"), make([]byte, 200)
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		ref := refs[i%len(refs)]
		now := int64(i/len(refs)) * 2 * second
		a := must(s.BeginOnce(now, ref, noID, op))
		if a.Outcome != once.First {
			b.Fatal(a)
		}
		must(s.CompleteOnce(now, ref, noID, a.Token, result, second, TurnClaim{}))
		i++
	}
	b.ReportMetric(float64(s.Stats().Bytes)/float64(min(i, len(refs))), "bytes/result")
}
