package client

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/keystead/keystead/owner"
)

// TestTagOfAHold: who was never told of a hold ends it by its tag, once; a handle ends one of the tag, too, and not what
// another request has made under the same name since.
func TestTagOfAHold(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		w.agree()
		c, other := w.client(Config{}, "n1"), w.client(Config{}, "n1")
		q := Admit{Key: "k", Hold: 30 * time.Second, Tag: "req-1", Demands: []Demand{Slots("", 1, 3), c.Counter("n").Demand(5, 100)}}
		first, err := c.Admit(soon(t), q)
		if err != nil || first.Hold() == "" {
			t.Fatalf("%+v %v", first, err)
		}
		second := must(c.Admit(soon(t), q))(t)
		if second.Hold() == first.Hold() {
			t.Error("both are one hold")
		}
		if s, err := other.Admission("").SettleTag(soon(t), "k", "req-1", []Cost{{Name: "n", Cost: 2}}); err != nil || s.Late || len(s.Costs) != 2 {
			t.Errorf("%+v %v", s, err)
		}
		third := must(c.Admit(soon(t), Admit{Key: "k", Hold: time.Minute, Tag: "req-1", Demands: q.Demands}))(t)
		if third.Hold() != first.Hold() { // its number is free
			t.Errorf("%s, not %s", third.Hold(), first.Hold())
		}
		if err := first.Release(soon(t)); err != nil { // ends the second one, which ends sooner than the third
			t.Error(err)
		}
		if left, n, err := c.Admission("").Holds(soon(t), "k", ""); err != nil || n != 1 || left[0].Hold != third.Hold() {
			t.Errorf("%+v %v", left, err)
		}
		if _, err := other.Admission("").ReleaseTag(soon(t), "k", "req-1"); err != nil {
			t.Error(err)
		}
		if _, err := other.Admission("").ReleaseTag(soon(t), "k", "req-1"); !errors.Is(err, ErrHoldUnknown) {
			t.Error(err)
		}
		if v := must(c.Counter("n").Get(soon(t), "k"))(t); v.Value != 2 {
			t.Errorf("%d is charged", v.Value)
		}
		for name, q := range map[string]Admit{
			"no hold":         {Key: "k", Tag: "t", Demands: q.Demands[1:]},
			"kept":            {Key: "k", Tag: "t", Hold: time.Minute, Keep: true, Demands: q.Demands},
			"idempotency key": {Key: "k", Tag: "t", Hold: time.Minute, Demands: q.Demands, Options: []CallOption{IdempotencyKey("i")}},
			"several keys":    {Key: "k", Tag: "t", Hold: time.Minute, Demands: []Demand{Slots("", 1, 3), Slots("", 1, 3).Under("l")}},
		} {
			if _, err := c.Admit(soon(t), q); !errors.Is(err, ErrInvalid) {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

// TestLostTagEndsNobodys: when the answer to an Admit with a tag is lost, no hold of the tag is released in the
// background: it could be that of another request.
func TestLostTagEndsNobodys(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		w.agree()
		c, n1 := w.client(Config{}, "n1"), w.nodes["n1"]
		ctx, cancel := context.WithCancel(context.Background())
		q := Admit{Key: "k", Hold: time.Minute, Tag: "t", Demands: []Demand{Slots("", 1, 9)}}
		must(c.Admit(soon(t), q))(t)
		n1.on(func(*owner.Record) {
			n1.on(func(*owner.Record) {})
			cancel()
			n1.cut()
		})
		if _, err := c.Admit(ctx, q); !errors.Is(err, ErrOutcomeUnknown) {
			t.Fatal(err)
		}
		<-time.After(time.Second)
		if v := must(c.Counter("slots").Get(soon(t), "k"))(t); v.Value != 2 {
			t.Errorf("%d slots are held", v.Value)
		}
		<-time.After(2 * time.Minute)
		if v := must(c.Counter("slots").Get(soon(t), "k"))(t); v.Value != 0 {
			t.Errorf("%d slots are held after their time", v.Value)
		}
	})
}
