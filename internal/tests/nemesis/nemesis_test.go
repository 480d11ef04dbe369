package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/keystead/keystead/internal/tests/kinds"
	"github.com/keystead/keystead/internal/tests/nemesis/fault"
	"github.com/keystead/keystead/internal/tests/nemesis/judge"
	"github.com/keystead/keystead/internal/tests/nemesis/workload"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		_ = os.RemoveAll(built)
		os.Exit(code)
	}))
}

// built is the directory of the binary that all tests use, "" before the first.
var built string

func binary(t *testing.T) string {
	t.Helper()
	if built == "" {
		dir, err := os.MkdirTemp("", "nemesis-test-")
		if err != nil {
			t.Fatal(err)
		}
		built = dir
		if err := build(t.Context(), filepath.Join(dir, "keystead")); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(built, "keystead")
}

// runs runs the command, and returns what it said of each history.
func runs(t *testing.T, args ...string) (all []report, sum summary, failed bool) {
	t.Helper()
	s, err := parse(append([]string{"--json", "--binary", binary(t)}, args...), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if failed, err = s.run(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	d := json.NewDecoder(&out)
	for range s.histories {
		var r report
		if err := d.Decode(&r); err != nil {
			t.Fatal(err)
		}
		t.Log(r.line())
		all = append(all, r)
	}
	if err := d.Decode(&sum); err != nil {
		t.Fatal(err)
	}
	return all, sum, failed
}

// Real processes without faults make legal histories.
func TestWithoutFaults(t *testing.T) {
	all, sum, failed := runs(t, "--faults", "none", "--length", "3s")
	r := all[0]
	if failed || r.Verdict != judge.OK || len(r.Events) > 0 || r.Kept != "" {
		t.Errorf("%+v", r)
	}
	if r.Operations < 100 || len(r.Pauses) != 4*len(kinds.All) || sum.Histories != 1 || sum.Operations != r.Operations {
		t.Errorf("%d operations on %d objects; in the summary %+v", r.Operations, len(r.Pauses), sum)
	}
}

// Objects are split and made whole, and their answers fit together.
func TestSplits(t *testing.T) {
	all, sum, failed := runs(t, "--faults", "split,merge", "--length", "2s")
	r := all[0]
	if failed || r.Verdict != judge.OK || len(r.Events) > 0 {
		t.Errorf("%+v", r)
	}
	if done(r.Orders, fault.Split) == 0 || done(r.Orders, fault.Merge) == 0 || r.ByParts < 20 || len(sum.Faults) != 2 {
		t.Errorf("%d answers by parts; orders: %+v; in the summary %+v", r.ByParts, r.Orders, sum.Faults)
	}
}

// A node that is alone forgets when it is killed, and that is seen.
func TestLossIsSeen(t *testing.T) {
	dir := t.TempDir()
	all, _, failed := runs(t, "--nodes", "1", "--faults", "kill", "--no-loss", "--durability", "none", "--length", "3s", "--lease-ttl", "500ms", "--keep", dir)
	r := all[0]
	if !failed || r.Verdict != judge.Illegal || r.Kept == "" {
		t.Fatalf("%+v", r)
	}
	pages, _ := filepath.Glob(filepath.Join(r.Kept, "counter-*.html"))
	if _, err := os.Stat(filepath.Join(r.Kept, "n1.log")); err != nil || len(pages) == 0 {
		t.Errorf("%v; pages: %v", err, pages)
	}
}

func TestParse(t *testing.T) {
	for _, tc := range []struct {
		args string
		says string // "" = no error
	}{
		{args: ""},
		{args: "--faults none --no-loss=false --flags --log-level=debug"},
		{args: "--faults partition,oneway,kill"},
		{args: "--faults split,merge,slow"},
		{args: "--faults partition,slow", says: "choose one"},
		{args: "--faults earthquake", says: "earthquake"},
		{args: "--kinds across,counter"},
		{args: "--kinds giraffe", says: "giraffe"},
		{args: "--histories 0", says: "--histories 0"},
		{args: "--length 1ms", says: "--length 1ms"},
		{args: "--nodes 99", says: "--nodes 99"},
		{args: "--clients 0", says: "--clients 0"},
		{args: "--keys 0", says: "--keys 0"},
		{args: "--pause 0s", says: "more than 0"},
		{args: "--no-loss=perhaps", says: "true or false"},
		{args: "more", says: `"more"`},
	} {
		_, err := parse(strings.Fields(tc.args), io.Discard)
		if (err == nil) != (tc.says == "") || err != nil && !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%q: %v", tc.args, err)
		}
	}
	if _, err := parse([]string{"--help"}, io.Discard); err != flag.ErrHelp {
		t.Error(err)
	}
}

func TestReport(t *testing.T) {
	bad := report{Seed: 7, Operations: 10, Unknown: 2, Open: 1, Kept: "/there",
		Events: []fault.Event{
			{Fault: fault.Fault{Kind: fault.Kill, For: time.Second}, Victims: []string{"n1", "n2"}, Healed: 1, Settled: int64(time.Second) + 1},
			{Fault: fault.Fault{Kind: fault.Drain}, Skipped: "no"},
		},
		Orders: []fault.Order{{Kind: fault.Split}, {Kind: fault.Split, Error: "no"}, {Kind: fault.Merge}}, ByParts: 5,
		Result: judge.Result{Verdict: judge.Lost, Findings: []judge.Finding{{Verdict: judge.Lost, What: "3 rows"}},
			Pauses: []workload.Pause{{Key: "a", For: 2 * time.Second}}}}
	line := bad.line()
	for _, want := range []string{"seed 7", "kill n1+n2 1s", "(drain: no)", "1 splits and 1 merges of 3 ordered, 5 answers by parts", "10 operations, 2 unknown, 1 open", "longest pause 2s", "LOST", "lost: 3 rows", "/there"} {
		if !strings.Contains(line, want) {
			t.Errorf("%q is not in %q", want, line)
		}
	}
	good := report{Seed: 8, Operations: 5, Result: judge.Result{Verdict: judge.OK}}
	var out strings.Builder
	if err := summarize([]report{bad, good}).print(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"2 histories: 1 lost, 1 ok; 15 operations, 2 unknown, 1 open; longest pause 2s", "kill   1     0        1                 1s", "drain  0     1        0", "split  1     1        1"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
}
