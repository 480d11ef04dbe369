package client

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestOverdraw: what was used is spent whether or not it is there, and paid before anything else is allowed.
func TestOverdraw(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		c := w.client(direct, "n1")
		l := c.Limit("tokens", PerMinute(60), Anywhere())
		if d := must(l.Overdraw(soon(t), "k", 90))(t); !d.Allowed || d.Debt != 30 || d.Remaining != 0 || d.RetryAfter != 31*time.Second {
			t.Errorf("%+v", d)
		}
		if d := must(l.Peek(soon(t), "k"))(t); d.Allowed || d.Debt != 30 {
			t.Errorf("%+v", d)
		}
		if _, err := l.Overdraw(soon(t), "k", 0); !errors.Is(err, ErrInvalid) {
			t.Errorf("of nothing: %v", err)
		}
		if _, err := c.Limit("queue", PerMinute(60).Spaced()).Overdraw(soon(t), "k", 1); !errors.Is(err, ErrInvalid) {
			t.Errorf("of a queue: %v", err)
		}
		rs := must(c.BatchCheck(soon(t), []Check{{Limit: c.Limit("tokens", PerMinute(60)), Key: "k", Cost: 25, Overdraft: true}}))(t)
		if rs[0].Err != nil || !rs[0].Allowed || rs[0].Debt != 55 {
			t.Errorf("in a batch: %+v", rs)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if d := must(c.Limit("tokens", PerMinute(60)).Check(soon(t), "k"))(t); !d.Allowed || d.Debt != 0 {
			t.Errorf("when it is paid: %+v", d)
		}
	})
}
