package sim

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/keystead/keystead/ring/epoch/serving"
	"github.com/keystead/keystead/ring/epoch/table"
)

// Bounds of a Verifier.
const (
	keptPermits = 4   // of one process for one position: the oldest, and the newest
	maxFaults   = 20  // reported; the first ones tell most
	keptTables  = 512 // epochs whose tables are compared
)

// Actor is a process that may act for positions of the hash space: the serving
// rule of a node, or what a test says.
type Actor interface {
	// May reports whether an operation may begin: see serving.Rule.
	May(hash uint64, now int64) (since, seen uint64, v serving.Verdict)
	// Still reports whether an answer may go out.
	Still(hash, seen uint64, now int64) bool
	// Self is the process.
	Self() table.Holder
	// Table is the table that it goes by.
	Table() *table.Table
}

// Asked is an actor at an instant.
type Asked struct {
	Name  string // of the process, unique for each life of each node
	Actor Actor
	Now   int64 // by its clock
}

// Verifier judges what processes would do. It asks all of them at one instant,
// for a number of positions:
//
//   - At most one lets an operation in.
//   - An answer to an operation that was let in earlier goes out only if nobody
//     else has let one in for the position since.
//   - The epochs under which operations are let in, with which fencing tokens
//     begin, never go back from one owner to the next, and no two have the same.
//   - Tables of the same epoch are the same, and no process goes back to an earlier one.
type Verifier struct {
	mu          sync.Mutex // guards all
	positions   []position
	tables      map[uint64][]byte // by epoch, encoded
	epochs      []uint64          // of tables, oldest first
	last        map[string]uint64 // by process: epoch last looked at
	inspections int
	permits     int
	confirmed   int
	faults      []string
	learn       func(*table.Table) // of each new table
}

// OnTable has f called with each table that is met.
func (v *Verifier) OnTable(f func(*table.Table)) { v.learn = f }

// position is what is known of one position of the hash space.
type position struct {
	hash    uint64
	since   uint64       // the highest under which an operation was let in
	by      table.Holder // … by this process
	yes     map[string]time.Time
	permits map[string][]permit // by process
}

// permit is an operation that was let in.
type permit struct {
	seen uint64
	at   time.Time
}

// NewVerifier returns a verifier of so many positions, drawn at random.
func NewVerifier(positions int, seed uint64) *Verifier {
	rnd := rand.New(rand.NewPCG(seed, 0x766572))
	v := &Verifier{tables: map[uint64][]byte{}, last: map[string]uint64{}}
	for range positions {
		v.positions = append(v.positions, position{hash: rnd.Uint64(), yes: map[string]time.Time{}, permits: map[string][]permit{}})
	}
	return v
}

// Inspect asks all processes that run. A process that is not among them is dead.
func (v *Verifier) Inspect(all []Asked) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.inspections++
	at := time.Now()
	for _, a := range all {
		v.compareLocked(a)
	}
	for i := range v.positions {
		v.askLocked(&v.positions[i], all, at)
	}
}

func (v *Verifier) askLocked(p *position, all []Asked, at time.Time) {
	var owner string
	for _, a := range all {
		since, seen, verdict := a.Actor.May(p.hash, a.Now)
		if verdict != serving.Yes {
			continue
		}
		if owner != "" {
			v.faultLocked("position %x: both %s and %s let operations in at %s", p.hash, owner, a.Name, stamp(at))
		}
		owner = a.Name
		if self := a.Actor.Self(); since < p.since || since == p.since && self != p.by {
			v.faultLocked("position %x: %v lets operations in under the epoch %d at %s, after %v did under %d", p.hash, self, since, stamp(at), p.by, p.since)
		} else {
			p.since, p.by = since, self
		}
		p.yes[a.Name] = at
		v.keepLocked(p, a.Name, permit{seen, at})
	}
	for _, a := range all {
		for _, m := range p.permits[a.Name] {
			if !a.Actor.Still(p.hash, m.seen, a.Now) {
				continue
			}
			v.confirmed++
			for other, when := range p.yes {
				if other != a.Name && !when.Before(m.at) {
					v.faultLocked("position %x: %s confirms at %s what it let in at %s, and %s let operations in at %s",
						p.hash, a.Name, stamp(at), stamp(m.at), other, stamp(when))
				}
			}
		}
	}
}

// keepLocked remembers a permit. The oldest are the most telling; of the others
// the newest are.
func (v *Verifier) keepLocked(p *position, name string, m permit) {
	kept := p.permits[name]
	if n := len(kept); n >= keptPermits {
		kept = append(kept[:keptPermits/2], kept[keptPermits/2+1:]...)
	}
	p.permits[name] = append(kept, m)
	v.permits++
}

// compareLocked compares a process's table with those of others.
func (v *Verifier) compareLocked(a Asked) {
	t := a.Actor.Table()
	if t.Epoch == v.last[a.Name] || t.Cluster == "" {
		return
	}
	if t.Epoch < v.last[a.Name] {
		v.faultLocked("the table of %s went back from epoch %d to %d at %s", a.Name, v.last[a.Name], t.Epoch, stamp(time.Now()))
	}
	v.last[a.Name] = t.Epoch
	b := t.Encode()
	if was, ok := v.tables[t.Epoch]; ok {
		if !bytes.Equal(was, b) {
			v.faultLocked("epoch %d: %s has another table than others had", t.Epoch, a.Name)
		}
		return
	}
	v.tables[t.Epoch] = b
	if v.learn != nil {
		v.learn(t)
	}
	if v.epochs = append(v.epochs, t.Epoch); len(v.epochs) > keptTables {
		delete(v.tables, v.epochs[0])
		v.epochs = v.epochs[1:]
	}
}

func (v *Verifier) faultLocked(format string, args ...any) {
	if len(v.faults) < maxFaults {
		v.faults = append(v.faults, fmt.Sprintf(format, args...))
	}
}

// Faults returns what was found so far.
func (v *Verifier) Faults() []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return append([]string(nil), v.faults...)
}

// Served returns the positions for which a process has let operations in since a
// moment.
func (v *Verifier) Served(since time.Time) int {
	v.mu.Lock()
	defer v.mu.Unlock()
	n := 0
	for i := range v.positions {
		for _, at := range v.positions[i].yes {
			if !at.Before(since) {
				n++
				break
			}
		}
	}
	return n
}

// Figures say how much was looked at: moments, operations let in, and answers
// that could have gone out.
func (v *Verifier) Figures() (looks, permits, confirmed int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.inspections, v.permits, v.confirmed
}

// Verify looks at a cluster now.
func (v *Verifier) Verify(c *Cluster) {
	live := c.Live()
	all := make([]Asked, len(live))
	for i, p := range live {
		all[i] = Asked{Name: fmt.Sprintf("%s#%d", p.Name, p.Life), Actor: p.Group.Rule(), Now: p.Now}
	}
	v.Inspect(all)
}

// Watch looks at a cluster again and again until stop is closed.
func (v *Verifier) Watch(c *Cluster, every time.Duration, stop <-chan struct{}) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		v.Verify(c)
		select {
		case <-tick.C:
		case <-stop:
			return
		}
	}
}

func stamp(t time.Time) string { return t.Format("15:04:05.000000") }
