package sim

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"
)

// sumLog is what was done to a counter to which everybody only adds.
type sumLog struct {
	mu      sync.Mutex
	changes []*sumChange // guarded by mu
	reads   []sumRead    // guarded by mu
}

// sumChange is an addition. One that is neither done nor refused may have taken effect
// at any time since start.
type sumChange struct {
	start, end    time.Time
	delta         int64
	done, refused bool
}

type sumRead struct {
	start, end time.Time
	value      int64
	what       string
}

func (l *sumLog) begin(delta int64) *sumChange {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := &sumChange{start: time.Now(), delta: delta}
	l.changes = append(l.changes, c)
	return c
}

func (l *sumLog) end(c *sumChange, applied bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c.end, c.done, c.refused = time.Now(), applied, !applied
}

func (l *sumLog) read(start time.Time, value int64, what string) {
	l.readUntil(start, time.Now(), value, what)
}

func (l *sumLog) readUntil(start, end time.Time, value int64, what string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reads = append(l.reads, sumRead{start, end, value, what})
}

// total returns the sum of what is done, and, when nobody adds any more, of what may have been
// done as well: it was never told.
func (l *sumLog) total() (sum, open int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.changes {
		switch {
		case c.done:
			sum += c.delta
		case !c.refused:
			open += c.delta
		}
	}
	return sum, open
}

// judge says what is wrong: a read has all that was done before it began, nothing that
// began after it ended, and no less than one that ended before it began. Of a counter of
// which something was lost, only the second counts.
func (l *sumLog) judge(lost bool) (faults []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	begun, done := slices.Clone(l.changes), slices.Clone(l.changes)
	begun = slices.DeleteFunc(begun, func(c *sumChange) bool { return c.refused })
	done = slices.DeleteFunc(done, func(c *sumChange) bool { return !c.done })
	slices.SortFunc(begun, func(a, b *sumChange) int { return a.start.Compare(b.start) })
	slices.SortFunc(done, func(a, b *sumChange) int { return a.end.Compare(b.end) })
	byEnd, byStart := slices.Clone(l.reads), slices.Clone(l.reads)
	slices.SortFunc(byEnd, func(a, b sumRead) int { return a.end.Compare(b.end) })
	slices.SortFunc(byStart, func(a, b sumRead) int { return a.start.Compare(b.start) })
	var most int64
	i := 0
	for _, r := range byEnd {
		for ; i < len(begun) && !begun[i].start.After(r.end); i++ {
			most += begun[i].delta
		}
		if r.value > most {
			faults = append(faults, fmt.Sprintf("%s, from %s to %s: %d, when no more than %d had been begun", r.what, stamp(r.start), stamp(r.end), r.value, most))
		}
	}
	if lost {
		return faults
	}
	var least int64
	var highest sumRead
	i = 0
	next := 0
	for _, r := range byStart {
		for ; i < len(done) && done[i].end.Before(r.start); i++ {
			least += done[i].delta
		}
		for ; next < len(byEnd) && byEnd[next].end.Before(r.start); next++ {
			if byEnd[next].value > highest.value {
				highest = byEnd[next]
			}
		}
		if r.value < least {
			faults = append(faults, fmt.Sprintf("%s, from %s to %s: %d, when %d had been done", r.what, stamp(r.start), stamp(r.end), r.value, least))
		}
		if r.value < highest.value {
			faults = append(faults, fmt.Sprintf("%s, from %s to %s: %d, and before, %s, until %s: %d", r.what, stamp(r.start), stamp(r.end), r.value, highest.what, stamp(highest.end), highest.value))
		}
	}
	return faults
}

// checkLog is what was asked of a limit by checks of one token.
type checkLog struct {
	mu       sync.Mutex
	admitted []span                       // guarded by mu
	answers  []struct{ divided, no bool } // guarded by mu
}

type span struct{ start, end time.Time }

func (l *checkLog) took(start time.Time, allowed bool, parts uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if allowed {
		l.admitted = append(l.admitted, span{start, time.Now()})
	}
	l.answers = append(l.answers, struct{ divided, no bool }{parts > 0, !allowed})
}

// figures returns how many checks were decided and refused, and decided by parts.
func (l *checkLog) figures() (all, refused, divided int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, a := range l.answers {
		if a.no {
			refused++
		}
		if a.divided {
			divided++
		}
	}
	return len(l.answers), refused, divided
}

// judge says in which window more was admitted than the limit allows: each token counts
// that was certainly spent in it. Clocks of hosts run fast by maxDrift at most.
//
// It is enough to look at windows that begin where a call begins and end where one
// ends. With f(t) = rate·t - burst, that is: for no i and j, what lies in
// [start(i), end(j)] is more than rate·(end(j)-start(i)) + burst.
func (l *checkLog) judge(b bucket) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	byEnd := slices.Clone(l.admitted)
	slices.SortFunc(byEnd, func(a, b span) int { return a.end.Compare(b.end) })
	rate := float64(b.rate) * (1 + maxDrift)
	for _, first := range l.admitted {
		n, from, ok := 0, first.start, true
		var worst string
		at, _ := slices.BinarySearchFunc(byEnd, from, func(s span, t time.Time) int { return s.end.Compare(t) })
		for _, s := range byEnd[at:] {
			if s.start.Before(from) {
				continue
			}
			n++
			if most := float64(b.burst) + rate*s.end.Sub(from).Seconds(); float64(n) > most {
				ok, worst = false, fmt.Sprintf("%d of %s from %s to %s, and %.1f are allowed", n, b.key, stamp(from), stamp(s.end), most)
			}
		}
		if !ok {
			return worst
		}
	}
	return ""
}

// TestSplitJudges: the judges find what is wrong.
func TestSplitJudges(t *testing.T) {
	at := func(ms int) time.Time { return time.Unix(0, 0).Add(time.Duration(ms) * time.Millisecond) }
	change := func(from, to int, done bool) *sumChange {
		return &sumChange{start: at(from), end: at(to), delta: 1, done: done, refused: !done && to > 0}
	}
	read := func(from, to int, value int64) sumRead { return sumRead{at(from), at(to), value, "read"} }
	for name, x := range map[string]struct {
		l    *sumLog
		want int
	}{
		"right":        {&sumLog{changes: []*sumChange{change(1, 2, true), change(3, 9, true)}, reads: []sumRead{read(4, 5, 1), read(6, 7, 2)}}, 0},
		"lost":         {&sumLog{changes: []*sumChange{change(1, 2, true)}, reads: []sumRead{read(3, 4, 0)}}, 1},
		"twice":        {&sumLog{changes: []*sumChange{change(1, 2, true)}, reads: []sumRead{read(3, 4, 2)}}, 1},
		"back":         {&sumLog{changes: []*sumChange{change(1, 9, true)}, reads: []sumRead{read(2, 3, 1), read(4, 5, 0)}}, 1},
		"unknown":      {&sumLog{changes: []*sumChange{change(1, 0, false)}, reads: []sumRead{read(2, 3, 1)}}, 0},
		"refused":      {&sumLog{changes: []*sumChange{change(1, 2, false)}, reads: []sumRead{read(3, 4, 1)}}, 1},
		"at that time": {&sumLog{changes: []*sumChange{change(1, 3, true)}, reads: []sumRead{read(2, 4, 0)}}, 0},
	} {
		if got := x.l.judge(false); len(got) != x.want {
			t.Errorf("%s: %q", name, got)
		}
		want := x.want
		if name == "lost" || name == "back" {
			want = 0
		}
		if got := x.l.judge(true); len(got) != want {
			t.Errorf("%s, of a counter of which something was lost: %q", name, got)
		}
	}
	l := &sumLog{changes: []*sumChange{change(1, 2, true), change(1, 2, false), change(1, 0, false)}}
	if done, open := l.total(); done != 1 || open != 1 {
		t.Errorf("%d done, %d open", done, open)
	}
	b := bucket{key: "k", rate: 10, burst: 2}
	for name, x := range map[string]struct {
		spans []span
		bad   bool
	}{
		"burst":    {[]span{{at(0), at(1)}, {at(0), at(1)}}, false},
		"too many": {[]span{{at(0), at(1)}, {at(0), at(1)}, {at(2), at(3)}}, true},
		"refilled": {[]span{{at(0), at(1)}, {at(0), at(1)}, {at(2), at(103)}}, false},
		"later":    {[]span{{at(0), at(1)}, {at(500), at(501)}, {at(502), at(503)}, {at(502), at(503)}}, true},
	} {
		if got := (&checkLog{admitted: x.spans}).judge(b); (got != "") != x.bad {
			t.Errorf("%s: %q", name, got)
		}
	}
}
