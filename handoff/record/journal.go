package record

import (
	"fmt"
	"math"

	"github.com/keystead/keystead/owner"
)

// Entries of a journal of request ids: see owner.Journal.
//
//	1 | kind | flags | key | name | version of the object | age
//	| request ids answered, or request ids kept

// journalVersion is that of entries; testdata has some of it.
const journalVersion = 1

// Flags of an entry.
const (
	keptWhole = 1 << iota // request ids kept; what was known before is void
	keptMore
	keptMask = 1<<iota - 1
)

// AppendIDs appends the request ids of a record, with the address of their object.
func AppendIDs(dst []byte, r *owner.Record, now int64) []byte {
	e := encoder{}
	e.B, e.Now = dst, now
	e.Byte(journalVersion)
	e.Uint(uint64(r.Kind))
	e.Uint(set(keptWhole, r.Whole) | set(keptMore, r.More))
	e.Bytes(r.Key)
	e.Bytes(r.Name)
	e.Uint(r.Version)
	e.Moment(r.At)
	if r.Whole || r.More {
		e.kept(r.IDs)
	} else {
		e.done(r.Done)
	}
	return e.B
}

// DecodeIDs reads what AppendIDs made, as Decode does.
func DecodeIDs(b []byte, now int64, r *owner.Record) error {
	var d decoder
	d.B, d.Now = b, now
	ids := r.IDs
	*r = owner.Record{Members: r.Members[:0], Done: r.Done[:0], Beside: r.Beside[:0]}
	version, kind, flags := d.Byte(), d.Uint(math.MaxUint8), d.Uint(keptMask)
	if r.Kind = owner.Kind(kind); d.Bad || version != journalVersion || kind == 0 || flags == keptMask {
		return ErrDamaged
	}
	if !r.Kind.Known() {
		return fmt.Errorf("%w: kind %d", ErrKind, kind)
	}
	d.head(r)
	if r.Whole, r.More = flags&keptWhole != 0, flags&keptMore != 0; r.Whole || r.More {
		d.kept(r, ids)
	} else {
		d.done(r)
	}
	if !d.Ends() || flags == 0 && len(r.Done) == 0 {
		return ErrDamaged
	}
	return nil
}
