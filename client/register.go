package client

import (
	"context"

	"google.golang.org/grpc"

	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	registerpb "github.com/keystead/keystead/proto/keystead/register/v1"
)

// Register is a named register that many keys have, each its own: some bytes under a
// version. It is a small value: making one costs nothing, and it may be copied and kept.
type Register struct {
	c    *Client
	name string
}

// Register names a register, with at most 128 bytes. name "" = "register".
func (c *Client) Register(name string) Register { return Register{c, name} }

// MaxValue is the longest value of a register, in bytes.
const MaxValue = 60 << 10

// RegisterOption is a condition of a change of a register, or what goes with it: Fenced,
// WhileHeld, WhileHeldAs, IfVersion, ForgetFence and IdempotencyKey.
type RegisterOption interface{ isRegisterOption() }

// registerOption is what only changes of registers have.
type registerOption struct {
	what  byte
	token uint64
	text  string
	lock  *HeldLock
}

func (registerOption) isRegisterOption() {}
func (CallOption) isRegisterOption()     {}

const (
	fenced byte = iota + 1
	whileHeld
	underToken
	ifVersion
	forgetFence
)

// Fenced refuses a change if the register was changed under a greater fencing token: that of
// a lock of another key, or of elsewhere. All who change the register have to give one. For a
// lock of the same key, WhileHeld is stronger.
func Fenced(token uint64) RegisterOption { return registerOption{what: fenced, token: token} }

// WhileHeld refuses a change unless the lock is held when it takes effect: also if nobody has
// had the lock, or written, since it was lost. The lock is one of the register's key.
func WhileHeld(l *HeldLock) RegisterOption { return registerOption{what: whileHeld, lock: l} }

// WhileHeldAs is WhileHeld of a lock of the register's key by its name and token, such as
// another process has acquired. name "" = "lock".
func WhileHeldAs(name string, token uint64) RegisterOption {
	return registerOption{what: underToken, text: name, token: token}
}

// IfVersion has Delete remove the register only if it has a version.
func IfVersion(version uint64) RegisterOption {
	return registerOption{what: ifVersion, token: version}
}

// ForgetFence has Delete forget the tokens of Fenced, too.
func ForgetFence() RegisterOption { return registerOption{what: forgetFence} }

// Stored is a register at a moment.
type Stored struct {
	Exists  bool
	Value   []byte // nil if it does not exist
	Version uint64 // rises with every change, also over a Delete; 0 if it does not exist
}

// RegisterState is the answer to a Get.
type RegisterState struct {
	Stored
	// Fence is the greatest token of Fenced; 0 = none. It stays after a Delete.
	Fence uint64
	Meta
}

// Unknown reports whether the register may have existed, and was lost with all nodes that
// kept it: "it does not exist" is no answer then.
func (s *RegisterState) Unknown() bool { return !s.Exists && s.LostEpoch != 0 }

// Written is the answer to a change of a register. A refusal is an answer, not an error.
type Written struct {
	// Applied reports whether the register was changed. A Delete of one that does not exist
	// changes nothing, and has no Refusal.
	Applied bool
	// Refusal is why it was not: OtherVersion, OldFence or HoldOver.
	Refusal Refusal
	// Version of the change: of its first attempt, if Replayed. That of the register, if it
	// was not changed.
	Version uint64
	// Current is the register now: as it was changed, unless Replayed, or changed at all.
	Current Stored
	Meta
}

var wireRegisterRefusals = map[registerpb.Refusal]Refusal{registerpb.Refusal_REFUSAL_OTHER_VERSION: OtherVersion,
	registerpb.Refusal_REFUSAL_OLD_FENCE: OldFence, registerpb.Refusal_REFUSAL_HOLD_OVER: HoldOver, registerpb.Refusal_REFUSAL_UNSPECIFIED: 0}

// registerRefusal is a refusal by what it is on the wire.
func registerRefusal(r registerpb.Refusal) Refusal {
	if why, known := wireRegisterRefusals[r]; known {
		return why
	}
	return OtherRefusal
}

func stored(r *registerpb.Register) Stored {
	return Stored{Exists: r.GetExists(), Value: r.GetValue(), Version: r.GetVersion()}
}

// conditions are what the options of a change say.
type conditions struct {
	fence, version uint64
	hold           *registerpb.Hold
	forget         bool
	idempotencyKey string
}

// conditionsOf judges what the node cannot: that the lock is one of the key. deletes says that
// the change is a Delete.
func conditionsOf(key string, opts []RegisterOption, deletes bool) (q conditions, err error) {
	for _, o := range opts {
		switch o := o.(type) {
		case CallOption:
			if err := o.validate(); err != nil {
				return q, err
			}
			q.idempotencyKey = o.text
		case registerOption:
			if err := q.add(key, &o, deletes); err != nil {
				return q, err
			}
		}
	}
	return q, nil
}

// add adds a condition. All that are named have to hold, so none may take the place of another.
func (q *conditions) add(key string, o *registerOption, deletes bool) error {
	switch o.what {
	case fenced:
		switch {
		case o.token == 0:
			return invalid("Fenced", "is 0, which is no fencing token; leave it out to write without one")
		case q.fence != 0:
			return invalid("Fenced", "is given twice")
		}
		q.fence = o.token
	case whileHeld, underToken:
		if q.hold != nil {
			return invalid("WhileHeld", "is given twice; a change is made under one lock")
		}
		if q.hold = (&registerpb.Hold{Name: o.text, Token: o.token}); o.what == underToken {
			break
		}
		if o.lock == nil || o.lock.key != key {
			return invalid("WhileHeld", "is no lock of this key; use Fenced for one of another")
		}
		q.hold.Name, q.hold.Token = o.lock.name, o.lock.token
	case ifVersion, forgetFence:
		if !deletes {
			return invalid("options", "have one that is for Delete; CompareAndSet has the version")
		}
		switch {
		case o.what == forgetFence:
			q.forget = true
		case o.token == 0:
			return invalid("IfVersion", "is 0: what does not exist need not be deleted")
		case q.version != 0:
			return invalid("IfVersion", "is given twice")
		default:
			q.version = o.token
		}
	}
	return nil
}

// Get reads the key's register.
func (n Register) Get(ctx context.Context, key string) (RegisterState, error) {
	const what = "get register"
	if err := n.c.judge(ctx, key, n.name); err != nil {
		return RegisterState{}, about(err, what, key, "")
	}
	r, err := ask(ctx, n.c, toKey(key, true).of(what), nil, func(ctx context.Context, conn *grpc.ClientConn, _ *commonpb.RequestId, opts ...grpc.CallOption) (*registerpb.GetResponse, error) {
		return registerpb.NewRegisterServiceClient(conn).Get(ctx, &registerpb.GetRequest{Key: key, Name: n.name}, opts...)
	})
	if err != nil {
		return RegisterState{}, err
	}
	return RegisterState{Stored{r.GetExists(), r.GetValue(), r.GetVersion()}, r.GetFence(), metaOf(r, nil)}, nil
}

// Put sets the key's register, of at most MaxValue bytes, whatever it was.
func (n Register) Put(ctx context.Context, key string, value []byte, opts ...RegisterOption) (Written, error) {
	const what = "put"
	q, err := n.conditions(ctx, key, value, opts, false)
	if err != nil {
		return Written{}, about(err, what, key, "")
	}
	return n.change(ctx, what, key, q.idempotencyKey, some(value), func(ctx context.Context, node registerpb.RegisterServiceClient, id *commonpb.RequestId, opts ...grpc.CallOption) (writtenPB, error) {
		return node.Put(ctx, &registerpb.PutRequest{Key: key, Name: n.name, Value: value, Fence: q.fence, Hold: q.hold, RequestId: id, IdempotencyKey: q.idempotencyKey}, opts...)
	})
}

// CompareAndSet sets the key's register if its version is still the given one, as a Get or a
// change told it; 0 means that it must not exist.
func (n Register) CompareAndSet(ctx context.Context, key string, value []byte, version uint64, opts ...RegisterOption) (Written, error) {
	const what = "compare-and-set register"
	q, err := n.conditions(ctx, key, value, opts, false)
	if err != nil {
		return Written{}, about(err, what, key, "")
	}
	return n.change(ctx, what, key, q.idempotencyKey, some(value), func(ctx context.Context, node registerpb.RegisterServiceClient, id *commonpb.RequestId, opts ...grpc.CallOption) (writtenPB, error) {
		return node.CompareAndSet(ctx, &registerpb.CompareAndSetRequest{Key: key, Name: n.name, Value: value, Version: version, Fence: q.fence, Hold: q.hold, RequestId: id, IdempotencyKey: q.idempotencyKey}, opts...)
	})
}

// PutIfAbsent sets the key's register if it does not exist: of several callers one is the
// first. After a loss of the key's state it is ErrRecovering until the grace period is over, for
// whether there was one is not known.
func (n Register) PutIfAbsent(ctx context.Context, key string, value []byte, opts ...RegisterOption) (Written, error) {
	return n.CompareAndSet(ctx, key, value, 0, opts...)
}

// Delete removes the key's register. If it is made again, its versions are above all that it
// had. The greatest token of Fenced stays, and so does the room that it takes, unless
// ForgetFence is given.
func (n Register) Delete(ctx context.Context, key string, opts ...RegisterOption) (Written, error) {
	const what = "delete register"
	q, err := n.conditions(ctx, key, nil, opts, true)
	if err != nil {
		return Written{}, about(err, what, key, "")
	}
	return n.change(ctx, what, key, q.idempotencyKey, nil, func(ctx context.Context, node registerpb.RegisterServiceClient, id *commonpb.RequestId, opts ...grpc.CallOption) (writtenPB, error) {
		r, err := node.Delete(ctx, &registerpb.DeleteRequest{Key: key, Name: n.name, Version: q.version, Fence: q.fence, Hold: q.hold, ForgetFence: q.forget, RequestId: id, IdempotencyKey: q.idempotencyKey}, opts...)
		return deletedPB{r}, err
	})
}

// some is a value that is there, if only an empty one.
func some(value []byte) []byte {
	if value == nil {
		return []byte{}
	}
	return value
}

// conditions judges a change.
func (n Register) conditions(ctx context.Context, key string, value []byte, opts []RegisterOption, deletes bool) (conditions, error) {
	if err := n.c.judge(ctx, key, n.name); err != nil {
		return conditions{}, err
	}
	if len(value) > MaxValue {
		return conditions{}, invalid("value", "has %d bytes; at most %d are allowed", len(value), MaxValue)
	}
	return conditionsOf(key, opts, deletes)
}

// writtenPB is what all answers to changes have.
type writtenPB interface {
	marked
	GetApplied() bool
	GetRefusal() registerpb.Refusal
	GetVersion() uint64
	GetCurrent() *registerpb.Register
	GetReplay() *commonpb.Replay
}

type deletedPB struct{ *registerpb.DeleteResponse }

func (d deletedPB) GetApplied() bool { return d.GetDeleted() }

// change does a change by which the register has a value, or none if it is nil.
func (n Register) change(ctx context.Context, what, key, idempotencyKey string, value []byte,
	f func(ctx context.Context, node registerpb.RegisterServiceClient, id *commonpb.RequestId, opts ...grpc.CallOption) (writtenPB, error)) (Written, error) {
	op := n.c.ops.begin()
	defer op.finish()
	r, err := ask(ctx, n.c, toKey(key, false).of(what), op, func(ctx context.Context, conn *grpc.ClientConn, id *commonpb.RequestId, opts ...grpc.CallOption) (writtenPB, error) {
		r, err := f(ctx, registerpb.NewRegisterServiceClient(conn), unlessKeyed(id, idempotencyKey), opts...)
		if err == nil {
			op.says(r.GetApplied())
		}
		return r, err
	})
	if err != nil {
		return Written{}, err
	}
	w := Written{Applied: r.GetApplied(), Refusal: registerRefusal(r.GetRefusal()), Version: r.GetVersion(),
		Current: stored(r.GetCurrent()), Meta: metaOf(r, r.GetReplay())}
	if w.Applied && !w.Replayed && value != nil {
		w.Current = Stored{Exists: true, Value: value, Version: w.Version}
	}
	return w, nil
}
