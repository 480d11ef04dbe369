package owner

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/reqid"
)

// A hazard lease is a shared lock with a short TTL: readers of what a reclaimer wants to free hold it,
// and the reclaimer acquires it alone. The tests show that it is never granted that while a reader
// counts on its lease, also over a loss.

// reader is one that may use what the lock protects.
type reader struct {
	token uint64
	until int64 // it counts on its lease
}

// TestReclaimerWaitsForReaders: the transcript of a loss. The reader that claims keeps its lease, the
// one that does not is over, and the reclaimer is refused until the grace is over, and waits then.
func TestReclaimerWaitsForReaders(t *testing.T) {
	s, rule := lost(t, nil)
	now := cameAt + second
	reclaimer := func(now int64, n uint64, wait int64) (GrantAnswer, *Wait[GrantAnswer], error) {
		return s.Acquire(now, door, id(n), AcquireLock{Holder: "reclaimer", TTL: 10 * second, Wait: wait})
	}
	if _, _, err := reclaimer(now, 1, 60*second); reason(err) != failure.Recovering {
		t.Errorf("readers may be there, and nobody knows: %v", err)
	}
	tokens := []uint64{granted(3, 1), granted(2, 5)}
	for _, token := range tokens {
		if a := must(s.Reclaim(now, door, token, 10*second, Claim{Holder: "r", Shared: true, Left: 5 * second})); !a.Reclaimed {
			t.Errorf("%+v", a)
		}
	}
	if _, _, err := reclaimer(now, 2, 60*second); reason(err) != failure.Recovering {
		t.Errorf("others may be there: %v", err)
	}
	now = cameAt + longest + 2*second
	must(s.Renew(cameAt+5*second, door, tokens[0], longest))
	rule.lost = 0
	if a, _, err := reclaimer(now, 3, 0); err != nil || a.Acquired || a.Holder.Token != tokens[0] {
		t.Errorf("a reader has renewed: %+v, %v", a, err)
	}
	_, w, err := reclaimer(now, 4, 60*second)
	if err != nil || w == nil {
		t.Fatal(err)
	}
	if _, _, err := s.Acquire(now, door, id(5), AcquireLock{Holder: "late", Shared: true, TTL: second}); err != nil {
		t.Error(err)
	} // and is not granted: it would pass the reclaimer
	must(s.RevokeLock(now, door, noID, tokens[0]))
	s.Wake(now)
	if a := must(w.Answer()); !a.Acquired {
		t.Errorf("all readers are gone, or were revoked: %+v", a)
	}
	if must(s.Renew(now, door, tokens[0], second)).Renewed {
		t.Error("a reader that was revoked goes on")
	}
}

// TestReclaimerNeverPassesAReader: whatever readers do, and whenever all is lost, the reclaimer is
// never granted the lock while a reader counts on its lease; and no reader is told that its lease
// is over before it is, however late it claims.
func TestReclaimerNeverPassesAReader(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		rule := &testRule{epoch: 100, terms: Terms{LockTTL: longest, Grace: longest + second}}
		s := newStore(t, func(c *Config) { c.Rule = rule })
		now, seq, over, readers := cameAt, uint64(0), int64(0), map[int]*reader{}
		next := func() reqid.ID { seq++; return id(seq) }
		for range rapid.IntRange(1, 60).Draw(rt, "steps") {
			now += rapid.Int64Range(0, longest/4).Draw(rt, "pass")
			if over != 0 && now >= over {
				rule.lost, over = 0, 0
			}
			s.Wake(now)
			for n, r := range readers {
				if r.until <= now {
					delete(readers, n)
				}
			}
			n := rapid.IntRange(0, 3).Draw(rt, "reader")
			r, ttl := readers[n], rapid.Int64Range(second, longest).Draw(rt, "ttl")
			switch op := rapid.IntRange(0, 6).Draw(rt, "op"); {
			case op <= 1 && r == nil:
				a, _, err := s.Acquire(now, door, next(), AcquireLock{Holder: fmt.Sprint(n), Shared: true, TTL: ttl})
				if err == nil && a.Acquired {
					readers[n] = &reader{a.Token, now + ttl}
				}
			case op <= 1:
				a, err := s.Reclaim(now, door, r.token, ttl, Claim{Holder: fmt.Sprint(n), Shared: true, Left: r.until - now})
				switch {
				case err != nil || !a.Renewed:
					rt.Fatalf("a reader whose lease runs for another %d s: %+v, %v", (r.until-now)/second, a, err)
				case !a.Reclaimed:
					r.until = now + ttl
				}
			case op == 2 && r != nil:
				_, _ = s.Release(now, door, noID, r.token) // after a loss it may not be known; the reader has stopped all the same
				delete(readers, n)
			case op <= 4: // the reclaimer
				a, _, err := s.Acquire(now, door, next(), AcquireLock{Holder: "reclaimer", TTL: second})
				if err == nil && a.Acquired {
					if len(readers) > 0 {
						rt.Fatalf("it was granted beside %d readers, at %d", len(readers), now)
					}
					must(s.Release(now, door, noID, a.Token))
				}
			case op == 5 && over == 0: // all that kept it is gone
				rule = &testRule{epoch: rule.epoch + 5, lost: rule.epoch + 2, lostAt: now, terms: rule.terms}
				s, over = newStore(t, func(c *Config) { c.Rule = rule }), now+longest+second
			}
		}
	})
}
