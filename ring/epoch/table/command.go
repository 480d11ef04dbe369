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

	Init     *Init     `json:"init,omitempty"`
	Admit    *Admit    `json:"admit,omitempty"`
	Begin    *Begin    `json:"begin,omitempty"`
	Flip     *Flip     `json:"flip,omitempty"`
	End      *End      `json:"end,omitempty"`
	Remove   *Remove   `json:"remove,omitempty"`
	Compact  *Compact  `json:"tidy,omitempty"`
	Raise    *Raise    `json:"raise,omitempty"`
	Sync     *Sync     `json:"sync,omitempty"`
	Unsync   *Unsync   `json:"unsync,omitempty"`
	Drain    *Drain    `json:"drain,omitempty"`
	Resume   *Resume   `json:"resume,omitempty"`
	EndGrace *EndGrace `json:"settle,omitempty"`

	BeginSplit *BeginSplit `json:"begin_split,omitempty"` // this and those that follow: level 2
	OpenSplit  *OpenSplit  `json:"open_split,omitempty"`
	Weigh      *Weigh      `json:"weigh,omitempty"`
	CloseSplit *CloseSplit `json:"close_split,omitempty"`
	EndSplit   *EndSplit   `json:"end_split,omitempty"`

	Adopt   *Adopt   `json:"adopt,omitempty"` // this and those that follow: level 3
	EndWait *EndWait `json:"end_wait,omitempty"`

	Recover *Recover `json:"recover,omitempty"` // this and those that follow: DiskLevel
	Forgo   *Forgo   `json:"forgo,omitempty"`

	Policies *SetPolicies `json:"policies,omitempty"` // PoliciesLevel; it does not change the table
}

// Init makes the cluster. It is refused when there is one.
type Init struct {
	Cluster string `json:"cluster"`
	UID     string `json:"uid"`
	Epoch   uint64 `json:"epoch"` // to start at
	// LeaseTTL and LeaseMargin are agreed with the cluster, in nanoseconds.
	LeaseTTL    int64 `json:"lease_ttl"`
	LeaseMargin int64 `json:"lease_margin"`
	// LockTTL is agreed with the cluster, in nanoseconds: no lock is granted for
	// longer. 0 = none is agreed.
	LockTTL int64 `json:"lock_ttl,omitempty"`
	// Level is that of the cluster from the beginning, 0 = 1. No process that does not know it
	// is admitted.
	Level uint32 `json:"level,omitempty"`
	// IDWindow is agreed with the cluster, in nanoseconds: for so long request ids and
	// idempotency keys are kept. 0 = none is agreed yet. WindowLevel.
	IDWindow int64 `json:"id_window,omitempty"`
}

// Admit makes a process a member that owns nothing yet. It is refused while
// another incarnation of the node is a member.
type Admit struct {
	Member Member `json:"member"` // Phase, Since and Returned are set by Apply
	// Cold: the leader waits for processes that were members before it; this is none of
	// them. Level 3.
	Cold bool `json:"cold,omitempty"`
}

// Begin starts a transition to the ring of these members: splits segments at its
// points, and gives those that nobody owns their owner. It is refused while a
// transition runs.
type Begin struct {
	Want []Holder `json:"want"`
}

// Flip gives segments of one member to another, as the transition wants. Only
// the source proposes it, after it has stopped acting for them, and after the
// target and the standby have acknowledged all that they hold.
type Flip struct {
	Transition uint64 `json:"transition"`
	// WantSince is that of the table by which the source made its copies. The
	// flip is refused if the wanted ring has changed since.
	WantSince uint64   `json:"want_since"`
	From      Holder   `json:"from"`
	To        Holder   `json:"to"`
	Standby   Holder   `json:"standby"` // of the target: the process that has the copy; or nobody
	Ends      []uint64 `json:"ends"`
	// Kept says that the target's disk has all of them. DiskLevel.
	Kept bool `json:"kept,omitempty"`
}

// Sync makes a member the synced standby of segments, in the place of the one
// that stands there. Only their owner proposes it, when the member has caught up
// and all answers wait for it. It is refused if a segment or the wanted ring is
// not as it was for the owner.
type Sync struct {
	WantSince uint64  `json:"want_since"`
	Owner     Holder  `json:"owner"`
	Standby   Holder  `json:"standby"`
	Rows      []Stamp `json:"rows"`
	// Kept says that the standby's disk has all of them. DiskLevel.
	Kept bool `json:"kept,omitempty"`
}

// Stamp is a segment as somebody saw it.
type Stamp struct {
	After uint64 `json:"a"` // its bounds: see Table.Segment
	End   uint64 `json:"e"`
	Since uint64 `json:"s"`
}

// Unsync takes a standby out of segments. Only their owner proposes it, before it
// acknowledges anything without that standby. It stamps all segments that it
// names, also those where the standby does not stand: a Sync that was proposed
// before it and is still on its way is refused then.
type Unsync struct {
	Owner   Holder   `json:"owner"`
	Standby Holder   `json:"standby"`
	Ends    []uint64 `json:"ends"`
}

// EndGrace ends the grace of segments. Only their owner proposes it, when all that
// may have been held before the loss is over. It is refused if a segment is not
// as it was for the owner.
type EndGrace struct {
	Owner Holder `json:"owner"`
	Rows  []Loss `json:"rows"`
	// IDs ends their Unsure instead: what was done before the loss is not sent again.
	// WindowLevel.
	IDs bool `json:"ids,omitempty"`
}

// Loss is a segment and the epoch of its loss.
type Loss struct {
	End  uint64 `json:"e"`
	Lost uint64 `json:"l"`
}

// Drain has a member give away all that it owns and holds; Undo takes that back.
type Drain struct {
	Member Holder `json:"member"`
	Undo   bool   `json:"undo,omitempty"`
	// Stop says that the process is about to stop, and that it can keep what it has
	// for the one that comes after it. When all do, none gives anything away.
	Stop bool `json:"stop,omitempty"`
}

// Resume puts a process in the place of an earlier one of its node, which has
// stopped for good and left it all that it held: the rows that the earlier one
// still owns become its own, without a standby. It is refused unless the earlier
// one is a member.
type Resume struct {
	Member Member `json:"member"`         // HashKey stays as it was; Phase, Since and Returned are set by Apply
	Old    uint64 `json:"old"`            // incarnation of the earlier process
	Cold   bool   `json:"cold,omitempty"` // as in Admit
}

// End closes a transition when all segments stand where it wants them.
type End struct {
	Transition uint64 `json:"transition"`
}

// Remove takes members out whose leases are over, all in one judgement.
type Remove struct {
	Members []Holder `json:"members"`
	Reason  string   `json:"reason"` // for people
	// Term of raft in which it was judged. An entry of another term removes nobody: its
	// leader may have granted leases since. 0 = none is named. Level 3.
	Term uint64 `json:"term,omitempty"`
}

// Compact joins neighbouring rows that differ in nothing and lie on no point of the
// ring any more. It is refused while a transition runs.
type Compact struct{}

// Raise raises the epoch above one whose fencing tokens are used up.
type Raise struct {
	Above uint64 `json:"above"`
	// To is the epoch that it becomes, at most MaxLeap above; 0 = the next one.
	To uint64 `json:"to,omitempty"`
}

// MaxLeap is by how much a Raise may raise the epoch: 8.5 years of the clock's. A clock
// that is wrong by more than that must not use up all epochs.
const MaxLeap = 1 << 36

// Adopt commits a level: see Level. It is refused while a member does not know it.
type Adopt struct {
	Level uint32 `json:"level"`
	// IDWindow is that of Init, for a cluster in which none is agreed yet; in others it
	// means nothing.
	IDWindow int64 `json:"id_window,omitempty"`
	// Durable is what is agreed on from now on, 0 = what is agreed. DiskLevel. It may come with a
	// level that the cluster uses already.
	Durable Durability `json:"durable,omitempty"`
}

// Recover gives cold rows to the process that runs on the disk of one that they name. It is
// refused if a row is not cold, has changed, or does not name that one.
type Recover struct {
	To Holder `json:"to"` // a member
	// Of is the process of the same node by which the disk counts: the last owner or the last
	// synced standby of all the rows.
	Of   Holder  `json:"of"`
	Rows []Stamp `json:"rows"`
	// Whole says that the disk lacks nothing that was answered. Else what it lacks is declared
	// lost: Lost rises, Gone does not.
	Whole bool `json:"whole,omitempty"`
}

// Forgo takes processes out of cold rows: their disks are not waited for any more. A row
// that names nobody then is lost as a whole: a member owns it, empty.
type Forgo struct {
	Holders []Holder `json:"holders"`
	Reason  string   `json:"reason"` // for people
}

// EndWait says that no process is waited for any more that was a member before those
// that have returned: it has come back, or it never stopped.
type EndWait struct{}

// BeginSplit divides an object. Its ID is the next epoch: the command is refused if
// another one came before it. Phase, Since, Weighed and Base are set by Apply.
type BeginSplit struct {
	Split Split `json:"split"`
}

// OpenSplit has the parts served. Only the home proposes it, when all parts and
// their standbys have what it divided.
type OpenSplit struct {
	ID   uint64 `json:"id"`
	Home Holder `json:"home"`
	Base int64  `json:"base,omitempty"`
}

// Weigh lowers or raises the weights of the parts. Only the home proposes it; it is
// refused unless the weights are those of the epoch Expect. To raise, the owners of all
// parts must have said that they have applied that epoch.
type Weigh struct {
	ID      uint64   `json:"id"`
	Home    Holder   `json:"home"`
	Expect  uint64   `json:"expect"`
	Weights []uint32 `json:"weights"`
}

// CloseSplit has the parts not served any more. Anybody may propose it.
type CloseSplit struct {
	ID     uint64 `json:"id"`
	Reason string `json:"reason,omitempty"` // for people
}

// EndSplit has the whole object served. Only the home proposes it, when it and its
// standby have all that the parts had; or before they were opened. Since is that of the
// phase that it means to end: a home that gives up opening, and does not know that the
// parts were served and are to be united, must not end that.
type EndSplit struct {
	ID    uint64 `json:"id"`
	Home  Holder `json:"home"`
	Since uint64 `json:"since"`
}

// Encode returns the command as the log has it.
func (c Command) Encode() []byte {
	c.Version = Version
	b, err := json.Marshal(c)
	if err != nil {
		panic("table: " + err.Error()) // nothing in it can fail
	}
	return b
}

// ErrUnknown is the error of a command that this version does not know. A node
// that follows the log must stop: guessing would make the tables of nodes differ.
var ErrUnknown = errors.New("the log holds a command that this version does not know; upgrade this node")

// Decode reads a command of the log.
func Decode(b []byte) (Command, error) {
	var c Command
	d := json.NewDecoder(bytes.NewReader(b))
	//guard:command-fields
	d.DisallowUnknownFields()
	if err := d.Decode(&c); err != nil {
		return c, fmt.Errorf("%w (%v)", ErrUnknown, err)
	}
	if c.Version != Version || //guard:command-version
		c.count() != 1 {
		return c, fmt.Errorf("%w (version %d, %d parts)", ErrUnknown, c.Version, c.count())
	}
	return c, nil
}

func (c Command) count() int {
	n := 0
	for _, set := range []bool{c.Init != nil, c.Admit != nil, c.Begin != nil, c.Flip != nil, c.End != nil, c.Remove != nil, c.Compact != nil, c.Raise != nil, c.Sync != nil, c.Unsync != nil, c.Drain != nil, c.Resume != nil, c.EndGrace != nil,
		c.BeginSplit != nil, c.OpenSplit != nil, c.Weigh != nil, c.CloseSplit != nil, c.EndSplit != nil, c.Adopt != nil, c.EndWait != nil, c.Policies != nil, c.Recover != nil, c.Forgo != nil} {
		if set {
			n++
		}
	}
	return n
}

// Kind returns the command's name, for people.
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
	case c.Compact != nil:
		return "compact"
	case c.Raise != nil:
		return "raise"
	case c.Sync != nil:
		return "sync"
	case c.Unsync != nil:
		return "unsync"
	case c.Drain != nil:
		return "drain"
	case c.Resume != nil:
		return "resume"
	case c.EndGrace != nil:
		return "end_grace"
	case c.BeginSplit != nil:
		return "begin_split"
	case c.OpenSplit != nil:
		return "open_split"
	case c.Weigh != nil:
		return "weigh"
	case c.CloseSplit != nil:
		return "close_split"
	case c.EndSplit != nil:
		return "end_split"
	case c.Adopt != nil:
		return "adopt"
	case c.EndWait != nil:
		return "end_wait"
	case c.Policies != nil:
		return "policies"
	case c.Recover != nil:
		return "recover"
	case c.Forgo != nil:
		return "forgo"
	}
	return "unknown"
}

// ErrNotProposed is the error of a command that came before no leader: it changes
// nothing.
var ErrNotProposed = errors.New("there is no leader to propose to")

// Refused is why a command changed nothing.
type Refused struct{ Why string }

func (r *Refused) Error() string { return r.Why }

func refused(format string, args ...any) *Refused { return &Refused{fmt.Sprintf(format, args...)} }
