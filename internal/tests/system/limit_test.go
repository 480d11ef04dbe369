package system

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"
	"time"
)

func number(t *testing.T, v any) float64 {
	t.Helper()
	n, ok := v.(json.Number)
	if !ok {
		t.Fatalf("%v is not a number", v)
	}
	if strings.ContainsAny(n.String(), "eE") {
		t.Errorf("%s has an exponent", n)
	}
	f, err := n.Float64()
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// within checks a number that depends on the time that passed meanwhile.
func within(t *testing.T, name string, v any, low, high float64) {
	t.Helper()
	if got := number(t, v); got < low || got > high {
		t.Errorf("%s is %v, want %v to %v", name, got, low, high)
	}
}

var limitFields = []string{"allowed", "limit", "remaining", "retry_after", "reset_after", "epoch"}

func TestLimitText(t *testing.T) {
	args := []string{"limit", "check", "text", "--limit", "2/1h"}
	for _, want := range []string{"allowed  1 of 2 left, full in 30m0s\n", "allowed  0 of 2 left, full in 1h0m0s\n"} {
		// The bucket refills while the test runs, by less than a second it is hoped.
		if got := succeeds(t, args...); !strings.HasPrefix(got, want[:len("allowed  1 of 2 left, full in ")]) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	got := succeeds(t, args...)
	if !strings.HasPrefix(got, "denied   0 of 2 left, try again in ") || !strings.Contains(got, ", full in ") {
		t.Errorf("got %q", got)
	}
	if r := keystead(t, append(args, "--exit-code")...); r.code != 3 || r.out == "" || r.err != "" {
		t.Errorf("--exit-code: %+v", r)
	}
	if r := keystead(t, "limit", "check", "text-2", "--limit", "2/1h", "--exit-code"); r.code != 0 {
		t.Errorf("--exit-code when allowed: %+v", r)
	}
}

func TestLimitJSON(t *testing.T) {
	check := func(args ...string) map[string]any {
		t.Helper()
		v := object(t, succeeds(t, append([]string{"limit", "check", "json", "--json"}, args...)...))
		hasFields(t, v, limitFields...)
		return v
	}
	first := check("--limit", "4/1h", "--burst", "10", "--cost", "3")
	if first["allowed"] != true || number(t, first["limit"]) != 10 || number(t, first["remaining"]) != 7 {
		t.Errorf("first: %v", first)
	}
	if number(t, first["retry_after"]) != 0 || number(t, first["reset_after"]) != 3*900 { // 4 in an hour are one in 900 s
		t.Errorf("first: %v", first)
	}
	second := check("--limit", "4/1h", "--burst", "10", "--cost", "8")
	if second["allowed"] != false || number(t, second["remaining"]) != 7 {
		t.Errorf("second: %v", second)
	}
	within(t, "retry_after", second["retry_after"], 900-60, 900)
	within(t, "reset_after", second["reset_after"], 3*900-60, 3*900)
	if epoch := number(t, second["epoch"]); epoch < 1 || epoch != number(t, first["epoch"]) {
		t.Errorf("epochs %v and %v", first["epoch"], second["epoch"])
	}
}

func TestLimitPeekSpendsNothing(t *testing.T) {
	args := []string{"peeked", "--limit", "1/1h", "--json"}
	for range 2 {
		v := object(t, succeeds(t, append([]string{"limit", "peek"}, args...)...))
		hasFields(t, v, limitFields...)
		if v["allowed"] != true || number(t, v["remaining"]) != 1 {
			t.Errorf("peek: %v", v)
		}
	}
	if v := object(t, succeeds(t, append([]string{"limit", "check"}, args...)...)); v["allowed"] != true {
		t.Errorf("check: %v", v)
	}
	r := keystead(t, append([]string{"limit", "peek", "--exit-code"}, args...)...)
	if v := object(t, r.out); r.code != 3 || v["allowed"] != false || number(t, v["remaining"]) != 0 {
		t.Errorf("peek when it is spent: %+v", r)
	}
}

func TestLimitFixedWindow(t *testing.T) {
	args := []string{"limit", "check", "window", "--algorithm", "fixed-window", "--limit", "2/1h", "--json"}
	for remaining := 1; remaining >= 0; remaining-- {
		v := object(t, succeeds(t, args...))
		if v["allowed"] != true || number(t, v["remaining"]) != float64(remaining) {
			t.Errorf("got %v, want %d remaining", v, remaining)
		}
		within(t, "reset_after", v["reset_after"], 3600-60, 3600)
	}
	v := object(t, succeeds(t, args...))
	if v["allowed"] != false || v["retry_after"] != v["reset_after"] {
		t.Errorf("over the limit: %v", v)
	}
}

func TestLimitSlidingWindow(t *testing.T) {
	for name, algorithm := range map[string]string{"a": "sliding-window", "b": "sliding_window"} {
		args := []string{"limit", "check", "sliding", "--name", name, "--algorithm", algorithm, "--limit", "2/1h", "--json"}
		for remaining := 1; remaining >= 0; remaining-- {
			if v := object(t, succeeds(t, args...)); v["allowed"] != true || number(t, v["remaining"]) != float64(remaining) {
				t.Errorf("got %v, want %d remaining", v, remaining)
			}
		}
		v := object(t, succeeds(t, args...))
		if v["allowed"] != false || number(t, v["retry_after"]) > number(t, v["reset_after"]) {
			t.Errorf("over the limit: %v", v)
		}
		within(t, "retry_after", v["retry_after"], 3600-60, 3600)
	}
}

// Limits by the calendar say when their period ends.
func TestLimitCalendar(t *testing.T) {
	args := []string{"limit", "check", "calendar", "--limit", "2/year", "--algorithm", "calendar-window", "--time-zone", "Asia/Tokyo"}
	got := succeeds(t, args...)
	if !strings.HasPrefix(got, "allowed  1 of 2 left, full in ") || !strings.HasSuffix(got, "-12-31T15:00:00Z\n") {
		t.Errorf("got %q", got)
	}
	if got := succeeds(t, "key", "calendar"); !strings.Contains(got, "1 spent at 2/year Asia/Tokyo from 1-1, full in ") {
		t.Errorf("got %q", got)
	}
	v := object(t, succeeds(t, append(args, "--json", "--carry-over", "5", "--cost", "2")...))
	if ends, _ := v["period_ends"].(string); v["allowed"] != false || !strings.HasSuffix(ends, "-12-31T15:00:00Z") {
		t.Errorf("got %v", v)
	}
	v = object(t, succeeds(t, "limit", "check", "clock", "--limit", "2/1m", "--algorithm", "calendar-window", "--json"))
	if ends, _ := v["period_ends"].(string); v["allowed"] != true || !strings.HasSuffix(ends, ":00Z") || number(t, v["reset_after"]) > 61 {
		t.Errorf("got %v", v)
	}
	refuses(t, 2, "--limit 2/month goes with --algorithm calendar-window", "limit", "check", "k", "--limit", "2/month")
	refuses(t, 2, "go with --algorithm calendar-window", "limit", "check", "k", "--limit", "2/1m", "--time-zone", "UTC")
	refuses(t, 2, "time-zone", "limit", "check", "k", "--limit", "2/month", "--algorithm", "calendar-window", "--time-zone", "Mars/Tokyo")
	refuses(t, 2, "first-day", "limit", "check", "k", "--limit", "2/month", "--algorithm", "calendar-window", "--first-day", "32")
	refuses(t, 2, "whole seconds", "limit", "check", "k", "--limit", "2/1500ms", "--algorithm", "calendar-window")
}

// Turns of a queue: they are told, and waited for.
func TestLimitTurns(t *testing.T) {
	args := []string{"--limit", "10/1s", "--burst", "9"}
	wait := append([]string{"limit", "wait", "turns"}, args...)
	if got := succeeds(t, append(wait, "--cost", "3")...); !strings.HasPrefix(got, "turn     after 0s, 6 of 9 places left") {
		t.Errorf("got %q", got)
	}
	check := append([]string{"limit", "check", "turns", "--algorithm", "leaky-bucket"}, args...)
	if got := succeeds(t, append(check, "--max-delay", "5s")...); !strings.HasPrefix(got, "allowed  in ") {
		t.Errorf("got %q", got)
	}
	v := object(t, succeeds(t, append(check, "--max-delay", "5s", "--json")...))
	if v["allowed"] != true || number(t, v["delay"]) > 0.4 {
		t.Errorf("got %v", v)
	}
	began := time.Now()
	v = object(t, succeeds(t, append(wait, "--json")...))
	if took := time.Since(began).Seconds(); v["allowed"] != true || took < number(t, v["delay"]) {
		t.Errorf("got %v after %v s", v, took)
	}
	succeeds(t, "limit", "wait", "slow", "--limit", "1/1h")
	refuses(t, 75, `the queue of "slow" is full, 0 of 1 places are free; there is room in `, "limit", "wait", "slow", "--limit", "1/1h")
	refuses(t, 75, `no turn of "slow" within 1s: 1 of 2 places are free`, "limit", "wait", "slow", "--limit", "1/1h", "--burst", "2", "--max-delay", "1s")
	refuses(t, 75, `no turn of "slow" within 0s`, "limit", "wait", "slow", "--limit", "1/1h", "--burst", "2", "--max-delay", "0")
	refuses(t, 2, "--max-delay goes with --algorithm leaky-bucket", "limit", "check", "k", "--limit", "1/s", "--max-delay", "1s")
	refuses(t, 2, "--algorithm token-bucket has no turns to wait for", "limit", "wait", "k", "--limit", "1/s", "--algorithm", "token-bucket")
	refuses(t, 2, "--max-delay -1s: choose 0 or more", "limit", "wait", "k", "--limit", "1/s", "--max-delay", "-1s")
}

// An override beats what the command says, is shown, listed and cleared.
func TestLimitOverride(t *testing.T) {
	override := func(verb string, args ...string) []string {
		return append([]string{"limit", "override", verb, "overridden", "--name", "api"}, args...)
	}
	refuses(t, 3, `the limit of "overridden" has no override`, override("show")...)
	if got := succeeds(t, override("set", "--limit", "100/1h", "--for", "1h")...); got != "set      100/1h, for 1h0m0s\n" {
		t.Errorf("got %q", got)
	}
	check := []string{"limit", "check", "overridden", "--name", "api", "--limit", "3/1h", "--cost", "40"}
	if got := succeeds(t, check...); !strings.HasPrefix(got, "allowed  60 of 100 left, full in ") || !strings.HasSuffix(got, " (overridden)\n") {
		t.Errorf("got %q", got)
	}
	v := object(t, succeeds(t, append(check, "--json")...))
	if v["overridden"] != true || number(t, v["limit"]) != 100 {
		t.Errorf("got %v", v)
	}
	if got := succeeds(t, override("show")...); !strings.HasPrefix(got, "100/1h, for ") {
		t.Errorf("got %q", got)
	}
	if got := succeeds(t, "key", "overridden"); !strings.Contains(got, "80 spent at 100/1h0m0s") || !strings.Contains(got, "; overridden: 100/1h, for ") {
		t.Errorf("got %q", got)
	}
	if got := succeeds(t, "limit", "override", "list", "--prefix", "overri"); !strings.Contains(got, "overridden  api") {
		t.Errorf("got %q", got)
	}
	v = object(t, succeeds(t, override("set", "--limit", "5/1m", "--burst", "9", "--json")...))
	if v["existed"] != true || number(t, v["burst"]) != 9 || v["ends_after"] != nil {
		t.Errorf("got %v", v)
	}
	if got := succeeds(t, override("show")...); got != "5/1m, burst 9, until it is cleared\n" {
		t.Errorf("got %q", got)
	}
	if r := keystead(t, check...); !strings.HasPrefix(r.out, "denied   0 of 9 left, never passes, full in ") {
		t.Errorf("got %+v", r)
	}
	refuses(t, 3, "refused  api owes 71; never passes\n", "admit", "overridden", "--limit", "api=100/1h:40")
	if got := succeeds(t, override("clear")...); got != "cleared\n" {
		t.Errorf("got %q", got)
	}
	if got := succeeds(t, override("clear")...); got != "none\n" {
		t.Errorf("got %q", got)
	}
	refuses(t, 2, "--limit is missing", override("set")...)
	refuses(t, 2, "--for 0s: choose more than 0", override("set", "--limit", "1/s", "--for", "0s")...)
	refuses(t, 2, "--limit 10/month: an override has no calendar", override("set", "--limit", "10/month")...)
	refuses(t, 2, "--for 87841h: choose at most 87840h", override("set", "--limit", "1/s", "--for", "87841h")...)
}

func TestLimitRefund(t *testing.T) {
	args := []string{"limit", "check", "refunded", "--limit", "3/1h"}
	succeeds(t, append(args, "--cost", "3")...)
	if got := succeeds(t, append(args, "--refund", "2")...); !strings.HasPrefix(got, "refunded 2 of 3 left, full in ") {
		t.Errorf("got %q", got)
	}
	v := object(t, succeeds(t, append(args, "--refund", "9", "--json", "--exit-code")...))
	hasFields(t, v, limitFields...)
	if v["allowed"] != true || number(t, v["remaining"]) != 3 || number(t, v["reset_after"]) != 0 {
		t.Errorf("more than was spent: %v", v)
	}
	if v := object(t, succeeds(t, append(args, "--cost", "3", "--json")...)); v["allowed"] != true {
		t.Errorf("what was given back: %v", v)
	}
}

func TestLimitNamesAreApart(t *testing.T) {
	for _, name := range []string{"", "api", "login"} {
		v := object(t, succeeds(t, "limit", "check", "names", "--limit", "1/1h", "--json", "--name", name))
		if v["allowed"] != true {
			t.Errorf("%q: %v", name, v)
		}
	}
}

func TestLimitMisuse(t *testing.T) {
	for _, tc := range []struct {
		says string
		code int
		args []string
	}{
		{says: "takes KEY", code: 2, args: nil},
		{says: "takes KEY", code: 2, args: []string{"a", "b", "--limit", "1/s"}},
		{says: "--limit is missing", code: 2, args: []string{"k"}},
		{says: "COUNT/PERIOD", code: 2, args: []string{"k", "--limit", "20"}},
		{says: "not a count of 1 or more", code: 2, args: []string{"k", "--limit", "0/s"}},
		{says: "not a period", code: 2, args: []string{"k", "--limit", "20/1w"}},
		{says: "choose 1us to 366d", code: 2, args: []string{"k", "--limit", "20/400d"}},
		{says: "use `keystead limit peek`", code: 2, args: []string{"k", "--limit", "20/s", "--cost", "0"}},
		{says: "--cost", code: 2, args: []string{"k", "--limit", "20/s", "--cost", "-1"}},
		{says: "at most 20 can ever be available", code: 2, args: []string{"k", "--limit", "20/s", "--cost", "21"}},
		{says: "token-bucket, fixed-window, sliding-window, calendar-window or leaky-bucket", code: 2, args: []string{"k", "--limit", "20/s", "--algorithm", "leaky"}},
		{says: "burst: goes with token buckets and leaky buckets only", code: 2, args: []string{"k", "--limit", "20/s", "--algorithm", "fixed-window", "--burst", "9"}},
		{says: "--refund 0 gives nothing back", code: 2, args: []string{"k", "--limit", "20/s", "--refund", "0"}},
		{says: "--refund and --cost exclude each other", code: 2, args: []string{"k", "--limit", "20/s", "--refund", "1", "--cost", "1"}},
		{says: "--refund -1: choose 1 or more", code: 2, args: []string{"k", "--limit", "20/s", "--refund", "-1"}},
		{says: "refund: is 1000000000001", code: 2, args: []string{"k", "--limit", "20/s", "--refund", "1000000000001"}},
		{says: "key: is empty", code: 2, args: []string{"", "--limit", "20/s"}},
		{says: "key: ", code: 2, args: []string{strings.Repeat("k", 513), "--limit", "20/s"}},
		{says: "did you mean --limit?", code: 2, args: []string{"k", "--limt", "20/s"}},
		{says: "--timeout -1s", code: 2, args: []string{"k", "--limit", "20/s", "--timeout", "-1s"}},
		{says: "HOST:PORT", code: 2, args: []string{"k", "--limit", "20/s", "--addr", "somewhere"}},
		{says: "cannot reach a node at 127.0.0.1:1: ", code: 1, args: []string{"k", "--limit", "20/s", "--addr", "127.0.0.1:1"}},
		{says: "start one with `keystead dev`", code: 1, args: []string{"k", "--limit", "20/s", "--addr", "127.0.0.1:1"}},
	} {
		t.Run(tc.says, func(t *testing.T) {
			t.Parallel()
			refuses(t, tc.code, tc.says, append([]string{"limit", "check"}, tc.args...)...)
		})
	}
}

// A key of one kind is not taken for one of another.
func TestKindMismatch(t *testing.T) {
	succeeds(t, "counter", "add", "kind", "--name", "x")
	refuses(t, 1, "hold a counter, not a limit (KIND_MISMATCH)", "limit", "check", "kind", "--name", "x", "--limit", "1/s")
	refuses(t, 1, "hint: use another name", "lock", "kind", "--name", "x", "--wait", "0", "--", "true")
}

// counted returns the value that "counter get" prints.
func counted(t *testing.T, key string, args ...string) int64 {
	t.Helper()
	out := succeeds(t, append([]string{"counter", "get", key}, args...)...)
	n, err := strconv.ParseInt(strings.TrimSpace(out), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestLimitAnywhere(t *testing.T) {
	args := []string{"limit", "check", "anywhere", "--limit", "2/1h", "--anywhere", "--json"}
	for _, want := range []bool{true, true, false} {
		if v := object(t, succeeds(t, args...)); v["allowed"] != want {
			t.Errorf("%v, want %v", v, want)
		}
	}
	refuses(t, 2, "goes with token buckets only", append(args, "--algorithm", "fixed-window")...)
}
