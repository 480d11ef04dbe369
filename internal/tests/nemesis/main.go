// Command nemesis looks for histories of a cluster that should not be. It starts
// real `keystead server` processes, lets clients work on them while faults that a
// seed draws happen, and checks with porcupine what the clients were told.
//
//	go run ./internal/tests/nemesis --histories 20 --faults kill,pause
//
// With the faults split and merge, counters and limits are split into parts and made
// whole all the time, also while other faults last:
//
//	go run ./internal/tests/nemesis --histories 20 --faults split,merge,kill,pause
//
// With --kinds, all clients work on objects of some kinds only, so that more happens to each:
//
//	go run ./internal/tests/nemesis --histories 20 --faults kill,pause --kinds across
//
// It prints a line for each history and a table of what there was, and exits with
// 1 if one failed; that one is kept as files, with a page of its operations.
// Histories do not repeat from their seed to the operation: processes and networks
// are real. What repeats are the faults and the keys.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/keystead/keystead/internal/tests/kinds"
	"github.com/keystead/keystead/internal/tests/nemesis/cluster"
	"github.com/keystead/keystead/internal/tests/nemesis/fault"
	"github.com/keystead/keystead/internal/tests/nemesis/judge"
	"github.com/keystead/keystead/internal/tests/nemesis/workload"
)

// settings are what the command is told.
type settings struct {
	seed      uint64
	histories int
	length    time.Duration
	nodes     int
	clients   int
	keys      int
	kinds     []fault.Kind
	objects   []*kinds.Kind // nil: all
	binary    string
	json      bool
	keep      string
	noLoss    *bool // nil: where no loss is to be expected
	flags     []string
	durable   string // --durability of the nodes; "" = their default
	lease     time.Duration
	limits    judge.Limits

	noStandbys bool // as the first history has shown: the binary keeps none
}

const (
	maxHistories = 100_000
	leastLength  = time.Second
	mostLength   = time.Hour
)

// parse reads the command line.
func parse(args []string, errs io.Writer) (s settings, err error) {
	f := flag.NewFlagSet("nemesis", flag.ContinueOnError)
	f.SetOutput(errs)
	f.Uint64Var(&s.seed, "seed", 1, "`N` of the first history; the next ones follow")
	f.IntVar(&s.histories, "histories", 1, "how many")
	f.DurationVar(&s.length, "length", 10*time.Second, "how long faults begin; a history ends when the last one is over")
	f.IntVar(&s.nodes, "nodes", 3, "nodes at the start")
	f.IntVar(&s.clients, "clients", 4, "clients that work; one more reads each object")
	f.IntVar(&s.keys, "keys", 4, "counters, as many limits, as many locks")
	f.StringVar(&s.binary, "binary", "", "`PATH` of keystead (default: it is built)")
	f.BoolVar(&s.json, "json", false, "print a JSON object for each history, and one for the summary")
	f.StringVar(&s.keep, "keep", "", "`DIR` for disks, logs, and histories that failed (default: a temporary one, removed if none failed)")
	f.DurationVar(&s.lease, "lease-ttl", 2*time.Second, "of the nodes")
	f.DurationVar(&s.limits.Slack, "slack", judge.DefaultSlack, "by how much times may be late for each fault")
	f.DurationVar(&s.limits.Served, "served-within", judge.DefaultServed, "how long after a fault an object may be without an answer")
	f.DurationVar(&s.limits.Pause, "pause", judge.DefaultPause, "how long one may be that was not harmed")
	f.DurationVar(&s.limits.Check, "check-within", judge.DefaultCheck, "bounds the checks of a history")
	objects := f.String("kinds", "", "`KINDS` of objects with commas (default: all), such as across: admissions of several keys")
	faults := f.String("faults", kindsText(fault.Default), fmt.Sprintf("`KINDS` with commas, of %s, or none; %s need root, on Linux", kindsText(fault.Kinds), kindsText(slices.Concat(fault.Islands, fault.Disked))))
	f.StringVar(&s.durable, "durability", "", "of the nodes; with always, kill -9 of all is to lose nothing")
	flags := f.String("flags", "", "further `FLAGS` of the nodes, with spaces")
	f.BoolFunc("no-loss", "declared loss is a failure (default: if each fault harms one node alone, and the machine does not stall)", func(text string) error {
		on := text == "true"
		if s.noLoss = &on; !on && text != "false" {
			return errors.New("choose true or false")
		}
		return nil
	})
	if err := f.Parse(args); err != nil {
		return s, err
	}
	s.flags = strings.Fields(*flags)
	if s.durable != "" {
		s.flags = append(s.flags, "--durability", s.durable)
	}
	if s.kinds, err = fault.ParseKinds(*faults); err != nil {
		return s, err
	}
	for _, name := range strings.FieldsFunc(*objects, func(r rune) bool { return r == ',' }) {
		k, ok := kinds.Named(name)
		if !ok {
			return s, fmt.Errorf("--kinds: there is no kind %q of objects", name)
		}
		s.objects = append(s.objects, k)
	}
	return s, s.validate(f.Args())
}

func (s *settings) validate(rest []string) error {
	switch {
	case len(rest) > 0:
		return fmt.Errorf("unexpected argument %q", rest[0])
	case s.histories < 1 || s.histories > maxHistories:
		return fmt.Errorf("--histories %d: choose 1 to %d", s.histories, maxHistories)
	case s.length < leastLength || s.length > mostLength:
		return fmt.Errorf("--length %s: choose %s to %s", s.length, leastLength, mostLength)
	case s.nodes < 1 || s.nodes > cluster.MaxNodes:
		return fmt.Errorf("--nodes %d: choose 1 to %d", s.nodes, cluster.MaxNodes)
	case s.clients < 1 || s.clients > workload.MaxClients:
		return fmt.Errorf("--clients %d: choose 1 to %d", s.clients, workload.MaxClients)
	case s.keys < 1 || s.keys > workload.MaxKeys:
		return fmt.Errorf("--keys %d: choose 1 to %d", s.keys, workload.MaxKeys)
	case s.limits.Slack < 0 || s.limits.Served <= 0 || s.limits.Pause <= 0 || s.limits.Check <= 0 || s.lease <= 0:
		return errors.New("choose times of more than 0")
	case fault.Any(s.kinds, fault.Islands) && fault.Any(s.kinds, fault.Proxied):
		return fmt.Errorf("--faults: %s need islands, %s need loopback: choose one", kindsText(fault.Islands), kindsText(fault.Proxied))
	}
	return nil
}

func kindsText(kinds []fault.Kind) string {
	var words []string
	for _, k := range kinds {
		words = append(words, string(k))
	}
	return strings.Join(words, ",")
}

// exit codes.
const (
	exitFailed = 1 // a history failed, or could not be had
	exitUsage  = 2
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	s, err := parse(os.Args[1:], os.Stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return
	case err != nil:
		fmt.Fprintln(os.Stderr, "nemesis:", err)
		os.Exit(exitUsage)
	}
	failed, err := s.run(ctx, os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "nemesis:", err)
	}
	if failed || err != nil {
		os.Exit(exitFailed)
	}
}

// build builds the binary of this source.
func build(ctx context.Context, to string) error {
	if text, err := exec.CommandContext(ctx, "go", "build", "-o", to, "github.com/keystead/keystead/cmd/keystead").CombinedOutput(); err != nil {
		return fmt.Errorf("building keystead: %w\n%s", err, text)
	}
	return nil
}

// run runs all histories, and reports whether one failed.
func (s *settings) run(ctx context.Context, out io.Writer) (failed bool, err error) {
	dir := s.keep
	if dir == "" {
		if dir, err = os.MkdirTemp("", "nemesis-"); err != nil {
			return false, err
		}
		defer func() {
			if !failed {
				_ = os.RemoveAll(dir)
			}
		}()
	} else if err := os.MkdirAll(dir, 0o755); err != nil {
		return false, err
	}
	if s.binary == "" {
		s.binary = filepath.Join(dir, "keystead")
		if err := build(ctx, s.binary); err != nil {
			return true, err
		}
	}
	var all []report
	for i := range s.histories {
		r, err := s.history(ctx, s.seed+uint64(i), dir)
		if ctx.Err() != nil {
			break // what was cut short is not judged
		}
		if err != nil { // there is no history: that proves nothing, so it fails
			r.Verdict = cmp.Or(r.Verdict, judge.Trouble)
			r.Error = err.Error()
		}
		all = append(all, r)
		failed = failed || r.Verdict.Fails()
		if s.json {
			_ = json.NewEncoder(out).Encode(r)
		} else {
			fmt.Fprintln(out, r.line())
		}
	}
	if s.json {
		return failed, json.NewEncoder(out).Encode(summarize(all))
	}
	return failed, summarize(all).print(out)
}
