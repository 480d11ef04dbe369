package disk

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/keystead/keystead/handoff/record"
	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/admission"
	"github.com/keystead/keystead/owner/counter"
	"github.com/keystead/keystead/owner/limit"
	"github.com/keystead/keystead/owner/reqid"
	register "github.com/keystead/keystead/owner/value"
)

// life is a process with a store of objects and a keeper, whose rounds the test does.
type life struct {
	t    *testing.T
	fs   *vfs.MemFS
	at   int64
	objs *owner.Store
	k    *Keeper
}

type rule struct{ epoch uint64 }

func (r *rule) Admit(uint64, int64) (owner.Permit, error) {
	return owner.Permit{Epoch: r.epoch, Since: -1 << 60}, nil
}
func (r *rule) Confirm(owner.Permit, int64) error      { return nil }
func (r *rule) Terms() owner.Terms                     { return owner.Terms{} }
func (r *rule) Exhausted(epoch uint64) (uint64, error) { return epoch + 1, nil }

const testWindow = 5 * time.Minute

func begin(t *testing.T, fs *vfs.MemFS, at int64, settings string) *life {
	t.Helper()
	return beginAs(t, fs, at, settings, nil)
}

// beginAs is begin with a Config that a test changes.
func beginAs(t *testing.T, fs *vfs.MemFS, at int64, settings string, as func(*Config)) *life {
	t.Helper()
	l := &life{t: t, fs: fs, at: at}
	s, err := ParseSettings(settings, 0)
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{Dir: "disk", Settings: s, Options: Options{FS: fs, Log: slog.New(slog.DiscardHandler)},
		Now: func() int64 { return l.at }, Window: func() time.Duration { return testWindow },
		Head: func() Head { return Head{Node: "n1", Epoch: 7} }, Log: slog.New(slog.DiscardHandler)}
	if as != nil {
		as(&cfg)
	}
	l.k, err = OpenKeeper(cfg)
	if err != nil {
		t.Fatal(err)
	}
	l.objs, err = owner.New(owner.Config{Rule: &rule{100}, Shards: 4, Journal: l.k}, l.at)
	if err != nil {
		t.Fatal(err)
	}
	_, found := l.k.Found()
	if _, err := l.k.Load(l.objs); err != nil {
		t.Fatal(err)
	}
	if err := l.k.start(l.objs, found); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.k.Close() })
	return l
}

// round is a round of the keeper.
func (l *life) round() {
	l.t.Helper()
	if err := l.k.step(false); err != nil {
		l.t.Fatal(err)
	}
}

// crash returns what is left when the process dies with the machine.
func (l *life) crash(rng *rand.Rand) *vfs.MemFS {
	return l.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(101), RNG: rng})
}

// objects returns what the objects are now, by address: of bytes of records whose versions do
// not count.
func (l *life) objects() map[string]string {
	all := map[string]string{}
	var b []byte
	var again owner.Record
	l.objs.Export(func() int64 { return l.at }, anywhere, func(r *owner.Record, _ int64) bool {
		b = record.Append(b[:0], r, l.at)
		if err := record.Decode(b, l.at, &again); err != nil {
			l.t.Fatal(err)
		}
		again.Version, again.At = 0, l.at
		l.drop(again.IDs)
		bare := again
		bare.IDs, bare.More, bare.Whole = nil, false, false
		if !again.More && l.absent(&bare) { // what is left of its state does not count
			if len(again.IDs.Ops) > 0 {
				again.Whole = true
				all[fmt.Sprintf("%s/%s", r.Key, r.Name)] += fmt.Sprintf("absent, with %x ", record.AppendIDs(nil, &again, l.at))
			}
			return true
		}
		all[fmt.Sprintf("%s/%s", r.Key, r.Name)] += fmt.Sprintf("%x ", record.Append(nil, &again, l.at))
		return true
	}, func() bool { return true })
	return all
}

// drop leaves out ids that are older than their window: a client that is active has them
// remembered for longer, and not on disk.
func (l *life) drop(ids *reqid.Kept) {
	of := map[reqid.Client][]reqid.KeptOp{}
	all := ids.Ops
	for i := range ids.Clients {
		c := &ids.Clients[i]
		of[c.Client] = slices.DeleteFunc(slices.Clone(all[:c.Ops]), func(o reqid.KeptOp) bool { return o.At <= l.at-int64(testWindow) })
		all, c.Ops = all[c.Ops:], len(of[c.Client])
		c.Linked = c.Seen // in which order clients are evicted
	}
	ids.Clients = slices.DeleteFunc(ids.Clients, func(c reqid.KeptClient) bool { return c.Ops == 0 })
	slices.SortFunc(ids.Clients, func(a, b reqid.KeptClient) int {
		return cmp.Or(cmp.Compare(a.Client.Hi, b.Client.Hi), cmp.Compare(a.Client.Lo, b.Client.Lo))
	})
	ids.Ops = nil
	for _, c := range ids.Clients {
		ids.Ops = append(ids.Ops, of[c.Client]...)
	}
}

// absent reports whether a record without ids is of an object that is absent.
func (l *life) absent(r *owner.Record) bool {
	s, err := owner.New(owner.Config{Rule: &rule{100}}, l.at)
	if err == nil {
		err = s.Install(l.at, r, anywhere)
	}
	if err != nil {
		l.t.Fatal(err)
	}
	n := 0
	s.Export(func() int64 { return l.at }, anywhere, func(*owner.Record, int64) bool { n++; return true }, func() bool { return true })
	return n == 0
}

func (l *life) same(want map[string]string, what string) {
	l.t.Helper()
	got := l.objects()
	for at, w := range want {
		if got[at] != w {
			l.t.Errorf("%s: %s is\n%s\nwant\n%s", what, at, got[at], w)
		}
	}
	for at := range got {
		if _, is := want[at]; !is {
			l.t.Errorf("%s: %s is back: %s", what, at, got[at])
		}
	}
	if l.t.Failed() {
		l.t.FailNow()
	}
}

// step does some operation; what it answers does not count.
func (l *life) step(rng *rand.Rand) {
	key := fmt.Sprint("k", rng.IntN(12))
	at := func(name string) owner.Ref { return owner.Ref{Key: key, Name: name} }
	var id reqid.ID
	if rng.IntN(2) == 0 {
		id = reqid.ID{Client: reqid.Client{Hi: 1, Lo: uint64(rng.IntN(3))}, Sequence: uint64(rng.IntN(200) + 1)}
	}
	if rng.IntN(6) == 0 {
		id = reqid.KeyID(fmt.Sprint("key", rng.IntN(100)))
	}
	var err error
	switch rng.IntN(12) {
	case 0, 1:
		_, err = l.objs.Add(l.at, at("counter"), id, counter.AddOp{Delta: rng.Int64N(10)})
	case 2:
		_, err = l.objs.Delete(l.at, at("counter"), id)
	case 3, 4:
		_, err = l.objs.Check(l.at, at("limit"), id, limit.Op{Params: limit.Params{Limit: 100, Period: int64(time.Hour)}, Cost: 1 + rng.Uint64N(5)})
	case 5:
		_, _, err = l.objs.Acquire(l.at, at("lock"), id, owner.AcquireLock{Holder: "h", TTL: int64(time.Second) * (1 + rng.Int64N(60)), Wait: rng.Int64N(2) * int64(time.Second)})
	case 6:
		if a, e := l.objs.Inspect(l.at, at("lock"), 1); e == nil && a.Holding.Token > 0 {
			_, err = l.objs.Release(l.at, at("lock"), id, a.Holding.Token)
		}
	case 7:
		_, err = l.objs.SetRegister(l.at, at("register"), id, owner.SetRegister{Set: register.Set{Value: []byte(fmt.Sprint(rng.IntN(1000)))}})
	case 8:
		d := owner.Demand{Demand: admission.Demand{Term: admission.Term{Of: admission.Limit, Name: "limit", Params: limit.Params{Limit: 100, Period: int64(time.Hour)}}, Cost: 1}}
		c := owner.Demand{Demand: admission.Demand{Term: admission.Term{Of: admission.Counter, Name: "counter", Max: 1000}, Cost: 1}}
		op := owner.Admit{Demands: []owner.Demand{d, c}}
		if id.Given() {
			op.Hold = int64(time.Minute)
		}
		_, err = l.objs.Admit(l.at, at("gate"), id, op, nil)
	case 9:
		l.objs.Sweep(l.at)
	case 10:
		l.objs.Wake(l.at)
	case 11:
		l.at += rng.Int64N(int64(20 * time.Second))
	}
	if failure.ReasonOf(err) == failure.Invalid {
		l.t.Fatal(err)
	}
}

// TestLives: whatever is done to objects, and whenever the machine dies: what is back is what
// the objects were at the last round, or since.
func TestLives(t *testing.T) {
	for seed := range uint64(40) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 17))
			l := begin(t, vfs.NewCrashableMem(), rng.Int64N(1<<40), "always")
			for range 6 {
				var left *vfs.MemFS
				var was map[string]string
				for range 1 + rng.IntN(5) {
					for range rng.IntN(80) {
						l.step(rng)
					}
					if err := l.k.step(true); err != nil { // a round that writes nothing leaves the clock where it was
						t.Fatal(err)
					}
					left, was = l.crash(rng), l.objects()
				}
				gone, _ := l.k.store.Head()
				next := begin(t, left, rng.Int64N(1<<40), "always")
				if is := next.k.clock(next.at); is != gone.Clock {
					t.Fatalf("the clock of the disk is %d, want %d", is, gone.Clock)
				}
				next.same(was, "after a crash")
				l = next
			}
		})
	}
}

// TestClosedInOrder: nothing is lost, and the next process is told so.
func TestClosedInOrder(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	l := begin(t, vfs.NewCrashableMem(), 5, "interval")
	for range 500 {
		l.step(rng)
	}
	was := l.objects()
	if err := errors.Join(l.k.Finish(), l.k.Close()); err != nil {
		t.Fatal(err)
	}
	next := begin(t, l.crash(rng), l.at, "interval")
	next.same(was, "after an orderly stop")
	if h, _ := next.k.Found(); h.Clean {
		t.Error("a process that runs says that it was stopped in order")
	}
}

// TestKindsThatAreNotKept: they outlive an orderly stop, and are gone after a crash, whatever was on disk before.
func TestKindsThatAreNotKept(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 4))
	add := func(l *life, id reqid.ID, want int64, replayed bool) {
		t.Helper()
		a, err := l.objs.Add(l.at, owner.Ref{Key: "a", Name: "c"}, id, counter.AddOp{Delta: 1})
		if err != nil || a.Value != want || a.Replayed != replayed {
			t.Errorf("the counter is %d (replayed: %v), want %d; %v", a.Value, a.Replayed, want, err)
		}
		l.round()
	}
	lock := func(l *life) bool {
		t.Helper()
		a, _, err := l.objs.Acquire(l.at, owner.Ref{Key: "a", Name: "l"}, reqid.ID{}, owner.AcquireLock{Holder: "h", TTL: int64(time.Minute)})
		if err != nil {
			t.Fatal(err)
		}
		l.round()
		return a.Acquired
	}
	id := reqid.KeyID("key")
	for _, stops := range []bool{false, true} {
		l := begin(t, vfs.NewCrashableMem(), 5, "always")
		add(l, id, 1, false)
		if !lock(l) {
			t.Error("the lock is not new")
		}
		const partly = "always,counter=none"
		l = begin(t, l.crash(rng), 5, partly)
		add(l, id, 1, true)
		add(l, reqid.ID{}, 2, false)
		if stops {
			if err := l.k.Finish(); err != nil {
				t.Fatal(err)
			}
			l = begin(t, l.crash(rng), 5, partly)
			add(l, id, 1, true)
			add(l, reqid.ID{}, 3, false)
		}
		for _, next := range []string{partly, "always"} {
			l = begin(t, l.crash(rng), 5, next)
			add(l, id, 1, false)
			if lock(l) {
				t.Error("a kind that is kept is gone")
			}
		}
	}
	for text, whole := range map[string]bool{"always": true, "interval": false, "always,lock=none": false, "none": false} {
		if s, err := ParseSettings(text, 0); err != nil || s.Whole() != whole {
			t.Errorf("%s: nothing can be lost: %v", text, s.Whole())
		}
	}
}

// TestWhatRefills: a limit that is full again before it could be lost costs the disk nothing,
// unless it has request ids.
func TestWhatRefills(t *testing.T) {
	l := begin(t, vfs.NewCrashableMem(), 5, "interval")
	fast := limit.Op{Params: limit.Params{Limit: 1000, Period: int64(time.Second)}, Cost: 10}
	for i, id := range []reqid.ID{{}, {Client: reqid.Client{Lo: 1}, Sequence: 1}} {
		if _, err := l.objs.Check(l.at, owner.Ref{Key: fmt.Sprint(i), Name: "l"}, id, fast); err != nil {
			t.Fatal(err)
		}
	}
	l.round()
	n := 0
	if err := l.k.store.Objects(func(uint64, []byte, []byte, []byte) error { n++; return nil }); err != nil || n != 1 {
		t.Errorf("%d objects are on disk, want the one with an id; %v", n, err)
	}
	was := l.objects()
	if err := l.k.Finish(); err != nil {
		t.Fatal(err)
	}
	begin(t, l.crash(rand.New(rand.NewPCG(3, 3))), 5, "interval").same(was, "after a stop in order")
}

// TestAwaited: an answer under always waits for the round that its change goes into, and no
// other does.
func TestAwaited(t *testing.T) {
	l := begin(t, vfs.NewCrashableMem(), 5, "interval,counters=always")
	add := func(key string) {
		if _, err := l.objs.Add(l.at, owner.Ref{Key: key, Name: "c"}, reqid.ID{}, counter.AddOp{Delta: 1}); err != nil {
			t.Fatal(err)
		}
	}
	h := owner.Hash("a")
	if add("a"); l.k.Durable(h) {
		t.Error("what no round has taken is durable")
	}
	if _, err := l.objs.Check(l.at, owner.Ref{Key: "z", Name: "l"}, reqid.ID{}, limit.Op{Params: limit.Params{Limit: 5, Period: int64(time.Hour)}, Cost: 1}); err != nil || !l.k.Durable(owner.Hash("z")) {
		t.Errorf("a limit waits: %v", err)
	}
	if l.round(); !l.k.Durable(h) {
		t.Error("it is not durable after a round")
	}
	if l.round(); !l.k.Durable(h) {
		t.Error("it is not durable after another one")
	}
	if add("a"); l.k.Durable(h) {
		t.Error("the second change needs no round")
	}
}

// TestBegunAnew: after a failure all that the objects are is written to another directory, and
// the old one stays until that is whole.
func TestBegunAnew(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 2))
	l := begin(t, vfs.NewCrashableMem(), 5, "always")
	for range 300 {
		l.step(rng)
	}
	l.round()
	for range 100 {
		l.step(rng)
	}
	was := l.objects()
	if err := l.k.anew(); err != nil {
		t.Fatal(err)
	}
	l.objs.Track(false)
	before := l.crash(rng)
	l.round()
	next := begin(t, l.crash(rng), 77, "always")
	next.same(was, "after it was begun anew")
	if numbers, err := next.k.stores(); err != nil || len(numbers) != 1 || numbers[0] != 2 {
		t.Errorf("there are the stores %v, %v", numbers, err)
	}
	if old := begin(t, before, 5, "always"); old.k.number != 1 {
		t.Errorf("one that was not whole is taken: %d", old.k.number)
	}
}

// TestRemovedInPart: a process that dies while it removes a store that was not whole, or that another one stands for, keeps
// nobody from starting.
func TestRemovedInPart(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 2))
	for _, whole := range []bool{false, true} {
		for stop := 0; ; stop++ {
			l := begin(t, vfs.NewCrashableMem(), 5, "always")
			for range 20 {
				l.step(rng)
			}
			l.round()
			was := l.objects()
			if err := l.k.anew(); err != nil {
				t.Fatal(err)
			}
			if l.objs.Track(false); whole {
				l.round()
			}
			fs := l.crash(rng)
			_ = l.k.Close()
			dies := &dying{FS: fs, left: stop}
			if k, err := OpenKeeper(Config{Dir: "disk", Settings: l.k.cfg.Settings, Options: Options{FS: dies}, Now: l.k.cfg.Now, Window: l.k.cfg.Window, Head: l.k.cfg.Head, Log: l.k.cfg.Log}); err == nil {
				k.removeOthers()
				_ = k.Close()
			}
			begin(t, fs, 5, "always").same(was, "after a removal in part")
			if dies.left > 0 {
				break
			}
		}
	}
}

// dying is a file system of a process that dies when it has removed some files of stores: the first by their names.
type dying struct {
	vfs.FS
	left int
}

func (d *dying) RemoveAll(dir string) error {
	names, err := d.FS.List(dir)
	if err != nil {
		return d.FS.RemoveAll(dir)
	}
	slices.Sort(names)
	slices.Reverse(names) // "format" before tables
	for _, name := range names {
		if d.left--; d.left < 0 {
			return errors.New("dead")
		}
		if err := d.FS.Remove(d.FS.PathJoin(dir, name)); err != nil {
			return err
		}
	}
	return d.FS.RemoveAll(dir)
}

// TestOldIDs: what is older than the window is dropped, however much changes.
func TestOldIDs(t *testing.T) {
	l := begin(t, vfs.NewCrashableMem(), 5, "interval")
	for i := range uint64(100) {
		if _, err := l.objs.Add(l.at, owner.Ref{Key: "a", Name: "c"}, reqid.ID{Client: reqid.Client{Lo: i % 3}, Sequence: i + 1}, counter.AddOp{Delta: 1}); err != nil {
			t.Fatal(err)
		}
		l.round()
		l.at += int64(20 * time.Second)
	}
	n := 0
	if err := l.k.store.Entries(0, func(int64, []byte) error { n++; return nil }); err != nil || n < 15 || n > 17 {
		t.Errorf("%d entries are on disk, %v", n, err)
	}
}

func TestParseSettings(t *testing.T) {
	for text, want := range map[string]string{"": "interval", "none": "none", "always": "always", "interval,counters=always": "interval,counter=always",
		"none, lock=interval": "none,lock=interval", "always,limit=always": "always"} {
		if s, err := ParseSettings(text, 0); err != nil || s.String() != want {
			t.Errorf("%q is %q, %v", text, s, err)
		}
	}
	for text, want := range map[string]string{"none": "none", "always": "always", "interval,limit=always": "interval,limit=always", "none,lock=interval": "interval",
		"none,lock=always,limit=interval": "interval,lock=always", "always,lock=none": "always,lock=interval"} {
		if s, err := ParseSettings(text, 0); err != nil || s.OfCluster().String() != want {
			t.Errorf("%q of a node in a cluster is %q, %v", text, s.OfCluster(), err)
		}
	}
	for _, text := range []string{"sometimes", "counters=always", "none,none", "interval,bucket=none", "interval,lock=none,lock=always", ","} {
		if s, err := ParseSettings(text, 0); err == nil {
			t.Errorf("%q is %q", text, s)
		}
	}
	for _, d := range []time.Duration{time.Millisecond, time.Hour, -time.Second} {
		if _, err := ParseSettings("", d); err == nil {
			t.Errorf("an interval of %s is taken", d)
		}
	}
}

// TestReplaced: what was told of an object's ids does not come back when all of them were
// replaced since.
func TestReplaced(t *testing.T) {
	l := begin(t, vfs.NewCrashableMem(), 5, "always")
	ref := owner.Ref{Key: "a", Name: "c"}
	add := func(sequence uint64) bool {
		a, err := l.objs.Add(l.at, ref, reqid.ID{Client: reqid.Client{Lo: 1}, Sequence: sequence}, counter.AddOp{Delta: 1})
		if err != nil {
			t.Fatal(err)
		}
		return a.Replayed
	}
	for i := range uint64(3) {
		add(i + 1)
		l.round()
	}
	other, err := owner.New(owner.Config{Rule: &rule{100}}, l.at)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.Add(l.at, ref, reqid.ID{Client: reqid.Client{Lo: 1}, Sequence: 9}, counter.AddOp{Delta: 1}); err != nil {
		t.Fatal(err)
	}
	other.Export(func() int64 { return l.at }, anywhere, func(r *owner.Record, now int64) bool {
		if err := l.objs.Install(now, r.Clone(), anywhere); err != nil {
			t.Error(err)
		}
		return true
	}, func() bool { return true })
	l.round()
	l = begin(t, l.crash(rand.New(rand.NewPCG(3, 3))), 5, "always")
	if !add(9) {
		t.Error("an id that came with the object is not known")
	}
	if add(2) {
		t.Error("an id that was replaced is known")
	}
}

// TestVersions: versions that a crash has lost are not given again.
func TestVersions(t *testing.T) {
	l := begin(t, vfs.NewCrashableMem(), 5, "interval")
	last := uint64(0)
	for range 50 {
		a, err := l.objs.Add(l.at, owner.Ref{Key: "a", Name: "c"}, reqid.ID{}, counter.AddOp{Delta: 1})
		if err != nil {
			t.Fatal(err)
		}
		last = a.Version
	}
	l = begin(t, l.crash(rand.New(rand.NewPCG(3, 3))), 5, "interval")
	if a, err := l.objs.Add(l.at, owner.Ref{Key: "a", Name: "c"}, reqid.ID{}, counter.AddOp{Delta: 1}); err != nil || a.Version <= last {
		t.Errorf("version %d after %d, %v", a.Version, last, err)
	}
}

// TestIDsOfWhatIsNew: the ids of an object that no round has taken yet are written once, with the object.
func TestIDsOfWhatIsNew(t *testing.T) {
	l := begin(t, vfs.NewCrashableMem(), 5, "interval")
	for i, want := range []int64{2, 2} { // it and its ids; and then it and the one that came
		id := reqid.ID{Client: reqid.Client{Lo: 1}, Sequence: uint64(i) + 1}
		if _, err := l.objs.Add(l.at, owner.Ref{Key: "a", Name: "c"}, id, counter.AddOp{Delta: 1}); err != nil {
			t.Fatal(err)
		}
		before := l.k.stats.puts.Load()
		l.round()
		if n := l.k.stats.puts.Load() - before; n != want {
			t.Errorf("round %d writes %d", i, n)
		}
	}
}

// TestVersionsOfACopy: versions that come from elsewhere do not come again after a crash, though the counter that had them is
// gone.
func TestVersionsOfACopy(t *testing.T) {
	l := begin(t, vfs.NewCrashableMem(), 5, "interval")
	from := begin(t, vfs.NewCrashableMem(), 5, "interval")
	if err := from.objs.RaiseVersions(3 * lostVersions); err != nil {
		t.Fatal(err)
	}
	from.add("a")
	l.copyFrom(from, "a")
	l.round()
	a, err := l.objs.Delete(l.at, owner.Ref{Key: "a", Name: "counter"}, reqid.ID{})
	if err != nil {
		t.Fatal(err)
	}
	l.round()
	next := begin(t, l.crash(rand.New(rand.NewPCG(3, 3))), 5, "interval")
	next.add("a")
	if b, err := next.objs.Get(next.at, owner.Ref{Key: "a", Name: "counter"}); err != nil || b.Version <= a.Version {
		t.Errorf("version %d after %d, %v", b.Version, a.Version, err)
	}
}

// TestLate: answers wait for a disk that is behind, are given up in the end, and go on when it
// keeps up again.
func TestLate(t *testing.T) {
	l := begin(t, vfs.NewCrashableMem(), 5, "interval")
	h := owner.Hash("a")
	if _, err := l.objs.Add(l.at, owner.Ref{Key: "a", Name: "c"}, reqid.ID{}, counter.AddOp{Delta: 1}); err != nil {
		t.Fatal(err)
	}
	if l.k.judge(); !l.k.Durable(h) {
		t.Error("an answer waits for nothing")
	}
	l.at += int64(time.Second)
	if l.k.judge(); l.k.Durable(h) || l.k.Admit() != nil {
		t.Errorf("an answer does not wait, or nothing is let in: %v", l.k.Admit())
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if l.k.Await(ctx, h) {
		t.Error("the wait for it ends well")
	}
	l.at += int64(time.Hour) // suspended
	if l.k.judge(); l.k.Admit() != nil {
		t.Error("what was suspended is taken for a disk that hangs")
	}
	for range int(patience/l.k.judging()) + 1 {
		l.k.judge()
	}
	if l.k.Admit() == nil || l.k.Await(context.Background(), h) || l.k.Status().Problem == "" {
		t.Error("it is not given up")
	}
	if l.round(); !l.k.Durable(h) || l.k.Admit() != nil || l.k.Status().Problem != "" {
		t.Errorf("it does not go on: %v", l.k.Admit())
	}
}

// TestOver: what was over when it was loaded does not stay on disk.
func TestOver(t *testing.T) {
	l := begin(t, vfs.NewCrashableMem(), 5, "always")
	for i := range 10 {
		if _, _, err := l.objs.Acquire(l.at, owner.Ref{Key: fmt.Sprint(i), Name: "l"}, reqid.ID{}, owner.AcquireLock{Holder: "h", TTL: int64(time.Second)}); err != nil {
			t.Fatal(err)
		}
		if _, err := l.objs.Check(l.at, owner.Ref{Key: fmt.Sprint(i), Name: "r"}, reqid.ID{}, limit.Op{Params: limit.Params{Limit: 5, Period: int64(time.Second)}, Cost: 1}); err != nil {
			t.Fatal(err)
		}
		for sequence := range uint64(2) { // what has no state, and is there for its ids
			id, ref := reqid.ID{Client: reqid.Client{Lo: 1}, Sequence: sequence + 1}, owner.Ref{Key: fmt.Sprint(i), Name: "c"}
			var err error
			if sequence == 0 {
				_, err = l.objs.Add(l.at, ref, id, counter.AddOp{Delta: 1})
			} else {
				_, err = l.objs.Delete(l.at, ref, id)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	l.round()
	l.at += int64(time.Hour)
	if err := l.k.step(true); err != nil { // the clock goes on, and nobody has asked for anything
		t.Fatal(err)
	}
	l = begin(t, l.crash(rand.New(rand.NewPCG(3, 3))), 5, "always")
	for range 4 { // shards
		l.objs.Sweep(l.at)
	}
	l.round()
	n := 0
	if err := l.k.store.Objects(func(uint64, []byte, []byte, []byte) error { n++; return nil }); err != nil || n != 0 {
		t.Errorf("%d objects are on disk, %v", n, err)
	}
}

// TestMuchChanges: a round is asked for when so much has changed that it would hold a shard for long.
func TestMuchChanges(t *testing.T) {
	l := begin(t, vfs.NewCrashableMem(), 5, "interval")
	for i := 0; len(l.k.wake) == 0; i++ {
		if i == 100_000 {
			t.Fatal("none is")
		}
		if _, err := l.objs.Add(l.at, owner.Ref{Key: fmt.Sprint(i), Name: "c"}, reqid.ID{}, counter.AddOp{Delta: 1}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestSlowRounds: a round that takes longer than the interval leaves what was decided meanwhile as old as that, so answers
// go on waiting: each until a round has taken it.
func TestSlowRounds(t *testing.T) {
	l := begin(t, vfs.NewCrashableMem(), 5, "interval")
	add := func(key string) {
		t.Helper()
		if _, err := l.objs.Add(l.at, owner.Ref{Key: key, Name: "c"}, reqid.ID{}, counter.AddOp{Delta: 1}); err != nil {
			t.Fatal(err)
		}
	}
	slow := func() {
		t.Helper()
		l.k.cfg.Head = func() Head { l.at += int64(3 * time.Second); return Head{Node: "n1", Epoch: 7} }
		add("b")
		l.round()
	}
	h := owner.Hash("a")
	if slow(); !l.k.Durable(h) {
		t.Error("what is on disk is not told")
	}
	add("a")
	if l.k.Durable(h) {
		t.Error("answers are told while what was answered three seconds ago can be lost")
	}
	if slow(); !l.k.Durable(h) {
		t.Error("what the second round has taken is not told")
	}
	add("a")
	l.k.cfg.Head = func() Head { return Head{Node: "n1", Epoch: 7} }
	if l.round(); !l.k.Durable(owner.Hash("a")) {
		t.Error("it does not go on when a round is fast again")
	}
}

// TestTooMuchWaits: nothing is let in as long as too much waits for a round.
func TestTooMuchWaits(t *testing.T) {
	l := begin(t, vfs.NewCrashableMem(), 5, "interval")
	var records []*owner.Record
	l.objs.Export(func() int64 { return l.at }, anywhere, func(r *owner.Record, _ int64) bool { records = append(records, r.Clone()); return true }, func() bool { return true })
	for i := range uint64(1 << 20) {
		if l.k.Admit() != nil {
			if l.round(); l.k.Admit() != nil {
				t.Error("it does not go on after a round")
			}
			return
		}
		if _, err := l.objs.Add(l.at, owner.Ref{Key: strings.Repeat("k", 500), Name: "c"}, reqid.ID{Client: reqid.Client{Lo: 1}, Sequence: i + 1, Settled: i}, counter.AddOp{Delta: 1}); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			l.round()
		}
	}
	t.Errorf("%d bytes wait", l.objs.Ungathered())
}

// TestLastRoundHangs: an end does not wait for ever for a disk that hangs when nothing was under way.
func TestLastRoundHangs(t *testing.T) {
	h := &hung{}
	l := begin(t, vfs.NewCrashableMem(), 5, "interval")
	if err := l.k.Close(); err != nil {
		t.Fatal(err)
	}
	k, err := OpenKeeper(Config{Dir: "disk", Settings: l.k.cfg.Settings, Options: Options{FS: errorfs.Wrap(l.fs, h)}, Now: l.k.cfg.Now, Window: l.k.cfg.Window, Head: l.k.cfg.Head, Log: l.k.cfg.Log})
	if err != nil {
		t.Fatal(err)
	}
	if err := k.start(l.objs, true); err != nil {
		t.Fatal(err)
	}
	k.patience, k.store.patience = 50*time.Millisecond, 50*time.Millisecond
	held := make(chan struct{})
	h.hold(held)
	within(t, "Finish", func() {
		for range 2 {
			if err := k.Finish(); !errors.Is(err, errHangs) {
				t.Errorf("it has ended with %v", err)
			}
		}
		if err := k.Close(); !errors.Is(err, errHangs) {
			t.Errorf("it was closed: %v", err)
		}
	})
	h.hold(nil)
	close(held)
	until(t, "it does not end", func() bool { return k.Finish() == nil })
	if h, _ := k.store.Head(); !h.Clean || k.Close() != nil {
		t.Error("it has not ended in order")
	}
}

// TestLastRoundTooLarge: what a round has taken that failed is in the next one.
func TestLastRoundTooLarge(t *testing.T) {
	l := begin(t, vfs.NewCrashableMem(), 5, "always")
	const n = 100
	l.k.store.maxBatch = n * 60 << 10
	for i := range n {
		if _, err := l.objs.SetRegister(l.at, owner.Ref{Key: "a", Name: fmt.Sprint(i)}, reqid.ID{}, owner.SetRegister{Set: register.Set{Value: make([]byte, 60<<10)}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.k.Finish(); err == nil {
		t.Error("a batch takes all of that")
	}
	if err := errors.Join(l.k.Finish(), l.k.Close()); err != nil {
		t.Fatal(err)
	}
	if l = begin(t, l.fs, 5, "always"); l.objs.Stats().Objects[owner.KindRegister] != n {
		t.Errorf("%v are back of %d", l.objs.Stats().Objects, n)
	}
}
