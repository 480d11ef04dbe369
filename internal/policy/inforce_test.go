package policy

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/keystead/keystead/internal/failure"
)

func put(f *InForce, version uint64, text string) {
	f.Put(NewAgreed(version, "", []byte(text), nil))
}

// What is in force is never replaced by an earlier version, and a wait for a version ends with
// that one or a later one.
func TestInForce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f InForce
		if _, v, ok, err := f.Limit("a"); v != 0 || ok || err != nil {
			t.Errorf("%d %v %v", v, ok, err)
		}
		if a := f.Load(); a.Version != 0 || a.Len() != 0 {
			t.Errorf("%+v", a)
		}
		told := make(chan uint64, 1)
		go func() {
			a, err := f.Await(t.Context(), 3)
			if err != nil {
				t.Error(err)
			}
			told <- a.Version
		}()
		synctest.Wait()
		put(&f, 2, "policies: {a: {limit: 2/s}}")
		synctest.Wait()
		put(&f, 4, "policies: {a: {limit: 4/s}}")
		if v := <-told; v != 4 {
			t.Errorf("told of version %d", v)
		}
		put(&f, 3, "policies: {a: {limit: 3/s}}")
		if p, v, ok, err := f.Limit("a"); p.Limit != 4 || v != 4 || !ok || err != nil {
			t.Errorf("%+v %d %v %v", p, v, ok, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := f.Await(ctx, 5); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		// What cannot be read is not what was before it.
		put(&f, 5, "policies: {a: {limit: 5/s, until: tomorrow}}")
		if _, v, ok, err := f.Limit("a"); v != 5 || ok || failure.ReasonOf(err) != failure.Unavailable {
			t.Errorf("%d %v %v", v, ok, err)
		}
		if n := testing.AllocsPerRun(100, func() { _, _, _, _ = f.Limit("a") }); n != 0 {
			t.Errorf("%v allocations", n)
		}
	})
}
