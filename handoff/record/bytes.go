package record

import (
	"bytes"
	"encoding/binary"

	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/lock"
	"github.com/keystead/keystead/owner/reqid"
)

// The least bytes that parts of a record take, by which their numbers are
// bounded before they are read.
const (
	minOutcome = 4 + 1 + 1 + 1
	minDone    = 16 + 1 + 1 + minOutcome
	minPlace   = 1 + 1 + 1 + 1 + 1 + 1
	minClient  = 16 + 1 + 1 + 1 + 1
	minOp      = 1 + 1 + minOutcome
	// startPlaces is the most that a queue is given room for before its places
	// have been read.
	startPlaces = 1024
)

// The most bytes that parts of a record take. Numbers are taken for as long as they
// can be, though most are bounded by less.
const (
	maxNumber  = binary.MaxVarintLen64
	maxHolder  = 2 + lock.MaxHolder + 2 + lock.MaxMetadata
	maxID      = 16 + 2*maxNumber
	maxOutcome = 4 + 1 + 2*maxNumber
	maxClient  = 16 + 4*maxNumber
	maxOp      = 2*maxNumber + maxOutcome

	// MaxPlace is what one who waits for a lock adds to its record: a place in the
	// queue, or, when the wait is over, the answered request id, which is less.
	MaxPlace = maxHolder + 3*maxNumber + maxID + 4
	// MaxRest is what a record has beside those who wait: the address, the grant,
	// the answers of the operation and of who got the lock by it, and the request ids
	// of an object that is copied.
	MaxRest = 2 + 2 + owner.MaxKey + 2 + owner.MaxName + 2*maxNumber +
		3*maxNumber + maxHolder + 4*maxNumber +
		maxNumber + 2*(maxID+maxOutcome) +
		2*maxNumber + (owner.MaxKept+1)*max(maxClient, maxOp)
)

// minMember is the least that a member takes.
const minMember = 16 + 1 + 1

type encoder struct {
	b   []byte
	now int64
}

func (e *encoder) uint(v uint64)    { e.b = binary.AppendUvarint(e.b, v) }
func (e *encoder) int(v int64)      { e.b = binary.AppendVarint(e.b, v) }
func (e *encoder) age(at int64)     { e.uint(age(e.now, at)) }
func (e *encoder) fixed32(v uint32) { e.b = binary.BigEndian.AppendUint32(e.b, v) }

func (e *encoder) bytes(v []byte) {
	e.uint(uint64(len(v)))
	e.b = append(e.b, v...)
}

func (e *encoder) text(v string) {
	e.uint(uint64(len(v)))
	e.b = append(e.b, v...)
}

// sized puts the length of what was written from a place on before it.
func (e *encoder) sized(from int) {
	var head [binary.MaxVarintLen64]byte
	size := len(e.b) - from
	n := binary.PutUvarint(head[:], uint64(size))
	e.b = append(e.b, head[:n]...)
	copy(e.b[from+n:], e.b[from:from+size])
	copy(e.b[from:], head[:n])
}

func (e *encoder) client(c reqid.Client) {
	e.b = binary.BigEndian.AppendUint64(e.b, c.Hi)
	e.b = binary.BigEndian.AppendUint64(e.b, c.Lo)
}

func (e *encoder) outcome(o *reqid.Outcome) {
	e.fixed32(o.Print)
	e.b = append(e.b, o.Code)
	e.int(o.A)
	e.int(o.B)
}

// decoder takes parts off the front of b. After the first one that is not there,
// or out of range, bad is true and all parts are zero.
type decoder struct {
	b   []byte
	now int64
	bad bool
}

func (d *decoder) fail() {
	d.b, d.bad = nil, true
}

func (d *decoder) take(n int) []byte {
	if n > len(d.b) {
		d.fail()
		return nil
	}
	v := d.b[:n:n]
	d.b = d.b[n:]
	return v
}

// sized is what stands behind its length. When it is read, see ends.
func (d *decoder) sized() decoder {
	return decoder{b: d.take(int(d.uint(uint64(len(d.b))))), now: d.now, bad: d.bad}
}

// ends checks that a part was read to its end.
func (d *decoder) ends(part *decoder) {
	if part.bad || len(part.b) > 0 {
		d.fail()
	}
}

func (d *decoder) byte() byte {
	if len(d.b) == 0 {
		d.fail()
		return 0
	}
	v := d.b[0]
	d.b = d.b[1:]
	return v
}

func (d *decoder) uint(most uint64) uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 || v > most {
		d.fail()
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) int() int64 {
	v, n := binary.Varint(d.b)
	if n <= 0 {
		d.fail()
		return 0
	}
	d.b = d.b[n:]
	return v
}

// age is the moment that was so long before now.
func (d *decoder) age() int64 { return d.now - int64(d.uint(maxAge)) }

func (d *decoder) fixed32() uint32 {
	v := d.take(4)
	if v == nil {
		return 0
	}
	return binary.BigEndian.Uint32(v)
}

func (d *decoder) bytes(most int) []byte { return d.take(int(d.uint(uint64(most)))) }

// copied is a copy of the next bytes, nil if there are none.
func (d *decoder) copied(most int) []byte {
	v := d.bytes(most)
	if len(v) == 0 {
		return nil
	}
	return bytes.Clone(v)
}

// count is the number of parts that follow, each of which takes some bytes at
// least.
func (d *decoder) count(least int) int { return int(d.uint(uint64(len(d.b) / least))) }

func (d *decoder) client() reqid.Client {
	v := d.take(16)
	if v == nil {
		return reqid.Client{}
	}
	return reqid.Client{Hi: binary.BigEndian.Uint64(v), Lo: binary.BigEndian.Uint64(v[8:])}
}

func (d *decoder) outcome() reqid.Outcome {
	return reqid.Outcome{Print: d.fixed32(), Code: d.byte(), A: d.int(), B: d.int()}
}
