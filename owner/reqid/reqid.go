package reqid

import (
	"math"
	"math/rand/v2"

	"github.com/keystead/keystead/owner/internal/flat"
)

// retrySlack widens the time rule: the age that a retry states was true when
// it was sent, and it has been on its way since.
const retrySlack = int64(1e9)

// Client identifies a client process: 16 random bytes.
type Client struct{ Hi, Lo uint64 }

// ID names one operation. The zero ID names none.
type ID struct {
	Client   Client
	Sequence uint64 // from 1; 0 = no id
	Settled  uint64 // all sequences below are finished; 0 says nothing
	Age      int64  // ns since the operation was first sent; 0 on the first attempt
}

// Given reports whether there is an id at all.
func (id *ID) Given() bool { return id.Sequence != 0 }

// Outcome is what is remembered of an operation: enough to give its first
// result again.
type Outcome struct {
	Print uint32 // fingerprint of the operation, to tell a retry from a reused id
	Code  uint8  // the decision
	A, B  int64  // numbers that belong to it
}

// Verdict is what the table knows about an id.
type Verdict uint8

const (
	New    Verdict = iota // not done before: do it, then Note it
	Replay                // done: answer with the outcome
	TooOld                // may have been done and forgotten: do not do it
	Reused                // done as another operation: the client is in error
	Unsure                // of a key: it may have been used and forgotten: do not do it
)

// Config bounds a table.
type Config struct {
	Window           int64 // ns that the ids of an idle client are kept; retries are accepted to half of it
	ClientsPerObject int   // clients remembered on one object; the one idle longest is evicted
	IDsPerClient     int   // operations remembered of one client on one object; the oldest is evicted
}

// Table remembers the ids of one shard. It is not safe for concurrent use.
// Objects are known by the reference that Note returns; 0 is an object without
// ids.
type Table struct {
	cfg     Config
	seed    uint64 // of the indexes: clients choose their ids, and must not choose where they stand
	objects flat.Slab[object]
	clients flat.Slab[client]
	ops     flat.Slab[earlier]
	byName  flat.Index // (object, client) → client
	bySeq   flat.Index // (client, sequence) → ops
	order              // the clients of all objects

	keys    flat.Slab[keyed]
	byKey   flat.Index // (object, key) → keys
	wheel   wheel      // the keys of all objects, by when they were used
	ownKeys int        // of them, those that were used here

	idsGone, keysGone gone
}

type object struct {
	owner   uint32 // the caller's own reference, handed back when ids expire
	n       uint32 // clients
	order          // its clients
	evicted int64  // when an id was last evicted for want of room
	keyed   uint32 // keys
	keys    order
}

// client is a client on one object. Its last operation stands in it, because
// most have no other that is not settled.
type client struct {
	id       Client
	floor    uint64 // Invariant: only rises. Below it nothing new is done
	last     op     // Invariant: seq is 0 only if n is 0
	seen     int64
	linked   int64 // seen, when it was put last in the orders by time
	object   uint32
	n        uint32 // operations remembered, last included
	first    uint32 // those before last, in the order in which they took effect
	end      uint32 // … the latest of them
	inObject links  // neighbours by time among the clients of the object
	inTable  links  // … and of the table
}

type op struct {
	seq uint64
	at  int64
	out Outcome
}

// earlier is an operation that is no longer its client's last.
type earlier struct {
	op
	client uint32
	next   uint32
}

// NewTable returns an empty table.
func NewTable(cfg Config) *Table {
	return &Table{cfg: cfg, seed: rand.Uint64(), wheel: newWheel(cfg.Window), idsGone: nothingGone, keysGone: nothingGone}
}

// Judge says what is known about id on the object ref (0: an object without
// ids), and for a Replay the outcome and the time since. What was done before
// since is unknown; math.MinInt64 says that the table came to know all of it. It
// also takes note of what the client has settled. For Unsure, the time is that until
// the key is New.
func (t *Table) Judge(ref uint32, id *ID, print uint32, since, now int64) (Verdict, Outcome, int64) {
	if id.Keyed() {
		return t.judgeKey(ref, id, print, t.KeysSince(since), now)
	}
	since = t.Since(since)
	if ref != 0 {
		if c := t.find(ref, id.Client); c != 0 {
			t.advance(c, id.Settled)
			if op := t.findOp(c, id.Sequence); op != nil {
				if op.out.Print != print {
					return Reused, Outcome{}, 0
				}
				return Replay, op.out, max(now-op.at, 0)
			}
			if id.Sequence < t.clients.At(c).floor {
				return TooOld, Outcome{}, 0
			}
		}
	}
	if id.Age <= 0 {
		return New, Outcome{}, 0
	}
	known := since
	if ref != 0 {
		known = max(known, t.objects.At(ref).evicted)
	}
	if id.Age >= t.cfg.Window/2 || now-id.Age-retrySlack <= known {
		return TooOld, Outcome{}, 0
	}
	return New, Outcome{}, 0
}

// Note remembers the outcome of an operation that Judge called New, and returns the
// reference of the object's ids. owner is handed to the callback of Expire.
func (t *Table) Note(ref, owner uint32, id *ID, out Outcome, now int64) uint32 {
	return t.note(ref, owner, id, out, now, true)
}

// Take is Note of an operation that was done elsewhere, as a record tells.
func (t *Table) Take(ref, owner uint32, id *ID, out Outcome, at int64) uint32 {
	return t.note(ref, owner, id, out, at, false)
}

func (t *Table) note(ref, owner uint32, id *ID, out Outcome, now int64, own bool) uint32 {
	ref = t.object(ref, owner)
	if id.Keyed() {
		t.noteKey(ref, id.Client, out, now, own)
		return ref
	}
	c := t.find(ref, id.Client)
	if c == 0 {
		c = t.addClient(ref, id.Client, now)
	} else {
		t.touch(c, now)
	}
	t.advance(c, id.Settled)
	t.trim(c, now)
	t.addOp(c, op{seq: id.Sequence, at: now, out: out})
	return ref
}

// object returns the reference of an object's ids, made if there is none.
func (t *Table) object(ref, owner uint32) uint32 {
	if ref == 0 {
		ref = t.objects.Add()
		*t.objects.At(ref) = object{owner: owner, evicted: math.MinInt64}
	}
	return ref
}

// addOp makes an operation the last one of a client.
func (t *Table) addOp(c uint32, o op) {
	cl := t.clients.At(c)
	if cl.last.seq != 0 {
		t.push(c, cl)
	}
	cl.last = o
	cl.n++
}

// Knows reports whether an operation is remembered, and cannot have been done anew. Of a
// key it says no: it may have been used again since its window was over.
func (t *Table) Knows(ref uint32, id *ID) bool {
	if ref == 0 || id.Keyed() {
		return false
	}
	c := t.find(ref, id.Client)
	return c != 0 && t.findOp(c, id.Sequence) != nil
}

// Find returns what is remembered of an operation that has no key, and may be amended.
func (t *Table) Find(ref uint32, id *ID) (out *Outcome, ok bool) {
	if ref == 0 || id.Keyed() {
		return nil, false
	}
	c := t.find(ref, id.Client)
	if c == 0 {
		return nil, false
	}
	op := t.findOp(c, id.Sequence)
	if op == nil {
		return nil, false
	}
	return &op.out, true
}

// Few reports whether an object remembers a client, or fewer clients than most.
func (t *Table) Few(ref uint32, id Client, most int) bool {
	return ref == 0 || int(t.objects.At(ref).n) < most || t.find(ref, id) != 0
}

// push makes the last operation of a client one of the earlier ones.
func (t *Table) push(c uint32, cl *client) {
	o := t.ops.Add()
	*t.ops.At(o) = earlier{op: cl.last, client: c}
	t.bySeq.Put(t.seqTag(c, cl.last.seq), o)
	if cl.end == 0 {
		cl.first = o
	} else {
		t.ops.At(cl.end).next = o
	}
	cl.end = o
	cl.last = op{}
}

// trim makes room for one more operation of the client.
func (t *Table) trim(c uint32, now int64) {
	cl := t.clients.At(c)
	for cl.n > 0 && now-t.oldestOp(cl).at > t.cfg.Window {
		t.idsGone.last = max(t.idsGone.last, t.oldestOp(cl).at)
		t.popOp(c)
	}
	for int(cl.n) >= t.cfg.IDsPerClient {
		t.popOp(c)
		t.evictedAt(cl.object, now)
	}
}

// oldestOp returns the oldest operation remembered of a client that has any.
func (t *Table) oldestOp(cl *client) *op {
	if cl.first != 0 {
		return &t.ops.At(cl.first).op
	}
	return &cl.last
}

func (t *Table) evictedAt(ref uint32, now int64) {
	obj := t.objects.At(ref)
	obj.evicted = max(obj.evicted, now)
}

// advance raises the floor of a client and forgets its finished operations. An
// operation that took effect before an unfinished one is forgotten when that
// one is.
func (t *Table) advance(c uint32, settled uint64) {
	cl := t.clients.At(c)
	if settled <= cl.floor {
		return
	}
	cl.floor = settled
	for cl.n > 0 && t.oldestOp(cl).seq < settled {
		t.popOp(c)
	}
}

// popOp forgets the oldest operation of a client.
func (t *Table) popOp(c uint32) {
	cl := t.clients.At(c)
	cl.n--
	if cl.first == 0 {
		cl.last = op{}
		return
	}
	o := cl.first
	x := t.ops.At(o)
	if cl.first = x.next; cl.first == 0 {
		cl.end = 0
	}
	t.bySeq.Delete(t.seqTag(c, x.seq), o)
	t.ops.Free(o)
}

func (t *Table) addClient(ref uint32, id Client, now int64) uint32 {
	if int(t.objects.At(ref).n) >= t.cfg.ClientsPerObject {
		t.dropClient(t.idlest(ref))
		t.evictedAt(ref, now)
	}
	c := t.clients.Add()
	*t.clients.At(c) = client{id: id, seen: now, linked: now, object: ref}
	t.byName.Put(t.nameTag(ref, id), c)
	t.objects.At(ref).n++
	t.link(c)
	return c
}

// idlest returns the client of an object that was not seen for longest, or nearly:
// clients that were seen since they were put in order are put last, a few of
// them at a time.
func (t *Table) idlest(ref uint32) uint32 {
	obj := t.objects.At(ref)
	for range maxRelinks {
		if !t.relink(obj.oldest) {
			break
		}
	}
	return obj.oldest
}

// maxRelinks bounds the work of one eviction.
const maxRelinks = 8

// relink puts a client last if it was seen since it was put in order.
func (t *Table) relink(c uint32) bool {
	cl := t.clients.At(c)
	if cl.seen == cl.linked {
		return false
	}
	t.unlink(c)
	t.link(c)
	cl.linked = cl.seen
	return true
}

// Expire forgets clients that were idle for Window, and keys that are as old, until budget
// of them or of their operations are looked at. emptied is called with the owner of each
// object that has no ids any more. more says that there may be others.
func (t *Table) Expire(now int64, budget int, emptied func(owner uint32)) (more bool) {
	for budget = t.expireKeys(now, budget, emptied); budget > 0; budget-- {
		c := t.oldest
		if c == 0 || now-t.clients.At(c).linked <= t.cfg.Window {
			t.byName.Shrink()
			t.bySeq.Shrink()
			return false
		}
		if t.relink(c) {
			continue
		}
		cl := t.clients.At(c)
		t.idsGone.last = max(t.idsGone.last, cl.seen)
		budget -= int(cl.n)
		ref := cl.object
		t.dropClient(c)
		t.freeEmpty(ref, emptied)
	}
	return true
}

// freeEmpty forgets an object that has no ids any more.
func (t *Table) freeEmpty(ref uint32, emptied func(owner uint32)) {
	if obj := t.objects.At(ref); obj.n == 0 && obj.keyed == 0 {
		owner := obj.owner
		t.objects.Free(ref)
		emptied(owner)
	}
}

// Drop forgets all ids of an object.
func (t *Table) Drop(ref uint32) {
	for t.objects.At(ref).n > 0 {
		t.dropClient(t.objects.At(ref).oldest)
	}
	for t.objects.At(ref).keyed > 0 {
		t.dropKey(t.objects.At(ref).keys.oldest)
	}
	t.objects.Free(ref)
}

func (t *Table) dropClient(c uint32) {
	cl := t.clients.At(c)
	for cl.n > 0 {
		t.popOp(c)
	}
	t.unlink(c)
	t.byName.Delete(t.nameTag(cl.object, cl.id), c)
	t.objects.At(cl.object).n--
	t.clients.Free(c)
}

// Each calls f for every remembered id of an object, those of a client in the
// order in which they took effect.
func (t *Table) Each(ref uint32, f func(id ID, out Outcome, at int64)) {
	if ref == 0 {
		return
	}
	for c := t.objects.At(ref).oldest; c != 0; c = t.clients.At(c).inObject.newer {
		cl := t.clients.At(c)
		show := func(x *op) { f(ID{Client: cl.id, Sequence: x.seq, Settled: cl.floor}, x.out, x.at) }
		for o := cl.first; o != 0; o = t.ops.At(o).next {
			show(&t.ops.At(o).op)
		}
		if cl.last.seq != 0 {
			show(&cl.last)
		}
	}
	for x := t.objects.At(ref).keys.oldest; x != 0; x = t.keys.At(x).inObject.newer {
		k := t.keys.At(x)
		f(ID{Client: k.key, Sequence: KeySequence}, k.out, k.at)
	}
}

// Room reports whether the next id needs no more memory, whatever client it is of
// and object it is for.
func (t *Table) Room() bool {
	return t.objects.Room() && t.clients.Room() && t.ops.Room() && t.byName.Room() && t.bySeq.Room()
}

// Bytes returns the memory that the table has allocated.
func (t *Table) Bytes() int {
	return t.objects.Bytes() + t.clients.Bytes() + t.ops.Bytes() + t.byName.Bytes() + t.bySeq.Bytes() + t.keys.Bytes() + t.byKey.Bytes()
}

func (t *Table) find(ref uint32, id Client) uint32 {
	tag := t.nameTag(ref, id)
	for c, pos, ok := t.byName.Seek(tag, t.byName.Home(tag)); ok; c, pos, ok = t.byName.Seek(tag, pos+1) {
		if cl := t.clients.At(c); cl.object == ref && cl.id == id {
			return c
		}
	}
	return 0
}

func (t *Table) findOp(c uint32, seq uint64) *op {
	cl := t.clients.At(c)
	if cl.last.seq == seq {
		return &cl.last
	}
	if cl.first == 0 {
		return nil
	}
	tag := t.seqTag(c, seq)
	for o, pos, ok := t.bySeq.Seek(tag, t.bySeq.Home(tag)); ok; o, pos, ok = t.bySeq.Seek(tag, pos+1) {
		if x := t.ops.At(o); x.client == c && x.seq == seq {
			return &x.op
		}
	}
	return nil
}

// touch notes that a client was seen. It is put last in the orders by time only
// when it is looked at there, or after an eighth of the window: that costs the
// cache lines of its neighbours.
func (t *Table) touch(c uint32, now int64) {
	cl := t.clients.At(c)
	cl.seen = max(cl.seen, now)
	if cl.seen-cl.linked > t.cfg.Window/8 {
		t.relink(c)
	}
}

// The tags mix with odd constants (golden ratio, and two primes of xxHash) so
// that neighbours spread over the table.
func (t *Table) nameTag(ref uint32, id Client) uint32 {
	h := (id.Hi ^ t.seed ^ uint64(ref)*0x9E3779B185EBCA87) * 0xC2B2AE3D27D4EB4F
	h = (h ^ h>>29 ^ id.Lo) * 0x9E3779B97F4A7C15
	return uint32(h >> 32)
}

func (t *Table) seqTag(c uint32, seq uint64) uint32 {
	h := (seq ^ t.seed ^ uint64(c)<<40) * 0x9E3779B97F4A7C15
	h ^= h >> 32
	return uint32((h * 0xC2B2AE3D27D4EB4F) >> 32)
}
