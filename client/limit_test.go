package client

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/keystead/keystead/owner"
)

func TestSlidingAndRefund(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		l := w.client(direct, "n1").Limit("api", PerMinute(3).Sliding())
		must(l.CheckN(soon(t), "k", 2))(t)
		time.Sleep(40 * time.Second)
		synctest.Wait()
		must(l.Check(soon(t), "k"))(t)
		if d := must(l.Check(soon(t), "k"))(t); d.Allowed || d.RetryAfter != 20*time.Second || d.ResetAfter != time.Minute {
			t.Errorf("over the limit: %+v", d)
		}
		if d := must(l.Refund(soon(t), "k", 2))(t); !d.Allowed || d.Remaining != 2 || d.ResetAfter != time.Minute {
			t.Errorf("a refund: %+v", d)
		}
		if _, err := l.Refund(soon(t), "k", 0); !errors.Is(err, ErrInvalid) {
			t.Errorf("a refund of nothing: %v", err)
		}
		if d := must(l.PeekN(soon(t), "k", 2))(t); !d.Allowed || d.Remaining != 2 {
			t.Errorf("a peek for two: %+v", d)
		}
		if d := must(l.PeekN(soon(t), "k", 3))(t); d.Allowed || d.RetryAfter == 0 {
			t.Errorf("a peek for three: %+v", d)
		}
		if _, err := l.PeekN(soon(t), "k", 0); !errors.Is(err, ErrInvalid) {
			t.Errorf("a peek for nothing: %v", err)
		}
		c := w.client(direct, "n1")
		api := c.Limit("api", PerMinute(3).Sliding())
		rs := must(c.BatchCheck(soon(t), []Check{
			{Limit: api, Key: "k", Refund: 9},
			{Limit: api, Key: "k", Refund: 1, Cost: 1},
			{Limit: api, Key: "k", Cost: 3},
		}))(t)
		if rs[0].Err != nil || rs[0].Remaining != 3 || !errors.Is(rs[1].Err, ErrInvalid) || !rs[2].Allowed {
			t.Errorf("in a batch: %+v", rs)
		}
	})
}

// The owner gives tokens back and dies before it answers. Its standby, which has
// all of it, takes over: the retry finds the first result.
func TestFailoverRefundsOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1", "n2"}, nil)
		a := w.nodes["n1"]
		b := w.house("n2", a.store)
		w.nodes["n2"].kill()
		w.nodes["n2"] = b
		l := w.client(direct, "n2").Limit("api", Per(9, time.Hour).Sliding())
		key := w.keyOf("n1")
		must(l.CheckN(soon(t), key, 9))(t)
		var once sync.Once
		a.on(func(r *owner.Record) {
			if string(r.Key) == key {
				once.Do(a.cutAndDie)
			}
		})
		time.AfterFunc(3*time.Second, func() { w.remove("n1") })
		if d := must(l.Refund(soon(t), key, 4))(t); !d.Allowed || d.Remaining != 4 || !d.Replayed {
			t.Errorf("%+v", d)
		}
		if d := must(l.Peek(soon(t), key))(t); d.Remaining != 4 {
			t.Errorf("%+v", d)
		}
	})
}
