package replay

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"
)

// WriteText prints the report for people. Keys come from a log, and so from
// strangers: whatever could disturb a terminal is escaped.
func (r *Report) WriteText(w io.Writer) error {
	var out bytes.Buffer
	t := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	row := func(label, format string, args ...any) {
		fmt.Fprintf(t, "%s\t%s\n", label, fmt.Sprintf(format, args...))
	}
	lines := fmt.Sprintf("%s lines, %s entries, %s broken", grouped(r.Lines), grouped(r.Entries), grouped(r.Broken))
	if r.Empty > 0 {
		lines += fmt.Sprintf(", %s empty", grouped(r.Empty))
	}
	row("Log", "%s", lines)
	r.textTime(row)
	keys := fmt.Sprintf("%s distinct, by %s", grouped(r.DistinctKeys), r.By)
	if r.ShortenedKeys > 0 {
		keys += fmt.Sprintf("; %s shortened", grouped(r.ShortenedKeys))
	}
	row("Keys", "%s", keys)
	r.textOutcome(row)
	for _, reason := range slices.SortedFunc(maps.Keys(r.Errors), func(a, b string) int {
		return cmp.Or(cmp.Compare(r.Errors[b], r.Errors[a]), strings.Compare(a, b))
	}) {
		row("Errors", "%s × %s", grouped(r.Errors[reason]), safe(reason, 0))
	}
	if r.FirstError != "" {
		row("", "first: %s", safe(r.FirstError, 0))
	}
	if r.Unanswered > 0 {
		text := plural(r.Unanswered, "entry")
		if r.Unanswered != 1 {
			text = grouped(r.Unanswered) + " entries"
		}
		if r.Time != "log" {
			text += "; the last of them may have acted"
		}
		row("Unanswered", "%s", text)
	}
	row("Throughput", "%s lines/s: %s in %s", grouped(int64(r.LinesPerSecond)), plural(r.Lines, "line"), shortTime(r.DurationSeconds*1000))
	if r.Calls > 0 || r.Time != "log" {
		r.textCalls(row)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	r.textKeys(&out)
	r.textProblems(&out)
	_, err := w.Write(out.Bytes())
	return err
}

// shortPeriod is the period below which it matters that a log has whole seconds.
const shortPeriod = 10 * time.Second

// textTime prints whose time decided.
func (r *Report) textTime(row func(label, format string, args ...any)) {
	if r.First == nil {
		return
	}
	over := span(time.Duration(r.SpanSeconds * float64(time.Second)))
	if r.Time != "log" {
		row("Time", "the node's clock: %s of log in %s", over, shortTime(r.DurationSeconds*1000))
		if r.Mode == "limits" {
			row("", "expect more denials than in real traffic; --time log goes by the log's own times")
		}
		return
	}
	row("Time", "at the log's own times: %s over %s", plural(r.Entries, "request"), over)
	row("", "from %s to %s", r.First.Format(time.DateTime), r.Last.Format(time.DateTime+" MST"))
	if r.Behind > 0 {
		behind := fmt.Sprintf("%s stood behind a later one", grouped(r.Behind))
		switch {
		case r.Late == 0:
			behind += ": put in order"
		case r.Late == r.Behind:
			behind += fmt.Sprintf(" by more than %s lines: decided where they stood", grouped(maxHeld))
		default:
			behind += fmt.Sprintf(": put in order, but for %s that came more than %s lines late", grouped(r.Late), grouped(maxHeld))
		}
		row("", "%s", behind)
	}
	if r.Mode == "limits" && time.Duration(r.PeriodNs) < shortPeriod {
		row("", "the log has whole seconds: requests of one second count as simultaneous")
	}
}

// span writes how long a log is.
func span(d time.Duration) string {
	switch {
	case d >= 48*time.Hour:
		return fmt.Sprintf("%.1f days", d.Hours()/24)
	case d >= time.Hour:
		d = d.Round(time.Minute)
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return d.String()
}

// textCalls prints what the calls to the server took.
func (r *Report) textCalls(row func(label, format string, args ...any)) {
	l := r.Latency
	row("Latency", "p50 %s, p99 %s, p99.9 %s, max %s", shortTime(l.P50), shortTime(l.P99), shortTime(l.P999), shortTime(l.Max))
	row("", "of a call with up to %s; %s, %s repeated, %d at a time",
		plural(int64(r.Batch), "line"), plural(r.Calls, "call"), grouped(r.Retries), r.Concurrency)
}

// textOutcome prints what the server decided.
func (r *Report) textOutcome(row func(label, format string, args ...any)) {
	if r.Mode == "count" {
		if r.Time == "log" {
			row("Counters", "of each key, in this program, without a node")
		} else {
			row("Counters", "%q of each key", r.Name)
		}
		row("Counted", "%s", grouped(r.Counted))
		switch {
		case !r.Verify:
		case r.VerifyOK:
			row("Verified", "all %s equal the log", plural(r.Verified, "counter"))
		case r.Verified+r.Mismatches < r.DistinctKeys:
			row("Verified", "NO: not all counters were read back")
		default:
			row("Verified", "NO: %s of %s differ from the log", grouped(r.Mismatches), plural(r.DistinctKeys, "counter"))
		}
		return
	}
	limit := fmt.Sprintf("%s per %s", grouped(int64(r.Limit)), plainPeriod(time.Duration(r.PeriodNs)))
	if r.Burst > 0 {
		limit += ", burst " + grouped(int64(r.Burst))
	}
	if r.Cost > 1 {
		limit += ", cost " + grouped(int64(r.Cost))
	}
	limit += ", " + r.Algorithm
	if r.Time == "log" {
		row("Limit", "%s, of each key; decided by this program, without a node", limit)
	} else {
		row("Limit", "%s, %q of each key", limit, r.Name)
	}
	row("Allowed", "%s", share(r.Allowed, r.Allowed+r.Denied))
	row("Denied", "%s", share(r.Denied, r.Allowed+r.Denied))
}

// plainPeriod writes a period without zeros at its end: 1m, 24h.
func plainPeriod(d time.Duration) string {
	text := d.String()
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(text, zero) {
			text = strings.TrimSuffix(text, zero[1:])
		}
	}
	return text
}

// maxShown is how much of a key is printed, in characters.
const maxShown = 80

// textKeys prints the table of keys.
func (r *Report) textKeys(out io.Writer) {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	if len(r.MostDenied) > 0 {
		fmt.Fprintf(out, "\nMost denied\n")
		fmt.Fprintf(t, "denied\tallowed\t  key\n")
		for _, d := range r.MostDenied {
			fmt.Fprintf(t, "%s\t%s\t  %s\n", grouped(d.Denied), grouped(d.Allowed), safe(d.Key, maxShown))
		}
	}
	if len(r.MostCounted) > 0 {
		fmt.Fprintf(out, "\nMost counted\n")
		fmt.Fprintf(t, "count\t  key\n")
		for _, c := range r.MostCounted {
			fmt.Fprintf(t, "%s\t  %s\n", grouped(c.Count), safe(c.Key, maxShown))
		}
	}
	_ = t.Flush() // out is in memory
}

// textProblems prints samples of what went wrong.
func (r *Report) textProblems(out io.Writer) {
	if len(r.MismatchSamples) > 0 {
		fmt.Fprintf(out, "\nCounters that differ (%d of %s)\n", len(r.MismatchSamples), grouped(r.Mismatches))
		t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprintf(t, "in the log\tcounted\t  key\n")
		for _, m := range r.MismatchSamples {
			counted := grouped(m.Counter)
			if m.Unread {
				counted = "unread"
			}
			fmt.Fprintf(t, "%s\t%s\t  %s\n", grouped(m.Log), counted, safe(m.Key, maxShown))
		}
		_ = t.Flush() // out is in memory
	}
	if len(r.BrokenSamples) > 0 {
		fmt.Fprintf(out, "\nBroken lines (%d of %s)\n", len(r.BrokenSamples), grouped(r.Broken))
		for _, b := range r.BrokenSamples {
			fmt.Fprintf(out, "  line %s: %s\n    %s\n", grouped(b.Line), b.Reason, safe(b.Text, 0))
		}
	}
}

// Printable is a text of strangers as it may be shown on a terminal: what is not
// printable is escaped, and what is longer than limit characters is cut; 0 = no limit.
func Printable(s string, limit int) string { return safe(s, limit) }

// safe escapes what is not printable, and cuts a text longer than limit
// characters; 0 = no limit.
func safe(s string, limit int) string {
	var b strings.Builder
	shown := 0
	for i, r := range s {
		if limit > 0 && shown == limit {
			return b.String() + "…"
		}
		shown++
		if _, n := utf8.DecodeRuneInString(s[i:]); r == utf8.RuneError && n == 1 {
			fmt.Fprintf(&b, `\x%02x`, s[i])
		} else if unicode.IsPrint(r) {
			b.WriteRune(r)
		} else {
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		}
	}
	return b.String()
}

// grouped writes a number with commas: 1,234,567.
func grouped(n int64) string {
	s := strconv.FormatInt(n, 10)
	first := 0
	if n < 0 {
		first = 1
	}
	for i := len(s) - 3; i > first; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

func plural(n int64, what string) string {
	if n != 1 {
		what += "s"
	}
	return grouped(n) + " " + what
}

func share(n, of int64) string {
	if of == 0 {
		return grouped(n)
	}
	return fmt.Sprintf("%s (%.1f %%)", grouped(n), 100*float64(n)/float64(of))
}

// shortTime writes milliseconds with three figures.
func shortTime(ms float64) string {
	d := time.Duration(ms * float64(time.Millisecond))
	for _, unit := range []time.Duration{time.Second, time.Millisecond, time.Microsecond} {
		if d >= unit {
			return d.Round(unit / 100).String()
		}
	}
	return d.String()
}
