package client

import (
	"context"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
)

// Algorithm is how a limit refills.
type Algorithm = limitpb.Algorithm

// The algorithms. The zero Algorithm is a token bucket.
const (
	TokenBucket   = limitpb.Algorithm_ALGORITHM_TOKEN_BUCKET
	FixedWindow   = limitpb.Algorithm_ALGORITHM_FIXED_WINDOW
	SlidingWindow = limitpb.Algorithm_ALGORITHM_SLIDING_WINDOW
)

// Rate is a limit: so many tokens in a period.
type Rate struct {
	Limit     uint64        // tokens that come back per period, or that a window holds
	Period    time.Duration // 1 µs to 366 days
	Burst     uint64        // most tokens that a bucket holds; 0 = Limit
	Algorithm Algorithm
}

// Per is a token bucket of n tokens a period.
func Per(n uint64, period time.Duration) Rate { return Rate{Limit: n, Period: period} }

// PerSecond is a token bucket of n tokens a second.
func PerSecond(n uint64) Rate { return Per(n, time.Second) }

// PerMinute is a token bucket of n tokens a minute.
func PerMinute(n uint64) Rate { return Per(n, time.Minute) }

// PerHour is a token bucket of n tokens an hour.
func PerHour(n uint64) Rate { return Per(n, time.Hour) }

// WithBurst returns the rate with a bucket that holds burst tokens.
func (r Rate) WithBurst(burst uint64) Rate {
	r.Burst = burst
	return r
}

// Windowed returns the rate as fixed windows, which open with their first hit.
func (r Rate) Windowed() Rate {
	r.Algorithm = FixedWindow
	return r
}

// Sliding returns the rate as a sliding window: at most Limit in any time shorter than
// Period. What was spent counts for less than nine eighths of the period.
func (r Rate) Sliding() Rate {
	r.Algorithm = SlidingWindow
	return r
}

// Check spends a cost if the limit has it, or gives tokens back.
type Check struct {
	Key  string // what is limited: 1 to 512 bytes of UTF-8
	Name string // which limit of the key: at most 128 bytes; "" = "limit"
	Rate
	Cost uint64 // tokens to spend; 0 = 1
	Peek bool   // answer, but spend nothing
	// Refund is how many tokens to give back, at most up to full; then Cost is 0 and
	// Peek false, and the answer is allowed. 0 = none.
	Refund int64
	// Anywhere lets any node decide out of a chunk of tokens that it takes from the
	// owner for a second. The check is not sent to the owner, and may spend twice when
	// it has to be sent again. It never allows more than a check by the owner does,
	// and may refuse earlier; see Decision.Slack. Token buckets only; in a batch it
	// is ErrInvalid, unless Peek is set.
	Anywhere bool
}

// Meta is what every answer about a key carries.
type Meta struct {
	Epoch    uint64        // ownership epoch under which the answer was given
	Owner    string        // node that decided
	Replayed bool          // the answer repeats that of an earlier attempt
	Age      time.Duration // time since the operation took effect, if Replayed
	// LostEpoch is the epoch in which what was kept of the key was lost, while the
	// grace period of that loss runs; 0 otherwise.
	LostEpoch uint64
}

// marked is what every answer about a key says.
type marked interface {
	GetEpoch() uint64
	GetOwner() string
	GetLostEpoch() uint64
}

func metaOf(a marked, r *commonpb.Replay) Meta {
	return Meta{Epoch: a.GetEpoch(), Owner: a.GetOwner(), Replayed: r != nil, Age: time.Duration(r.GetAgeNs()), LostEpoch: a.GetLostEpoch()}
}

// Decision is the answer to a Check.
type Decision struct {
	Allowed    bool
	Limit      uint64        // most that can be available at once
	Remaining  uint64        // available after this check
	RetryAfter time.Duration // until the same check can be allowed; 0 if it was
	ResetAfter time.Duration // until everything is available again
	// Slack is how many tokens too early a refusal may come: with Anywhere, and for a
	// limit that is split, where it is what the other parts have of the burst.
	// Remaining is then what this node, or part, has.
	Slack uint64
	Parts int // that a hot limit is split into; 0 = it is whole
	Meta
}

// Limit is a named limit that many keys have, each its own.
type Limit struct {
	c    *Client
	name string
	rate Rate
}

// Limit names a limit and states its rate.
func (c *Client) Limit(name string, rate Rate) *Limit { return &Limit{c, name, rate} }

// Check spends one token of the key's, if it has one.
func (l *Limit) Check(ctx context.Context, key string) (Decision, error) {
	return l.CheckN(ctx, key, 1)
}

// CheckN spends n tokens of the key's, or none if it has fewer. n is 1 or more; 0 is
// ErrInvalid, and Peek asks without spending.
func (l *Limit) CheckN(ctx context.Context, key string, n uint64) (Decision, error) {
	if n == 0 {
		return Decision{}, about(invalid("cost", "is 0, which spends nothing; Peek asks without spending"), "check", key, "")
	}
	return l.c.Check(ctx, Check{Key: key, Name: l.name, Rate: l.rate, Cost: n})
}

// Refund gives n tokens of the key's back that were spent and not used, at most up
// to full. Refund only what was spent less than a period ago: the rest has come back by
// itself, and the limit cannot tell. n is 1 or more.
func (l *Limit) Refund(ctx context.Context, key string, n int64) (Decision, error) {
	if n < 1 {
		return Decision{}, about(invalid("refund", "is %d; it must be at least 1", n), "refund", key, "")
	}
	return l.c.Check(ctx, Check{Key: key, Name: l.name, Rate: l.rate, Refund: n})
}

// Peek returns what Check would, and spends nothing.
func (l *Limit) Peek(ctx context.Context, key string) (Decision, error) {
	return l.c.Check(ctx, Check{Key: key, Name: l.name, Rate: l.rate, Peek: true})
}

// Check decides one check. Over the limit is an answer, not an error.
func (c *Client) Check(ctx context.Context, q Check) (Decision, error) {
	what := q.what()
	if err := address(q.Key, q.Name); err != nil {
		return Decision{}, about(err, what, q.Key, "")
	}
	req := q.wire()
	if q.Anywhere && !q.Peek {
		return c.checkAnywhere(ctx, req)
	}
	var op *operation
	if !q.Peek {
		op = c.ops.begin()
		defer op.finish()
	}
	var r *limitpb.CheckResponse
	err := c.do(ctx, toObject(q.object(), op).of(what), func(ctx context.Context, n *node, v *view) (sent bool, err error) {
		r, sent, err = n.checks.do(ctx, req, op)
		c.answered(v, n, r.GetOwner(), r.GetEpoch())
		return sent, err
	})
	if err != nil {
		return Decision{}, err
	}
	return decision(r), nil
}

// what returns the operation, for errors.
func (q *Check) what() string {
	switch {
	case q.Refund != 0:
		return "refund"
	case q.Peek:
		return "peek"
	}
	return "check"
}

func (q *Check) wire() *limitpb.CheckRequest {
	return &limitpb.CheckRequest{Key: q.Key, Name: q.Name, Limit: q.Limit, PeriodNs: int64(q.Period), Burst: q.Burst,
		Algorithm: q.Algorithm, Cost: q.Cost, Peek: q.Peek, Refund: q.Refund}
}

func decision(r *limitpb.CheckResponse) Decision {
	return Decision{
		Allowed: r.GetAllowed(), Limit: r.GetLimit(), Remaining: r.GetRemaining(),
		RetryAfter: time.Duration(r.GetRetryAfterNs()), ResetAfter: time.Duration(r.GetResetAfterNs()),
		Slack: r.GetSlack(), Parts: int(r.GetParts()),
		Meta: metaOf(r, r.GetReplay()),
	}
}

// checkAnywhere asks the one of two nodes that has less to do.
func (c *Client) checkAnywhere(ctx context.Context, req *limitpb.CheckRequest) (Decision, error) {
	req.Anywhere = true
	var r *limitpb.CheckResponse
	err := c.do(ctx, route{what: "check", key: req.Key}, func(ctx context.Context, n *node, _ *view) (bool, error) {
		return c.unary(ctx, n, 0, func(ctx context.Context, opts ...grpc.CallOption) (err error) {
			r, err = limitpb.NewLimitServiceClient(n.conn()).Check(ctx, req, opts...)
			return err
		})
	})
	if err != nil {
		return Decision{}, err
	}
	return decision(r), nil
}

// address validates key and name before anything is sent: one bad item must not fail a
// whole batch.
func address(key, name string) error {
	switch {
	case key == "":
		return invalid("key", "is empty")
	case len(key) > maxKey:
		return invalid("key", "has %d bytes; at most %d are allowed", len(key), maxKey)
	case len(name) > maxName:
		return invalid("name", "has %d bytes; at most %d are allowed", len(name), maxName)
	case !utf8.ValidString(key):
		return invalid("key", "is not valid UTF-8")
	case !utf8.ValidString(name):
		return invalid("name", "is not valid UTF-8")
	}
	return nil
}

// tooMany bounds the items of a batch.
func tooMany(n int) error {
	if n <= MaxItems {
		return nil
	}
	e := invalid("items", "are %d; at most %d are allowed", n, MaxItems)
	e.Code, e.Reason = codes.ResourceExhausted, ErrTooLarge
	return e
}
