package client

import (
	"context"
	"time"

	"google.golang.org/grpc"

	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
)

// Counter addresses a counter.
type Counter struct {
	Key  string // 1 to 512 bytes of UTF-8
	Name string // which counter of the key: at most 128 bytes; "" = "counter"
}

// Add adds Delta to a counter if the sum stays within the bounds.
type Add struct {
	Key      string        // 1 to 512 bytes of UTF-8
	Name     string        // which counter of the key: at most 128 bytes; "" = "counter"
	Delta    int64         // of any sign
	Min, Max *int64        // bounds; see Bound. nil = none
	IdleTTL  time.Duration // forget the counter when it was not changed for so long; 0 = never
}

// Bound is a bound of an Add.
func Bound(n int64) *int64 { return &n }

// Refusal is why an Add was not applied.
type Refusal = counterpb.Refusal

// The refusals. The zero Refusal is none.
const (
	BelowMin = counterpb.Refusal_REFUSAL_BELOW_MIN
	AboveMax = counterpb.Refusal_REFUSAL_ABOVE_MAX
	Overflow = counterpb.Refusal_REFUSAL_OVERFLOW
)

// Value is a counter after an operation.
type Value struct {
	// Applied reports whether the operation changed the counter; of a Get, whether
	// it exists.
	Applied bool
	// Value after the operation: of its first attempt, if Replayed.
	Value int64
	// Version of that value: rises with every change of the counter.
	Version uint64
	// Refusal is why an Add was not applied.
	Refusal Refusal
	// Current is the value now. It differs from Value only if Replayed.
	Current int64
	// Parts is how many parts a hot counter is split into; 0 = it is whole.
	// The Value and Current of an Add are then what one part knows: its own adds, and
	// those of the others up to a moment ago. The Value of a Get holds every add that
	// was answered before it began, and does not fall unless something is subtracted;
	// the counter may never have had exactly this value. Version is of no use for a
	// SetIf then: a SetIf makes the counter whole.
	Parts int
	Meta
}

// Add adds to a counter. A refusal is an answer, not an error.
func (c *Client) Add(ctx context.Context, q Add) (Value, error) {
	if err := address(q.Key, q.Name); err != nil {
		return Value{}, about(err, "add", q.Key, "")
	}
	req, op := q.wire(), c.ops.begin()
	defer op.finish()
	var r *counterpb.AddResponse
	err := c.do(ctx, toObject(q.object(), op).of("add"), func(ctx context.Context, n *node, v *view) (sent bool, err error) {
		r, sent, err = n.adds.do(ctx, req, op)
		c.answered(v, n, r.GetOwner(), r.GetEpoch())
		return sent, err
	})
	if err != nil {
		return Value{}, err
	}
	return added(r), nil
}

func (q *Add) wire() *counterpb.AddRequest {
	return &counterpb.AddRequest{Key: q.Key, Name: q.Name, Delta: q.Delta, Min: q.Min, Max: q.Max, IdleTtlNs: int64(q.IdleTTL)}
}

func added(r *counterpb.AddResponse) Value {
	return Value{Applied: r.GetApplied(), Value: r.GetValue(), Version: r.GetVersion(), Refusal: r.GetRefusal(), Current: r.GetCurrent(),
		Parts: int(r.GetParts()), Meta: metaOf(r, r.GetReplay())}
}

// Get reads a counter. A counter that does not exist is 0 at version 0.
func (c *Client) Get(ctx context.Context, q Counter) (Value, error) {
	if err := address(q.Key, q.Name); err != nil {
		return Value{}, about(err, "get", q.Key, "")
	}
	r, err := ask(ctx, c, toObject(objectAt(counterObject, q.Key, q.Name), nil).of("get"), nil, func(ctx context.Context, conn *grpc.ClientConn, _ *commonpb.RequestId, opts ...grpc.CallOption) (*counterpb.GetResponse, error) {
		return getKind.one(ctx, conn, &counterpb.GetRequest{Key: q.Key, Name: q.Name}, opts...)
	})
	if err != nil {
		return Value{}, err
	}
	return got(r), nil
}

func got(r *counterpb.GetResponse) Value {
	return Value{Applied: r.GetVersion() != 0, Value: r.GetValue(), Version: r.GetVersion(), Current: r.GetValue(),
		Parts: int(r.GetParts()), Meta: metaOf(r, nil)}
}

// SetIf sets a counter whose version is known.
type SetIf struct {
	Key     string        // 1 to 512 bytes of UTF-8
	Name    string        // which counter of the key: at most 128 bytes; "" = "counter"
	Value   int64         // the new value
	Version uint64        // that the counter must have; 0 = it must not exist
	IdleTTL time.Duration // as in Add
}

// SetIf sets a counter if its version is still the expected one. Another version
// is an answer, not an error.
func (c *Client) SetIf(ctx context.Context, q SetIf) (Value, error) {
	if err := address(q.Key, q.Name); err != nil {
		return Value{}, about(err, "set", q.Key, "")
	}
	op := c.ops.begin()
	defer op.finish()
	r, err := ask(ctx, c, toKey(q.Key, false).of("set"), op, func(ctx context.Context, conn *grpc.ClientConn, id *commonpb.RequestId, opts ...grpc.CallOption) (*counterpb.SetIfResponse, error) {
		return counterpb.NewCounterServiceClient(conn).SetIf(ctx, &counterpb.SetIfRequest{Key: q.Key, Name: q.Name, Value: q.Value, Version: q.Version,
			IdleTtlNs: int64(q.IdleTTL), RequestId: id}, opts...)
	})
	if err != nil {
		return Value{}, err
	}
	return Value{Applied: r.GetApplied(), Value: r.GetValue(), Version: r.GetVersion(), Current: r.GetCurrent(),
		Meta: metaOf(r, r.GetReplay())}, nil
}

// Reset sets a counter back to 0. The answer's Value is what it was before, and
// Applied reports whether it existed.
func (c *Client) Reset(ctx context.Context, q Counter) (Value, error) {
	if err := address(q.Key, q.Name); err != nil {
		return Value{}, about(err, "reset", q.Key, "")
	}
	op := c.ops.begin()
	defer op.finish()
	r, err := ask(ctx, c, toKey(q.Key, false).of("reset"), op, func(ctx context.Context, conn *grpc.ClientConn, id *commonpb.RequestId, opts ...grpc.CallOption) (*counterpb.ResetResponse, error) {
		return counterpb.NewCounterServiceClient(conn).Reset(ctx, &counterpb.ResetRequest{Key: q.Key, Name: q.Name, RequestId: id}, opts...)
	})
	if err != nil {
		return Value{}, err
	}
	return Value{Applied: r.GetVersion() != 0, Value: r.GetPrevious(), Version: r.GetVersion(), Current: r.GetCurrent(),
		Meta: metaOf(r, r.GetReplay())}, nil
}

// ask is a call about a key that always goes in a message of its own. op is nil
// if it changes nothing.
func ask[R interface {
	GetEpoch() uint64
	GetOwner() string
}](ctx context.Context, c *Client, to route, op *operation, f func(ctx context.Context, conn *grpc.ClientConn, id *commonpb.RequestId, opts ...grpc.CallOption) (R, error)) (r R, err error) {
	err = c.do(ctx, to, func(ctx context.Context, n *node, v *view) (sent bool, err error) {
		var id *commonpb.RequestId
		if op != nil {
			id = op.stamp()
		}
		sent, err = c.unary(ctx, n, 0, func(ctx context.Context, opts ...grpc.CallOption) (err error) {
			r, err = f(ctx, n.conn(), id, opts...)
			return err
		})
		if err == nil {
			c.answered(v, n, r.GetOwner(), r.GetEpoch())
		}
		return sent, err
	})
	return r, err
}
