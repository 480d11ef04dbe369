package record

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/counter"
	"github.com/keystead/keystead/owner/limit"
	"github.com/keystead/keystead/owner/reqid"
	"github.com/keystead/keystead/owner/value"
)

const second = int64(1e9)

// rule lets everything in, under an epoch.
type rule struct {
	epoch uint64
	since int64
	level *uint32 // nil: all members understand all
}

func (r *rule) Uses(level uint32) bool { return r.level == nil || *r.level >= level }

func (r *rule) Admit(uint64, int64) (owner.Permit, error) {
	return owner.Permit{Epoch: r.epoch, Since: r.since}, nil
}
func (r *rule) Confirm(owner.Permit, int64) error { return nil }
func (r *rule) Terms() owner.Terms                { return owner.Terms{} }
func (r *rule) Exhausted(epoch uint64) (uint64, error) {
	if epoch >= owner.MaxEpoch {
		return 0, &failure.Error{Reason: failure.Unavailable}
	}
	r.epoch = epoch + 1
	return r.epoch, nil
}

// window is that of request ids in these tests, ns.
const window = 600 * second

func newStore(t failer, r *rule, sink owner.Sink) *owner.Store {
	s, err := owner.New(owner.Config{Rule: r, Sink: sink, Shards: 2,
		RequestIDs: reqid.Config{Window: window, ClientsPerObject: 3, IDsPerClient: 3}}, 0)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

type failer interface {
	Fatal(...any)
	Fatalf(string, ...any)
}

// cable carries records to a copy as bytes, once there is one.
type cable struct {
	t      failer
	to     *owner.Store
	buf    []byte
	sent   int
	places bool // changes of locks come place by place
	old    bool // the cluster has not committed the level of version 4, unless it is on at that of shared locks
	level  *uint32

	delay func() int64 // how long a record is on its way, beside what those before it need; nil = no time
	last  int64        // when the last one came
}

func (w *cable) Partial() bool { return w.places }

func (w *cable) Changed(r *owner.Record) { w.send(r, r.At) }

func (w *cable) send(r *owner.Record, now int64) bool {
	if w.to == nil {
		return true
	}
	w.sent++
	level := uint32(Level)
	if w.old && (w.level == nil || *w.level < owner.LockLevel) {
		level--
	}
	w.buf = AppendAt(level, w.buf[:0], r, now)
	if w.delay != nil {
		now = max(w.last, now+w.delay())
		w.last = now
	}
	var got owner.Record
	if err := Decode(w.buf, now, &got); err != nil {
		w.t.Fatalf("%v: %x of %+v", err, w.buf, r)
	}
	if got.Hash != r.Hash {
		w.t.Fatalf("hash %x, want %x", got.Hash, r.Hash)
	}
	if err := w.to.Install(now, &got, func(uint64) bool { return true }); err != nil {
		w.t.Fatalf("%v: %+v", err, got)
	}
	return true
}

// pair is a store, its copy, and what is known of what was done.
type pair struct {
	t       *rapid.T
	a, b    *owner.Store // b is asked the same as a, from the handover on
	now     int64
	seq     uint64
	tokens  map[stamp]uint64 // of a → of b
	version map[stamp]uint64
	asked   []op
	waits   []*waiting
	wire    *cable
	crowd   bool   // all is about the queue of one lock
	level   uint32 // of the cluster

	detached bool   // some callers were detached: their grace is another one at the copy
	most     uint64 // greatest token before the handover
	split    bool
}

// stamp is a token or a version: those of different keys may be equal.
type stamp struct {
	key string
	n   uint64
}

// op is an operation, so that it can be sent again.
type op struct {
	kind    int
	ref     owner.Ref
	id      reqid.ID
	at      int64
	arg     int64
	acquire owner.AcquireLock
	ofA     stamp // a token or a version, of a
}

type waiting struct {
	op
	a, b *owner.Wait[owner.GrantAnswer]
	from int64 // when this attempt began to wait
}

// client is one of five, more than are remembered.
func (p *pair) id() reqid.ID {
	if !p.crowd && !rapid.Bool().Draw(p.t, "with id") || p.crowd && rapid.IntRange(0, 9).Draw(p.t, "without id") == 0 {
		return reqid.ID{}
	}
	p.seq++
	if rapid.IntRange(0, 4).Draw(p.t, "keyed") == 0 {
		key := p.seq
		if !p.crowd {
			key = rapid.Uint64Range(1, 8).Draw(p.t, "key")
		}
		return reqid.KeyID(fmt.Sprint("order", key))
	}
	id := reqid.ID{Client: reqid.Client{Hi: rapid.Uint64Range(1, 4).Draw(p.t, "client")}, Sequence: p.seq}
	if !p.crowd && rapid.Bool().Draw(p.t, "settles") {
		id.Settled = max(1, p.seq-rapid.Uint64Range(0, 4).Draw(p.t, "in flight"))
	}
	return id
}

func (p *pair) draw() op {
	often := 3
	if p.crowd {
		often = 1
	}
	if len(p.asked) > 0 && rapid.IntRange(0, often).Draw(p.t, "again") == 0 {
		o := rapid.SampledFrom(p.asked).Draw(p.t, "asked")
		o.id.Age = max(1, p.now-o.at)
		if o.id.Age < window/2 && o.id.Given() {
			return o
		}
	}
	of, keys := kinds, 2
	if p.crowd {
		of, keys = []int{5, 5, 5, 8, 9, 9}, 0
	}
	o := op{kind: rapid.SampledFrom(of).Draw(p.t, "kind"), id: p.id(), at: p.now, arg: rapid.Int64Range(1, 3).Draw(p.t, "arg")}
	o.ref = owner.Ref{Key: fmt.Sprint("key", rapid.IntRange(0, keys).Draw(p.t, "key"))}
	switch {
	case o.kind >= 12:
		o.ref.Name = "register"
		if o.kind == 13 {
			o.ofA = rapid.SampledFrom(stamps(p.version, o.ref.Key)).Draw(p.t, "version")
		} else if o.kind == 14 {
			o.ofA = rapid.SampledFrom(stamps(p.tokens, o.ref.Key)).Draw(p.t, "token")
		}
	case o.kind >= 10:
		o.ref.Name = "sliding"
	case o.kind >= 5:
		o.ref.Name = "lock"
		o.acquire = owner.AcquireLock{Holder: fmt.Sprint("h", p.seq), TTL: o.arg * second, Metadata: []byte(fmt.Sprint(p.seq))[:p.seq%2],
			Wait: rapid.SampledFrom([]int64{0, second, 20 * second}).Draw(p.t, "wait")}
		if p.level < owner.LockLevel && rapid.IntRange(0, 9).Draw(p.t, "raise") == 0 {
			p.level = owner.LockLevel
		}
		o.acquire.Shared = p.level >= owner.LockLevel && rapid.Bool().Draw(p.t, "shared")
		if o.kind >= 8 {
			o.ofA = rapid.SampledFrom(stamps(p.tokens, o.ref.Key)).Draw(p.t, "token")
		}
	default:
		o.ref.Name = []string{"limit", "window", "counter", "counter", "counter"}[o.kind]
		if o.kind == 3 {
			o.ofA = rapid.SampledFrom(stamps(p.version, o.ref.Key)).Draw(p.t, "version")
		}
	}
	p.asked = append(p.asked, o)
	return o
}

// kinds are those of operations: 10 and 11 are those of a sliding window, those from 12 on of
// a register.
var kinds = []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 10, 11, 12, 13, 14, 15, 16}

// sliding is a window that has some marks at a time, and at times too many.
var sliding = limit.Params{Limit: 40, Period: 5 * second, Algorithm: limit.SlidingWindow}

// answer is what a store said, in a form that can be compared.
type answer struct {
	reason failure.Reason
	body   any
	token  uint64
	ver    uint64
	wait   *owner.Wait[owner.GrantAnswer]
}

func ask(s *owner.Store, now int64, o op, of uint64) answer {
	var body any
	var err error
	a := answer{}
	switch o.kind {
	case 0, 1:
		params := limit.Params{Limit: 3, Period: 2 * second, Burst: 5}
		if o.kind == 1 {
			params = limit.Params{Limit: 5, Period: 2 * second, Algorithm: limit.FixedWindow}
		}
		body, err = s.Check(now, o.ref, o.id, limit.Op{Params: params, Cost: uint64(o.arg)})
	case 10:
		body, err = s.Check(now, o.ref, o.id, limit.Op{Params: sliding, Cost: uint64(o.arg)})
	case 11:
		body, err = s.Check(now, o.ref, o.id, limit.Op{Params: sliding, Refund: uint64(o.arg)})
	case 2:
		var r owner.AddAnswer
		r, err = s.Add(now, o.ref, o.id, counter.AddOp{Delta: o.arg, Max: 20, HasMax: true, IdleTTL: (o.arg - 1) * 2 * second})
		a.ver, r.Version = r.Version, 0
		body = r
	case 3:
		var r owner.CompareAndSetAnswer
		r, err = s.CompareAndSet(now, o.ref, o.id, counter.CompareAndSetOp{Value: o.arg, Version: of})
		a.ver, r.Version = r.Version, 0
		body = r
	case 4:
		var r owner.GetAnswer
		r, err = s.Get(now, o.ref)
		a.ver, r.Version = r.Version, 0
		body = r
	case 5, 6, 7:
		var r owner.GrantAnswer
		r, a.wait, err = s.Acquire(now, o.ref, o.id, o.acquire)
		a.token, r.Token, r.Holder.Token = r.Token, 0, 0
		body = r
	case 8:
		var r owner.RenewAnswer
		r, err = s.Renew(now, o.ref, of, o.arg*second)
		r.Holder.Token = 0
		body = r
	case 9:
		body, err = s.Release(now, o.ref, o.id, of)
	case 12, 13, 14, 15, 16:
		body, a.ver, err = askRegister(s, now, o, of)
	}
	var e *failure.Error
	if errors.As(err, &e) {
		a.reason = e.Reason
	} else if err != nil {
		panic(err)
	} else {
		a.body = withoutPermit(body)
	}
	return a
}

// askRegister does something with a register.
func askRegister(s *owner.Store, now int64, o op, of uint64) (body any, version uint64, err error) {
	if o.kind == 16 {
		r, err := s.GetRegister(now, o.ref)
		version, r.Version = r.Version, 0
		return r, version, err
	}
	var r owner.RegisterChange
	set := owner.SetRegister{Set: value.Set{Value: []byte(fmt.Sprint(o.arg)), Conditions: value.Conditions{Fence: uint64(o.arg - 1)}}}
	switch o.kind {
	case 13:
		set.Versioned, set.Version = true, of
	case 14:
		set.Hold = owner.Hold{Name: "lock", Token: of}
	}
	if o.kind == 15 {
		r, err = s.DeleteRegister(now, o.ref, o.id, owner.DeleteRegister{Delete: value.Delete{Conditions: set.Conditions, Forget: o.arg == 3}})
	} else {
		r, err = s.SetRegister(now, o.ref, o.id, set)
	}
	version, r.Result.Version, r.Current.Version = r.Result.Version, 0, 0
	return r, version, err
}

// withoutPermit takes out what differs between nodes by design.
func withoutPermit(body any) any {
	v := reflect.New(reflect.TypeOf(body)).Elem()
	v.Set(reflect.ValueOf(body))
	v.FieldByName("Permit").SetZero()
	return fmt.Sprintf("%+v", v.Interface())
}

// step asks both, if there are two, and compares.
func (p *pair) step() {
	p.now += rapid.SampledFrom([]int64{0, 1, second / 3, 3 * second}).Draw(p.t, "pause")
	p.both(func(s *owner.Store) { s.Wake(p.now) })
	switch rapid.IntRange(0, 11).Draw(p.t, "what") {
	case 0:
		p.both(func(s *owner.Store) { s.Sweep(p.now) })
	case 1:
		if len(p.waits) > 0 {
			w := rapid.SampledFrom(p.waits).Draw(p.t, "leaves")
			if p.crowd && !p.split && rapid.IntRange(0, 3).Draw(p.t, "only its way") == 0 {
				w.a.Detach(p.now)
				p.detached = true
				break
			}
			w.a.GiveUp(p.now)
			if p.split {
				w.b.GiveUp(p.now)
			}
			p.both(func(s *owner.Store) { s.Wake(p.now) }) // those may fit now that waited behind it
		}
	default:
		p.do(p.draw())
	}
	p.compareWaits()
}

func (p *pair) both(f func(*owner.Store)) {
	f(p.a)
	if p.split {
		f(p.b)
	}
}

func (p *pair) do(o op) {
	a := ask(p.a, p.now, o, o.ofA.n)
	var b answer
	if p.split {
		var of uint64
		switch {
		case o.kind == 3 || o.kind == 13:
			of = p.version[o.ofA]
		case o.kind >= 8:
			of = p.tokens[o.ofA]
		}
		b = ask(p.b, p.now, o, of)
		if a.reason == failure.RequestTooOld && strings.Contains(fmt.Sprint(b.body), "Replayed:true") {
			return // the original has forgotten more: what clients settle is told with their next operation
		}
		if a.reason != b.reason || a.body != b.body || (a.wait == nil) != (b.wait == nil) {
			p.t.Fatalf("at %d, %+v:\n original %+v\n     copy %+v", p.now, o, a, b)
		}
	} else {
		b = a
		p.most = max(p.most, a.token)
	}
	p.learn(o.ref.Key, a, b)
	if a.wait != nil {
		p.waits = append(p.waits, &waiting{o, a.wait, b.wait, p.now})
	}
}

// learn pairs the tokens and versions of the two.
func (p *pair) learn(key string, a, b answer) {
	pairUp := func(m map[stamp]uint64, a, b uint64, what string) {
		if (a == 0) != (b == 0) {
			p.t.Fatalf("%s %d and %d", what, a, b)
		}
		if old, known := m[stamp{key, a}]; known && old != b {
			p.t.Fatalf("%s %d of the original was %d in the copy, and is %d", what, a, old, b)
		}
		if a != 0 {
			m[stamp{key, a}] = b
		}
	}
	if b.token != a.token && b.token <= p.most {
		p.t.Fatalf("token %d of the copy is not above %d", b.token, p.most)
	}
	pairUp(p.tokens, a.token, b.token, "token")
	pairUp(p.version, a.ver, b.ver, "version")
}

// compareWaits compares what became of those that wait.
func (p *pair) compareWaits() {
	kept := p.waits[:0]
	for _, w := range p.waits {
		over := finished(w.a)
		if p.split && over != finished(w.b) {
			p.t.Fatalf("at %d, %+v: answered by the original %v, by the copy %v", p.now, w.op, over, finished(w.b))
		}
		if !over {
			kept = append(kept, w)
			continue
		}
		a := answered(w.a)
		b := a
		if p.split {
			if b = answered(w.b); a.reason != b.reason || a.body != b.body {
				p.t.Fatalf("%+v:\n original %+v\n     copy %+v", w.op, a, b)
			}
		} else {
			p.most = max(p.most, a.token)
		}
		p.learn(w.ref.Key, a, b)
	}
	p.waits = kept
}

func answered(w *owner.Wait[owner.GrantAnswer]) answer {
	r, err := w.Answer()
	var e *failure.Error
	if errors.As(err, &e) {
		return answer{reason: e.Reason}
	}
	a := answer{token: r.Token}
	r.Token, r.Holder.Token = 0, 0
	a.body = withoutPermit(r)
	return a
}

func finished(w *owner.Wait[owner.GrantAnswer]) bool {
	select {
	case <-w.Done():
		return true
	default:
		return false
	}
}

// handOver makes the copy an owner: who waits with a request id comes to it, and
// who waits without one leaves the original, for it has no way.
func (p *pair) handOver() {
	p.a.Wake(p.now)
	p.compareWaits()
	p.b.Own(p.now, func(uint64) bool { return true }, owner.OwnGrace)
	kept := p.waits[:0]
	for _, w := range rapid.Permutation(p.waits).Draw(p.t, "order of coming") {
		if !w.id.Given() {
			w.a.GiveUp(p.now)
			continue
		}
		again := w.op
		again.acquire.Wait = max(w.from+w.acquire.Wait-p.now, 0)
		again.id.Age = max(1, p.now-w.at)
		b := ask(p.b, p.now, again, 0)
		if b.reason != 0 || b.wait == nil {
			p.t.Fatalf("one that had a place came and got %+v", b)
		}
		w.b = b.wait
		kept = append(kept, w)
	}
	p.waits, p.split = kept, true
	p.both(func(s *owner.Store) { s.Wake(p.now) }) // those may fit now that waited behind one that gave up
	p.compareWaits()
}

// stamps returns those of a key, and none.
func stamps(m map[stamp]uint64, key string) []stamp {
	all := []stamp{{}}
	for s := range m {
		if s.key == key {
			all = append(all, s)
		}
	}
	slices.SortFunc(all, func(a, b stamp) int { return cmp.Compare(a.n, b.n) }) // for rapid
	return all
}

// Whatever was done while a copy was made, in whatever order with the walk: the
// copy then answers every operation as the original does, replays and queues
// included.
func TestCopyAnswersLikeTheOriginal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &cable{t: t, old: rapid.Bool().Draw(t, "old")}
		p := &pair{t: t, wire: w, now: 1000 * second, tokens: map[stamp]uint64{}, version: map[stamp]uint64{}}
		p.level = rapid.SampledFrom([]uint32{owner.LockLevel - 1, owner.LockLevel}).Draw(t, "level")
		w.level = &p.level
		p.a = newStore(t, &rule{epoch: 7, level: &p.level}, w)
		p.b = newStore(t, &rule{epoch: 8, since: math.MinInt64, level: &p.level}, nil)
		steps := func(name string, most int) {
			for range rapid.IntRange(0, most).Draw(t, name) {
				p.step()
			}
		}
		steps("before", 30)
		w.to = p.b
		steps("live before the walk", 5)
		whole := p.a.Export(func() int64 { return p.now }, func(uint64) bool { return true }, w.send,
			func() bool { steps("during", 4); return true })
		if !whole {
			t.Fatal("the walk ended early")
		}
		steps("live", 20)
		w.to = nil
		p.handOver()
		steps("after", 30)
	})
}
