package workload

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/keystead/keystead/internal/tests/history"
)

// Write is a write under a lock to what the lock protects. Times are ns.
type Write struct {
	Client int    `json:"client"`
	Holder string `json:"holder"` // of the grant: each has one of its own
	Token  uint64 `json:"token"`
	At     int64  `json:"at"`
	// Until is when the client's lease ends, as docs/guarantees.md has it count.
	Until    int64 `json:"until"`
	Accepted bool  `json:"accepted"`
}

// Register stands for what a lock protects: it remembers the greatest token that
// it has seen, and refuses writes with smaller ones.
type Register struct {
	now func() int64

	mu      sync.Mutex
	highest uint64
	writes  []Write
}

// Write writes, and says whether that was accepted.
func (r *Register) Write(client int, holder string, token uint64, until int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := Write{Client: client, Holder: holder, Token: token, At: r.now(), Until: until, Accepted: token >= r.highest}
	r.highest = max(r.highest, token)
	r.writes = append(r.writes, w)
	return w.Accepted
}

// Writes returns them in their order.
func (r *Register) Writes() []Write {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.writes)
}

// Span is a call that was answered.
type Span struct{ Start, End int64 }

// Record is what the clients of a history were told.
type Record struct {
	Counters, Buckets, Locks []history.Call
	Params                   history.BucketParams // of all buckets
	Windows                  []history.Call
	Window                   history.WindowParams // of all sliding windows
	Writes                   map[string][]Write   // by lock
	// Served are the calls on each object that were answered, by their end.
	Served map[string][]Span
	// From and Until are when the clients began, and when they began to stop.
	From, Until int64
	// Operations were answered; Lost attempts were not; Open operations never.
	Operations, Lost, Open int
	// Odd are answers that nobody should get, as "REASON: message".
	Odd []string
}

// ByParts is how many answers, those of probes too, came from parts of split objects.
func (r *Record) ByParts() (n int) {
	for _, c := range slices.Concat(r.Counters, r.Buckets) {
		if history.Parts(c.Output) > 0 {
			n++
		}
	}
	return n
}

// maxOdd is how many odd answers are kept.
const maxOdd = 20

// Pause is the longest time within which no call on an object was answered.
type Pause struct {
	Key  string        `json:"key"`
	From int64         `json:"from"`
	For  time.Duration `json:"for"`
}

// Pauses returns the longest pause of each object between two moments, the
// longest first. Calls that began before the first moment do not count as an
// answer in it.
func (r *Record) Pauses(from, until int64) []Pause {
	var all []Pause
	for _, key := range slices.Sorted(maps.Keys(r.Served)) {
		longest, last := Pause{Key: key, From: from}, from
		to := func(at int64) {
			if d := time.Duration(at - last); d > longest.For {
				longest.From, longest.For = last, d
			}
			last = max(last, at)
		}
		for _, s := range r.Served[key] {
			if s.Start >= from && s.End <= until {
				to(s.End)
			}
		}
		to(until)
		all = append(all, longest)
	}
	slices.SortStableFunc(all, func(a, b Pause) int { return cmp.Compare(b.For, a.For) })
	return all
}

// After returns for each object how long after a moment a call on it was first
// answered; if none was, how long that was looked for.
func (r *Record) After(from int64) map[string]time.Duration {
	after := map[string]time.Duration{}
	for key, spans := range r.Served {
		after[key] = time.Duration(max(0, r.Until-from))
		if i := slices.IndexFunc(spans, func(s Span) bool { return s.End >= from }); i >= 0 {
			after[key] = time.Duration(spans[i].End - from)
		}
	}
	return after
}
