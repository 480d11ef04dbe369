package sim

import (
	"fmt"
	"slices"
	"sync"
	"time"
)

// Ledger judges what clients were told.
//
//   - Fencing tokens of one lock rise in the order of real time: a grant that was
//     asked for after another one had been answered has a greater token.
//   - Epochs of answers for one key do not go back in that order.
//   - Under one epoch of a row no acknowledged add is lost, and none is counted
//     twice: the values after adds of 1 differ, and rise in that order.
//
// What clients were not told, or was told to be unknown, may have happened or
// not.
type Ledger struct {
	mu     sync.Mutex // guards all
	locks  map[string]*highest
	epochs map[string]*highest
	values map[rowOf]*highest
	seen   map[rowOf]map[int64]bool
	grants int
	adds   int
	errs   map[string]int
	faults []string
}

// rowOf is a key under one epoch of its row.
type rowOf struct {
	key   string
	epoch uint64
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
	return &Ledger{locks: map[string]*highest{}, epochs: map[string]*highest{}, values: map[rowOf]*highest{}, seen: map[rowOf]map[int64]bool{}, errs: map[string]int{}}
}

func of[K comparable](m map[K]*highest, k K) *highest {
	if m[k] == nil {
		m[k] = &highest{}
	}
	return m[k]
}

// Granted records a grant that is not a replay, asked for at start and answered
// now.
func (l *Ledger) Granted(key string, start time.Time, token, epoch uint64, owner string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.grants++
	now := time.Now()
	if before := of(l.locks, key).before(start); token <= before {
		l.faultLocked("lock %s: %s granted the token %d at %s, asked for at %s, when %d had been granted", key, owner, token, stamp(now), stamp(start), before)
	}
	of(l.locks, key).add(now, token)
	l.epochLocked(key, start, now, epoch, owner)
}

// Added records an acknowledged add of 1 that is not a replay.
func (l *Ledger) Added(key string, start time.Time, value int64, epoch uint64, owner string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.adds++
	now, row := time.Now(), rowOf{key, epoch}
	if before := of(l.values, row).before(start); uint64(value) <= before {
		l.faultLocked("counter %s: %s answered %d under the epoch %d at %s, asked at %s, when %d had been answered", key, owner, value, epoch, stamp(now), stamp(start), before)
	}
	of(l.values, row).add(now, uint64(value))
	if l.seen[row] == nil {
		l.seen[row] = map[int64]bool{}
	}
	if l.seen[row][value] {
		l.faultLocked("counter %s: two adds led to %d under the epoch %d, the second of them at %s, %s", key, value, epoch, owner, stamp(now))
	}
	l.seen[row][value] = true
	l.epochLocked(key, start, now, epoch, owner)
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
	return slices.Clone(l.faults)
}

// Answered is how many grants and adds were recorded, and how many errors.
func (l *Ledger) Answered() (grants, adds, errs int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, n := range l.errs {
		errs += n
	}
	return l.grants, l.adds, errs
}

// Errors are the errors by code, for people.
func (l *Ledger) Errors() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return fmt.Sprint(l.errs)
}
