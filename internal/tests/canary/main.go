package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"syscall"
	"time"
)

// settings are what the command is told.
type settings struct {
	only *regexp.Regexp
	list bool
	json bool
	jobs int
	// turn and turns: every so manieth, from the turn-th on, counted from 0.
	turn, turns int
	// tested: the tests are known to pass with the code as it is.
	tested bool
}

// maxJobs bounds the canaries that run at a time.
const maxJobs = 64

// exitFailed is the exit code if a canary was not noticed, and exitUsage if the
// command makes no sense.
const (
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run returns the command, for the repository around the working directory.
func run(ctx context.Context, args []string, out, errs io.Writer) int {
	root, err := findRoot()
	if err != nil {
		fmt.Fprintln(errs, "canary:", err)
		return exitUsage
	}
	all, err := readCanaries(root, guards)
	if err != nil {
		fmt.Fprintf(errs, "canary: the marks and guards.txt do not fit:\n%v\n", err)
		return exitFailed
	}
	return command(ctx, args, root, all, out, errs)
}

// parse reads the command line.
func parse(args []string, errs io.Writer) (s settings, err error) {
	f := flag.NewFlagSet("canary", flag.ContinueOnError)
	f.SetOutput(errs)
	only := f.String("only", "", "run those whose whole name matches the regular expression `NAME`")
	f.BoolVar(&s.list, "list", false, "print what there is, and run nothing")
	f.BoolVar(&s.json, "json", false, "print a JSON object for each, when it is done")
	f.BoolVar(&s.tested, "tested", false, "do not run the tests with the code as it is: they have just passed")
	f.IntVar(&s.turns, "turns", 1, "run one of so many parts of all, which --turn chooses")
	f.IntVar(&s.turn, "turn", 0, "which part, counted from 0; greater numbers begin anew")
	f.IntVar(&s.jobs, "jobs", 2, "how many run at a time, 1 to 64")
	if err := f.Parse(args); err != nil {
		return s, err
	}
	if f.NArg() > 0 {
		return s, fmt.Errorf("%q is no flag: name canaries with --only", f.Arg(0))
	}
	if s.jobs < 1 || s.jobs > maxJobs {
		return s, fmt.Errorf("--jobs %d: choose 1 to %d", s.jobs, maxJobs)
	}
	if s.turns < 1 || s.turn < 0 {
		return s, fmt.Errorf("--turn %d --turns %d: choose 1 part or more, and count them from 0", s.turn, s.turns)
	}
	if *only != "" {
		s.only, err = regexp.Compile("^(?:" + *only + ")$")
	}
	return s, err
}

// command runs canaries and returns the exit code.
func command(ctx context.Context, args []string, root string, all []Canary, out, errs io.Writer) int {
	s, err := parse(args, errs)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	var some []Canary
	for i, c := range all {
		if err == nil && i%s.turns == s.turn%s.turns && (s.only == nil || s.only.MatchString(c.Name)) {
			some = append(some, c)
		}
	}
	if err == nil && len(some) == 0 {
		err = errors.New("no canary has such a name, and --only wants all of it; --list shows them")
	}
	if err != nil {
		fmt.Fprintln(errs, "canary:", err)
		return exitUsage
	}
	if s.list {
		list(out, some)
		return 0
	}
	work, err := os.MkdirTemp("", "canary-")
	if err != nil {
		fmt.Fprintln(errs, "canary:", err)
		return exitFailed
	}
	defer os.RemoveAll(work)
	return report(ctx, newRunner(root, work, s.tested), some, s, out)
}

// report runs canaries, prints what becomes of them in their order, and returns the
// exit code.
func report(ctx context.Context, r *runner, some []Canary, s settings, out io.Writer) int {
	began, turn := time.Now(), make(chan struct{}, s.jobs)
	done := make([]chan Result, len(some))
	for i := range done {
		done[i] = make(chan Result, 1)
	}
	go func() {
		for i, c := range some {
			turn <- struct{}{}
			go func() {
				done[i] <- r.run(ctx, c)
				<-turn
			}()
		}
	}()
	width := nameWidth(some)
	if !s.json {
		fmt.Fprintf(out, "%-*s  %-16s  %6s  %s\n", width, "CANARY", "OUTCOME", "TIME", "WHAT THE FIRST TEST SAID")
	}
	bad := 0
	for i := range some {
		res := <-done[i]
		if res.Outcome != noticed {
			bad++
		}
		if s.json {
			b, _ := json.Marshal(res) // nothing in it can fail
			fmt.Fprintf(out, "%s\n", b)
			continue
		}
		why := res.Why
		if res.Outcome == noticed {
			why = shorten(why)
		}
		fmt.Fprintf(out, "%-*s  %-16s  %5.1fs  %s\n", width, res.Name, res.Outcome, res.Seconds, why)
	}
	if !s.json {
		fmt.Fprintf(out, "\n%d canaries: %d noticed, %d not, in %.0f s\n", len(some), len(some)-bad, bad, time.Since(began).Seconds())
	}
	if bad > 0 {
		return exitFailed
	}
	return 0
}

// widest is how many letters of a reason fit into the table.
const widest = 110

func shorten(text string) string {
	if r := []rune(text); len(r) > widest {
		return string(r[:widest-1]) + "…"
	}
	return text
}

func nameWidth(some []Canary) int {
	width := 0
	for _, c := range some {
		width = max(width, len(c.Name))
	}
	return width
}

func list(out io.Writer, some []Canary) {
	width := nameWidth(some)
	for _, c := range some {
		fmt.Fprintf(out, "%-*s  %s\n%-*s  %s\n", width, c.Name, c.Guard, width, "", c.Tests.command())
	}
}

// findRoot returns the directory of the repository: the one with go.mod.
func findRoot() (string, error) {
	dir, err := os.Getwd()
	for err == nil {
		if _, missing := os.Stat(filepath.Join(dir, "go.mod")); missing == nil {
			return dir, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", errors.New("run it within the repository")
		}
		dir = up
	}
	return "", err
}
