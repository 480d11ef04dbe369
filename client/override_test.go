package client

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/keystead/keystead/owner"
)

func TestOverride(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1", "n2"}, nil)
		w.agree()
		synctest.Wait()
		c := w.client(direct, "n1")
		l, key := c.Limit("api", PerMinute(20)), w.keyOf("n2")
		if o := must(l.Override(soon(t), key))(t); o != nil {
			t.Errorf("%+v", o)
		}
		if existed := must(l.SetOverride(soon(t), key, PerMinute(100).WithBurst(300), time.Hour))(t); existed {
			t.Error("there was one")
		}
		if d := must(l.CheckN(soon(t), key, 50))(t); !d.Allowed || !d.Overridden || d.Capacity != 300 || d.Remaining != 250 {
			t.Errorf("%+v", d)
		}
		if o := must(l.Override(soon(t), key))(t); o == nil || o.Rate != PerMinute(100).WithBurst(300) || o.Left != time.Hour {
			t.Errorf("%+v", o)
		}
		k := must(c.Admin().InspectKey(soon(t), key))(t)
		if len(k.Objects) != 1 || k.Objects[0].Limit.Override == nil || k.Objects[0].Limit.Override.Rate.Limit != 100 {
			t.Errorf("%+v", k.Objects)
		}
		var listed []Object
		if _, err := c.Admin().ListObjects(soon(t), Filter{Overridden: true}, func(_ string, o Object) bool { listed = append(listed, o); return true }); err != nil || len(listed) != 1 || listed[0].Key != key {
			t.Errorf("%v, %v", listed, err)
		}
		if existed := must(l.ClearOverride(soon(t), key))(t); !existed {
			t.Error("there was none")
		}
		if d := must(l.Peek(soon(t), key))(t); d.Overridden || d.Capacity != 20 {
			t.Errorf("%+v", d)
		}
		for _, bad := range []func() (bool, error){
			func() (bool, error) { return l.SetOverride(soon(t), key, PerMinute(1).Sliding(), 0) },
			func() (bool, error) { return l.SetOverride(soon(t), key, Rate{}, 0) },
			func() (bool, error) { return l.SetOverride(soon(t), key, PerMinute(1), -1) },
			func() (bool, error) { return l.ClearOverride(soon(t), "") },
			func() (bool, error) { return Limit{}.ClearOverride(soon(t), key) },
		} {
			if _, err := bad(); !errors.Is(err, ErrInvalid) {
				t.Errorf("%v", err)
			}
		}
	})
}

// The owner is overridden and dies before it answers: its standby has the override, and the retry
// finds the first result.
func TestFailoverKeepsOverrides(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1", "n2"}, nil)
		w.agree()
		a := w.nodes["n1"]
		b := w.house("n2", a.store)
		w.nodes["n2"].kill()
		w.nodes["n2"] = b
		l := w.client(direct, "n2").Limit("api", PerMinute(20))
		key := w.keyOf("n1")
		must(l.SetOverride(soon(t), key, PerMinute(7), 0))(t)
		var once sync.Once
		a.on(func(r *owner.Record) {
			if string(r.Key) == key {
				once.Do(a.cutAndDie)
			}
		})
		time.AfterFunc(3*time.Second, func() { w.remove("n1") })
		if existed := must(l.SetOverride(soon(t), key, PerMinute(9), 0))(t); !existed {
			t.Error("there was none")
		}
		if d := must(l.Peek(soon(t), key))(t); d.Capacity != 9 || !d.Overridden {
			t.Errorf("%+v", d)
		}
	})
}
