package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// Outcomes of a canary.
const (
	noticed     = "noticed"
	notNoticed  = "NOT NOTICED"
	notCompiled = "does not compile"
	hangs       = "hung"
	broken      = "broken"
	redAnyway   = "red without it" // the control has failed
)

// Result is what became of a canary.
type Result struct {
	Name    string  `json:"name"`
	Guard   string  `json:"guard"`
	Outcome string  `json:"outcome"`
	Why     string  `json:"why,omitempty"` // the line in which the first test says it
	Seconds float64 `json:"seconds"`       // control and tries together
	Tries   int     `json:"tries"`         // runs with the guard switched off
}

// runner runs canaries of one tree.
type runner struct {
	root string // of the repository
	work string // directory for edited copies
	// tested: the tests pass with the code as it is, and there is no control.
	tested bool

	mu       sync.Mutex
	controls map[string]*control // guarded by mu; by what runs
}

// control is a run of tests with the code as it is: one for all canaries that have
// the same ones.
type control struct {
	once    sync.Once
	verdict Verdict
	why     string
}

func newRunner(root, work string, tested bool) *runner {
	return &runner{root: root, work: work, tested: tested, controls: map[string]*control{}}
}

// run says what becomes of a canary.
func (r *runner) run(ctx context.Context, c Canary) Result {
	began := time.Now()
	res := Result{Name: c.Name, Guard: c.Guard}
	res.Outcome, res.Why, res.Tries = r.try(ctx, c)
	res.Seconds = time.Since(began).Seconds()
	return res
}

func (r *runner) try(ctx context.Context, c Canary) (outcome, why string, tries int) {
	overlay, err := r.overlay(c)
	if err != nil {
		return broken, err.Error(), 0
	}
	if v, why := r.control(ctx, c.Tests); v != Green {
		return redAnyway, why, 0
	}
	for tries < c.Tests.Tries {
		tries++
		switch v, why := r.test(ctx, c.Tests, "-overlay="+overlay); v {
		case Red:
			return noticed, why, tries
		case NotCompiled:
			return notCompiled, why, tries
		case Hung:
			return hangs, why, tries
		case Broken:
			return broken, why, tries
		}
	}
	return notNoticed, "all tests passed: " + c.Tests.command(), tries
}

// overlay writes the edited files and what go test has to know of them, and returns
// where.
func (r *runner) overlay(c Canary) (string, error) {
	files, err := apply(r.root, c.Marks)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(r.work, c.Name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	replace := map[string]string{}
	for name, text := range files {
		// The name is one of the copy alone, so that messages lead to the file.
		to := filepath.Join(dir, strings.ReplaceAll(name, "/", "_"))
		replace[filepath.Join(r.root, filepath.FromSlash(name))] = to
		if err := os.WriteFile(to, text, 0o600); err != nil {
			return "", err
		}
	}
	b, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "overlay.json")
	return path, os.WriteFile(path, b, 0o600)
}

// control runs tests with the code as it is, once.
func (r *runner) control(ctx context.Context, t Tests) (Verdict, string) {
	if r.tested {
		return Green, ""
	}
	r.mu.Lock()
	c := r.controls[t.command()]
	if c == nil {
		c = &control{}
		r.controls[t.command()] = c
	}
	r.mu.Unlock()
	c.once.Do(func() { c.verdict, c.why = r.test(ctx, t) })
	return c.verdict, c.why
}

// command returns how a person runs the tests.
func (t Tests) command() string {
	return strings.Join(append([]string{"go"}, t.args()...), " ")
}

// args returns those of the go command.
func (t Tests) args(flags ...string) []string {
	args, pkg := []string{"test"}, t.Package
	if t.Module != "" {
		args, pkg = []string{"-C", t.Module, "test"}, strings.TrimPrefix(strings.TrimPrefix(pkg, t.Module), "/")
	}
	args = append(args, flags...)
	return append(args, "./"+pkg, "-run="+t.Run, "-count=1", "-timeout="+testTime.String())
}

// test runs tests and judges what they say. vet has looked at the code already.
func (r *runner) test(ctx context.Context, t Tests, more ...string) (Verdict, string) {
	ctx, cancel := context.WithTimeout(ctx, buildTime)
	defer cancel()
	args := t.args(append([]string{"-json", "-vet=off", "-failfast"}, more...)...)
	if r.usesRapid(t.Package) {
		args = append(args, "-rapid.nofailfile")
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = r.root
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	if ctx.Err() != nil {
		return Broken, fmt.Sprintf("ended from outside: %v", ctx.Err())
	}
	v, why := judge(out.Bytes())
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		return Broken, err.Error()
	}
	if (err == nil) != (v == Green) && v != Broken {
		return Broken, "go test and its output do not agree: " + why
	}
	return v, why
}

// usesRapid reports whether tests of a package import rapid, which writes down beside
// them how a property failed unless it is told not to.
func (r *runner) usesRapid(pkg string) bool {
	names, _ := filepath.Glob(filepath.Join(r.root, filepath.FromSlash(pkg), "*_test.go"))
	for _, name := range names {
		if b, err := os.ReadFile(name); err == nil && bytes.Contains(b, []byte(`"pgregory.net/rapid"`)) {
			return true
		}
	}
	return false
}
