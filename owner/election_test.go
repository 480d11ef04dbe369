package owner

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/reqid"
)

var chair = Ref{Key: "chair", Name: "election"}

func runs(candidate, value string, wait int64) Campaign {
	return Campaign{Candidate: candidate, Value: []byte(value), TTL: 10 * second, Wait: wait}
}

// campaigns has a candidate run; the term, or its place in line.
func campaigns(t testing.TB, s *Store, now int64, id reqid.ID, c Campaign) (GrantAnswer, *Wait[GrantAnswer]) {
	t.Helper()
	a, w, err := s.Campaign(now, chair, id, c)
	if err != nil {
		t.Fatal(err)
	}
	return a, w
}

// observer is what has been seen of an election.
type observer struct {
	seen  Seen
	token uint64 // 0: nobody leads
	value string
}

// look asks once, and reports whether there was news.
func (o *observer) look(t testing.TB, s *Store, now int64) (changed <-chan struct{}, due int64) {
	t.Helper()
	a, changed, err := s.AwaitElection(now, chair, o.seen)
	if err != nil {
		t.Fatal(err)
	}
	before := o.seen
	next, news := o.seen.Then(a.Seen)
	if news != (changed == nil) || next.Position < before.Position {
		t.Fatalf("%+v after %+v: news %v", a, before, news)
	}
	if o.seen = next; news {
		if o.token, o.value = 0, ""; len(a.Holders) > 0 {
			o.token, o.value = a.Holders[0].Token, string(a.Holders[0].Metadata)
		}
	}
	return changed, a.Due
}

// An observer learns that nobody leads any more: when the term ends by its TTL and nobody is there
// to take over, when it is revoked, and when the leader resigns.
func TestObserveReportsALostLeader(t *testing.T) {
	s, o := newStore(t, nil), observer{}
	if o.look(t, s, 0); o.token != 0 || o.seen.Position == 0 || o.seen.Exists {
		t.Errorf("nobody has led yet: %+v", o)
	}
	changed, due := o.look(t, s, 0)
	if due != 0 || closed(changed) {
		t.Errorf("something is to come in %d ns", due)
	}
	a, _ := campaigns(t, s, 0, noID, runs("a", "here", 0))
	if o.look(t, s, 0); !closed(changed) || o.token != a.Token || o.value != "here" {
		t.Errorf("%+v of %+v", o, a)
	}
	changed, due = o.look(t, s, second)
	if due != 9*second {
		t.Errorf("it is to look again in %d ns", due)
	}
	if o.look(t, s, 10*second-1); o.token == 0 {
		t.Error("too early")
	}
	if o.look(t, s, 10*second); o.token != 0 || !closed(changed) {
		t.Errorf("a leader that is over: %+v", o)
	}
	for _, end := range []func(now int64, token uint64){
		func(now int64, token uint64) { must(s.Resign(now, chair, noID, token)) },
		func(now int64, token uint64) { must(s.RevokeLeader(now, chair, noID, token)) },
	} {
		a, _ := campaigns(t, s, 20*second, noID, runs("b", "", 0))
		o.look(t, s, 20*second)
		changed, _ := o.look(t, s, 20*second)
		end(20*second, a.Token)
		if o.look(t, s, 20*second); o.token != 0 || !closed(changed) {
			t.Errorf("%+v, and waiters were told: %v", o, closed(changed))
		}
	}
}

// What a leader of before says is refused when its term is over, even if nobody has led since.
func TestTwoLeaders(t *testing.T) {
	s := newStore(t, nil)
	a, _ := campaigns(t, s, 0, noID, runs("a", "1", 0))
	if r := must(s.Proclaim(9*second, chair, noID, a.Token, []byte("2"))); !r.OK {
		t.Errorf("in its term: %+v", r)
	}
	if r := must(s.Proclaim(10*second, chair, noID, a.Token, []byte("3"))); r.OK {
		t.Errorf("when it is over, and nobody leads: %+v", r)
	}
	b, _ := campaigns(t, s, 11*second, noID, runs("b", "4", 0))
	if r := must(s.Proclaim(11*second, chair, noID, a.Token, []byte("5"))); r.OK {
		t.Errorf("under another: %+v", r)
	}
	var o observer
	if o.look(t, s, 11*second); o.token != b.Token || o.value != "4" {
		t.Errorf("%+v", o)
	}
	if must(s.VerifyLeader(11*second, chair, a.Token)).OK || !must(s.VerifyLeader(11*second, chair, b.Token)).OK {
		t.Error("both lead, or neither does")
	}
	if must(s.RenewLeader(11*second, chair, a.Token, 10*second)).OK {
		t.Error("a term that is over was renewed")
	}
}

// A Resign that was held up ends no later term, whether or not it is a retry.
func TestResignOfAnOldTerm(t *testing.T) {
	s := newStore(t, nil)
	a, _ := campaigns(t, s, 0, noID, runs("a", "", 0))
	if !must(s.Resign(second, chair, id(1), a.Token)).Released {
		t.Error("not resigned")
	}
	b, _ := campaigns(t, s, second, noID, runs("a", "", 0))
	if r := must(s.Resign(second, chair, retry(1, 0), a.Token)); !r.Released || !r.Replayed {
		t.Errorf("a retry: %+v", r)
	}
	if r := must(s.Resign(second, chair, noID, a.Token)); r.Released {
		t.Errorf("one that comes late: %+v", r)
	}
	if !must(s.VerifyLeader(second, chair, b.Token)).OK {
		t.Error("the newer term is over")
	}
}

// A campaign that timed out, or whose caller has left, leaves no ghost in line: it is never elected.
func TestCampaignLeavesNoGhost(t *testing.T) {
	s := newStore(t, nil)
	a, _ := campaigns(t, s, 0, noID, runs("a", "", 0))
	_, timedOut := campaigns(t, s, 0, id(1), runs("late", "", second))
	_, left := campaigns(t, s, 0, id(2), runs("gone", "", 60*second))
	left.GiveUp(second / 2)
	s.Wake(second)
	if r := must(timedOut.Answer()); r.Acquired || r.Holder.Name != "a" || r.Place != 1 {
		t.Errorf("%+v", r)
	}
	must(s.Resign(2*second, chair, noID, a.Token))
	s.Wake(2 * second)
	if v := must(s.InspectElection(2*second, chair, 1)); v.Holders != 0 || v.Waiting != 0 {
		t.Errorf("%+v", v.View)
	}
	if r, w := campaigns(t, s, 2*second, retry(1, 2*second), runs("late", "", second)); r.Acquired || w != nil || !r.Replayed {
		t.Errorf("a retry of what has timed out: %+v", r)
	}
}

// The end of a term concerns the next in line, and nobody else: no herd.
func TestResignationWakesOne(t *testing.T) {
	const many = 1000
	records := 0
	s := newStore(t, func(c *Config) { c.Sink = sinkOf(func(*Record) { records++ }) })
	a, _ := campaigns(t, s, 0, noID, runs("a", "", 0))
	waits := make([]*Wait[GrantAnswer], many)
	for i := range waits {
		_, waits[i] = campaigns(t, s, 0, id(uint64(i+1)), runs(fmt.Sprint(i), fmt.Sprint(i), 60*second))
	}
	var o observer
	o.look(t, s, second)
	changed, _ := o.look(t, s, second)
	for n := range 3 {
		records = 0
		must(s.Resign(second, chair, noID, a.Token))
		woken := 0
		for _, w := range waits {
			if w.finished() {
				woken++
			}
		}
		if woken != n+1 || records != 1 || s.Stats().Waiting != int64(many-n-1) {
			t.Fatalf("%d of %d were woken, in %d records", woken-n, many, records)
		}
		a = must(waits[n].Answer())
		if o.look(t, s, second); o.token != a.Token || o.value != fmt.Sprint(n) || !closed(changed) {
			t.Errorf("%+v, %d leads", o, n)
		}
		changed, _ = o.look(t, s, second)
	}
}

// After an unclean end nobody is elected for the delay, and that nobody leads is told at once.
func TestElectionDelay(t *testing.T) {
	s := newStore(t, nil)
	c := runs("a", "", 0)
	c.Delay = 5 * second
	a, _ := campaigns(t, s, 0, noID, c)
	_, next := campaigns(t, s, 0, noID, runs("b", "", 60*second))
	var o observer
	o.look(t, s, 0)
	s.Wake(10 * second)
	if o.look(t, s, 10*second); o.token != 0 || next.finished() {
		t.Errorf("%+v", o)
	}
	s.Wake(15 * second)
	if b := givenPermits(t, next); b.Token <= a.Token {
		t.Errorf("%+v", b)
	}
	if o.look(t, s, 15*second); o.token == 0 {
		t.Errorf("%+v", o)
	}
}

// A Proclaim that was held up on its way does not bring back what its retry had said before.
func TestProclaimThatWasHeldUp(t *testing.T) {
	s := newStore(t, nil)
	a, _ := campaigns(t, s, 0, noID, runs("a", "", 0))
	must(s.Proclaim(0, chair, id(1), a.Token, []byte("1")))
	must(s.Proclaim(0, chair, id(2), a.Token, []byte("2")))
	if r := must(s.Proclaim(0, chair, retry(1, second), a.Token, []byte("1"))); !r.OK || !r.Replayed {
		t.Errorf("%+v", r)
	}
	var o observer
	if o.look(t, s, 0); o.value != "2" {
		t.Errorf("%+v", o)
	}
	if _, err := s.Proclaim(0, chair, retry(1, second), a.Token, []byte("3")); reason(err) != failure.RequestIDReused {
		t.Errorf("another value under the id: %v", err)
	}
	if _, err := s.Proclaim(0, chair, noID, a.Token, make([]byte, 1025)); reason(err) != failure.Invalid || err.(*failure.Error).Field != "value" {
		t.Errorf("too long: %v", err)
	}
	if _, _, err := s.Campaign(0, chair, noID, runs("", "", 0)); reason(err) != failure.Invalid || err.(*failure.Error).Field != "candidate" {
		t.Errorf("nobody: %v", err)
	}
}

// After a loss who leads is unknown, not nobody, until the leader shows its claim; its version is
// above what was told then. Of two claims the later term stays.
func TestLeaderAfterALoss(t *testing.T) {
	s, rule := lost(t, nil)
	now := cameAt + second
	claims := func(token uint64, value string) HeldAnswer {
		return must(s.ReclaimLeader(now, chair, token, 10*second, LeaderClaim{Candidate: "a", Value: []byte(value), Left: 5 * second}))
	}
	var o observer
	if o.look(t, s, now); !o.seen.Unknown {
		t.Errorf("%+v", o)
	}
	if _, _, err := s.Campaign(now, chair, noID, runs("b", "", 60*second)); reason(err) != failure.Recovering {
		t.Errorf("%v", err)
	}
	if _, err := s.Proclaim(now, chair, noID, granted(3, 1), nil); reason(err) != failure.Recovering {
		t.Errorf("%v", err)
	}
	for i, token := range []uint64{granted(4, 9), granted(3, 1)} {
		if a := claims(token, fmt.Sprint(i)); !a.Reclaimed {
			t.Errorf("%d: %+v", i, a)
		}
		if o.look(t, s, now); o.token != token || o.value != fmt.Sprint(i) || o.seen.Unknown {
			t.Errorf("%d: %+v", i, o)
		}
	}
	if a := claims(granted(4, 9), ""); a.OK {
		t.Errorf("the earlier term: %+v", a)
	}
	rule.lost = 0
	if o.look(t, s, now+6*second); o.token != 0 || o.seen.Unknown {
		t.Errorf("%+v", o)
	}
}

// Whatever happens to an election and its owners, what an observer is told goes forward, and when
// there is no news, it has what is so.
func TestObserversHaveWhatIsSo(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		sink, rule := &copies{t: t, partial: rapid.Bool().Draw(rt, "partial")}, &testRule{epoch: 100}
		s := newStore(t, func(c *Config) { c.Sink, c.Rule = sink, rule })
		sink.to = newStore(t, func(c *Config) { c.Rule = ownsNothing })
		now, seq, o, token := int64(0), uint64(0), observer{}, uint64(0)
		for range rapid.IntRange(1, 40).Draw(rt, "steps") {
			now += rapid.Int64Range(0, 4).Draw(rt, "pass") * second
			s.Wake(now)
			seq++
			switch rapid.IntRange(0, 8).Draw(rt, "op") {
			case 0, 1:
				c := runs("c", fmt.Sprint(seq), rapid.SampledFrom([]int64{0, 20 * second}).Draw(rt, "wait"))
				c.Delay = rapid.SampledFrom([]int64{0, 2 * second}).Draw(rt, "delay")
				campaigns(t, s, now, id(seq), c)
			case 2:
				must(s.Proclaim(now, chair, noID, token, fmt.Append(nil, seq)))
			case 3:
				must(s.Resign(now, chair, noID, token))
			case 4:
				must(s.RevokeLeader(now, chair, noID, token))
			case 5:
				must(s.RenewLeader(now, chair, token, 5*second))
			case 6: // another object of the shard uses tokens
				must(s.SetRegister(now, Ref{Key: chair.Key, Name: "r"}, noID, puts("v")))
			case 7: // the owner is another
				if rapid.IntRange(0, 3).Draw(rt, "move") == 0 {
					rule = &testRule{epoch: rule.epoch + 1}
					s, sink = sink.to, &copies{t: t, partial: sink.partial, to: newStore(t, func(c *Config) { c.Rule = ownsNothing })}
					s.cfg.Rule, s.cfg.Sink, s.partial = rule, sink, sink
				}
			}
			v := must(s.InspectElection(now, chair, 1))
			so := observer{}
			if len(v.Longest) > 0 && v.Longest[0].Left > 0 {
				token = v.Longest[0].Token
				so.token, so.value = token, string(v.Longest[0].Metadata)
			}
			if rapid.Bool().Draw(rt, "looks") {
				if o.look(t, s, now); o.token != so.token || o.value != so.value {
					rt.Fatalf("at %d an observer has %+v, and it is %+v", now, o, so)
				}
			}
		}
	})
}
