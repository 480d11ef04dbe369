package owner

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/internal/heldset"
	"github.com/keystead/keystead/owner/hold"
	"github.com/keystead/keystead/owner/reqid"
)

func sessionOf(client, generation uint64) hold.Session {
	return hold.Session{Client: reqid.Client{Hi: 36, Lo: client}, Generation: generation}
}

// under is an Acquire of the only permit of a key by a session.
func under(of hold.Session) hold.Acquire {
	return hold.Acquire{Name: "h", Weight: 1, Capacity: 1, TTL: 15 * second, Session: of}
}

func keyed(key string) Ref { return Ref{Key: key, Name: "semaphore"} }

func holdUnder(t testing.TB, s *Store, now int64, key string, of hold.Session) (token uint64) {
	t.Helper()
	a, _, err := s.AcquirePermits(now, keyed(key), noID, under(of))
	if err != nil || !a.Acquired {
		t.Fatalf("%q: %+v %v", key, a, err)
	}
	return a.Token
}

// keepAll keeps alive what a session holds, and returns how much it was.
func keepAll(t testing.TB, s *Store, now, ttl int64, of hold.Session) int {
	t.Helper()
	k := s.NewKeeper()
	if _, err := k.Find(now, of); err != nil {
		t.Fatal(err)
	}
	kept, all, err := k.Extend(now, ttl, func(uint64) bool { return true }, nil)
	if err != nil || !all {
		t.Fatal(all, err)
	}
	return len(kept)
}

func left(t testing.TB, s *Store, now int64, key string, token uint64) int64 {
	t.Helper()
	a, err := s.VerifyPermits(now, keyed(key), token)
	if err != nil {
		t.Fatal(err)
	}
	return a.Holding.Left
}

// indexed fails if the index is not what the holders say.
func indexed(t *testing.T, s *Store) {
	t.Helper()
	all := 0
	for i := range s.shards {
		sh := &s.shards[i]
		want := map[heldAt]hold.Session{}
		for slot := sh.cells.Next(0); slot != 0; slot = sh.cells.Next(slot) {
			if state := sh.heldLocked(slot); sh.entryLocked(slot).kind != 0 && state != nil {
				for _, h := range state.Holders {
					if h.Session.Given() {
						want[heldAt{slot, h.Token}] = h.Session
					}
				}
			}
		}
		all += len(want)
		for a, of := range want {
			l, ok := sh.sessions.holds[a]
			if !ok || l.of != of || sh.sessions.sessions[of][l.at] != a {
				t.Fatalf("%v of %v is listed as %v", a, of, l)
			}
		}
		n := 0
		for of, list := range sh.sessions.sessions {
			if n += len(list); len(list) == 0 || s.sessions.of(of).mask&(1<<(i%64)) == 0 {
				t.Fatalf("%v has %v in shard %d, and is counted as %+v", of, list, i, s.sessions.of(of))
			}
		}
		if n != len(want) || len(sh.sessions.holds) != len(want) {
			t.Fatalf("%d grants, %d and %d are listed", len(want), len(sh.sessions.holds), n)
		}
	}
	if n := s.Stats().SessionHolds; n != int64(all) {
		t.Fatalf("%d grants, %d are counted", all, n)
	}
}

// TestKeepAliveExtendsItsOwn: what the session holds, is named, and is not over; nothing of
// another generation, client, or of nobody's session.
func TestKeepAliveExtendsItsOwn(t *testing.T) {
	s := newStore(t, nil)
	us, before, other := sessionOf(1, 4), sessionOf(1, 3), sessionOf(2, 4)
	mine := holdUnder(t, s, 0, "mine", us)
	unnamed := holdUnder(t, s, 0, "unnamed", us)
	old := holdUnder(t, s, 0, "old", before)
	theirs := holdUnder(t, s, 0, "theirs", other)
	nobodys := holdUnder(t, s, 0, "nobodys", hold.Session{})
	indexed(t, s)
	k := s.NewKeeper()
	digest, err := k.Find(5*second, us)
	name := heldset.Hash("mine", "semaphore", mine)
	if err != nil || digest != heldset.Digest([]uint64{name, heldset.Hash("unnamed", "semaphore", unnamed)}) {
		t.Errorf("%x %v", digest, err)
	}
	kept, all, err := k.Extend(5*second, 15*second, func(h uint64) bool { return h == name }, nil)
	if err != nil || !all || len(kept) != 1 || kept[0].Hash != name || kept[0].Permit.Epoch != 100 {
		t.Errorf("%+v %v %v", kept, all, err)
	}
	rest := k.Unnamed(5*second, func(h uint64) bool { return h == name }, 8)
	if want := []SessionHold{{"unnamed", "semaphore", KindSemaphore, unnamed}}; !slices.Equal(rest, want) {
		t.Errorf("%+v, not %+v", rest, want)
	}
	for key, x := range map[string]struct {
		token uint64
		left  int64
	}{"mine": {mine, 15 * second}, "unnamed": {unnamed, 10 * second}, "old": {old, 10 * second}, "theirs": {theirs, 10 * second}, "nobodys": {nobodys, 10 * second}} {
		if l := left(t, s, 5*second, key, x.token); l != x.left {
			t.Errorf("%s: %d left", key, l)
		}
	}
	if n := keepAll(t, s, 16*second, 15*second, us); n != 1 {
		t.Errorf("%d were kept alive, of which one was over", n)
	}
	if l := left(t, s, 16*second, "unnamed", unnamed); l != 0 {
		t.Errorf("what was over has %d left", l)
	}
	indexed(t, s)
}

// TestKeepAliveNeverShortens: one that was held up says nothing about those after it, and
// neither does a Renew.
func TestKeepAliveNeverShortens(t *testing.T) {
	s := newStore(t, nil)
	us := sessionOf(1, 1)
	token := holdUnder(t, s, 0, "k", us)
	keepAll(t, s, 6*second, 60*second, us)
	keepAll(t, s, 7*second, 15*second, us)
	must(s.RenewPermits(7*second, keyed("k"), token, 15*second))
	if l := left(t, s, 7*second, "k", token); l != 59*second {
		t.Errorf("%d left", l)
	}
}

// TestEndReleasesOneGeneration, and what comes after it is granted: nothing marks a session as
// over.
func TestEndReleasesOneGeneration(t *testing.T) {
	s := newStore(t, nil)
	holdUnder(t, s, 0, "old", sessionOf(1, 4))
	kept := holdUnder(t, s, 0, "new", sessionOf(1, 5))
	_, w, err := s.AcquirePermits(0, keyed("old"), noID, hold.Acquire{Name: "w", Weight: 1, TTL: 15 * second, Wait: second})
	if err != nil {
		t.Fatal(err)
	}
	k := s.NewKeeper()
	must(k.Find(second/2, sessionOf(1, 4)))
	if ended := k.End(second/2, nil); len(ended) != 1 {
		t.Errorf("%+v", ended)
	}
	if a := givenPermits(t, w); a.Waited != second/2 || left(t, s, second/2, "new", kept) == 0 {
		t.Errorf("%+v", a)
	}
	must(k.Find(second/2, sessionOf(1, 4)))
	if ended := k.End(second/2, nil); len(ended) != 0 {
		t.Errorf("again: %+v", ended)
	}
	holdUnder(t, s, second, "late", sessionOf(1, 4))
	indexed(t, s)
}

// TestSessionsOfOthersRows: what this process does not own is neither found nor extended.
func TestSessionsOfOthersRows(t *testing.T) {
	rule := &testRule{epoch: 100}
	s := newStore(t, func(c *Config) { c.Rule = rule })
	holdUnder(t, s, 0, "k", sessionOf(1, 1))
	k := s.NewKeeper()
	must(k.Find(second, sessionOf(1, 1)))
	rule.admit = &failure.Error{Reason: failure.NotOwner}
	if kept, all, err := k.Extend(second, 15*second, func(uint64) bool { return true }, nil); len(kept) != 0 || all || err != nil {
		t.Errorf("%v %v %v", kept, all, err)
	}
	if digest := must(k.Find(second, sessionOf(1, 1))); digest != 0 {
		t.Errorf("%x", digest)
	}
}

// TestIndexIsMadeAnew: a copy has the sessions of what it was given, change by change or as a
// whole, and forgets them with it.
func TestIndexIsMadeAnew(t *testing.T) {
	to := newStore(t, nil)
	install := func(now int64) func(r *Record) {
		return func(r *Record) {
			if err := to.Install(now, r.Clone(), func(uint64) bool { return true }); err != nil {
				t.Fatal(err)
			}
		}
	}
	now := int64(0)
	from := newStore(t, func(c *Config) {
		c.Sink = partialSink{sinkOf(func(r *Record) { install(now)(r) })}
	})
	rng := rand.New(rand.NewPCG(36, 48))
	for range 3000 {
		now += rng.Int64N(second)
		key, of := keyed(fmt.Sprint(rng.IntN(8))), hold.Session{}
		if n := rng.Uint64N(4); n > 0 {
			of = sessionOf(n, 1)
		}
		switch rng.IntN(6) {
		case 0, 1, 2:
			_, _, _ = from.AcquirePermits(now, key, noID, hold.Acquire{Name: "h", Weight: 1, Capacity: 3, TTL: 15 * second, Session: of})
		case 3:
			keepAll(t, from, now, 15*second, sessionOf(1, 1))
		case 4:
			k := from.NewKeeper()
			must(k.Find(now, sessionOf(2, 1)))
			k.End(now, nil)
		case 5:
			from.Sweep(now)
		}
		indexed(t, from)
		indexed(t, to)
	}
	other := newStore(t, nil)
	from.Export(func() int64 { return now }, func(uint64) bool { return true }, func(r *Record, at int64) bool {
		if err := other.Install(at, r.Clone(), func(uint64) bool { return true }); err != nil {
			t.Error(err)
		}
		return true
	}, func() bool { return true })
	indexed(t, other)
	for i := range uint64(3) {
		of := sessionOf(i+1, 1)
		a, b, c := must(from.NewKeeper().Find(now, of)), must(to.NewKeeper().Find(now, of)), must(other.NewKeeper().Find(now, of))
		if a != b || a != c {
			t.Errorf("session %d: %x, the copy has %x, a whole copy %x", i+1, a, b, c)
		}
	}
	other.Discard(func(uint64) bool { return true })
	indexed(t, other)
	if st := other.Stats(); st.Sessions != 0 || st.SessionHolds != 0 {
		t.Errorf("%+v", st)
	}
}

// partialSink gets members one by one.
type partialSink struct{ Sink }

func (partialSink) Partial() bool { return true }

// TestPlaceKeepsItsSession: a waiter is granted under the session, also by the next owner.
func TestPlaceKeepsItsSession(t *testing.T) {
	s, to := newStore(t, nil), newStore(t, nil)
	us := sessionOf(1, 1)
	first, _ := permitsOf(t, s, 0, noID, wants("first", 1, 1, 0))
	op := under(us)
	op.Wait = 60 * second
	me := reqid.ID{Client: us.Client, Sequence: 1}
	permitsOf(t, s, 0, me, op)
	s.Export(func() int64 { return 0 }, func(uint64) bool { return true }, func(r *Record, at int64) bool {
		if err := to.Install(at, r.Clone(), func(uint64) bool { return true }); err != nil {
			t.Error(err)
		}
		return true
	}, func() bool { return true })
	to.Own(0, func(uint64) bool { return true }, second)
	_, w := permitsOf(t, to, 0, me, op)
	must(to.ReleasePermits(second, pool, noID, first.Token))
	a := givenPermits(t, w)
	if v := must(to.VerifyPermits(second, pool, a.Token)); v.Holding.Session != us {
		t.Errorf("%+v", v)
	}
	indexed(t, to)
}

// TestSessionsThatCannotBe are refused, and so is what comes too early or is too much.
func TestSessionsThatCannotBe(t *testing.T) {
	levels := &levelRule{}
	s := newStore(t, func(c *Config) { c.Rule = levels })
	ask := func(id reqid.ID, change func(*hold.Acquire)) error {
		op := under(sessionOf(1, 1))
		change(&op)
		_, _, err := s.AcquirePermits(0, pool, id, op)
		return err
	}
	none := func(*hold.Acquire) {}
	levels.level = SessionLevel - 1
	if err := ask(noID, none); err != ErrLevel {
		t.Errorf("before its level: %v", err)
	}
	levels.level = SessionLevel
	for what, err := range map[string]error{
		"session.client":           ask(noID, func(op *hold.Acquire) { op.Session.Client = reqid.Client{} }),
		"session.generation":       ask(noID, func(op *hold.Acquire) { op.Session.Generation = 0 }),
		"session.generation, high": ask(noID, func(op *hold.Acquire) { op.Session.Generation = hold.MaxGeneration + 1 }),
		"ttl_ns":                   ask(noID, func(op *hold.Acquire) { op.TTL = 10*second - 1 }),
		"ttl_ns, long":             ask(noID, func(op *hold.Acquire) { op.TTL = hold.MaxTTL + 1 }),
		"session.client, another":  ask(reqid.ID{Client: reqid.Client{Hi: 9}, Sequence: 1}, none),
		"idempotency_key":          ask(reqid.KeyID("k"), none),
	} {
		field, _, _ := strings.Cut(what, ",")
		if e := (*failure.Error)(nil); !errors.As(err, &e) || e.Reason != failure.Invalid || e.Field != field {
			t.Errorf("%s: %v", what, err)
		}
	}
	levels.terms.LockTTL = 2 * second // the longest that there is will do
	for ttl, ok := range map[int64]bool{2*second - 1: false, 2 * second: true, 2*second + 1: false} {
		if _, _, err := s.NewKeeper().Extend(0, ttl, nil, nil); ok != (err == nil) {
			t.Errorf("%d of at most %d: %v", ttl, levels.terms.LockTTL, err)
		}
	}
	levels.terms.LockTTL = 0
	s.sessions.add(sessionOf(1, 1), 0)
	mu, m := s.sessions.stripe(sessionOf(1, 1))
	mu.Lock()
	(*m)[sessionOf(1, 1)] = sessionCount{holds: MaxSessionHolds}
	mu.Unlock()
	if err := ask(noID, none); err != errSessionHolds {
		t.Errorf("above what a session may hold: %v", err)
	}
	s.sessions.sessions.Store(MaxSessions)
	if err := ask(noID, func(op *hold.Acquire) { op.Session = sessionOf(2, 1) }); err != errSessions {
		t.Errorf("above what a node knows: %v", err)
	}
	if _, err := s.NewKeeper().Find(0, hold.Session{}); failure.ReasonOf(err) != failure.Invalid {
		t.Errorf("%v", err)
	}
	if _, _, err := s.NewKeeper().Extend(0, second, nil, nil); failure.ReasonOf(err) != failure.Invalid {
		t.Errorf("%v", err)
	}
}

// TestReclaimUnderASession gives the grant back to the session that had it.
func TestReclaimUnderASession(t *testing.T) {
	rule := &testRule{epoch: 200, lost: 200}
	s := newStore(t, func(c *Config) { c.Rule = rule })
	rule.terms.Grace = 100 * second
	us, token := sessionOf(1, 1), uint64(150<<SeqBits|7)
	a, err := s.ReclaimPermits(0, pool, token, 15*second, HoldClaim{Holder: "h", Weight: 1, Capacity: 1, Session: us, Left: 12 * second})
	if err != nil || !a.Reclaimed || a.Holding.Session != us {
		t.Fatalf("%+v %v", a, err)
	}
	if n := keepAll(t, s, second, 15*second, us); n != 1 {
		t.Errorf("%d are kept alive", n)
	}
	indexed(t, s)
}

// What keeps grants alive allocates nothing for each of them.
func TestKeepAliveAllocatesNothing(t *testing.T) {
	s, of := newStore(t, nil), sessionOf(1, 1)
	for i := range 100 {
		holdUnder(t, s, 0, fmt.Sprint("key", i), of)
	}
	k := s.NewKeeper()
	kept, now := make([]Kept, 0, 100), int64(0)
	named := func(uint64) bool { return true }
	n := testing.AllocsPerRun(100, func() {
		now++
		_, _ = k.Find(now, of)
		kept, _, _ = k.Extend(now, 15*second, named, kept[:0])
	})
	if len(kept) != 100 || n > 0 {
		t.Errorf("%v allocations for %d grants", n, len(kept))
	}
}
