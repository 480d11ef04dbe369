package client

import (
	"context"
	"errors"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
)

func TestLighter(t *testing.T) {
	with := func(inFlight int64, latency time.Duration) *node {
		n := &node{}
		n.inFlight.Store(inFlight)
		if latency > 0 {
			n.took(latency)
		}
		return n
	}
	p := &pool{nodes: map[string]*node{"idle": with(0, 1000), "busy": with(9, 1000), "slow": with(0, 20_000)}}
	for range 100 {
		for _, addrs := range [][]string{{"idle", "busy"}, {"slow", "idle"}} {
			if got := p.lighter(addrs); got != "idle" {
				t.Fatalf("of %v: %s", addrs, got)
			}
		}
		if got := p.lighter([]string{"slow", "busy"}); got != "busy" {
			t.Fatalf("10 calls of 1 µs are less than one of 20: %s", got)
		}
		if got := p.lighter([]string{"idle", "new"}); got != "new" {
			t.Fatalf("a node that was never asked is asked: %s", got)
		}
	}
	if p.lighter(nil) != "" || p.lighter([]string{"x"}) != "x" {
		t.Error("of none, or one")
	}
}

func TestLatencyFollows(t *testing.T) {
	n := &node{}
	n.took(100)
	n.took(200)
	if got := n.load(); got < 109.9 || got > 110.1 {
		t.Errorf("average %v", got)
	}
}

// How a call ends, by its last attempt and those before.
func TestFinal(t *testing.T) {
	for what, x := range map[string]struct {
		last    Error
		unknown bool
		over    error
		want    Reason
	}{
		"no connection, time is up":   {Error{Code: codes.Unavailable, broken: true}, false, context.DeadlineExceeded, ErrUnavailable},
		"no connection, cancelled":    {Error{Code: codes.Unavailable, broken: true}, false, context.Canceled, ErrGaveUp},
		"no answer":                   {Error{Code: codes.Unavailable, broken: true}, true, context.DeadlineExceeded, ErrOutcomeUnknown},
		"no answer, then no right":    {Error{Reason: ErrUnavailable}, true, context.DeadlineExceeded, ErrOutcomeUnknown},
		"no right":                    {Error{Reason: ErrUnavailable}, false, context.DeadlineExceeded, ErrUnavailable},
		"no room":                     {Error{Reason: ErrStoreFull}, false, nil, ErrStoreFull},
		"no answer, then no room":     {Error{Reason: ErrStoreFull}, true, nil, ErrOutcomeUnknown},
		"no answer, then too old":     {Error{Reason: ErrRequestTooOld}, true, nil, ErrRequestTooOld},
		"the node saw the caller go":  {Error{Reason: ErrGaveUp}, false, context.DeadlineExceeded, ErrGaveUp},
		"refused by grpc, not a node": {Error{Code: codes.Unimplemented}, false, nil, ""},
	} {
		err := final(&x.last, x.unknown, x.over)
		var e *Error
		if !errors.As(err, &e) || e.Reason != x.want || x.over != nil && !errors.Is(err, x.over) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
