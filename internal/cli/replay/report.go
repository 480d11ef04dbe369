package replay

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/keystead/keystead/internal/cli/accesslog"
	"github.com/keystead/keystead/internal/cli/latency"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
)

// Report is the result of a run.
type Report struct {
	Mode      string `json:"mode"` // "limits" or "count"
	By        string `json:"by"`
	Name      string `json:"name"`
	Limit     uint64 `json:"limit,omitempty"`
	PeriodNs  int64  `json:"period_ns,omitempty"`
	Burst     uint64 `json:"burst,omitempty"` // 0 = the limit
	Algorithm string `json:"algorithm,omitempty"`
	Cost      uint64 `json:"cost,omitempty"` // 0 = 1

	// Time is whose time decided: "log" or "node".
	Time string `json:"time"`
	// First and Last are the earliest and the latest time in the log, in UTC; nil if it
	// has no entries.
	First       *time.Time `json:"first,omitempty"`
	Last        *time.Time `json:"last,omitempty"`
	SpanSeconds float64    `json:"span_seconds"` // between them
	// Behind counts the entries that stood behind one of a later time. In the log's own
	// time they are decided in their place, but for those that came Late: when a later
	// entry was decided already. They are taken for entries of that moment.
	Behind int64 `json:"behind"`
	Late   int64 `json:"late"`

	Lines         int64                  `json:"lines"`   // entries + broken + empty
	Entries       int64                  `json:"entries"` // lines with the shape of the format
	Empty         int64                  `json:"empty"`
	Broken        int64                  `json:"broken"`
	BrokenSamples []accesslog.BrokenLine `json:"broken_samples,omitempty"`
	DistinctKeys  int64                  `json:"distinct_keys"`
	ShortenedKeys int64                  `json:"shortened_keys"` // distinct keys that were too long, or not UTF-8

	Allowed     int64    `json:"allowed"`
	Denied      int64    `json:"denied"`
	MostDenied  []Denied `json:"most_denied,omitempty"`
	Counted     int64    `json:"counted"`
	MostCounted []Tally  `json:"most_counted,omitempty"`
	// Entries without an answer, when the run ended early. The last few of them
	// may have acted.
	Unanswered int64            `json:"unanswered"`
	Errors     map[string]int64 `json:"errors,omitempty"` // items that failed, by reason
	FirstError string           `json:"first_error,omitempty"`

	Verify          bool       `json:"verify"`    // it was asked for
	VerifyOK        bool       `json:"verify_ok"` // every counter was read and equals the log
	Verified        int64      `json:"verified"`  // counters that equal the log
	Mismatches      int64      `json:"mismatches"`
	MismatchSamples []Mismatch `json:"mismatch_samples,omitempty"` // at most 20

	DurationSeconds float64 `json:"duration_seconds"` // of the replay, without verification
	LinesPerSecond  float64 `json:"lines_per_second"`
	Concurrency     int     `json:"concurrency"`
	Batch           int     `json:"batch"`   // entries in a call, at most
	Calls           int64   `json:"calls"`   // that brought an answer
	Retries         int64   `json:"retries"` // calls that were made again
	// Latency is that of calls that brought an answer, each with a batch of
	// entries. Waiting for a retry does not count.
	Latency Latency `json:"latency"`
}

// Unreadable is why the file is no access log, "" if it is one: more than half of its
// lines have another shape. A file without a line is an empty log.
func (r *Report) Unreadable() string {
	//guard:replay-strange true
	if r.Broken <= r.Entries {
		return ""
	}
	why := fmt.Sprintf("%s of its %s could not be read", grouped(r.Broken), plural(r.Lines-r.Empty, "line"))
	if r.Entries == 0 {
		first := ""
		if r.Broken == accesslog.MaxStrange {
			first = "first "
		}
		why = fmt.Sprintf("this is no access log: none of its %s%s could be read", first, plural(r.Broken, "line"))
	}
	for _, b := range r.BrokenSamples[:min(1, len(r.BrokenSamples))] {
		why += fmt.Sprintf("\n  line %s: %s\n    %s", grouped(b.Line), b.Reason, safe(b.Text, maxShown))
	}
	return why
}

// Denied is a key and how often it was over its limit.
type Denied struct {
	Key     string `json:"key"`
	Allowed int64  `json:"allowed"`
	Denied  int64  `json:"denied"`
}

// Tally is a key and how often it was counted.
type Tally struct {
	Key   string `json:"key"`
	Count int64  `json:"count"`
}

// Mismatch is a counter that differs from the log.
type Mismatch struct {
	Key     string `json:"key"`
	Log     int64  `json:"log"`              // entries in the log
	Counter int64  `json:"counter"`          // counted by the server during the run
	Unread  bool   `json:"unread,omitempty"` // the counter could not be read, so Counter says nothing
}

// Latency holds percentiles, in milliseconds.
type Latency struct {
	P50  float64 `json:"p50_ms"`
	P99  float64 `json:"p99_ms"`
	P999 float64 `json:"p99_9_ms"`
	Max  float64 `json:"max_ms"`
	Mean float64 `json:"mean_ms"`
}

func (r *run) report(took time.Duration, v *verification) *Report {
	rep := &Report{
		Mode: "limits", By: r.by.String(), Name: r.cfg.Name,
		Entries: r.entries.Load(), Retries: r.retries.Load(), Lines: r.lines.Load(),
		Concurrency: r.cfg.Concurrency, Batch: r.cfg.Batch, DurationSeconds: took.Seconds(),
		Verify: r.cfg.Verify, VerifyOK: v.done && v.unequal == 0, Verified: v.equal,
		Mismatches: v.unequal, MismatchSamples: v.mismatches,
	}
	r.mu.Lock()
	rep.Broken, rep.Empty, rep.BrokenSamples = r.broken, r.empty, r.sample
	rep.Behind, rep.SpanSeconds = r.behind, r.last.Sub(r.first).Seconds()
	if first, last := r.first, r.last; r.timed {
		rep.First, rep.Last = &first, &last
	}
	r.mu.Unlock()
	if rep.Time = "node"; r.judge != nil {
		rep.Time, rep.Late = "log", r.judge.lateEntries()
	}
	r.tallies(rep)
	if rep.DurationSeconds > 0 {
		rep.LinesPerSecond = float64(rep.Lines) / rep.DurationSeconds
	}
	var times latency.Histogram
	for _, w := range r.workers {
		times.Merge(&w.times)
	}
	rep.Calls = int64(times.Count())
	ms := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
	rep.Latency = Latency{P50: ms(times.Quantile(0.5)), P99: ms(times.Quantile(0.99)), P999: ms(times.Quantile(0.999)),
		Max: ms(times.Max()), Mean: ms(times.Mean())}
	return rep
}

// tallies fills in what the server answered.
func (r *run) tallies(rep *Report) {
	all := r.table.all()
	t := r.table
	t.mu.Lock()
	defer t.mu.Unlock()
	rep.DistinctKeys, rep.ShortenedKeys = int64(len(t.stats)), t.shortened
	rep.Errors, rep.FirstError = t.reasons, t.first
	rep.Unanswered = rep.Entries - t.yes - t.no - t.failed
	if r.cfg.Mode == Count {
		rep.Mode, rep.Counted = "count", t.yes
		for _, s := range top(all, r.cfg.Top, func(s *keyStat) int64 { return s.yes }) {
			rep.MostCounted = append(rep.MostCounted, Tally{Key: s.key, Count: s.yes})
		}
		return
	}
	rep.Limit, rep.PeriodNs, rep.Burst, rep.Cost = r.cfg.Limit, int64(r.cfg.Period), r.cfg.Burst, r.cfg.Cost
	rep.Algorithm = "token bucket"
	switch r.cfg.Algorithm {
	case limitpb.Algorithm_ALGORITHM_FIXED_WINDOW:
		rep.Algorithm = "fixed window"
	case limitpb.Algorithm_ALGORITHM_SLIDING_WINDOW:
		rep.Algorithm = "sliding window"
	}
	rep.Allowed, rep.Denied = t.yes, t.no
	for _, s := range top(all, r.cfg.Top, func(s *keyStat) int64 { return s.no }) {
		rep.MostDenied = append(rep.MostDenied, Denied{Key: s.key, Allowed: s.yes, Denied: s.no})
	}
}

// top returns the n keys of the greatest value above 0, the greatest first and
// equal ones by key.
func top(all []*keyStat, n int, value func(*keyStat) int64) []*keyStat {
	order := func(a, b *keyStat) int {
		return cmp.Or(cmp.Compare(value(b), value(a)), cmp.Compare(a.key, b.key))
	}
	var best []*keyStat // Invariant: sorted, at most n
	for _, s := range all {
		if n <= 0 || value(s) == 0 || len(best) == n && order(s, best[n-1]) > 0 {
			continue
		}
		i, _ := slices.BinarySearchFunc(best, s, order)
		if best = slices.Insert(best, i, s); len(best) > n {
			best = best[:n]
		}
	}
	return best
}
