package lock

import (
	"encoding/binary"
	"fmt"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/keystead/keystead/owner/hold"
	"github.com/keystead/keystead/owner/reqid"
)

// call is one operation of a random history. Numbers are small so that moments,
// tickets and tokens meet.
type call struct {
	op     uint8 // which, modulo the number of operations
	pass   int8  // units of time that pass before it; < 0: the caller read the clock early
	ttl    uint8 // units of TTL, from 1
	wait   uint8 // units of wait; 0 = does not wait
	ticket uint8 // how far back among the tickets used
	token  uint8 // how far back among the tokens granted; 0 = the last
	leap   uint8 // how far the next token is above the last
}

const (
	unit       = int64(MinTTL)
	testWaiter = 4 // places in the queue
)

// run does the same to a lock and to a model and compares all that can be seen.
type run struct {
	s    State
	fx   Effects
	m    model
	mfx  Effects
	now  int64
	used uint64 // tickets
}

func (r *run) do(c call) error {
	if c.pass > 0 {
		r.now += int64(c.pass) * unit / 2
	}
	now := r.now + min(int64(c.pass), 0)*unit/4
	next := r.s.LastToken + 1 + uint64(c.leap)
	ttl, wait := (int64(c.ttl)+1)*unit, int64(c.wait)*unit/2
	ticket := r.used - min(uint64(c.ticket), r.used)
	token := r.s.LastToken - min(uint64(c.token), r.s.LastToken)
	before := r.s.Clone()

	var got, want any
	step := true
	switch c.op % 7 {
	case 0:
		r.used++
		op := Acquire{Holder: fmt.Sprint("h", r.used), TTL: ttl, Wait: wait, Ticket: r.used}
		if err := op.Validate(); err != nil {
			return err
		}
		got = r.s.Acquire(op, now, next, testWaiter, &r.fx)
		want = r.m.acquire(op, now, next, testWaiter, &r.mfx)
	case 1:
		got = r.s.Renew(token, ttl, now, next, &r.fx)
		want = r.m.renew(token, ttl, now, next, &r.mfx)
	case 2:
		got = r.s.Release(token, now, next, &r.fx)
		want = r.m.release(token, now, next, &r.mfx)
	case 3:
		r.s.Expire(now, next, &r.fx)
		r.m.pass(max(now, r.m.last), next, false, &r.mfx)
	case 4:
		step = false
		place, ok := r.s.Cancel(ticket, now)
		wantPlace, wantOK := r.m.cancel(ticket, now)
		got, want = [2]any{place, ok}, [2]any{wantPlace, wantOK}
	case 5:
		step = false
		r.used++
		place, ok := r.s.Supersede(ticket, r.used, reqid.ID{}, wait, now)
		wantPlace, wantOK := r.m.supersede(ticket, r.used, wait, now)
		got, want = [2]any{place, ok}, [2]any{wantPlace, wantOK}
	case 6:
		op := Reclaim{Token: token + uint64(c.leap), Holder: "r", Left: ttl / 3}
		if op.Validate() != nil { // there was no grant yet
			return nil
		}
		got = r.s.Reclaim(op, now, next, &r.fx)
		want = r.m.reclaim(op, now, next, &r.mfx)
	}
	if got != want {
		return fmt.Errorf("answer is %+v, want %+v", got, want)
	}
	if step {
		if err := r.compareEffects(before); err != nil {
			return err
		}
	}
	return r.compareState(step, now)
}

func (r *run) compareEffects(before State) error {
	if r.fx.Grant != r.mfx.Grant || r.fx.Lapsed != r.mfx.Lapsed || !slices.Equal(r.fx.TimedOut, r.mfx.TimedOut) {
		return fmt.Errorf("effects are %+v, want %+v", r.fx, r.mfx)
	}
	if !r.fx.Changed && !reflect.DeepEqual(before.told(), r.s.told()) {
		return fmt.Errorf("the state changed, and the effects do not say so")
	}
	return nil
}

func (r *run) compareState(step bool, now int64) error {
	if err := r.s.Valid(); err != nil {
		return err
	}
	if r.s.At != r.m.last {
		return fmt.Errorf("the last change was at %d, want %d", r.s.At, r.m.last)
	}
	if step && r.s.Queue.Len() > 0 {
		if !r.s.Held(now) {
			return fmt.Errorf("somebody waits for a lock that is not held")
		}
		if wake, ok := r.s.NextWake(now); !ok || wake <= max(now, r.s.At) {
			return fmt.Errorf("after a step the next wake-up is due at once")
		}
	}
	for _, at := range []int64{now, r.now, r.now + unit, r.now + 4*unit} {
		wake, ok := r.s.NextWake(at)
		wantWake, wantOK := r.m.nextWake(at)
		if wake != wantWake || ok != wantOK {
			return fmt.Errorf("next wake-up is %d %v, want %d %v", wake, ok, wantWake, wantOK)
		}
		v, want := r.s.Inspect(at, testWaiter), r.m.view(at)
		v.Holding.Holder = ""
		for i := range v.First {
			v.First[i].Holder = ""
		}
		if !reflect.DeepEqual(v, want) {
			return fmt.Errorf("at %d the lock is %+v, want %+v", at, v, want)
		}
		if r.s.Held(at) != (want.Holding.Token != 0) || r.s.Absent(at) != (want.Holding.Token == 0 && len(r.m.waiting()) == 0) {
			return fmt.Errorf("at %d Held or Absent is wrong", at)
		}
	}
	return r.m.history()
}

func TestModel(t *testing.T) {
	byteUpTo := func(n uint8) *rapid.Generator[uint8] { return rapid.Uint8Range(0, n) }
	calls := rapid.Custom(func(t *rapid.T) call {
		return call{
			op: rapid.SampledFrom([]uint8{0, 0, 0, 0, 1, 2, 3, 4, 5, 5, 6, 6}).Draw(t, "op"), pass: rapid.SampledFrom([]int8{-2, -1, 0, 0, 1, 1, 2, 5}).Draw(t, "pass"),
			ttl: byteUpTo(12).Draw(t, "ttl"), wait: rapid.SampledFrom([]uint8{0, 1, 2, 5, 10, 20, 31}).Draw(t, "wait"),
			ticket: byteUpTo(6).Draw(t, "ticket"), token: byteUpTo(2).Draw(t, "token"),
			leap: byteUpTo(3).Draw(t, "leap"),
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

func FuzzSteps(f *testing.F) {
	f.Add([]byte{0, 0, 3, 4, 0, 0, 0, 0, 1, 3, 4, 0, 0, 0, 3, 1, 0, 0, 0, 0, 0})
	f.Add([]byte{0, 0, 1, 4, 0, 0, 0, 0, 0, 1, 4, 0, 0, 0, 4, 4, 0, 0, 0, 0, 0, 6, 0xff, 0, 8, 0, 0, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		var r run
		for n := 0; len(data) >= 7 && n < 60; n++ {
			c := call{data[0], int8(data[1]) % 8, data[2] % 16, data[3] % 32, data[4] % 8, data[5] % 4, data[6]}
			data = data[7:]
			if err := r.do(c); err != nil {
				t.Fatalf("%+v: %v\n%s", c, err, r.s.Describe(r.now))
			}
		}
	})
}

// FuzzInstall takes states as another node may send them: one that is Valid must
// bear every operation.
func FuzzInstall(f *testing.F) {
	seed := make([]byte, 200)
	f.Add(seed, uint8(0), uint8(0))
	f.Add(seed, uint8(3), uint8(3))
	f.Fuzz(func(t *testing.T, data []byte, queue, op uint8) {
		number := func() (v int64) {
			if len(data) >= 8 {
				v = int64(binary.LittleEndian.Uint64(data))
				data = data[8:]
			}
			return v
		}
		var s State
		s.LastToken, s.At = uint64(number()), number()
		if s.LastToken != 0 {
			s.Put(hold.Holder{Name: "h", Token: s.LastToken, Weight: All, Since: s.At - number(), Expires: s.At + number(), Waited: number()})
		}
		if s.LastToken != 0 || queue%8 > 0 {
			s.Capacity = All
		}
		for i := range queue % 8 {
			s.Queue.Places = append(s.Queue.Places, Waiter{Ticket: uint64(i), Request: Request{Name: "w", Weight: All, TTL: number()}, Since: s.At - number(), GiveUp: s.At + number()})
		}
		if s.Valid() != nil || s.LastToken >= MaxToken-1 {
			return
		}
		s.Queue = s.Queue.Clone() // which numbers its places
		c := s.Clone()
		if !reflect.DeepEqual(c, s) {
			t.Fatalf("the clone is %+v, not %+v", c, s)
		}
		var fx Effects
		now := s.At + number()%maxMoment
		if now > maxMoment/2 { // times near the end of all time are not served
			return
		}
		switch op % 6 {
		case 0:
			s.Expire(now, s.LastToken+1, &fx)
		case 1:
			s.Release(s.held().Token, now, s.LastToken+1, &fx)
		case 2:
			s.Renew(s.held().Token, MinTTL, now, s.LastToken+1, &fx)
		case 3:
			s.Acquire(Acquire{Holder: "x", TTL: MaxTTL, Wait: MaxWait, Ticket: 99}, now, s.LastToken+1, DefaultMaxWaiters, &fx)
		case 4:
			s.Cancel(0, now)
		case 5:
			s.Reclaim(Reclaim{Token: s.LastToken + 2, Holder: "x", Left: MaxTTL}, now, s.LastToken+1, &fx)
		}
		if err := s.Valid(); err != nil {
			t.Fatal(err)
		}
		s.Describe(now)
	})
}
