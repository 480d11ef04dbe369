package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestApply: an edit replaces what stands in a file once, and nothing else.
func TestApply(t *testing.T) {
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "a.go"), []byte("one two two three"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		what  string
		edits []Edit
		want  string // "" = out of date
	}{
		{"once", []Edit{{"a.go", "one", "1"}}, "1 two two three"},
		{"one after the other", []Edit{{"a.go", "one", "1"}, {"a.go", "1 two", "2"}}, "2 two three"},
		{"to nothing", []Edit{{"a.go", " three", ""}}, "one two two"},
		{"not there", []Edit{{"a.go", "four", "4"}}, ""},
		{"there twice", []Edit{{"a.go", "two", "2"}}, ""},
		{"gone by the first edit", []Edit{{"a.go", "one", "1"}, {"a.go", "one", "2"}}, ""},
		{"no file", []Edit{{"b.go", "one", "1"}}, ""},
	} {
		got, err := apply(root, c.edits)
		if c.want == "" {
			if !errors.Is(err, errStale) {
				t.Errorf("%s: %q, %v", c.what, got, err)
			}
			continue
		}
		if err != nil || len(got) != 1 || got["a.go"] != c.want {
			t.Errorf("%s: %q, %v", c.what, got, err)
		}
	}
	if b, _ := os.ReadFile(filepath.Join(root, "a.go")); string(b) != "one two two three" {
		t.Errorf("the file was written to: %q", b)
	}
}

// TestJudge: what go test says of runs that were, shortened.
func TestJudge(t *testing.T) {
	const run = `{"Action":"run","Test":"TestA"}
{"Action":"output","Test":"TestA","Output":"=== RUN   TestA\n"}
`
	for _, c := range []struct {
		what, out string
		want      Verdict
		why       string
	}{
		{"passed", run + `{"Action":"pass","Test":"TestA"}
{"Action":"output","Output":"PASS\n"}
{"Action":"pass"}`, Green, ""},
		{"failed", run + `{"Action":"output","Test":"TestA/b","Output":"    log\n"}
{"Action":"output","Test":"TestA/b","Output":"    a_test.go:7: it is 1\n"}
{"Action":"fail","Test":"TestA/b"}
{"Action":"fail","Test":"TestA"}
{"Action":"output","Output":"FAIL\n"}
{"Action":"fail"}`, Red, "TestA/b: a_test.go:7: it is 1"},
		{"panicked", run + `{"Action":"output","Test":"TestA","Output":"panic: no lease [recovered]\n"}
{"Action":"fail","Test":"TestA"}
{"Action":"fail"}`, Red, "TestA: panic: no lease [recovered]"},
		{"raced", run + `{"Action":"output","Test":"TestA","Output":"==================\n"}
{"Action":"output","Test":"TestA","Output":"WARNING: DATA RACE\n"}
{"Action":"fail","Test":"TestA"}
{"Action":"fail"}`, Red, "TestA: WARNING: DATA RACE"},
		{"leaked", run + `{"Action":"pass","Test":"TestA"}
{"Action":"output","Output":"goleak: Errors on successful test run: found unexpected goroutines:\n"}
{"Action":"fail"}`, Red, "goleak: Errors on successful test run: found unexpected goroutines:"},
		{"killed", run + `{"Action":"output","Output":"signal: killed\n"}
{"Action":"fail"}`, Broken, "signal: killed"},
		{"hung", run + `{"Action":"output","Test":"TestA","Output":"panic: test timed out after 1m0s\n"}
{"Action":"fail","Test":"TestA"}
{"Action":"fail"}`, Hung, "the time was up"},
		{"not built", `{"ImportPath":"p","Action":"build-output","Output":"# p\n"}
{"ImportPath":"p","Action":"build-output","Output":"p/a.go:1:1: undefined: x\n"}
{"ImportPath":"p","Action":"build-fail"}
{"Action":"output","Output":"FAIL\tp [build failed]\n"}
{"Action":"fail"}`, NotCompiled, "p/a.go:1:1: undefined: x"},
		{"no tests", `{"Action":"output","Output":"testing: warning: no tests to run\n"}
{"Action":"output","Output":"PASS\n"}
{"Action":"pass"}`, Broken, "no test ran: testing: warning: no tests to run"},
		{"no package", "no Go files in /x\n", Broken, "no test ran: no Go files in /x"},
	} {
		if v, why := judge([]byte(c.out)); v != c.want || why != c.why {
			t.Errorf("%s: %d, %q; it should be %d, %q", c.what, v, why, c.want, c.why)
		}
	}
}

// TestTable: every canary makes sense, and fits the code of now.
func TestTable(t *testing.T) {
	root, err := findRoot()
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, c := range canaries() {
		if err := c.validate(); err != nil {
			t.Error(err)
		}
		if names[c.Name] {
			t.Errorf("two have the name %s", c.Name)
		}
		names[c.Name] = true
		if _, err := apply(root, c.Edits); err != nil {
			t.Errorf("%s: %v", c.Name, err)
		}
		if _, err := os.Stat(filepath.Join(root, c.Tests.Package)); err != nil {
			t.Errorf("%s: %v", c.Name, err)
		}
	}
	for _, c := range []Canary{{}, {Name: "A"}, {Name: "a", Guard: "g"}, {Name: "a", Guard: "g", Edits: []Edit{{"a_test.go", "x", "y"}}, Tests: Tests{Package: "p", Run: "."}},
		{Name: "a", Guard: "g", Edits: []Edit{{"../a.go", "x", "y"}}, Tests: Tests{Package: "p", Run: "."}}, {Name: "a", Guard: "g", Edits: []Edit{{"a.go", "x", "x"}}, Tests: Tests{Package: "p", Run: "."}}} {
		if c.validate() == nil {
			t.Errorf("%+v is accepted", c)
		}
	}
}

// TestOutcomes runs go test on a small package, with a guard of it switched off in
// good ways and bad.
func TestOutcomes(t *testing.T) {
	const file = "ring/epoch/lease/lease.go"
	gap := Edit{file, "g.quiet = max(g.quiet, now+g.cfg.TTL+g.cfg.Margin)", ""}
	tests := Tests{Package: "ring/epoch/lease", Run: "^TestTrap06SleepingLeader$"}
	other := Tests{Package: "ring/epoch/lease", Run: "^TestHolding$", Tries: 2}
	all := []Canary{
		{Name: "good", Guard: "g", Edits: []Edit{gap}, Tests: tests},
		{Name: "unseen", Guard: "g", Edits: []Edit{gap}, Tests: other},
		{Name: "stale", Guard: "g", Edits: []Edit{{file, "no such text", ""}}, Tests: tests},
		{Name: "nonsense", Guard: "g", Edits: []Edit{{file, gap.Old, "x++"}}, Tests: tests},
		{Name: "nothing", Guard: "g", Edits: []Edit{gap}, Tests: Tests{Package: "ring/epoch/lease", Run: "^TestNoSuch$"}},
	}
	run := func(want int, args ...string) map[string]Result {
		t.Helper()
		var out, errs bytes.Buffer
		if got := command(t.Context(), append(args, "--json"), all, &out, &errs); got != want {
			t.Fatalf("%v: exit code %d, not %d: %s%s", args, got, want, &out, &errs)
		}
		results := map[string]Result{}
		for d := json.NewDecoder(&out); d.More(); {
			var r Result
			if err := d.Decode(&r); err != nil {
				t.Fatal(err)
			}
			results[r.Name] = r
		}
		return results
	}
	if r := run(0, "--only", "good")["good"]; r.Outcome != noticed || r.Tries != 1 || !strings.Contains(r.Why, "lease_test.go") {
		t.Errorf("%+v", r)
	}
	results := run(exitFailed)
	for name, want := range map[string]string{"good": noticed, "unseen": notNoticed, "stale": outOfDate, "nonsense": notCompiled, "nothing": redAnyway} {
		if results[name].Outcome != want {
			t.Errorf("%s: %+v", name, results[name])
		}
	}
	if results["unseen"].Tries != 2 {
		t.Errorf("%+v", results["unseen"])
	}
	results = run(exitFailed, "--tested", "--only", "good|nothing")
	if results["good"].Outcome != noticed || results["nothing"].Outcome == noticed || results["nothing"].Outcome == redAnyway {
		t.Errorf("without a control: %+v", results)
	}
}

// TestCommandLine: what makes no sense is said to, and a list runs nothing.
func TestCommandLine(t *testing.T) {
	for _, args := range [][]string{{"--only", "no-such"}, {"--only", "("}, {"--jobs", "0"}, {"--turns", "0"}, {"--turn", "-1"}, {"more"}, {"--no-such"}} {
		var out, errs bytes.Buffer
		if got := command(t.Context(), args, canaries(), &out, &errs); got != exitUsage || errs.Len() == 0 {
			t.Errorf("%v: exit code %d, %q", args, got, &errs)
		}
	}
	var out, errs bytes.Buffer
	if got := command(t.Context(), []string{"--list"}, canaries(), &out, &errs); got != 0 || strings.Count(out.String(), "\n") != 2*len(canaries()) {
		t.Errorf("exit code %d, %q", got, &out)
	}
}

// TestTurns: all parts are all there is, each once.
func TestTurns(t *testing.T) {
	var all, parts, errs bytes.Buffer
	command(t.Context(), []string{"--list"}, canaries(), &all, &errs)
	for _, turn := range []string{"3", "1", "5"} { // 0, 1 and 2 of 3
		command(t.Context(), []string{"--list", "--turns", "3", "--turn", turn}, canaries(), &parts, &errs)
	}
	names := func(b *bytes.Buffer) (names []string) {
		for line := range strings.Lines(b.String()) {
			if !strings.HasPrefix(line, " ") {
				names = append(names, strings.Fields(line)[0])
			}
		}
		slices.Sort(names)
		return names
	}
	if a, p := names(&all), names(&parts); len(a) != len(canaries()) || !slices.Equal(a, p) || errs.Len() > 0 {
		t.Errorf("the parts are not all: %d of %d, %s", len(p), len(a), &errs)
	}
}

// Rapid writes beside the tests what has failed, and the tree is never written to.
func TestUsesRapid(t *testing.T) {
	root, err := findRoot()
	if err != nil {
		t.Fatal(err)
	}
	r := newRunner(root, "", false)
	for pkg, want := range map[string]bool{"ring/epoch/table": true, "handoff": false} {
		if r.usesRapid(pkg) != want {
			t.Errorf("%s: %v", pkg, !want)
		}
	}
}
