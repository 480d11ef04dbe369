package chunk

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestFaultIsItsCallers: an error of the owner about the parameters that one states is for
// those that state the same; the others that wait are asked for. Any other error is for all.
func TestFaultIsItsCallers(t *testing.T) {
	why := errors.New("the owner does not like it")
	for own, want := range map[error]error{&Fault{Err: why}: nil, why: why} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			k := New(Config{
				Now: func() int64 { return int64(time.Since(began)) },
				Charge: func(_ context.Context, b *Bucket, _ ID, tokens uint64) (bool, Report, error) {
					time.Sleep(time.Millisecond)
					if b.Limit == 13 {
						return false, Report{}, own
					}
					return true, Report{Remaining: 1000}, nil
				},
			})
			defer k.Close()
			spend := func(limit uint64) chan error {
				done := make(chan error, 1)
				go func() {
					_, err := k.Spend(t.Context(), Bucket{Key: "k", Name: "limit", Limit: limit, Period: int64(time.Second), Burst: 1000}, 1, 100)
					done <- err
				}()
				synctest.Wait()
				return done
			}
			first, beside, same := spend(13), spend(10), spend(13)
			if err := <-first; err != why {
				t.Errorf("the first: %v", err)
			}
			if err := <-beside; err != want {
				t.Errorf("%v: who states something else: %v", own, err)
			}
			if err := <-same; err != why {
				t.Errorf("one that states the same: %v", err)
			}
		})
	}
}
