package client

import (
	"cmp"
	"context"
	"math"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/keystead/keystead/internal/fallback"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
)

// Limit is a named limit that many keys have, each its own. It is a small value:
// making one costs nothing, and it may be copied and kept.
type Limit struct {
	c        *Client
	name     string
	rate     Rate
	policy   string // that has the rate; "" = it is stated here
	anywhere bool
	maxDelay time.Duration
	fallback fallback.Rule // its Budget is budget
	budget   time.Duration
	// twoFallbacks: LocalCap and LastKnown were both given.
	twoFallbacks bool
}

// LimitOption is how a limit is checked.
type LimitOption struct {
	anywhere bool
	maxDelay time.Duration
	fallback fallback.Rule
	budget   time.Duration
}

// Anywhere lets any node decide a Check out of a chunk of tokens that it takes from the
// owner for a second. The check is not sent to the owner, and may spend twice when it has
// to be sent again. It never allows more than a check by the owner does, and may refuse
// earlier; see Decision.Slack. For token buckets. Peek, Refund and Overdraw go to the owner as
// always; in a batch a check Anywhere is ErrInvalid.
func Anywhere() LimitOption { return LimitOption{anywhere: true} }

// MaxDelay is how long the caller of a limit that is Spaced is ready to wait for its turn: a
// check is refused if that comes later, and Decision.Delay says when it is. Without it, a Check
// is refused unless it may run now, and a Wait waits until its context ends.
func MaxDelay(d time.Duration) LimitOption { return LimitOption{maxDelay: d} }

// Limit names a limit, with at most 128 bytes, and states its rate. name "" = "limit".
func (c *Client) Limit(name string, rate Rate, opts ...LimitOption) Limit {
	l := Limit{c: c, name: name, rate: rate}
	for _, o := range opts {
		l.anywhere = l.anywhere || o.anywhere
		l.maxDelay = cmp.Or(o.maxDelay, l.maxDelay)
		l.twoFallbacks = l.twoFallbacks || o.fallback.Source != fallback.None && l.fallback.Source != fallback.None && o.fallback.Source != l.fallback.Source
		l.fallback = cmp.Or(o.fallback, l.fallback)
		l.budget = cmp.Or(o.budget, l.budget)
	}
	return l
}

// Name returns the name that the limit was given.
func (l Limit) Name() string { return l.name }

// Policy returns the name of the policy that has its rate, "" if the limit was given one.
func (l Limit) Policy() string { return l.policy }

// Rate returns the rate that the limit was given: none to that of a policy.
func (l Limit) Rate() Rate { return l.rate }

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

// Decision is what a limit says of a key.
type Decision struct {
	Allowed    bool
	Capacity   uint64        // most that can be available at once: the burst, or what a window holds
	Limit      uint64        // tokens per period, as it was decided by: those of its rate, its policy or an override
	Remaining  uint64        // available after this check
	RetryAfter time.Duration // until the same check can be allowed; 0 if it was. After Overdraw, a check of 1
	ResetAfter time.Duration // until everything is available again
	// Delay is when what was allowed may run, from now on, if the limit is Spaced.
	Delay time.Duration
	// PeriodEnds is when the period ends, if the limit goes by a calendar. Capacity is the limit
	// and what was carried over.
	PeriodEnds time.Time
	// Slack is how many tokens too early a refusal may come: with Anywhere, and for a
	// limit that is split, where it is what the other parts have of the burst.
	// Remaining is then what this node, or part, has.
	Slack uint64
	Parts int // that a hot limit is split into; 0 = it is whole
	// PolicyVersion is the version of the policies that the owner went by; 0 without a
	// policy. Of one key it never falls.
	PolicyVersion uint64
	// Debt is what is spent beyond Capacity: by Overdraw, or before the limit was lowered. It
	// comes back first.
	Debt uint64
	// Overridden says that an override was in force: Capacity is its.
	Overridden bool
	// Degraded says by what it was decided, if the owner could not be asked in time: see LocalCap.
	// Owner is then the node that did, "" if this client did; Remaining what it may admit still;
	// and RetryAfter a second at most. "" = the owner decided.
	Degraded Degraded
	Meta
}

// Check spends one token of the key's, if it has one. Over the limit is an answer, not an
// error. A key has 1 to 512 bytes of UTF-8.
func (l Limit) Check(ctx context.Context, key string, opts ...CallOption) (Decision, error) {
	return l.CheckN(ctx, key, 1, opts...)
}

// CheckN spends n tokens of the key's, or none if it has fewer. n is 1 or more; 0 is
// ErrInvalid, and Peek asks without spending.
func (l Limit) CheckN(ctx context.Context, key string, n uint64, opts ...CallOption) (Decision, error) {
	if n == 0 {
		return Decision{}, about(invalid("cost", "is 0, which spends nothing; Peek asks without spending"), "check", key, "")
	}
	return l.c.check(ctx, Check{Key: key, Limit: l, Cost: n, Options: opts})
}

// Peek returns what Check would, and spends nothing.
func (l Limit) Peek(ctx context.Context, key string) (Decision, error) { return l.PeekN(ctx, key, 1) }

// PeekN returns what CheckN would, and spends nothing. n is 1 or more; 0 is ErrInvalid.
func (l Limit) PeekN(ctx context.Context, key string, n uint64) (Decision, error) {
	if n == 0 {
		return Decision{}, about(invalid("cost", "is 0; ask for 1 or more"), "peek", key, "")
	}
	return l.c.check(ctx, Check{Key: key, Limit: l, Cost: n, Peek: true})
}

// Refund gives n tokens of the key's back that were spent and not used, at most up
// to full. Refund only what was spent less than a period ago: the rest has come back by
// itself, and the limit cannot tell. n is 1 or more.
func (l Limit) Refund(ctx context.Context, key string, n uint64, opts ...CallOption) (Decision, error) {
	if n < 1 || n > math.MaxInt64 {
		return Decision{}, about(invalid("refund", "is %d; it must be 1 to 2^63 − 1", n), "refund", key, "")
	}
	return l.c.check(ctx, Check{Key: key, Limit: l, Refund: n, Options: opts})
}

// Overdraw spends n tokens of the key's that were used already, whether or not it has them: such
// as those of an answer whose cost was known only at its end. It is always allowed. What is spent
// beyond the capacity is Decision.Debt, which comes back before anything else is allowed; that of
// a window ends with it. n is 1 to 10^12, and no more than that is remembered as spent. Not for a
// limit that is Spaced. It needs level 8: all nodes of a cluster upgraded.
func (l Limit) Overdraw(ctx context.Context, key string, n uint64, opts ...CallOption) (Decision, error) {
	if n == 0 {
		return Decision{}, about(invalid("cost", "is 0, which spends nothing"), "overdraw", key, "")
	}
	return l.c.check(ctx, Check{Key: key, Limit: l, Cost: n, Overdraft: true, Options: opts})
}

// Refilled is the answer to a Reset of a limit.
type Refilled struct {
	Spent uint64 // tokens that had been spent and had not come back; 0 = it was full
	Meta
}

// Reset makes the key's limit full: nothing of it is spent.
func (l Limit) Reset(ctx context.Context, key string, opts ...CallOption) (Refilled, error) {
	idem, err := keyOf(opts)
	if err := cmp.Or(l.c.judge(ctx, key, l.name), err); err != nil {
		return Refilled{}, about(err, "reset", key, "")
	}
	op := l.c.ops.begin().under(idem)
	defer op.finish()
	r, err := ask(ctx, l.c, toKey(key, false).of("reset"), op, func(ctx context.Context, conn *grpc.ClientConn, id *commonpb.RequestId, opts ...grpc.CallOption) (*limitpb.ResetResponse, error) {
		return limitpb.NewLimitServiceClient(conn).Reset(ctx, &limitpb.ResetRequest{Key: key, Name: l.name, RequestId: unlessKeyed(id, idem), IdempotencyKey: idem}, opts...)
	})
	if err != nil {
		return Refilled{}, err
	}
	return Refilled{Spent: r.GetSpent(), Meta: metaOf(r, r.GetReplay())}, nil
}

// Check is one check of a batch. It spends, or peeks, or gives back, or overdraws.
type Check struct {
	Limit  Limit
	Key    string // 1 to 512 bytes of UTF-8
	Cost   uint64 // tokens to spend; 0 = 1
	Peek   bool   // answer, but spend nothing
	Refund uint64 // tokens to give back instead of spending, as Limit.Refund does; 0 = none
	// Overdraft spends Cost whether or not it is there, as Limit.Overdraw does.
	Overdraft bool
	// Options go with what spends or gives back: an IdempotencyKey.
	Options []CallOption

	wait *spaced // for its turn; nil = it does not
}

// check decides one check.
func (c *Client) check(ctx context.Context, q Check) (Decision, error) {
	what := q.what()
	if err := cmp.Or(c.judge(ctx, q.Key, q.Limit.name), q.judgeOptions()); err != nil {
		return Decision{}, about(err, what, q.Key, "")
	}
	rule := q.rule()
	if err := q.judgeRule(rule); err != nil {
		return Decision{}, about(err, what, q.Key, "")
	}
	req := q.wire()
	if q.anywhere() {
		return c.checkAnywhere(ctx, req)
	}
	var op *operation
	if !q.Peek {
		op = c.ops.begin().under(req.IdempotencyKey)
		defer op.finish()
	}
	if rule != nil {
		return c.checkOr(ctx, &q, op, rule)
	}
	var r *limitpb.CheckResponse
	err := c.do(ctx, toObject(q.object(), op).of(what), func(ctx context.Context, n *node, v *view) (sent bool, err error) {
		if q.wait != nil {
			req = q.wire() // that of an attempt before may still be sent
			req.MaxDelayNs = q.wait.left()
		}
		r, sent, err = n.checks.do(ctx, req, op)
		op.says(r.GetAllowed())
		c.answered(v, n, r.GetOwner(), r.GetEpoch())
		return sent, err
	})
	if err != nil {
		return Decision{}, err
	}
	return decision(r), nil
}

// anywhere reports whether the check may be decided by any node.
func (q *Check) anywhere() bool {
	return q.Limit.anywhere && !q.Peek && q.Refund == 0 && !q.Overdraft
}

// what returns the operation, for errors.
func (q *Check) what() string {
	switch {
	case q.Refund != 0:
		return "refund"
	case q.Peek:
		return "peek"
	case q.Overdraft:
		return "overdraw"
	}
	return "check"
}

// judgeOptions judges an idempotency key, and whether there may be one.
func (q *Check) judgeOptions() error {
	key, err := keyOf(q.Options)
	switch {
	case err != nil || key == "":
		return err
	case q.Peek:
		return invalid("IdempotencyKey", "does not go with a peek, which changes nothing")
	case q.anywhere():
		return invalid("IdempotencyKey", "does not go with Anywhere: a node that spends by itself keeps no keys")
	}
	return nil
}

func (q *Check) wire() *limitpb.CheckRequest {
	r := &q.Limit.rate
	key, _ := keyOf(q.Options) // judged before
	if q.Limit.policy != "" {
		return &limitpb.CheckRequest{Key: q.Key, Policy: q.Limit.policy, Cost: q.Cost, Peek: q.Peek, Refund: q.Refund, Overdraft: q.Overdraft,
			Anywhere: q.anywhere(), IdempotencyKey: key, MaxDelayNs: q.maxDelay()}
	}
	req := &limitpb.CheckRequest{Key: q.Key, Name: q.Limit.name, Limit: r.Limit, PeriodNs: int64(r.Period), Burst: r.Burst,
		Algorithm: r.Algorithm.onWire(), Cost: q.Cost, Peek: q.Peek, Refund: q.Refund, Overdraft: q.Overdraft, Anywhere: q.anywhere(), IdempotencyKey: key,
		MaxDelayNs: q.maxDelay()}
	r.Calendar.onto(req)
	fallbackOnto(req, q.rule())
	return req
}

func decision(r *limitpb.CheckResponse) Decision {
	d := Decision{
		Allowed: r.GetAllowed(), Capacity: r.GetCapacity(), Limit: r.GetLimit(), Remaining: r.GetRemaining(),
		RetryAfter: time.Duration(r.GetRetryAfterNs()), ResetAfter: time.Duration(r.GetResetAfterNs()), Delay: time.Duration(r.GetDelayNs()),
		Slack: r.GetSlack(), Parts: int(r.GetParts()), Debt: r.GetDebt(), Overridden: r.GetOverridden(), PolicyVersion: r.GetPolicyVersion(),
		Meta: metaOf(r, r.GetReplay()),
	}
	if r.GetDegraded() {
		d.Degraded = degradedBy[r.GetDegradedSource()]
	}
	if ends := r.GetPeriodEnds(); ends != 0 {
		d.PeriodEnds = time.Unix(ends, 0)
	}
	return d
}

// checkAnywhere asks the one of two nodes that has less to do.
func (c *Client) checkAnywhere(ctx context.Context, req *limitpb.CheckRequest) (Decision, error) {
	var r *limitpb.CheckResponse
	to := route{what: "check", key: req.Key}
	if c.observed() {
		to.op = &operation{}
	}
	err := c.do(ctx, to, func(ctx context.Context, n *node, _ *view) (bool, error) {
		return c.unary(ctx, n, 0, func(ctx context.Context, opts ...grpc.CallOption) (err error) {
			r, err = limitpb.NewLimitServiceClient(n.conn()).Check(ctx, req, opts...)
			to.op.says(r.GetAllowed())
			return err
		})
	})
	if err != nil {
		return Decision{}, err
	}
	return decision(r), nil
}

// address validates key and name.
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
