package judge

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/keystead/keystead/internal/tests/history"
	"github.com/keystead/keystead/internal/tests/kinds"
	"github.com/keystead/keystead/internal/tests/nemesis/fault"
	"github.com/keystead/keystead/internal/tests/nemesis/workload"
)

// Verdict is what a history comes to.
type Verdict string

// The verdicts, the worst first. OK and Declared are no failures.
const (
	Illegal   Verdict = "illegal"   // no order of the operations explains the answers
	Undecided Verdict = "undecided" // the check took too long
	Lost      Verdict = "lost"      // state was declared lost that should not have been
	Unserved  Verdict = "unserved"  // an object was not served after a fault was over
	Slow      Verdict = "slow"      // an object paused that had no reason to
	Trouble   Verdict = "trouble"   // the cluster did not do what it was told, or did not recover
	Declared  Verdict = "declared"  // legal, but for objects whose loss was declared
	OK        Verdict = "ok"
)

// Fails reports whether the verdict is a failure.
func (v Verdict) Fails() bool { return v != OK && v != Declared }

// Limits are what a history is held to.
type Limits struct {
	// Slack is by how much times may be late for each fault, or each other change
	// of the table. Default 3 s.
	Slack time.Duration
	// Served is how long after a fault an object may be without an answer.
	// Default 8 s.
	Served time.Duration
	// Pause is how long an object may be without an answer that has no reason to.
	// Default 3 s.
	Pause time.Duration
	// Check bounds the checks of a history. Default 10 s.
	Check time.Duration
	// NoLoss makes a declared loss a failure.
	NoLoss bool
}

// The defaults of Limits.
const (
	DefaultSlack  = 3 * time.Second
	DefaultServed = 8 * time.Second
	DefaultPause  = 3 * time.Second
	DefaultCheck  = 10 * time.Second
)

// Case is a history with what is known of the cluster.
type Case struct {
	Record *workload.Record
	Events []fault.Event
	// Orders are those to split objects and to make them whole.
	Orders []fault.Order
	// Moved says that the table changed, by whatever cause.
	Moved bool
	// Lost reports whether the loss of an object's state was declared in the time of
	// the history, LostRows of how many rows it was.
	Lost     func(key string) bool
	LostRows int
	Trouble  []string // what went wrong besides
}

// Finding is what speaks against a history.
type Finding struct {
	Verdict Verdict `json:"verdict"`
	Object  string  `json:"object,omitempty"`
	What    string  `json:"what"`
	// Violation is that of an illegal object that a model judged.
	Violation *history.Violation `json:"-"`
}

// Result is the judgement of a history.
type Result struct {
	Verdict  Verdict          `json:"verdict"`
	Findings []Finding        `json:"findings,omitempty"`
	Declared []string         `json:"declared,omitempty"` // objects that were left out
	LostRows int              `json:"lost_rows"`
	Pauses   []workload.Pause `json:"pauses"` // of each object, the longest first
	Took     time.Duration    `json:"took"`   // ns, of the checks
}

func (l Limits) withDefaults() Limits {
	l.Slack, l.Served = cmp.Or(l.Slack, DefaultSlack), cmp.Or(l.Served, DefaultServed)
	l.Pause, l.Check = cmp.Or(l.Pause, DefaultPause), cmp.Or(l.Check, DefaultCheck)
	return l
}

// Judge judges a history.
func Judge(c Case, l Limits) Result {
	l = l.withDefaults()
	began := time.Now()
	r := Result{LostRows: c.LostRows, Pauses: c.Record.Pauses(c.Record.From, c.Record.Until)}
	r.objects(c, l)
	if l.NoLoss && c.LostRows > 0 {
		r.find(Lost, "", fmt.Sprintf("the state of %d rows was declared lost", c.LostRows))
	}
	r.live(c, l)
	for _, e := range c.Events {
		if e.Trouble != "" {
			r.find(Trouble, "", fmt.Sprintf("%s: %s", e.Fault, e.Trouble))
		}
	}
	for _, t := range c.Trouble {
		r.find(Trouble, "", t)
	}
	r.Took = time.Since(began)
	r.Verdict = OK
	if len(r.Declared) > 0 || c.LostRows > 0 {
		r.Verdict = Declared
	}
	for _, v := range []Verdict{Trouble, Slow, Unserved, Lost, Undecided, Illegal} {
		if slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Verdict == v }) {
			r.Verdict = v
		}
	}
	return r
}

func (r *Result) find(v Verdict, object, what string) {
	r.Findings = append(r.Findings, Finding{Verdict: v, Object: object, What: what})
}

// lateness returns by how much times may be late in all. While nobody runs, they stand still.
func lateness(c Case, l Limits) int64 {
	changes, still := 0, int64(0)
	for _, e := range c.Events {
		if e.Skipped == "" {
			changes++
		}
		if e.Fault.Kind == fault.StopAll || e.Fault.Kind == fault.KillAll {
			still += e.Settled - e.From
		}
	}
	if c.Moved {
		changes = max(changes, 1)
	}
	return int64(changes)*int64(l.Slack) + still
}

// objects checks each object by itself.
func (r *Result) objects(c Case, l Limits) {
	splits := history.Splits(fault.SplitSince(c.Orders))
	slack := kinds.Slack{Delay: lateness(c, l), Splits: splits}
	end := time.Now().Add(l.Check)
	for kind, calls := range c.Record.Objects() {
		object := calls[0].Object
		if _, split := splits[object]; !split { // parts have epochs of their own
			if err := history.Epochs(calls); err != nil {
				r.find(Illegal, object, err.Error())
			}
		}
		if !l.NoLoss && c.lost(object, splits) {
			r.Declared = append(r.Declared, object)
			continue
		}
		r.model(object, history.Check(slack.Of(kind), calls, max(time.Until(end), time.Millisecond)))
	}
	for _, key := range slices.Sorted(maps.Keys(c.Record.Writes)) {
		if err := kinds.Fencing(c.Record.Writes[key]); err != nil {
			r.find(Illegal, key, err.Error())
		}
	}
	for _, what := range c.Record.Unexpected {
		r.find(Illegal, "", "an answer that nobody should get: "+what)
	}
}

// lost reports whether the loss of what is known of an object was declared, or may have been:
// the parts of one that was split may have been in any row.
func (c Case) lost(object string, splits history.Splits) bool {
	_, split := splits[object]
	return split && c.LostRows > 0 || c.Lost != nil && c.Lost(object)
}

// maxSaid is how much of an error is told here; a kept history has all of it.
const maxSaid = 400

// model takes the result of a check.
func (r *Result) model(object string, err error) {
	var v *history.Violation
	switch {
	case err == nil:
	case errors.Is(err, history.ErrTimeout):
		r.find(Undecided, object, err.Error())
	case errors.As(err, &v):
		first, _, _ := strings.Cut(v.Error(), "\n")
		r.Findings = append(r.Findings, Finding{Verdict: Illegal, Object: object, What: first + "\n" + v.Stuck(), Violation: v})
	default: // attempts of one request that contradict each other
		r.find(Illegal, object, err.Error()[:min(maxSaid, len(err.Error()))])
	}
}

// live checks that objects were served.
func (r *Result) live(c Case, l Limits) {
	rec := c.Record
	splits := fault.SplitSince(c.Orders)
	for i, e := range c.Events {
		if e.Skipped != "" {
			continue
		}
		next := rec.Until
		if i+1 < len(c.Events) {
			next = c.Events[i+1].From
		}
		for key, after := range rec.After(e.Healed) {
			if after > l.Served {
				r.find(Unserved, key, fmt.Sprintf("not served for %s after the end of %s", after.Round(time.Millisecond), e.Fault))
			}
		}
		for _, p := range rec.Pauses(e.From, min(next, max(e.Settled, e.From))) {
			if split, ok := splits[p.Key]; ok && split < e.Settled {
				continue // it may have had a part wherever there was harm
			}
			if slices.Contains(e.Untouched, p.Key) && p.For > l.Pause {
				r.find(Slow, p.Key, fmt.Sprintf("paused for %s during %s of %v, which harmed neither its owner nor the leader", p.For.Round(time.Millisecond), e.Fault, e.Victims))
			}
		}
	}
	if len(c.Events) == 0 {
		for _, p := range r.Pauses {
			if p.For > l.Pause {
				r.find(Slow, p.Key, fmt.Sprintf("paused for %s without a fault", p.For.Round(time.Millisecond)))
			}
		}
	}
}
