// Package serving is the rule by which a node acts for a key: it is the owner in
// the table that it has applied, it has not frozen the row, what it held of the
// row before is gone, and its lease runs.
//
// # Guarantee
//
// May lets an operation in, Still lets its answer out; the second is the check
// that protects. Still fails if the row has left the node since May, even if it
// came back, if the lease is over, or if the row was closed to be handed over.
// That a row got another standby, or lost it, disturbs nobody. Readers take no
// lock and allocate nothing.
//
// # What is kept
//
// A node keeps what it has of a row as long as every table has it as one
// that may hold it (table.MayHold): its owner, its standby, or one that is to become
// one of them. When one does not, what it has is discarded. Should the row come
// back before that is done, the node does not act for it, and takes nothing in
// for it, until it is: see Cleaned and Clean. What it has is discarded too when a
// row comes to it whose state is declared lost: it may be a part of a copy.
// For rows that wait for a disk, see disk.go.
package serving

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/keystead/keystead/ring/epoch/table"
)

// Verdict is what May finds.
type Verdict uint8

// The verdicts.
const (
	Yes      Verdict = iota + 1
	NotOwner         // the table names another, or nobody
	Frozen           // the row is being handed over, or not clean yet
	NoLease          // the node cannot show that it may act
)

// Range is a stretch of the hash space: the positions after After up to and
// including UpTo, around the end; all of them if the two are equal.
type Range struct{ After, UpTo uint64 }

// Holds reports whether a position lies in the range.
func (r Range) Holds(h uint64) bool { return h-r.After-1 < r.UpTo-r.After || r.After == r.UpTo }

// Rule is the serving rule of a node.
type Rule struct {
	until atomic.Int64 // end of the lease; 0 = none
	clean atomic.Uint64
	quiet atomic.Bool  // it lets nothing in any more
	ahead atomic.Int64 // by how much the time of day is ahead of the clock of May, ns; 0 = nobody knows
	now   atomic.Pointer[state]

	clock func() int64 // see Clock

	mu      sync.Mutex        // guards changes of now, and what follows
	frozen  map[uint64]freeze // by end of row
	cleaned chan struct{}     // closed by the next Cleaned
	// What was loaded was clean up to the epoch unloaded, and is up to a later one when what the
	// table unloadedBy demanded is discarded.
	unloaded, unloadedBy uint64
}

// state is what readers see.
type state struct {
	table *table.Table
	self  table.Holder
	rows  []row // of the table
	// loaded says that the process holds what an earlier one of its node held in
	// the table of this epoch, and that no table has named it yet.
	loaded *uint64
	disk   disk
}

// row is what the node may do with a row of the table.
type row struct {
	mine   bool
	holds  bool // the node may have a copy
	keeps  bool // it has what it is waited for with: see disk.go. Invariant: not mine, and not held
	frozen bool // lets nothing in
	closed bool // lets nothing out
	// gained is the epoch of the table since which the node holds what is kept
	// of the row. It acts for it when all that was lost by then is discarded.
	gained uint64
	// lostAt is, for a row that is mine and of which something was lost, a moment by which
	// all of that was lost, by the clock of the rule; in grace, the row had come to this
	// process by then.
	lostAt int64
	// learnedAt is, for a row of which something was lost, a moment by which this process had
	// learned of the loss, by the same clock: all that was lost was done before.
	learnedAt int64
}

// New returns the rule of a process that is no member yet and has no lease.
func New(self table.Holder) *Rule {
	r := &Rule{frozen: map[uint64]freeze{}, cleaned: make(chan struct{})}
	r.now.Store(&state{table: &table.Table{}, self: self})
	return r
}

// Load says that this process, which is no member yet, holds all that an earlier
// one of its node held when it stopped, and went by the table of this epoch. The
// first table that names this process decides what of that counts: the rows that
// it owns there, unless their state was lost since. The rest has to be discarded.
func (r *Rule) Load(epoch uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := *r.now.Load()
	s.loaded = &epoch
	r.now.Store(&s)
}

// Clock tells the rule by which clock to remember when rows came to this process
// that are in grace: that of May. It is called before the first Learn. A rule that
// was told none takes them to have come at 0.
func (r *Rule) Clock(now func() int64) { r.clock = now }

// SetWall says by how much the time of day that is agreed on is ahead of the clock of May, in
// ns since 1970.
func (r *Rule) SetWall(ahead int64) {
	if ahead == 0 {
		ahead = 1
	}
	r.ahead.Store(ahead)
}

// Wall returns the time of day that is agreed on at a moment of the clock of May, in ns since 1970. ok
// is false as long as this process has not heard of any.
func (r *Rule) Wall(now int64) (wall int64, ok bool) {
	ahead := r.ahead.Load()
	return now + ahead, ahead != 0
}

// Self returns the process for which the rule speaks.
func (r *Rule) Self() table.Holder { return r.now.Load().self }

// Table returns the table that the rule goes by.
func (r *Rule) Table() *table.Table { return r.now.Load().table }

// May reports whether an operation on a key at this position may begin: under the
// row's since-epoch, in the table of the epoch seen.
func (r *Rule) May(h uint64, now int64) (since, seen uint64, v Verdict) {
	e, v := r.Enter(h, now)
	return e.Since, e.Seen, v
}

// Entry is what an operation that was let in finds.
type Entry struct {
	Since uint64 // epoch of the last commit that changed the row
	Seen  uint64 // epoch of the table; set whatever the verdict
	Whole bool   // nothing was ever lost of what is kept of the row
	// Lost is the epoch of the loss while the row is in grace, 0 otherwise.
	Lost uint64
	// Loss is the epoch of the last loss, 0 if the row is Whole.
	Loss uint64
	// LostAt is, if the row is not Whole, a moment by which all was lost that was lost of
	// it. In grace, the row had come to this process by then, and the grace runs from it.
	LostAt int64
	// LearnedAt is, if the row is not Whole, a moment by which this process had learned of the
	// loss, also if another node had the row then: what was lost was done before.
	LearnedAt int64
	// Unsure says that ids of what was lost may still be sent again, if Window is not 0: for
	// how long they may, as the cluster has agreed.
	Unsure bool
	Window int64
}

// Enter is May, and says all that there is to know of the row.
func (r *Rule) Enter(h uint64, now int64) (Entry, Verdict) {
	s := r.now.Load()
	e := Entry{Seen: s.table.Epoch}
	i := s.table.Find(h)
	if i < 0 ||
		!s.rows[i].mine { //guard:may-owner
		return e, NotOwner
	}
	w := &s.rows[i]
	switch {
	case w.frozen || //guard:may-frozen
		w.gained > r.clean.Load() || //guard:may-clean
		r.quiet.Load(): //guard:may-quiet
		return e, Frozen
	//guard:may-lease
	case now >= r.until.Load():
		return e, NoLease
	}
	is := &s.table.Rows[i]
	e.Since, e.Whole, e.Loss, e.LostAt = is.Since, is.Lost == 0, is.Lost, w.lostAt
	e.LearnedAt, e.Unsure, e.Window = w.learnedAt, is.Unsure, s.table.IDWindow
	if is.Grace {
		e.Lost = is.Lost
	}
	return e, Yes
}

// Recovery is a row of this process that is in grace.
type Recovery struct {
	table.Loss
	At int64 // moment from which the grace runs: see Entry
}

// Recoveries returns the rows of this process that are in grace, in order, and the
// process and the table to which that applies.
func (r *Rule) Recoveries() ([]Recovery, table.Holder, *table.Table) {
	s := r.now.Load()
	var out []Recovery
	for i := range s.rows {
		if is := &s.table.Rows[i]; s.rows[i].mine && is.Grace {
			out = append(out, Recovery{table.Loss{End: is.End, Lost: is.Lost}, s.rows[i].lostAt})
		}
	}
	return out, s.self, s.table
}

// Doubts returns the rows of this process of which ids are unsure, in order. At is the moment
// by which all that was lost of them was done.
func (r *Rule) Doubts() ([]Recovery, table.Holder, *table.Table) {
	s := r.now.Load()
	var out []Recovery
	for i := range s.rows {
		if is := &s.table.Rows[i]; s.rows[i].mine && is.Unsure {
			out = append(out, Recovery{table.Loss{End: is.End, Lost: is.Lost}, s.rows[i].learnedAt})
		}
	}
	return out, s.self, s.table
}

// Still reports whether an answer may go out: whether the row is as May saw it.
func (r *Rule) Still(h, seen uint64, now int64) bool {
	// The lease first: one that another incarnation got must not count for rows
	// of this one.
	until := r.until.Load()
	s := r.now.Load()
	i := s.table.Find(h)
	return i >= 0 &&
		s.rows[i].mine && //guard:still-owner
		!s.rows[i].closed && //guard:still-closed
		s.table.Rows[i].Held <= seen && //guard:still-held
		now < until //guard:still-lease
}

// Accepts reports whether a record of this source about a key at this position is to
// be taken in: the table names the source as the owner, and this process as
// one that may hold a copy, and what it had before is gone. Such a record is
// late or early otherwise, and without meaning.
func (r *Rule) Accepts(h uint64, source table.Holder) bool {
	s := r.now.Load()
	i := s.table.Find(h)
	//guard:takes-incarnation s.table.Rows[i].Owner == source -> s.table.Rows[i].Owner.Node == source.Node
	return i >= 0 &&
		s.table.Rows[i].Owner == source && //guard:takes-owner
		source != s.self &&
		s.rows[i].holds && //guard:takes-holder
		s.rows[i].gained <= r.clean.Load() //guard:takes-clean
}

// Unclean reports whether a record of this source is not to be taken in yet, only
// because what this process had before is not discarded.
func (r *Rule) Unclean(h uint64, source table.Holder) bool {
	s := r.now.Load()
	i := s.table.Find(h)
	return i >= 0 && s.table.Rows[i].Owner == source && source != s.self && s.rows[i].holds && s.rows[i].gained > r.clean.Load()
}

// Clean reports whether all is discarded that was lost in the tables up to this
// epoch.
func (r *Rule) Clean(epoch uint64) bool { return r.clean.Load() >= epoch }

// CleanChanged returns a channel that is closed by the next Cleaned, after which Clean,
// Accepts and Unclean may answer otherwise. Each table that is learned is followed by one.
func (r *Rule) CleanChanged() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.cleaned
}

// AwaitClean waits until Clean reports true, or returns the error of the context.
func (r *Rule) AwaitClean(ctx context.Context, epoch uint64) error {
	for {
		changed := r.CleanChanged()
		if r.Clean(epoch) {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Until returns when the lease ends, 0 = there is none.
func (r *Rule) Until() int64 { return r.until.Load() }

// Extend sets the end of the lease. Only the one goroutine that keeps the lease
// calls it.
func (r *Rule) Extend(until int64) { r.until.Store(until) }

// Quiet lets nothing in any more, for good. What is in may still get out, as
// long as the lease runs.
func (r *Rule) Quiet() { r.quiet.Store(true) }

// Become makes the process another incarnation, which has no lease and no rows.
// It returns what has to be discarded: see Cleaned. What a disk is waited for with stays.
func (r *Rule) Become(self table.Holder) []Range {
	r.until.Store(0)
	now := r.time()
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.setLocked(r.now.Load().table, self, now)
}

// Learn takes the next table in. It returns the ranges that the node has lost:
// what it holds of them must be discarded, and Cleaned called with the table's
// epoch. If there are none and nothing else is being discarded, Cleaned may be
// called at once.
func (r *Rule) Learn(t *table.Table) []Range {
	now := r.time()
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.setLocked(t, r.now.Load().self, now)
}

// Cleaned says that all that was lost in tables up to this epoch is discarded.
// Calls come in order of their epochs.
func (r *Rule) Cleaned(epoch uint64) {
	r.clean.Store(epoch)
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.cleaned) //guard:clean-wakes
	r.cleaned = make(chan struct{})
}

// time returns what the rule's clock shows; 0 if it has none.
func (r *Rule) time() int64 {
	if r.clock == nil {
		return 0
	}
	return r.clock()
}
