package sim

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/ring/epoch/table"
)

// Ledger judges what clients were told.
//
//   - Fencing tokens of one lock rise in the order of real time: a grant that was
//     asked for after another one had been answered has a greater token.
//   - Epochs of answers for one key do not go back in that order.
//   - Nobody is granted a lock while another one holds it.
//   - No acknowledged add is lost, and none is counted twice: the values after
//     adds of 1 differ, and rise in that order.
//
// The last one holds while the state of a key lives: until its row's loss is
// declared in the table. The others hold through it. What clients were not told, or was told to be unknown,
// may have happened or not.
type Ledger struct {
	mu     sync.Mutex // guards all
	locks  map[string]*highest
	epochs map[string]*highest
	table  *table.Table        // the latest
	losses map[string][]uint64 // by key: epochs in which its state was lost, in order
	adds   map[string][]added  // by key
	holds  map[string][]held   // by key
	grants int
	sums   int
	errs   map[string]int
	faults []string
}

// added is an acknowledged add of 1.
type added struct {
	start, done time.Time
	value       int64
	epoch       uint64
	owner       string
}

// held is a grant, and for how long it holds for certain.
type held struct {
	start, done, until time.Time
	token, epoch       uint64
	owner              string
}

// highest knows the greatest number that had been answered by a moment.
type highest struct {
	done []time.Time // in order
	max  []uint64    // by then
}

func (h *highest) before(t time.Time) uint64 {
	i, _ := slices.BinarySearchFunc(h.done, t, time.Time.Compare)
	if i == 0 {
		return 0
	}
	return h.max[i-1]
}

func (h *highest) add(t time.Time, x uint64) {
	if n := len(h.max); n > 0 {
		x = max(x, h.max[n-1])
	}
	h.done, h.max = append(h.done, t), append(h.max, x)
}

// NewLedger returns an empty ledger.
func NewLedger() *Ledger {
	return &Ledger{locks: map[string]*highest{}, epochs: map[string]*highest{}, table: &table.Table{},
		losses: map[string][]uint64{}, adds: map[string][]added{}, holds: map[string][]held{}, errs: map[string]int{}}
}

func of[K comparable](m map[K]*highest, k K) *highest {
	if m[k] == nil {
		m[k] = &highest{}
	}
	return m[k]
}

// Learn takes a table in: it says what was lost.
func (l *Ledger) Learn(t *table.Table) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if t.Epoch <= l.table.Epoch {
		return
	}
	l.table = t
	for key := range l.losses {
		l.lookLocked(key)
	}
}

func (l *Ledger) lookLocked(key string) {
	i := l.table.Find(owner.Hash(key))
	if i < 0 {
		return
	}
	lost, known := l.table.Rows[i].Lost, l.losses[key]
	if known == nil || lost > known[len(known)-1] {
		l.losses[key] = append(known, lost)
	}
}

// AllLost says that all that there was is gone, with everybody who knew of it: what is
// answered under later epochs than those of now is of another life.
func (l *Ledger) AllLost() {
	l.mu.Lock()
	defer l.mu.Unlock()
	last := l.table.Epoch
	for _, h := range l.epochs {
		last = max(last, h.max[len(h.max)-1])
	}
	for key := range l.epochs {
		l.losses[key] = append(l.losses[key], last+1)
	}
}

// lifeLocked is the epoch since which the state lives that an answer under an
// epoch is about.
func (l *Ledger) lifeLocked(key string, epoch uint64) uint64 {
	life := uint64(0)
	for _, lost := range l.losses[key] {
		if lost <= epoch {
			life = lost
		}
	}
	return life
}

// Granted records a grant that is not a replay, asked for at start and answered
// now. Unless it is given back before, it holds for the TTL from start.
func (l *Ledger) Granted(key string, start time.Time, ttl time.Duration, token, epoch uint64, owner string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.grants++
	now := time.Now()
	if before := of(l.locks, key).before(start); token <= before {
		l.faultLocked("lock %s: %s granted the token %d at %s, asked for at %s, when %d had been granted", key, owner, token, stamp(now), stamp(start), before)
	}
	of(l.locks, key).add(now, token)
	l.lookLocked(key)
	l.holds[key] = append(l.holds[key], held{start, now, start.Add(ttl), token, epoch, owner})
	l.epochLocked(key, start, now, epoch, owner)
}

// Returning records that a grant is about to be given back.
func (l *Ledger) Returning(key string, token uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	holds := l.holds[key]
	for i := range holds {
		if now := time.Now(); holds[i].token == token && now.Before(holds[i].until) {
			holds[i].until = now
		}
	}
}

// Added records an acknowledged add of 1 that is not a replay.
func (l *Ledger) Added(key string, start time.Time, value int64, epoch uint64, owner string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sums++
	now := time.Now()
	l.lookLocked(key)
	l.adds[key] = append(l.adds[key], added{start, now, value, epoch, owner})
	l.epochLocked(key, start, now, epoch, owner)
}

// judgeLocked looks at the adds and grants of a key.
func (l *Ledger) judgeLocked(key string) {
	values, seen := map[uint64]*highest{}, map[[2]uint64]bool{}
	for _, a := range l.adds[key] { // in the order in which they were answered
		life := l.lifeLocked(key, a.epoch)
		if before := of(values, life).before(a.start); uint64(a.value) <= before {
			l.faultLocked("counter %s: %s answered %d under the epoch %d at %s, asked at %s, when %d had been answered", key, a.owner, a.value, a.epoch, stamp(a.done), stamp(a.start), before)
		}
		of(values, life).add(a.done, uint64(a.value))
		if seen[[2]uint64{life, uint64(a.value)}] {
			l.faultLocked("counter %s: two adds led to %d, the second of them at %s under the epoch %d, %s", key, a.value, a.owner, a.epoch, stamp(a.done))
		}
		seen[[2]uint64{life, uint64(a.value)}] = true
	}
	for i, b := range l.holds[key] {
		for _, a := range l.holds[key][:i] {
			if b.start.After(a.done) && b.done.Before(a.until) {
				l.faultLocked("lock %s: %s granted %d at %s, asked for at %s, and %s had granted %d at %s, which held until %s",
					key, b.owner, b.token, stamp(b.done), stamp(b.start), a.owner, a.token, stamp(a.done), stamp(a.until))
			}
		}
	}
}

func (l *Ledger) epochLocked(key string, start, now time.Time, epoch uint64, owner string) {
	if before := of(l.epochs, key).before(start); epoch < before {
		l.faultLocked("%s: %s answered under the epoch %d at %s, asked at %s, when there had been an answer under %d", key, owner, epoch, stamp(now), stamp(start), before)
	}
	of(l.epochs, key).add(now, epoch)
}

// Failed records a call that was answered with an error, or not at all.
func (l *Ledger) Failed(why string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.errs[why]++
}

func (l *Ledger) faultLocked(format string, args ...any) {
	if len(l.faults) < maxFaults {
		l.faults = append(l.faults, fmt.Sprintf(format, args...))
	}
}

// Faults are what was found so far.
func (l *Ledger) Faults() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	kept := len(l.faults)
	for _, key := range slices.Sorted(maps.Keys(l.losses)) {
		l.judgeLocked(key)
	}
	faults := slices.Clone(l.faults)
	l.faults = l.faults[:kept]
	return faults
}

// Answered is how many grants and adds were recorded, and how many errors.
func (l *Ledger) Answered() (grants, adds, errs int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, n := range l.errs {
		errs += n
	}
	return l.grants, l.sums, errs
}

// Errors are the errors by code, for people.
func (l *Ledger) Errors() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return fmt.Sprint(l.errs)
}

// Lost says in how many keys state was lost, as the tables declare it.
func (l *Ledger) Lost() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, losses := range l.losses {
		for _, e := range losses {
			if e != 0 {
				n++
			}
		}
	}
	return n
}
