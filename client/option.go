package client

import (
	"cmp"
	"context"
	"unicode/utf8"

	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
)

// CallOption goes with any call that changes something. The zero CallOption is none.
type CallOption struct {
	text  string
	given bool
}

// IdempotencyKey names what is to be done: 1 to 64 bytes of UTF-8, such as the number of an
// order. Done again under the same key, also by another process, it acts once and returns
// the first answer, for as long as nodes keep keys: 5 minutes unless they say otherwise. A
// refusal is an answer, too. With other arguments it is ErrRequestIDReused. A node that may
// have forgotten keys refuses it with ErrRecovering. A call that may have been done is sent
// again for half of these 5 minutes, and is ErrOutcomeUnknown then. Without one, the client
// names its operations itself.
//
// A Lock that is acquired again under a key is the grant of before, while it is held: only
// a process that takes the place of the first may do that. ErrLockLost means that the grant
// is over; choose another key.
func IdempotencyKey(key string) CallOption { return CallOption{text: key, given: true} }

// maxIdempotencyKey is the longest idempotency key that nodes take, in bytes.
const maxIdempotencyKey = 64

// validate judges what a node would refuse: what goes in a message with others' operations
// must not spoil it. An empty key is a mistake, and no operation without a key.
func (o CallOption) validate() error {
	if o.given && (o.text == "" || len(o.text) > maxIdempotencyKey || !utf8.ValidString(o.text)) {
		return invalid("IdempotencyKey", "has %d bytes; choose 1 to %d bytes of UTF-8", len(o.text), maxIdempotencyKey)
	}
	return nil
}

// keyOf returns the idempotency key among the options of a call, "" if there is none. The
// last one counts.
func keyOf(opts []CallOption) (key string, err error) {
	for _, o := range opts {
		if err := o.validate(); err != nil {
			return "", err
		}
		if o.given {
			key = o.text
		}
	}
	return key, nil
}

// callable reports what keeps any call from being made: a handle that nobody made, or no
// context.
func (c *Client) callable(ctx context.Context) error {
	switch {
	case c == nil:
		return invalid("handle", "is the zero one; make it by a Client's method, such as Limit, Counter or Lock")
	case ctx == nil:
		return errNoContext()
	}
	return nil
}

func errNoContext() *Error {
	return invalid("context", "is nil; give one, such as context.Background()")
}

// judge validates what every call about a key has, before anything is sent: one bad item
// must not fail a whole batch.
func (c *Client) judge(ctx context.Context, key, name string) error {
	return cmp.Or(c.callable(ctx), address(key, name))
}

// unlessKeyed returns the request id of an operation, which an idempotency key takes the
// place of.
func unlessKeyed(id *commonpb.RequestId, key string) *commonpb.RequestId {
	if key != "" {
		return nil
	}
	return id
}
