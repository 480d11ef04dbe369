package client

import (
	"cmp"
	"context"
	"time"

	"google.golang.org/grpc"

	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
)

// Counter is a named counter that many keys have, each its own. It is a small value:
// making one costs nothing, and it may be copied and kept.
type Counter struct {
	c    *Client
	name string
}

// Counter names a counter, with at most 128 bytes. name "" = "counter".
func (c *Client) Counter(name string) Counter { return Counter{c, name} }

// CounterOption is a condition of a change, or what goes with it: AtLeast, AtMost, IdleTTL
// and IdempotencyKey.
type CounterOption interface{ isCounterOption() }

// counterOption is what only changes of counters have.
type counterOption struct {
	what byte
	n    int64
}

func (counterOption) isCounterOption() {}
func (CallOption) isCounterOption()    {}

const (
	atLeast byte = iota + 1
	atMost
	idleTTL
)

// AtLeast refuses an Add by which the counter would be below n.
func AtLeast(n int64) CounterOption { return counterOption{what: atLeast, n: n} }

// AtMost refuses an Add by which the counter would be above n.
func AtMost(n int64) CounterOption { return counterOption{what: atMost, n: n} }

// IdleTTL has the counter forgotten when it was not changed for so long; 0 = never,
// which is the default. For Add and CompareAndSet.
func IdleTTL(d time.Duration) CounterOption { return counterOption{what: idleTTL, n: int64(d)} }

// Refusal is why a change was not applied.
type Refusal uint8

// The refusals. The zero Refusal is none.
const (
	BelowMin     Refusal = iota + 1 // an Add: it would be below AtLeast
	AboveMax                        // an Add: it would be above AtMost
	Overflow                        // an Add: it would not fit in 64 bits
	OtherVersion                    // a CompareAndSet: the counter, or register, has another version
	OtherRefusal                    // a reason that this client does not know: the node is newer
	OldFence                        // a register: it was changed under a greater token than that of Fenced
	HoldOver                        // a register: the lock of WhileHeld is not held, or not any more
)

// refusals are the refusals in words for people.
var refusals = [...]string{0: "none", BelowMin: "below the minimum", AboveMax: "above the maximum",
	Overflow: "does not fit in 64 bits", OtherVersion: "another version", OtherRefusal: "a reason that this client does not know",
	OldFence: "an older fencing token", HoldOver: "the lock is not held"}

// String returns the refusal in words for people, such as "below the minimum".
func (r Refusal) String() string {
	if int(r) < len(refusals) {
		return refusals[r]
	}
	return "unknown"
}

// wireRefusals are the refusals by what they are on the wire.
var wireRefusals = map[counterpb.Refusal]Refusal{counterpb.Refusal_REFUSAL_BELOW_MIN: BelowMin, counterpb.Refusal_REFUSAL_ABOVE_MAX: AboveMax, counterpb.Refusal_REFUSAL_OVERFLOW: Overflow}

// Change is the answer to an Add or a CompareAndSet. A refusal is an answer, not an
// error.
type Change struct {
	// Applied reports whether the counter was changed.
	Applied bool
	// Refusal is why it was not.
	Refusal Refusal
	// Value is the counter after the operation: after its first attempt, if Replayed.
	Value int64
	// Version of that value: rises with every change of the counter.
	Version uint64
	// Current is the value now. It differs from Value only if Replayed.
	Current int64
	// Parts is how many parts a hot counter is split into; 0 = it is whole. The Value
	// and Current of an Add are then what one part knows: its own adds, and those of the
	// others up to a moment ago. Version is of no use for a CompareAndSet then: a
	// CompareAndSet makes the counter whole.
	Parts int
	Meta
}

// Count is the answer to a Get.
type Count struct {
	Exists  bool // a counter that does not exist is 0 at version 0
	Value   int64
	Version uint64 // rises with every change
	// Parts is how many parts a hot counter is split into; 0 = it is whole. The Value
	// then holds every add that was answered before the Get began, and does not fall
	// unless something is subtracted; the counter may never have had exactly this value.
	Parts int
	Meta
}

// Cleared is the answer to a Reset.
type Cleared struct {
	Existed  bool
	Previous int64  // the value before the Reset: before its first attempt, if Replayed
	Version  uint64 // after it; 0 if there was no counter
	Current  int64  // the value now: not 0 only if Replayed and changed since
	Meta
}

// Add adds delta, of any sign, to the key's counter if the sum stays within the bounds. A
// key has 1 to 512 bytes of UTF-8.
func (n Counter) Add(ctx context.Context, key string, delta int64, opts ...CounterOption) (Change, error) {
	if err := cmp.Or(n.c.judge(ctx, key, n.name), judgeOptions(opts)); err != nil {
		return Change{}, about(err, "add", key, "")
	}
	c, req := n.c, n.addition(key, delta, opts)
	op := c.ops.begin().under(req.IdempotencyKey)
	defer op.finish()
	var r *counterpb.AddResponse
	err := c.do(ctx, toObject(n.object(key, opts), op).of("add"), func(ctx context.Context, n *node, v *view) (sent bool, err error) {
		r, sent, err = n.adds.do(ctx, req, op)
		op.says(r.GetApplied())
		c.answered(v, n, r.GetOwner(), r.GetEpoch())
		return sent, err
	})
	if err != nil {
		return Change{}, err
	}
	return changed(r), nil
}

// Add is one add of a batch.
type Add struct {
	Counter Counter
	Key     string // 1 to 512 bytes of UTF-8
	Delta   int64  // of any sign
	Options []CounterOption
}

// judgeOptions judges what the node would refuse. An add is sent together with others',
// which it must not spoil.
func judgeOptions(opts []CounterOption) error {
	for _, o := range opts {
		if k, ok := o.(CallOption); ok {
			if err := k.validate(); err != nil {
				return err
			}
		}
	}
	return nil
}

// addition returns the request of an Add. The options are read and not kept.
func (n Counter) addition(key string, delta int64, opts []CounterOption) *counterpb.AddRequest {
	r := &counterpb.AddRequest{Key: key, Name: n.name, Delta: delta}
	for _, o := range opts {
		switch o := o.(type) {
		case CallOption:
			r.IdempotencyKey = cmp.Or(o.text, r.IdempotencyKey) // the zero one is none
		case counterOption:
			bound := o.n // a copy: options stay where they are
			switch o.what {
			case atLeast:
				r.Min = &bound
			case atMost:
				r.Max = &bound
			case idleTTL:
				r.IdleTtlNs = bound
			}
		}
	}
	return r
}

// refusalOf returns the refusal of an answer.
func refusalOf(r counterpb.Refusal) Refusal {
	if known, ok := wireRefusals[r]; ok || r == counterpb.Refusal_REFUSAL_UNSPECIFIED {
		return known
	}
	return OtherRefusal
}

func changed(r *counterpb.AddResponse) Change {
	return Change{Applied: r.GetApplied(), Value: r.GetValue(), Version: r.GetVersion(), Refusal: refusalOf(r.GetRefusal()), Current: r.GetCurrent(),
		Parts: int(r.GetParts()), Meta: metaOf(r, r.GetReplay())}
}

// Get reads the key's counter.
func (n Counter) Get(ctx context.Context, key string) (Count, error) {
	if err := n.c.judge(ctx, key, n.name); err != nil {
		return Count{}, about(err, "get", key, "")
	}
	r, err := ask(ctx, n.c, toObject(objectAt(counterObject, key, n.name), nil).of("get"), nil, func(ctx context.Context, conn *grpc.ClientConn, _ *commonpb.RequestId, opts ...grpc.CallOption) (*counterpb.GetResponse, error) {
		return getKind.one(ctx, conn, &counterpb.GetRequest{Key: key, Name: n.name}, opts...)
	})
	if err != nil {
		return Count{}, err
	}
	return counted(r), nil
}

// Get is one read of a batch.
type Get struct {
	Counter Counter
	Key     string // 1 to 512 bytes of UTF-8
}

func counted(r *counterpb.GetResponse) Count {
	return Count{Exists: r.GetVersion() != 0, Value: r.GetValue(), Version: r.GetVersion(),
		Parts: int(r.GetParts()), Meta: metaOf(r, nil)}
}

// CompareAndSet sets the key's counter to value if its version is still the given one, as
// a Get or a change told it; 0 means that it must not exist. Of the options it takes
// IdleTTL and IdempotencyKey.
func (n Counter) CompareAndSet(ctx context.Context, key string, value int64, version uint64, opts ...CounterOption) (Change, error) {
	const what = "compare-and-set"
	if err := cmp.Or(n.c.judge(ctx, key, n.name), judgeOptions(opts)); err != nil {
		return Change{}, about(err, what, key, "")
	}
	req := &counterpb.CompareAndSetRequest{Key: key, Name: n.name, Value: value, Version: version}
	for _, o := range opts {
		switch o := o.(type) {
		case CallOption:
			req.IdempotencyKey = cmp.Or(o.text, req.IdempotencyKey)
		case counterOption:
			if o.what != idleTTL {
				return Change{}, about(invalid("options", "of CompareAndSet have a bound; bounds are for Add"), what, key, "")
			}
			req.IdleTtlNs = o.n
		}
	}
	op := n.c.ops.begin().under(req.IdempotencyKey)
	defer op.finish()
	r, err := ask(ctx, n.c, toKey(key, false).of(what), op, func(ctx context.Context, conn *grpc.ClientConn, id *commonpb.RequestId, opts ...grpc.CallOption) (*counterpb.CompareAndSetResponse, error) {
		req.RequestId = unlessKeyed(id, req.IdempotencyKey)
		r, err := counterpb.NewCounterServiceClient(conn).CompareAndSet(ctx, req, opts...)
		op.says(r.GetApplied())
		return r, err
	})
	if err != nil {
		return Change{}, err
	}
	set := Change{Applied: r.GetApplied(), Value: r.GetValue(), Version: r.GetVersion(), Current: r.GetCurrent(), Meta: metaOf(r, r.GetReplay())}
	if !set.Applied {
		set.Refusal = OtherVersion
	}
	return set, nil
}

// Reset sets the key's counter back to 0. It stays, with a version of its own.
func (n Counter) Reset(ctx context.Context, key string, opts ...CallOption) (Cleared, error) {
	idem, err := keyOf(opts)
	if err := cmp.Or(n.c.judge(ctx, key, n.name), err); err != nil {
		return Cleared{}, about(err, "reset", key, "")
	}
	op := n.c.ops.begin().under(idem)
	defer op.finish()
	r, err := ask(ctx, n.c, toKey(key, false).of("reset"), op, func(ctx context.Context, conn *grpc.ClientConn, id *commonpb.RequestId, opts ...grpc.CallOption) (*counterpb.ResetResponse, error) {
		return counterpb.NewCounterServiceClient(conn).Reset(ctx, &counterpb.ResetRequest{Key: key, Name: n.name, RequestId: unlessKeyed(id, idem), IdempotencyKey: idem}, opts...)
	})
	if err != nil {
		return Cleared{}, err
	}
	return Cleared{Existed: r.GetVersion() != 0, Previous: r.GetPrevious(), Version: r.GetVersion(), Current: r.GetCurrent(),
		Meta: metaOf(r, r.GetReplay())}, nil
}

// Deleted is the answer to a Delete.
type Deleted struct {
	Existed  bool
	Previous int64  // the value that the counter had: before the first attempt, if Replayed
	Version  uint64 // of the deletion, above all that the counter had; 0 if there was none
	Current  int64  // the value now: not 0 only if Replayed, and made again since
	Meta
}

// Delete removes the key's counter. If it is made again, its versions are above all that
// it had.
func (n Counter) Delete(ctx context.Context, key string, opts ...CallOption) (Deleted, error) {
	idem, err := keyOf(opts)
	if err := cmp.Or(n.c.judge(ctx, key, n.name), err); err != nil {
		return Deleted{}, about(err, "delete", key, "")
	}
	op := n.c.ops.begin().under(idem)
	defer op.finish()
	r, err := ask(ctx, n.c, toKey(key, false).of("delete"), op, func(ctx context.Context, conn *grpc.ClientConn, id *commonpb.RequestId, opts ...grpc.CallOption) (*counterpb.DeleteResponse, error) {
		return counterpb.NewCounterServiceClient(conn).Delete(ctx, &counterpb.DeleteRequest{Key: key, Name: n.name, RequestId: unlessKeyed(id, idem), IdempotencyKey: idem}, opts...)
	})
	if err != nil {
		return Deleted{}, err
	}
	return Deleted{Existed: r.GetDeleted(), Previous: r.GetPrevious(), Version: r.GetVersion(), Current: r.GetCurrent(),
		Meta: metaOf(r, r.GetReplay())}, nil
}

// ask is a call about a key that always goes in a message of its own. op is nil
// if it changes nothing.
func ask[R interface {
	GetEpoch() uint64
	GetOwner() string
}](ctx context.Context, c *Client, to route, op *operation, f func(ctx context.Context, conn *grpc.ClientConn, id *commonpb.RequestId, opts ...grpc.CallOption) (R, error)) (r R, err error) {
	if to.op == nil {
		to.op = op
	}
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
