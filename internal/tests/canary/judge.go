package main

import (
	"encoding/json"
	"strings"
)

// Verdict is what became of a run of tests.
type Verdict uint8

// The verdicts.
const (
	Green       Verdict = iota + 1 // all that ran have passed
	Red                            // a test failed, or a panic or a data race ended one
	NotCompiled                    // there was nothing to run
	Hung                           // the time was up
	Broken                         // something else, like no tests of that name
)

// event is a line of go test -json.
type event struct {
	Action, Test, Output string
}

// outputs is how many lines of one test are kept: those in which it says why.
const outputs = 400

// judge reads what go test -json has written, and says what it means, with the line
// that tells why.
func judge(out []byte) (v Verdict, why string) {
	said := map[string][]string{}
	var failed, built []string
	passed, hung := 0, false
	for line := range strings.Lines(string(out)) {
		var e event
		if json.Unmarshal([]byte(line), &e) != nil {
			built = append(built, line) // of the go command itself
			continue
		}
		hung = hung || strings.HasPrefix(e.Output, "panic: test timed out after")
		switch e.Action {
		case "build-output":
			built = append(built, e.Output)
		case "build-fail":
			return NotCompiled, firstOf(built, "")
		case "output":
			if len(said[e.Test]) < outputs {
				said[e.Test] = append(said[e.Test], e.Output)
			}
		case "pass":
			if e.Test != "" {
				passed++
			}
		case "fail":
			failed = append(failed, e.Test)
		}
	}
	switch {
	case hung:
		return Hung, "the time was up"
	case len(failed) > 0:
		return red(failed, said)
	case passed == 0 || len(said[""]) == 0:
		return Broken, "no test ran: " + firstOf(append(built, said[""]...), "")
	}
	return Green, ""
}

// red says why the tests failed: the subtest before the test that it is of, which
// are judged in this order.
func red(failed []string, said map[string][]string) (Verdict, string) {
	for _, test := range failed {
		if test != "" {
			return Red, test + ": " + firstOf(said[test], "_test.go:")
		}
	}
	// The package failed, but none of its tests: a goroutine that is left over, or a
	// panic in a goroutine of nobody.
	for _, sign := range []string{"goleak:", "panic:", "fatal error:", "DATA RACE"} {
		if line := firstOf(said[""], sign); strings.Contains(line, sign) {
			return Red, line
		}
	}
	return Broken, firstOf(said[""], "")
}

// firstOf returns the first line that holds sign, or else the first that a test has
// written itself.
func firstOf(lines []string, sign string) string {
	first := ""
	for _, line := range lines {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") || strings.HasPrefix(line, "===") || strings.HasPrefix(line, "---") {
			continue
		}
		if sign != "" && strings.Contains(line, sign) || strings.HasPrefix(line, "panic:") || strings.Contains(line, "DATA RACE") {
			return line
		}
		if first == "" {
			first = line
		}
	}
	return first
}
