package owner

import (
	"fmt"
	"testing"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/hold"
)

// TestHoldersAreCounted: holders count as memory, on semaphores that are there too; what would go
// beyond it is refused and changes nothing, and what ends makes room.
func TestHoldersAreCounted(t *testing.T) {
	const most = 4 << 20
	s := newStore(t, func(c *Config) { c.MaxBytes = most })
	op := hold.Acquire{Name: "a", Weight: 1, Capacity: 500, TTL: 60 * second, Metadata: make([]byte, hold.MaxMetadata)}
	at := func(i int) Ref { return Ref{Key: fmt.Sprint(i), Name: "n"} }
	var tokens []uint64
	var last Ref
	var err error
	for i := 0; err == nil && i < 500*20; i++ {
		var a GrantAnswer
		last = at(i % 20)
		if a, _, err = s.AcquirePermits(0, last, noID, op); err == nil {
			tokens = append(tokens, a.Token)
		}
	}
	if b := s.Stats().Bytes; reason(err) != failure.StoreFull || b > most+64<<10 { // the room of a list is doubled
		t.Fatalf("%d holders in %d bytes: %v", len(tokens), b, err)
	}
	bare := op
	bare.Metadata, bare.Name = nil, "b"
	var small uint64
	for { // and now with what fits still
		a, _, err := s.AcquirePermits(0, last, noID, bare)
		if err != nil {
			break
		}
		small = a.Token
	}
	if small != 0 {
		if _, err := s.UpdatePermits(0, last, noID, small, op.Metadata); reason(err) != failure.StoreFull {
			t.Errorf("more metadata: %v", err)
		}
		if _, err := s.UpdatePermits(0, last, noID, small, []byte{}); err != nil {
			t.Errorf("no more: %v", err)
		}
	}
	for i, token := range tokens[:40] {
		if r := must(s.ReleasePermits(0, at(i%20), noID, token)); !r.Released {
			t.Fatal("not released")
		}
	}
	if _, _, err := s.AcquirePermits(0, at(0), noID, op); err != nil {
		t.Errorf("when others have gone: %v", err)
	}
	before := s.Stats().Bytes
	for i := range 20 {
		must(s.InspectSemaphore(61*second, at(i), 1))
	}
	if b := s.Stats().Bytes; b > before/2 {
		t.Errorf("%d bytes of %d are left when all is over", b, before)
	}
}

// TestEndedHoldersGoBySweep: a semaphore that is kept for its capacity keeps no holder whose time is
// over, though nobody asks for it.
func TestEndedHoldersGoBySweep(t *testing.T) {
	records := 0
	s := newStore(t, func(c *Config) { c.Sink = sinkOf(func(*Record) { records++ }) })
	must(s.SetCapacity(0, pool, noID, 500))
	before := s.Stats()
	for i := range 500 {
		mustAcquire(s.AcquirePermits(0, pool, noID, hold.Acquire{Name: fmt.Sprint(i), Weight: 1, TTL: 10 * second, Delay: second, Metadata: make([]byte, hold.MaxMetadata)}))
	}
	records = 0
	sweepAll(s, 11*second)
	st := s.Stats()
	if st.Bytes > before.Bytes+64<<10 || st.Lapsed != 500 || records != 1 || st.Objects[KindSemaphore] != 1 {
		t.Errorf("%d bytes, %d before; %d lapsed in %d records", st.Bytes, before.Bytes, st.Lapsed, records)
	}
}

// TestLapsesAreCounted: all grants that end by their TTL count, with their object or without it, and
// none that was revoked.
func TestLapsesAreCounted(t *testing.T) {
	s := newStore(t, nil)
	var tokens []uint64
	for range 5 {
		a := mustAcquire(s.AcquirePermits(0, pool, noID, hold.Acquire{Name: "a", Weight: 1, Capacity: 5, TTL: 10 * second, Delay: second}))
		tokens = append(tokens, a.Token)
	}
	must(s.RevokePermits(9500*second/1000, pool, noID, tokens[0]))
	sweepAll(s, 12*second)
	if st := s.Stats(); st.Lapsed != 4 || st.Objects[KindSemaphore] != 0 {
		t.Errorf("%d lapsed, %d objects", st.Lapsed, st.Objects[KindSemaphore])
	}
}

// TestTextOfLocksIsCounted: room in cells that others have left is no room for text.
func TestTextOfLocksIsCounted(t *testing.T) {
	const most = 4 << 20
	s := newStore(t, func(c *Config) { c.MaxBytes = most })
	n := 0
	for ; ; n++ {
		ttl := 60 * second
		if n%8 != 0 {
			ttl = second
		}
		if _, _, err := s.Acquire(0, Ref{Key: fmt.Sprintf("%08d", n), Name: "n"}, noID, AcquireLock{Holder: "h", TTL: ttl}); err != nil {
			break
		}
	}
	sweepAll(s, 2*second)
	var err error
	again := 0
	for ; again < n && err == nil; again++ {
		_, _, err = s.Acquire(2*second, Ref{Key: fmt.Sprintf("x%07d", again), Name: "n"}, noID, AcquireLock{Holder: "h", TTL: second, Metadata: make([]byte, hold.MaxMetadata)})
	}
	if b := s.Stats().Bytes; reason(err) != failure.StoreFull || b > most+most/idReserve+64<<10 {
		t.Errorf("%d of %d locks, %d bytes: %v", again, n, b, err)
	}
	if _, _, err := s.Acquire(2*second, Ref{Key: "x9999999", Name: "n"}, noID, AcquireLock{Holder: "h", TTL: second}); err != nil && s.Stats().Bytes < most {
		t.Error(err)
	}
}
