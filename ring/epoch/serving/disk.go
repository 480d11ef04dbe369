package serving

import (
	"slices"

	"github.com/keystead/keystead/ring/epoch/table"
)

// A row whose owner and standby are all dead is cold: it waits for the disk of one of them. A
// disk counts if a process that the row names has had it. The memory of a process mirrors its
// disk: at its start it holds all that the disk has, and what it discards is discarded there a
// round later. So a process that has the disk of one whom a cold row names *keeps* what it has of
// the row. It does not act for it, and takes nothing in for it.
//
//   - The row becomes its own, by a Recover: what it kept is the row.
//   - The row becomes another's, or does not name this disk any more: it is discarded, also if this
//     process may hold the row otherwise. It would not be what the new owner copies.
//   - All of the row was lost (Row.Gone) in a table after the one up to which everything was
//     discarded that tables demanded: what is kept is of before, and is void. It is discarded, and
//     before the process acts for the row, should that become its own.
//
// A process that was removed goes on as the next incarnation of its node. It keeps what cold rows
// name the earlier one for. It may learn of the removal from the leader before it has the table of
// it: in the table that it has the earlier one is a member still, and has rows or copies of them. It
// may have become their owner or synced standby by a table that this process has not seen, and they
// will be cold, or a standby's. All that the earlier one may hold is kept until that is known.
//
// Tables may be missed, between one in which a row is kept and the next one.
//
//   - It is cold in both, and names this disk in both. In between it cannot have been anybody's:
//     those whom it would name then live on, or are later than those that it names. If all of it was
//     lost in between, Gone says so.
//   - It is this process's in the second. Then it came by a Recover of what is kept. It cannot have
//     come from another process, by a flip or a promotion: for that this process would have
//     acknowledged records of the row under a table in which it is not cold, and that would be the
//     first one. Or all of it was lost in between, and Gone says so.
//   - The process held the row in the first, as owner or standby, and the second one has it cold with
//     its name. It was the owner, or it was synced, at the end; what made it so, it has
//     acknowledged under the first table. What was lost in between, Gone says.
//
// Before the first table that names this process nothing is judged: tables of long ago come from
// its own log, and none of them can have it act.

// disk is what a rule knows of the disk that the memory mirrors.
type disk struct {
	had    []uint64 // incarnations of this node that have had it; empty = there is none
	loaded bool     // the memory holds what was on it
}

// with returns what is known of the disk when a process becomes another one.
func (d disk) with(was, is table.Holder) disk {
	if was != is && len(d.had) > 0 {
		d.had = append(slices.Clone(d.had), was.Incarnation)
	}
	return d
}

// OnDisk says which incarnations of this node have had its disk. loaded says that this process,
// which is no member yet, holds all that the disk had, and that all is discarded there that tables
// up to this epoch demanded. It is called before the first Learn, and again, with loaded
// false, when there is one more incarnation.
func (r *Rule) OnDisk(incarnations []uint64, epoch uint64, loaded bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := *r.now.Load()
	s.disk = disk{slices.Clone(incarnations), s.disk.loaded || loaded}
	if loaded {
		s.loaded = &epoch
	}
	r.now.Store(&s)
}

// CleanEpoch returns the epoch up to which this process has discarded all that tables demanded:
// what is declared lost by then, as a whole, it does not have.
func (r *Rule) CleanEpoch() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	clean := r.clean.Load()
	switch s := r.now.Load(); {
	case s.loaded != nil: //guard:clean-of-loaded false
		return *s.loaded
	case clean < r.unloadedBy: //guard:clean-of-unloaded false
		return r.unloaded
	}
	return clean
}

// names reports whether a row waits for the disk of this process, or will: see above.
func (s *state) names(i int) bool {
	r := &s.table.Rows[i]
	earlier := func(h table.Holder) bool {
		return h.Node == s.self.Node && !h.None() && slices.Contains(s.disk.had, h.Incarnation)
	}
	if s.table.Durable == table.Undurable {
		return false
	}
	return earlier(r.Was) || earlier(r.Stood) || s.undecided(i)
}

// undecided reports whether an earlier process of this node, which is over, is a member still by the table
// and may hold a row. A later table may have made it the owner or the synced standby before it was removed.
func (s *state) undecided(i int) bool {
	return slices.ContainsFunc(s.disk.had, func(incarnation uint64) bool {
		h := table.Holder{Node: s.self.Node, Incarnation: incarnation}
		//guard:become-before-removed false
		//guard:become-behind s.table.MayHold(i, h) -> (s.table.Rows[i].Owner == h || s.table.Rows[i].Standby == h)
		return h != s.self && s.table.Holds(h) && s.table.MayHold(i, h)
	})
}

// keeps reports whether what the process had of a row is what its disk is waited for with.
func (s *state) keeps(is int, old *state, was int) bool {
	//guard:keep-of-cold false
	return s.names(is) &&
		s.table.Rows[is].Gone <= old.table.Epoch //guard:keep-before-loss
}

// carries reports whether what the process had of a row counts in one that it holds now.
func (s *state) carries(is int, old *state, was int) bool {
	if old.rows[was].keeps {
		return s.table.Rows[is].Owner == s.self && //guard:kept-is-anothers
			s.table.Rows[is].Gone <= old.table.Epoch //guard:kept-before-loss
	}
	return old.self == s.self &&
		!s.spoilt(is, old, was) //guard:discard-declared-loss
}
