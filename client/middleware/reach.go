package middleware

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/keystead/keystead/client"
)

// reach is how Keystead is asked, and whether it answers.
type reach struct {
	cfg   Config
	what  string // the limit or policy, for the log
	began time.Time

	failed atomic.Int32 // failures in a row
	next   atomic.Int64 // while it fails: when Keystead is asked again, as since tells it
}

// since returns the time since the limiter was made. Nobody can set that clock.
func (l *reach) since() int64 { return int64(time.Since(l.began)) }

// within returns the context of what is asked for a request.
func (l *reach) within(ctx context.Context) (context.Context, context.CancelFunc) {
	// The caller's own end decides nothing: one that leaves at once would pass unchecked.
	//guard:middleware-left context.WithoutCancel(ctx) -> ctx
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.cfg.Timeout)
	// Nor does what it sent: a server may pass that on with its calls, and too much of it
	// would keep the check from being sent at all.
	//guard:middleware-passed-on
	call = metadata.NewOutgoingContext(call, metadata.MD{})
	return call, cancel
}

// refused reports whether Keystead has answered that it cannot decide.
func refused(err error) bool {
	return errors.Is(err, client.ErrKindMismatch) || errors.Is(err, client.ErrStoreFull) || errors.Is(err, client.ErrInvalid) || errors.Is(err, client.ErrPolicyUnknown)
}

// mayAsk reports whether Keystead is to be asked.
func (l *reach) mayAsk() bool {
	if l.failed.Load() < failuresInARow {
		return true
	}
	now, next := l.since(), l.next.Load()
	//guard:middleware-pause true
	return now >= next && l.next.CompareAndSwap(next, now+int64(pause))
}

// answered notes that Keystead is there.
func (l *reach) answered() {
	if l.failed.Load() != 0 && l.failed.Swap(0) >= failuresInARow {
		l.cfg.Log.Info("Keystead answers again", "limit", l.what)
	}
}

func (l *reach) failure(err error) {
	if l.failed.Add(1) == failuresInARow {
		l.next.Store(l.since() + int64(pause))
		l.cfg.Log.Warn("Keystead does not answer; requests are decided without it", "limit", l.what, "fail", l.cfg.OnFailure, "err", err)
	}
}
