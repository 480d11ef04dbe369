package record

import (
	"bytes"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/counter"
	"github.com/keystead/keystead/owner/hold"
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
	held := hold.State{Capacity: lock.All, LastToken: 1<<40 + 3, At: 99 * second}
	held.Put(hold.Holder{Name: "worker-1", Token: 1<<40 + 3, Weight: lock.All, Since: 90 * second, Expires: 120 * second, Waited: second, Metadata: []byte("pid 7")})
	next := hold.Request{Weight: lock.All, Name: "worker-2", TTL: 30 * second}
	third := hold.Request{Weight: lock.All, Name: "worker-3", TTL: 30 * second, Metadata: []byte("pid 9")}
	waited := held
	waited.Queue.Places = []hold.Waiter{
		{Ticket: 0, Caller: queue.Caller{ID: id(6), Print: 77}, Request: next, Since: 91 * second, GiveUp: 151 * second},
		{Ticket: 1, Request: third, Since: 92 * second, GiveUp: 152 * second},
	}
	crowd := held
	crowd.Queue.Places = append([]hold.Waiter{}, waited.Queue.Places[0],
		hold.Waiter{Caller: queue.Caller{ID: id(7), Print: 78}, Request: third, Since: 92 * second, GiveUp: 152 * second})
	answered := []owner.Done{{ID: id(5), Outcome: out}}
	ofLimit := func(s limit.State, marks ...limit.Mark) *owner.Record { return key(owner.Record{}).SetLimit(s, marks) }
	return map[string]*owner.Record{
		"bucket": ofLimit(limit.State{At: 99 * second, Spent: 7, Carry: 12345, Limit: 20, Period: 60 * second}),
		"window": ofLimit(limit.State{Algorithm: limit.FixedWindow, At: -second, Spent: 7, Limit: 20, Period: 3600 * second}),
		"sliding": ofLimit(limit.State{Algorithm: limit.SlidingWindow, At: 99 * second, Spent: 7, Limit: 20, Period: 60 * second},
			limit.Mark{At: 45 * second, Tokens: 1}, limit.Mark{At: 98*second + 12345, Tokens: 4}, limit.Mark{At: 99 * second, Tokens: 2}),
		"sliding, once": ofLimit(limit.State{Algorithm: limit.SlidingWindow, At: -second, Spent: 7, Limit: 20, Period: 3600 * second}),
		"part":          ofLimit(limit.State{Weight: 13107, At: 99 * second, Spent: 7, Carry: 12345, Limit: 20, Period: 300 * second}),
		"part, whole":   ofLimit(limit.State{Weight: limit.FullWeight, At: -second, Spent: 1, Limit: 20, Period: 60 * second}),
		"part, full":    key(owner.Record{Whole: true, IDs: kept}).SetLimit(limit.State{Weight: 1}, nil),
		"full":          key(owner.Record{Kind: owner.KindLimit, Done: answered}),
		"counter":       key(owner.Record{Done: answered}).SetCounter(counter.State{Value: math.MinInt64, Version: 1233, At: 42, IdleTTL: 86400 * second}),
		"gone":          key(owner.Record{Kind: owner.KindCounter}),
		"held":          key(owner.Record{}).SetLock(held),
		"queue":         key(owner.Record{Done: append(answered, owner.Done{ID: id(6), Outcome: out})}).SetLock(waited),
		"kept":          key(owner.Record{Whole: true, IDs: kept}).SetLock(hold.State{LastToken: 9, At: 3 * second}),
		"whole":         key(owner.Record{Whole: true, IDs: kept}).SetCounter(counter.State{Value: 1, Version: 7, At: 42}),
		"whole, no ids": key(owner.Record{Whole: true, IDs: &reqid.Kept{Evicted: math.MinInt64}}).SetCounter(counter.State{Value: 1, Version: 7, At: 42}),
		"whole, queue":  key(owner.Record{Whole: true, IDs: kept}).SetLock(crowd),
		"places": key(owner.Record{Done: answered}).SetMoves(held, owner.Move{Waiter: hold.Waiter{Caller: queue.Caller{ID: id(5)}}, Gone: true},
			owner.Move{Waiter: hold.Waiter{Caller: queue.Caller{ID: id(6), Print: 77}, Request: third, Since: 92 * second, GiveUp: 152 * second}}),
		"places, none": key(owner.Record{}).SetMoves(held),
		"places, kept": key(owner.Record{}).SetMoves(hold.State{LastToken: 9, At: 99 * second}, owner.Move{Waiter: hold.Waiter{Caller: queue.Caller{ID: id(5)}}, Gone: true}),
		"places, free": key(owner.Record{Kind: owner.KindLock, Partial: true, Done: answered}),
		"more":         key(owner.Record{Kind: owner.KindCounter, More: true, IDs: kept}),
	}
}

// said is all that a record says, in a form that can be compared.
type said struct {
	owner.Record
	Limit   limit.State
	Marks   []limit.Mark
	Counter counter.State
	Lock    heldLock
}

// heldLock is what a record says of a lock.
type heldLock struct {
	At, LastToken any
	Capacity      uint32
	Holders       []hold.Holder
	Places        []hold.Waiter
}

func lockOf(r *owner.Record) heldLock {
	s := r.Hold()
	if s == nil {
		return heldLock{}
	}
	return heldLock{s.At, s.LastToken, s.Capacity, s.Holders, s.Queue.Places}
}

func say(r *owner.Record) said {
	s := said{Record: *r, Counter: r.Counter(), Lock: lockOf(r)}
	if s.Limit, s.Marks = r.Limit(); len(s.Marks) == 0 {
		s.Marks = nil
	}
	if s.State = (owner.State{}); len(s.Done) == 0 {
		s.Done = nil
	}
	s.Members = nil
	for _, m := range r.Members {
		if len(m.State) == 0 {
			m.State = nil
		}
		s.Members = append(s.Members, m)
	}
	if r.IDs != nil && len(r.IDs.Clients) == 0 {
		s.IDs = &reqid.Kept{Evicted: r.IDs.Evicted}
	}
	return s
}

func equal(a, b *owner.Record) bool { return reflect.DeepEqual(say(a), say(b)) }

// golden returns the file of an example in a folder of testdata.
func golden(t *testing.T, dir, name string, got []byte) []byte {
	t.Helper()
	path := filepath.Join("testdata", dir, strings.ReplaceAll(name, ", ", "-")+".hex")
	if *rewrite {
		if err := os.WriteFile(path, []byte(hex.Dump(got)), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var b []byte
	for line := range strings.Lines(string(text)) {
		for _, word := range strings.Fields(line[:min(len(line), 60)])[1:] {
			n, err := strconv.ParseUint(word, 16, 8)
			if err != nil {
				t.Fatal(err)
			}
			b = append(b, byte(n))
		}
	}
	return b
}

// The bytes of a version never change, and are read by every later one. Before level 4
// is committed, what is written is what programs of before read.
func TestGolden(t *testing.T) {
	for name, r := range examples() {
		t.Run(name, func(t *testing.T) {
			if err := r.Validate(100 * second); err != nil {
				t.Fatal(err)
			}
			old := "v1"
			if strings.HasPrefix(name, "sliding") {
				old = "v2"
			} else if strings.HasPrefix(name, "part") {
				old = "v3"
			} else if strings.HasPrefix(name, "places") {
				old = "v4"
			}
			for dir, level := range map[string]uint32{old: Level - 1, "level4": Level} {
				got := AppendAt(level, []byte("before"), r, 100*second)[len("before"):]
				want := golden(t, dir, name, got)
				if !bytes.Equal(got, want) {
					t.Errorf("written at level %d:\n%s\ngolden:\n%s", level, hex.Dump(got), hex.Dump(want))
				}
				var back owner.Record
				if err := Decode(want, 100*second, &back); err != nil || !equal(&back, r) || back.Validate(100*second) != nil {
					t.Errorf("read: %v\n%+v\nwritten:\n%+v", err, say(&back), say(r))
				}
				var again []byte // what was read is written as it was, also when some time has passed
				if again = AppendAt(level, nil, &back, 100*second); !bytes.Equal(again, want) {
					t.Errorf("written again:\n%s\ngolden:\n%s", hex.Dump(again), hex.Dump(want))
				}
				var later owner.Record
				if err := Decode(AppendAt(level, nil, &back, 107*second), 107*second, &later); err != nil || !equal(&later, r) {
					t.Errorf("7 s later: %v\n%+v\nwritten:\n%+v", err, say(&later), say(r))
				}
			}
		})
	}
}

// Programs of before wrote places of callers without a request id, too. They are nobody's.
func TestPlaceOfNobody(t *testing.T) {
	var back owner.Record
	if err := Decode(golden(t, "v1", "queue-of-nobody", nil), 100*second, &back); err != nil || !equal(&back, examples()["queue"]) {
		t.Errorf("read: %v\n%+v", err, say(&back))
	}
}

// A record of a kind that is not known is no damage, and is refused: what it says is not
// had by who leaves it out.
func TestUnknownKind(t *testing.T) {
	for name, r := range examples() {
		b := AppendAt(Level, nil, r, 100*second)
		b[1] = 99
		var back owner.Record
		if err := Decode(b, 100*second, &back); !errors.Is(err, ErrKind) || errors.Is(err, ErrDamaged) {
			t.Errorf("%s: %v", name, err)
		}
		if b[1] = 0; !errors.Is(Decode(b, 100*second, &back), ErrDamaged) {
			t.Errorf("%s: no kind is one", name)
		}
	}
}

// Times are durations before now: they follow the clock of the reader.
func TestTimesFollowTheClock(t *testing.T) {
	for _, level := range []uint32{Level - 1, Level} {
		r := examples()["queue"]
		var back owner.Record
		if err := Decode(AppendAt(level, nil, r, 100*second), 7*second, &back); err != nil {
			t.Fatal(err)
		}
		const moved = -93 * second
		want, state := *r, *r.Hold()
		want.At += moved
		state.At += moved
		h := &state.Holders[0]
		h.Since, h.Expires = h.Since+moved, h.Expires+moved
		for i := range state.Queue.Places {
			state.Queue.Places[i].Since += moved
			state.Queue.Places[i].GiveUp += moved
		}
		if want.SetLock(state); !equal(&back, &want) {
			t.Errorf("read\n%+v\nwant\n%+v", say(&back), say(&want))
		}
	}
}

// A record that is cut short, or has more after it, is none.
func TestDamaged(t *testing.T) {
	for name, r := range examples() {
		for _, level := range []uint32{Level - 1, Level} {
			damaged(t, name, AppendAt(level, nil, r, 100*second))
		}
	}
}

func damaged(t *testing.T, name string, whole []byte) {
	var back owner.Record
	taken := func(b []byte) bool { return Decode(b, 100*second, &back) == nil && back.Validate(100*second) == nil }
	for n := range whole {
		if taken(whole[:n]) {
			t.Errorf("%s: %d of %d bytes are taken for a record", name, n, len(whole))
		}
	}
	if taken(append(bytes.Clone(whole), 0)) {
		t.Errorf("%s: a byte too many is taken", name)
	}
	for v := range byte(Version + 2) {
		other := bytes.Clone(whole)
		if other[0] = v; v != whole[0] && taken(other) {
			t.Errorf("%s: version %d is taken for %d", name, v, whole[0])
		}
	}
}

// Decode reads anything. What it takes is written again as the same record, and is
// refused or installed by a store that works on.
func FuzzDecode(f *testing.F) {
	for _, r := range examples() {
		f.Add(AppendAt(Level-1, nil, r, 100*second))
		f.Add(AppendAt(Level, nil, r, 100*second))
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
			for _, level := range []uint32{Level - 1, Level} {
				if err := Decode(AppendAt(level, nil, &r, now), now, &again); err != nil || !equal(&again, &r) {
					t.Fatalf("level %d: %v\n%+v\n%+v", level, err, say(&r), say(&again))
				}
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
			o := op{kind: kind, ref: ref, at: at, arg: 1, acquire: owner.AcquireLock{Holder: "h", TTL: second, Wait: int64(kind-5) * second}}
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

// appends is a sink that writes each record.
type appends struct {
	level uint32
	buf   []byte
	n     int
}

func (a *appends) Partial() bool { return a.level >= placeLevel }

func (a *appends) Changed(r *owner.Record) {
	a.n++
	a.buf = AppendAt(a.level, a.buf[:0], r, r.At)
}

// The owner appends a record under the lock of a shard, at every change.
func TestAppendAllocatesNothing(t *testing.T) {
	for _, level := range []uint32{1, placeLevel, Level} {
		to, now := &appends{level: level, buf: make([]byte, 0, 1<<12)}, 100*second
		s := newStore(t, &rule{epoch: 3, level: &level}, to)
		token := ask(s, now, op{kind: 5, ref: owner.Ref{Key: "crowd"}, acquire: owner.AcquireLock{Holder: "h", TTL: 3600 * second}}, 0).token
		for i := range 9 {
			ask(s, now, op{kind: 5, ref: owner.Ref{Key: "crowd"}, id: reqid.ID{Client: reqid.Client{Hi: 1}, Sequence: uint64(i + 1)},
				acquire: owner.AcquireLock{Holder: "w", TTL: second, Wait: 3600 * second, Metadata: []byte("m")}}, 0)
		}
		many := limit.Op{Params: limit.Params{Limit: 1 << 30, Period: 5 * second, Algorithm: limit.SlidingWindow}, Cost: 1}
		bucket := many
		bucket.Algorithm = limit.TokenBucket
		for name, f := range map[string]func() error{
			"bucket":  func() error { _, err := s.Check(now, owner.Ref{Key: "bucket"}, reqid.ID{}, bucket); return err },
			"sliding": func() error { _, err := s.Check(now, owner.Ref{Key: "sliding"}, reqid.ID{}, many); return err },
			"counter": func() error {
				_, err := s.Add(now, owner.Ref{Key: "counter"}, reqid.ID{}, counter.AddOp{Delta: 1})
				return err
			},
			"crowd": func() error { _, err := s.Renew(now, owner.Ref{Key: "crowd"}, token, 3600*second); return err },
		} {
			step := func() {
				now += second / 10
				before := to.n
				if err := f(); err != nil || to.n == before {
					t.Fatalf("%s: %v, %d records", name, err, to.n-before)
				}
			}
			for range 100 {
				step()
			}
			if n := testing.AllocsPerRun(100, step); n != 0 {
				t.Errorf("%s at level %d: %v allocations", name, level, n)
			}
		}
	}
}

// BenchmarkChange is a change in a store with one feed: by it, all of a record is measured
// that the owner does under the lock of a shard.
func BenchmarkChange(b *testing.B) {
	for _, level := range []uint32{placeLevel, Level} {
		to, now := &appends{level: level}, 100*second
		s := newStore(b, &rule{epoch: 3}, to)
		b.Run(fmt.Sprint("counter/level=", level), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := s.Add(now, owner.Ref{Key: "203.0.113.7", Name: "n"}, reqid.ID{}, counter.AddOp{Delta: 1}); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(len(to.buf)), "B/record")
		})
	}
}

func BenchmarkAppend(b *testing.B) {
	for _, name := range []string{"bucket", "sliding", "counter", "queue"} {
		r, buf := examples()[name], []byte(nil)
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				buf = Append(buf[:0], r, 99*second)
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
