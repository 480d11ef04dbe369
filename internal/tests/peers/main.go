package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"
	"text/tabwriter"
	"time"
)

// gcPercent is that of `keystead bench`: the caller should not be what is measured.
const gcPercent = 400

func main() {
	log.SetFlags(0)
	if len(os.Args) > 1 && os.Args[1] == "durable" {
		if err := durable(os.Args[2:]); err != nil {
			log.Fatal(err)
		}
		return
	}
	rounds := flag.Int("rounds", 5, "measurements of each")
	duration := flag.Duration("duration", time.Second, "of one measurement")
	data := flag.String("data", "/dev/shm", "where etcd has its data")
	binary := flag.String("keystead", "", "keystead, as it was built (default: it is built of this tree)")
	asJSON := flag.Bool("json", false, "print JSON")
	leads := flag.String("lead", "", "lead an election until it is killed: for the program itself")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if *leads != "" {
		if err := lead(ctx, *leads); err != nil {
			log.Fatal(err)
		}
		return
	}
	if err := run(ctx, *rounds, *duration, *data, *binary, *asJSON); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, rounds int, d time.Duration, data, binary string, asJSON bool) error {
	if rounds < 1 || d < 10*time.Millisecond {
		return fmt.Errorf("%d rounds of %s: at least one of 10ms", rounds, d)
	}
	debug.SetGCPercent(gcPercent)
	s, err := start(data, binary)
	if err != nil {
		return err
	}
	defer s.stop()
	c, err := dial(ctx, s)
	if err != nil {
		return err
	}
	progress := func(what string) { fmt.Fprintln(os.Stderr, what) }
	results, err := measureAll(ctx, c, ways(), rounds, d, progress)
	if err != nil {
		return err
	}
	spans, err := timeAll(ctx, c, progress)
	if err != nil {
		return err
	}
	compared := append(ratios(results), timeRatios(spans)...)
	if asJSON {
		return json.NewEncoder(os.Stdout).Encode(struct {
			Go      string   `json:"go"`
			CPUs    int      `json:"cpus"`
			Seconds float64  `json:"seconds"` // of one measurement
			Results []result `json:"results"`
			Times   []span   `json:"times"`
			Ratios  []ratio  `json:"ratios"`
		}{runtime.Version(), runtime.NumCPU(), d.Seconds(), results, spans, compared})
	}
	return write(os.Stdout, results, spans, compared)
}

// write prints what was measured for people.
func write(out io.Writer, results []result, spans []span, compared []ratio) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "what\tcallers\tby\ta second\tµs each")
	for _, r := range results {
		fmt.Fprintf(w, "%s\t%d\t%s\t%.0f\t%.1f\n", r.What, r.Callers, r.System, r.Median, 1e6/r.Median)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w, "\nwhat\tby\tmedian, ms\tmost, ms")
	for _, s := range spans {
		fmt.Fprintf(w, "%s\t%s\t%.1f\t%.1f\n", s.What, s.System, s.Median, s.Most)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w, "\nwhat\tof ÷ to\tmedian\tleast to most")
	for _, r := range compared {
		fmt.Fprintf(w, "%s\t%s ÷ %s\t%.2f\t%.2f to %.2f\n", r.What, r.Of, r.To, r.Value, r.Least, r.Most)
	}
	return w.Flush()
}
