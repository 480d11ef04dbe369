package owner

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/counter"
	"github.com/keystead/keystead/owner/hold"
	"github.com/keystead/keystead/owner/reqid"
)

func always(uint64) bool { return true }

// copyTo is a sink and the emit of an Export that installs what it is given.
type copyTo struct {
	store   *Store
	records int
}

func (c *copyTo) Changed(r *Record) { c.emit(r, r.At) }

func (c *copyTo) emit(r *Record, now int64) bool {
	c.records++
	if err := c.store.Install(now, r, always); err != nil {
		panic(fmt.Sprintf("%v: %+v", err, r))
	}
	return true
}

// ownsNothing is the rule of a node that owns nothing.
var ownsNothing = &testRule{admit: &failure.Error{Reason: failure.NotOwner}}

// A walk under load misses nothing that is there all the time, and what changes
// meanwhile reaches the copy in order.
func TestExportUnderLoad(t *testing.T) {
	const kept, workers = 5_000, 3
	to := &copyTo{}
	live := &switched{}
	s := newStore(t, func(c *Config) { c.Shards, c.Sink = 4, live })
	to.store = newStore(t, func(c *Config) { c.Rule, c.Shards = ownsNothing, 8 })
	live.to.store = to.store
	for i := range kept {
		must(s.Add(1, Ref{Key: fmt.Sprint("kept", i), Name: "n"}, id(uint64(i+1)), counter.AddOp{Delta: 1}))
	}
	live.on()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				now := int64(i) * 1000
				must(s.Add(now, Ref{Key: fmt.Sprint("kept", i%kept), Name: "n"}, noID, counter.AddOp{Delta: 1}))
				must(s.Add(now, Ref{Key: fmt.Sprint("passing", w, i), Name: "n"}, noID, counter.AddOp{Delta: 1, IdleTTL: counter.MinIdleTTL}))
				if i%64 == 0 {
					s.Sweep(now)
				}
			}
		})
	}
	half := func(h uint64) bool { return h%2 == 0 }
	pauses := 0
	whole := s.Export(func() int64 { return 1 }, half, live.emit, func() bool { pauses++; return true })
	close(stop)
	wg.Wait()
	if !whole || pauses < 4 {
		t.Fatalf("whole %v after %d pauses", whole, pauses)
	}
	to.store.cfg.Rule = &testRule{epoch: 200}
	for i := range kept {
		key := fmt.Sprint("kept", i)
		want, got := must(s.Get(math.MaxInt32, Ref{Key: key, Name: "n"})), must(to.store.Get(math.MaxInt32, Ref{Key: key, Name: "n"}))
		if half(Hash(key)) && (got.Value != want.Value || got.Version != want.Version) {
			t.Fatalf("%s is %+v in the copy, %+v in the original", key, got, want)
		}
		if half(Hash(key)) {
			if a := must(to.store.Add(math.MaxInt32, Ref{Key: key, Name: "n"}, id(uint64(i+1)), counter.AddOp{Delta: 1})); !a.Replayed || a.Value != 1 {
				t.Fatalf("a retry of %s at the copy: %+v", key, a)
			}
		}
	}
}

// switched is a sink for positions that are even, from a moment on. Records of one
// shard come in order; those of different shards may come at once.
type switched struct {
	mu sync.Mutex
	to copyTo
	is bool
}

func (s *switched) on() { s.mu.Lock(); s.is = true; s.mu.Unlock() }

func (s *switched) Changed(r *Record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.is && r.Hash%2 == 0 {
		s.to.Changed(r)
	}
}

func (s *switched) emit(r *Record, now int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.to.emit(r, now)
}

func TestExportStops(t *testing.T) {
	s := newStore(t, nil)
	for i := range 100 {
		must(s.Add(0, Ref{Key: fmt.Sprint(i), Name: "n"}, noID, counter.AddOp{Delta: 1}))
	}
	clock, n := func() int64 { return 0 }, 0
	yes := func() bool { return true }
	if s.Export(clock, always, func(*Record, int64) bool { n++; return n < 10 }, yes) || n != 10 {
		t.Errorf("it went on after emit said no: %d", n)
	}
	if s.Export(clock, always, func(*Record, int64) bool { return true }, func() bool { return false }) {
		t.Error("it went on after pause said no")
	}
}

// An object with more request ids than one record has.
func TestManyIDsTakeManyRecords(t *testing.T) {
	const clients, each = 100, 100
	s := newStore(t, nil)
	to := &copyTo{store: newStore(t, func(c *Config) { c.Rule = ownsNothing })}
	ref := Ref{Key: "k", Name: "n"}
	one := func(i int) reqid.ID {
		return reqid.ID{Client: reqid.Client{Hi: uint64(i % clients)}, Sequence: uint64(i/clients + 1)}
	}
	for i := range clients * each {
		must(s.Add(int64(i), ref, one(i), counter.AddOp{Delta: 1}))
	}
	for range 2 { // the second time, it replaces all
		if !s.Export(func() int64 { return clients * each }, always, to.emit, func() bool { return true }) {
			t.Fatal("it ended early")
		}
	}
	if want := 2 * (clients*each/MaxKept + 1); to.records != want {
		t.Errorf("%d records, want %d", to.records, want)
	}
	to.store.cfg.Rule = &testRule{epoch: 200}
	for i := range clients * each {
		again := one(i)
		again.Age = int64(clients*each-i) + 1
		if a := must(to.store.Add(clients*each+1, ref, again, counter.AddOp{Delta: 1})); !a.Replayed || a.Value != int64(i+1) {
			t.Fatalf("%d: %+v", i, a)
		}
	}
}

func TestInstallAsksFirst(t *testing.T) {
	s := newStore(t, nil)
	r := (&Record{Key: []byte("k"), Name: []byte("n")}).SetCounter(counter.State{Value: 1, Version: 1})
	var asked uint64
	err := s.Install(0, r, func(h uint64) bool {
		asked = h
		if s.shard(h).mu.TryLock() {
			t.Error("the shard is not locked")
		}
		return false
	})
	if !errors.Is(err, ErrNotAccepted) || asked != Hash("k") || held(s) != 0 {
		t.Errorf("%v, asked for %x, %d objects", err, asked, held(s))
	}
	if err := s.Install(0, r, always); err != nil || must(s.Get(0, Ref{Key: "k", Name: "n"})).Value != 1 {
		t.Errorf("accepted: %v", err)
	}
}

func TestRecordWins(t *testing.T) {
	s := newStore(t, nil)
	ref := Ref{Key: "k", Name: "n"}
	must(s.Check(0, ref, id(1), perSecond(1)))
	r := (&Record{Key: []byte("k"), Name: []byte("n")}).SetCounter(counter.State{Value: 5, Version: 1000})
	if err := s.Install(0, r, always); err != nil {
		t.Fatal(err)
	}
	if a := must(s.Add(0, ref, noID, counter.AddOp{Delta: 1})); a.Value != 6 || a.Version <= 1000 {
		t.Errorf("%+v", a)
	}
	r.SetCounter(counter.State{})
	if err := s.Install(0, r, always); err != nil || held(s) != 0 {
		t.Errorf("%v: an object that is absent and has no ids is kept", err)
	}
}

// Copies may take a quarter more than own objects, and no more.
func TestRoomForCopies(t *testing.T) {
	record := func(i int) *Record {
		return (&Record{Key: fmt.Append(nil, i)}).SetCounter(counter.State{Value: 1, Version: 1})
	}
	for name, change := range map[string]func(*Config){
		"objects": func(c *Config) { c.MaxObjects = 100 },
		"memory":  func(c *Config) { c.MaxBytes = 1 << 20 },
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t, change)
			own, all := 0, 0
			for ; ; own++ {
				if _, err := s.Add(0, Ref{Key: fmt.Sprint("own", own), Name: ""}, noID, counter.AddOp{Delta: 1}); err != nil {
					break
				}
			}
			for all = own; all < 2*own+10; all++ {
				if err := s.Install(0, record(all), always); err != nil {
					if reason(err) != failure.StoreFull {
						t.Fatal(err)
					}
					break
				}
			}
			if all < own*11/10 || all > own*14/10 {
				t.Errorf("room for %d own objects, and for %d with copies", own, all)
			}
			if err := s.Install(0, record(own), always); err != nil {
				t.Errorf("a record of a copy that is there: %v", err)
			}
		})
	}
}

// What an answer has shown to be over, the copy has heard of, also when it was
// swept away before anybody asked.
func TestWhatIsOverIsTold(t *testing.T) {
	ref := Ref{Key: "k", Name: "n"}
	hold := func(s *Store) {
		if a, _, err := s.Acquire(0, ref, noID, AcquireLock{Holder: "h", TTL: second}); err != nil || !a.Acquired {
			t.Fatal(err)
		}
	}
	count := func(s *Store) { must(s.Add(0, ref, noID, counter.AddOp{Delta: 1, IdleTTL: second})) }
	for name, tc := range map[string]struct{ before, show func(*Store) }{
		"get":                  {count, func(s *Store) { must(s.Get(second, ref)) }},
		"a swept counter":      {count, func(s *Store) { sweepAll(s, second); must(s.Get(second, ref)) }},
		"another kind":         {count, func(s *Store) { op := perSecond(1); op.Peek = true; must(s.Check(second, ref, noID, op)) }},
		"inspect":              {hold, func(s *Store) { must(s.Inspect(second, ref, 1)) }},
		"a swept lock":         {hold, func(s *Store) { sweepAll(s, second); must(s.Inspect(second, ref, 1)) }},
		"replay of an acquire": {func(s *Store) { must2(s.Acquire(0, ref, id(1), asks("h", second, 0))) }, func(s *Store) { must2(s.Acquire(second, ref, id(1), asks("h", second, 0))) }},
		"renew":                {hold, func(s *Store) { must(s.Renew(second, ref, 1, second)) }},
	} {
		t.Run(name, func(t *testing.T) {
			to := &copyTo{store: newStore(t, func(c *Config) { c.Rule = ownsNothing })}
			s := newStore(t, func(c *Config) { c.Sink = to })
			tc.before(s)
			if held(to.store) != 1 {
				t.Fatal("the copy has heard of nothing")
			}
			tc.show(s)
			told := to.records
			tc.show(s)
			if to.records != told {
				t.Errorf("told again: %d records", to.records-told)
			}
			to.store.cfg.Rule = &testRule{epoch: 200}
			// A moment before, by the clock of the copy.
			if a, err := to.store.Get(second-1, ref); err == nil && a.Version != 0 {
				t.Errorf("the copy has a counter: %+v", a)
			}
			if a, err := to.store.Inspect(second-1, ref, 1); err == nil && a.Holding.Token != 0 {
				t.Errorf("the copy has a holder: %+v", a)
			}
		})
	}
}

func must2(a GrantAnswer, w *Wait[GrantAnswer], err error) {
	if err != nil || w != nil {
		panic(fmt.Sprint(a, w, err))
	}
}

// Copies of locks with queues ask for no wakes, are not swept away while they may
// be needed, and count as nothing that happened here.
func TestCopiesAreQuiet(t *testing.T) {
	to := &copyTo{store: newStore(t, func(c *Config) { c.Rule = ownsNothing })}
	s := newStore(t, func(c *Config) { c.Sink = to })
	const locks = 200
	var waits []*Wait[GrantAnswer]
	for i := range locks {
		ref := Ref{Key: fmt.Sprint(i), Name: "lock"}
		must2(s.Acquire(0, ref, noID, asks("h", second, 0)))
		for n := range uint64(3) {
			_, w, err := s.Acquire(0, ref, reqid.ID{Client: reqid.Client{Hi: n}, Sequence: 1}, asks("w", 10*second, 30*second))
			if err != nil {
				t.Fatal(err)
			}
			waits = append(waits, w)
		}
	}
	if at, ok := to.store.NextWake(); ok {
		t.Errorf("a copy wants to wake at %d", at)
	}
	to.store.Wake(5 * second)
	sweepAll(to.store, 5*second)
	if st := to.store.Stats(); st.Objects[KindLock] != locks || st.Lapsed != 0 || st.Expired[KindLock] != 0 || st.Waiting != 0 {
		t.Errorf("copies: %+v", st)
	}
	// The former owner gives its rows away, and keeps them as copies.
	s.cfg.Rule = ownsNothing
	s.Dismiss(always)
	for i, w := range waits {
		if !w.finished() || reason(w.err) != failure.NotOwner {
			t.Fatalf("caller %d waits on: %v", i, w.err)
		}
		w.GiveUp(second) // as those do whose connections are gone, too
	}
	for at := second; at < 3*second; at += second / 10 {
		s.Wake(at)
	}
	if at, ok := s.NextWake(); ok {
		t.Errorf("the former owner wants to wake at %d", at)
	}
	if st := s.Stats(); st.Waiting != 0 || st.Objects[KindLock] != locks {
		t.Errorf("the former owner: %+v", st)
	}
	// The new owner: nobody comes for the places.
	to.store.cfg.Rule = &testRule{epoch: 200}
	to.store.Own(5*second, always, OwnGrace)
	at, ok := to.store.NextWake()
	if !ok || at != 6*second {
		t.Errorf("the new owner wakes at %d, %v", at, ok)
	}
	to.store.Wake(6 * second)
	sweepAll(to.store, 6*second)
	if held(to.store) != 0 {
		t.Errorf("%d locks are left that nobody holds", held(to.store))
	}
	// Nobody tells the former owner of that here: its copies end by themselves.
	sweepAll(s, 60*second)
	if held(s) != locks {
		t.Error("copies are swept too early")
	}
	sweepAll(s, 200*second)
	for i := range s.shards {
		if text := s.shards[i].text; text != 0 {
			t.Errorf("%d bytes of text are counted for nothing", text)
		}
	}
	if held(s) != 0 {
		t.Errorf("%d copies are left", held(s))
	}
}

// A node that has no lease yet when it is told to look through its rows does so
// later.
func TestOwnWithoutLease(t *testing.T) {
	to := &copyTo{store: newStore(t, func(c *Config) { c.Rule = &testRule{admit: &failure.Error{Reason: failure.Unavailable}} })}
	s := newStore(t, func(c *Config) { c.Sink = to })
	must2(s.Acquire(0, door, noID, asks("h", second, 0)))
	if _, w, err := s.Acquire(0, door, id(1), asks("w", second, 30*second)); w == nil {
		t.Fatal(err)
	}
	to.store.Own(2*second, always, OwnGrace)
	to.store.Wake(2*second + retryWake)
	if st := to.store.Stats(); st.Lapsed != 0 {
		t.Error("it acts without a lease")
	}
	rule := &testRule{epoch: 200}
	to.store.cfg.Rule = rule
	for at, ok := to.store.NextWake(); ok && at < 10*second; at, ok = to.store.NextWake() {
		to.store.Wake(at)
	}
	if st := to.store.Stats(); st.Lapsed != 1 {
		t.Errorf("%+v", st)
	}
}

// BenchmarkExport walks over a million objects. The longest hold of a shard's
// lock is what callers may notice.
func BenchmarkExport(b *testing.B) {
	s := newStore(b, func(c *Config) { c.Shards = DefaultShards })
	for i, k := range keys(1_000_000) {
		must(s.Add(int64(i), Ref{Key: k, Name: "n"}, noID, counter.AddOp{Delta: 1}))
	}
	var longest time.Duration
	n := 0
	for b.Loop() {
		from := time.Now()
		s.Export(func() int64 { from = time.Now(); return 1 }, always,
			func(*Record, int64) bool { n++; return true },
			func() bool { longest = max(longest, time.Since(from)); return true })
	}
	b.ReportMetric(float64(longest.Microseconds()), "µs-longest-hold")
	b.ReportMetric(float64(n)/float64(b.N), "objects/op")
}

// A record that comes twice is the same as once, its request ids included.
func TestInstallTwice(t *testing.T) {
	s := newStore(t, func(c *Config) { c.RequestIDs.IDsPerClient = 2 })
	to := &copyTo{store: s}
	from := newStore(t, func(c *Config) { c.Sink = to })
	from.cfg.Sink = twice{to}
	must(from.Add(0, Ref{Key: "k", Name: "n"}, id(1), counter.AddOp{Delta: 1}))
	must(from.Add(0, Ref{Key: "k", Name: "n"}, id(2), counter.AddOp{Delta: 1}))
	if a := must(s.Add(1, Ref{Key: "k", Name: "n"}, id(1), counter.AddOp{Delta: 1})); !a.Replayed || a.Current != 2 {
		t.Errorf("%+v", a)
	}
}

type twice struct{ Sink }

func (s twice) Changed(r *Record) {
	s.Sink.Changed(r)
	s.Sink.Changed(r)
}

// What was done before the row began with nothing is unknown; a row that came with
// all its ids knows everything.
func TestRetriesFromBeforeTheRow(t *testing.T) {
	rule := &testRule{epoch: 100, since: 50 * second}
	s := newStore(t, func(c *Config) { c.Rule = rule })
	if _, err := s.Add(60*second, Ref{Key: "k", Name: "n"}, retry(1, 20*second), counter.AddOp{Delta: 1}); reason(err) != failure.RequestTooOld {
		t.Errorf("sent before: %v", err)
	}
	must(s.Add(60*second, Ref{Key: "k", Name: "n"}, retry(2, 5*second), counter.AddOp{Delta: 1}))
	rule.since = math.MinInt64
	must(s.Add(60*second, Ref{Key: "k", Name: "n"}, retry(1, 20*second), counter.AddOp{Delta: 1}))
	if _, err := s.Add(200*second, Ref{Key: "k", Name: "n"}, retry(3, 150*second), counter.AddOp{Delta: 1}); reason(err) != failure.RequestTooOld {
		t.Errorf("older than half of the window: %v", err)
	}
}

// Queues count in what is exported under one hold of a lock: otherwise the copies of
// some long ones would be more than a stream holds.
func TestExportOfQueues(t *testing.T) {
	const locks, waiters = 20, 100
	s := newStore(t, func(c *Config) { c.Shards = 1 })
	for l := range locks {
		for i := range uint64(waiters + 1) {
			if _, _, err := s.Acquire(0, Ref{Key: fmt.Sprint("lock", l), Name: ""}, id(i+1), AcquireLock{Holder: "h", TTL: hold.MaxTTL, Wait: hold.MaxWait}); err != nil {
				t.Fatal(err)
			}
		}
	}
	places, most, all := 0, 0, 0
	whole := s.Export(func() int64 { return 1 }, always, func(r *Record, _ int64) bool {
		places += r.Hold().Queue.Len()
		return true
	}, func() bool {
		most, all, places = max(most, places), all+places, 0
		return true
	})
	if !whole || all != locks*waiters || most > exportStep+waiters {
		t.Errorf("%v: %d places of %d, %d at once", whole, all, locks*waiters, most)
	}
}
