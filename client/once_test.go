package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
)

// TestDoOnce: of many who do the same work, one does it, and all get its result; so does one that
// comes later. Other work under the key is refused.
func TestDoOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1", "n2"}, nil)
		w.agree()
		c := w.client(Config{}, "n1")
		orders := c.Once("orders")
		var worked atomic.Int32
		work := func(ctx context.Context, token uint64) ([]byte, error) {
			worked.Add(1)
			time.Sleep(time.Minute) // for longer than the lease
			if ctx.Err() != nil || token == 0 {
				t.Error(ctx.Err(), token)
			}
			return []byte("receipt"), nil
		}
		const n = 10
		heard := make(chan string, n)
		for range n {
			go func() {
				r, err := orders.Do(context.Background(), "order-7", "body", work)
				heard <- fmt.Sprint(string(r), err)
			}()
		}
		for range n {
			if got := <-heard; got != "receipt<nil>" {
				t.Error(got)
			}
		}
		if r, err := orders.Do(soon(t), "order-7", "body", work); string(r) != "receipt" || err != nil || worked.Load() != 1 {
			t.Errorf("%s %v; the work was done %d times", r, err, worked.Load())
		}
		if _, err := orders.Do(soon(t), "order-7", "other", work); !errors.Is(err, ErrOtherFingerprint) {
			t.Errorf("other work: %v", err)
		}
		s := must(orders.Get(soon(t), "order-7"))(t)
		if !s.Done || !s.Begun || s.Fingerprint != "body" || string(s.Result) != "receipt" || s.Token == 0 || s.TTL <= 0 || s.Owner == "" {
			t.Errorf("%+v", s)
		}
		if was := must(orders.Forget(soon(t), "order-7", false))(t); !was {
			t.Error("nothing was forgotten")
		}
		if s := must(orders.Get(soon(t), "order-7"))(t); s.Begun || s.Done {
			t.Errorf("%+v", s)
		}
	})
}

// TestWorkThatFails: an error abandons the turn, a panic leaves it to its lease, and the end of the
// caller's context is told to the work.
func TestWorkThatFails(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		w.agree()
		orders := w.client(Config{}, "n1").Once("")
		broken := errors.New("the bank is closed")
		if _, err := orders.Do(soon(t), "k", "", func(context.Context, uint64) ([]byte, error) { return nil, broken }); err != broken {
			t.Error(err)
		}
		func() {
			defer func() { _ = recover() }()
			_, _ = orders.Do(soon(t), "k", "", func(context.Context, uint64) ([]byte, error) { panic("a fault") })
		}()
		if s := must(orders.Get(soon(t), "k"))(t); !s.Begun || s.Done {
			t.Errorf("after a panic: %+v", s)
		}
		_, err := orders.Begin(soon(t), "k", "", Wait(0))
		var e *Error
		if !errors.Is(err, ErrOnceBusy) || !errors.As(err, &e) || e.Holder == nil || e.Op != "once" {
			t.Errorf("%v", err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		b := must(orders.Begin(ctx, "k", ""))(t) // waits for the end of the lease
		if b.Turn == nil || b.Turn.Attempt() != 2 || b.Token != b.Turn.Token() || !b.Turn.Held() || b.Turn.Meta().Owner == "" {
			t.Fatalf("%+v", b)
		}
		if err := b.Turn.Complete(soon(t), make([]byte, MaxResult+1)); !errors.Is(err, ErrInvalid) {
			t.Errorf("a long result: %v", err)
		}
		for range 2 {
			if err := b.Turn.Complete(soon(t), []byte("r")); err != nil {
				t.Error(err)
			}
		}
		if b.Turn.Context().Err() == nil || b.Turn.Held() {
			t.Error("held after Complete")
		}
		if d := must(orders.Begin(soon(t), "k", ""))(t); d.Turn != nil || string(d.Result) != "r" || d.Token != b.Token {
			t.Errorf("%+v", d)
		}
		ctx, leave := context.WithCancel(context.Background())
		_, err = orders.Do(ctx, "left", "", func(working context.Context, _ uint64) ([]byte, error) {
			leave()
			<-working.Done()
			return nil, working.Err()
		})
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if s := must(orders.Get(soon(t), "left"))(t); s.Begun {
			t.Errorf("%+v", s)
		}
	})
}

func TestOnceOptions(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		w.agree()
		c := w.client(Config{}, "n1")
		begin := func(print string, opts ...LockOption) error {
			_, err := c.Once("").Begin(soon(t), "k", print, opts...)
			return err
		}
		for name, err := range map[string]error{
			"a key":              begin("", IdempotencyKey("k")),
			"metadata":           begin("", Metadata([]byte("m"))),
			"a short retention":  begin("", Keep(time.Millisecond)),
			"a long retention":   begin("", Keep(8*24*time.Hour)),
			"a long fingerprint": begin(string(bytes.Repeat([]byte("f"), 65))),
			"a lock's retention": func() error { _, err := c.Lock("").Acquire(soon(t), "l", Keep(time.Hour)); return err }(),
		} {
			if !errors.Is(err, ErrInvalid) {
				t.Errorf("%s: %v", name, err)
			}
		}
		b := must(c.Once("").Begin(soon(t), "k", "", Keep(time.Hour), HeldBy("me"), TTL(time.Second)))(t)
		if err := b.Turn.Complete(soon(t), nil); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		if d := must(c.Once("").Begin(soon(t), "k", "other"))(t); d.Turn == nil {
			t.Errorf("after its retention: %+v", d)
		}
	})
}

// TestTurnIsLost: a holder that was cut off sees its context end before its lease does, and its late
// Complete changes nothing.
func TestTurnIsLost(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		w.agree()
		a, b := w.client(Config{}, "n1").Once(""), w.client(Config{}, "n1").Once("")
		first := must(a.Begin(soon(t), "k", "", Keep(time.Hour)))(t)
		first.Turn.l.c.Close() // it stands still
		synctest.Wait()
		if !errors.Is(context.Cause(first.Turn.Context()), ErrClosed) {
			t.Errorf("%v", context.Cause(first.Turn.Context()))
		}
		second := must(b.Begin(context.Background(), "k", ""))(t)
		if second.Token <= first.Token || second.Turn.Attempt() != 2 {
			t.Errorf("%+v", second)
		}
		late := &Turn{l: second.Turn.l.c.newLock(t.Context(), "k", &lockOptions{turn: &turn{}, ttl: time.Second}, &lockpb.AcquireResponse{Token: first.Token}, 0), of: &turn{}}
		if err := late.Complete(soon(t), []byte("late")); !errors.Is(err, ErrLockLost) {
			t.Errorf("a late Complete: %v", err)
		}
		if err := second.Turn.Complete(soon(t), []byte("good")); err != nil {
			t.Error(err)
		}
		if d := must(b.Begin(soon(t), "k", ""))(t); string(d.Result) != "good" {
			t.Errorf("%+v", d)
		}
	})
}

// TestLeaseOfOneThatWaited: a turn that comes after a long wait is counted from then.
func TestLeaseOfOneThatWaited(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		w.agree()
		c := w.client(Config{}, "n1")
		first := must(c.Once("").Begin(soon(t), "k", ""))(t)
		go func() {
			time.Sleep(10 * time.Minute)
			if err := first.Turn.Abandon(context.Background()); err != nil {
				t.Error(err)
			}
		}()
		began := time.Now()
		second := must(c.Once("").Begin(context.Background(), "k", "", TTL(time.Second)))(t)
		if waited := time.Since(began); waited < 10*time.Minute || waited > 10*time.Minute+time.Second || !second.Turn.Held() || second.Turn.l.rest() > time.Second {
			t.Errorf("after %s: %+v, of which %s is left", waited, second, second.Turn.l.rest())
		}
		time.Sleep(time.Minute)
		if !second.Turn.Held() {
			t.Error("it was not renewed")
		}
	})
}
