package forward

import (
	"google.golang.org/protobuf/proto"

	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
	"github.com/keystead/keystead/ring/epoch/table"
)

// Message is a request or a response, as it is generated.
type Message interface {
	proto.Message
	SizeVT() int
	MarshalVT() ([]byte, error)
	UnmarshalVT([]byte) error
}

// Operation is what has to be known of an operation to forward a call of it.
type Operation struct {
	// Number names the operation between nodes. It stands for one form of request and
	// response: when one of them changes so that a neighbour would read it wrong, the
	// operation gets another number, used from a level of the table on.
	Number uint32
	// Name is for people.
	Name string
	// Request and Response make empty messages.
	Request, Response func() Message
	// Call describes a request: all but the hash of its key.
	Call func(request Message) Call
	// Beside reports that calls are answered beside their stream: they wait for something
	// themselves, or take so long that others should not wait for them.
	Beside bool
	// Bare reports that a response may have no fields. Those of users have at least the name
	// of the node that has decided.
	Bare bool
	// Sum is the answer of a split object to a request that all of its parts have
	// answered (Call.All), nil if one part answers for it. node is the one that asked them.
	Sum func(node string, sp *table.Split, request Message, parts []Message) Message
	// Undo is the call that takes back what nobody will hear of, nil if there is nothing
	// to take back. Only operations that wait have it.
	Undo func(request, response Message) *Call
	// Waited adds to a response the time that its call had waited before it came to the
	// answering node, nil if that is not told.
	Waited func(response Message, before int64, identified bool)
}

// Call is one call: what it asks, and what it is about.
type Call struct {
	Op      *Operation
	Request Message // as it came; nobody writes to it

	Kind      string // of the object, if it may be split; "" otherwise
	Key, Name string // of the object; empty for calls about parts
	Hash      uint64 // position of Key

	ID        *commonpb.RequestId // nil = none; as old as when the call came
	Wait      int64               // how long it may stand in a queue, ns
	Harmless  bool                // it changes nothing, or the same when it is done twice
	Divisible bool                // a part of a split object can do it, as far as the request tells
	All       bool                // all parts of a split object answer it together: see Operation.Sum
	Phase     table.SplitPhase    // in which a part answers it; 0 = Open

	Part        *peerv1.Part // of a split object; nil = none
	Principal   string       // for whom it is done; "" = nobody said
	TraceParent string       // of the caller's span; "" = none

	// Of a call that another node has passed on.

	Tag       uint64
	Since     uint64 // by which the sender chose this node
	Deadline  int64  // ns that the caller still waits; 0 = for ever
	Enveloped bool   // the answer goes in the envelope of level 4
}

// Waits reports whether a call may stand in a queue.
func (c *Call) Waits() bool { return c.Wait > 0 }

// InPhase returns the phase of a split in which a part answers the call.
func (c *Call) InPhase() table.SplitPhase {
	if c.Phase == 0 {
		return table.Open
	}
	return c.Phase
}
