package middleware

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"time"

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
	reach
	limit  client.Limit
	policy string // the field RateLimit-Policy; "" = answers say it, because a policy of the cluster has the rate
	name   string // of the policy, quoted
	local  *local // for FailLocal; nil = there is no rate to go by
	// capacity is the most that a request can spend.
	capacity uint64
}

// New prepares a limiter of a limit with a rate, or of a policy (Client.Policy).
func New(limit client.Limit, cfg Config) (*Limiter, error) {
	rate, byPolicy := limit.Rate(), limit.Policy() != ""
	if err := cfg.complete(byPolicy); err != nil {
		return nil, err
	}
	l := &Limiter{reach: reach{cfg: cfg, what: limit.Name(), began: time.Now()}, limit: limit, name: string(limitfield.Quote(nil, policyName(limit)))}
	switch {
	case byPolicy:
		l.capacity = math.MaxUint64
		return l, nil
	case rate.Limit == 0 || rate.Period <= 0:
		return nil, errors.New("middleware: the limit has no rate; make it by Client.Limit, such as c.Limit(\"api\", client.PerMinute(20))")
	case rate.Algorithm == client.LeakyBucket:
		return nil, errors.New("middleware: the limit is Spaced, and requests do not wait here; call Limit.Wait in the handler")
	}
	l.local, l.policy, l.capacity = newLocal(rate, cfg.LocalShare), policyField(policyName(limit), rate), capacity(rate)
	return l, nil
}

// complete puts in defaults, and reports what cannot be. Who goes by a policy has no numbers to limit by itself.
func (cfg *Config) complete(byPolicy bool) error {
	cfg.Timeout = cmp.Or(cfg.Timeout, DefaultTimeout)
	cfg.LocalShare = cmp.Or(cfg.LocalShare, 1)
	cfg.OnFailure = cmp.Or(cfg.OnFailure, FailOpen)
	if cfg.OnRefusal == 0 {
		if cfg.OnRefusal = FailLocal; cfg.OnFailure == FailClosed || byPolicy {
			cfg.OnRefusal = FailClosed
		}
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	switch {
	case cfg.Timeout < 0:
		return fmt.Errorf("middleware: Timeout %s is negative", cfg.Timeout)
	case cfg.OnFailure > FailLocal || cfg.OnRefusal > FailLocal:
		return errors.New("middleware: OnFailure or OnRefusal is none of FailOpen, FailClosed and FailLocal")
	case byPolicy && (cfg.OnFailure == FailLocal || cfg.OnRefusal == FailLocal):
		return errors.New("middleware: FailLocal needs a rate, and a policy has it; say `fallback: local-cap:…` in the policy, which nodes go by, and FailOpen or FailClosed here")
	case !(cfg.LocalShare > 0 && cfg.LocalShare <= 1):
		return fmt.Errorf("middleware: LocalShare %v: choose more than 0, and 1 at most", cfg.LocalShare)
	}
	return nil
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
	call, cancel := l.within(ctx)
	defer cancel()
	d, err := l.limit.CheckN(call, key, cost)
	switch {
	case err == nil:
		l.answered()
		return verdict{allowed: d.Allowed, limited: true, decision: d}
	case l.limit.Policy() != "" && tooCostly(err):
		l.answered()
		return verdict{limited: true}
	//guard:middleware-refusal
	case refused(err):
		l.cfg.Log.Warn("Keystead cannot check this key; the request is decided without it", "limit", l.limit.Name(), "fail", l.cfg.OnRefusal, "err", err)
		l.answered()
		return l.alone(l.cfg.OnRefusal, key, cost)
	}
	l.failure(err)
	return l.alone(l.cfg.OnFailure, key, cost)
}

// tooCostly reports whether a policy can never hold what a request costs.
func tooCostly(err error) bool {
	var e *client.Error
	return errors.As(err, &e) && e.Reason == client.ErrInvalid && e.Field == "cost"
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
