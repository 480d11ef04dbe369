package client

import (
	"errors"
	"testing"
)

func TestDrain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1", "n2", "n3"}, nil)
		c := w.client(direct, "n1")
		if _, err := c.Admin().Drain(soon(t), "n9"); !errors.Is(err, ErrUnknownNode) {
			t.Errorf("unknown: %v", err)
		}
		if _, err := c.Admin().Drain(soon(t), "n2"); !errors.Is(err, ErrTooFewLeft) {
			t.Errorf("not forced: %v", err)
		}
		// A node that cannot ask the leader has the client ask another.
		at := w.now()
		w.nodes["n1"].frozen.Store(at)
		s := must(c.Admin().Drain(soon(t), "n2", Force()))(t)
		if s.Node != "n2" || s.Phase != "leaving" || s.Rows != 256 || s.Already || s.Epoch != at.Epoch+1 {
			t.Errorf("%+v", s)
		}
		w.nodes["n1"].frozen.Store(nil)
		if s := must(c.Admin().Drain(soon(t), "n2"))(t); !s.Already {
			t.Errorf("again: %+v", s)
		}
		if m := must(c.Cluster().Members(soon(t)))(t)[1]; m.Phase != "leaving" || m.Rows != 256 {
			t.Errorf("%+v", m)
		}
		w.ring("n1", "n3")
		if m := must(c.Cluster().Members(soon(t)))(t)[1]; m.Phase != "drained" || m.Rows != 0 {
			t.Errorf("%+v", m)
		}
		if s := must(c.Admin().Undrain(soon(t), "n2"))(t); s.Phase != "joining" || s.Already {
			t.Errorf("%+v", s)
		}
		if s := must(c.Admin().Undrain(soon(t), "n2"))(t); !s.Already {
			t.Errorf("%+v", s)
		}
	})
}
