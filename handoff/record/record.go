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
//	4 | kind | flags | key | name | version of the object | age | length, state
//	| request ids answered | request ids kept | number of members | member …
//	| number of objects beside | object …
//
// Numbers are varints, signed ones zigzag; texts have their length before them. A
// fingerprint takes 4 bytes and a client 16, big-endian. What the state consists of is its
// kind's: a reader that does not know the kind knows where the state ends, and that it is a
// kind, and no damage. A member is one part of the state that travels by itself: it is
// absolute, and known by its id.
//
//	client | sequence | flags | length, state
//
// An object beside is another one of the key that the same step changed: a record is taken in as a
// whole, so a step is, too. No level below 8 knows of it.
//
//	kind | name | length, state
//
// The members are all that there are, or those that a change changed, by a flag. So no
// change of one sends the others.
//
// # Versions
//
// No version changes any more: testdata has records of them. Level 4 of the cluster says
// that all members read all of version 4; what was kept or sent before is read for ever.
// Level 3 says that they read changes of locks in it, by place and without flags above
// withMembers.
//
// Before level 4, everything else has the header of version 1, 2 or 3:
//
//	version | kind and flags | key | name | version of the object | age
//	| state of the kind | request ids answered | request ids kept
//
// These say the same, but for the kind, which decides: see package owner. A reader that
// knows version 1 only refuses what it would get wrong.
//
// # Non-guarantee
//
// There is no checksum: streams and files have theirs.
package record

import (
	"errors"
	"fmt"
	"math"

	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/reqid"
	"github.com/keystead/keystead/owner/wire"
)

// Version is the greatest one of the header, and firstVersion the least.
const (
	Version      = 4
	firstVersion = 1
)

// Levels of the cluster: at placeLevel members read version 4 of changes of locks by place,
// at Level all of it.
const (
	placeLevel = 3
	Level      = owner.RecordLevel
)

// Flags of version 4, and of a member in it.
const (
	withState   = 1 << 0 // the object is not absent
	withDone    = 1 << 1
	withMembers = 1 << 2
	allMembers  = 1 << 3 // no others stay
	whole       = 1 << 4
	more        = 1 << 5
	withBeside  = 1 << 6
	flagsMask   = 1<<7 - 1

	memberGone = 1 << 0
)

// Flags of versions 1 to 3, above the two bits of the kind.
const (
	oldKindMask = 3
	oldState    = 1 << 2
	oldDone     = 1 << 3
	oldWhole    = 1 << 4
	oldMore     = 1 << 5
	oldMask     = 1<<6 - 1
)

// ErrDamaged is the error of bytes that Append did not make.
var ErrDamaged = errors.New("record: the bytes are not a record of version 1, 2, 3 or 4")

// ErrKind is the error of a record of a kind that this program does not know. It is not
// left out: a copy without it would not be one.
var ErrKind = errors.New("record: this program does not know the kind of the object")

// Append appends the bytes of a record to dst, as members of a cluster that has committed
// Level read it. now is a moment of the clock that the record's times are of, not before any
// of them but the ends of grants and waits.
func Append(dst []byte, r *owner.Record, now int64) []byte { return AppendAt(Level, dst, r, now) }

// AppendAt is Append for members of a cluster that has committed a level.
func AppendAt(level uint32, dst []byte, r *owner.Record, now int64) []byte {
	e := encoder{wire.Writer{B: dst, Now: now}}
	if level >= Level || r.Partial || !r.Kind.Old() {
		e.record(r)
	} else {
		e.old(r)
	}
	return e.B
}

// set returns a flag if it is to be set.
func set(flag uint64, is bool) uint64 {
	if is {
		return flag
	}
	return 0
}

func (e *encoder) record(r *owner.Record) {
	e.Byte(Version)
	e.Uint(uint64(r.Kind))
	e.Uint(set(withState, !r.State.Absent()) | set(withDone, len(r.Done) > 0) | set(withMembers, len(r.Members) > 0) |
		set(allMembers, !r.Partial) | set(whole, r.Whole) | set(more, r.More) | set(withBeside, len(r.Beside) > 0))
	e.Bytes(r.Key)
	e.Bytes(r.Name)
	e.Uint(r.Version)
	e.Moment(r.At)
	if !r.State.Absent() {
		part := e.Begin()
		r.AppendState(&e.Writer)
		e.End(part)
	}
	//guard:record-ids-written
	if len(r.Done) > 0 {
		e.done(r.Done)
	}
	if r.IDs != nil && (r.Whole || r.More) {
		e.kept(r.IDs)
	}
	if len(r.Members) > 0 {
		e.members(r)
	}
	//guard:beside-written
	if len(r.Beside) > 0 {
		e.beside(r)
	}
}

func (e *encoder) members(r *owner.Record) {
	e.Uint(uint64(len(r.Members)))
	for i := range r.Members {
		m := &r.Members[i]
		e.client(m.ID.Client)
		e.Uint(m.ID.Sequence)
		if e.Uint(set(memberGone, m.Gone)); !m.Gone {
			e.Bytes(m.State)
		}
	}
}

// beside writes what else the step changed.
func (e *encoder) beside(r *owner.Record) {
	e.Uint(uint64(len(r.Beside)))
	for i := range r.Beside {
		b := &r.Beside[i]
		e.Uint(uint64(b.Kind))
		e.Bytes(b.Name)
		part := e.Begin()
		b.AppendState(&e.Writer)
		e.End(part)
	}
}

func (e *encoder) old(r *owner.Record) {
	version := byte(firstVersion)
	if !r.State.Absent() {
		version = r.OldVersion()
	}
	e.Byte(version)
	e.Byte(byte(uint64(r.Kind) | set(oldState, !r.State.Absent()) | set(oldDone, len(r.Done) > 0) | set(oldWhole, r.Whole) | set(oldMore, r.More)))
	e.Bytes(r.Key)
	e.Bytes(r.Name)
	e.Uint(r.Version)
	e.Moment(r.At)
	if !r.State.Absent() {
		r.AppendOld(&e.Writer)
	}
	if len(r.Done) > 0 {
		e.done(r.Done)
	}
	if r.IDs != nil && (r.Whole || r.More) {
		e.kept(r.IDs)
	}
}

func (e *encoder) done(all []owner.Done) {
	e.Uint(uint64(len(all)))
	for i := range all {
		d := &all[i]
		e.client(d.ID.Client)
		e.Uint(d.ID.Sequence)
		e.Uint(d.ID.Settled)
		e.outcome(&d.Outcome)
	}
}

func (e *encoder) kept(k *reqid.Kept) {
	if k.Evicted == math.MinInt64 {
		e.Uint(0)
	} else {
		e.Uint(wire.Age(e.Now, k.Evicted) + 1)
	}
	e.Uint(uint64(len(k.Clients)))
	ops := k.Ops
	for i := range k.Clients {
		c := &k.Clients[i]
		e.client(c.Client)
		e.Uint(c.Floor)
		e.Moment(c.Seen)
		e.Uint(uint64(c.Seen - c.Linked))
		e.Uint(uint64(c.Ops))
		for j := range ops[:c.Ops] {
			e.Uint(ops[j].Sequence)
			e.Moment(ops[j].At)
			e.outcome(&ops[j].Outcome)
		}
		ops = ops[c.Ops:]
	}
}

// Decode reads what Append made, by the clock of this process: now is a moment not
// before the bytes came. Key, Name, State and Members have parts of b; nothing else has.
// What r has room for is used again. The error is ErrDamaged or ErrKind.
func Decode(b []byte, now int64, r *owner.Record) error {
	d := decoder{wire.Reader{B: b, Now: now}}
	ids := r.IDs
	clear(r.Members)
	clear(r.Beside)
	*r = owner.Record{Members: r.Members[:0], Done: r.Done[:0], Beside: r.Beside[:0]}
	version := d.Byte()
	switch {
	case version == Version:
		return d.record(r, ids)
	case version < firstVersion || version > Version:
		return ErrDamaged
	}
	return d.old(r, ids, version)
}

func (d *decoder) record(r *owner.Record, ids *reqid.Kept) error {
	kind, flags := d.Uint(math.MaxUint8), d.Uint(flagsMask)
	if r.Kind = owner.Kind(kind); d.Bad || r.Kind == 0 {
		return ErrDamaged
	}
	//guard:record-kind
	if !r.Kind.Known() {
		return fmt.Errorf("%w: kind %d", ErrKind, kind)
	}
	d.head(r)
	if flags&withState != 0 {
		r.State = owner.ReadState(d.Part(), d.Now)
	}
	if flags&withDone != 0 {
		d.done(r)
	}
	if r.Whole, r.More = flags&whole != 0, flags&more != 0; r.Whole || r.More {
		d.kept(r, ids)
	}
	r.Partial = flags&allMembers == 0
	if flags&withMembers != 0 {
		d.members(r)
	}
	if flags&withBeside != 0 {
		d.beside(r)
	}
	if !d.Ends() || (flags&withBeside != 0) != (len(r.Beside) > 0) || (flags&withState != 0) == r.State.Absent() || (flags&withDone != 0) != (len(r.Done) > 0) || (flags&withMembers != 0) != (len(r.Members) > 0) {
		return ErrDamaged
	}
	return nil
}

// head reads the address, the version and the moment.
func (d *decoder) head(r *owner.Record) {
	r.Key, r.Name = d.Bytes(owner.MaxKey), d.Bytes(owner.MaxName)
	r.Version = d.Uint(math.MaxUint64)
	r.At = d.Moment()
	r.Hash = owner.Hash(string(r.Key))
}

func (d *decoder) members(r *owner.Record) {
	for range d.Count(minMember) {
		m := owner.Member{ID: owner.MemberID{Client: d.client(), Sequence: d.Uint(math.MaxUint64)}}
		if m.Gone = d.Uint(memberGone) != 0; !m.Gone {
			m.State = d.Part()
		}
		if d.Bad {
			return
		}
		r.Members = append(r.Members, m)
	}
}

// minBeside is the least that an object takes that the step changed beside.
const minBeside = 3

func (d *decoder) beside(r *owner.Record) {
	for range d.Count(minBeside) {
		b := owner.Record{Kind: owner.Kind(d.Uint(math.MaxUint8)), Name: d.Bytes(owner.MaxName), At: r.At, Version: r.Version, Hash: r.Hash}
		if state := d.Part(); len(state) > 0 {
			b.State = owner.ReadState(state, d.Now)
		}
		if d.Bad {
			return
		}
		r.Beside = append(r.Beside, b)
	}
}

func (d *decoder) old(r *owner.Record, ids *reqid.Kept, version byte) error {
	flags := d.Byte()
	if r.Kind = owner.Kind(flags & oldKindMask); d.Bad || flags&^oldMask != 0 || !r.Kind.Old() {
		return ErrDamaged
	}
	d.head(r)
	if flags&oldState != 0 {
		r.ReadOld(&d.Reader, version)
	} else if version != firstVersion {
		return ErrDamaged
	}
	if flags&oldDone != 0 {
		d.done(r)
	}
	if r.Whole, r.More = flags&oldWhole != 0, flags&oldMore != 0; r.Whole || r.More {
		d.kept(r, ids)
	}
	if !d.Ends() {
		return ErrDamaged
	}
	return nil
}

func (d *decoder) done(r *owner.Record) {
	for range d.Count(minDone) {
		id := reqid.ID{Client: d.client(), Sequence: d.Uint(math.MaxUint64), Settled: d.Uint(math.MaxUint64)}
		r.Done = append(r.Done, owner.Done{ID: id, Outcome: d.outcome()})
	}
}

func (d *decoder) kept(r *owner.Record, k *reqid.Kept) {
	if k == nil {
		k = &reqid.Kept{}
	}
	r.IDs = k
	k.Evicted, k.Clients, k.Ops = math.MinInt64, k.Clients[:0], k.Ops[:0]
	if ago := d.Uint(wire.MaxAge + 1); ago > 0 {
		k.Evicted = d.Now - int64(ago-1)
	}
	for range d.Count(minClient) {
		c := reqid.KeptClient{Client: d.client(), Floor: d.Uint(math.MaxUint64), Seen: d.Moment()}
		c.Linked = c.Seen - int64(d.Uint(wire.MaxAge))
		c.Ops = d.Count(minOp)
		if d.Bad {
			return
		}
		for range c.Ops {
			k.Ops = append(k.Ops, reqid.KeptOp{Sequence: d.Uint(math.MaxUint64), At: d.Moment(), Outcome: d.outcome()})
		}
		k.Clients = append(k.Clients, c)
	}
}
