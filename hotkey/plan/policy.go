package plan

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/keystead/keystead/hotkey/heat"
)

// Policy decides when an object is split, and into how many parts.
type Policy struct {
	// Floor is the rate from which a hot object is split, in operations a second. It is
	// made whole when it has had less than half of that for Stay. Default 1,000.
	Floor float64
	// PerPart is what a part is worth, in operations a second. Default 1,000.
	PerPart float64
	// Stay is how long an object is split at least, and how long there has to be a reason
	// before parts are united or placed anew, in nanoseconds. Default 10 s.
	Stay int64
	// HoldOff is how long an object is not split after an operation needed it whole, in
	// nanoseconds. Default 60 s.
	HoldOff int64
	// Max bounds the objects that are split at a time, in the whole cluster. Default 100.
	Max int
}

// Bounds of a policy, and what it is by default.
const (
	DefaultPerPart   = 1000
	DefaultHoldOff   = int64(time.Minute)
	DefaultMaxSplits = 100
	MaxSplits        = 1000 // each with up to MaxParts parts in the agreed table
	MaxHoldOff       = int64(24 * time.Hour)
)

// WithDefaults fills in what is 0.
func (p Policy) WithDefaults() Policy {
	return Policy{
		Floor: cmp.Or(p.Floor, heat.DefaultFloor), PerPart: cmp.Or(p.PerPart, DefaultPerPart),
		Stay: cmp.Or(p.Stay, heat.DefaultStay), HoldOff: cmp.Or(p.HoldOff, DefaultHoldOff), Max: cmp.Or(p.Max, DefaultMaxSplits),
	}
}

var errPolicy = errors.New("plan: the policy makes no sense")

// Validate reports what is wrong with a policy.
func (p Policy) Validate() error {
	switch {
	case !(p.Floor >= 1 && p.Floor <= 1e9):
		return fmt.Errorf("floor %g: choose 1 to 1,000,000,000 operations a second", p.Floor)
	case !(p.PerPart >= 1 && p.PerPart <= 1e9):
		return fmt.Errorf("per part %g: choose 1 to 1,000,000,000 operations a second", p.PerPart)
	case p.Stay < int64(time.Second) || p.Stay > heat.MaxStay:
		return fmt.Errorf("stay %v: choose 1s to %v", time.Duration(p.Stay), time.Duration(heat.MaxStay))
	case p.HoldOff < p.Stay || p.HoldOff > MaxHoldOff:
		return fmt.Errorf("hold-off %v: choose %v, which is stay, to %v", time.Duration(p.HoldOff), time.Duration(p.Stay), time.Duration(MaxHoldOff))
	case p.Max < 1 || p.Max > MaxSplits:
		return fmt.Errorf("max %d: choose 1 to %d splits", p.Max, MaxSplits)
	}
	return nil
}

// Candidate is a hot object that is not split and could be.
type Candidate[K comparable] struct {
	Key  K
	Rate float64 // operations a second, as in [heat.Hot]
}

// Divided is an object that is split, of which this node is the home.
type Divided[K comparable] struct {
	Key K
	ID  uint64 // of the split: another one of the same object has another
	// Open is whether its parts are served. Nothing is decided about one that is not.
	Open bool
	// ByHand is whether a person had it split: its number of parts stays as it is, and it
	// is not made whole because it has little to do.
	ByHand bool
	// Rate is what all parts that have said so get, in operations a second over the last
	// ten seconds or so, counted from nothing when the split opened.
	Rate   float64
	Silent int      // parts that have not said: the rate is at least Rate
	Places []string // the node of each part
}

// Scene is what a home decides from.
type Scene[K comparable] struct {
	Nodes  []Node // of the wanted ring
	Moving bool   // a transition of the ring runs
	Splits int    // in the table: all homes', and those that are not open
	// Hot are the candidates of this home, Divided its splits. Each object is in one of
	// them at most, and at most once.
	Hot     []Candidate[K]
	Divided []Divided[K]
}

// Action is what is to be done about an object.
type Action uint8

// Actions. A resize and a respread are a merge, after which a later decision is to split.
const (
	Split    Action = iota + 1 // into Decision.Parts parts
	Resize                     // merge: it is worth another number of parts
	Respread                   // merge: its parts are placed unevenly
	Merge                      // merge, and leave it whole
)

func (a Action) String() string {
	switch a {
	case Split:
		return "split"
	case Resize:
		return "resize"
	case Respread:
		return "respread"
	case Merge:
		return "merge"
	}
	return fmt.Sprintf("Action(%d)", uint8(a))
}

// Decision is what is to be done about one object, and why.
type Decision[K comparable] struct {
	Key    K
	ID     uint64 // of the split; 0 for Split
	Action Action
	Parts  int    // that it is to have; 0 for Merge
	ByHand bool   // a Split in place of one that was by hand, and is to count as such
	Reason string // for people
}
