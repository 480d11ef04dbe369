package owner

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/hold"
	"github.com/keystead/keystead/owner/queue"
	"github.com/keystead/keystead/owner/reqid"
)

var pool = Ref{Key: "db", Name: "semaphore"}

func wants(holder string, permits, of uint32, wait int64) hold.Acquire {
	return hold.Acquire{Name: holder, Weight: permits, Capacity: of, TTL: 10 * second, Wait: wait}
}

func permitsOf(t *testing.T, s *Store, now int64, id reqid.ID, op hold.Acquire) (GrantAnswer, *Wait[GrantAnswer]) {
	t.Helper()
	a, w, err := s.AcquirePermits(now, pool, id, op)
	if err != nil {
		t.Fatal(err)
	}
	return a, w
}

func givenPermits(t *testing.T, w *Wait[GrantAnswer]) GrantAnswer {
	t.Helper()
	if w == nil || !w.finished() {
		t.Fatal("still waiting, or never did")
	}
	a, err := w.Answer()
	if err != nil || !a.Acquired {
		t.Fatalf("%+v %v", a, err)
	}
	return a
}

// TestReleaseOfManyServesMany: what one gives back goes to as many as it serves, in their order,
// a bounded number in each step; nobody passes between two of them.
func TestReleaseOfManyServesMany(t *testing.T) {
	const many = 3*hold.MaxGrants + 1
	records := 0
	s := newStore(t, func(c *Config) { c.Sink = sinkOf(func(*Record) { records++ }) })
	first, _ := permitsOf(t, s, 0, noID, wants("a", many, many, 0))
	var waits []*Wait[GrantAnswer]
	for i := range many {
		_, w := permitsOf(t, s, 0, id(uint64(i+1)), wants(fmt.Sprint(i), 1, many, 60*second))
		waits = append(waits, w)
	}
	_, last := permitsOf(t, s, 0, noID, wants("last", many, 0, 60*second))
	records = 0
	must(s.ReleasePermits(second, pool, noID, first.Token))
	if records != 1 || waits[hold.MaxGrants+1].finished() || !waits[hold.MaxGrants-1].finished() {
		t.Errorf("%d records, and not %d grants in one step", records, hold.MaxGrants)
	}
	if a, _ := permitsOf(t, s, second, noID, wants("hasty", 1, 0, 0)); a.Acquired || a.Token != 0 {
		t.Errorf("one that came later: %+v", a)
	}
	s.Wake(second)
	token := first.Token
	for _, w := range waits {
		a := givenPermits(t, w)
		if a.Token <= token || a.Waited != second || a.TTL != 10*second {
			t.Fatalf("%+v after %d", a, token)
		}
		token = a.Token
	}
	if last.finished() || s.Stats().Waiting != 1 {
		t.Errorf("%d wait", s.Stats().Waiting)
	}
}

// TestTokensOfManyStayInTheEpoch: a step grants no more than the epoch has tokens for, and the
// next one goes on with those of the next epoch.
func TestTokensOfManyStayInTheEpoch(t *testing.T) {
	rule := &testRule{epoch: 100}
	s := newStore(t, func(c *Config) { c.Rule = rule })
	first, _ := permitsOf(t, s, 0, noID, wants("a", 4, 4, 0))
	var waits []*Wait[GrantAnswer]
	for i := range 4 {
		_, w := permitsOf(t, s, 0, noID, wants(fmt.Sprint(i), 1, 4, 60*second))
		waits = append(waits, w)
	}
	s.shard(Hash(pool.Key)).lastToken = 101<<SeqBits - 3
	must(s.ReleasePermits(0, pool, noID, first.Token))
	s.Wake(0)
	for i, want := range []uint64{101<<SeqBits - 2, 101<<SeqBits - 1, 101<<SeqBits | 1, 101<<SeqBits | 2} {
		if a := givenPermits(t, waits[i]); a.Token != want {
			t.Errorf("%d: token %x, want %x", i, a.Token, want)
		}
	}
}

func TestCapacityIsPartOfTheObject(t *testing.T) {
	s := newStore(t, nil)
	if _, _, err := s.AcquirePermits(0, pool, noID, wants("a", 1, 0, 0)); reason(err) != failure.Invalid {
		t.Errorf("none: %v", err)
	}
	if st := s.Stats(); st.Objects[KindSemaphore] != 0 {
		t.Errorf("%d objects are left of calls that were refused", st.Objects[KindSemaphore])
	}
	a, _ := permitsOf(t, s, 0, noID, wants("a", 2, 3, 0))
	if _, _, err := s.AcquirePermits(0, pool, noID, wants("b", 1, 4, 0)); reason(err) != failure.CapacityMismatch {
		t.Errorf("another: %v", err)
	}
	if _, _, err := s.AcquirePermits(0, pool, noID, wants("b", 4, 0, 0)); reason(err) != failure.Invalid {
		t.Errorf("more than it has: %v", err)
	}
	_, b := permitsOf(t, s, 0, id(1), wants("b", 3, 0, 60*second))
	_, c := permitsOf(t, s, 0, noID, wants("c", 1, 3, 60*second))
	if v := must(s.SetCapacity(second, pool, id(2), 5)); v.Capacity != 5 || !v.Fixed || v.Held != 5 {
		t.Errorf("%+v", v.View)
	}
	givenPermits(t, b)
	if c.finished() {
		t.Error("more was granted than there is")
	}
	if v := must(s.SetCapacity(second, pool, retry(2, 0), 5)); !v.Replayed {
		t.Errorf("a retry: %+v", v)
	}
	_, d := permitsOf(t, s, second, noID, wants("d", 2, 5, 60*second))
	must(s.SetCapacity(second, pool, noID, 1))
	if _, err := d.Answer(); !d.finished() || reason(err) != failure.Invalid {
		t.Errorf("one that wants more than there is by now: %v", err)
	}
	must(s.ReleasePermits(second, pool, noID, a.Token))
	if c.finished() {
		t.Error("granted although more than the capacity is held")
	}
	must(s.ReleasePermits(second, pool, noID, must(b.Answer()).Token))
	givenPermits(t, c)
	must(s.ReleasePermits(second, pool, noID, must(c.Answer()).Token))
	for range s.shards { // an object whose capacity is set is not forgotten
		s.Sweep(1000 * second)
	}
	if v := must(s.InspectSemaphore(1000*second, pool, 1)); v.Capacity != 1 {
		t.Errorf("%+v", v.View)
	}
	must(s.SetCapacity(1000*second, pool, noID, 0))
	if st := s.Stats(); st.Objects[KindSemaphore] != 0 && s.shard(Hash(pool.Key)).entryLocked(1).ids == 0 {
		t.Errorf("%d objects", st.Objects[KindSemaphore])
	}
	permitsOf(t, s, 1000*second, noID, wants("e", 1, 9, 0))
}

// TestPermitsOfARetry: of two grants of which retries were told, neither is given back by the
// callers that left, and one of which none was told is.
func TestPermitsOfARetry(t *testing.T) {
	s := newStore(t, nil)
	first, _ := permitsOf(t, s, 0, noID, wants("a", 3, 3, 0))
	var waits []*Wait[GrantAnswer]
	for i := range uint64(3) {
		_, w := permitsOf(t, s, 0, id(i+1), wants(fmt.Sprint(i), 1, 3, 60*second))
		waits = append(waits, w)
	}
	must(s.ReleasePermits(0, pool, noID, first.Token))
	for i := range uint64(2) {
		if a, _ := permitsOf(t, s, second, id(i+1), wants(fmt.Sprint(i), 1, 3, 60*second)); !a.Replayed || a.TTL != 9*second {
			t.Errorf("retry %d: %+v", i, a)
		}
	}
	for _, w := range waits {
		w.GiveUp(second)
	}
	if v := must(s.InspectSemaphore(second, pool, 10)); v.Held != 2 || v.Longest[0].Name != "0" || v.Longest[1].Name != "1" {
		t.Errorf("%+v", v.View)
	}
}

// TestWhoLeavesLetsOthersPass: when a large waiter gives up, those behind it fit.
func TestWhoLeavesLetsOthersPass(t *testing.T) {
	s := newStore(t, nil)
	permitsOf(t, s, 0, noID, wants("a", 1, 2, 0))
	_, large := permitsOf(t, s, 0, id(1), wants("large", 2, 2, 60*second))
	_, small := permitsOf(t, s, 0, id(2), wants("small", 1, 2, 60*second))
	large.GiveUp(second)
	if at, ok := s.NextWake(); !ok || at > second {
		t.Errorf("the next wake is at %d", at)
	}
	s.Wake(second)
	givenPermits(t, small)
}

func TestUnderAToken(t *testing.T) {
	s := newStore(t, nil)
	a, _ := permitsOf(t, s, 0, noID, hold.Acquire{Name: "a", Weight: 2, Capacity: 2, TTL: 10 * second, Delay: 5 * second})
	if v := must(s.VerifyPermits(second, pool, a.Token)); !v.OK || v.Holding.Left != 9*second || v.Holding.Weight != 2 {
		t.Errorf("%+v", v)
	}
	if v := must(s.UpdatePermits(second, pool, noID, a.Token, []byte("m"))); !v.OK || string(v.Holding.Metadata) != "m" {
		t.Errorf("%+v", v)
	}
	_, b := permitsOf(t, s, second, noID, wants("b", 1, 2, 60*second))
	if v := must(s.DowngradePermits(second, pool, a.Token, 1)); !v.OK || v.Holding.Weight != 1 {
		t.Errorf("%+v", v)
	}
	givenPermits(t, b)
	if v := must(s.DowngradePermits(second, pool, a.Token, 2)); v.OK || v.Holding.Weight != 1 {
		t.Errorf("an upgrade: %+v", v)
	}
	if r := must(s.RevokePermits(2*second, pool, id(1), a.Token)); !r.Released {
		t.Error("not revoked")
	}
	if r := must(s.RevokePermits(2*second, pool, retry(1, 0), a.Token)); !r.Released || !r.Replayed {
		t.Error("a retry was told otherwise")
	}
	if v := must(s.VerifyPermits(2*second, pool, a.Token)); v.OK {
		t.Errorf("revoked: %+v", v)
	}
	if c, _ := permitsOf(t, s, 6*second, noID, wants("c", 1, 2, 0)); c.Acquired || c.Held != 2 {
		t.Errorf("granted before the delay was over: %+v", c)
	}
	if c, _ := permitsOf(t, s, 7*second, noID, wants("c", 1, 2, 0)); !c.Acquired {
		t.Errorf("not granted after it: %+v", c)
	}
}

// TestPermitsAreClaimed: after a loss nothing is granted, and claims are honoured in whatever
// order they come.
func TestPermitsAreClaimed(t *testing.T) {
	rule := &testRule{epoch: 100, lost: 100, terms: Terms{LockTTL: 60 * second, Grace: 60 * second}}
	s := newStore(t, func(c *Config) { c.Rule = rule })
	token := func(n uint64) uint64 { return 99<<SeqBits | n }
	claim := func(n uint64, permits uint32) HeldAnswer {
		return must(s.ReclaimPermits(second, pool, token(n), 10*second, HoldClaim{Holder: fmt.Sprint(n), Weight: permits, Capacity: 3, Left: 5 * second}))
	}
	if _, _, err := s.AcquirePermits(second, pool, noID, wants("x", 1, 3, 60*second)); reason(err) != failure.Recovering {
		t.Errorf("acquire: %v", err)
	}
	for what, ask := range map[string]func() error{
		"renew":   func() error { _, err := s.RenewPermits(second, pool, token(5), second); return err },
		"verify":  func() error { _, err := s.VerifyPermits(second, pool, token(5)); return err },
		"release": func() error { _, err := s.ReleasePermits(second, pool, noID, token(5)); return err },
		"revoke":  func() error { _, err := s.RevokePermits(second, pool, noID, token(5)); return err },
	} {
		if err := ask(); reason(err) != failure.Recovering {
			t.Errorf("%s: %v", what, err)
		}
	}
	if a := claim(5, 1); !a.Reclaimed || a.Holding.Left != 5*second {
		t.Errorf("%+v", a)
	}
	if a := claim(9, 2); !a.Reclaimed {
		t.Errorf("%+v", a)
	}
	if a := claim(7, 1); !a.Reclaimed {
		t.Errorf("%+v", a)
	}
	if a := claim(5, 1); a.OK {
		t.Errorf("one that ended for a higher one came back: %+v", a)
	}
	if r := must(s.ReleasePermits(second, pool, noID, token(7))); !r.Released {
		t.Error("not released")
	}
	for range s.shards {
		s.Sweep(30 * second)
	}
	if a := claim(7, 1); a.OK {
		t.Errorf("one that was released came back: %+v", a)
	}
	if _, err := s.ReclaimPermits(second, pool, 100<<SeqBits|1, 10*second, HoldClaim{Holder: "x", Weight: 1, Capacity: 3, Left: second}); reason(err) != failure.Invalid {
		t.Errorf("a token of after the loss: %v", err)
	}
	rule.lost = 0
	a, _ := permitsOf(t, s, 61*second, noID, wants("x", 3, 3, 0))
	if !a.Acquired || a.Token <= token(9) {
		t.Errorf("after the grace: %+v", a)
	}
}

// copies is a sink whose changes a store installs.
type copies struct {
	t       *testing.T
	to      *Store
	partial bool
}

func (c *copies) Partial() bool { return c.partial }

func (c *copies) Changed(r *Record) {
	if err := c.to.Install(r.At, r.Clone(), always); err != nil {
		c.t.Error(err)
	}
}

// TestPermitsCopy: a store that is told of every change, by member or as a whole, has what the
// owner has; and it goes on where that stopped, with the callers that come back.
func TestPermitsCopy(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		sink := &copies{t: t, partial: rapid.Bool().Draw(rt, "partial")}
		rule := &testRule{epoch: 100}
		from := newStore(t, func(c *Config) { c.Sink, c.Rule = sink, rule })
		sink.to = newStore(t, nil)
		now, seq := int64(0), uint64(0)
		var tokens []uint64
		var waits []*Wait[GrantAnswer]
		token := func() uint64 {
			if len(tokens) == 0 {
				return 1
			}
			return rapid.SampledFrom(tokens).Draw(rt, "token")
		}
		for range rapid.IntRange(5, 60).Draw(rt, "steps") {
			now += rapid.SampledFrom([]int64{0, 0, second, 3 * second}).Draw(rt, "pass")
			switch rapid.SampledFrom([]int{0, 0, 0, 0, 1, 2, 2, 3, 4, 5, 6, 7, 8}).Draw(rt, "op") {
			case 0:
				seq++
				op := hold.Acquire{Name: fmt.Sprint(seq), Weight: rapid.Uint32Range(1, 3).Draw(rt, "n"), TTL: 10 * second, Delay: rapid.SampledFrom([]int64{0, second}).Draw(rt, "delay"),
					Capacity: rapid.SampledFrom([]uint32{0, 4}).Draw(rt, "of"), Wait: rapid.SampledFrom([]int64{0, 2 * second, 2 * second, 20 * second}).Draw(rt, "wait")}
				a, w, _ := from.AcquirePermits(now, pool, id(seq), op)
				if w != nil {
					waits = append(waits, w)
				} else if a.Acquired {
					tokens = append(tokens, a.Token)
				}
			case 1:
				must(from.RenewPermits(now, pool, token(), 5*second))
			case 2:
				must(from.ReleasePermits(now, pool, noID, token()))
			case 3:
				must(from.UpdatePermits(now, pool, noID, token(), []byte{byte(seq)}))
			case 4:
				must(from.DowngradePermits(now, pool, token(), 1))
			case 5:
				must(from.RevokePermits(now, pool, noID, token()))
			case 6:
				must(from.SetCapacity(now, pool, noID, rapid.SampledFrom([]uint32{0, 2, 6}).Draw(rt, "capacity")))
			case 7:
				from.Wake(now)
			case 8:
				if len(waits) > 0 {
					waits[rapid.IntRange(0, len(waits)-1).Draw(rt, "who")].GiveUp(now)
				}
			}
			for _, w := range waits {
				if a, err := w.Answer(); w.finished() && err == nil && a.Acquired {
					tokens = append(tokens, a.Token)
				}
			}
			samePermits(rt, from, sink.to, now)
		}
		takeOver(rt, sink.to, now+rapid.SampledFrom([]int64{0, 12 * second}).Draw(rt, "later"))
	})
}

// samePermits compares what two stores have of the semaphore, and what they count of it.
func samePermits(rt *rapid.T, from, to *Store, now int64) {
	describe := func(s *Store) (text string) {
		s.Export(func() int64 { return now }, always, func(r *Record, _ int64) bool {
			if state := r.Hold(); state != nil {
				text = state.Describe(now)
			}
			return true
		}, func() bool { return true })
		return text
	}
	have, want := describe(to), describe(from)
	for i := range have {
		if i >= len(want) || have[i] != want[i] {
			rt.Fatalf("the copy is\n%s\nand the owner has\n%s", have, want)
		}
	}
	if len(have) != len(want) {
		rt.Fatalf("the copy is\n%s\nand the owner has\n%s", have, want)
	}
	for _, s := range []*Store{from, to} {
		sh := s.shard(Hash(pool.Key))
		if slot := sh.findLocked(s.addressTag(pool), pool); slot != 0 && sh.entryLocked(slot).rest != 0 {
			if state := sh.holds.At(sh.entryLocked(slot).rest); state.Valid() != nil {
				rt.Fatal(state.Valid())
			}
		}
	}
}

// takeOver has the copy become the owner: every caller that waits comes back, keeps its place,
// and is served.
func takeOver(rt *rapid.T, to *Store, now int64) {
	to.Own(now, always, OwnGrace)
	var again []*Wait[GrantAnswer]
	last := must(to.InspectSemaphore(now, pool, 100))
	for _, p := range last.First {
		var seq uint64
		fmt.Sscan(p.Name, &seq)
		_, w, err := to.AcquirePermits(now, pool, retry(seq, 1), hold.Acquire{Name: p.Name, Weight: p.Weight, TTL: 10 * second, Wait: 1000 * second})
		if err != nil || w == nil {
			rt.Fatalf("%s did not get its place: %v", p.Name, err)
		}
		again = append(again, w)
	}
	for range 50 {
		at, ok := to.NextWake()
		if !ok {
			break
		}
		to.Wake(at)
	}
	for i, w := range again {
		if a, err := w.Answer(); !w.finished() || err != nil || !a.Acquired {
			rt.Fatalf("%s was not served: %+v %v\n%+v", last.First[i].Name, a, err, must(to.InspectSemaphore(now, pool, 100)))
		}
	}
	if n := to.Stats().Waiting; n != 0 {
		rt.Fatalf("%d wait", n)
	}
}

// TestMembersAreBounded: a copy that would have more holders or places than any owner has is not
// that of the owner's.
func TestMembersAreBounded(t *testing.T) {
	s := newStore(t, nil)
	state := hold.State{Capacity: hold.MaxCapacity, Fixed: true, LastToken: 1 << 30, At: second}
	whole := func(holders, places int) *Record {
		all := state
		for i := range holders {
			all.Put(hold.Holder{Name: "h", Token: uint64(i + 1), Weight: 1, Expires: 2 * second})
		}
		for i := range places {
			all.Queue.Places = append(all.Queue.Places, hold.Waiter{Caller: queue.Caller{ID: id(uint64(i + 1))}, Request: hold.Request{Name: "w", Weight: 1, TTL: second}, GiveUp: 2 * second})
		}
		r := &Record{Hash: Hash(pool.Key), Key: []byte(pool.Key), Name: []byte(pool.Name), Version: 1, At: second}
		return r.SetHold(KindSemaphore, &all)
	}
	if err := s.Install(second, whole(hold.MaxHolders, semaphoreMachine.hold.queue), always); err != nil {
		t.Fatal(err)
	}
	for what, r := range map[string]*Record{"holder": whole(hold.MaxHolders+1, 0), "place": whole(0, MaxQueue+1)} {
		r.Partial, r.Members = true, r.Members[len(r.Members)-1:]
		if what == "place" {
			r.Members = whole(0, MaxQueue+1).Members[semaphoreMachine.hold.queue:]
		}
		if err := s.Install(second, r, always); reason(err) != failure.Invalid {
			t.Errorf("one %s more: %v", what, err)
		}
	}
}

func BenchmarkAcquireReleasePermits(b *testing.B) {
	for _, others := range []int{0, 100} {
		b.Run(fmt.Sprint("others=", others), func(b *testing.B) {
			s := newStore(b, nil)
			for range others {
				mustAcquire(s.AcquirePermits(0, pool, noID, hold.Acquire{Name: "o", Weight: 1, Capacity: 1000, TTL: hold.MaxTTL}))
			}
			b.ReportAllocs()
			for i := int64(0); b.Loop(); i++ {
				a, _, err := s.AcquirePermits(i, pool, noID, hold.Acquire{Name: "a", Weight: 1, Capacity: 1000, TTL: 10 * second})
				if err != nil || !a.Acquired {
					b.Fatal(a, err)
				}
				must(s.ReleasePermits(i, pool, noID, a.Token))
			}
		})
	}
}

func mustAcquire[A, B any](a A, _ B, err error) A {
	if err != nil {
		panic(err)
	}
	return a
}

// BenchmarkPermitsHandover is a permit that goes from one caller to another that waited.
func BenchmarkPermitsHandover(b *testing.B) {
	s := newStore(b, nil)
	a := mustAcquire(s.AcquirePermits(0, pool, noID, wants("a", 1, 1, 0)))
	b.ReportAllocs()
	for i := int64(1); b.Loop(); i++ {
		_, w, err := s.AcquirePermits(i, pool, id(uint64(i)), wants("b", 1, 1, second))
		if err != nil {
			b.Fatal(err)
		}
		must(s.ReleasePermits(i, pool, noID, a.Token))
		<-w.Done()
		a, _ = w.Answer()
	}
}
