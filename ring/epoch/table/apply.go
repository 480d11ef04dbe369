package table

import (
	"slices"

	"github.com/keystead/keystead/ring"
)

// Apply returns the table after a command. If the command is refused it returns
// the table itself and a *Refused.
func (t *Table) Apply(c Command) (*Table, error) {
	if c.Init == nil && t.Cluster == "" {
		return t, refused("the cluster has not been made")
	}
	next := &Table{Cluster: t.Cluster, UID: t.UID, LeaseTTL: t.LeaseTTL, LeaseMargin: t.LeaseMargin, LockTTL: t.LockTTL, IDWindow: t.IDWindow, Durable: t.Durable, Epoch: t.Epoch + 1, WantSince: t.WantSince, Level: t.Level, Members: t.Members, Rows: t.Rows, Transition: t.Transition, Splits: t.Splits, want: t.want, divided: t.divided, nodes: t.nodes, holders: t.holders, cold: t.cold}
	var why *Refused
	switch {
	case c.Init != nil:
		why = next.init(c.Init)
	case c.Admit != nil:
		why = next.admit(c.Admit)
	case c.Begin != nil:
		why = next.begin(c.Begin)
	case c.Flip != nil:
		why = next.flip(c.Flip)
	case c.End != nil:
		why = next.end(c.End)
	case c.Remove != nil:
		why = next.remove(c.Remove)
	case c.Compact != nil:
		why = next.compact()
	case c.Sync != nil:
		why = next.sync(c.Sync)
	case c.Unsync != nil:
		why = next.unsync(c.Unsync)
	case c.Drain != nil:
		why = next.drain(c.Drain)
	case c.Resume != nil:
		why = next.resume(c.Resume)
	case c.EndGrace != nil:
		why = next.endGrace(c.EndGrace)
	case c.Raise != nil:
		why = next.raise(c.Raise, t.Epoch)
	case c.OfSplits():
		why = next.divideBy(c)
	case c.Adopt != nil:
		why = next.adopt(c.Adopt)
	case c.EndWait != nil:
		why = next.endWait()
	case c.Policies != nil:
		why = refused("policies are no part of the table")
	case c.ofDisks():
		why = next.byDisks(c)
	default:
		panic("table: an empty command") // Decode refuses them
	}
	if why != nil {
		return t, why
	}
	if c.Level() > 1 { // 1 is not written down
		next.Level = max(next.Level, c.Level())
	}
	next.allReturned()
	next.finish()
	if next.want != t.want {
		next.WantSince = next.Epoch
	}
	return next, nil
}

// The methods below change a copy that nobody else sees; what it shares with the
// table before they replace, and never write to.

func (t *Table) init(c *Init) *Refused {
	if t.Cluster != "" {
		return refused("the cluster %q exists", t.Cluster)
	}
	if c.Cluster == "" {
		return refused("a cluster needs a name")
	}
	if c.LockTTL < 0 {
		return refused("locks of %d ns at most", c.LockTTL)
	}
	if why := windowFor(c.IDWindow, c.Level); why != nil {
		return why
	}
	t.Cluster, t.UID, t.Epoch = c.Cluster, c.UID, max(c.Epoch, 1)
	t.LeaseTTL, t.LeaseMargin, t.LockTTL, t.IDWindow = c.LeaseTTL, c.LeaseMargin, c.LockTTL, c.IDWindow
	return nil
}

// raise is told the epoch before: that of the table is the next one already.
func (t *Table) raise(c *Raise, epoch uint64) *Refused {
	switch {
	case epoch != c.Above:
		return refused("the epoch is %d", epoch)
	case c.To == 0:
		return nil
	case c.To <= epoch || c.To-epoch > MaxLeap:
		return refused("from the epoch %d to %d", epoch, c.To)
	}
	t.Epoch = c.To
	return nil
}

func (t *Table) admit(c *Admit) *Refused {
	m := c.Member
	//guard:admit-once
	if have, ok := t.Member(m.Node); ok {
		return refused("node %s is a member with incarnation %x", have.Node, have.Incarnation)
	}
	if other, ok := t.byHashKey(m.HashKey); ok {
		return refused("node %s has the hash key %q", other.Node, m.HashKey)
	}
	switch {
	case m.Node == "" || m.Incarnation == 0:
		return refused("a member needs a node and an incarnation")
	case m.HashKey == "" || len(m.HashKey) > ring.MaxHashKey:
		return refused("the hash key of %s has %d bytes; 1 to %d are allowed", m.Node, len(m.HashKey), ring.MaxHashKey)
	case len(t.Members) >= MaxMembers:
		return refused("there are %d members; no more are allowed", len(t.Members))
	}
	if why := t.speaks(m); why != nil {
		return why
	}
	if why := t.waits(c.Cold); why != nil {
		return why
	}
	//guard:admit-awaited
	if t.awaits(m.Holder()) {
		return refused("node %s with incarnation %x is over: it needs another incarnation", m.Node, m.Incarnation)
	}
	m.Phase, m.Since, m.Returned, m.Stopping = Joining, t.Epoch, c.Cold, false
	at, _ := t.member(m.Node)
	t.Members = slices.Insert(slices.Clone(t.Members), at, m)
	return nil
}

func (t *Table) begin(c *Begin) *Refused {
	if t.Transition != nil {
		return refused("transition %d runs", t.Transition.ID)
	}
	if len(c.Want) == 0 {
		return refused("a ring needs a node")
	}
	var want []string
	for _, h := range c.Want {
		if !t.Holds(h) {
			return refused("node %s with incarnation %x is not a member", h.Node, h.Incarnation)
		}
		want = append(want, h.Node)
	}
	slices.Sort(want)
	if want = slices.Compact(want); len(want) != len(c.Want) {
		return refused("a node is named twice")
	}
	for _, m := range t.Members {
		switch wanted := slices.Contains(want, m.Node); {
		case m.Phase == Active && !wanted:
			return refused("node %s is active, and would be left out", m.Node)
		case m.Phase == Drained && wanted:
			return refused("node %s is drained", m.Node)
		}
	}
	t.Transition = &Transition{ID: t.Epoch, Want: want}
	t.want = t.ringOf(want, t.want)
	t.split()
	holders := map[string]Holder{}
	for _, m := range t.Members {
		holders[m.HashKey] = m.Holder()
	}
	for i := range t.Rows {
		if r := &t.Rows[i]; r.Owner.None() &&
			!r.Cold() { //guard:begin-keeps-cold
			r.Owner, r.Since, r.Held = holders[t.want.Owner(r.End)], t.Epoch, t.Epoch
		}
	}
	return nil
}

// split makes rows that end at every point of the wanted ring.
func (t *Table) split() {
	old := t.Rows
	t.Rows = make([]Row, 0, len(old)+t.want.Size())
	at := 0
	for i := range t.want.Size() {
		end, _ := t.want.At(i)
		for at < len(old) && old[at].End < end {
			t.Rows = append(t.Rows, old[at])
			at++
		}
		switch n := len(t.Rows); {
		case n > 0 && t.Rows[n-1].End == end: // two points at one position
		case at < len(old) && old[at].End == end:
			t.Rows = append(t.Rows, old[at])
			at++
		case len(old) == 0:
			t.Rows = append(t.Rows, Row{End: end})
		default:
			r := old[at%len(old)] // the segment that the point lies in, around the end
			r.End = end
			t.Rows = append(t.Rows, r)
		}
	}
	t.Rows = append(t.Rows, old[at:]...)
}

func (t *Table) flip(c *Flip) *Refused {
	switch {
	case t.Transition == nil ||
		t.Transition.ID != c.Transition: //guard:flip-transition
		return refused("transition %d does not run", c.Transition)
	case !t.Holds(c.From) || //guard:flip-source-incarnation
		!t.Holds(c.To): //guard:flip-target-incarnation
		return refused("source or target is not a member any more")
	case len(c.Ends) == 0:
		return refused("no segments are named")
	case c.From == c.To || c.Standby == c.To:
		return refused("source or standby is the target")
	case t.unkept(c.Kept) != nil:
		return t.unkept(c.Kept)
	//guard:flip-standby
	case !c.Standby.None() && !t.Holds(c.Standby):
		return refused("the target's standby is not a member any more")
	//guard:flip-want-since
	case c.WantSince != t.WantSince:
		return refused("the wanted ring has changed")
	}
	rows := slices.Clone(t.Rows)
	for _, end := range c.Ends {
		i, ok := row(rows, end)
		if !ok {
			return refused("no segment ends at %d", end)
		}
		r := &rows[i]
		//guard:flip-owner
		//guard:flip-source-incarnation -> r.Owner.Node != c.From.Node
		if r.Owner != c.From {
			return refused("the segment that ends at %d belongs to %s, incarnation %x", end, r.Owner.Node, r.Owner.Incarnation)
		}
		//guard:flip-target-incarnation -> to.Node != c.To.Node
		//guard:flip-wanted
		if to, _ := t.Wants(end); to != c.To {
			return refused("the ring does not give %s the segment that ends at %d", c.To.Node, end)
		}
		r.Owner, r.Since, r.Held = c.To, t.Epoch, t.Epoch
		r.Standby, r.Synced = c.Standby, !c.Standby.None()
	}
	t.Rows = rows
	return nil
}

func (t *Table) end(c *End) *Refused {
	if t.Transition == nil || t.Transition.ID != c.Transition {
		return refused("transition %d does not run", c.Transition)
	}
	//guard:end-moves
	if n := len(t.Moves()); n > 0 {
		return refused("%d segments have still to move", n)
	}
	wanted := func(node string) bool { return slices.Contains(t.Transition.Want, node) }
	for _, r := range t.Rows {
		if !r.Standby.None() && !wanted(r.Standby.Node) {
			return refused("%s stands by for a segment, and is to leave", r.Standby.Node)
		}
	}
	t.Members = slices.Clone(t.Members)
	for i := range t.Members {
		switch m := &t.Members[i]; {
		case m.Phase == Joining && wanted(m.Node):
			m.Phase = Active
		case m.Phase == Leaving && !wanted(m.Node):
			m.Phase = Drained
		}
	}
	t.Transition = nil
	return nil
}

func (t *Table) remove(c *Remove) *Refused {
	gone := map[Holder]bool{}
	for _, h := range c.Members {
		if !t.Holds(h) {
			return refused("node %s with incarnation %x is not a member", h.Node, h.Incarnation)
		}
		gone[h] = true
	}
	if len(gone) == 0 {
		return refused("no members are named")
	}
	nodes := slices.Clone(t.nodes)
	nodes = slices.DeleteFunc(nodes, func(n string) bool { m, _ := t.Member(n); return gone[m.Holder()] })
	t.Members = slices.DeleteFunc(slices.Clone(t.Members), func(m Member) bool { return gone[m.Holder()] })
	if t.Transition != nil {
		t.Transition = &Transition{ID: t.Transition.ID, Want: nodes}
		if len(nodes) == 0 { // those that were to leave stay, for there is nobody else
			t.Transition = nil
			nodes = t.ringNodes()
		}
	}
	survivors := t.ringOf(nodes, nil)
	t.Rows = slices.Clone(t.Rows)
	for i := range t.Rows {
		t.removeHolders(&t.Rows[i], gone, survivors)
	}
	//guard:last-taker-dies
	if t.nodes = nodes; !slices.ContainsFunc(t.Members, Member.MayReceive) && allStop(t.Members) {
		t.keep(t.Members) // they were to give all that they have to one that is gone
	}
	return nil
}

// removeHolders drops removed members from a row. The synced standby becomes the owner. Where
// there is none, the row waits for the disks of those who had it; and where no disks count, a
// survivor becomes the owner and the loss is written down.
func (t *Table) removeHolders(r *Row, gone map[Holder]bool, survivors *ring.Ring) {
	stood := Holder{}
	if r.Synced {
		stood = r.Standby
	}
	//guard:removal-drops-standby
	if gone[r.Standby] {
		r.Standby, r.Synced, r.Since = Holder{}, false, t.Epoch
	}
	//guard:removal-of-rows
	if !gone[r.Owner] {
		return
	}
	r.Since, r.Held = t.Epoch, t.Epoch
	switch {
	//guard:removal-promotes-synced
	//guard:cold-memory-first r.Synced -> r.Synced && t.Durable == Undurable
	case !r.Standby.None() &&
		r.Synced: //guard:unsync-takes-out
		r.Owner, r.Standby, r.Synced = r.Standby, Holder{}, false
		return
	//guard:cold-instead-of-lost
	case t.Durable != Undurable:
		t.cool(r, stood)
		return
	case survivors != nil:
		m, _ := t.byHashKey(survivors.Owner(r.End))
		r.Owner = m.Holder()
	default:
		r.Owner, r.Standby, r.Synced = Holder{}, Holder{}, false
	}
	t.lose(r)
	if r.Standby == r.Owner {
		r.Standby, r.Synced = Holder{}, false
	}
}

func (t *Table) compact() *Refused {
	if t.Transition != nil {
		return refused("transition %d runs", t.Transition.ID)
	}
	drop := t.droppable()
	if len(drop) == 0 {
		return refused("no rows can be joined")
	}
	rows := slices.Clone(t.Rows)
	for _, i := range drop {
		// What was lost in one half counts as lost in both, and the later stamp
		// covers the earlier: nothing is forgotten. It is a row that nobody has seen
		// before, so that a Sync on its way must not take it for one of the two.
		r, next := rows[i], &rows[(i+1)%len(rows)]
		//guard:tidy-keeps-loss r.Lost -> next.Lost
		//guard:tidy-stamps t.Epoch -> next.Since
		next.Since, next.Held, next.Lost = t.Epoch, max(r.Held, next.Held), max(r.Lost, next.Lost)
		//guard:tidy-keeps-gone
		next.Gone = max(r.Gone, next.Gone)
	}
	slices.Sort(drop)
	t.Rows = rows[:0:0]
	for i, r := range rows {
		if _, dropped := slices.BinarySearch(drop, i); !dropped {
			t.Rows = append(t.Rows, r)
		}
	}
	return nil
}

// droppable returns the rows that end at no point of the wanted ring and are like
// the next one, clockwise from a row that stays: each before the one that it is
// joined to.
func (t *Table) droppable() []int {
	if t.want == nil {
		return nil
	}
	points := make(map[uint64]bool, t.want.Size())
	for i := range t.want.Size() {
		at, _ := t.want.At(i)
		points[at] = true
	}
	n := len(t.Rows)
	stays := slices.IndexFunc(t.Rows, func(r Row) bool { return points[r.End] })
	var drop []int
	for k := 1; k < n; k++ {
		i := (stays + k) % n
		if !points[t.Rows[i].End] && t.alike(t.Rows[i], t.Rows[(i+1)%n]) {
			drop = append(drop, i)
		}
	}
	return drop
}

// Compactable reports whether Compact would join any rows.
func (t *Table) Compactable() bool {
	return t.Transition == nil && t.want != nil && len(t.Rows) > t.want.Size() && len(t.droppable()) > 0
}

func (t *Table) alike(a, b Row) bool {
	return a.Owner == b.Owner && a.Standby == b.Standby && a.Synced == b.Synced && a.Grace == b.Grace && a.Unsure == b.Unsure &&
		a.Was == b.Was && a.Stood == b.Stood && //guard:tidy-cold
		(t.Durable == Undurable || t.heard(a, b))
}

// heard reports whether the later loss of two rows that are alike may count for both. What disks
// have from before it is void then, and a disk may not have heard yet of the loss of the other
// row. It has when nothing of the loss is in doubt any more: minutes later.
func (t *Table) heard(a, b Row) bool {
	waited := (t.LockTTL > 0 || t.IDWindow > 0) && !a.Grace && !a.Unsure
	//guard:tidy-gone true
	return a.Gone == b.Gone || waited
}
