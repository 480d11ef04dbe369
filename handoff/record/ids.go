package record

import (
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/reqid"
	"github.com/keystead/keystead/owner/wire"
)

// The least bytes that parts of a record take, by which their numbers are
// bounded before they are read.
const (
	minOutcome = 4 + 1 + 1 + 1
	minDone    = 16 + 1 + 1 + minOutcome
	minClient  = 16 + 1 + 1 + 1 + 1
	minOp      = 1 + 1 + minOutcome
	minMember  = 16 + 1 + 1
)

// The most bytes that parts of a record take. Numbers are taken for as long as they
// can be, though most are bounded by less.
const (
	maxID      = 16 + 2*wire.MaxNumber
	maxOutcome = 4 + 1 + 2*wire.MaxNumber
	maxClient  = 16 + 4*wire.MaxNumber
	maxOp      = 2*wire.MaxNumber + maxOutcome

	// MaxMember is what one member of an object adds to its record, or, when it is gone, the
	// request id that is answered by that, which is less.
	MaxMember = 16 + wire.MaxNumber + 1 + 2 + owner.MaxMember
	// MaxGone is what one that is gone adds.
	MaxGone = 16 + wire.MaxNumber + 1
	// MaxRest is what a record has beside members: the address, the state, the answers of
	// the operation and of the caller that got the object by it, and the request ids of an object that is
	// copied.
	MaxRest = 3 + 2 + owner.MaxKey + 2 + owner.MaxName + 2*wire.MaxNumber +
		wire.MaxNumber + owner.MaxState +
		wire.MaxNumber + 2*(maxID+maxOutcome) +
		2*wire.MaxNumber + (owner.MaxKept+1)*max(maxClient, maxOp) + wire.MaxNumber
	// MaxAlone is the largest record of an object whose kind has no members.
	MaxAlone = MaxRest - owner.MaxState + owner.MaxAlone
)

// encoder writes what all kinds have.
type encoder struct{ wire.Writer }

func (e *encoder) client(c reqid.Client) {
	e.Fixed64(c.Hi)
	e.Fixed64(c.Lo)
}

func (e *encoder) outcome(o *reqid.Outcome) {
	e.Fixed32(o.Print)
	e.Byte(o.Code)
	e.Int(o.A)
	e.Int(o.B)
}

// decoder reads what the encoder wrote.
type decoder struct{ wire.Reader }

func (d *decoder) client() reqid.Client {
	return reqid.Client{Hi: d.Fixed64(), Lo: d.Fixed64()}
}

func (d *decoder) outcome() reqid.Outcome {
	return reqid.Outcome{Print: d.Fixed32(), Code: d.Byte(), A: d.Int(), B: d.Int()}
}
