package owner

import (
	"fmt"
	"testing"
	"time"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/counter"
	"github.com/keystead/keystead/owner/gather"
	"github.com/keystead/keystead/owner/reqid"
)

var build = Ref{Key: "build", Name: "barrier"}

func arrives(party string, of uint32) gather.Arrive { return gather.Arrive{Party: party, Need: of} }

func arrived(t *testing.T, s *Store, now int64, id reqid.ID, op gather.Arrive) ArriveAnswer {
	t.Helper()
	a, err := s.Arrive(now, build, id, op)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func verdictOf(t *testing.T, s *Store, now int64, phase uint64) PhaseAnswer {
	t.Helper()
	a, _, err := s.AwaitPhase(now, build, phase, false)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func barriersOf(s *Store) int64 { return s.Stats().Objects[KindBarrier] }

// heard returns the answer that a caller waits for, which is there or comes soon.
func heard[A any](t *testing.T, p *Pending[A]) (A, bool) {
	t.Helper()
	select {
	case <-p.Done():
	case <-time.After(10 * time.Second):
		t.Fatal("it waits for ever")
	}
	defer p.End()
	return p.Answer()
}

// withStandby is an owner with its standby. Changes are told as they are between nodes.
func withStandby(t *testing.T, partial bool) (owner, standby *Store) {
	to := &copies{t: t, to: newStore(t, func(c *Config) { c.Rule = &testRule{epoch: 100} }), partial: partial}
	return newStore(t, func(c *Config) { c.Sink = to }), to.to
}

// A retry of an arrival counts once: under its request id over the end of the phase, and by its
// party before.
func TestBarrierRetryOfAnArrival(t *testing.T) {
	s := newStore(t, nil)
	first := arrived(t, s, 0, id(1), arrives("a", 2))
	if a := arrived(t, s, second, retry(1, second), arrives("a", 2)); !a.Replayed || a.At != first.At || a.Arrived != 1 || a.Last {
		t.Fatalf("a retry: %+v", a)
	}
	if a := arrived(t, s, second, noID, arrives("a", 2)); a.At != first.At || a.Arrived != 1 {
		t.Fatalf("again without an id: %+v", a)
	}
	if a := arrived(t, s, second, id(2), arrives("b", 2)); a.At != first.At || !a.Last || a.Verdict != gather.Passed || a.Phase <= first.At {
		t.Fatalf("the last: %+v", a)
	}
	if a := arrived(t, s, 2*second, retry(1, 2*second), arrives("a", 2)); a.At != first.At || a.Verdict != gather.Passed || a.Arrived != 0 {
		t.Errorf("a retry of before, in the next phase: %+v", a)
	}
	if a := arrived(t, s, 2*second, retry(2, second), arrives("b", 2)); !a.Last || !a.Replayed {
		t.Errorf("a retry of the last: %+v", a)
	}
	if _, err := s.Arrive(2*second, build, retry(1, 0), arrives("c", 2)); reason(err) != failure.RequestIDReused {
		t.Errorf("its id for another party: %v", err)
	}
	late := gather.Arrive{Party: "c", Need: 2, Phase: first.At}
	if a := arrived(t, s, 2*second, id(3), late); a.Outcome != gather.Over || a.At != 0 || a.Verdict != gather.Passed || a.Arrived != 0 {
		t.Errorf("too late for the phase: %+v", a)
	}
	if a := arrived(t, s, 2*second, retry(3, 0), late); a.Outcome != gather.Over || !a.Replayed || a.At != 0 || a.Verdict != gather.Passed {
		t.Errorf("and once more: %+v", a)
	}
}

// A failover between two arrivals loses none of them, and counts none twice: not in records of
// changes, nor in whole ones.
func TestBarrierFailoverBetweenArrivals(t *testing.T) {
	for _, partial := range []bool{true, false} {
		s, standby := withStandby(t, partial)
		first := arrived(t, s, 0, id(1), arrives("a", 3))
		arrived(t, s, 0, id(2), arrives("b", 3))
		if a := arrived(t, standby, second, retry(2, second), arrives("b", 3)); !a.Replayed || a.At != first.At || a.Arrived != 2 {
			t.Fatalf("partial: %v: a retry at the next owner: %+v", partial, a)
		}
		if a := verdictOf(t, standby, second, first.At); a.Verdict != gather.UnderWay {
			t.Fatalf("partial: %v: it is passed early: %+v", partial, a)
		}
		if a := arrived(t, standby, second, id(3), arrives("c", 3)); !a.Last || a.At != first.At || a.Phase <= first.At {
			t.Errorf("partial: %v: the last at the next owner: %+v", partial, a)
		}
	}
}

// A party of the last phase is none of the next, at a standby neither.
func TestBarrierStandbyForgetsThePartiesOfAPhase(t *testing.T) {
	s, standby := withStandby(t, true)
	for phase, last := 0, uint64(0); phase < 3; phase++ {
		arrived(t, s, 0, noID, arrives("a", 2))
		a := arrived(t, s, 0, noID, arrives("b", 2))
		if !a.Last || a.At <= last {
			t.Fatalf("phase %d: %+v", phase, a)
		}
		last = a.At
	}
	a, _, parties, err := standby.InspectBarrier(0, build, 10)
	if err != nil || a.Arrived != 0 || len(parties) != 0 || a.Passes != 3 {
		t.Errorf("the standby has %v: %+v %v", parties, a, err)
	}
}

// After the loss of the owner and its standby, no earlier phase is passed: a waiter is told
// that it is unknown, and the parties arrive again.
func TestBarrierAfterALoss(t *testing.T) {
	s := newStore(t, nil)
	before := arrived(t, s, 0, id(1), arrives("a", 2)).At
	next := newStore(t, func(c *Config) { c.Rule = &testRule{epoch: 107, lost: 105, lostAt: 0} })
	if a := verdictOf(t, next, 0, before); a.Verdict != gather.Unknown || a.Phase != 0 {
		t.Fatalf("a phase of before: %+v", a)
	}
	if a := arrived(t, next, 0, noID, gather.Arrive{Party: "b", Need: 2, Phase: before}); a.Outcome != gather.Over || a.Verdict != gather.Unknown {
		t.Fatalf("an arrival for it: %+v", a)
	}
	if a := arrived(t, next, 0, id(2), arrives("b", 2)); a.Last || a.At <= before || a.Arrived != 1 {
		t.Fatalf("the other party alone: %+v", a)
	}
	if a := arrived(t, next, 0, noID, arrives("a", 2)); !a.Last || verdictOf(t, next, 0, before).Verdict != gather.Unknown {
		t.Errorf("both, again: %+v", a)
	}
}

// After a loss, parties of a phaser register again; none arrives before all of them had the time
// to.
func TestPhaserAfterALoss(t *testing.T) {
	rule := &testRule{epoch: 107, lost: 105, terms: Terms{Grace: 10 * second}}
	s := newStore(t, func(c *Config) { c.Rule = rule })
	if a, err := s.RenewParty(0, build, "a", second); err != nil || a.OK {
		t.Fatalf("a renewal of before: %+v %v", a, err)
	}
	must(s.RegisterParty(0, build, id(1), gather.Register{Party: "a", TTL: 20 * second, Breaks: true}))
	if _, err := s.Arrive(second, build, id(2), arrives("a", 0)); reason(err) != failure.Recovering {
		t.Fatalf("it arrives alone: %v", err)
	}
	must(s.RegisterParty(second, build, id(3), gather.Register{Party: "b", TTL: 20 * second, Breaks: true}))
	rule.lost = 0
	if a := arrived(t, s, 11*second, id(2), arrives("a", 0)); a.Last || a.Parties != 2 {
		t.Errorf("after the grace: %+v", a)
	}
}

// Whoever waits is told when a phase ends, in gates, and nothing is left of them; who has left
// takes no room.
func TestBarrierTellsAllThatWait(t *testing.T) {
	const many = 10*gateSize + 1
	s := newStore(t, nil)
	phase := arrived(t, s, 0, noID, arrives("a", 2)).At
	var waits []*Pending[PhaseAnswer]
	for _, leave := range []bool{true, false} { // those who come then have the places of those who left
		for range many {
			_, p, err := s.AwaitPhase(0, build, phase, true)
			if err != nil {
				t.Fatal(err)
			}
			waits = append(waits, p)
		}
		for ; leave && len(waits) > 0; waits = waits[1:] {
			waits[0].End()
		}
	}
	sh := s.shard(Hash(build.Key))
	for _, of := range sh.gates {
		if len(of.all) > many/gateSize+1 || of.n != many {
			t.Errorf("%d gates for %d callers", len(of.all), of.n)
		}
	}
	if n := s.Stats().Waiting; n != many {
		t.Errorf("%d wait", n)
	}
	arrived(t, s, second, noID, arrives("b", 2))
	for _, p := range waits {
		if a, ok := heard(t, p); !ok || a.Verdict != gather.Passed {
			t.Fatalf("%+v %v", a, ok)
		}
	}
	if s.Stats().Waiting != 0 || len(sh.gates) != 0 {
		t.Errorf("%d wait, in %d gates", s.Stats().Waiting, len(sh.gates))
	}
}

// Reset while some wait: they hear that their phase is broken, and by what.
func TestBarrierBrokenWhileSomeWait(t *testing.T) {
	s := newStore(t, nil)
	phase := arrived(t, s, 0, noID, arrives("a", 2)).At
	_, p, _ := s.AwaitPhase(0, build, phase, true)
	if a := must(s.BreakBarrier(second, build, id(1))); !a.OK {
		t.Fatalf("%+v", a)
	}
	if a, ok := heard(t, p); !ok || a.Verdict != gather.Broken || a.Cause != gather.Reset {
		t.Errorf("%+v %v", a, ok)
	}
	if a := must(s.BreakBarrier(second, build, retry(1, 0))); !a.Replayed || !a.OK || verdictOf(t, s, second, a.Phase).Verdict != gather.UnderWay {
		t.Errorf("a retry breaks the next phase: %+v", a)
	}
}

// A dead party blocks nobody for ever: Wake ends its lease, and the phase with it.
func TestPhaserWakesWhenALeaseEnds(t *testing.T) {
	s := newStore(t, nil)
	must(s.RegisterParty(0, build, noID, gather.Register{Party: "dead", TTL: second, Breaks: true}))
	must(s.RegisterParty(0, build, noID, gather.Register{Party: "alive", TTL: 60 * second, Breaks: true}))
	phase := arrived(t, s, 0, noID, arrives("alive", 0)).At
	_, p, _ := s.AwaitPhase(0, build, phase, true)
	if at, ok := s.NextWake(); !ok || at != second {
		t.Fatalf("wakes at %d, %v", at, ok)
	}
	s.Wake(second)
	if a, ok := heard(t, p); !ok || a.Verdict != gather.Broken || a.Cause != gather.Lost || a.Who != "dead" {
		t.Errorf("%+v %v", a, ok)
	}
	if a := must(s.RenewParty(second, build, "dead", second)); a.OK {
		t.Error("the dead party is registered")
	}
}

// The standby that takes over ends leases that nobody renews, as the owner would.
func TestPhaserLeasesEndAtTheNextOwner(t *testing.T) {
	s, standby := withStandby(t, true)
	must(s.RegisterParty(0, build, id(1), gather.Register{Party: "dead", TTL: second, Breaks: false}))
	must(s.RegisterParty(0, build, id(2), gather.Register{Party: "alive", TTL: 60 * second, Breaks: true}))
	phase := arrived(t, s, 0, id(3), arrives("alive", 0)).At
	a, p, err := standby.AwaitPhase(second/2, build, phase, true)
	if err != nil || p == nil {
		t.Fatalf("%+v %v", a, err)
	}
	standby.Wake(2 * second)
	if a, ok := heard(t, p); !ok || a.Verdict != gather.Passed || a.Parties != 1 {
		t.Errorf("%+v %v", a, ok)
	}
}

// Whatever takes the object from here has those that wait ask again.
func TestBarrierMovesAwayFromThoseThatWait(t *testing.T) {
	other := newStore(t, func(c *Config) { c.Rule = &testRule{epoch: 200} })
	arrived(t, other, 0, noID, arrives("x", 2))
	for what, takes := range map[string]func(s *Store){
		"a copy": func(s *Store) {
			other.Export(func() int64 { return 0 }, always, (&copyTo{store: s}).emit, func() bool { return true })
		},
		"a dismiss": func(s *Store) { s.Dismiss(always) },
		"a discard": func(s *Store) { s.Discard(always) },
		"its end": func(s *Store) {
			must(s.LeaveBarrier(0, build, noID, gather.Leave{Party: "a", Phase: 0}))
			sweepAll(s, 2*gather.Keep)
		},
		"an operation": func(s *Store) {
			must(s.LeaveBarrier(0, build, noID, gather.Leave{Party: "a", Phase: 0}))
			must(s.RenewParty(2*gather.Keep, build, "a", second))
		},
	} {
		s := newStore(t, nil)
		phase := arrived(t, s, 0, noID, arrives("a", 2)).At
		_, p, err := s.AwaitPhase(0, build, phase, true)
		if err != nil {
			t.Fatal(err)
		}
		takes(s)
		if a, ok := heard(t, p); ok {
			t.Errorf("%s: %+v", what, a)
		}
	}
}

// The last token of an epoch begins no phase of which the next would be of no epoch.
func TestPhasesStayInTheEpoch(t *testing.T) {
	rule := &testRule{epoch: 100}
	s := newStore(t, func(c *Config) { c.Rule = rule })
	s.shard(Hash(build.Key)).lastToken = 101<<SeqBits - 2
	if a := arrived(t, s, 0, noID, arrives("a", 1)); !a.Last || a.At != 101<<SeqBits|1 || a.Phase != 101<<SeqBits|2 || rule.exhausted != 1 {
		t.Errorf("%x, then %x", a.At, a.Phase)
	}
}

// Nothing is left of what is refused, and what is there is bounded.
func TestBarrierRefusals(t *testing.T) {
	s := newStore(t, func(c *Config) { c.MaxWaiters = 1 })
	if a := arrived(t, s, 0, noID, arrives("a", 0)); a.Outcome != gather.NotThere || barriersOf(s) != 0 {
		t.Errorf("%+v, %d objects", a, barriersOf(s))
	}
	if a := verdictOf(t, s, 0, 5); a.Verdict != gather.Unknown || barriersOf(s) != 0 {
		t.Errorf("%+v", a)
	}
	phase := arrived(t, s, 0, noID, arrives("a", 2)).At
	if _, err := s.Arrive(0, build, noID, arrives("b", 3)); reason(err) != failure.CapacityMismatch {
		t.Errorf("another number: %v", err)
	}
	if _, err := s.RegisterParty(0, build, noID, gather.Register{Party: "b", TTL: second, Breaks: true}); reason(err) != failure.CapacityMismatch {
		t.Errorf("registered at a barrier: %v", err)
	}
	_, p, _ := s.AwaitPhase(0, build, phase, true)
	if _, _, err := s.AwaitPhase(0, build, phase, true); reason(err) != failure.TooManyWaiters {
		t.Errorf("one more that waits: %v", err)
	}
	p.End()
	for _, op := range []gather.Arrive{{}, {Party: "a", Need: gather.MaxParties + 1}, {Party: "a", Within: 1}, {Party: "a", Need: 1, Within: -1}, {Party: "\xff"}} {
		if _, err := s.Arrive(0, build, noID, op); reason(err) != failure.Invalid {
			t.Errorf("%+v: %v", op, err)
		}
	}
}

// What is over is forgotten, and told.
func TestBarrierIsForgotten(t *testing.T) {
	s, standby := withStandby(t, true)
	arrived(t, s, 0, noID, arrives("a", 1))
	sweepAll(s, gather.Keep-1)
	if barriersOf(s) != 1 || barriersOf(standby) != 1 {
		t.Fatalf("it is forgotten early: %d, %d", barriersOf(s), barriersOf(standby))
	}
	sweepAll(s, gather.Keep)
	if barriersOf(s) != 0 || barriersOf(standby) != 0 {
		t.Errorf("%d and %d objects are left", barriersOf(s), barriersOf(standby))
	}
}

// A counter is awaited until it is as it should be. One that does not exist never is: what was
// lost is not taken for one that has come down to 0.
func TestAwaitCounter(t *testing.T) {
	rule := &testRule{epoch: 100}
	s := newStore(t, func(c *Config) { c.Rule = rule })
	ref, zero := Ref{Key: "jobs", Name: "counter"}, Cond{Value: 0}
	add := func(n int64) { t.Helper(); must(s.Add(0, ref, noID, counter.AddOp{Delta: n})) }
	_, early, err := s.AwaitCounter(0, ref, zero, true)
	if err != nil || early == nil {
		t.Fatalf("of one that does not exist: %v", err)
	}
	add(3)
	_, most, _ := s.AwaitCounter(0, ref, zero, true)
	_, least, _ := s.AwaitCounter(0, ref, Cond{Least: true, Value: 5}, true)
	add(2)
	if a, ok := heard(t, least); !ok || a.Value != 5 {
		t.Errorf("at least: %+v %v", a, ok)
	}
	select {
	case <-most.Done():
		t.Error("it is told of what it does not await")
	default:
	}
	add(-5)
	for _, p := range []*Pending[GetAnswer]{early, most} {
		if a, ok := heard(t, p); !ok || a.Value != 0 || a.Version == 0 {
			t.Errorf("at most: %+v %v", a, ok)
		}
	}
	if len(s.shard(Hash(ref.Key)).sums) != 0 {
		t.Error("something is left of those that waited")
	}
	_, p, _ := s.AwaitCounter(0, ref, Cond{Value: -1}, true)
	must(s.Delete(0, ref, noID))
	if _, ok := heard(t, p); ok {
		t.Error("a deletion is no answer")
	}
	rule.lost = 99
	if a, p, err := s.AwaitCounter(0, ref, zero, true); err != nil || p != nil || zero.Met(a.Value, a.Version) || a.Permit.LostEpoch() != 99 {
		t.Errorf("of one that may have been lost: %+v %v", a, err)
	}
}

// Conditions for which one counter is awaited are bounded, and those that nobody awaits any more
// do not count.
func TestAwaitCounterIsBounded(t *testing.T) {
	s := newStore(t, nil)
	ref := Ref{Key: "jobs", Name: "counter"}
	for i := range 3 * maxConds {
		_, p, err := s.AwaitCounter(0, ref, Cond{Least: true, Value: int64(i)}, true)
		if err != nil {
			t.Fatal(i, err)
		}
		p.End()
	}
	for i := range maxConds + 1 {
		_, _, err := s.AwaitCounter(0, ref, Cond{Least: true, Value: int64(i)}, true)
		if want := i == maxConds; want != (reason(err) == failure.TooManyWaiters) {
			t.Errorf("condition %d: %v", i, err)
		}
	}
	s.Dismiss(always)
	if len(s.shard(Hash(ref.Key)).sums) != 0 {
		t.Error("something is left when the key has another owner")
	}
}

// One caller waits through the end of a phase in many goroutines: no answer is lost.
func TestBarrierUnderLoad(t *testing.T) {
	const parties, phases = 8, 200
	s := newStore(t, nil)
	passed := make(chan error, parties)
	for p := range parties {
		go func() {
			last := uint64(0)
			for range phases {
				a, err := s.Arrive(0, build, noID, arrives(fmt.Sprint(p), parties))
				for err == nil {
					w := PhaseAnswer{}
					var at *Pending[PhaseAnswer]
					if w, at, err = s.AwaitPhase(0, build, a.At, true); at != nil {
						<-at.Done()
						w, _ = at.Answer()
						at.End()
					}
					if err == nil && w.Verdict != gather.UnderWay {
						if w.Verdict != gather.Passed || a.At <= last {
							err = fmt.Errorf("%+v after %d", w, last)
						}
						break
					}
				}
				if last = a.At; err != nil {
					passed <- err
					return
				}
			}
			passed <- nil
		}()
	}
	for range parties {
		if err := <-passed; err != nil {
			t.Fatal(err)
		}
	}
	if a, _, _, _ := s.InspectBarrier(0, build, 0); a.Passes != phases {
		t.Errorf("%d phases were passed", a.Passes)
	}
}
