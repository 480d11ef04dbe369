package table

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
)

// Version is that of commands and snapshots. A node that meets a later one
// stops rather than diverge.
const Version = 1

// Command is an entry of the log. Exactly one of its pointers is set.
type Command struct {
	Version int `json:"v"`
	// ID names the proposal in logs. A command that is proposed again keeps it.
	ID string `json:"id"`

	Init   *Init   `json:"init,omitempty"`
	Admit  *Admit  `json:"admit,omitempty"`
	Begin  *Begin  `json:"begin,omitempty"`
	Flip   *Flip   `json:"flip,omitempty"`
	End    *End    `json:"end,omitempty"`
	Remove *Remove `json:"remove,omitempty"`
	Tidy   *Tidy   `json:"tidy,omitempty"`
	Raise  *Raise  `json:"raise,omitempty"`
}

// Init makes the cluster. It is refused when there is one.
type Init struct {
	Cluster string `json:"cluster"`
	UID     string `json:"uid"`
	Epoch   uint64 `json:"epoch"` // to start at
	// LeaseTTL and LeaseMargin are agreed with the cluster, in nanoseconds.
	LeaseTTL    int64 `json:"lease_ttl"`
	LeaseMargin int64 `json:"lease_margin"`
}

// Admit makes a process a member that owns nothing yet. It is refused while
// another incarnation of the node is a member.
type Admit struct {
	Member Member `json:"member"` // Phase and Since are set by Apply
}

// Begin starts a transition to the ring of these members: splits segments at its
// points, and gives those that nobody owns their owner. It is refused while a
// transition runs.
type Begin struct {
	Want []Holder `json:"want"`
}

// Flip gives segments of one member to another, as the transition wants. Only
// the source proposes it, after it has stopped acting for them.
type Flip struct {
	Transition uint64   `json:"transition"`
	From       Holder   `json:"from"`
	To         Holder   `json:"to"`
	Ends       []uint64 `json:"ends"`
}

// End closes a transition when all segments stand where it wants them.
type End struct {
	Transition uint64 `json:"transition"`
}

// Remove takes members out whose leases are over, all in one judgement.
type Remove struct {
	Members []Holder `json:"members"`
	Reason  string   `json:"reason"` // for people
}

// Tidy joins neighbouring rows that differ in nothing and lie on no point of the
// ring any more. It is refused while a transition runs.
type Tidy struct{}

// Raise raises the epoch above one whose fencing tokens are used up.
type Raise struct {
	Above uint64 `json:"above"`
}

// Encode is the command as the log has it.
func (c Command) Encode() []byte {
	c.Version = Version
	b, err := json.Marshal(c)
	if err != nil {
		panic("table: " + err.Error()) // nothing in it can fail
	}
	return b
}

// ErrUnknown is the error of a command that this version does not know. Whoever
// follows the log must stop: guessing would make the tables of nodes differ.
var ErrUnknown = errors.New("the log holds a command that this version does not know; upgrade this node")

// Decode reads a command of the log.
func Decode(b []byte) (Command, error) {
	var c Command
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&c); err != nil {
		return c, fmt.Errorf("%w (%v)", ErrUnknown, err)
	}
	if c.Version != Version || c.count() != 1 {
		return c, fmt.Errorf("%w (version %d, %d parts)", ErrUnknown, c.Version, c.count())
	}
	return c, nil
}

func (c Command) count() int {
	n := 0
	for _, set := range []bool{c.Init != nil, c.Admit != nil, c.Begin != nil, c.Flip != nil, c.End != nil, c.Remove != nil, c.Tidy != nil, c.Raise != nil} {
		if set {
			n++
		}
	}
	return n
}

// Kind is the command's name, for people.
func (c Command) Kind() string {
	switch {
	case c.Init != nil:
		return "init"
	case c.Admit != nil:
		return "admit"
	case c.Begin != nil:
		return "begin"
	case c.Flip != nil:
		return "flip"
	case c.End != nil:
		return "end"
	case c.Remove != nil:
		return "remove"
	case c.Tidy != nil:
		return "tidy"
	case c.Raise != nil:
		return "raise"
	}
	return "unknown"
}

// Refused is why a command changed nothing.
type Refused struct{ Why string }

func (r *Refused) Error() string { return r.Why }

func refused(format string, args ...any) *Refused { return &Refused{fmt.Sprintf(format, args...)} }
