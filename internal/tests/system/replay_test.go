package system

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

const sample = "../../../examples/access.log"

// What is in the sample.
const (
	sampleLines   = 308
	sampleEntries = 302
	sampleBroken  = 5
	sampleClients = 19
)

// replays runs replay with --json, which has to succeed.
func replays(t *testing.T, prepare func(*exec.Cmd), args ...string) map[string]any {
	t.Helper()
	p := start(t, prepare, append([]string{"replay", "--json"}, args...)...)
	p.ends(t, 0)
	if p.err() != "" {
		t.Errorf("%q says %s", args, p.err())
	}
	return object(t, p.out())
}

// hasCounts checks numbers of a report.
func hasCounts(t *testing.T, report map[string]any, want map[string]float64) {
	t.Helper()
	for name, n := range want {
		if got := number(t, report[name]); got != n {
			t.Errorf("%s is %v, want %v", name, got, n)
		}
	}
}

var whole = map[string]float64{
	"lines": sampleLines, "entries": sampleEntries, "broken": sampleBroken, "empty": 1, "unanswered": 0, "retries": 0,
}

func readSample(t *testing.T) []byte {
	t.Helper()
	b, err := os.ReadFile(sample)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestReplayLimits(t *testing.T) {
	t.Parallel()
	report := replays(t, nil, sample, "--time", "node", "--limit", "20/1h", "--name", "limits", "--top", "2")
	hasCounts(t, report, whole)
	hasCounts(t, report, map[string]float64{"distinct_keys": sampleClients, "allowed": 210, "denied": 92, "limit": 20, "period_ns": 3600e9})
	if report["mode"] != "limits" || report["by"] != "client_ip" || report["algorithm"] != "token bucket" || report["time"] != "node" {
		t.Errorf("report: %v", report)
	}
	most := report["most_denied"].([]any)
	if len(most) != 2 || most[0].(map[string]any)["key"] != "203.0.113.7" {
		t.Errorf("most denied: %v", most)
	}
	samples := report["broken_samples"].([]any)
	if len(samples) != sampleBroken {
		t.Errorf("broken lines: %v", samples)
	}
	hasFields(t, samples[0], "line", "reason", "text")
	if line := number(t, samples[0].(map[string]any)["line"]); line != 93 {
		t.Errorf("the first broken line is %v", line)
	}
	node := []string{sample, "--addr", shared}
	window := replays(t, nil, append(node, "--limit", "5/1h", "--algorithm", "fixed-window", "--name", "windows")...)
	hasCounts(t, window, map[string]float64{"allowed": 5*sampleClients - 4, "limit": 5}) // one client comes once
	sliding := replays(t, nil, append(node, "--limit", "5/1h", "--algorithm", "sliding-window", "--name", "sliding")...)
	hasCounts(t, sliding, map[string]float64{"allowed": 5*sampleClients - 4, "limit": 5})
	if sliding["algorithm"] != "sliding window" || sliding["time"] != "node" {
		t.Errorf("report: %v", sliding)
	}
	burst := replays(t, nil, append(node, "--limit", "1/1h", "--burst", "40", "--cost", "2", "--name", "bursts")...)
	hasCounts(t, burst, map[string]float64{"allowed": 210, "denied": 92, "burst": 40, "cost": 2})
}

// nowhere is an environment whose node does not answer.
func nowhere(cmd *exec.Cmd) { cmd.Env = append(cmd.Env, "KEYSTEAD_ADDR=127.0.0.1:1") }

// By default each line is decided at its own time, and no node is asked. The numbers are
// those of an exact log of tokens that another program made of the sample, in fractions.
func TestReplayInLogTime(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		args            []string
		allowed, denied float64
	}{
		{[]string{"--limit", "10/1m"}, 276, 26},
		{[]string{"--limit", "20/1m"}, 302, 0},
		{[]string{"--limit", "20/1h"}, 213, 89},
		{[]string{"--limit", "10/1m", "--local"}, 276, 26},
		{[]string{"--limit", "10/1m", "--time", "log", "--name", "any"}, 276, 26},
	} {
		report := replays(t, nowhere, append([]string{sample}, tc.args...)...)
		hasCounts(t, report, whole)
		hasCounts(t, report, map[string]float64{"allowed": tc.allowed, "denied": tc.denied, "span_seconds": 326, "late": 0, "behind": 10})
		if report["time"] != "log" || report["first"] != "2026-03-02T08:00:02Z" || report["last"] != "2026-03-02T08:05:28Z" {
			t.Errorf("%q: %v", tc.args, report)
		}
	}
	report := replays(t, nowhere, sample, "--count", "--verify", "--time", "log")
	hasCounts(t, report, map[string]float64{"counted": sampleEntries, "verified": sampleClients, "mismatches": 0})
	if report["verify_ok"] != true || report["time"] != "log" {
		t.Errorf("report: %v", report)
	}
}

func TestReplayText(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ args, want []string }{
		{[]string{"--limit", "10/1m"}, []string{
			"308 lines, 302 entries, 5 broken, 1 empty\n", "19 distinct, by client_ip\n", "276 (91.4 %)\n", "26 (8.6 %)\n",
			"at the log's own times: 302 requests over 5m26s\n", "from 2026-03-02 08:00:02 to 2026-03-02 08:05:28 UTC\n",
			"10 per 1m, token bucket, of each key; decided by this program", "Broken lines (5 of 5)\n", "lines/s",
		}},
		{[]string{"--limit", "20/1h", "--time", "node", "--name", "text"}, []string{
			"210 (69.5 %)\n", "92 (30.5 %)\n", "Most denied\n", "  203.0.113.7\n", "the node's clock: 5m26s of log in ", "p99.9",
		}},
	} {
		text := succeeds(t, append([]string{"replay", sample}, tc.args...)...)
		for _, want := range tc.want {
			if !strings.Contains(text, want) {
				t.Errorf("%q is not in:\n%s", want, text)
			}
		}
	}
}

// A file that is no access log is not a log without requests.
func TestReplayOfNoLog(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	const line = `192.0.2.1 - - [02/Mar/2026:08:00:00 +0000] "GET / HTTP/1.1" 200 5` + "\n"
	json, half := write("json", "{\"ip\":\"192.0.2.1\"}\n\n{}\n"), write("half", line+"one\ntwo\n")
	for _, mode := range [][]string{{"--limit", "1/s"}, {"--count", "--name", "none"}, {"--limit", "1/s", "--time", "node", "--name", "none"}} {
		r := keystead(t, append([]string{"replay", json}, mode...)...)
		if r.code != 1 || r.out != "" || !strings.HasPrefix(r.err, "keystead: "+json+": this is no access log: none of its 2 lines could be read\n  line 1: it does not begin with: address identity user\n    {") ||
			!strings.Contains(r.err, "  hint: replay reads the common and the combined log format") {
			t.Errorf("%q: %+v", mode, r)
		}
		r = keystead(t, append([]string{"replay", half, "--json"}, mode...)...)
		hasCounts(t, object(t, r.out), map[string]float64{"entries": 1, "broken": 2})
		if r.code != 1 || !strings.Contains(r.err, ": 2 of its 3 lines could not be read\n  line 2: ") {
			t.Errorf("%q: %+v", mode, r)
		}
	}
	empty := replays(t, nil, write("empty", ""), "--limit", "1/s") // just rotated
	hasCounts(t, empty, map[string]float64{"lines": 0, "entries": 0})
}

// The same log comes out the same, however it is stored.
func TestReplayVerify(t *testing.T) {
	t.Parallel()
	log := readSample(t)
	var zipped bytes.Buffer
	w := gzip.NewWriter(&zipped)
	if _, err := w.Write(log); err != nil || w.Close() != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "access.log.gz")
	if err := os.WriteFile(file, zipped.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		stdin []byte
		args  []string
	}{
		{args: []string{sample}},
		{args: []string{file}},
		{args: []string{"-"}, stdin: log},
		{args: []string{"-"}, stdin: zipped.Bytes()},
		{args: []string{sample, "--batch", "1", "--concurrency", "1"}},
		{args: []string{file, "--local", "--addr", "127.0.0.1:1"}},
	} {
		report := replays(t, input(tc.stdin), append(tc.args, "--count", "--verify")...)
		hasCounts(t, report, whole)
		hasCounts(t, report, map[string]float64{"counted": sampleEntries, "verified": sampleClients, "distinct_keys": sampleClients, "mismatches": 0})
		if report["verify_ok"] != true || report["mode"] != "count" || !strings.HasPrefix(report["name"].(string), "replay-") {
			t.Errorf("%q: %v", tc.args, report)
		}
	}
}

func TestReplayBySeveralFields(t *testing.T) {
	t.Parallel()
	report := replays(t, nil, sample, "--by", "client_ip, path", "--count", "--name", "fields", "--top", "1")
	hasCounts(t, report, map[string]float64{"counted": sampleEntries, "distinct_keys": 124})
	want := map[string]any{"key": "203.0.113.7|/api/v1/items/42"}
	most := report["most_counted"].([]any)
	if len(most) != 1 || most[0].(map[string]any)["key"] != want["key"] {
		t.Fatalf("most counted: %v", most)
	}
	if got := counted(t, want["key"].(string), "--name", "fields"); float64(got) != number(t, most[0].(map[string]any)["count"]) {
		t.Errorf("the counter is %d, the report %v", got, most[0])
	}
}

// A counter that somebody else changes meanwhile is found out.
func TestReplayVerifyFindsADifference(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	p := start(t, func(cmd *exec.Cmd) { cmd.Stdin = r }, "replay", "-", "--count", "--verify", "--name", "disturbed", "--batch", "1", "--concurrency", "1", "--json")
	_ = r.Close()
	for range 2 {
		if _, err := fmt.Fprintln(w, `192.0.2.1 - - [02/Mar/2026:08:00:00 +0000] "GET / HTTP/1.1" 200 5`); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "both are counted", func() bool { return counted(t, "192.0.2.1", "--name", "disturbed") == 2 })
	succeeds(t, "counter", "add", "192.0.2.1", "5", "--name", "disturbed")
	_ = w.Close()
	p.ends(t, 1)
	report := object(t, p.out())
	hasCounts(t, report, map[string]float64{"mismatches": 1, "verified": 0, "counted": 2})
	if report["verify_ok"] != false || p.err() != "keystead: counters that differ from the file: 1\n" {
		t.Errorf("it says %q: %v", p.err(), report)
	}
	found := report["mismatch_samples"].([]any)[0].(map[string]any)
	hasCounts(t, found, map[string]float64{"log": 2, "counter": 7})
}

// An interrupted replay reports what it did.
func TestReplayInterrupted(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	p := start(t, func(cmd *exec.Cmd) { cmd.Stdin = r }, "replay", "-", "--count", "--name", "interrupted", "--batch", "1", "--concurrency", "1", "--json")
	_ = r.Close()
	// When the second is counted, the answer to the first has come.
	for _, addr := range []string{"192.0.2.1", "192.0.2.2"} {
		if _, err := fmt.Fprintln(w, addr+` - - [02/Mar/2026:08:00:00 +0000] "GET / HTTP/1.1" 200 5`); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the line is counted", func() bool { return counted(t, addr, "--name", "interrupted") == 1 })
	}
	p.signal(t, syscall.SIGINT)
	p.ends(t, 128+2)
	if n := number(t, object(t, p.out())["counted"]); n != 1 && n != 2 {
		t.Errorf("%v lines are counted, and one or two were told so", n)
	}
}

func TestReplayMisuse(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		says string
		code int
		args []string
	}{
		{"takes FILE", 2, []string{"--count"}},
		{"--limit is missing", 2, []string{sample}},
		{"--limit and --count exclude each other", 2, []string{sample, "--count", "--limit", "1/s"}},
		{"--verify goes with --count", 2, []string{sample, "--verify", "--limit", "1/s"}},
		{`there is no field "ip"`, 2, []string{sample, "--count", "--by", "ip"}},
		{"--algorithm", 2, []string{sample, "--limit", "1/s", "--algorithm", "leaky"}},
		{"--batch 1001: choose 1 to 1000", 2, []string{sample, "--count", "--batch", "1001"}},
		{"--concurrency 0: choose 1 to 256", 2, []string{sample, "--count", "--concurrency", "0"}},
		{"no such file", 1, []string{"no-such.log", "--count"}},
		{". is a directory", 1, []string{".", "--count"}},
		{"cannot reach a node at 127.0.0.1:1: ", 1, []string{sample, "--count", "--addr", "127.0.0.1:1"}},
		{"; --local starts one for this run", 1, []string{sample, "--count", "--addr", "127.0.0.1:1"}},
		{", and --time log needs none", 1, []string{sample, "--limit", "1/s", "--addr", "127.0.0.1:1"}},
		{`--time "noon": choose log or node`, 2, []string{sample, "--limit", "1/s", "--time", "noon"}},
		{"--time log goes without --addr", 2, []string{sample, "--limit", "1/s", "--time", "log", "--addr", shared}},
		{"--batch is about calls to a node", 2, []string{sample, "--limit", "1/s", "--batch", "7"}},
		{"--cost is 9, but at most 5 can ever be available", 2, []string{sample, "--limit", "5/s", "--cost", "9"}},
		{"--cost 0 spends nothing", 2, []string{sample, "--limit", "5/s", "--cost", "0"}},
	} {
		refuses(t, tc.code, tc.says, append([]string{"replay"}, tc.args...)...)
	}
	r := keystead(t, "replay", sample, "--limit", "5/s", "--cost", "9", "--json", "--time", "node", "--name", "misuse")
	if report := object(t, r.out); r.code != 1 || number(t, report["errors"].(map[string]any)["INVALID"]) != sampleEntries {
		t.Errorf("a cost that can never be: %+v", r)
	}
}

// The sample holds nobody's address: only those reserved for documentation.
func TestSampleIsMadeUp(t *testing.T) {
	allowed := []string{"192.0.2.", "198.51.100.", "203.0.113.", "2001:db8:"}
	broken := 0
	for i, line := range strings.Split(strings.TrimSuffix(string(readSample(t)), "\n"), "\n") {
		if !slices.ContainsFunc(allowed, func(prefix string) bool { return strings.HasPrefix(line, prefix) }) {
			if broken++; broken > 3 {
				t.Errorf("line %d: %s", i+1, line)
			}
		}
	}
}
