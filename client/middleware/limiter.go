package middleware

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/keystead/keystead/client"
	"github.com/keystead/keystead/internal/limitfield"
)

// OnFailure is what is done with a request that Keystead has not decided.
type OnFailure uint8

const (
	// FailOpen lets requests through.
	FailOpen OnFailure = iota + 1
	// FailClosed refuses requests: 503, or UNAVAILABLE.
	FailClosed
	// FailLocal limits in this process, by token buckets of its own.
	FailLocal
)

// String returns the name, such as "open".
func (f OnFailure) String() string {
	if names := [...]string{"default", "open", "closed", "local"}; int(f) < len(names) {
		return names[f]
	}
	return "unknown"
}

const (
	// DefaultTimeout is how long a request waits for Keystead, which answers in
	// milliseconds and needs about two seconds to replace a node that died.
	DefaultTimeout = 250 * time.Millisecond
	// After failuresInARow Keystead is not asked for pause, but by one request in each
	// pause: nobody waits for the time out of the others.
	failuresInARow = 3
	pause          = time.Second
)

// Config is how a Limiter behaves. The zero Config is a good one.
type Config struct {
	// Timeout is how long a request waits for Keystead. Default DefaultTimeout.
	Timeout time.Duration
	// OnFailure is what is done while Keystead does not answer in time, or cannot be
	// reached. Default FailOpen.
	OnFailure OnFailure
	// OnRefusal is what is done when Keystead answers that it cannot check this key: it has
	// no room for another one, which may be what an attacker with many keys is after, or the
	// key holds something else than a limit. Default FailLocal, which lets nobody through
	// without a limit and keeps nobody out; FailClosed if that is the OnFailure.
	OnRefusal OnFailure
	// LocalShare is the part of the limit that this process allows by itself with
	// FailLocal, such as one divided by the number of processes. Default 1.
	LocalShare float64
	// Log is told when Keystead stops answering, and when it is back. Default: none.
	Log *slog.Logger
}

// Limiter checks requests by one limit. It may be used for several servers.
type Limiter struct {
	cfg    Config
	limit  client.Limit
	policy string // the field RateLimit-Policy
	name   string // of the policy, quoted
	local  *local // for FailLocal
	// capacity is the most that a request can spend.
	capacity uint64
	began    time.Time

	failed atomic.Int32 // failures in a row
	next   atomic.Int64 // while it fails: when Keystead is asked again, as since tells it
}

// since returns the time since the limiter was made. Nobody can set that clock.
func (l *Limiter) since() int64 { return int64(time.Since(l.began)) }

// New prepares a limiter.
func New(limit client.Limit, cfg Config) (*Limiter, error) {
	cfg.Timeout = cmp.Or(cfg.Timeout, DefaultTimeout)
	cfg.LocalShare = cmp.Or(cfg.LocalShare, 1)
	cfg.OnFailure = cmp.Or(cfg.OnFailure, FailOpen)
	if cfg.OnRefusal == 0 {
		if cfg.OnRefusal = FailLocal; cfg.OnFailure == FailClosed {
			cfg.OnRefusal = FailClosed
		}
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	rate := limit.Rate()
	switch {
	case rate.Limit == 0 || rate.Period <= 0:
		return nil, errors.New("middleware: the limit has no rate; make it by Client.Limit, such as c.Limit(\"api\", client.PerMinute(20))")
	case rate.Algorithm == client.LeakyBucket:
		return nil, errors.New("middleware: the limit is Spaced, and requests do not wait here; call Limit.Wait in the handler")
	case cfg.Timeout < 0:
		return nil, fmt.Errorf("middleware: Timeout %s is negative", cfg.Timeout)
	case cfg.OnFailure > FailLocal || cfg.OnRefusal > FailLocal:
		return nil, errors.New("middleware: OnFailure or OnRefusal is none of FailOpen, FailClosed and FailLocal")
	case !(cfg.LocalShare > 0 && cfg.LocalShare <= 1):
		return nil, fmt.Errorf("middleware: LocalShare %v: choose more than 0, and 1 at most", cfg.LocalShare)
	}
	l := &Limiter{cfg: cfg, limit: limit, name: string(limitfield.Quote(nil, policyName(limit))), local: newLocal(rate, cfg.LocalShare), began: time.Now()}
	l.policy, l.capacity = policyField(policyName(limit), rate), capacity(rate)
	return l, nil
}

// verdict is what becomes of a request.
type verdict struct {
	allowed  bool
	limited  bool // there is a Decision; else Keystead did not answer
	decision client.Decision
}

// decide checks one request. A cost of 0 and an empty key are not limited.
func (l *Limiter) decide(ctx context.Context, key string, cost uint64) verdict {
	switch {
	case key == "" || cost == 0:
		return verdict{allowed: true}
	case cost > l.capacity: // which Keystead does not take for a check at all
		return verdict{limited: true, decision: client.Decision{Capacity: l.capacity, RetryAfter: l.limit.Rate().Period}}
	}
	key = fit(key)
	if !l.mayAsk() {
		return l.alone(l.cfg.OnFailure, key, cost)
	}
	// The caller's own end decides nothing: one that leaves at once would pass unchecked.
	//guard:middleware-left context.WithoutCancel(ctx) -> ctx
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.cfg.Timeout)
	defer cancel()
	// Nor does what it sent: a server may pass that on with its calls, and too much of it
	// would keep the check from being sent at all.
	//guard:middleware-passed-on
	call = metadata.NewOutgoingContext(call, metadata.MD{})
	d, err := l.limit.CheckN(call, key, cost)
	switch {
	case err == nil:
		l.answered()
		return verdict{allowed: d.Allowed, limited: true, decision: d}
	//guard:middleware-refusal
	case errors.Is(err, client.ErrKindMismatch) || errors.Is(err, client.ErrStoreFull) || errors.Is(err, client.ErrInvalid):
		l.cfg.Log.Warn("Keystead cannot check this key; the request is decided without it", "limit", l.limit.Name(), "fail", l.cfg.OnRefusal, "err", err)
		l.answered()
		return l.alone(l.cfg.OnRefusal, key, cost)
	}
	l.failure(err)
	return l.alone(l.cfg.OnFailure, key, cost)
}

// mayAsk reports whether Keystead is to be asked.
func (l *Limiter) mayAsk() bool {
	if l.failed.Load() < failuresInARow {
		return true
	}
	now, next := l.since(), l.next.Load()
	//guard:middleware-pause true
	return now >= next && l.next.CompareAndSwap(next, now+int64(pause))
}

// answered notes that Keystead is there.
func (l *Limiter) answered() {
	if l.failed.Load() != 0 && l.failed.Swap(0) >= failuresInARow {
		l.cfg.Log.Info("Keystead answers again", "limit", l.limit.Name())
	}
}

func (l *Limiter) failure(err error) {
	if l.failed.Add(1) == failuresInARow {
		l.next.Store(l.since() + int64(pause))
		l.cfg.Log.Warn("Keystead does not answer; requests are decided without it", "limit", l.limit.Name(), "fail", l.cfg.OnFailure, "err", err)
	}
}

// alone decides without Keystead.
func (l *Limiter) alone(how OnFailure, key string, cost uint64) verdict {
	switch how {
	case FailLocal:
		d := l.local.check(time.Now(), key, cost)
		return verdict{allowed: d.Allowed, limited: true, decision: d}
	case FailClosed:
		return verdict{}
	}
	return verdict{allowed: true}
}
