package system

import (
	"strconv"
	"strings"
	"sync"
	"testing"
)

func TestCounterText(t *testing.T) {
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"get", "text"}, "0\n"},
		{[]string{"add", "text"}, "1\n"},
		{[]string{"add", "text", "41"}, "42\n"},
		{[]string{"add", "text", "--", "-2"}, "40\n"},
		{[]string{"add", "--", "text", "-40"}, "0\n"},
		{[]string{"add", "text", "-1", "--name", "2026-11"}, ""},
		{[]string{"add", "text", "7", "--name", "2026-11"}, "7\n"},
		{[]string{"get", "text", "--name", "2026-11"}, "7\n"},
		{[]string{"get", "text"}, "0\n"},
		{[]string{"reset", "text", "--name", "2026-11"}, "7\n"},
		{[]string{"get", "text", "--name", "2026-11"}, "0\n"},
		{[]string{"reset", "never-touched"}, "0\n"},
	} {
		if tc.want == "" {
			refuses(t, 2, `what begins with "-" and is no flag of this command goes after "--"`, append([]string{"counter"}, tc.args...)...)
			continue
		}
		if got := succeeds(t, append([]string{"counter"}, tc.args...)...); got != tc.want {
			t.Errorf("%q: got %q, want %q", tc.args, got, tc.want)
		}
	}
}

func TestCounterJSON(t *testing.T) {
	version := uint64(0) // of the counter; rises with each change
	for _, tc := range []struct {
		args    []string // VERSION stands for the counter's
		code    int
		value   string
		changed bool
		applied any
		refused any
	}{
		{args: []string{"get"}, value: "0"},
		{args: []string{"add", "5"}, value: "5", changed: true, applied: true},
		{args: []string{"add", "1", "--max", "5"}, code: 3, value: "5", applied: false, refused: "it would be above --max"},
		{args: []string{"set", "9", "--if-version", "0"}, code: 3, value: "5", applied: false, refused: "its version is VERSION, not 0"},
		{args: []string{"set", "9", "--if-version", "VERSION"}, value: "9", changed: true, applied: true},
		{args: []string{"get"}, value: "9"},
		{args: []string{"reset"}, value: "9", changed: true},
		{args: []string{"get"}, value: "0"},
	} {
		args := append([]string{"counter", tc.args[0], "--json", "json"}, tc.args[1:]...)
		now := func(s string) string { return strings.ReplaceAll(s, "VERSION", strconv.FormatUint(version, 10)) }
		for i := range args {
			args[i] = now(args[i])
		}
		r := keystead(t, args...)
		if r.code != tc.code || r.err != "" {
			t.Errorf("%q: %+v", args, r)
			continue
		}
		v := object(t, r.out)
		fields := []string{"value", "version", "epoch"}
		if tc.applied != nil {
			fields = append(fields, "applied")
		}
		if text, ok := tc.refused.(string); ok {
			fields, tc.refused = append(fields, "refused"), now(text)
		}
		hasFields(t, v, fields...)
		if v["value"] != tc.value || v["applied"] != tc.applied || v["refused"] != tc.refused || number(t, v["epoch"]) < 1 {
			t.Errorf("%q: got %v", args, v)
		}
		got, err := strconv.ParseUint(v["version"].(string), 10, 64)
		if err != nil || got < version || tc.changed != (got > version) {
			t.Errorf("%q: version %v after %d", args, v["version"], version)
		}
		version = got
	}
}

func TestCounterBounds(t *testing.T) {
	stock := func(want string, code int, args ...string) {
		t.Helper()
		if r := keystead(t, append([]string{"counter", "add", "stock"}, args...)...); r.code != code || r.out != want {
			t.Errorf("%q: got %+v, want %q and %d", args, r, want, code)
		}
	}
	stock("2\n", 0, "2", "--min", "0", "--max", "2")
	stock("2  refused: it would be above --max\n", 3, "--max", "2")
	stock("0\n", 0, "--min", "0", "--", "-2")
	stock("0  refused: it would be below --min\n", 3, "--min", "0", "--", "-1")
	stock("-1\n", 0, "--min", "-1", "--", "-1")
	refuses(t, 2, "min: is 5, above max 3", "counter", "add", "stock", "--min", "5", "--max", "3")
}

// Values are exact where floating point is not, and do not wrap around.
func TestCounterIsExact(t *testing.T) {
	for _, step := range []struct{ delta, want string }{
		{"9007199254740993", "9007199254740993"}, // 2^53 + 1
		{"1", "9007199254740994"},
		{"1", "9007199254740995"},
		{"9214364837600034812", "9223372036854775807"}, // the greatest
	} {
		v := object(t, succeeds(t, "counter", "add", "exact", step.delta, "--json"))
		if v["value"] != step.want {
			t.Errorf("after %s: %v, want %s", step.delta, v["value"], step.want)
		}
	}
	if r := keystead(t, "counter", "add", "exact"); r.code != 3 || r.out != "9223372036854775807  refused: it would not fit in 64 bits\n" {
		t.Errorf("above the greatest: %+v", r)
	}
	if got := succeeds(t, "counter", "set", "--if-version", "0", "least", "--", "-9223372036854775808"); got != "-9223372036854775808\n" {
		t.Errorf("the least: %q", got)
	}
	if r := keystead(t, "counter", "add", "--json", "least", "--", "-1"); r.code != 3 || object(t, r.out)["value"] != "-9223372036854775808" {
		t.Errorf("below the least: %+v", r)
	}
}

func TestCounterMisuse(t *testing.T) {
	for _, tc := range []struct {
		says string
		args []string
	}{
		{"takes KEY and, if you like, DELTA", []string{"add"}},
		{"takes KEY and, if you like, DELTA", []string{"add", "k", "1", "2"}},
		{`DELTA "1.5" is not a whole 64-bit number`, []string{"add", "k", "1.5"}},
		{`DELTA "9223372036854775808" is not a whole 64-bit number`, []string{"add", "k", "9223372036854775808"}},
		{"takes KEY", []string{"get"}},
		{"takes KEY and VALUE", []string{"set", "k"}},
		{"--if-version is missing", []string{"set", "k", "5"}},
		{`VALUE "five" is not a whole 64-bit number`, []string{"set", "k", "five", "--if-version", "0"}},
		{"takes KEY", []string{"reset"}},
		{"did you mean `keystead counter add`?", []string{"ad", "k"}},
		{"--idle-ttl 1ns: choose", []string{"add", "k", "--idle-ttl", "1ns"}},
		{"name: ", []string{"add", "k", "--name", strings.Repeat("n", 129)}},
	} {
		t.Run(tc.says, func(t *testing.T) {
			t.Parallel()
			refuses(t, 2, tc.says, append([]string{"counter"}, tc.args...)...)
		})
	}
}

// Adds of several processes at once are all counted, each once.
func TestCounterManyProcesses(t *testing.T) {
	const n = 8
	codes := make([]int, n)
	var wg sync.WaitGroup
	for i := range n {
		p := start(t, nil, "counter", "add", "many", "3")
		wg.Go(func() { codes[i] = p.wait() })
	}
	wg.Wait()
	for i, code := range codes {
		if code != 0 {
			t.Errorf("process %d ended with %d", i, code)
		}
	}
	if got := counted(t, "many"); got != 3*n {
		t.Errorf("counted %d, want %d", got, 3*n)
	}
}

// A counter with an idle TTL is forgotten, and one without it is not.
func TestCounterIdleTTL(t *testing.T) {
	succeeds(t, "counter", "add", "idle", "--idle-ttl", "50ms")
	succeeds(t, "counter", "add", "busy")
	eventually(t, "the counter is forgotten", func() bool { return counted(t, "idle") == 0 })
	if got := counted(t, "busy"); got != 1 {
		t.Errorf("the other one is %d", got)
	}
}
