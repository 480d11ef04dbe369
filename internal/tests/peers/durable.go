package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"
)

// durableFlags are what `durable` is told.
type durableFlags struct {
	rounds      int
	duration    time.Duration
	data        string
	binary      string
	callers     []int
	alone       []string // durabilities of the nodes that run alone
	three       []string // … of clusters of three
	json        bool
	callersText string
	aloneText   string
	threeText   string
}

func (f *durableFlags) parse(args []string) (err error) {
	fl := flag.NewFlagSet("durable", flag.ExitOnError)
	fl.IntVar(&f.rounds, "rounds", 5, "measurements of each, after one of a quarter of the time that does not count")
	fl.DurationVar(&f.duration, "duration", time.Second, "of one measurement")
	fl.StringVar(&f.data, "data", os.TempDir(), "where all of them have their data: on a disk")
	fl.StringVar(&f.binary, "keystead", "", "keystead, as it was built (default: it is built of this tree)")
	fl.StringVar(&f.callersText, "callers", "1,64,256", "callers at once")
	fl.StringVar(&f.aloneText, "alone", "none,interval,always", "durabilities of nodes that run alone, of those that the program has")
	fl.StringVar(&f.threeText, "three", "none", "durabilities of clusters of three, likewise")
	fl.BoolVar(&f.json, "json", false, "print JSON")
	if err := fl.Parse(args); err != nil {
		return err
	}
	for _, s := range split(f.callersText) {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 {
			return fmt.Errorf("-callers %q: want numbers from 1, with commas", f.callersText)
		}
		f.callers = append(f.callers, n)
	}
	f.alone, f.three = split(f.aloneText), split(f.threeText)
	switch {
	case fl.NArg() > 0:
		return fmt.Errorf("durable %q: it takes flags only", fl.Args())
	case f.rounds < 1 || f.duration < 10*time.Millisecond:
		return fmt.Errorf("%d rounds of %s: at least one of 10ms", f.rounds, f.duration)
	}
	return onDisk(f.data)
}

func split(s string) []string {
	return slices.DeleteFunc(strings.Split(s, ","), func(s string) bool { return s == "" })
}

// durableReport is what `durable` prints.
type durableReport struct {
	Go       string            `json:"go"`
	CPUs     int               `json:"cpus"`
	Seconds  float64           `json:"seconds"` // of one measurement
	Versions map[string]string `json:"versions"`
	Disk     []diskTime        `json:"disk"`
	Results  []result          `json:"results"`
	Ratios   []ratio           `json:"ratios"`
}

// durable measures what is on disk before it is answered.
func durable(args []string) error {
	var f durableFlags
	if err := f.parse(args); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	debug.SetGCPercent(gcPercent)
	l, err := startOnDisk(ctx, &f)
	if err != nil {
		return err
	}
	defer l.stop()
	progress := func(what string) { fmt.Fprintln(os.Stderr, what) }
	all := l.ways(f.callers)
	warmUp := make([]result, len(all)) // does not count
	if err := measureRound(ctx, nil, all, warmUp, max(f.duration/4, 10*time.Millisecond), func(what string) { progress("warm-up: " + what) }); err != nil {
		return err
	}
	report := durableReport{Go: runtime.Version(), CPUs: runtime.NumCPU(), Seconds: f.duration.Seconds(), Versions: l.versions,
		Disk: make([]diskTime, len(probes)), Results: make([]result, len(all))}
	for round := range f.rounds {
		if err := probeAll(l.dir, report.Disk); err != nil {
			return err
		}
		name, each := fmt.Sprintf("round %d of %d: ", round+1, f.rounds), len(all)/len(f.callers)
		for from := 0; from < len(all); from += each { // what is compared comes close together
			if err := measureRound(ctx, nil, all[from:from+each], report.Results[from:from+each], f.duration, func(what string) { progress(name + what) }); err != nil {
				return err
			}
		}
	}
	report.Ratios = durableRatios(report.Results, f.callers)
	if f.json {
		return json.NewEncoder(os.Stdout).Encode(report)
	}
	return report.write(os.Stdout)
}

// durableRatios returns what is compared, of what was measured.
func durableRatios(results []result, counts []int) (all []ratio) {
	for _, n := range counts {
		for _, pair := range comparedOnDisk() {
			find := func(system string) int {
				return slices.IndexFunc(results, func(r result) bool { return r.System == system && r.Callers == n })
			}
			if of, to := find(pair[0]), find(pair[1]); of >= 0 && to >= 0 {
				all = append(all, compare(callers(n)+": a second", pair[0], pair[1], results[of], results[to], false))
			}
		}
	}
	return all
}

// write prints it for people.
func (r *durableReport) write(out io.Writer) error {
	for _, name := range slices.Sorted(maps.Keys(r.Versions)) {
		fmt.Fprintf(out, "%s: %s\n", name, r.Versions[name])
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\nthe disk, nobody else\tp50, ms\tp99, ms")
	for _, d := range r.Disk {
		fmt.Fprintf(w, "%s\t%.2f\t%.2f\n", d.What, d.P50, d.P99)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w, "\ncallers\tby\ta second\tleast to most\tthat share a sync\tits CPU, µs each")
	for _, x := range r.Results {
		shared, cpu := "-", "-"
		if len(x.PerSync) > 0 {
			shared = fmt.Sprintf("%.1f", median(x.PerSync))
		}
		if len(x.CPU) > 0 {
			cpu = fmt.Sprintf("%.1f", median(x.CPU))
		}
		fmt.Fprintf(w, "%d\t%s\t%.0f\t%.0f to %.0f\t%s\t%s\n", x.Callers, x.System, x.Median, slices.Min(x.Rounds), slices.Max(x.Rounds), shared, cpu)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w, "\nwhat\tof ÷ to\tmedian\tleast to most")
	for _, x := range r.Ratios {
		fmt.Fprintf(w, "%s\t%s ÷ %s\t%.2f\t%.2f to %.2f\n", x.What, x.Of, x.To, x.Value, x.Least, x.Most)
	}
	return w.Flush()
}
