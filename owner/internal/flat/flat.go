// Package flat holds containers that the garbage collector need not look into:
// a slab of equal cells, cells of different sizes and an index of references.
//
// A shard of the owner's store keeps hundreds of thousands of objects. As maps
// and pointers they would cost several times their own size and make every
// collection walk them all; here they live in a few large blocks and refer to
// each other by number. References start at 1, so that 0 can mean "none".
//
// Nothing here locks. Freed cells are used again, and a chunk is let go when the
// last cell in it is freed, so that what was taken for cells of one kind can be
// had for another. What a container has allocated is what Bytes says.
package flat

import "unsafe"

// pool says which cells of some chunks are in use. It holds no cells itself.
type pool struct {
	per    uint32      // cells in a chunk
	chunks []chunkHead // those of no cells in use have been let go
	room   []uint32    // chunks that are there and have room. Invariant: chunks[c].at is the place of c here
	gone   []uint32    // chunks that have been let go
}

type chunkHead struct {
	live uint32   // cells in use
	next uint32   // cells ever handed out
	at   uint32   // place in room, if it has room
	free []uint16 // cells that were handed out and freed, used again last in, first out
}

// alloc returns a cell that is not in use: the chunk, and the number in it. fresh
// says that the chunk has to be made.
func (p *pool) alloc() (chunk, i uint32, fresh bool) {
	if fresh = len(p.room) == 0; fresh {
		if n := len(p.gone); n > 0 {
			chunk, p.gone = p.gone[n-1], p.gone[:n-1]
		} else {
			chunk = uint32(len(p.chunks))
			p.chunks = append(p.chunks, chunkHead{})
		}
		p.chunks[chunk] = chunkHead{}
		p.room = append(p.room, chunk)
	}
	chunk = p.room[len(p.room)-1]
	c := &p.chunks[chunk]
	if n := len(c.free); n > 0 {
		i, c.free = uint32(c.free[n-1]), c.free[:n-1]
	} else {
		i = c.next
		c.next++
	}
	if c.live++; c.live == p.per {
		p.room = p.room[:len(p.room)-1]
	}
	return chunk, i, fresh
}

// give takes a cell back. empty says that the chunk is to be let go.
func (p *pool) give(chunk, i uint32) (empty bool) {
	c := &p.chunks[chunk]
	if c.live == p.per {
		c.at = uint32(len(p.room))
		p.room = append(p.room, chunk)
	}
	c.live--
	// One chunk stays, so that an object that comes and goes takes no memory
	// each time.
	if c.live > 0 || len(p.chunks)-len(p.gone) == 1 {
		c.free = append(c.free, uint16(i))
		return false
	}
	last := len(p.room) - 1
	p.room[c.at] = p.room[last]
	p.chunks[p.room[c.at]].at = c.at
	p.room = p.room[:last]
	p.gone = append(p.gone, chunk)
	*c = chunkHead{}
	return true
}

// bytes is about what the pool itself takes for each chunk.
const headBytes = 48 + 8

// chunkCells is how many cells a slab adds at once: few enough that a shard
// with one object stays small, many enough that chunks are rare.
const chunkCells = 128

// Slab holds cells of one type. The zero value is an empty slab.
//
// A pointer returned by At stays valid until the cell is freed: chunks never
// move.
type Slab[T any] struct {
	pool   pool
	chunks []*[chunkCells]T // nil where one was let go
	live   int
	bytes  int
}

// Add returns the reference of a zero cell.
func (s *Slab[T]) Add() uint32 {
	s.pool.per = chunkCells
	chunk, i, fresh := s.pool.alloc()
	if fresh {
		if chunk == uint32(len(s.chunks)) {
			s.chunks = append(s.chunks, nil)
		}
		s.chunks[chunk] = new([chunkCells]T)
		s.bytes += s.chunkBytes()
	}
	s.live++
	return chunk*chunkCells + i + 1
}

func (s *Slab[T]) chunkBytes() int {
	var cell T
	return chunkCells*int(unsafe.Sizeof(cell)) + headBytes
}

// At returns the cell of a reference.
func (s *Slab[T]) At(ref uint32) *T {
	i := ref - 1
	return &s.chunks[i/chunkCells][i%chunkCells]
}

// Free zeroes the cell and takes it back.
func (s *Slab[T]) Free(ref uint32) {
	var zero T
	*s.At(ref) = zero
	s.live--
	i := ref - 1
	if s.pool.give(i/chunkCells, i%chunkCells) {
		s.chunks[i/chunkCells] = nil
		s.bytes -= s.chunkBytes()
	}
}

// Room reports whether the next cell needs no more memory.
func (s *Slab[T]) Room() bool { return len(s.pool.room) > 0 }

// Len returns the number of cells in use.
func (s *Slab[T]) Len() int { return s.live }

// Bytes returns the memory that the slab has allocated.
func (s *Slab[T]) Bytes() int { return s.bytes }

const (
	cellGrain = 8        // cells are rounded up to a multiple of this
	chunkSize = 16 << 10 // bytes that a size class adds at once
	classBits = 8        // of a reference, at the top: the size class
)

// MaxCell is the largest cell of a Cells.
const MaxCell = 1<<classBits*cellGrain - cellGrain

// Cells holds cells of different sizes, up to MaxCell bytes, aligned to 8. The
// zero value is empty. What is in a cell must not hold pointers: the collector
// does not look into it.
type Cells struct {
	classes []sizeClass // by size/cellGrain
	bytes   int
}

type sizeClass struct {
	pool   pool
	chunks []*[chunkSize / 8]uint64 // nil where one was let go
}

// Add returns the reference of a zero cell of at least size bytes.
func (c *Cells) Add(size int) uint32 {
	class := (size + cellGrain - 1) / cellGrain
	for len(c.classes) <= class {
		n := uint32(len(c.classes))
		c.classes = append(c.classes, sizeClass{pool: pool{per: chunkSize / cellGrain / max(n, 1)}})
	}
	sc := &c.classes[class]
	chunk, i, fresh := sc.pool.alloc()
	if fresh {
		if chunk == uint32(len(sc.chunks)) {
			if (chunk+1)*sc.pool.per >= 1<<(32-classBits) {
				panic("flat: more cells of one size than references can name")
			}
			sc.chunks = append(sc.chunks, nil)
		}
		sc.chunks[chunk] = new([chunkSize / 8]uint64)
		c.bytes += chunkSize + headBytes
	}
	return uint32(class)<<(32-classBits) | (chunk*sc.pool.per + i + 1)
}

// Room reports whether the next cell of this size needs no more memory.
func (c *Cells) Room(size int) bool {
	class := (size + cellGrain - 1) / cellGrain
	return class < len(c.classes) && len(c.classes[class].pool.room) > 0
}

// At returns the cell of a reference. It stays where it is until it is freed.
func (c *Cells) At(ref uint32) unsafe.Pointer {
	class := ref >> (32 - classBits)
	sc := &c.classes[class]
	i := ref&(1<<(32-classBits)-1) - 1
	return unsafe.Pointer(&sc.chunks[i/sc.pool.per][i%sc.pool.per*class])
}

// Holds reports whether there is memory at a reference: the cell may be in use, or zero.
func (c *Cells) Holds(ref uint32) bool {
	sc := &c.classes[ref>>(32-classBits)]
	i := ref&(1<<(32-classBits)-1) - 1
	return sc.chunks[i/sc.pool.per] != nil
}

// Next returns the reference of the cell after one, whether or not it is in use, in an
// order that never changes; after 0 comes the first. 0 = there is none. A cell that
// is not in use is zero.
func (c *Cells) Next(ref uint32) uint32 {
	i := ref & (1<<(32-classBits) - 1) // the next one is the cell of this number
	for class := ref >> (32 - classBits); class < uint32(len(c.classes)); class++ {
		sc := &c.classes[class]
		for ; i < uint32(len(sc.chunks))*sc.pool.per; i = (i/sc.pool.per + 1) * sc.pool.per {
			if sc.chunks[i/sc.pool.per] != nil {
				return class<<(32-classBits) | (i + 1)
			}
		}
		i = 0
	}
	return 0
}

// Free zeroes the cell and takes it back.
func (c *Cells) Free(ref uint32) {
	class := ref >> (32 - classBits)
	clear(unsafe.Slice((*uint64)(c.At(ref)), class))
	sc := &c.classes[class]
	i := ref&(1<<(32-classBits)-1) - 1
	if chunk := i / sc.pool.per; sc.pool.give(chunk, i%sc.pool.per) {
		sc.chunks[chunk] = nil
		c.bytes -= chunkSize + headBytes
	}
}

// Bytes returns the memory that the cells have allocated.
func (c *Cells) Bytes() int { return c.bytes }

// Index finds references by a 32-bit tag, the caller's hash: an open-addressing
// table with linear probing. Several references may share a tag; the caller
// compares what they refer to:
//
//	for ref, pos, ok := ix.Seek(tag, ix.Home(tag)); ok; ref, pos, ok = ix.Seek(tag, pos+1) {
//		if same(ref) { … }
//	}
//
// The zero value is empty.
type Index struct {
	// slots holds tag<<32 | ref, or 0 where empty.
	// Invariant: len(slots) is 0 or a power of two, and at least one is empty.
	slots []uint64
	n     int
}

const minIndex = 16

// Home returns the position where the search for a tag starts.
func (x *Index) Home(tag uint32) uint32 { return tag & uint32(len(x.slots)-1) }

// Seek returns the next reference under tag at or after position from.
func (x *Index) Seek(tag, from uint32) (ref, pos uint32, ok bool) {
	if len(x.slots) == 0 {
		return 0, 0, false
	}
	mask := uint32(len(x.slots) - 1)
	for i := from & mask; ; i = (i + 1) & mask {
		v := x.slots[i]
		if v == 0 {
			return 0, 0, false
		}
		if uint32(v>>32) == tag {
			return uint32(v), i, true
		}
	}
}

// Put adds a reference under a tag. The caller has made sure that it is new.
func (x *Index) Put(tag, ref uint32) {
	if !x.Room() {
		x.resize(max(minIndex, 2*len(x.slots)))
	}
	x.put(uint64(tag)<<32 | uint64(ref))
	x.n++
}

// Room reports whether the next reference needs no more memory: a fifth of the
// slots stay empty, so that searches stay short.
func (x *Index) Room() bool { return (x.n+1)*5 <= len(x.slots)*4 }

func (x *Index) put(v uint64) {
	mask := uint32(len(x.slots) - 1)
	i := uint32(v>>32) & mask
	for x.slots[i] != 0 {
		i = (i + 1) & mask
	}
	x.slots[i] = v
}

func (x *Index) resize(n int) {
	old := x.slots
	x.slots = make([]uint64, n)
	for _, v := range old {
		if v != 0 {
			x.put(v)
		}
	}
}

// Delete removes a reference that was put under tag. Deleting one that is not
// there is a broken invariant of the caller.
func (x *Index) Delete(tag, ref uint32) {
	want := uint64(tag)<<32 | uint64(ref)
	mask := uint32(len(x.slots) - 1)
	i := tag & mask
	for x.slots[i] != want {
		if x.slots[i] == 0 {
			panic("flat: delete of a reference that the index does not hold")
		}
		i = (i + 1) & mask
	}
	x.n--
	// Close the gap: move back every follower that may stand here.
	for j := i; ; {
		j = (j + 1) & mask
		v := x.slots[j]
		if v == 0 {
			break
		}
		home := uint32(v>>32) & mask
		if (j-home)&mask >= (j-i)&mask {
			x.slots[i] = v
			i = j
		}
	}
	x.slots[i] = 0
}

// Shrink gives memory back if less than an eighth of the slots is in use. It
// changes the positions.
func (x *Index) Shrink() {
	n := len(x.slots)
	for n > minIndex && x.n*8 < n {
		n /= 2
	}
	if n < len(x.slots) {
		x.resize(n)
	}
}

// Span returns the number of positions: Slot takes 0 to Span-1.
func (x *Index) Span() uint32 { return uint32(len(x.slots)) }

// Slot returns the reference at a position, 0 where there is none. A deletion moves
// references to other positions.
func (x *Index) Slot(pos uint32) uint32 { return uint32(x.slots[pos]) }

// Len returns the number of references held.
func (x *Index) Len() int { return x.n }

// Bytes returns the memory that the index has allocated.
func (x *Index) Bytes() int { return len(x.slots) * 8 }
