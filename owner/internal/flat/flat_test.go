package flat

import (
	"bytes"
	"testing"
	"unsafe"

	"pgregory.net/rapid"
)

// A model check of the slab: cells keep what is in them and are zero when they
// are handed out, and what is freed is given back.
func TestSlabAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s Slab[[3]uint64]
		model := map[uint32]uint64{}
		var order []uint32
		for n := range uint64(rapid.IntRange(1, 5*chunkCells).Draw(t, "steps")) {
			if len(order) > 0 && rapid.IntRange(0, 2).Draw(t, "free") == 0 {
				i := rapid.IntRange(0, len(order)-1).Draw(t, "which")
				s.Free(order[i])
				delete(model, order[i])
				order = append(order[:i], order[i+1:]...)
				continue
			}
			ref := s.Add()
			if _, taken := model[ref]; taken || ref == 0 || *s.At(ref) != [3]uint64{} {
				t.Fatalf("cell %d is taken or not zero", ref)
			}
			s.At(ref)[1], model[ref], order = n+1, n+1, append(order, ref)
		}
		for ref, v := range model {
			if got := s.At(ref)[1]; got != v {
				t.Fatalf("cell %d = %d, want %d", ref, got, v)
			}
		}
		if s.Len() != len(model) {
			t.Fatalf("len %d, want %d", s.Len(), len(model))
		}
		for _, ref := range order {
			s.Free(ref)
		}
		if most := s.chunkBytes(); s.Bytes() > most {
			t.Fatalf("%d bytes when empty, more than one chunk", s.Bytes())
		}
	})
}

// A model check of the cells: they keep their bytes whatever is added and freed
// around them, and are zero when they are handed out.
func TestCellsAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type cell struct {
			ref  uint32
			size int
			fill byte
		}
		var c Cells
		var live []cell
		room := func(x cell) []byte { return unsafe.Slice((*byte)(c.At(x.ref)), x.size) }
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			if len(live) > 0 && rapid.IntRange(0, 2).Draw(t, "free") == 0 {
				i := rapid.IntRange(0, len(live)-1).Draw(t, "which")
				c.Free(live[i].ref)
				live = append(live[:i], live[i+1:]...)
				continue
			}
			x := cell{size: rapid.OneOf(rapid.IntRange(1, 40), rapid.IntRange(1, MaxCell)).Draw(t, "size"), fill: rapid.Byte().Draw(t, "fill")}
			x.ref = c.Add(x.size)
			if uintptr(c.At(x.ref))%8 != 0 {
				t.Fatal("a cell is not aligned")
			}
			if b := room(x); len(bytes.Trim(b, "\x00")) > 0 {
				t.Fatalf("a new cell holds %v", b)
			}
			copy(room(x), bytes.Repeat([]byte{x.fill}, x.size))
			live = append(live, x)
		}
		for _, x := range live {
			if !bytes.Equal(room(x), bytes.Repeat([]byte{x.fill}, x.size)) {
				t.Fatalf("cell %x of %d bytes changed", x.ref, x.size)
			}
		}
	})
}

// A model check of the index: what was put and not deleted is found, nothing
// else is, with tags drawn so that clusters and wrap-around are common.
func TestIndexAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var x Index
		model := map[uint32]uint32{} // ref → tag
		next := uint32(0)
		tag := rapid.OneOf(rapid.Uint32Range(0, 8), rapid.Uint32Range(0xFFFFFFF8, 0xFFFFFFFF), rapid.Uint32())
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			if len(model) > 0 && rapid.IntRange(0, 2).Draw(t, "delete") == 0 {
				for ref, tg := range model {
					x.Delete(tg, ref)
					delete(model, ref)
					break
				}
				continue
			}
			next++
			tg := tag.Draw(t, "tag")
			x.Put(tg, next)
			model[next] = tg
		}
		x.Shrink()
		if x.Len() != len(model) || int(x.Span()) > max(minIndex, 16*len(model)+16) {
			t.Fatalf("len %d in %d slots, want %d", x.Len(), x.Span(), len(model))
		}
		for ref, tg := range model {
			found := 0
			for r, pos, ok := x.Seek(tg, x.Home(tg)); ok; r, pos, ok = x.Seek(tg, pos+1) {
				if model[r] != tg {
					t.Fatalf("seek %x found %d, which is not under it", tg, r)
				}
				if r == ref {
					found++
				}
			}
			if found != 1 {
				t.Fatalf("reference %d found %d times", ref, found)
			}
		}
	})
}

func TestIndexDeleteOfAbsentPanics(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	var x Index
	x.Put(1, 1)
	x.Delete(1, 2)
}
