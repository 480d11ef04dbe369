package table

import (
	"cmp"
	"math"
	"slices"

	"github.com/keystead/keystead/ring"
)

// MaxMembers is how many members a table may have: 32,768 rows, about 3 MB.
const MaxMembers = 128

// Holder is a process: a node in one of its incarnations. The zero Holder is
// nobody.
type Holder struct {
	Node        string `json:"node"`
	Incarnation uint64 `json:"inc"`
}

// None says that it is nobody.
func (h Holder) None() bool { return h == Holder{} }

// Row is a segment of the hash space: the positions after the End of the row
// before it, up to and including its own, around the end.
type Row struct {
	End uint64
	// Owner is a member, or nobody.
	Owner Holder
	// Standby is a member other than the owner, or nobody.
	Standby Holder
	// Synced says that the standby holds all that was acknowledged.
	// Invariant: what is not written as synced is not synced. A standby stands in
	// the row only while it is; the old one stays until the new one has caught up.
	Synced bool
	// Since is the epoch of the last commit that changed the row, or joined it from
	// others. Splitting changes none.
	Since uint64
	// Held is the epoch of the commit that made Owner the owner.
	// Invariant: Held <= Since.
	Held uint64
	// Lost is the epoch of the commit by which the state of the segment was
	// last lost; 0 = never.
	// Invariant: Lost <= Held.
	Lost uint64
	// Gone is the epoch of the commit by which all of the state of the segment was last lost;
	// 0 = never. What a disk has of it from before is void.
	// Invariant: Gone <= Lost.
	Gone uint64
	// Was and Stood are the last owner of a cold row and its last synced standby, or nobody:
	// processes that are dead, and whose disks count for it.
	// Invariant: Was and Stood are nobody while the row has an owner; Stood is nobody if Was is.
	Was, Stood Holder
	// Grace says that what was lost may still be held elsewhere: locks whose
	// holders count on their leases. It lasts from the commit of the loss until
	// the owner says that it is over (EndGrace), and begins anew with each owner.
	// Invariant: Grace ⇒ Lost != 0.
	Grace bool
	// Unsure says that request ids and idempotency keys of what was lost may be sent again. It
	// lasts from the commit of the loss until the owner says that they are too old (EndGrace).
	// Invariant: Unsure ⇒ Lost != 0, and a window is agreed.
	Unsure bool
}

// Cold says that all who had the row are dead, and their disks are waited for.
func (r *Row) Cold() bool { return r.Owner.None() && !r.Was.None() }

// Phase is where a member stands.
type Phase uint8

// The phases, with their places on the wanted ring while no transition runs.
const (
	Joining Phase = iota + 1 // not on it yet
	Active                   // on it
	Leaving                  // on it, until a transition takes it off
	Drained                  // off it: holds nothing, and is given nothing
)

func (p Phase) String() string {
	switch p {
	case Joining:
		return "joining"
	case Active:
		return "active"
	case Leaving:
		return "leaving"
	case Drained:
		return "drained"
	}
	return "unknown"
}

// Durability is what the cluster has agreed that disks promise.
type Durability uint8

// The durabilities.
const (
	Undurable Durability = iota // nothing: no disk counts for a row
	Interval                    // a disk that counts lacks at most what was answered within the last interval
	Always                      // some answers wait for disks: a disk that counts has all that these told
	Entire                      // all answers do: it lacks nothing
)

// Member is a process that was admitted.
type Member struct {
	Node        string `json:"node"`
	Incarnation uint64 `json:"inc"`
	HashKey     string `json:"hash_key"`  // of its points on the ring
	GRPCAddr    string `json:"grpc_addr"` // of its API, host:port
	RaftAddr    string `json:"raft_addr"`
	RaftID      string `json:"raft_id"`
	Version     string `json:"version"`         // of its program
	Level       uint32 `json:"level,omitempty"` // of the commands that its program knows; 0 is 1
	Phase       Phase  `json:"phase"`
	Since       uint64 `json:"since"` // epoch in which it was admitted
	// Returned: it was admitted while the leader waited for processes of before, after
	// all had been stopped. That it runs does not show that one of those does.
	Returned bool `json:"returned,omitempty"`
	// Stopping: the process is about to stop. If it is not Leaving, all of them are,
	// and each keeps what it has: see Stopped.
	Stopping bool `json:"stopping,omitempty"`
}

// Holder returns the member as rows name it.
func (m Member) Holder() Holder { return Holder{m.Node, m.Incarnation} }

// Transition is a running change of the ring.
type Transition struct {
	ID   uint64   `json:"id"`   // epoch in which it began
	Want []string `json:"want"` // nodes of the ring that it leads to, in order
}

// Table is the ownership table of one epoch.
type Table struct {
	Cluster string // name; "" = not initialised
	UID     string // drawn when the cluster was made
	// LeaseTTL and LeaseMargin are those of all leases, in nanoseconds: a
	// leader must count as the one before it did. 0 = nothing is agreed.
	LeaseTTL, LeaseMargin int64
	// LockTTL is the longest TTL of locks, in nanoseconds. 0 = none is agreed, and
	// nothing that is lost is waited for.
	LockTTL int64
	// IDWindow is how long request ids and idempotency keys are kept, in nanoseconds. 0 =
	// none is agreed, and each node goes by its own setting.
	IDWindow int64
	// Durable is what disks promise in the cluster: see Durability.
	Durable Durability
	Epoch   uint64
	// Level is the greatest one of the commands that took effect; 0 is 1.
	Level uint32
	// WantSince is the epoch in which the wanted ring changed last.
	WantSince  uint64
	Members    []Member // by node
	Rows       []Row    // by End; empty until the first Begin
	Transition *Transition
	Splits     []Split // by ID

	want    *ring.Ring        // that is wanted; nil = of no nodes
	nodes   []string          // by node of want
	holders map[string]Holder // members, by hash key
	index   ring.Index        // of Rows
	divided *divided          // of Splits; nil = there are none
	cold    int               // rows that are cold
}

// Member finds a member by its node.
func (t *Table) Member(node string) (Member, bool) {
	i, ok := t.member(node)
	if !ok {
		return Member{}, false
	}
	return t.Members[i], true
}

func (t *Table) member(node string) (int, bool) {
	return slices.BinarySearchFunc(t.Members, node, func(m Member, n string) int { return cmp.Compare(m.Node, n) })
}

// Holds reports whether this very incarnation is a member.
func (t *Table) Holds(h Holder) bool {
	m, ok := t.Member(h.Node)
	return ok && m.Incarnation == h.Incarnation
}

// Concerns returns the epoch of the last commit that changed a row of which this process
// is the owner or the standby; 0 = there is none.
func (t *Table) Concerns(h Holder) uint64 {
	last := uint64(0)
	for i := range t.Rows {
		if r := &t.Rows[i]; r.Since > last && (r.Owner == h || r.Standby == h) {
			last = r.Since
		}
	}
	return last
}

// Strands reports whether a removal of these would lose the state of a row that one of
// them owns: there is no synced standby that stays.
func (t *Table) Strands(h Holder, gone []Holder) bool {
	return slices.ContainsFunc(t.Rows, func(r Row) bool {
		return r.Owner == h && (!r.Synced || slices.Contains(gone, r.Standby))
	})
}

// Find returns the index of the row that a position belongs to; -1 if there are no
// rows.
func (t *Table) Find(h uint64) int {
	if len(t.Rows) == 0 {
		return -1
	}
	return t.index.Find(h)
}

// Owner returns the member that owns a position, and the since-epoch of its row. ok
// is false if nobody owns it.
func (t *Table) Owner(h uint64) (m Member, since uint64, ok bool) {
	i := t.Find(h)
	if i < 0 || t.Rows[i].Owner.None() {
		return Member{}, 0, false
	}
	m, ok = t.Member(t.Rows[i].Owner.Node)
	return m, t.Rows[i].Since, ok
}

// Wanted returns the ring that is wanted: that of the running transition, or of the
// active and leaving members. nil if it has no nodes.
func (t *Table) Wanted() *ring.Ring { return t.want }

// WantedNodes returns the nodes on the wanted ring, in order.
func (t *Table) WantedNodes() []string { return t.nodes }

// WantedOwner returns the member to which the wanted ring gives a position.
func (t *Table) WantedOwner(h uint64) (Member, bool) {
	if t.want == nil {
		return Member{}, false
	}
	return t.byHashKey(t.want.Owner(h))
}

// Next returns the node that a position belongs to when its owner is gone: the
// row's standby, or else the next one on the wanted ring. "" if there is none.
func (t *Table) Next(h uint64) string {
	i := t.Find(h)
	if i < 0 {
		return ""
	}
	r := &t.Rows[i]
	if !r.Standby.None() {
		return r.Standby.Node
	}
	if t.want == nil || r.Cold() { // it is known when a disk is
		return ""
	}
	key := t.want.Owner(h)
	if m, ok := t.byHashKey(key); ok && m.Node == r.Owner.Node {
		if key, ok = t.want.Standby(h); !ok {
			return ""
		}
	}
	m, _ := t.byHashKey(key)
	return m.Node
}

func (t *Table) byHashKey(key string) (Member, bool) {
	for _, m := range t.Members {
		if m.HashKey == key {
			return m, true
		}
	}
	return Member{}, false
}

// Move is a row that has to change hands for the transition.
type Move struct {
	End      uint64
	From, To Holder
}

// Moves returns the rows that do not stand where the wanted ring has them, in order. A cold
// row has nobody to move it.
func (t *Table) Moves() []Move {
	if t.want == nil {
		return nil
	}
	var moves []Move
	for _, r := range t.Rows {
		//guard:cold-moves false
		if r.Cold() {
			continue
		}
		if to, _ := t.Wants(r.End); to != r.Owner {
			moves = append(moves, Move{r.End, r.Owner, to})
		}
	}
	return moves
}

// Wants is to whom the wanted ring gives a position, and who stands by there. The
// standby is nobody on a ring of one node.
func (t *Table) Wants(h uint64) (owner, standby Holder) {
	if t.want == nil {
		return Holder{}, Holder{}
	}
	owner = t.holders[t.want.Owner(h)]
	if next, ok := t.want.Standby(h); ok {
		standby = t.holders[next]
	}
	return owner, standby
}

// MayHold reports whether a process has to do with what is kept of row i: it is the
// owner or the standby, or the wanted ring has it as one of them, or it is the spare.
// All others discard what they have of it.
func (t *Table) MayHold(i int, h Holder) bool {
	r := &t.Rows[i]
	if h.None() {
		return false
	}
	//guard:still-incarnation -> r.Owner.Node == h.Node || r.Standby.Node == h.Node
	if r.Owner == h || r.Standby == h {
		return true
	}
	owner, standby := t.Wants(r.End)
	return owner == h || standby == h || t.Spare(i) == h
}

// Segment returns the positions of row i: those after the first up to and including
// the second, around the end; all of them if the two are equal.
func (t *Table) Segment(i int) (after, upTo uint64) {
	return t.Rows[(i+len(t.Rows)-1)%len(t.Rows)].End, t.Rows[i].End
}

// Unprotected counts the rows that have no standby, or another than the wanted
// ring gives them, although there is one to be had. A row of which owner and standby
// have still to change places is protected. Cold rows are not counted: see Cold.
func (t *Table) Unprotected() int {
	n := 0
	for _, r := range t.Rows {
		if r.Cold() {
			continue
		}
		if _, standby := t.Wants(r.End); !standby.None() && r.Standby != standby && (r.Standby.None() || //guard:rows-bare
			r.Owner != standby) {
			n++
		}
	}
	return n
}

// GraceTime returns how long the grace of a row lasts on one owner, in nanoseconds: the
// longest TTL of locks, with the drift of clocks that the leases allow for.
func (t *Table) GraceTime() int64 {
	if t.LeaseTTL == 0 {
		return t.LockTTL
	}
	return t.LockTTL + (t.LockTTL/t.LeaseTTL+1)*t.LeaseMargin
}

// InGrace counts the rows that are in grace.
func (t *Table) InGrace() int {
	n := 0
	for i := range t.Rows {
		if t.Rows[i].Grace {
			n++
		}
	}
	return n
}

// LostInPart reports whether the last loss was of what a disk may have lacked, and not of all.
func (r *Row) LostInPart() bool {
	//guard:lost-in-part r.Lost > r.Gone -> false
	return r.Lost > r.Gone
}

// InGraceInPart counts those rows that are in grace after a loss of a part.
func (t *Table) InGraceInPart() int {
	n := 0
	for i := range t.Rows {
		if r := &t.Rows[i]; r.Grace && r.LostInPart() {
			n++
		}
	}
	return n
}

// Share returns how much of the hash space a node owns, from 0 to 1.
func (t *Table) Share(node string) float64 {
	sum := 0.0
	for i, r := range t.Rows {
		if r.Owner.Node == node {
			sum += t.width(i)
		}
	}
	return sum
}

// width returns how much of the hash space a row is, from 0 to 1.
func (t *Table) width(i int) float64 {
	if len(t.Rows) == 1 {
		return 1
	}
	before := t.Rows[(i+len(t.Rows)-1)%len(t.Rows)].End
	return float64(t.Rows[i].End-before) / math.Exp2(64)
}

// finish computes what is derived.
func (t *Table) finish() *Table {
	ends := make([]uint64, len(t.Rows))
	t.cold = 0
	for i := range t.Rows {
		if ends[i] = t.Rows[i].End; t.Rows[i].Cold() {
			t.cold++
		}
	}
	if len(ends) > 0 {
		t.index = ring.NewIndex(ends)
	}
	t.holders = make(map[string]Holder, len(t.Members))
	for _, m := range t.Members {
		t.holders[m.HashKey] = m.Holder()
	}
	t.nodes = t.ringNodes()
	t.want = t.ringOf(t.nodes, t.want)
	return t
}

// ringNodes returns the nodes that the wanted ring is of, in order: those of the
// transition, or all that are active or have still to leave.
func (t *Table) ringNodes() []string {
	var nodes []string
	for _, m := range t.Members {
		if t.Transition == nil && (m.Phase == Active || m.Phase == Leaving) || t.Transition != nil && slices.Contains(t.Transition.Want, m.Node) {
			nodes = append(nodes, m.Node)
		}
	}
	return nodes
}

// ringOf returns the ring of these nodes: old, if it is that already.
func (t *Table) ringOf(nodes []string, old *ring.Ring) *ring.Ring {
	if len(nodes) == 0 {
		return nil
	}
	keys := make([]string, len(nodes))
	for i, n := range nodes {
		m, _ := t.Member(n)
		keys[i] = m.HashKey
	}
	slices.Sort(keys)
	if old != nil && slices.Equal(old.Nodes(), keys) {
		return old
	}
	r, err := ring.New(keys)
	if err != nil {
		panic("table: the members make no ring: " + err.Error()) // Admit checks their hash keys
	}
	return r
}
