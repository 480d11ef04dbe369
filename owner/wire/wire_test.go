package wire

import (
	"bytes"
	"math"
	"testing"
)

func TestThereAndBack(t *testing.T) {
	for _, size := range []int{0, 1, 127, 128, 16383, 16384, 1 << 20} {
		text := bytes.Repeat([]byte{7}, size)
		w := Writer{B: []byte("before"), Now: 1000}
		w.Uint(math.MaxUint64)
		w.Int(math.MinInt64)
		w.Byte(9)
		w.Fixed32(1 << 31)
		w.Fixed64(1 << 63)
		w.Moment(-5)
		w.Moment(2000) // after now: counts as now
		part := w.Begin()
		w.Bytes(text)
		inner := w.Begin()
		w.B = append(w.B, text...)
		w.End(inner)
		w.End(part)
		w.Text("end")
		r := Reader{B: w.B[len("before"):], Now: 3000}
		if r.Uint(math.MaxUint64) != math.MaxUint64 || r.Int() != math.MinInt64 || r.Byte() != 9 || r.Fixed32() != 1<<31 || r.Fixed64() != 1<<63 {
			t.Fatalf("%d: a number is another one", size)
		}
		if at := r.Moment(); at != 1995 {
			t.Errorf("%d: 1005 ns ago is %d", size, at)
		}
		if at := r.Moment(); at != 3000 {
			t.Errorf("%d: what was later is %d", size, at)
		}
		p := Reader{B: r.Part()}
		if got := p.Copied(size); !bytes.Equal(got, text) || !bytes.Equal(p.Part(), text) || !p.Ends() {
			t.Errorf("%d: the part is another one", size)
		}
		if string(r.Bytes(3)) != "end" || !r.Ends() {
			t.Errorf("%d: the end is another one", size)
		}
	}
}

// What is cut short or out of range is bad, and so is all that follows.
func TestBad(t *testing.T) {
	w := Writer{}
	w.Uint(300)
	w.Fixed64(1)
	part := w.Begin()
	w.Text("text")
	w.End(part)
	read := func(b []byte) *Reader {
		r := &Reader{B: b}
		r.Uint(300)
		r.Fixed64()
		p := Reader{B: r.Part()}
		p.Bytes(4)
		if !p.Ends() {
			r.Fail()
		}
		return r
	}
	if r := read(w.B); !r.Ends() {
		t.Fatal("the whole is bad")
	}
	for n := range w.B {
		if r := read(w.B[:n]); !r.Bad || r.Byte() != 0 || r.Int() != 0 || r.Count(1) != 0 || r.Ends() {
			t.Errorf("%d of %d bytes are not bad", n, len(w.B))
		}
	}
	for name, bad := range map[string]func(r *Reader){
		"above most":      func(r *Reader) { r.Uint(299) },
		"longer than all": func(r *Reader) { r.Bytes(1 << 20) },
		"too many":        func(r *Reader) { r.Count(1) },
		"no number":       func(r *Reader) { r.B = bytes.Repeat([]byte{0xff}, 11); r.Int() },
	} {
		r := &Reader{B: bytes.Clone(w.B)}
		if bad(r); !r.Bad || len(r.B) != 0 {
			t.Errorf("%s: not bad", name)
		}
	}
}
