package client

import (
	"errors"
	"strings"
	"testing"
)

// An idempotency key that nodes would not take is judged here: an empty one is no add
// without a key, and a long one does not spoil the message that others' adds are in.
func TestIdempotencyKeysAreJudged(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := build(t, []string{"n1"}, nil).client(Config{}, "n1")
		n := c.Counter("")
		for _, key := range []string{"", strings.Repeat("x", 65), "\xff"} {
			if _, err := n.Add(soon(t), "k", 1, IdempotencyKey(key)); !errors.Is(err, ErrInvalid) {
				t.Errorf("add under %.9q: %v", key, err)
			}
			if _, err := n.CompareAndSet(soon(t), "k", 1, 0, IdempotencyKey(key)); !errors.Is(err, ErrInvalid) {
				t.Errorf("compare-and-set under %.9q: %v", key, err)
			}
			r := must(c.BatchAdd(soon(t), []Add{{Counter: n, Key: "k", Delta: 1, Options: []CounterOption{IdempotencyKey(key)}}, {Counter: n, Key: "l", Delta: 1}}))(t)
			if !errors.Is(r[0].Err, ErrInvalid) || r[1].Err != nil {
				t.Errorf("batch under %.9q: %+v", key, r)
			}
		}
		if v := must(n.Get(soon(t), "k"))(t); v.Exists {
			t.Errorf("%+v", v)
		}
	})
}
