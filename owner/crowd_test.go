package owner

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/hold"
	"github.com/keystead/keystead/owner/queue"
	"github.com/keystead/keystead/owner/reqid"
)

// crowd is how many wait for one object in these tests.
const crowdSize = 50_000

// crowdStore has room for a crowd, in one shard.
func crowdStore(t failer, change func(*Config)) *Store {
	s, err := New(Config{Rule: &testRule{epoch: 100}, Shards: 1, MaxWaitersPerLock: MaxQueue}.with(change), 0)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

type failer interface{ Fatal(...any) }

func (c Config) with(change func(*Config)) Config {
	if change != nil {
		change(&c)
	}
	return c
}

// callerOf is the first request of one of many clients.
func callerOf(n int, age int64) reqid.ID {
	return reqid.ID{Client: reqid.Client{Hi: 7, Lo: uint64(n) + 1}, Sequence: 1, Age: age}
}

// enqueue has callers wait for the pool, of which one permit is held under the token that it returns.
func enqueue(t failer, s *Store, callers int, wait int64) (token uint64, waits []*Wait[GrantAnswer]) {
	a, _, err := s.AcquirePermits(0, pool, noID, wants("first", 1, 1, 0))
	if err != nil {
		t.Fatal(err)
	}
	for i := range callers {
		_, w, err := s.AcquirePermits(int64(i), pool, callerOf(i, 0), wants(fmt.Sprint(i), 1, 1, wait))
		if w == nil {
			t.Fatal(i, err)
		}
		waits = append(waits, w)
	}
	return a.Token, waits
}

// line returns the names of those that wait for the pool, in order.
func (s *Store) line() (names []string) {
	sh := s.shard(Hash(pool.Key))
	if slot := sh.findLocked(s.addressTag(pool), pool); slot != 0 && sh.entryLocked(slot).rest != 0 {
		for _, p := range sh.holds.At(sh.entryLocked(slot).rest).Queue.All() {
			names = append(names, p.Request.Name)
		}
	}
	return names
}

func sameLine(t failer, owner, copied *Store) {
	want, have := owner.line(), copied.line()
	if len(have) != len(want) {
		t.Fatal(fmt.Sprintf("%d places in the copy, %d at the owner", len(have), len(want)))
	}
	for i := range want {
		if have[i] != want[i] {
			t.Fatal(fmt.Sprintf("place %d is %s's in the copy, %s's at the owner", i+1, have[i], want[i]))
		}
	}
}

// late is a sink whose changes a store installs, once there is one.
type late struct {
	t    failer
	to   *Store
	most int // members of a record
}

func (c *late) Partial() bool { return true }

func (c *late) Changed(r *Record) { c.emit(r, r.At) }

func (c *late) emit(r *Record, now int64) bool {
	c.most = max(c.most, len(r.Members))
	if c.to != nil {
		if err := c.to.Install(now, r.Clone(), always); err != nil {
			c.t.Fatal(err)
		}
	}
	return true
}

// TestCrowdIsCopiedInParts: of an object that many wait for, a copy gets a part at a time. Whatever
// comes, leaves, comes again or is served between them, it has the places in their order.
func TestCrowdIsCopiedInParts(t *testing.T) {
	for seed := range uint64(24) {
		live := &late{t: t}
		c := &crowded{t: t, s: crowdStore(t, func(c *Config) { c.Sink = live }), now: second, rnd: rand.New(rand.NewPCG(seed, 1))}
		callers := []int{MaxPart - 1, MaxPart, MaxPart + 1, 3 * MaxPart}[seed%4]
		c.token, c.waits = enqueue(t, c.s, callers, 100*second)
		live.to = crowdStore(t, nil)
		parts := 0
		c.s.Export(func() int64 { return c.now }, always, live.emit, func() bool {
			parts++
			c.change(parts == int(seed))
			return true
		})
		if live.most > MaxPart || seed > 8 && parts < callers/MaxPart {
			t.Errorf("seed %d: %d members in a record, %d parts", seed, live.most, parts)
		}
		sameLine(t, c.s, live.to)
		c.change(false)
		sameLine(t, c.s, live.to)
	}
}

// crowded is an object that a crowd waits for.
type crowded struct {
	t     failer
	s     *Store
	now   int64
	rnd   *rand.Rand
	token uint64
	waits []*Wait[GrantAnswer] // nil: it was granted at once
}

// change does some of what may happen to it. If empty is set, all leave first.
func (c *crowded) change(empty bool) {
	for i := range c.waits {
		if w := c.waits[i]; empty && w != nil {
			w.GiveUp(c.now)
		}
	}
	for range c.rnd.IntN(5) {
		c.now++
		i := c.rnd.IntN(len(c.waits))
		w := c.waits[i]
		switch what := c.rnd.IntN(5); {
		case what == 0:
			c.acquire(len(c.waits), 0)
		case what == 1:
			must(c.s.ReleasePermits(c.now, pool, noID, c.token))
			if a := must(c.s.InspectSemaphore(c.now, pool, 1)); len(a.Longest) > 0 {
				c.token = a.Longest[0].Token
			}
		case w == nil || w.finished():
		case what == 2:
			w.GiveUp(c.now)
		case what == 3:
			w.Detach(c.now)
		default:
			c.acquire(i, c.now) // again, while its place stands
		}
	}
}

func (c *crowded) acquire(i int, age int64) {
	a, w, err := c.s.AcquirePermits(c.now, pool, callerOf(i, age), wants(fmt.Sprint(i), 1, 1, 100*second))
	switch {
	case err != nil || age > 0 && w == nil:
		c.t.Fatal(i, a, err)
	case age > 0:
		c.waits[i] = w
	default:
		c.waits = append(c.waits, w)
	}
	if a.Acquired {
		c.token = a.Token
	}
}

// TestCrowdMoves: the places of a crowd keep their order when the object moves to another process,
// and each caller that comes back has its place there, however late the last one comes.
func TestCrowdMoves(t *testing.T) {
	live := &late{t: t}
	live.to = crowdStore(t, nil)
	rule := &testRule{epoch: 100}
	from := crowdStore(t, func(c *Config) { c.Sink, c.Rule = live, rule })
	token, waits := enqueue(t, from, crowdSize, 1000*second)
	rule.admit = &failure.Error{Reason: failure.NotOwner}
	from.Dismiss(always)
	for i, w := range waits {
		if _, err := w.Answer(); !w.finished() || reason(err) != failure.NotOwner {
			t.Fatalf("caller %d was told %v", i, err)
		}
	}
	sameLine(t, from, live.to)
	to, now := live.to, second
	to.Own(now, always, OwnGrace)
	each := 2 * OwnGrace / crowdSize // they need twice the grace of a single one
	for n := range waits {
		i := crowdSize - 1 - n // the last one first
		now += each
		to.Wake(now)
		_, w, err := to.AcquirePermits(now, pool, callerOf(i, now), wants(fmt.Sprint(i), 1, 1, 1000*second))
		if err != nil || w == nil {
			t.Fatalf("caller %d: %v", i, err)
		}
		waits[i] = w
	}
	for i, w := range waits {
		must(to.ReleasePermits(now, pool, noID, token))
		a, err := w.Answer()
		if !w.finished() || err != nil || !a.Acquired {
			t.Fatalf("caller %d was not served in its turn: %+v %v", i, a, err)
		}
		token = a.Token
	}
}

// TestCrowdBound: how many wait is bounded by what fits one record until all members know that there
// are parts, and then by the setting.
func TestCrowdBound(t *testing.T) {
	rule := &leveled{testRule: testRule{epoch: 100}, level: QueueLevel - 1}
	s := crowdStore(t, func(c *Config) { c.Rule, c.MaxWaitersPerLock = rule, MaxPart+10 })
	one := semaphoreMachine.hold.queue
	_, waits := enqueue(t, s, one, 100*second)
	ask := func() error {
		_, w, err := s.AcquirePermits(second, pool, callerOf(len(waits), 0), wants("w", 1, 1, 100*second))
		waits = append(waits, w)
		return err
	}
	if err := ask(); reason(err) != failure.TooManyWaiters {
		t.Errorf("place %d at level %d: %v", one+1, rule.level, err)
	}
	rule.level++
	for i := range MaxPart + 10 - one {
		if err := ask(); err != nil {
			t.Fatal(i, err)
		}
	}
	if err := ask(); reason(err) != failure.TooManyWaiters {
		t.Errorf("beyond the setting: %v", err)
	}
}

// leveled is a rule whose cluster has committed a level.
type leveled struct {
	testRule
	level uint32
}

func (r *leveled) Uses(level uint32) bool { return level <= r.level }

// TestCrowdIsCounted: what places take counts as memory, in the middle of a long queue too, and is
// given back.
func TestCrowdIsCounted(t *testing.T) {
	s := crowdStore(t, func(c *Config) { c.MaxBytes = 8 << 20 })
	must(s.SetCapacity(0, pool, noID, 1))
	before := s.Stats().Bytes
	mustAcquire(s.AcquirePermits(0, pool, noID, wants("first", 1, 1, 0)))
	var waits []*Wait[GrantAnswer]
	for {
		_, w, err := s.AcquirePermits(0, pool, callerOf(len(waits), 0), wants("w", 1, 1, 100*second))
		if err != nil {
			if reason(err) != failure.StoreFull || len(waits) < 10_000 || len(waits) > 50_000 {
				t.Fatalf("%d wait: %v", len(waits), err)
			}
			break
		}
		waits = append(waits, w)
	}
	for i, w := range waits {
		if i%50 != 0 {
			w.GiveUp(1)
		}
	}
	if b := s.Stats().Bytes - before; b > 8<<20/4 {
		t.Errorf("%d bytes for %d places", b, len(waits)/50)
	}
	for _, w := range waits {
		w.GiveUp(1)
	}
	if b := s.Stats().Bytes - before; b > 64<<10 {
		t.Errorf("%d bytes when all have left", b)
	}
}

// TestCrowdIsOverInSlices: those whose time is over at one moment leave some at a time, and nobody
// of them is served, not even when the object is free.
func TestCrowdIsOverInSlices(t *testing.T) {
	live := &late{t: t}
	s := crowdStore(t, func(c *Config) { c.Sink = live })
	a := mustAcquire(s.AcquirePermits(0, pool, noID, wants("first", 1, 1, 0)))
	var waits []*Wait[GrantAnswer]
	for i := range 3 * queue.MaxExpire {
		_, w, _ := s.AcquirePermits(0, pool, callerOf(i, 0), wants("w", 1, 1, second))
		waits = append(waits, w)
	}
	_, last, _ := s.AcquirePermits(0, pool, callerOf(crowdSize, 0), wants("last", 1, 1, 100*second))
	must(s.ReleasePermits(second, pool, noID, a.Token))
	if last.finished() {
		t.Error("served before those ahead of it were told that their time is over")
	}
	for range 4 {
		s.Wake(second)
	}
	for i, w := range waits {
		if a, err := w.Answer(); !w.finished() || err != nil || a.Acquired || a.Place != 1 {
			t.Fatalf("caller %d: %+v %v", i, a, err)
		}
	}
	if a, err := last.Answer(); !last.finished() || err != nil || !a.Acquired {
		t.Errorf("the last one: %+v %v", a, err)
	}
	if live.most > MaxPart {
		t.Errorf("%d members in a record", live.most)
	}
}

// TestCrowdComesAgainWhenItIsOver: when the grace of a crowd is over, or all have given up, a caller
// that asks again before its place was removed is a newcomer, or is told how it ended.
func TestCrowdComesAgainWhenItIsOver(t *testing.T) {
	for _, moved := range []bool{false, true} {
		live := &late{t: t}
		live.to = crowdStore(t, nil)
		s := crowdStore(t, func(c *Config) { c.Sink = live })
		enqueue(t, s, 4*queue.MaxExpire, 100*second)
		now := 100*second + 2*queue.MaxExpire
		if moved {
			now = 2*second + crowdGrace(4*queue.MaxExpire)
			s = live.to
			s.Own(second, always, OwnGrace)
		}
		for _, i := range []int{4*queue.MaxExpire - 1, 2 * queue.MaxExpire, 0} {
			a, w, err := s.AcquirePermits(now, pool, callerOf(i, 1), wants(fmt.Sprint(i), 1, 1, 1000*second))
			switch {
			case moved && w == nil, reason(err) == failure.RequestIDReused:
				t.Errorf("moved %v, caller %d: %+v %v", moved, i, a, err)
			case !moved && i == 2*queue.MaxExpire && !a.Replayed:
				t.Errorf("caller %d was not told that its wait was over: %+v %v", i, a, err)
			}
		}
	}
}

// ends are the ways in which a crowd comes to its end.
var ends = map[string]func(t failer, s *Store, token uint64, waits []*Wait[GrantAnswer]){
	"served": func(t failer, s *Store, token uint64, waits []*Wait[GrantAnswer]) {
		for i, w := range waits {
			must(s.ReleasePermits(second, pool, noID, token))
			a, err := w.Answer()
			if !w.finished() || err != nil || !a.Acquired {
				t.Fatal(i, a, err)
			}
			token = a.Token
		}
	},
	"leave": func(_ failer, _ *Store, _ uint64, waits []*Wait[GrantAnswer]) {
		for i := range waits {
			waits[i*7919%len(waits)].GiveUp(second)
		}
	},
	"over":      func(_ failer, s *Store, _ uint64, _ []*Wait[GrantAnswer]) { s.Wake(200 * second) },
	"dismissed": func(_ failer, s *Store, _ uint64, _ []*Wait[GrantAnswer]) { s.Dismiss(always) },
	"discarded": func(_ failer, s *Store, _ uint64, _ []*Wait[GrantAnswer]) { s.Discard(always) },
}

// endCrowd has a crowd come to its end, and returns how long that took, and how long at most a caller
// waited meanwhile who has nothing to do with it but the shard.
func endCrowd(t failer, end func(failer, *Store, uint64, []*Wait[GrantAnswer])) (worst, took time.Duration) {
	s := crowdStore(t, nil)
	token, waits := enqueue(t, s, crowdSize, 100*second)
	over, waited := make(chan struct{}), make(chan time.Duration)
	go func() {
		worst := time.Duration(0)
		for i := 0; ; i++ {
			select {
			case <-over:
				waited <- worst
				return
			default:
			}
			began := time.Now()
			_, _, err := s.AcquirePermits(second, keyed("other"), noID, hold.Acquire{Name: "o", Weight: 1, Capacity: 1, TTL: second})
			if err != nil {
				panic(err)
			}
			worst = max(worst, time.Since(began))
		}
	}()
	began := time.Now()
	end(t, s, token, waits)
	took = time.Since(began)
	close(over)
	worst = <-waited
	for i, w := range waits {
		if !w.finished() {
			t.Fatal(fmt.Sprintf("caller %d still waits", i))
		}
	}
	return worst, took
}

// mostWait is how long a caller may wait while something that takes so long is done some at a time: a
// second, or the part that a machine takes which does so much else that all takes long.
func mostWait(took time.Duration) time.Duration { return max(time.Second, took/4) }

// TestCrowdKeepsNobodyWaiting: what becomes of fifty thousand callers that wait for one object, with
// which another one in its shard has nothing to do, is done some at a time.
func TestCrowdKeepsNobodyWaiting(t *testing.T) {
	for name, end := range ends {
		worst, took := endCrowd(t, end)
		t.Logf("%s: %d callers in %s; another caller waited %s at most", name, crowdSize, took, worst)
		if worst > mostWait(took) {
			t.Errorf("%s: another caller waited %s", name, worst)
		}
	}
}

func BenchmarkCrowd(b *testing.B) {
	for name, end := range ends {
		b.Run(name, func(b *testing.B) {
			var worst time.Duration
			for b.Loop() {
				w, took := endCrowd(b, end)
				worst = max(worst, w)
				b.ReportMetric(float64(took.Nanoseconds())/crowdSize, "ns/caller")
			}
			b.ReportMetric(float64(worst.Microseconds()), "worst-µs")
		})
	}
}
