package ids

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/keystead/keystead/internal/failure"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is what a Source takes its epochs of, in a bubble.
type world struct {
	*Source
	began  time.Time
	epoch  atomic.Uint64
	claims atomic.Int64
	delay  atomic.Int64 // of an answer, ns
	fails  atomic.Pointer[error]
}

func inWorld(t *testing.T, f func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{began: time.Now()}
		w.epoch.Store(100)
		w.Source = New(Config{Now: func() int64 { return int64(time.Since(w.began)) }, Claim: w.claim})
		defer w.Close()
		f(t, w)
	})
}

func (w *world) claim(ctx context.Context) (uint64, error) {
	w.claims.Add(1)
	select {
	case <-time.After(time.Duration(w.delay.Load())):
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	if err := w.fails.Load(); err != nil {
		return 0, *err
	}
	return w.epoch.Add(2), nil
}

func (w *world) must(t *testing.T, n int) uint64 {
	t.Helper()
	first, err := w.Next(t.Context(), n)
	if err != nil {
		t.Fatal(err)
	}
	return first
}

func reason(err error) failure.Reason {
	var e *failure.Error
	if errors.As(err, &e) {
		return e.Reason
	}
	return 0
}

// TestOnlyTheFirstWaits: later blocks are there before they are needed.
func TestOnlyTheFirstWaits(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.delay.Store(int64(300 * time.Millisecond))
		slow := 0
		last := uint64(0)
		for range 400 {
			began := time.Now()
			first := w.must(t, 10)
			if time.Since(began) > 0 {
				slow++
			}
			if first <= last {
				t.Fatalf("%x after %x", first, last)
			}
			last = first
			time.Sleep(250 * time.Millisecond)
		}
		if slow != 1 {
			t.Errorf("%d calls waited", slow)
		}
		if takes := w.claims.Load(); takes < 9 || takes > 11 {
			t.Errorf("%d blocks in 100 s", takes)
		}
	})
}

// TestCutOff: without new blocks a process goes on until the old one is too old to
// keep the order, and then it says so; when it can it goes on again.
func TestCutOff(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		first := w.must(t, 1)
		why := error(&failure.Error{Reason: failure.Unavailable, Message: "cut off"})
		w.fails.Store(&why)
		time.Sleep(Order - time.Millisecond)
		if again := w.must(t, 1); again != first+1 {
			t.Errorf("%x after %x", again, first)
		}
		time.Sleep(time.Millisecond)
		if id, err := w.Next(t.Context(), 1); !errors.Is(err, why) {
			t.Errorf("%x, %v", id, err)
		}
		w.fails.Store(nil)
		if id := w.must(t, 1); id>>SeqBits <= first>>SeqBits {
			t.Errorf("%x after %x", id, first)
		}
	})
}

func TestManyAtOnce(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.delay.Store(int64(time.Millisecond))
		var mu sync.Mutex
		seen := map[uint64]bool{}
		var wg sync.WaitGroup
		for range 64 {
			wg.Go(func() {
				for range 200 {
					first, err := w.Next(t.Context(), 7)
					mu.Lock()
					if err != nil || seen[first] {
						t.Errorf("%x, %v", first, err)
					}
					for i := range uint64(7) {
						seen[first+i] = true
					}
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		if len(seen) != 64*200*7 || w.claims.Load() != 1 {
			t.Errorf("%d ids of %d blocks", len(seen), w.claims.Load())
		}
	})
}

// TestTooFast: one that uses a block up within the interval is told when to come back.
func TestTooFast(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		given := 0
		for {
			_, err := w.Next(t.Context(), MaxCount)
			if err != nil {
				var e *failure.Error
				if !errors.As(err, &e) || e.Reason != failure.Unavailable || e.RetryAfter != Interval || e.Hint == "" {
					t.Errorf("%+v", err)
				}
				break
			}
			given += MaxCount
		}
		if given != blockIDs/MaxCount*MaxCount || w.claims.Load() != 1 {
			t.Errorf("%d ids of %d blocks", given, w.claims.Load())
		}
		time.Sleep(Interval)
		w.must(t, 1)
	})
}

func TestCallersThatLeave(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.delay.Store(int64(time.Second))
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if _, err := w.Next(ctx, 1); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
		if first := w.must(t, 1); first != 102<<SeqBits || w.claims.Load() != 1 { // the block came for others
			t.Errorf("%x of %d blocks", first, w.claims.Load())
		}
		for _, n := range []int{0, -1, MaxCount + 1} {
			if _, err := w.Next(t.Context(), n); reason(err) != failure.Invalid {
				t.Errorf("%d ids: %v", n, err)
			}
		}
	})
}

// TestClose ends the calls that wait, and what is under way.
func TestClose(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.delay.Store(int64(time.Hour))
		done := make(chan error, 1)
		go func() { _, err := w.Next(t.Context(), 1); done <- err }()
		synctest.Wait()
		w.Close()
		if err := <-done; reason(err) != failure.Unavailable {
			t.Errorf("%v", err)
		}
		if _, err := w.Next(t.Context(), 1); reason(err) != failure.Unavailable {
			t.Errorf("%v", err)
		}
	})
}

// ready is a Source that has its block.
func ready(t testing.TB) *Source {
	epoch := uint64(7)
	s := New(Config{Now: func() int64 { return 0 }, Claim: func(context.Context) (uint64, error) { epoch++; return epoch, nil }})
	t.Cleanup(s.Close)
	if _, err := s.Next(context.Background(), 1); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestNoAllocation(t *testing.T) {
	s, ctx := ready(t), context.Background()
	if n := testing.AllocsPerRun(1000, func() { _, _ = s.Next(ctx, 1) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkNext(b *testing.B) {
	s, ctx := ready(b), context.Background()
	b.ReportAllocs()
	for b.Loop() {
		if s.blocks.current.used >= early {
			s.blocks.current.used = 0
		}
		if _, err := s.Next(ctx, 1); err != nil {
			b.Fatal(err)
		}
	}
}
