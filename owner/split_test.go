package owner

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/counter"
	"github.com/keystead/keystead/owner/limit"
	"github.com/keystead/keystead/owner/reqid"
)

// phase is how far an object is split, as the table says.
type phase int

const (
	single phase = iota
	opening
	open
	closing
)

// splitRule is a rule under which one object may be split, into parts with the keys
// partKey(0), partKey(1) and so on.
type splitRule struct {
	testRule
	home    string
	phase   phase
	weights []uint32
}

func partKey(i int) string { return fmt.Sprintf("\x00split.%d", i) }

func (r *splitRule) part(key string) int {
	for i := range r.weights {
		if key == partKey(i) {
			return i
		}
	}
	return -1
}

func (r *splitRule) Split(hash uint64) bool {
	if r.phase == single {
		return false
	}
	for i := range r.weights {
		if hash == Hash(partKey(i)) {
			return true
		}
	}
	return hash == Hash(r.home)
}

var errFrozen = &failure.Error{Reason: failure.NotOwner, Message: "frozen"}

func (r *splitRule) May(ref Ref, kind Kind) (uint32, error) {
	i := r.part(ref.Key)
	if i < 0 && ref.Key != r.home {
		return 0, errFrozen
	}
	may := map[phase][]Role{opening: {Carry, Plant}, open: {Share, Sample}, closing: {Reap, Join}}
	if kind == KindLock || !slices.Contains(may[r.phase], ref.Role) {
		return 0, errFrozen
	}
	if i < 0 {
		return 0, nil
	}
	return r.weights[i], nil
}

// newSplit is a store with the rule, and a copy that installs all that it tells.
func newSplit(t testing.TB, rule *splitRule) (s, standby *Store) {
	rule.epoch, rule.since = 100, math.MinInt64
	standby = newStore(t, func(c *Config) { c.Rule = ownsNothing })
	return newStore(t, func(c *Config) { c.Rule, c.Sink = rule, &copyTo{store: standby} }), standby
}

// own has the standby act by the rule of the owner.
func own(standby *Store, rule *splitRule) {
	standby.cfg.Rule, standby.splits = rule, rule
}

// readAll returns what Read gives, with a life of its own.
func readAll(t testing.TB, s *Store, now int64, ref Ref, kind Kind) (all []*Record) {
	t.Helper()
	_, err := s.Read(now, ref, kind, func(r *Record, at int64) {
		if at < now || r.Validate(at) != nil {
			t.Fatalf("%+v: %v", r, r.Validate(at))
		}
		all = append(all, r.Clone())
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// ofPart returns which of n parts remembers an operation.
func ofPart(c reqid.Client, seq uint64, n int) int { return int((c.Hi ^ c.Lo ^ seq) % uint64(n)) }

// split does what the home of an object does: it carries it to its parts.
func (r *splitRule) split(t testing.TB, s *Store, now int64, name string, kind Kind, weights ...uint32) (base int64) {
	t.Helper()
	r.phase, r.weights = opening, weights
	whole := readAll(t, s, now, Ref{Key: r.home, Name: name, Role: Carry}, kind)
	base = whole[0].Counter().Value
	state, _ := whole[0].Limit()
	states := state.Divide(weights, now)
	for i := range weights {
		var records []*Record
		for _, from := range whole {
			ids := &reqid.Kept{Evicted: from.IDs.Evicted}
			ops := from.IDs.Ops
			for _, c := range from.IDs.Clients {
				own := ops[:c.Ops]
				ops, c.Ops = ops[c.Ops:], 0
				for _, o := range own {
					if ofPart(c.Client, o.Sequence, len(weights)) == i {
						ids.Ops = append(ids.Ops, o)
						c.Ops++
					}
				}
				ids.Clients = append(ids.Clients, c)
			}
			to := &Record{Kind: kind, Whole: from.Whole, More: from.More, IDs: ids, At: now}
			if from.Whole && kind == KindLimit {
				to.SetLimit(states[i], nil)
			}
			records = append(records, to)
		}
		for range 2 { // twice is the same as once
			must(s.Put(now, Ref{Key: partKey(i), Name: name, Role: Plant}, records))
		}
	}
	r.phase = open
	return base
}

// join does what the home does to put the object together again.
func (r *splitRule) join(t testing.TB, s *Store, now int64, name string, kind Kind, base int64) {
	t.Helper()
	r.phase = closing
	var states []limit.State
	ids := &reqid.Kept{Evicted: math.MinInt64}
	byClient := map[reqid.Client]*reqid.KeptClient{}
	ops := map[reqid.Client][]reqid.KeptOp{}
	for i := range r.weights {
		for n, from := range readAll(t, s, now, Ref{Key: partKey(i), Name: name, Role: Reap}, kind) {
			if n == 0 {
				state, _ := from.Limit()
				states = append(states, state)
				base += from.Counter().Value
			}
			ids.Evicted = max(ids.Evicted, from.IDs.Evicted)
			rest := from.IDs.Ops
			for _, c := range from.IDs.Clients {
				ops[c.Client] = append(ops[c.Client], rest[:c.Ops]...)
				rest = rest[c.Ops:]
				if have := byClient[c.Client]; have == nil {
					byClient[c.Client] = &c
				} else {
					have.Floor, have.Seen, have.Linked = max(have.Floor, c.Floor), max(have.Seen, c.Seen), max(have.Linked, c.Linked)
				}
			}
		}
	}
	for id, c := range byClient {
		own := ops[id]
		slices.SortStableFunc(own, func(a, b reqid.KeptOp) int { return int(a.At - b.At) })
		c.Ops, c.Linked = len(own), min(c.Linked, c.Seen)
		ids.Clients, ids.Ops = append(ids.Clients, *c), append(ids.Ops, own...)
	}
	to := (&Record{Whole: true, IDs: ids, At: now}).SetCounter(counter.State{Value: base})
	if kind == KindLimit {
		to.SetLimit(limit.Unite(states, now), nil)
	}
	for range 2 {
		must(s.Put(now, Ref{Key: r.home, Name: name, Role: Join}, []*Record{to}))
	}
	r.phase, r.weights = single, nil
}

// What operations come in which role, and whom the rule is asked about.
func TestRoles(t *testing.T) {
	rule := &splitRule{home: "k", weights: []uint32{limit.FullWeight / 2, limit.FullWeight / 2}}
	s, _ := newSplit(t, rule)
	plain := newStore(t, nil)
	nothing := []*Record{{Kind: KindCounter, Whole: true, IDs: &reqid.Kept{Evicted: math.MinInt64}}}
	get := func(s *Store, r Ref) error { _, err := s.Get(0, r); return err }
	ops := map[string]func(s *Store, r Ref) error{
		"check": func(s *Store, r Ref) error { r.Name = "limit"; _, err := s.Check(0, r, noID, perSecond(9)); return err },
		"add":   func(s *Store, r Ref) error { _, err := s.Add(0, r, noID, counter.AddOp{Delta: 1}); return err },
		"get":   get,
		"acquire": func(s *Store, r Ref) error {
			r.Name = "lock"
			_, _, err := s.Acquire(0, r, noID, AcquireLock{Holder: "h", TTL: second})
			return err
		},
		"take": func(s *Store, r Ref) error { _, err := s.Read(0, r, KindCounter, func(*Record, int64) {}); return err },
		"put":  func(s *Store, r Ref) error { _, err := s.Put(0, r, nothing); return err },
	}
	comes := map[string][]Role{
		"check": {Whole, Share}, "add": {Whole, Share}, "get": {Whole, Share, Sample}, "acquire": {Whole},
		"take": {Carry, Reap, Sample}, "put": {Plant, Join},
	}
	when := map[phase][]Role{single: {Whole}, opening: {Carry, Plant}, open: {Share, Sample}, closing: {Reap, Join}}
	for name, op := range ops {
		for role := Whole; role <= Sample+1; role++ {
			ref := Ref{Key: "k", Name: "n", Role: role}
			other := Ref{Key: partKey(0), Name: "n", Role: role}
			if role.onPart() {
				ref, other = other, ref
			}
			if got := reason(op(s, other)); got != failure.Invalid {
				t.Errorf("%s in role %d at %q: %v", name, role, other.Key, got)
			}
			if !slices.Contains(comes[name], role) {
				if got := reason(op(s, ref)); got != failure.Invalid {
					t.Errorf("%s in role %d: %v", name, role, got)
				}
				continue
			}
			for rule.phase = single; rule.phase <= closing; rule.phase++ {
				want := failure.NotOwner
				if slices.Contains(when[rule.phase], role) {
					want = 0
				}
				if got := reason(op(s, ref)); got != want {
					t.Errorf("%s in role %d in phase %d: %v, want %v", name, role, rule.phase, got, want)
				}
			}
			if got := reason(op(plain, ref)); (got != 0) != (role != Whole) || got != 0 && got != failure.NotOwner {
				t.Errorf("%s in role %d where nothing is split: %v", name, role, got)
			}
		}
	}
	rule.phase = open
	if err := get(s, Ref{Key: "other", Name: "n"}); err != nil {
		t.Errorf("another object: %v", err)
	}
}

// Whatever happens to a counter while it is split, is in it when it is united, and
// retries of before, meanwhile and after are answered as at first.
func TestCounterSplitAndJoined(t *testing.T) {
	const n, each = 3, 40
	rule := &splitRule{home: "home"}
	s, standby := newSplit(t, rule)
	now, total := 100*second, int64(0)
	whole := Ref{Key: "home", Name: "n"}
	client := func(c, seq uint64) reqid.ID { return reqid.ID{Client: reqid.Client{Hi: c}, Sequence: seq} }
	var asked []reqid.ID
	add := func(s *Store, ref Ref, id reqid.ID, again bool) {
		t.Helper()
		id.Age = 0
		if again {
			id.Age = second
		}
		a := must(s.Add(now, ref, id, counter.AddOp{Delta: int64(id.Sequence)}))
		if a.Replayed != again || !a.Applied {
			t.Fatalf("%v again %v: %+v", id, again, a)
		}
		if !again {
			total += int64(id.Sequence)
			asked = append(asked, id)
		}
	}
	for i := range uint64(each) {
		add(s, whole, client(i%4, i+1), false)
	}
	before := must(s.Get(now, whole)).Version
	now += second
	base := rule.split(t, s, now, "n", KindCounter, 1, 2, 3)
	if base != total {
		t.Fatalf("base %d, want %d", base, total)
	}
	share := func(id reqid.ID) Ref {
		return Ref{Key: partKey(ofPart(id.Client, id.Sequence, n)), Name: "n", Role: Share}
	}
	for _, id := range slices.Clone(asked) {
		add(s, share(id), id, true)
	}
	for i := range uint64(each) {
		id := client(i%4, each+i+1)
		add(s, share(id), id, false)
	}
	for _, id := range slices.Clone(asked) {
		add(s, share(id), id, true)
	}
	sum := base
	for i := range n {
		v := must(s.Get(now, Ref{Key: partKey(i), Name: "n", Role: Sample})).Value
		if got := must(s.Get(now, Ref{Key: partKey(i), Name: "n", Role: Share})).Value; got != v {
			t.Errorf("part %d is %d and %d", i, got, v)
		}
		sum += v
	}
	if sum != total {
		t.Errorf("the parts are %d together, want %d", sum, total)
	}
	now += second
	rule.join(t, s, now, "n", KindCounter, base)
	own(standby, rule)
	for _, s := range []*Store{s, standby} {
		if a := must(s.Get(now, whole)); a.Value != total || a.Version <= before {
			t.Errorf("%+v, want %d above version %d", a, total, before)
		}
		for _, id := range asked {
			add(s, whole, id, true)
		}
	}
}

// A counter that exists does so after it was split, even at 0: who expects that it
// does not is refused.
func TestJoinedCounterExists(t *testing.T) {
	rule := &splitRule{home: "home"}
	s, _ := newSplit(t, rule)
	whole := Ref{Key: "home", Name: "n"}
	for _, there := range []bool{false, true} {
		base := rule.split(t, s, 0, "n", KindCounter, 1, 1)
		rule.join(t, s, 0, "n", KindCounter, base)
		if a := must(s.Get(0, whole)); a.Value != 0 || (a.Version != 0) != there {
			t.Errorf("%+v, want one that exists %v", a, there)
		}
		must(s.Add(0, whole, noID, counter.AddOp{Delta: 1}))
		must(s.Add(0, whole, noID, counter.AddOp{Delta: -1}))
	}
}

// A limit that is split has the tokens that it had, shows the capacity of the whole,
// and is what it was when it is united.
func TestLimitSplitAndJoined(t *testing.T) {
	rule := &splitRule{home: "home"}
	s, standby := newSplit(t, rule)
	now, whole := 100*second, Ref{Key: "home", Name: "n"}
	op := limit.Op{Params: limit.Params{Limit: 100, Period: 1000 * second}, Cost: 20}
	must(s.Check(now, whole, id(1), op))
	rule.split(t, s, now, "n", KindLimit, limit.FullWeight/2, limit.FullWeight/4)
	op.Cost = 1
	drain := func(s *Store, part int) (n int) {
		for ; ; n++ {
			a := must(s.Check(now, Ref{Key: partKey(part), Name: "n", Role: Share}, noID, op))
			if a.Capacity != 100 || a.Slack != []uint64{50, 75}[part] {
				t.Fatalf("part %d: %+v", part, a)
			}
			if !a.Allowed {
				return n
			}
		}
	}
	if n := drain(s, 0); n != 40 {
		t.Errorf("half of 80 is %d", n)
	}
	own(standby, rule) // it has the parts, as they are
	if n := drain(standby, 0); n != 0 {
		t.Errorf("the copy has %d more", n)
	}
	if n := drain(standby, 1); n != 20 {
		t.Errorf("a quarter of 80 is %d", n)
	}
	standby.cfg.Rule, standby.splits = ownsNothing, nil
	if n := drain(s, 1); n != 20 {
		t.Errorf("a quarter of 80 is %d", n)
	}
	peek := op
	peek.Peek = true
	if a := must(s.Check(now, Ref{Key: partKey(1), Name: "n", Role: Share}, noID, peek)); a.Allowed || a.Remaining != 0 {
		t.Errorf("%+v", a)
	}
	if a := must(s.Check(now, Ref{Key: partKey(1), Name: "n", Role: Share}, noID, refund(op, 5))); a.Remaining != 5 || a.Capacity != 100 {
		t.Errorf("refunded: %+v", a)
	}
	peek.Cost = 100 // more than the part has room for: reading that makes nothing whole
	if a := must(s.Check(now, Ref{Key: partKey(1), Name: "n", Role: Share}, noID, peek)); a.Allowed || a.Remaining != 5 || a.Capacity != 100 || a.Slack != 75 {
		t.Errorf("%+v", a)
	}
	small := limit.Op{Params: limit.Params{Limit: 2, Period: second}, Cost: 1, Peek: true} // no part has room for a token
	if a := must(s.Check(now, Ref{Key: partKey(1), Name: "n", Role: Share}, noID, small)); a.Allowed || a.Remaining != 0 || a.Capacity != 2 || a.Slack != 2 {
		t.Errorf("%+v", a)
	}
	rule.join(t, s, now, "n", KindLimit, 0)
	op.Peek = true
	a := must(s.Check(now, whole, noID, op))
	if a.Remaining != 5 || a.Slack != 0 { // 20 have no part
		t.Errorf("united: %+v", a)
	}
	op.Peek, op.Cost = false, 20
	if a := must(s.Check(now, whole, retry(1, second/2), op)); !a.Replayed || !a.Allowed {
		t.Errorf("a retry of before: %+v", a)
	}
	op.Cost = 1
	if a := must(s.Check(now, whole, noID, op)); a.Remaining != 4 {
		t.Errorf("united: %+v", a)
	}
	if state := stateOf(t, s, whole); state.Weight != 0 {
		t.Errorf("%+v is that of a whole limit after an operation", state)
	}
}

// stateOf returns the limit that a store holds.
func stateOf(t testing.TB, s *Store, ref Ref) (state limit.State) {
	t.Helper()
	found := false
	s.Export(func() int64 { return 0 }, always, func(r *Record, _ int64) bool {
		if string(r.Key) == ref.Key && string(r.Name) == ref.Name {
			state, _ = r.Limit()
			found = true
		}
		return true
	}, func() bool { return true })
	if !found {
		t.Fatalf("%q is not there", ref.Key)
	}
	return state
}

// Another weight gets to the state with the next operation, refused or not, and one
// that is lower with a Sample.
func TestWeightsGetToStates(t *testing.T) {
	rule := &splitRule{home: "home"}
	s, standby := newSplit(t, rule)
	part := Ref{Key: partKey(0), Name: "n", Role: Share}
	now := 100 * second
	op := limit.Op{Params: limit.Params{Limit: 100, Period: 1000 * second}, Cost: 10}
	rule.split(t, s, now, "n", KindLimit, limit.FullWeight/2, limit.FullWeight/2)
	for range 5 {
		must(s.Check(now, part, noID, op))
	}
	both := func(want limit.State) {
		t.Helper()
		for _, s := range []*Store{s, standby} {
			if got := stateOf(t, s, part); got != want {
				t.Errorf("%+v, want %+v", got, want)
			}
		}
	}
	both(limit.State{Weight: limit.FullWeight / 2, At: now, Spent: 50, Limit: 100, Period: 2000 * second})
	rule.weights[0] = limit.FullWeight / 4
	if a := must(s.Check(now, part, noID, op)); a.Allowed || a.Slack != 75 || a.Remaining != 0 {
		t.Errorf("lower: %+v", a)
	}
	both(limit.State{Weight: limit.FullWeight / 4, At: now, Spent: 25, Limit: 100, Period: 4000 * second})
	rule.weights[0] = limit.FullWeight
	if a := must(s.Check(now, part, noID, refund(op, 5))); a.Slack != 0 || a.Remaining != 5 {
		t.Errorf("higher: %+v", a)
	}
	both(limit.State{Weight: limit.FullWeight, At: now, Spent: 95, Limit: 100, Period: 1000 * second})
	rule.weights[0] = limit.FullWeight / 2
	look := Ref{Key: part.Key, Name: "n", Role: Sample}
	if state, _ := readAll(t, s, now, look, KindLimit)[0].Limit(); state.Weight != limit.FullWeight/2 || state.Spent != 95 {
		t.Errorf("looked at: %+v", state)
	}
	both(limit.State{Weight: limit.FullWeight / 2, At: now, Spent: 95, Limit: 100, Period: 2000 * second})
	rule.weights[0] = limit.FullWeight
	readAll(t, s, now, look, KindLimit)
	both(limit.State{Weight: limit.FullWeight / 2, At: now, Spent: 95, Limit: 100, Period: 2000 * second})
	must(s.Check(now, part, noID, refund(op, 1000)))
	both(limit.State{Weight: limit.FullWeight})
	rule.weights[0] = limit.FullWeight / 4
	must(s.Check(now, part, noID, refund(op, 1))) // which gives nothing back
	both(limit.State{Weight: limit.FullWeight / 4})
}

// A part of a limit that was lost is empty, and fills from the first operation on; it
// is never forgotten by its state.
func TestLostParts(t *testing.T) {
	rule := &splitRule{home: "home"}
	s, _ := newSplit(t, rule)
	part := Ref{Key: partKey(0), Name: "n", Role: Share}
	now := 100 * second
	rule.split(t, s, now, "n", KindLimit, limit.FullWeight/2, limit.FullWeight/2)
	s.Discard(func(h uint64) bool { return h == Hash(part.Key) })
	op := perSecond(10)
	peek := op
	peek.Peek = true
	if a := must(s.Check(now, part, noID, peek)); a.Allowed || a.RetryAfter != second/5 {
		t.Errorf("looked at: %+v", a)
	}
	for at, want := range map[int64]bool{now: false, now + second/5 - 1: false} {
		if a := must(s.Check(at, part, noID, op)); a.Allowed != want || a.Capacity != 10 || a.Slack != 5 {
			t.Errorf("at %d: %+v", at-now, a)
		}
	}
	if a := must(s.Check(now+second/2, part, noID, op)); !a.Allowed {
		t.Errorf("it does not fill: %+v", a)
	}
	for range 3 {
		sweepAll(s, now+1000*second)
	}
	if a := must(s.Check(now+1000*second, part, noID, op)); a.Remaining != 4 {
		t.Errorf("it was forgotten: %+v", a)
	}
}

// What a part cannot decide needs the whole object, and changes nothing.
func TestErrWhole(t *testing.T) {
	rule := &splitRule{home: "home"}
	s, _ := newSplit(t, rule)
	now := 100 * second
	rule.split(t, s, now, "limit", KindLimit, limit.FullWeight/2, limit.FullWeight/2)
	rule.split(t, s, now, "counter", KindCounter, limit.FullWeight/2, limit.FullWeight/2)
	check := func(op limit.Op) error {
		_, err := s.Check(now, Ref{Key: partKey(0), Name: "limit", Role: Share}, id(1), op)
		return err
	}
	at := Ref{Key: partKey(0), Name: "counter", Role: Share}
	add := func(op counter.AddOp) error { _, err := s.Add(now, at, id(1), op); return err }
	costly, fixed := perSecond(10), perSecond(10)
	costly.Cost, fixed.Algorithm = 6, limit.FixedWindow
	slow := limit.Op{Params: limit.Params{Limit: 10, Period: limit.MaxPeriod}, Cost: 1}
	_, compareAndSet := s.CompareAndSet(now, at, id(1), counter.CompareAndSetOp{Value: 1})
	_, reset := s.Reset(now, at, id(1))
	for name, err := range map[string]error{
		"cost": check(costly), "refund of no capacity": check(refund(perSecond(1), 1)), "window": check(fixed), "period": check(slow), "sliding": check(sliding(10)),
		"min": add(counter.AddOp{Delta: 1, HasMin: true}), "max": add(counter.AddOp{Delta: 1, HasMax: true, Max: 9}), "ttl": add(counter.AddOp{Delta: 1, IdleTTL: second}),
		"large": add(counter.AddOp{Delta: maxShare + 1}), "small": add(counter.AddOp{Delta: -maxShare - 1}), "compare and set": compareAndSet, "reset": reset,
	} {
		if !errors.Is(err, ErrWhole) || reason(err) != failure.NotOwner {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := add(counter.AddOp{Delta: maxShare}); err != nil { // the id was not used up
		t.Error(err)
	}
	if _, err := s.Add(now, at, noID, counter.AddOp{Delta: math.MaxInt64}); !errors.Is(err, ErrWhole) {
		t.Errorf("an overflow of the part: %v", err)
	}
	if err := check(refund(perSecond(10), 100)); err != nil {
		t.Errorf("a refund: %v", err)
	}
}

// The sweep forgets the parts of a split that is over, also those of other nodes, and says
// nothing of it.
func TestSweepForgetsStaleParts(t *testing.T) {
	told := 0
	rule := &splitRule{home: "home"}
	rule.epoch = 100
	var stale func(hash uint64, key []byte) bool
	s := newStore(t, func(c *Config) {
		c.Rule, c.Sink = rule, counting{&told}
		c.Stale = func(hash uint64, key []byte) bool {
			if key[0] != 0 || hash != Hash(string(key)) {
				t.Errorf("asked about %q", key)
			}
			return stale(hash, key)
		}
	})
	now := 100 * second
	for i := range 20 {
		must(s.Add(now, Ref{Key: fmt.Sprint(i), Name: "n"}, id(uint64(i+1)), counter.AddOp{Delta: 1}))
	}
	rule.split(t, s, now, "n", KindLimit, 100, 100, 100)
	must(s.Check(now, Ref{Key: partKey(1), Name: "n", Role: Share}, id(7), limit.Op{Params: limit.Params{Limit: 10_000, Period: second}, Cost: 1}))
	stale = func(uint64, []byte) bool { return false }
	sweepAll(s, now)
	if held(s) != 23 {
		t.Errorf("%d are held", held(s))
	}
	told = 0
	rule.admit = &failure.Error{Reason: failure.NotOwner}
	stale = func(_ uint64, key []byte) bool { return strings.HasSuffix(string(key), "1") }
	sweepAll(s, now)
	if held(s) != 22 || told != 0 {
		t.Errorf("%d are held, %d records", held(s), told)
	}
	stale = func(uint64, []byte) bool { return true }
	sweepAll(s, now)
	if held(s) != 20 || told != 0 {
		t.Errorf("%d are held, %d records", held(s), told)
	}
}

type counting struct{ n *int }

func (c counting) Changed(*Record) { *c.n++ }

// Put takes nothing that Install would not, nothing of two kinds, and no more than
// there is room for; and leaves all as it was then.
func TestPutRefuses(t *testing.T) {
	rule := &splitRule{home: "home", phase: opening, weights: []uint32{1, 1}}
	rule.epoch = 100
	s := newStore(t, func(c *Config) { c.Rule, c.MaxObjects = rule, 1 })
	ref := Ref{Key: partKey(0), Name: "n", Role: Plant}
	ids := &reqid.Kept{Evicted: math.MinInt64}
	good := *(&Record{Whole: true, IDs: ids}).SetCounter(counter.State{Value: 5})
	more := Record{Kind: KindCounter, More: true, IDs: ids}
	with := func(r Record, f func(*Record)) *Record { f(&r); return &r }
	for name, records := range map[string][]*Record{
		"none":         {},
		"a lock":       {with(good, func(r *Record) { r.Kind, r.State = KindLock, State{} })},
		"two wholes":   {&good, &good},
		"more first":   {&more},
		"other kind":   {&good, with(more, func(r *Record) { r.Kind = KindLimit })},
		"a change":     {with(good, func(r *Record) { r.Whole, r.IDs = false, nil })},
		"no ids":       {with(good, func(r *Record) { r.IDs = nil })},
		"later":        {with(good, func(r *Record) { r.At = 101 })},
		"a state":      {&good, with(more, func(r *Record) { r.SetCounter(counter.State{Version: 1}) })},
		"out of range": {with(good, func(r *Record) { r.SetCounter(counter.State{Value: 5, IdleTTL: -1}) })},
		"weight":       {(&Record{Whole: true, IDs: ids}).SetLimit(limit.State{Weight: limit.FullWeight + 1}, nil)},
	} {
		if _, err := s.Put(100, ref, records); reason(err) != failure.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	if held(s) != 0 {
		t.Errorf("%d are held", held(s))
	}
	must(s.Put(100, ref, []*Record{&good, &more}))
	if _, err := s.Put(100, Ref{Key: partKey(1), Name: "n", Role: Plant}, []*Record{&good}); reason(err) != failure.StoreFull {
		t.Errorf("no room: %v", err)
	}
	if _, err := s.Put(100, ref, []*Record{{Kind: KindLimit, Whole: true, IDs: ids}}); reason(err) != failure.KindMismatch {
		t.Errorf("another kind: %v", err)
	}
	rule.phase = open
	if a := must(s.Get(100, Ref{Key: partKey(0), Name: "n", Role: Share})); a.Value != 5 || a.Version == 0 {
		t.Errorf("%+v", a)
	}
	if _, err := s.Put(100, ref, []*Record{&good}); !errors.Is(err, errFrozen) {
		t.Errorf("too late: %v", err)
	}
}

// An object with more request ids than a record takes travels in several, to the part
// and to its copies, and its ids stay in order; an object that is not there is taken
// as one record without a state.
func TestTakeAndPutOfMany(t *testing.T) {
	const clients = MaxKept + 100
	rule := &splitRule{home: "home"}
	rule.epoch, rule.since = 100, math.MinInt64
	many := func(c *Config) { c.RequestIDs.ClientsPerObject, c.Rule = 2*clients, ownsNothing }
	standby := newStore(t, many)
	s := newStore(t, func(c *Config) { many(c); c.Rule, c.Sink = rule, &copyTo{store: standby} })
	now := 100 * second
	client := func(i int) reqid.ID { return reqid.ID{Client: reqid.Client{Hi: uint64(i)}, Sequence: 1} }
	for i := range clients {
		must(s.Add(now, Ref{Key: "home", Name: "n"}, client(i), counter.AddOp{Delta: 1}))
	}
	base := rule.split(t, s, now, "n", KindCounter, 1)
	rule.phase = closing
	a, b := readAll(t, s, now, Ref{Key: partKey(0), Name: "n", Role: Reap}, KindCounter), readAll(t, s, now, Ref{Key: partKey(0), Name: "other", Role: Reap}, KindCounter)
	if len(a) < 3 || a[0].Version != a[1].Version {
		t.Errorf("%d records", len(a))
	}
	if want := (&Record{Hash: Hash(partKey(0)), Key: []byte(partKey(0)), Name: []byte("other"), Kind: KindCounter, Version: b[0].Version, At: now,
		Whole: true, IDs: &reqid.Kept{Evicted: math.MinInt64}}); len(b) != 1 || len(b[0].IDs.Clients) != 0 || !reflect.DeepEqual(normal(b[0]), normal(want)) {
		t.Errorf("%+v", b[0])
	}
	own(standby, rule)
	c := readAll(t, standby, now, Ref{Key: partKey(0), Name: "n", Role: Reap}, KindCounter)
	for i := range a {
		if i >= len(c) || !reflect.DeepEqual(a[i].IDs, c[i].IDs) {
			t.Fatalf("record %d of %d at the copy", i, len(a))
		}
	}
	rule.phase = open
	for _, s := range []*Store{s, standby} {
		for i := range clients {
			again := client(i)
			again.Age = second / 2
			if a := must(s.Add(now, Ref{Key: partKey(0), Name: "n", Role: Share}, again, counter.AddOp{Delta: 1})); !a.Replayed {
				t.Fatalf("client %d: %+v", i, a)
			}
		}
	}
	if base != clients {
		t.Errorf("base %d", base)
	}
}

// normal is a record without its lists.
func normal(r *Record) Record {
	c := *r
	c.IDs, c.Members = nil, nil
	return c
}

// A counter that is idle too long is over when it is carried, and everybody is told.
func TestTakeOfAnIdleCounter(t *testing.T) {
	rule := &splitRule{home: "home"}
	s, standby := newSplit(t, rule)
	must(s.Add(0, Ref{Key: "home", Name: "n"}, noID, counter.AddOp{Delta: 5, IdleTTL: second}))
	rule.phase = opening
	if r := readAll(t, s, second, Ref{Key: "home", Name: "n", Role: Carry}, KindCounter); len(r) != 1 || !r[0].State.Absent() {
		t.Errorf("%+v", r[0])
	}
	own(standby, rule)
	rule.phase = single
	if a := must(standby.Get(0, Ref{Key: "home", Name: "n"})); a.Value != 0 {
		t.Errorf("the copy has %+v", a)
	}
}

// Checks and adds at parts allocate nothing, as others do.
func TestSharesAllocateNothing(t *testing.T) {
	rule := &splitRule{home: "home"}
	rule.epoch = 100
	s := newStore(t, func(c *Config) { c.Rule, c.Sink = fixedSplits{rule}, discard{} })
	rule.split(t, s, 0, "n", KindLimit, limit.FullWeight/2)
	rule.split(t, s, 0, "c", KindCounter, limit.FullWeight/2)
	now, seq := int64(0), uint64(0)
	part, key := Ref{Key: partKey(0), Name: "n", Role: Share}, partKey(0)
	next := func() reqid.ID {
		seq++
		return reqid.ID{Client: reqid.Client{Hi: 1}, Sequence: seq, Settled: seq}
	}
	for name, f := range map[string]func(){
		"check":         func() { must(s.Check(now, part, noID, perSecond(1_000_000))) },
		"check with id": func() { must(s.Check(now, part, next(), perSecond(1_000_000))) },
		"refund":        func() { must(s.Check(now, part, noID, refund(perSecond(1_000_000), 1))) },
		"another weight": func() {
			rule.weights[0] = limit.FullWeight/2 + uint32(now%2)
			must(s.Check(now, part, noID, perSecond(1_000_000)))
		},
		"add": func() { must(s.Add(now, Ref{Key: key, Name: "c", Role: Share}, noID, counter.AddOp{Delta: 1})) },
		"get": func() { must(s.Get(now, Ref{Key: key, Name: "c", Role: Sample})) },
	} {
		for range 2000 {
			now++
			f()
		}
		if n := testing.AllocsPerRun(1000, func() { now++; f() }); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// fixedSplits says without an allocation what is split.
type fixedSplits struct{ *splitRule }

func (r fixedSplits) Split(uint64) bool             { return true }
func (r fixedSplits) May(Ref, Kind) (uint32, error) { return r.weights[0], nil }
