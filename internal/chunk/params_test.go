package chunk

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/keystead/keystead/owner/limit"
)

// held returns the chunks of the node, and what is in them.
func (k *Cache) held() (chunks int, tokens uint64) {
	for i := range k.shards {
		k.shards[i].mu.Lock()
		for _, e := range k.shards[i].cells {
			chunks, tokens = chunks+1, tokens+e.left
		}
		k.shards[i].mu.Unlock()
	}
	return chunks, tokens
}

// TestOneChunkForAllParameters: a caller that states other parameters than the one before
// finds no chunk, and the node holds no more of a bucket than it may.
func TestOneChunkForAllParameters(t *testing.T) {
	inBank(t, time.Millisecond, func(t *testing.T, k *bank) {
		most := Cap(bucket.Burst, 2)
		rates := func(i int) Bucket {
			b := bucket
			b.Limit += uint64(i % 16)
			return b
		}
		for range 200 { // a chunk is some 25 then
			if a, err := k.spend(1); err != nil || !a.Allowed {
				t.Fatalf("%+v, %v", a, err)
			}
			time.Sleep(5 * time.Millisecond)
		}
		for i := range 64 {
			calls := len(k.asked)
			for n := range 2 {
				if a, err := k.Spend(t.Context(), rates(i), 1, most); err != nil || !a.Allowed {
					t.Fatalf("%+v, %v", a, err)
				}
				if asked := len(k.asked) - calls; i > 0 && asked != 1 {
					t.Fatalf("the owner was asked %d times for the %dth check by the %dth rate", asked, n+1, i)
				}
			}
			if chunks, tokens := k.held(); chunks != 1 || tokens == 0 || tokens > most {
				t.Fatalf("%d chunks of one bucket, with %d tokens of %d", chunks, tokens, most)
			}
		}
	})
}

// TestMixedLine: callers that state different parameters wait in one line, and each is
// decided by its own.
func TestMixedLine(t *testing.T) {
	inBank(t, 5*time.Millisecond, func(t *testing.T, k *bank) {
		small := bucket
		small.Limit, small.Burst = 1, 2000 // of which 500 are kept back
		k.state[address{bucket.Key, bucket.Name}] = limit.State{At: k.now(), Spent: 1900, Limit: bucket.Limit, Period: bucket.Period}
		var mu sync.Mutex
		var order []int
		denied := 0
		var wg sync.WaitGroup
		for i := range 40 {
			wg.Go(func() {
				b, cost := bucket, uint64(1)
				if i%2 == 1 {
					b, cost = small, 100 // more than is left of so few
				}
				a, err := k.Spend(t.Context(), b, cost, 125)
				mu.Lock()
				defer mu.Unlock()
				if err != nil || a.Allowed != (i%2 == 0) {
					t.Errorf("%d: %+v, %v", i, a, err)
				}
				if order = append(order, i); !a.Allowed {
					if denied++; a.RetryAfter < int64(50*time.Second) {
						t.Errorf("%d may try again in %s", i, time.Duration(a.RetryAfter))
					}
				}
			})
			synctest.Wait()
		}
		wg.Wait()
		if !slices.IsSorted(order) || len(order) != 40 || denied != 20 || k.atOnce != 1 {
			t.Errorf("%v, %d denied, %d calls at once", order, denied, k.atOnce)
		}
	})
}

// TestRetryAfter: callers are told how long it takes, though the owner is asked again
// before.
func TestRetryAfter(t *testing.T) {
	inBank(t, time.Millisecond, func(t *testing.T, k *bank) {
		b := Bucket{Key: "k", Name: "n", Limit: 64, Period: int64(time.Hour), Burst: 64}
		most := Cap(b.Burst, 2)
		spend := func(cost uint64) Answer {
			a, err := k.Spend(t.Context(), b, cost, most)
			if err != nil {
				t.Fatal(err)
			}
			return a
		}
		token := time.Hour / 64
		first := spend(1)
		for first.Allowed {
			first = spend(1)
		}
		if d := time.Duration(first.RetryAfter); d < token-time.Second || d > token {
			t.Errorf("denied for %s, and a token takes %s", d, token)
		}
		calls := len(k.asked)
		if d := time.Duration(spend(3).RetryAfter); d < 3*token-time.Second || d > 3*token || len(k.asked) != calls {
			t.Errorf("three are denied for %s; the owner was asked %d times", d, len(k.asked)-calls)
		}
		time.Sleep(2 * Lease)
		if a := spend(1); a.Allowed || time.Duration(a.RetryAfter) > token-2*Lease || len(k.asked) != calls+1 {
			t.Errorf("later: %+v; the owner was asked %d times", a, len(k.asked)-calls)
		}
		time.Sleep(time.Duration(spend(1).RetryAfter))
		if a := spend(1); !a.Allowed {
			t.Errorf("when it said: %+v", a)
		}
		// Those that waited while the owner was asked for others, and those that come then.
		b.Key = "line"
		k.state[address{b.Key, b.Name}] = limit.State{At: k.now(), Spent: 46, Limit: b.Limit, Period: b.Period}
		var mu sync.Mutex
		var wg sync.WaitGroup
		denied := 0
		for range 6 {
			wg.Go(func() {
				if a := spend(1); !a.Allowed {
					mu.Lock()
					denied++
					mu.Unlock()
					if d := time.Duration(a.RetryAfter); d < token-time.Second || d > token+1 { // rounded up
						t.Errorf("in line: %+v", a)
					}
				}
			})
		}
		wg.Wait()
		if a := spend(1); a.Allowed || time.Duration(a.RetryAfter) < token-time.Second || denied != 4 {
			t.Errorf("after %d were denied in line: %+v", denied, a)
		}
	})
}
