package chunk

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/limit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bank is an owner, in a bubble, that a Cache charges.
type bank struct {
	*Cache
	t     *testing.T
	began time.Time
	delay time.Duration // of a call

	mu     sync.Mutex // guards what follows
	state  map[address]limit.State
	asked  []uint64 // tokens
	calls  int      // under way
	atOnce int      // … at most
	ids    map[ID]bool
	fails  error
}

func inBank(t *testing.T, delay time.Duration, f func(t *testing.T, k *bank)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		k := &bank{t: t, began: time.Now(), delay: delay, state: map[address]limit.State{}, ids: map[ID]bool{}}
		k.Cache = New(Config{Charge: k.charge, Now: k.now})
		defer k.Close()
		f(t, k)
	})
}

func (k *bank) now() int64 { return int64(time.Since(k.began)) }

func (k *bank) charge(ctx context.Context, b *Bucket, id ID, tokens uint64) (bool, Report, error) {
	k.mu.Lock()
	k.calls++
	k.atOnce = max(k.atOnce, k.calls)
	if k.ids[id] {
		k.t.Errorf("the id %v twice", id)
	}
	k.ids[id] = true
	k.mu.Unlock()
	var left error
	select {
	case <-time.After(k.delay):
	case <-ctx.Done():
		left = ctx.Err()
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.calls--
	k.asked = append(k.asked, tokens)
	if left != nil || k.fails != nil {
		return false, Report{}, errors.Join(left, k.fails)
	}
	at := address{b.Key, b.Name}
	next, res, _ := limit.Apply(k.state[at], limit.Op{Params: limit.Params{Limit: b.Limit, Period: b.Period, Burst: b.Burst - Slack(b.Burst)}, Cost: tokens}, k.now())
	k.state[at] = next
	return res.Allowed, Report{Remaining: res.Remaining, RetryAfter: res.RetryAfter, ResetAfter: res.ResetAfter, Epoch: 9, Owner: "n1"}, nil
}

var bucket = Bucket{Key: "k", Name: "n", Limit: 1000, Period: 1e9, Burst: 8000} // 2,000 are kept back, a node of two holds 500

func (k *bank) spend(cost uint64) (Answer, error) {
	return k.Spend(k.t.Context(), bucket, cost, Cap(bucket.Burst, 2))
}

// TestChunksFollowUse: one that spends much asks for more at once, and so seldom.
func TestChunksFollowUse(t *testing.T) {
	inBank(t, time.Millisecond, func(t *testing.T, k *bank) {
		allowed := 0
		for range 4000 { // 500 a second
			a, err := k.spend(1)
			if err != nil || a.Owner != "n1" || a.Epoch != 9 {
				t.Fatalf("%+v, %v", a, err)
			}
			if a.Allowed {
				allowed++
			}
			time.Sleep(2 * time.Millisecond)
		}
		if allowed != 4000 || len(k.asked) > 180 || k.atOnce != 1 {
			t.Errorf("%d allowed in %d calls, %d at once: %v", allowed, len(k.asked), k.atOnce, k.asked)
		}
		if last := k.asked[len(k.asked)-1]; last < 50 || last > 70 {
			t.Errorf("a chunk of %d for 500 a second", last)
		}
	})
}

// TestRefusalsAreRemembered until it can be otherwise.
func TestRefusalsAreRemembered(t *testing.T) {
	inBank(t, time.Millisecond, func(t *testing.T, k *bank) {
		for {
			a, err := k.spend(400)
			if err != nil {
				t.Fatal(err)
			}
			if !a.Allowed {
				break
			}
		}
		calls := len(k.asked)
		a, err := k.spend(400)
		if err != nil || a.Allowed || a.RetryAfter <= 0 || a.RetryAfter > 4e8 || len(k.asked) != calls {
			t.Errorf("%+v, %v after %d calls, then %d", a, err, calls, len(k.asked))
		}
		for range 100 {
			if b, err := k.spend(500); err != nil || b.Allowed || len(k.asked) != calls {
				t.Fatalf("%+v, %v", b, err)
			}
		}
		time.Sleep(time.Duration(a.RetryAfter))
		if b, err := k.spend(400); err != nil || !b.Allowed {
			t.Errorf("when it said: %+v, %v", b, err)
		}
	})
}

// TestLessIsTakenWhenThereIsLess: not to the last, but more than one by one.
func TestLessIsTakenWhenThereIsLess(t *testing.T) {
	inBank(t, time.Millisecond, func(t *testing.T, k *bank) {
		k.state[address{bucket.Key, bucket.Name}] = limit.State{At: k.now(), Spent: bucket.Burst - Slack(bucket.Burst) - 100, Limit: bucket.Limit, Period: bucket.Period}
		var allowed, denied int
		var mu sync.Mutex
		var wg sync.WaitGroup
		for range 300 {
			wg.Go(func() {
				a, err := k.spend(1)
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err != nil:
					t.Error(err)
				case a.Allowed:
					allowed++
				default:
					denied++
				}
			})
		}
		wg.Wait()
		if allowed < 100 || allowed > 110 || allowed+denied != 300 || len(k.asked) > 10 {
			t.Errorf("%d of 100 and what came back meanwhile, in %d calls: %v", allowed, len(k.asked), k.asked)
		}
	})
}

// TestHotKey: a key that is asked for far more than it has costs the owner little.
func TestHotKey(t *testing.T) {
	inBank(t, 200*time.Microsecond, func(t *testing.T, k *bank) {
		allowed, denied := 0, 0
		began := time.Now()
		for time.Since(began) < 2*time.Second {
			a, err := k.spend(1)
			if err != nil {
				t.Fatal(err)
			}
			if a.Allowed {
				allowed++
			} else {
				denied++
			}
			time.Sleep(20 * time.Microsecond) // 50,000 a second
		}
		if most := 6000 + 2*1000; allowed > most || allowed < most*9/10 || denied < 50_000 || len(k.asked) > 600 {
			t.Errorf("%d allowed and %d denied, in %d calls", allowed, denied, len(k.asked))
		}
		t.Logf("%d allowed and %d denied, in %d calls", allowed, denied, len(k.asked))
	})
}

// TestInLine: callers are served in the order in which they came, and those that
// leave hold nobody up.
func TestInLine(t *testing.T) {
	inBank(t, 100*time.Millisecond, func(t *testing.T, k *bank) {
		var mu sync.Mutex
		var order []int
		var wg sync.WaitGroup
		leaver, leave := context.WithCancel(t.Context())
		for i := range 10 {
			wg.Go(func() {
				ctx := t.Context()
				if i == 0 || i == 4 {
					ctx = leaver
				}
				a, err := k.Spend(ctx, bucket, uint64(100+i), 110) // one at a time
				mu.Lock()
				defer mu.Unlock()
				if ctx == leaver {
					if !errors.Is(err, context.Canceled) {
						t.Errorf("%d: %+v, %v", i, a, err)
					}
					return
				}
				if err != nil || !a.Allowed {
					t.Errorf("%d: %+v, %v", i, a, err)
				}
				order = append(order, i)
			})
			synctest.Wait()
		}
		leave()
		wg.Wait()
		if !slices.IsSorted(order) || len(order) != 8 || k.atOnce != 1 {
			t.Errorf("%v, %d calls at once", order, k.atOnce)
		}
	})
}

// TestOwnerThatFails: all that wait are told, and nobody waits longer than for a lease.
func TestOwnerThatFails(t *testing.T) {
	inBank(t, time.Hour, func(t *testing.T, k *bank) {
		began := time.Now()
		if a, err := k.spend(1); !errors.Is(err, errSlow) || time.Since(began) != Lease {
			t.Errorf("%+v, %v after %s", a, err, time.Since(began))
		}
		k.delay, k.fails = time.Millisecond, errors.New("broken")
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				if a, err := k.spend(1); !errors.Is(err, k.fails) {
					t.Errorf("%+v, %v", a, err)
				}
			})
		}
		wg.Wait()
		k.fails = nil
		if a, err := k.spend(1); err != nil || !a.Allowed {
			t.Errorf("%+v, %v", a, err)
		}
	})
}

func TestBounds(t *testing.T) {
	inBank(t, time.Millisecond, func(t *testing.T, k *bank) {
		full := 0
		for i := range MaxKeys + 5000 {
			b := bucket
			b.Key = fmt.Sprint(i)
			if _, err := k.Spend(t.Context(), b, 1, 100); errors.Is(err, ErrFull) {
				full++
			} else if err != nil {
				t.Fatal(err)
			}
		}
		if full != 0 { // time passes, and what is idle makes room
			t.Errorf("%d found no room", full)
		}
		k.delay = 0
		for i := range MaxKeys + 5000 {
			b := bucket
			b.Key = fmt.Sprint("at once", i)
			if _, err := k.Spend(t.Context(), b, 1, 100); errors.Is(err, ErrFull) {
				full++
			}
		}
		if full < 5000 {
			t.Errorf("%d found no room", full)
		}
		n := 0
		for i := range k.shards {
			n += len(k.shards[i].cells)
		}
		if n > MaxKeys {
			t.Errorf("%d buckets", n)
		}
	})
}

func TestCloseSendsAway(t *testing.T) {
	inBank(t, time.Hour, func(t *testing.T, k *bank) {
		done := make(chan error)
		go func() { _, err := k.spend(1); done <- err }()
		synctest.Wait()
		go k.Close()
		if err := <-done; !errors.Is(err, errClosed) {
			t.Errorf("%v", err)
		}
		synctest.Wait()
		if _, err := k.spend(1); !errors.Is(err, errClosed) {
			t.Errorf("%v", err)
		}
		if e := (*failure.Error)(nil); !errors.As(error(errClosed), &e) || e.RetryAfter == 0 {
			t.Error("it does not say when to try again")
		}
	})
}

// TestNoAllocation: a spent token costs no memory.
func TestNoAllocation(t *testing.T) {
	k := New(Config{
		Charge: func(context.Context, *Bucket, ID, uint64) (bool, Report, error) { return true, Report{}, nil },
		Now:    func() int64 { return 0 },
	})
	defer k.Close()
	b, ctx := Bucket{Key: "k", Limit: 1, Period: 1e9, Burst: math.MaxUint64}, context.Background()
	if _, err := k.Spend(ctx, b, 1, 1); err != nil {
		t.Fatal(err)
	}
	for i := range k.shards {
		k.shards[i].mu.Lock()
		if e := k.shards[i].cells[address{b.Key, b.Name}]; e != nil {
			e.left = 1 << 40
		}
		k.shards[i].mu.Unlock()
	}
	if n := testing.AllocsPerRun(1000, func() { _, _ = k.Spend(ctx, b, 1, 1) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestGivenBack: what is given back is there again, for as long as it would have been; and not for others, nor by
// other parameters.
func TestGivenBack(t *testing.T) {
	inBank(t, 0, func(t *testing.T, k *bank) {
		most := Cap(bucket.Burst, 2)
		take := func(cost uint64) Taken {
			t.Helper()
			a, x, err := k.Take(t.Context(), bucket, cost, most)
			if err != nil || !a.Allowed {
				t.Fatal(a, err)
			}
			return x
		}
		x := take(300)
		k.GiveBack(x)
		k.Keep(take(300))
		if len(k.asked) != 1 {
			t.Errorf("the owner was asked for %v, and the tokens were there", k.asked)
		}
		x = take(300)
		if _, _, err := k.Take(t.Context(), bucket, 300, most); !errors.Is(err, ErrFull) {
			t.Errorf("the node holds 600 of %d: %v", most, err)
		}
		time.Sleep(Lease / 2)
		y := take(100)
		time.Sleep(Lease / 2)
		k.GiveBack(x) // too late
		k.GiveBack(y)
		before := len(k.asked)
		k.Keep(take(100))
		if len(k.asked) != before {
			t.Errorf("the owner was asked for %v", k.asked)
		}
		x = take(200)
		other := bucket
		other.Limit *= 2
		if a, err := k.Spend(t.Context(), other, 1, most); err != nil || !a.Allowed {
			t.Fatal(a, err)
		}
		k.GiveBack(x)
		before = len(k.asked)
		if a, err := k.Spend(t.Context(), other, 150, most); err != nil || !a.Allowed || len(k.asked) != before+1 {
			t.Errorf("%v %v, asked for %v", a, err, k.asked)
		}
	})
}

// TestTakenByNobody: what a caller has waited for that left is not taken.
func TestTakenByNobody(t *testing.T) {
	inBank(t, 100*time.Millisecond, func(t *testing.T, k *bank) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		if _, _, err := k.Take(ctx, bucket, 100, Cap(bucket.Burst, 2)); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		time.Sleep(time.Second / 2)
		if a, err := k.spend(100); err != nil || !a.Allowed || len(k.asked) != 1 {
			t.Errorf("%v %v, asked for %v", a, err, k.asked)
		}
	})
}
