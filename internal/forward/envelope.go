package forward

import (
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
	"github.com/keystead/keystead/ring"
)

// EnvelopeLevel is the level of the cluster from which on calls travel by the number of
// their operation. Below it, each operation has a field.
const EnvelopeLevel = 4

// Operations finds an operation by its number; nil if there is none.
type Operations func(number uint32) *Operation

// Encode puts a call into the envelope that a cluster of this level uses. age is what the
// request id has grown older since the call came, and wait the time that is left to wait.
func Encode(c *Call, level4 bool) (*peerv1.ForwardCall, error) {
	f := &peerv1.ForwardCall{Since: c.Since, DeadlineNs: c.Deadline, Part: c.Part}
	if level4 {
		b, err := c.Request.MarshalVT()
		if err != nil {
			return nil, err
		}
		f.Operation, f.Request, f.Key, f.RequestId, f.WaitNs = c.Op.Number, b, c.Key, c.ID, c.Wait
		f.Principal, f.TraceParent = c.Principal, c.TraceParent
		return f, nil
	}
	b, err := patched(c).MarshalVT()
	if err != nil {
		return nil, err
	}
	if !setField(f, c.Op.Number, b) {
		return nil, fmt.Errorf("the operation %s (%d) travels from level %d on", c.Op.Name, c.Op.Number, EnvelopeLevel)
	}
	return f, nil
}

// patched returns the request of a call with its id as old, and its wait as long, as the call
// has them.
func patched(c *Call) Message {
	was := c.Op.Call(c.Request)
	if was.Wait == c.Wait && (was.ID == c.ID || was.ID.GetAgeNs() == c.ID.GetAgeNs()) {
		return c.Request
	}
	m := proto.Clone(c.Request).(Message)
	set := func(of protoreflect.Message, field protoreflect.Name, ns int64) {
		if d := of.Descriptor().Fields().ByName(field); d != nil {
			of.Set(d, protoreflect.ValueOfInt64(ns))
		}
	}
	r := m.ProtoReflect()
	set(r, "wait_ns", c.Wait)
	if d := r.Descriptor().Fields().ByName("request_id"); d != nil && c.ID != nil {
		set(r.Mutable(d).Message(), "age_ns", c.ID.AgeNs)
	}
	return m
}

// Decode reads a call in either envelope.
func Decode(f *peerv1.ForwardCall, ops Operations) (*Call, error) {
	number, request := f.Operation, f.Request
	if number == 0 {
		number, request = field(f)
	}
	op := ops(number)
	if op == nil {
		return nil, &Unknown{number}
	}
	m := op.Request()
	if err := m.UnmarshalVT(request); err != nil {
		return nil, fmt.Errorf("the request of the operation %s cannot be read: %w", op.Name, err)
	}
	c := op.Call(m)
	if f.Operation != 0 {
		c.ID, c.Wait, c.Principal, c.TraceParent, c.Enveloped = f.RequestId, f.WaitNs, f.Principal, f.TraceParent, true
	}
	c.Hash = ring.Hash(c.Key)
	c.Part, c.Tag, c.Since, c.Deadline = f.Part, f.Tag, f.Since, f.DeadlineNs
	return &c, nil
}

// Unknown is the error of a call of an operation that this program does not know.
type Unknown struct{ Number uint32 }

func (u *Unknown) Error() string {
	return fmt.Sprintf("operation %d is unknown to this node", u.Number)
}

// EncodeAnswer puts a response into the envelope of its call.
func EncodeAnswer(c *Call, m Message) (*peerv1.ForwardAnswer, error) {
	b, err := m.MarshalVT()
	if err != nil {
		return nil, err
	}
	if c.Enveloped {
		return &peerv1.ForwardAnswer{Tag: c.Tag, Operation: c.Op.Number, Response: b}, nil
	}
	f := &peerv1.ForwardAnswer{Tag: c.Tag}
	setAnswerField(f, c.Op.Number, b)
	return f, nil
}

// Failed returns the answer to a call that was not done.
func Failed(tag uint64, w *commonpb.Error) *peerv1.ForwardAnswer {
	return &peerv1.ForwardAnswer{Tag: tag, Answer: &peerv1.ForwardAnswer_Error{Error: w}}
}

// DecodeAnswer reads the response to a call of an operation. An answer to another one is
// an error: it is never taken for the one that was asked for.
func DecodeAnswer(f *peerv1.ForwardAnswer, op *Operation) (Message, error) {
	number, response := f.Operation, f.Response
	if number == 0 {
		number, response = answerField(f)
	}
	//guard:answer-of-another
	if number != op.Number {
		return nil, fmt.Errorf("the answer is one to operation %d, and %s (%d) was asked for", number, op.Name, op.Number)
	}
	//guard:answer-of-nothing
	if len(response) == 0 && !op.Bare {
		return nil, fmt.Errorf("the answer to %s (%d) has neither a response nor an error", op.Name, op.Number)
	}
	m := op.Response()
	if err := m.UnmarshalVT(response); err != nil {
		return nil, fmt.Errorf("the answer to %s cannot be read: %w", op.Name, err)
	}
	return m, nil
}
