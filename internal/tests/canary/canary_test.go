package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// edited returns a file as it is without the guard that its marks name.
func edited(t *testing.T, text string) (string, error) {
	t.Helper()
	marks, err := marksOf("a.go", []byte(text))
	if err != nil {
		return "", err
	}
	var edits []Edit
	for _, m := range marks {
		edits = append(edits, m.Edits...)
	}
	out, err := splice([]byte(text), edits)
	return string(out), err
}

// function is a file with statements.
func function(body string) string {
	return "package p\n\nfunc f() bool {\n" + body + "\n}\n"
}

// TestMarks: what becomes of what a mark stands at, and nothing else.
func TestMarks(t *testing.T) {
	for _, c := range []struct{ what, before, after string }{
		{"a statement", "//guard:a\nf()", "if false { f() }"},
		{"a statement at the end of its line", "f() //guard:a", "if false { f() } //guard:a"},
		{"below a comment", "// Why.\n//guard:a\nf()", "if false { f() }"},
		{"a condition", "//guard:a\nif x := f(); x {\n}", "if x := f(); (false && (x)) {\n}"},
		{"a condition else", "if f() {\n} else if !f() { //guard:a\n}", "} else if (false && (!f())) { //guard:a\n}"},
		{"a loop", "//guard:a\nfor f() {\n}", "for (false && (f())) {\n}"},
		{"a clause", "switch {\n//guard:a\ncase f():\n}", "case (false && (f())):"},
		{"a clause of a switch over values", "switch f() {\n//guard:a\ncase true:\nf()\n}", "\n\n\n}"},
		{"a clause of a select", "select {\n//guard:a\ncase <-c:\n}", "select {\n//guard:a\n\n}"},
		{"an operand", "return f() && //guard:a\nx", "return (true || (f())) && //guard:a\nx"},
		{"the last operand of a line", "if x == 1 || y == 1 && //guard:a\nz {\n}", "if x == 1 || (true || (y == 1)) && //guard:a\nz {"},
		{"the last operand", "if x ||\nf() { //guard:a\n}", "(false && (f())) { //guard:a"},
		{"an operand of an operand", "return x && (y || //guard:a\nz)", "return x && ((false && (y)) ||"},
		{"an element", "x = []int{\n1,\n2, //guard:a\n}", "1,\n //guard:a\n}"},
		{"true", "//guard:a true\nreturn f()", "return (true || (f()))"},
		{"false", "//guard:a false\nx = f()", "x = (false && (f()))"},
		{"not", "return x &&\nf() //guard:a not", "!(f()) //guard:a not"},
		{"inserted", "//guard:a insert x = 1\nx++", " x = 1; x++"},
		{"inserted into a clause", "switch {\n//guard:a insert x = 1\ncase f():\nx++\n}", "case f(): x = 1; \nx++"},
		{"an expression that is there twice", "//guard:a x -> y\nf(x, xx, x.x)", ""},
		{"the one expression", "//guard:a g( 1 ) -> y\nf(x, g(1))", "f(x, y)"},
		{"the head alone", "//guard:a x -> y\nif x {\nf(x)\n}", "if y {\nf(x)"},
		{"in the place of a statement", "//guard:a -> return true\nf()", "return true"},
		{"in the place of a condition", "//guard:a -> y\nif x {\n}", "if y {"},
		{"in the place of an operand", "return x &&\nf() //guard:a -> y", "y //guard:a"},
		{"lines keep their numbers", "//guard:a -> y()\nx(\n1,\n)", "y()\n\n\n}"},
		{"at several places", "//guard:a\nf()\n//guard:a true -> false\nf(true)", "if false { f() }\n//guard:a true -> false\nf(false)"},

		{"at nothing", "f()\n//guard:a", ""},
		{"at a brace", "{\n} //guard:a", ""},
		{"apart from what it is for", "//guard:a\n\nf()", ""},
		{"no name", "//guard: f\nf()", ""},
		{"not so many words", "//guard:a drop\nf()", ""},
		{"a declaration", "//guard:a\nx := 1", ""},
		{"no condition", "//guard:a true\nf()", ""},
		{"not there", "//guard:a y -> z\nf(x)", ""},
		{"no expression", "//guard:a x := -> z\nf(x)", ""},
		{"nonsense", "//guard:a x -> )\nf(x)", ""},
		{"twice", "//guard:a -> x()\n//guard:a -> y()\nf(true)\n", ""},
	} {
		got, err := edited(t, function(c.before))
		if c.after == "" {
			if err == nil {
				t.Errorf("%s: %s", c.what, got)
			}
			continue
		}
		if err != nil || !strings.Contains(got, c.after) {
			t.Errorf("%s: %v: %s", c.what, err, got)
		}
	}
	got, err := edited(t, "package p\n\n// x counts.\n//\n//guard:a 1 -> 2\nvar x = 1\n")
	if err != nil || !strings.HasSuffix(got, "var x = 2\n") {
		t.Errorf("a variable: %v: %s", err, got)
	}
}

// TestReadCanaries: marks and guards.txt have to fit.
func TestReadCanaries(t *testing.T) {
	const one = "p -run '^TestA$'\n\ta: is good\n"
	for _, c := range []struct{ what, file, table, wrong string }{
		{"fits", "//guard:a", one, ""},
		{"no mark", "", one, "a has no mark"},
		{"no guard", "//guard:a\nf()\n//guard:b", one, "does not know b"},
		{"a mark at nothing", "//guard:a\nf()\n}\n\n//guard:a\n\nfunc g() {", one, "stands at nothing"},
		{"twice in the table", "//guard:a", one + "\ta: is good\n", "a is there twice"},
		{"no tests", "//guard:a", "\ta: is good\n", "no test notices a"},
		{"no words", "//guard:a", "p -run 'A'\n\ta\n", "is neither"},
		{"too many tries", "//guard:a", "p -run 'A' -tries 10\n", "is neither"},
		{"no Go", ") //guard:a", one, "expected"},
	} {
		root := t.TempDir()
		write := func(name, text string) {
			t.Helper()
			if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		write("a.go", function(c.file+"\nf()\nreturn true"))
		write("a_test.go", function("//guard:of-a-test\nf()\nreturn true"))
		all, err := readCanaries(root, "# Words.\n\n"+c.table)
		switch {
		case c.wrong == "" && (err != nil || len(all) != 1 || len(all[0].Marks) != 1 || all[0].Tests != (Tests{Package: "p", Run: "^TestA$", Tries: 1})):
			t.Errorf("%s: %+v, %v", c.what, all, err)
		case c.wrong != "" && (err == nil || !strings.Contains(err.Error(), c.wrong)):
			t.Errorf("%s: %v", c.what, err)
		}
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

// repository returns this one, and its canaries.
func repository(t *testing.T) (string, []Canary) {
	t.Helper()
	root, err := findRoot()
	if err != nil {
		t.Fatal(err)
	}
	all, err := readCanaries(root, guards)
	if err != nil {
		t.Fatal(err)
	}
	return root, all
}

// TestRepository: marks and guards.txt fit, and the tests that have to notice are there.
func TestRepository(t *testing.T) {
	root, all := repository(t)
	tests := map[string][]string{}
	for _, c := range all {
		p := c.Tests.Package
		if tests[p] == nil {
			tests[p] = testsOf(t, filepath.Join(root, filepath.FromSlash(p)))
		}
		run, err := regexp.Compile(c.Tests.Run)
		if err != nil || !slices.ContainsFunc(tests[p], run.MatchString) {
			t.Errorf("%s: no test of %s is called %s, %v", c.Name, p, c.Tests.Run, err)
		}
	}
}

// testsOf returns the names of the tests in a directory.
func testsOf(t *testing.T, dir string) (names []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range testFunc.FindAllSubmatch(text, -1) {
			names = append(names, string(m[1]))
		}
	}
	return names
}

var testFunc = regexp.MustCompile(`(?m)^func (Test\w*)\(`)

// TestOutcomes runs go test on a small package, with a guard of it switched off in
// good ways and bad.
func TestOutcomes(t *testing.T) {
	root, there := repository(t)
	i := slices.IndexFunc(there, func(c Canary) bool { return c.Name == "lease-gap" })
	gap := there[i].Marks
	nonsense := []Mark{{File: gap[0].File, Edits: []Edit{{gap[0].Edits[0].From, gap[0].Edits[0].From, "x && "}}}}
	tests := Tests{Package: "ring/epoch/lease", Run: "^TestTrap06SleepingLeader$", Tries: 1}
	other := Tests{Package: "ring/epoch/lease", Run: "^TestHolding$", Tries: 2}
	all := []Canary{
		{Name: "good", Guard: "g", Marks: gap, Tests: tests},
		{Name: "unseen", Guard: "g", Marks: gap, Tests: other},
		{Name: "nonsense", Guard: "g", Marks: nonsense, Tests: tests},
		{Name: "nothing", Guard: "g", Marks: gap, Tests: Tests{Package: "ring/epoch/lease", Run: "^TestNoSuch$", Tries: 1}},
	}
	run := func(want int, args ...string) map[string]Result {
		t.Helper()
		var out, errs bytes.Buffer
		if got := command(t.Context(), append(args, "--json"), root, all, &out, &errs); got != want {
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
	for name, want := range map[string]string{"good": noticed, "unseen": notNoticed, "nonsense": notCompiled, "nothing": redAnyway} {
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
	root, there := repository(t)
	for _, args := range [][]string{{"--only", "no-such"}, {"--only", "("}, {"--jobs", "0"}, {"--turns", "0"}, {"--turn", "-1"}, {"more"}, {"--no-such"}} {
		var out, errs bytes.Buffer
		if got := command(t.Context(), args, root, there, &out, &errs); got != exitUsage || errs.Len() == 0 {
			t.Errorf("%v: exit code %d, %q", args, got, &errs)
		}
	}
	var out, errs bytes.Buffer
	if got := command(t.Context(), []string{"--list"}, root, there, &out, &errs); got != 0 || strings.Count(out.String(), "\n") != 2*len(there) {
		t.Errorf("exit code %d, %q", got, &out)
	}
}

// TestTurns: all parts are all there is, each once.
func TestTurns(t *testing.T) {
	root, there := repository(t)
	var all, parts, errs bytes.Buffer
	command(t.Context(), []string{"--list"}, root, there, &all, &errs)
	for _, turn := range []string{"3", "1", "5"} { // 0, 1 and 2 of 3
		command(t.Context(), []string{"--list", "--turns", "3", "--turn", turn}, root, there, &parts, &errs)
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
	if a, p := names(&all), names(&parts); len(a) != len(there) || !slices.Equal(a, p) || errs.Len() > 0 {
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
