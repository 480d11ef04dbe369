package home

import (
	"bytes"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/keystead/keystead/hotkey/heat"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/counter"
	"github.com/keystead/keystead/owner/limit"
	"github.com/keystead/keystead/owner/reqid"
)

// alone is the rule of a node that may always act.
type alone struct{}

func (alone) Admit(hash uint64, _ int64) (owner.Permit, error) {
	return owner.Permit{Epoch: 1, Hash: hash, Since: math.MinInt64}, nil
}
func (alone) Confirm(owner.Permit, int64) error      { return nil }
func (alone) Exhausted(epoch uint64) (uint64, error) { return epoch + 1, nil }
func (alone) Terms() owner.Terms                     { return owner.Terms{} }

// stove is a store whose objects are made hot at moments that a test chooses.
type stove struct {
	t        *testing.T
	store    *owner.Store
	observer *Observer
	log      bytes.Buffer
	now      int64
}

func newStove(t *testing.T, policy heat.Policy, change func(*owner.Config)) *stove {
	t.Helper()
	s := &stove{t: t, now: int64(1000 * time.Hour)}
	var err error
	if s.observer, err = NewObserver(policy, s.now, slog.New(slog.NewTextHandler(&s.log, nil))); err != nil {
		t.Fatal(err)
	}
	cfg := owner.Config{Rule: alone{}, Heat: s.observer.Sketch}
	if change != nil {
		change(&cfg)
	}
	if s.store, err = owner.New(cfg, s.now); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *stove) add(key string) {
	s.t.Helper()
	if _, err := s.store.Add(s.now, owner.Ref{Key: key}, reqid.ID{}, counter.AddOp{Delta: 1}); err != nil {
		s.t.Fatal(err)
	}
}

// poll lets the time between two polls pass, in which keys get so many operations a second.
func (s *stove) poll(rates map[string]int) *HotKeys {
	s.t.Helper()
	const steps = 10
	for range steps {
		s.now += int64(pollEvery) / steps
		for key, rate := range rates {
			for range rate * int(pollEvery) / int(time.Second) / steps {
				s.add(key)
			}
		}
	}
	s.observer.poll(s.store, s.objects(), s.now)
	return s.observer.Last()
}

func (s *stove) objects() (n int64) {
	for _, count := range s.store.Stats().Objects {
		n += count
	}
	return n
}

// find returns the place of a key among what was seen, -1 if it is not there.
func find(seen *HotKeys, key string) int {
	for i := range seen.Keys {
		if seen.Keys[i].Key == key {
			return i
		}
	}
	return -1
}

// A key is hot a second after its first call, and as long as it is busy; then for as
// long as it takes to be sure that it no longer is.
func TestGetsHot(t *testing.T) {
	s := newStove(t, heat.Policy{Floor: 100}, nil)
	for i := range 1000 {
		s.add(fmt.Sprint("other", i))
	}
	s.poll(nil)
	load := map[string]int{"busy": 2000, "calm": 40}
	seen, began := s.poll(load), s.now
	for ; seen.Hot == 0; seen = s.poll(load) {
		if s.now-began > int64(time.Second) {
			t.Fatalf("not hot: %+v", seen.Keys[0])
		}
	}
	for range 160 {
		seen = s.poll(load)
		if seen.Hot != 1 || seen.Keys[0].Key != "busy" || !seen.Keys[0].Hot || seen.Keys[0].Since > began+int64(time.Second) {
			t.Fatalf("%d are hot, and the first is %+v", seen.Hot, seen.Keys[0])
		}
	}
	if k := seen.Keys[0]; k.Kind != owner.KindCounter || k.RateMax < 1900 || k.RateMax > 2100 || k.RateMin < 1900 || k.RateMin > k.RateMax {
		t.Errorf("2,000 a second are shown as %+v", k)
	}
	if i := find(seen, "calm"); i != 1 || seen.Keys[i].Hot || seen.Keys[i].RateMax < 38 || seen.Keys[i].RateMax > 42 {
		t.Errorf("40 a second are shown as %+v, place %d", seen.Keys[max(i, 0)], i)
	}
	if seen.Rate < 1940 || seen.Rate > 2140 || seen.Objects != 1002 {
		t.Errorf("of %d objects %.0f a second", seen.Objects, seen.Rate)
	}
	began = s.now
	for ; seen.Hot == 1; seen = s.poll(nil) {
		if s.now-began > int64(time.Minute) {
			t.Fatal("it is hot for ever")
		}
	}
	if took := time.Duration(s.now - began); took < 10*time.Second {
		t.Errorf("it was hot for only %s after its last call", took)
	}
	if log := s.log.String(); strings.Count(log, "\n") != 2 || !strings.Contains(log, `msg="a key is hot" key=busy name="" kind=counter`) ||
		!strings.Contains(log, `msg="a key is no longer hot" key=busy`) {
		t.Errorf("it logs %s", log)
	}
}

// What is not held any more has no name, and does not come up.
func TestGoneAreLeftOut(t *testing.T) {
	s := newStove(t, heat.Policy{}, func(c *owner.Config) { c.Shards = 1 })
	for i := range 1000 { // so that the average is low
		s.add(fmt.Sprint("idle", i))
	}
	op := limit.Op{Params: limit.Params{Limit: 1_000_000, Period: int64(time.Second)}, Cost: 1}
	for range 30_000 {
		if _, err := s.store.Check(s.now, owner.Ref{Key: "gone", Name: "api"}, reqid.ID{}, op); err != nil {
			t.Fatal(err)
		}
		s.add("stays")
	}
	if seen := s.poll(nil); find(seen, "gone") < 0 || find(seen, "stays") < 0 || seen.Hot != 2 {
		t.Fatalf("%+v", seen.Keys)
	}
	s.now += int64(time.Second) // the bucket is full again
	s.store.Sweep(s.now)
	if seen := s.poll(nil); find(seen, "gone") >= 0 || find(seen, "stays") < 0 || seen.Hot != 1 || seen.Rate < 5000 {
		t.Errorf("%+v", seen)
	}
}

// Locks are shown with their queues.
func TestHotLocks(t *testing.T) {
	s := newStove(t, heat.Policy{Floor: 10}, nil)
	door := owner.Ref{Key: "door", Name: "a\x00b"}
	for i := range 300 {
		op := owner.AcquireLock{Holder: fmt.Sprint("holder", i), TTL: int64(time.Minute), Wait: int64(time.Hour)}
		if _, _, err := s.store.Acquire(s.now, door, reqid.ID{}, op); err != nil {
			t.Fatal(err)
		}
	}
	seen := s.poll(nil)
	if k := seen.Keys[0]; k.Ref != door || k.Kind != owner.KindLock || k.Waiting != 299 || !k.Hot {
		t.Errorf("%+v", k)
	}
}

// tagged remembers the tag of the last touch, and counts.
type tagged struct {
	*heat.Sketch
	last uint32
}

func (s *tagged) Touch(tag uint32, now int64) {
	s.last = tag
	s.Sketch.Touch(tag, now)
}

// Two objects that share a tag are both shown, and neither is said to be hot: nobody
// knows which of them it is.
func TestSharedTags(t *testing.T) {
	var counts *tagged
	s := newStove(t, heat.Policy{}, func(c *owner.Config) {
		c.Shards = 1
		c.Heat = func() owner.Heat { counts = &tagged{Sketch: heat.NewSketch(1 << 10)}; return counts }
	})
	byTag, one, other := map[uint32]string{}, "", ""
	for i := 0; other == ""; i++ {
		if i == 2_000_000 {
			t.Fatal("no two of so many keys share a tag of 32 bits")
		}
		key := fmt.Sprint(i)
		s.add(key)
		if one = byTag[counts.last]; one != "" {
			other = key
		}
		byTag[counts.last] = key
	}
	for range 100_000 {
		s.add(one)
	}
	seen := s.poll(nil)
	i, j := find(seen, one), find(seen, other)
	if i < 0 || j < 0 || seen.Keys[i].RateMax < 9000 || seen.Keys[j].RateMax != seen.Keys[i].RateMax || seen.Keys[i].RateMin != 0 || seen.Hot != 0 {
		t.Errorf("%d are hot; %+v", seen.Hot, seen.Keys[:2])
	}
}

// However many get hot at a look, the log stays short, what is shown is bounded, and
// those are shown that are busiest.
func TestManyHot(t *testing.T) {
	s := newStove(t, heat.Policy{Floor: 1, Factor: 1, Max: 60}, nil)
	for i := range 3 * MaxHotKeys {
		for range 100 + i {
			s.add(fmt.Sprint(i))
		}
	}
	for i := range 20_000 { // so that the average is low
		s.add(fmt.Sprint("idle", i))
	}
	seen := s.poll(nil)
	if len(seen.Keys) != MaxHotKeys || seen.Hot != 60 || seen.LeftOut == 0 {
		t.Errorf("%d are shown, %d hot, %d left out", len(seen.Keys), seen.Hot, seen.LeftOut)
	}
	for i, k := range seen.Keys {
		if want := fmt.Sprint(3*MaxHotKeys - 1 - i); k.Key != want {
			t.Errorf("place %d has %s, want %s", i, k.Key, want)
		}
	}
	if log := s.log.String(); strings.Count(log, "\n") != heatLines || !strings.Contains(log, "keys=56\n") {
		t.Errorf("it logs %s", log)
	}
}

// checks returns what does checks on many limits, a million a second, with sketches or without.
func checks(tb testing.TB, keys int, counted bool) (some func(n int)) {
	h, err := NewObserver(heat.Policy{}, 0, slog.New(slog.DiscardHandler))
	if err != nil {
		tb.Fatal(err)
	}
	cfg := owner.Config{Rule: alone{}}
	if counted {
		cfg.Heat = h.Sketch
	}
	s, err := owner.New(cfg, 0)
	if err != nil {
		tb.Fatal(err)
	}
	op := limit.Op{Params: limit.Params{Limit: 1000, Period: int64(time.Second)}, Cost: 1}
	refs := make([]owner.Ref, keys)
	for i := range refs {
		refs[i] = owner.Ref{Key: fmt.Sprintf("key-%012d", i), Name: "api"}
	}
	now, i := int64(0), 0
	some = func(n int) {
		for range n {
			now += 1000
			i = (i + 7919) % keys
			if _, err := s.Check(now, refs[i], reqid.ID{}, op); err != nil {
				tb.Fatal(err)
			}
		}
	}
	some(2 * keys) // 7,919 is a prime: all of them
	return some
}

func TestCountingAllocatesNothing(t *testing.T) {
	some := checks(t, 1000, true)
	if n := testing.AllocsPerRun(1000, func() { some(10) }); n != 0 {
		t.Errorf("%v allocations in 10 checks", n)
	}
}

// BenchmarkCheckHeat is a check at the owner, with and without the sketches, in short
// turns: the difference of the medians is what looking for hot keys costs each operation,
// whatever else the machine does.
func BenchmarkCheckHeat(b *testing.B) {
	for _, keys := range []int{1, 1_000, 100_000} {
		b.Run(fmt.Sprintf("keys=%d", keys), func(b *testing.B) {
			const turn = 1000
			without, with := checks(b, keys, false), checks(b, keys, true)
			var took [2][]float64
			for b.Loop() {
				for i, some := range []func(int){without, with} {
					began := time.Now()
					some(turn)
					took[i] = append(took[i], float64(time.Since(began))/turn)
				}
			}
			for i := range took {
				slices.Sort(took[i])
			}
			middle := len(took[0]) / 2
			b.ReportMetric(took[0][middle], "ns/check")
			b.ReportMetric(took[1][middle], "ns/counted-check")
			b.ReportMetric(took[1][middle]-took[0][middle], "ns/count")
		})
	}
}

// BenchmarkPoll is a poll of sketches that are full, for those that get hot as well.
func BenchmarkPoll(b *testing.B) {
	h, _ := NewObserver(heat.Policy{}, 0, slog.New(slog.DiscardHandler))
	s, err := owner.New(owner.Config{Rule: alone{}, Heat: h.Sketch}, 0)
	if err != nil {
		b.Fatal(err)
	}
	now := int64(0)
	for i := range 1_000_000 {
		now += 1000
		if _, err := s.Add(now, owner.Ref{Key: fmt.Sprint(i % 100_000)}, reqid.ID{}, counter.AddOp{Delta: 1}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		h.poll(s, 100_000, now)
	}
}
