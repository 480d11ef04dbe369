// Package flat holds containers that the garbage collector need not look into:
// a slab of equal cells, cells of different sizes and an index of references.
//
// A shard of the owner's store keeps hundreds of thousands of objects. As maps
// and pointers they would cost several times their own size and make every
// collection walk them all; here they live in a few large blocks and refer to
// each other by number. References start at 1, so that 0 can mean "none".
//
// Nothing here locks. Freed cells are used again; Cells also lets go of a chunk
// when the last cell in it is freed, so that what was taken for cells of one size
// can be had for another. What a container has allocated is what Bytes says.
package flat

import (
	"slices"
	"unsafe"
)

// chunkCells is how many cells a slab adds at once: few enough that a shard
// with one object stays small, many enough that chunks are rare.
const chunkCells = 128

// Slab holds cells of one type. The zero value is an empty slab.
//
// A pointer returned by At stays valid until the cell is freed: chunks never
// move.
type Slab[T any] struct {
	chunks []*[chunkCells]T
	free   []uint32 // freed references, used again last in, first out
	next   uint32   // cells ever handed out
}

// Add returns the reference of a zero cell.
func (s *Slab[T]) Add() uint32 {
	if n := len(s.free); n > 0 {
		ref := s.free[n-1]
		s.free = s.free[:n-1]
		return ref
	}
	if s.next == uint32(len(s.chunks)*chunkCells) {
		s.chunks = append(s.chunks, new([chunkCells]T))
	}
	s.next++
	return s.next
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
	s.free = append(s.free, ref)
}

// Room says whether the next cell needs no more memory.
func (s *Slab[T]) Room() bool {
	return len(s.free) > 0 || s.next < uint32(len(s.chunks)*chunkCells)
}

// Len is the number of cells in use.
func (s *Slab[T]) Len() int { return int(s.next) - len(s.free) }

// Span is the number of cells ever handed out: references are 1 to Span.
func (s *Slab[T]) Span() uint32 { return s.next }

// Bytes is the memory that the slab has allocated.
func (s *Slab[T]) Bytes() int {
	var cell T
	return len(s.chunks)*chunkCells*int(unsafe.Sizeof(cell)) + cap(s.chunks)*8 + cap(s.free)*4
}

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
	per    uint32                   // cells in a chunk
	chunks []*[chunkSize / 8]uint64 // nil where one was let go
	live   []uint16                 // cells in use of each chunk
	gone   []uint32                 // indexes of the chunks that are nil
	free   []uint32                 // cells that are not in use. Invariant: all in chunks that are there
}

// Add returns the reference of a zero cell of at least size bytes.
func (c *Cells) Add(size int) uint32 {
	class := (size + cellGrain - 1) / cellGrain
	for len(c.classes) <= class {
		n := uint32(len(c.classes))
		c.classes = append(c.classes, sizeClass{per: chunkSize / cellGrain / max(n, 1)})
	}
	sc := &c.classes[class]
	if len(sc.free) == 0 {
		c.addChunk(sc)
	}
	n := len(sc.free) - 1
	i := sc.free[n]
	sc.free = sc.free[:n]
	sc.live[i/sc.per]++
	return uint32(class)<<(32-classBits) | (i + 1)
}

func (c *Cells) addChunk(sc *sizeClass) {
	i := uint32(len(sc.chunks))
	if n := len(sc.gone); n > 0 {
		i = sc.gone[n-1]
		sc.gone = sc.gone[:n-1]
	} else {
		if (i+1)*sc.per >= 1<<(32-classBits) {
			panic("flat: more cells of one size than references can name")
		}
		sc.chunks, sc.live = append(sc.chunks, nil), append(sc.live, 0)
	}
	sc.chunks[i] = new([chunkSize / 8]uint64)
	c.bytes += chunkSize
	for k := sc.per; k > 0; k-- { // the first is taken first
		sc.free = append(sc.free, i*sc.per+k-1)
	}
}

// Room says whether the next cell of this size needs no more memory.
func (c *Cells) Room(size int) bool {
	class := (size + cellGrain - 1) / cellGrain
	if class >= len(c.classes) {
		return false
	}
	return len(c.classes[class].free) > 0
}

// At returns the cell of a reference. It stays where it is until it is freed.
func (c *Cells) At(ref uint32) unsafe.Pointer {
	class := ref >> (32 - classBits)
	sc := &c.classes[class]
	i := ref&(1<<(32-classBits)-1) - 1
	return unsafe.Pointer(&sc.chunks[i/sc.per][i%sc.per*class])
}

// Free zeroes the cell and takes it back.
func (c *Cells) Free(ref uint32) {
	class := ref >> (32 - classBits)
	clear(unsafe.Slice((*uint64)(c.At(ref)), class))
	sc := &c.classes[class]
	i := ref&(1<<(32-classBits)-1) - 1
	sc.free = append(sc.free, i)
	chunk := i / sc.per
	if sc.live[chunk]--; sc.live[chunk] > 0 {
		return
	}
	sc.free = slices.DeleteFunc(sc.free, func(i uint32) bool { return i/sc.per == chunk })
	sc.chunks[chunk] = nil
	sc.gone = append(sc.gone, chunk)
	c.bytes -= chunkSize
}

// Bytes is the memory that the cells have allocated.
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

// Home is the position where the search for a tag starts.
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
		x.grow()
	}
	x.put(uint64(tag)<<32 | uint64(ref))
	x.n++
}

// Room says whether the next reference needs no more memory: a fifth of the
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

func (x *Index) grow() {
	old := x.slots
	x.slots = make([]uint64, max(minIndex, 2*len(old)))
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

// Span is the number of positions: Slot takes 0 to Span-1.
func (x *Index) Span() uint32 { return uint32(len(x.slots)) }

// Slot is the reference at a position, 0 where there is none. A deletion moves
// references to earlier positions.
func (x *Index) Slot(pos uint32) uint32 { return uint32(x.slots[pos]) }

// Len is the number of references held.
func (x *Index) Len() int { return x.n }

// Bytes is the memory that the index has allocated.
func (x *Index) Bytes() int { return len(x.slots) * 8 }
