package hold

import (
	"fmt"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/keystead/keystead/owner/reqid"
	"github.com/keystead/keystead/owner/wire"
)

// call is one operation of a random history. Numbers are small so that moments, tickets and
// tokens meet.
type call struct {
	op     uint8 // which, modulo the number of operations
	pass   int8  // units of time that pass before it; < 0: the caller read the clock early
	ttl    uint8 // units of TTL, from 1
	wait   uint8 // units of wait; 0 = does not wait
	delay  uint8 // units of delay
	ticket uint8 // how far back among the tickets used
	token  uint8 // how far back among the tokens granted; 0 = the last
	weight uint8 // from 1
	of     uint8 // capacity; 0 = the object's
	tokens uint8 // that the step has, from 1
}

const (
	unit       = int64(MinTTL)
	testWaiter = 6 // places in the queue
)

// run does the same to an object and to a model and compares all that can be seen.
type run struct {
	s    State
	fx   Effects
	m    model
	mfx  Effects
	now  int64
	used uint64 // tickets
	came []uint64
}

func (r *run) do(c call) error {
	if c.pass > 0 {
		r.now += int64(c.pass) * unit / 2
	}
	now := r.now + min(int64(c.pass), 0)*unit/4
	tokens := Tokens{First: r.s.LastToken + 1, Count: int(c.tokens) + 1}
	before, beforeModel := r.s.Clone(), r.m.used()
	got, want, step := r.ask(c, now, tokens)
	if got != want {
		return fmt.Errorf("answer is %+v, want %+v", got, want)
	}
	if step {
		if err := r.compareEffects(before); err != nil {
			return err
		}
		if len(r.mfx.Grants) > 0 && r.m.used() > uint64(r.m.capacity) {
			return fmt.Errorf("granted above the capacity: %d before, %d of %d", beforeModel, r.m.used(), r.m.capacity)
		}
		if err := r.inOrder(); err != nil {
			return err
		}
	}
	return r.compareState(step, now, tokens)
}

// inOrder reports a grant that overtook: tickets rise, and a place that changes hands keeps
// where it stands.
func (r *run) inOrder() error {
	for _, g := range r.fx.Grants {
		i := slices.Index(r.came, g.Ticket)
		for _, ahead := range r.came[:max(i, 0)] {
			if r.s.Queue.Find(ahead) != nil {
				return fmt.Errorf("ticket %d was granted before %d", g.Ticket, ahead)
			}
		}
	}
	return nil
}

func (r *run) ask(c call, now int64, tokens Tokens) (got, want any, step bool) {
	ttl, wait := (int64(c.ttl)+1)*unit, int64(c.wait)*unit/2
	ticket := r.used - min(uint64(c.ticket), r.used)
	token := r.s.LastToken - min(uint64(c.token), r.s.LastToken)
	weight := uint32(c.weight) + 1
	switch c.op % 10 {
	case 0:
		r.used++
		r.came = append(r.came, r.used)
		op := Acquire{Name: fmt.Sprint("h", r.used), Weight: weight, Capacity: uint32(c.of), TTL: ttl, Wait: wait, Delay: int64(c.delay) * unit, Keep: int64(c.delay/3) * 4 * unit, Ticket: r.used}
		if op.Validate() != nil {
			op.Capacity = 0
		}
		return r.s.Acquire(op, now, tokens, testWaiter, &r.fx), r.m.acquire(op, now, tokens, testWaiter, &r.mfx), true
	case 1:
		return r.s.Renew(token, ttl, now, tokens, &r.fx), r.m.renew(token, ttl, now, tokens, &r.mfx), true
	case 2:
		return r.s.Release(token, now, tokens, &r.fx), r.m.release(token, now, tokens, &r.mfx), true
	case 3:
		r.s.Expire(now, tokens, &r.fx)
		r.m.end(r.m.pass(now, &r.mfx), tokens, &r.mfx)
		return nil, nil, true
	case 4:
		_, found := r.s.Cancel(ticket, now)
		return found, r.m.cancel(ticket, now), false
	case 5:
		r.used++
		_, found := r.s.Supersede(ticket, r.used, reqid.ID{}, wait, now)
		kept := c.delay > 1
		r.s.Keep(r.used, kept)
		if i := slices.Index(r.came, ticket); found {
			r.came[i] = r.used
		}
		return found, r.m.supersede(ticket, r.used, wait, now, kept), false
	case 6:
		return r.s.Revoke(token, now, tokens, &r.fx), r.m.revoke(token, now, tokens, &r.mfx), true
	case 7:
		return r.s.Downgrade(token, weight, now, tokens, &r.fx), r.m.downgrade(token, weight, now, tokens, &r.mfx), true
	case 8:
		return r.s.Detach(ticket, now, wait+unit), r.m.detach(ticket, now, wait+unit), false
	}
	r.s.SetCapacity(uint32(c.of), now, tokens, &r.fx)
	r.m.setCapacity(uint32(c.of), now, tokens, &r.mfx)
	return nil, nil, true
}

func (r *run) compareEffects(before State) error {
	if !slices.Equal(r.fx.Grants, r.mfx.Grants) || r.fx.Lapsed != r.mfx.Lapsed || r.fx.Called != r.mfx.Called || !slices.Equal(r.fx.TimedOut, r.mfx.TimedOut) || !slices.Equal(r.fx.TooLarge, r.mfx.TooLarge) {
		return fmt.Errorf("effects are %+v, want %+v", r.fx, r.mfx)
	}
	if !r.fx.Changed && !reflect.DeepEqual(recorded(before), recorded(r.s)) {
		return fmt.Errorf("the state changed, and the effects do not say so")
	}
	return r.told(before)
}

// told reports a holder that came, changed or went, of which the effects do not tell: a copy
// would not have it.
func (r *run) told(before State) error {
	for _, h := range append(slices.Clone(before.Holders), r.s.Holders...) {
		i, j := before.index(h.Token), r.s.index(h.Token)
		same := i >= 0 && j >= 0 && reflect.DeepEqual(before.Holders[i], r.s.Holders[j])
		if !same && !slices.Contains(r.fx.Holders, h.Token) {
			return fmt.Errorf("token %d changed, and the effects do not say so", h.Token)
		}
	}
	seen := slices.Clone(r.fx.Holders)
	slices.Sort(seen)
	if len(slices.Compact(seen)) != len(r.fx.Holders) {
		return fmt.Errorf("told of a token twice: %v", r.fx.Holders)
	}
	return nil
}

func (r *run) compareState(step bool, now int64, tokens Tokens) error {
	if err := r.s.Valid(); err != nil {
		return err
	}
	if r.s.At != r.m.at || r.s.Capacity != r.m.capacity || r.s.Fixed != r.m.fixed || r.s.used != r.m.used() || r.s.LastToken != r.m.last {
		return fmt.Errorf("the state is %+v, want %+v", r.s, r.m)
	}
	if step && r.s.Kept() && r.s.Queue.Head() != nil && len(r.fx.Grants) < tokens.Count-1 {
		return fmt.Errorf("the head waits for what is free")
	}
	wake, ok := r.s.NextWake(now)
	want, wantOK := r.m.nextWake(now)
	if ok != wantOK || wake > want {
		return fmt.Errorf("next wake-up is %d %v, want %d %v", wake, ok, want, wantOK)
	}
	if step && ok && !(r.s.Kept() && r.s.Queue.Head() != nil) && wake <= max(now, r.s.At) {
		return fmt.Errorf("after a step the next wake-up is due at once")
	}
	for _, at := range []int64{now, r.now, r.now + unit, r.now + 4*unit} {
		at = max(at, r.m.at)
		for _, h := range r.m.held {
			if (r.s.Find(h.token, at).Token != 0) != (at < h.until) {
				return fmt.Errorf("at %d, token %d: %+v", at, h.token, r.s.Find(h.token, at))
			}
		}
		absent := !r.m.fixed && len(r.m.line) == 0 && !slices.ContainsFunc(r.m.held, func(h modelHolder) bool { return at < h.blocked })
		if r.s.Absent(at) != absent {
			return fmt.Errorf("at %d absent is %v", at, !absent)
		}
	}
	return r.carried()
}

// carried reports a state that is not the same when it was written and read.
func (r *run) carried() error {
	w := wire.Writer{Now: r.s.At}
	r.s.AppendTo(&w)
	from := wire.Reader{B: w.B, Now: r.s.At}
	var s State
	s.ReadFrom(&from)
	ok := from.Ends()
	for i := range r.s.Holders {
		h := &r.s.Holders[i]
		one := wire.Writer{}
		AppendHolder(&one, h, r.s.At)
		from := wire.Reader{B: one.B}
		s.Holders = append(s.Holders, ReadHolder(&from, h.Token, s.At))
		ok = ok && from.Ends() && ValidMember(&s.Holders[i], nil, s.At) == nil
	}
	for i := range r.s.Queue.Places {
		p := &r.s.Queue.Places[i]
		one := wire.Writer{}
		AppendWaiter(&one, p, r.s.At)
		from := wire.Reader{B: one.B}
		q := ReadWaiter(&from, p.Caller, s.At)
		q.Ticket, q.Away = p.Ticket, p.Away // no copy is told of these, nor of the grace
		s.Queue.Places = append(s.Queue.Places, q)
		ok = ok && from.Ends() && q.Kept == p.Kept && ValidMember(nil, &s.Queue.Places[i], s.At) == nil
	}
	s.Count()
	s.Queue.Grace = r.s.Queue.Grace
	have := recorded(r.s)
	if !ok || s.Valid() != nil || have.Describe(r.now) != s.Describe(r.now) || have.used != s.used {
		return fmt.Errorf("it is read as\n%s", s.Describe(r.now))
	}
	return nil
}

func TestModel(t *testing.T) {
	upTo := func(n uint8) *rapid.Generator[uint8] { return rapid.Uint8Range(0, n) }
	calls := rapid.Custom(func(t *rapid.T) call {
		return call{
			op:   rapid.SampledFrom([]uint8{0, 0, 0, 0, 0, 1, 2, 2, 3, 4, 5, 6, 7, 8}).Draw(t, "op"),
			pass: rapid.SampledFrom([]int8{-2, -1, 0, 0, 1, 1, 2, 5}).Draw(t, "pass"),
			ttl:  upTo(12).Draw(t, "ttl"), wait: rapid.SampledFrom([]uint8{0, 1, 2, 5, 10, 20, 31}).Draw(t, "wait"),
			delay: rapid.SampledFrom([]uint8{0, 0, 0, 1, 3}).Draw(t, "delay"), ticket: upTo(6).Draw(t, "ticket"), token: upTo(5).Draw(t, "token"),
			weight: rapid.SampledFrom([]uint8{0, 0, 0, 1, 2, 4}).Draw(t, "weight"), of: rapid.SampledFrom([]uint8{0, 5, 5, 5, 5, 2, 8}).Draw(t, "of"),
			tokens: rapid.SampledFrom([]uint8{0, 1, 2, 7, 31}).Draw(t, "tokens"),
		}
	})
	rapid.Check(t, func(t *rapid.T) {
		var r run
		for _, c := range rapid.SliceOfN(calls, 40, 120).Draw(t, "calls") {
			if err := r.do(c); err != nil {
				t.Fatalf("%+v: %v\n%s", c, err, r.s.Describe(r.now))
			}
		}
	})
}

// TestClaims: whatever the order in which claims come, those that are honoured fit, and of
// those that were in force before the loss all are, if no other claims.
func TestClaims(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		capacity := rapid.Uint32Range(1, 8).Draw(t, "capacity")
		var claims []Reclaim
		held, stale := uint32(0), false
		for token := uint64(1); token <= 12; token++ {
			weight := rapid.Uint32Range(1, capacity).Draw(t, "weight")
			if held+weight > capacity {
				stale = rapid.Bool().Draw(t, "stale") || stale
				if !stale {
					continue
				}
			}
			held += weight
			claims = append(claims, Reclaim{Token: token, Name: "h", Weight: weight, Capacity: capacity, Left: unit})
		}
		var s State
		var fx Effects
		ended := map[uint64]bool{}
		for range 2 { // some come again
			for _, i := range rapid.Permutation(claims).Draw(t, "order") {
				res := s.Reclaim(i, 0, &fx)
				if res.Reclaimed && ended[i.Token] {
					t.Fatalf("token %d came back", i.Token)
				}
				for _, c := range claims {
					ended[c.Token] = ended[c.Token] || s.Knows(c.Token) && s.Find(c.Token, 0).Token == 0
				}
				if used, _ := s.Held(0); used > uint64(capacity) {
					t.Fatalf("%d of %d are held", used, capacity)
				}
				if err := s.Valid(); err != nil {
					t.Fatal(err)
				}
			}
		}
		if !stale && len(s.Holders) != len(claims) {
			t.Fatalf("%d of %d that were in force have theirs back:\n%s", len(s.Holders), len(claims), s.Describe(0))
		}
	})
}

// TestStepsAllocateNothing: a grant and a release, and a handover from one to three others.
func TestStepsAllocateNothing(t *testing.T) {
	var s State
	var fx Effects
	op := Acquire{Name: "a", Weight: 1, Capacity: 4, TTL: unit}
	round := func() {
		op.Wait, op.Weight = 0, 4
		first := s.Acquire(op, s.At, Tokens{s.LastToken + 1, 1}, 10, &fx)
		op.Wait, op.Weight = unit, 1
		for i := range 3 {
			op.Ticket = uint64(i)
			s.Acquire(op, s.At, Tokens{s.LastToken + 1, 1}, 10, &fx)
		}
		s.Release(first.Token, s.At, Tokens{s.LastToken + 1, MaxGrants}, &fx)
		for token := s.LastToken - 2; token <= first.Token+3; token++ {
			if !s.Release(token, s.At, Tokens{s.LastToken + 1, MaxGrants}, &fx) {
				t.Fatalf("token %d was not granted", token)
			}
		}
	}
	round()
	if n := testing.AllocsPerRun(100, round); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestMostHolders: the room for holders is a bound like the capacity, and those who come
// then wait.
func TestMostHolders(t *testing.T) {
	var s State
	var fx Effects
	op := Acquire{Name: "a", Weight: 1, Capacity: MaxCapacity, TTL: MaxTTL, Wait: MaxWait}
	for i := range MaxHolders + 1 {
		op.Ticket = uint64(i)
		want := Granted
		if i == MaxHolders {
			want = Queued
		}
		if res := s.Acquire(op, 0, Tokens{s.LastToken + 1, 1}, 10, &fx); res.Outcome != want {
			t.Fatalf("%d: %v", i, res.Outcome)
		}
	}
	if !s.Release(7, 0, Tokens{s.LastToken + 1, 1}, &fx) || len(fx.Grants) != 1 {
		t.Errorf("%+v", fx)
	}
}
