// Package record is how an owner.Record travels, and how it is kept in a file: a
// few bytes of its own beside the key, the name and the numbers of the state.
//
// # Guarantee
//
// Decode of what Append made is the same record, its times moved from the clock of
// one process to that of another: as durations before now. A duration lengthens by
// the time that the bytes are on their way and never shortens, so a copy never ends
// a grant, a window or a counter before its owner does. Decode reads any bytes
// without a panic, and with no more memory than a few times their length; what it
// returns nil for passes owner.Record.Validate or is refused there.
//
// # Format
//
//	version | kind and flags | key | name | version of the object | age
//	| state of the kind | request ids answered | request ids kept
//
// Numbers are varints, signed ones zigzag; texts have their length before them. A
// fingerprint takes 4 bytes and a client 16, big-endian. No version changes any
// more: testdata has records of them.
//
// A sliding window is of version 2, a bucket that has a weight of version 3, and
// everything else of version 1: who knows version 1 only takes all other records, and
// refuses a sliding window instead of taking it for a window that ends at once, and a
// bucket with a weight instead of taking it for a whole one. Behind the state of a
// sliding window stand its marks but for the last one, which the state tells: their
// number, and of each, the last one first, the time to the next and the tokens.
// Behind the state of a bucket that has a weight stands the weight.
//
// Version 4 is that of a change of a lock that names the places in the queue that it
// changed, instead of the whole queue: a crowd would cost its square otherwise. It may
// be written when the cluster has committed level 3. Its header has room for all that
// is to come:
//
//	4 | kind | flags | key | name | version of the object | age | length, state
//	| request ids answered | number of members | member …
//
// Kind and flags are varints. A member is known by its request id; it is absolute, and
// may be gone:
//
//	client | sequence | flags | length, state: settled, fingerprint, holder, metadata,
//	TTL, how long before the last change it came, its patience
//
// # Non-guarantee
//
// There is no checksum: streams and files have theirs.
package record

import (
	"errors"
	"math"
	"slices"

	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/limit"
	"github.com/keystead/keystead/owner/lock"
	"github.com/keystead/keystead/owner/reqid"
)

// Version is the greatest one of the format, that of changes by place. weightVersion is
// that of buckets that have a weight, slidingVersion that of sliding windows, and
// firstVersion that of everything else.
const (
	Version        = 4
	weightVersion  = 3
	slidingVersion = 2
	firstVersion   = 1
)

// Flags, above the two bits of the kind.
const (
	kindMask  = 3
	hasState  = 1 << 2 // the object is not absent
	hasDone   = 1 << 3
	isWhole   = 1 << 4
	isMore    = 1 << 5
	flagsMask = kindMask | hasState | hasDone | isWhole | isMore
)

// maxAge bounds durations, in ns: 73 years, which no process has seen. Longer
// ones are cut.
const maxAge = 1 << 61

// ErrDamaged is the error of bytes that Append did not make.
var ErrDamaged = errors.New("record: the bytes are not a record of version 1, 2, 3 or 4")

// version is that of the format in which a record is written.
func version(r *owner.Record) byte {
	switch {
	case r.ByPlace:
		return Version
	case r.Kind == owner.KindLimit && r.Limit.Weight != 0:
		return weightVersion
	case r.Kind == owner.KindLimit && r.Limit.Algorithm == limit.SlidingWindow:
		return slidingVersion
	}
	return firstVersion
}

// absent says whether there is no state to write.
func absent(r *owner.Record) bool {
	switch r.Kind {
	case owner.KindLimit:
		return r.Limit == limit.State{}
	case owner.KindCounter:
		return r.Counter.Version == 0
	}
	return r.Lock == nil
}

// age is how long before now a moment was, as it is written.
func age(now, at int64) uint64 {
	if at >= now {
		return 0
	}
	return min(uint64(now)-uint64(at), maxAge)
}

// Append appends the bytes of a record to dst. now is a moment of the clock that
// the record's times are of, not before any of them but the ends of grants and
// waits.
func Append(dst []byte, r *owner.Record, now int64) []byte {
	e := encoder{dst, now}
	if r.ByPlace {
		e.byPlace(r)
		return e.b
	}
	flags := byte(r.Kind) & kindMask
	if !absent(r) {
		flags |= hasState
	}
	//guard:record-ids-written
	if len(r.Done) > 0 {
		flags |= hasDone
	}
	if r.Whole {
		flags |= isWhole
	}
	if r.More {
		flags |= isMore
	}
	e.b = append(e.b, version(r), flags)
	e.bytes(r.Key)
	e.bytes(r.Name)
	e.uint(r.Version)
	e.age(r.At)
	if flags&hasState != 0 {
		e.state(r)
	}
	if flags&hasDone != 0 {
		e.done(r.Done)
	}
	if r.IDs != nil && flags&(isWhole|isMore) != 0 {
		e.kept(r.IDs)
	}
	return e.b
}

func (e *encoder) done(all []owner.Done) {
	e.uint(uint64(len(all)))
	for i := range all {
		d := &all[i]
		e.client(d.ID.Client)
		e.uint(d.ID.Sequence)
		e.uint(d.ID.Settled)
		e.outcome(&d.Outcome)
	}
}

func (e *encoder) state(r *owner.Record) {
	switch r.Kind {
	case owner.KindLimit:
		s := &r.Limit
		e.b = append(e.b, byte(s.Algorithm))
		if s.Spent != 0 {
			e.age(s.At)
		} else {
			e.uint(0) // it says nothing but its weight
		}
		e.uint(s.Spent)
		e.uint(s.Carry)
		e.uint(s.Limit)
		e.uint(uint64(s.Period))
		if s.Algorithm == limit.SlidingWindow {
			e.marks(r.Marks)
		}
		if s.Weight != 0 {
			e.uint(uint64(s.Weight))
		}
	case owner.KindCounter:
		s := &r.Counter
		e.int(s.Value)
		e.uint(s.Version)
		e.age(s.At)
		e.uint(uint64(s.IdleTTL))
	case owner.KindLock:
		e.lock(r.Lock)
	}
}

// marks writes the marks of a sliding window but for the last one.
func (e *encoder) marks(marks []limit.Mark) {
	older := max(len(marks)-1, 0)
	e.uint(uint64(older))
	for i := older - 1; i >= 0; i-- {
		e.uint(uint64(marks[i+1].At - marks[i].At))
		e.uint(marks[i].Tokens)
	}
}

// lock writes the grant, if there is one, and the queue. Moments are written from
// the moment of the last change.
func (e *encoder) lock(s *lock.State) {
	e.grant(s)
	e.uint(uint64(s.Queue.Len()))
	for i := range s.Queue.Places {
		w := &s.Queue.Places[i]
		e.text(w.Request.Holder)
		e.bytes(w.Request.Metadata)
		e.uint(uint64(w.Request.TTL))
		e.uint(uint64(s.At - w.Since))
		e.uint(uint64(w.GiveUp - w.Since))
		c := &w.Caller
		e.uint(c.ID.Sequence)
		if c.ID.Given() {
			e.client(c.ID.Client)
			e.uint(c.ID.Settled)
			e.fixed32(c.Print)
		}
	}
}

// grant writes a lock without its queue.
func (e *encoder) grant(s *lock.State) {
	e.age(s.At)
	e.uint(s.LastToken)
	e.uint(s.Token)
	if s.Token != 0 {
		e.text(s.Holder)
		e.bytes(s.Metadata)
		e.uint(uint64(s.At - s.Since))
		e.uint(uint64(s.Expires - s.Since))
		e.uint(uint64(s.Waited))
	}
}

func (e *encoder) kept(k *reqid.Kept) {
	if k.Evicted == math.MinInt64 {
		e.uint(0)
	} else {
		e.uint(age(e.now, k.Evicted) + 1)
	}
	e.uint(uint64(len(k.Clients)))
	ops := k.Ops
	for i := range k.Clients {
		c := &k.Clients[i]
		e.client(c.Client)
		e.uint(c.Floor)
		e.age(c.Seen)
		e.uint(uint64(c.Seen - c.Linked))
		e.uint(uint64(c.Ops))
		for j := range ops[:c.Ops] {
			e.uint(ops[j].Sequence)
			e.age(ops[j].At)
			e.outcome(&ops[j].Outcome)
		}
		ops = ops[c.Ops:]
	}
}

// Decode reads what Append made, by the clock of this process: now is a moment not
// before the bytes came. Key and Name are parts of b; nothing else is. What r has
// room for is used again.
func Decode(b []byte, now int64, r *owner.Record) error {
	d := decoder{b: b, now: now}
	ids := r.IDs
	clear(r.Moves)
	*r = owner.Record{Moves: r.Moves[:0], Done: r.Done[:0], Marks: r.Marks[:0]}
	written := d.byte()
	if written == Version {
		return d.byPlace(r)
	}
	flags := d.byte()
	if d.bad || written < firstVersion || written > Version || flags&^flagsMask != 0 {
		return ErrDamaged
	}
	r.Kind = owner.Kind(flags & kindMask)
	r.Key, r.Name = d.bytes(owner.MaxKey), d.bytes(owner.MaxName)
	r.Version = d.uint(math.MaxUint64)
	r.At = d.age()
	r.Hash = owner.Hash(string(r.Key))
	if flags&hasState != 0 {
		d.state(r, written)
	}
	if flags&hasDone != 0 {
		d.done(r)
	}
	r.Whole, r.More = flags&isWhole != 0, flags&isMore != 0
	if r.Whole || r.More {
		if r.IDs = ids; ids == nil {
			r.IDs = &reqid.Kept{}
		}
		d.kept(r.IDs)
	}
	if d.bad || len(d.b) > 0 || r.Kind == 0 || written != version(r) {
		return ErrDamaged
	}
	return nil
}

func (d *decoder) done(r *owner.Record) {
	for range d.count(minDone) {
		id := reqid.ID{Client: d.client(), Sequence: d.uint(math.MaxUint64), Settled: d.uint(math.MaxUint64)}
		r.Done = append(r.Done, owner.Done{ID: id, Outcome: d.outcome()})
	}
}

func (d *decoder) state(r *owner.Record, written byte) {
	switch r.Kind {
	case owner.KindLimit:
		r.Limit = limit.State{
			Algorithm: limit.Algorithm(d.byte()), At: d.age(), Spent: d.uint(limit.MaxLimit), Carry: d.uint(limit.MaxPeriod),
			Limit: d.uint(limit.MaxLimit), Period: int64(d.uint(limit.MaxPeriod)),
		}
		if r.Limit.Algorithm == limit.SlidingWindow {
			d.marks(r)
		}
		if written == weightVersion {
			d.weight(&r.Limit)
		}
	case owner.KindCounter:
		s := &r.Counter
		s.Value, s.Version, s.At = d.int(), d.uint(math.MaxUint64), d.age()
		s.IdleTTL = int64(d.uint(maxAge))
	case owner.KindLock:
		r.Lock = &lock.State{}
		d.lock(r.Lock)
	}
}

func (d *decoder) weight(s *limit.State) {
	s.Weight = uint32(d.uint(limit.Whole))
	if s.Spent == 0 && s.At == d.now {
		s.At = 0
	}
}

func (d *decoder) marks(r *owner.Record) {
	older := d.uint(limit.MaxMarks - 1)
	if older == 0 {
		return
	}
	m := limit.Mark{At: r.Limit.At, Tokens: r.Limit.Spent}
	r.Marks = append(r.Marks, m)
	for range older {
		m = limit.Mark{At: m.At - int64(d.uint(limit.MaxPeriod)), Tokens: d.uint(limit.MaxLimit)}
		r.Marks[0].Tokens -= m.Tokens // below 0 it is none that Validate lets pass
		r.Marks = append(r.Marks, m)
	}
	slices.Reverse(r.Marks)
}

func (d *decoder) lock(s *lock.State) {
	d.grant(s)
	n := d.count(minPlace)
	if n == 0 {
		return
	}
	places := make([]lock.Waiter, 0, min(n, startPlaces))
	for range n {
		w := lock.Waiter{Ticket: uint64(len(places)), Request: lock.Request{Holder: string(d.bytes(lock.MaxHolder)), Metadata: d.copied(lock.MaxMetadata), TTL: int64(d.uint(lock.MaxTTL))}}
		w.Since = s.At - int64(d.uint(maxAge))
		w.GiveUp = w.Since + int64(d.uint(maxAge))
		c := &w.Caller
		if c.ID.Sequence = d.uint(math.MaxUint64); c.ID.Given() {
			c.ID.Client, c.ID.Settled, c.Print = d.client(), d.uint(math.MaxUint64), d.fixed32()
		}
		if d.bad {
			return
		}
		places = append(places, w)
	}
	s.Queue.Places = places
}

func (d *decoder) grant(s *lock.State) {
	s.At, s.LastToken, s.Token = d.age(), d.uint(lock.MaxToken), d.uint(lock.MaxToken)
	if s.Token != 0 {
		s.Holder, s.Metadata = string(d.bytes(lock.MaxHolder)), d.copied(lock.MaxMetadata)
		s.Since = s.At - int64(d.uint(maxAge))
		s.Expires = s.Since + int64(d.uint(maxAge))
		s.Waited = int64(d.uint(maxAge))
	}
}

func (d *decoder) kept(k *reqid.Kept) {
	k.Evicted, k.Clients, k.Ops = math.MinInt64, k.Clients[:0], k.Ops[:0]
	if ago := d.uint(maxAge + 1); ago > 0 {
		k.Evicted = d.now - int64(ago-1)
	}
	for range d.count(minClient) {
		c := reqid.KeptClient{Client: d.client(), Floor: d.uint(math.MaxUint64), Seen: d.age()}
		c.Linked = c.Seen - int64(d.uint(maxAge))
		c.Ops = d.count(minOp)
		if d.bad {
			return
		}
		for range c.Ops {
			k.Ops = append(k.Ops, reqid.KeptOp{Sequence: d.uint(math.MaxUint64), At: d.age(), Outcome: d.outcome()})
		}
		k.Clients = append(k.Clients, c)
	}
}
