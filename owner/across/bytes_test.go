package across

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/keystead/keystead/owner/reqid"
)

// heapOf returns the bytes that stay of what make has made n times, each.
func heapOf(n int, make func(i int)) int64 {
	bytes := func() int64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := bytes()
	for i := range n {
		make(i)
	}
	return (bytes() - before) / int64(n)
}

// termsOf returns those of an admission of four keys, as they come out of a message: nothing of them is shared.
func termsOf(i int) Terms {
	t := Terms{Of: []uint8{0, 1, 2, 3}, Names: []uint32{1, 2, 3, 4}, Hold: int64(time.Minute), Print: uint32(i)}
	for _, level := range []string{"user", "team", "model", "org"} {
		t.Keys = append(t.Keys, fmt.Sprintf("%s:%010d", level, i))
	}
	return t
}

// TestBytesOfAHold: of four demands under four keys, at each participant and at the coordinator. What a participant counts
// towards its memory is no less than nine tenths of what it takes.
func TestBytesOfAHold(t *testing.T) {
	const n = 2_000 // MaxText allows no more
	s := NewState(Config{Window: int64(5 * time.Minute)})
	id := func(i int) ID { return ID{Client: reqid.Client{Hi: 1, Lo: 2}, Sequence: uint64(i) + 1} }
	each := heapOf(n, func(i int) {
		h := Hold{ID: id(i), Terms: termsOf(i), Own: make([]byte, 24), Epoch: 1}
		if v, _, _ := s.Judge(&h, 1); v != Fresh {
			t.Fatal(i, v)
		}
		s.Vote(&h, 1, nil)
	})
	t.Logf("%d bytes a hold at a participant", each)
	if each > 720 {
		t.Errorf("%d bytes a hold at a participant", each)
	}
	if counted := int64(s.Bytes() / n); counted*10 < each*9 {
		t.Errorf("%d bytes a hold are counted of %d", counted, each)
	}
	var all []*Coordinator
	each = heapOf(n, func(i int) { all = append(all, NewCoordinator(id(i), termsOf(i), 1, 0, 1)) })
	t.Logf("%d bytes an admission at its coordinator, until the owners know", each)
	if each > 960 {
		t.Errorf("%d bytes an admission at the coordinator", each)
	}
	runtime.KeepAlive(s)
	runtime.KeepAlive(all)
}
