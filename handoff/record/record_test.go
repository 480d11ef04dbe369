package record

import (
	"bytes"
	"encoding/hex"
	"flag"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/counter"
	"github.com/keystead/keystead/owner/limit"
	"github.com/keystead/keystead/owner/lock"
	"github.com/keystead/keystead/owner/queue"
	"github.com/keystead/keystead/owner/reqid"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files anew: only for a new version of the format")

// examples are records of all kinds, as of the moment 100 s.
func examples() map[string]*owner.Record {
	key := func(r owner.Record) *owner.Record {
		r.Key, r.Name, r.Version, r.At = []byte("203.0.113.7"), []byte("api"), 1234, 99*second
		r.Hash = owner.Hash("203.0.113.7")
		return &r
	}
	id := func(n uint64) reqid.ID {
		return reqid.ID{Client: reqid.Client{Hi: 0x0102030405060708, Lo: 0x090a0b0c0d0e0f00 + n}, Sequence: n, Settled: n - 1}
	}
	out := reqid.Outcome{Print: 0xdeadbeef, Code: 1, A: -5, B: 7}
	kept := &reqid.Kept{
		Evicted: 50 * second,
		Clients: []reqid.KeptClient{
			{Client: id(1).Client, Floor: 3, Seen: 98 * second, Linked: 97 * second, Ops: 2},
			{Client: id(2).Client, Seen: 99 * second, Linked: 99 * second, Ops: 1},
		},
		Ops: []reqid.KeptOp{{Sequence: 3, At: 10 * second, Outcome: out}, {Sequence: 4, At: 20 * second, Outcome: out}, {Sequence: 9, At: 30 * second, Outcome: out}},
	}
	held := lock.State{Holder: "worker-1", Token: 1<<40 + 3, LastToken: 1<<40 + 3, Since: 90 * second, Expires: 120 * second, Waited: second, Metadata: []byte("pid 7"), At: 99 * second}
	next := lock.Request{Holder: "worker-2", TTL: 30 * second}
	third := lock.Request{Holder: "worker-3", TTL: 30 * second, Metadata: []byte("pid 9")}
	waited := held
	waited.Queue.Places = []lock.Waiter{
		{Ticket: 0, Caller: queue.Caller{ID: id(6), Print: 77}, Request: next, Since: 91 * second, GiveUp: 151 * second},
		{Ticket: 1, Request: third, Since: 92 * second, GiveUp: 152 * second},
	}
	return map[string]*owner.Record{
		"bucket": key(owner.Record{Kind: owner.KindLimit, Limit: limit.State{At: 99 * second, Spent: 7, Carry: 12345, Limit: 20, Period: 60 * second}}),
		"window": key(owner.Record{Kind: owner.KindLimit, Limit: limit.State{Algorithm: limit.FixedWindow, At: -second, Spent: 7, Limit: 20, Period: 3600 * second}}),
		"sliding": key(owner.Record{Kind: owner.KindLimit, Limit: limit.State{Algorithm: limit.SlidingWindow, At: 99 * second, Spent: 7, Limit: 20, Period: 60 * second},
			Marks: []limit.Mark{{At: 45 * second, Tokens: 1}, {At: 98*second + 12345, Tokens: 4}, {At: 99 * second, Tokens: 2}}}),
		"sliding, once": key(owner.Record{Kind: owner.KindLimit, Limit: limit.State{Algorithm: limit.SlidingWindow, At: -second, Spent: 7, Limit: 20, Period: 3600 * second}}),
		"part":          key(owner.Record{Kind: owner.KindLimit, Limit: limit.State{Weight: 13107, At: 99 * second, Spent: 7, Carry: 12345, Limit: 20, Period: 300 * second}}),
		"part, whole":   key(owner.Record{Kind: owner.KindLimit, Limit: limit.State{Weight: limit.Whole, At: -second, Spent: 1, Limit: 20, Period: 60 * second}}),
		"part, full":    key(owner.Record{Kind: owner.KindLimit, Limit: limit.State{Weight: 1}, Whole: true, IDs: kept}),
		"full":          key(owner.Record{Kind: owner.KindLimit, Done: []owner.Done{{ID: id(5), Outcome: out}}}),
		"counter":       key(owner.Record{Kind: owner.KindCounter, Counter: counter.State{Value: math.MinInt64, Version: 1233, At: 42, IdleTTL: 86400 * second}, Done: []owner.Done{{ID: id(5), Outcome: out}}}),
		"gone":          key(owner.Record{Kind: owner.KindCounter}),
		"held":          key(owner.Record{Kind: owner.KindLock, Lock: &held}),
		"queue":         key(owner.Record{Kind: owner.KindLock, Lock: &waited, Done: []owner.Done{{ID: id(5), Outcome: out}, {ID: id(6), Outcome: out}}}),
		"kept":          key(owner.Record{Kind: owner.KindLock, Lock: &lock.State{LastToken: 9, At: 3 * second}, Whole: true, IDs: kept}),
		"whole":         key(owner.Record{Kind: owner.KindCounter, Counter: counter.State{Value: 1, Version: 7, At: 42}, Whole: true, IDs: kept}),
		"whole, no ids": key(owner.Record{Kind: owner.KindCounter, Counter: counter.State{Value: 1, Version: 7, At: 42}, Whole: true, IDs: &reqid.Kept{Evicted: math.MinInt64}}),
		"places": key(owner.Record{Kind: owner.KindLock, ByPlace: true, Lock: &held, Done: []owner.Done{{ID: id(5), Outcome: out}}, Moves: []owner.Move{
			{Waiter: lock.Waiter{Caller: queue.Caller{ID: gone(id(5))}}, Gone: true},
			{Waiter: lock.Waiter{Caller: queue.Caller{ID: id(6), Print: 77}, Request: third, Since: 92 * second, GiveUp: 152 * second}}}}),
		"places, none": key(owner.Record{Kind: owner.KindLock, ByPlace: true, Lock: &held}),
		"places, kept": key(owner.Record{Kind: owner.KindLock, ByPlace: true, Lock: &lock.State{LastToken: 9, At: 99 * second}, Moves: []owner.Move{{Waiter: lock.Waiter{Caller: queue.Caller{ID: gone(id(5))}}, Gone: true}}}),
		"places, free": key(owner.Record{Kind: owner.KindLock, ByPlace: true, Done: []owner.Done{{ID: id(5), Outcome: out}}}),
		"more":         key(owner.Record{Kind: owner.KindCounter, More: true, IDs: kept}),
	}
}

// gone is the id of a place that is gone: what its client has settled is not written.
func gone(id reqid.ID) reqid.ID {
	id.Settled = 0
	return id
}

// normal makes lists that are empty equal.
func normal(r owner.Record) owner.Record {
	if len(r.Done) == 0 {
		r.Done = nil
	}
	if len(r.Moves) == 0 {
		r.Moves = nil
	}
	if len(r.Marks) == 0 {
		r.Marks = nil
	}
	if r.Lock != nil && r.Lock.Queue.Len() == 0 {
		c := r.Lock.Clone()
		r.Lock = &c
	}
	if r.IDs != nil && len(r.IDs.Clients) == 0 {
		r.IDs = &reqid.Kept{Evicted: r.IDs.Evicted}
	}
	return r
}

func equal(a, b *owner.Record) bool { return reflect.DeepEqual(normal(*a), normal(*b)) }

// The bytes of a version never change, and are read by every later one.
func TestGolden(t *testing.T) {
	for name, r := range examples() {
		t.Run(name, func(t *testing.T) {
			if err := r.Validate(100 * second); err != nil {
				t.Fatal(err)
			}
			got := Append([]byte("before"), r, 100*second)[len("before"):]
			dir := "v1"
			if strings.HasPrefix(name, "sliding") {
				dir = "v2"
			} else if strings.HasPrefix(name, "part") {
				dir = "v3"
			} else if strings.HasPrefix(name, "places") {
				dir = "v4"
			}
			path := filepath.Join("testdata", dir, strings.ReplaceAll(name, ", ", "-")+".hex")
			if *rewrite {
				if err := os.WriteFile(path, []byte(hex.Dump(got)), 0o666); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if hex.Dump(got) != string(want) {
				t.Errorf("written:\n%s\ngolden:\n%s", hex.Dump(got), want)
			}
			var back owner.Record
			if err := Decode(got, 100*second, &back); err != nil || !equal(&back, r) {
				t.Errorf("read: %v\n%+v\nwritten:\n%+v", err, back, *r)
			}
		})
	}
}

// Times are durations before now: they follow the clock of the reader.
func TestTimesFollowTheClock(t *testing.T) {
	r := examples()["queue"]
	var back owner.Record
	if err := Decode(Append(nil, r, 100*second), 7*second, &back); err != nil {
		t.Fatal(err)
	}
	const moved = -93 * second
	want, state := *r, r.Lock.Clone()
	want.Lock = &state
	want.At += moved
	state.At, state.Since, state.Expires = state.At+moved, state.Since+moved, state.Expires+moved
	for i := range state.Queue.Places {
		state.Queue.Places[i].Since += moved
		state.Queue.Places[i].GiveUp += moved
	}
	if !equal(&back, &want) {
		t.Errorf("read\n%+v %+v\nwant\n%+v %+v", back, back.Lock, want, want.Lock)
	}
}

// A record that is cut short, or has more after it, is none.
func TestDamaged(t *testing.T) {
	for name, r := range examples() {
		whole := Append(nil, r, 100*second)
		var back owner.Record
		for n := range whole {
			if Decode(whole[:n], 100*second, &back) == nil {
				t.Errorf("%s: %d of %d bytes are taken for a record", name, n, len(whole))
			}
		}
		if Decode(append(bytes.Clone(whole), 0), 100*second, &back) == nil {
			t.Errorf("%s: a byte too many is taken", name)
		}
		for v := range byte(Version + 2) {
			other := bytes.Clone(whole)
			if other[0] = v; v != whole[0] && Decode(other, 100*second, &back) == nil {
				t.Errorf("%s: version %d is taken for %d", name, v, whole[0])
			}
		}
	}
}

// Decode reads anything. What it takes is written again as the same record, and is
// refused or installed by a store that works on.
func FuzzDecode(f *testing.F) {
	for _, r := range examples() {
		f.Add(Append(nil, r, 100*second))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		const now = 100 * second
		var r, again owner.Record
		if Decode(b, now, &r) != nil {
			return
		}
		s := newStore(t, &rule{epoch: 3, since: math.MinInt64}, nil)
		valid := r.Validate(now) == nil
		if valid {
			if err := Decode(Append(nil, &r, now), now, &again); err != nil || !equal(&again, &r) {
				t.Fatalf("%v\n%+v\n%+v", err, r, again)
			}
		}
		err := s.Install(now, &r, func(uint64) bool { return true })
		if (err == nil) != valid {
			t.Fatalf("valid %v, installed %v", valid, err)
		}
		use(t, s, owner.Ref{Key: string(r.Key), Name: string(r.Name)}, now)
	})
}

// use asks a store all kinds of things about an object, as a copy and as an own
// one, and lets a day pass.
func use(t *testing.T, s *owner.Store, ref owner.Ref, now int64) {
	seen := 0
	s.Export(func() int64 { return now }, func(uint64) bool { return true },
		func(r *owner.Record, now int64) bool {
			seen++
			if err := r.Validate(now); err != nil {
				t.Fatalf("what was installed cannot be given on: %v", err)
			}
			return true
		}, func() bool { return true })
	s.Own(now, func(uint64) bool { return true }, owner.OwnGrace)
	for _, at := range []int64{now, now + second/2, now + 10*second, now + 700*second, now + 2*86_400*second} {
		s.Wake(at)
		for kind := range 12 {
			o := op{kind: kind, ref: ref, at: at, arg: 1, acquire: lock.Acquire{Holder: "h", TTL: second, Wait: int64(kind-5) * second}}
			if ask(s, at, o, 0).reason == failure.KindMismatch {
				continue
			}
			o.id = reqid.ID{Client: reqid.Client{Hi: 9}, Sequence: uint64(at + int64(kind))}
			ask(s, at, o, 1<<24|1)
		}
		s.Wake(at)
		s.Sweep(at)
		s.Sweep(at)
	}
	s.Dismiss(func(uint64) bool { return true })
	s.Discard(func(uint64) bool { return true })
	if st := s.Stats(); st.Waiting != 0 || seen > 0 && st.Objects[owner.KindLock]+st.Objects[owner.KindCounter]+st.Objects[owner.KindLimit] != 0 {
		t.Fatalf("%+v is left", st)
	}
}

// The owner appends a record under the lock of a shard, at every change.
func TestAppendAllocatesNothing(t *testing.T) {
	buf := make([]byte, 0, 1<<10)
	for name, r := range examples() {
		if n := testing.AllocsPerRun(100, func() { buf = Append(buf[:0], r, 100*second) }); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func BenchmarkAppend(b *testing.B) {
	for _, name := range []string{"bucket", "sliding", "counter", "queue"} {
		r, buf := examples()[name], []byte(nil)
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				buf = Append(buf[:0], r, 100*second)
			}
			b.ReportMetric(float64(len(buf)), "B/record")
		})
	}
}

func BenchmarkInstall(b *testing.B) {
	for _, name := range []string{"bucket", "sliding", "counter", "queue"} {
		buf := Append(nil, examples()[name], 100*second)
		s := newStore(b, &rule{epoch: 3}, nil)
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			var r owner.Record
			for b.Loop() {
				if err := Decode(buf, 100*second, &r); err != nil {
					b.Fatal(err)
				}
				if err := s.Install(100*second, &r, func(uint64) bool { return true }); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
