package client

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/keystead/keystead/owner"
)

// Errors name the operation, the key and the node, and speak in the units of this
// package.
func TestErrorsNameTheCall(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1", "n2"}, nil)
		c := w.client(direct, "n1")
		key := w.keyOf("n2")
		must(c.Counter("x").Add(soon(t), key, 1))(t)
		long := strings.Repeat("é", 300)
		batch := must(c.BatchAdd(soon(t), []Add{{Key: key, Delta: 1}, {Key: key, Delta: 1, Options: []CounterOption{IdleTTL(-5 * time.Second)}}, {}}))(t)
		q := `"` + key + `"`
		for want, err := range map[string]error{
			`keystead: check ` + q + ` at n2: KIND_MISMATCH: this key and name hold a counter, not a limit (use another name, or the calls of its kind)`: last(c.Limit("x", PerMinute(1)).Check(soon(t), key)),
			`keystead: peek ` + q + ` at n2: INVALID: Period is 1ns; choose 1us to 366d`:                                                                 last(c.Limit("y", Per(1, 1)).Peek(soon(t), key)),
			`keystead: check ` + q + `: INVALID: Cost is 0, which spends nothing; Peek asks without spending`:                                            last(c.Limit("y", PerMinute(1)).CheckN(soon(t), key, 0)),
			`keystead: add ` + q + ` at n2: INVALID: IdleTTL is -5s; choose 1ms to 366d, or 0 for never`:                                                 last(c.Counter("").Add(soon(t), key, 1, IdleTTL(-5*time.Second))),
			`keystead: lock ` + q + ` at n2: INVALID: TTL is 1h0m0s; this node allows at most 1m0s`:                                                      last(c.Lock("").Acquire(soon(t), key, TTL(time.Hour))),
			`keystead: compare-and-set: INVALID: Key is empty`:                                                                                           last(c.Counter("").CompareAndSet(soon(t), "", 0, 0)),
			`keystead: get "` + long[:80] + `"…: INVALID: Key has 600 bytes; at most 512 are allowed`:                                                    last(c.Counter("").Get(soon(t), long)),
			`keystead: add ` + q + ` at n2: INVALID: IdleTTL is -5s; choose 1ms to 366d, or 0 for never `:                                                batch[1].Err,
			`keystead: add: INVALID: Key is empty`:                                                                                                       batch[2].Err,
		} {
			if err == nil || err.Error() != strings.TrimSpace(want) {
				t.Errorf("got  %v\nwant %s", err, want)
			}
		}
		if batch[0].Err != nil {
			t.Error(batch[0].Err)
		}
	})
}

// A call that ends long before its deadline does not speak of the deadline.
func TestErrorsWithoutADeadline(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		c := w.client(direct, "n1")
		w.nodes["n1"].lose()
		_, err := c.Lock("").TryAcquire(context.Background(), "k")
		if !errors.Is(err, ErrRecovering) || strings.Contains(err.Error(), "deadline") || !strings.Contains(err.Error(), "; it can be tried again in 1m0s") {
			t.Errorf("while what was lost is awaited: %v", err)
		}
		w.nodes["n1"].isolate(true)
		_, err = c.Counter("").Get(context.Background(), "k")
		if !errors.Is(err, ErrUnavailable) || err.Error() != `keystead: get "k" at n1: UNAVAILABLE: connection refused` {
			t.Errorf("nobody is there: %v", err)
		}
	})
}

// An outcome that is unknown by an earlier attempt is not said to be that nothing
// happened, though the last attempt did nothing.
func TestErrorOfAnEarlierAttempt(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		c, n1 := w.client(direct, "n1"), w.nodes["n1"]
		n1.on(func(*owner.Record) {
			n1.cut()
			n1.denies.Store(true)
		})
		_, err := c.Counter("").Add(context.Background(), "k", 1)
		want := `keystead: add "k" at n1: OUTCOME_UNKNOWN: an earlier attempt had no answer and may have taken effect; the last one: no lease`
		if !errors.Is(err, ErrOutcomeUnknown) || err.Error() != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	})
}

// An address that cannot be one is judged at once.
func TestDialJudgesAddresses(t *testing.T) {
	for addr, want := range map[string]string{
		"":                `address "" is empty; write HOST:PORT`,
		"n1":              `address "n1" has no port`,
		"n1:":             `address "n1:" has no port`,
		"http://n1:7400":  `address "http://n1:7400" is a URL`,
		"::1":             `address "::1" has colons in its host, which belong in brackets`,
		"n1:70000":        `address "n1:70000" has a port that there cannot be`,
		"n1:74/x":         `address "n1:74/x" has a port that is neither a number nor a name`,
		"n1:7400,n2:7400": `address "n1:7400,n2:7400" has colons in its host`,
	} {
		bubble(t, func(t *testing.T) {
			w := build(t, []string{"n1"}, nil)
			w.nodes["n1"].isolate(true)
			cfg := Config{clock: w.clock}
			began := time.Now()
			_, err := cfg.dialing(w.dial).Dial(context.Background(), "n1:1", addr)
			var e *Error
			if !errors.Is(err, ErrInvalid) || !errors.As(err, &e) || e.Code != codes.InvalidArgument || time.Since(began) != 0 ||
				!strings.HasPrefix(err.Error(), "keystead: dial: INVALID: "+want) {
				t.Errorf("%q, after %v: %v", addr, time.Since(began), err)
			}
		})
	}
	for _, addr := range []string{"127.0.0.1:7400", "[::1]:7400", "n1.example:grpc", ":7400", "unix:/run/keystead"} {
		if err := validAddress(addr); err != nil {
			t.Errorf("%q: %v", addr, err)
		}
	}
}

// Nobody is there: the error says so of each node, and its code is that of its reason.
func TestDialToNobody(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		cfg := Config{clock: w.clock}
		w.nodes["n1"].isolate(true)
		_, err := cfg.dialing(w.dial).Dial(context.Background(), "n1:1", "n2:1")
		var e *Error
		if !errors.As(err, &e) || e.Reason != ErrUnavailable || e.Code != codes.Unavailable || strings.Contains(err.Error(), "rpc error") ||
			!strings.HasPrefix(err.Error(), "keystead: dial n1:1, n2:1: UNAVAILABLE: no node has sent the table of owners: ") || !strings.Contains(err.Error(), "n1:1: connection refused") {
			t.Errorf("error %v", err)
		}
	})
}

// Stats count the nodes that are there.
func TestStatsCountLiveNodes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1", "n2", "n3"}, nil)
		c := w.client(direct, "n1")
		for id := range w.nodes {
			must(c.Counter("").Get(soon(t), w.keyOf(id)))(t)
		}
		synctest.Wait() // a connection takes calls before it says that it is up
		if n := c.Stats().Nodes; n != 3 {
			t.Errorf("%d nodes", n)
		}
		w.nodes["n2"].isolate(true)
		w.nodes["n3"].isolate(true)
		synctest.Wait()
		if n := c.Stats().Nodes; n != 1 {
			t.Errorf("%d nodes, and two of three are gone", n)
		}
	})
}

// Close ends every call that is under way, also those that wait to be put together.
func TestCloseEndsCallsThatGather(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		var deaf atomic.Bool
		cfg := Config{Timeout: time.Hour, AttemptTimeout: time.Hour, clock: w.clock}
		c := must(cfg.dialing(w.deafening(&deaf)).Dial(soon(t), "n1:1"))(t)
		l := c.Limit("l", PerMinute(5))
		must(l.Check(soon(t), "k"))(t)
		deaf.Store(true)
		const calls = 9_000 // more than go together when the messages under way end
		ended := make(chan error, calls)
		for range calls {
			go func() { ended <- last(l.Check(context.Background(), "k")) }()
		}
		synctest.Wait()
		began := time.Now()
		c.Close()
		for range calls {
			if err := <-ended; !errors.Is(err, ErrClosed) {
				t.Fatalf("after %v: %v", time.Since(began), err)
			}
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("Close left calls for %v", took)
		}
	})
}
