package flat

import (
	"bytes"
	"testing"
	"unsafe"

	"pgregory.net/rapid"
)

func TestSlabReusesFreedCells(t *testing.T) {
	var s Slab[[3]uint64]
	refs := map[uint32]uint64{}
	for i := range uint64(3 * chunkCells) {
		ref := s.Add()
		if *s.At(ref) != [3]uint64{} {
			t.Fatalf("cell %d is not zero", ref)
		}
		s.At(ref)[1] = i
		refs[ref] = i
	}
	span := s.Span()
	for ref, v := range refs {
		if got := s.At(ref)[1]; got != v {
			t.Fatalf("cell %d = %d, want %d", ref, got, v)
		}
		if v%2 == 0 {
			s.Free(ref)
		}
	}
	for range 3 * chunkCells / 2 {
		if ref := s.Add(); *s.At(ref) != [3]uint64{} {
			t.Fatalf("reused cell %d is not zero", ref)
		}
	}
	if s.Span() != span || s.Len() != 3*chunkCells {
		t.Errorf("span %d len %d, want %d %d", s.Span(), s.Len(), span, 3*chunkCells)
	}
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
		if x.Len() != len(model) {
			t.Fatalf("len %d, want %d", x.Len(), len(model))
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
