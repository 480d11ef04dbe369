package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/keystead/keystead/internal/tests/nemesis/fault"
	"github.com/keystead/keystead/internal/tests/nemesis/judge"
)

// report is what there is to say of a history.
type report struct {
	Seed       uint64        `json:"seed"`
	Standbys   bool          `json:"standbys"` // the cluster keeps synced standbys
	Events     []fault.Event `json:"faults"`
	Orders     []fault.Order `json:"orders,omitempty"`
	ByParts    int           `json:"by_parts,omitempty"` // answers from parts of split objects
	Operations int           `json:"operations"`         // that were answered; probes are not counted
	Unknown    int           `json:"unknown"`            // attempts that may have acted and had no answer
	Open       int           `json:"open"`               // operations that never had one
	// Stalled is how long the machine was too busy; the bounds of pauses are
	// longer by as much.
	Stalled time.Duration `json:"stalled"`
	judge.Result
	Kept  string `json:"kept,omitempty"` // directory of a history that failed
	Error string `json:"error,omitempty"`
}

// longest returns the longest pause of all objects.
func (r *report) longest() time.Duration {
	if len(r.Pauses) == 0 {
		return 0
	}
	return r.Pauses[0].For
}

// maxFindings are told in a line.
const maxFindings = 4

// line returns the report for people.
func (r *report) line() string {
	var faults []string
	for _, e := range r.Events {
		switch {
		case e.Skipped != "":
			faults = append(faults, fmt.Sprintf("(%s: %s)", e.Fault.Kind, e.Skipped))
		case len(e.Victims) > 0:
			faults = append(faults, fmt.Sprintf("%s %s %s", e.Fault.Kind, strings.Join(e.Victims, "+"), e.Fault.For.Round(10*time.Millisecond)))
		default:
			faults = append(faults, string(e.Fault.Kind))
		}
	}
	if len(faults) == 0 {
		faults = []string{"no fault"}
	}
	if splits, merges := done(r.Orders, fault.Split), done(r.Orders, fault.Merge); len(r.Orders) > 0 {
		faults = append(faults, fmt.Sprintf("%d splits and %d merges of %d ordered, %d answers by parts", splits, merges, len(r.Orders), r.ByParts))
	}
	s := fmt.Sprintf("seed %d: %s; %d operations, %d unknown, %d open; longest pause %s; %s",
		r.Seed, strings.Join(faults, ", "), r.Operations, r.Unknown, r.Open, r.longest().Round(time.Millisecond), strings.ToUpper(string(r.Verdict)))
	if r.Stalled > 0 {
		s += fmt.Sprintf(" (the machine stalled for %s)", r.Stalled.Round(time.Millisecond))
	}
	if n := len(r.Declared); n > 0 {
		s += fmt.Sprintf(" (%d objects)", n)
	}
	var refused []string // objects that a model refused
	told := 0
	for _, f := range r.Findings {
		switch {
		case f.Violation != nil:
			refused = append(refused, f.Object)
			continue
		case told < maxFindings:
			s += fmt.Sprintf("\n  %s: %s", strings.TrimSpace(string(f.Verdict)+" "+f.Object), f.What)
		}
		told++
	}
	if told > maxFindings {
		s += fmt.Sprintf("\n  and %d more", told-maxFindings)
	}
	if len(refused) > 0 {
		s += fmt.Sprintf("\n  illegal %s: no order of the operations explains what their callers were told", strings.Join(refused, ", "))
	}
	if r.Error != "" {
		s += "\n  " + r.Error
	}
	if r.Kept != "" {
		s += "\n  kept in " + r.Kept
	}
	return s
}

// done returns how many orders of a kind were answered without an error.
func done(orders []fault.Order, kind fault.Kind) (n int) {
	for _, o := range orders {
		if o.Kind == kind && o.Error == "" {
			n++
		}
	}
	return n
}

// summary is what all histories come to.
type summary struct {
	Histories  int                   `json:"histories"`
	Verdicts   map[judge.Verdict]int `json:"verdicts"`
	Faults     []kindSummary         `json:"by_fault"`
	Operations int                   `json:"operations"`
	Unknown    int                   `json:"unknown"`
	Open       int                   `json:"open"`
	Longest    time.Duration         `json:"longest_pause"`
}

// kindSummary is about the faults of a kind.
type kindSummary struct {
	Kind    string `json:"kind"`
	Done    int    `json:"done"`
	Skipped int    `json:"skipped"`
	// Failed are histories with such a fault that failed.
	Failed int `json:"failed"`
	// Recovery is the longest time from the end of such a fault until the cluster
	// was as before.
	Recovery time.Duration `json:"recovery"`
}

func summarize(all []report) *summary {
	s := &summary{Histories: len(all), Verdicts: map[judge.Verdict]int{}}
	kinds := map[string]*kindSummary{}
	for _, r := range all {
		s.Verdicts[r.Verdict]++
		s.Operations, s.Unknown, s.Open = s.Operations+r.Operations, s.Unknown+r.Unknown, s.Open+r.Open
		s.Longest = max(s.Longest, r.longest())
		had := map[string]bool{}
		of := func(kind fault.Kind) *kindSummary {
			name := string(kind)
			if kinds[name] == nil {
				kinds[name] = &kindSummary{Kind: name}
			}
			return kinds[name]
		}
		for _, x := range r.Orders {
			if x.Error != "" {
				of(x.Kind).Skipped++
				continue
			}
			of(x.Kind).Done++
			had[string(x.Kind)] = true
		}
		for _, e := range r.Events {
			name := string(e.Fault.Kind)
			k := of(e.Fault.Kind)
			if e.Skipped != "" {
				k.Skipped++
				continue
			}
			k.Done++
			k.Recovery = max(k.Recovery, time.Duration(e.Settled-e.Healed))
			had[name] = true
		}
		for name := range had {
			if r.Verdict.Fails() {
				kinds[name].Failed++
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(kinds)) {
		s.Faults = append(s.Faults, *kinds[name])
	}
	return s
}

// print prints the summary as a table.
func (s *summary) print(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "\nFAULT\tDONE\tSKIPPED\tFAILED HISTORIES\tLONGEST RECOVERY\n")
	for _, k := range s.Faults {
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%s\n", k.Kind, k.Done, k.Skipped, k.Failed, k.Recovery.Round(time.Millisecond))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	var verdicts []string
	for _, v := range slices.Sorted(maps.Keys(s.Verdicts)) {
		verdicts = append(verdicts, fmt.Sprintf("%d %s", s.Verdicts[v], v))
	}
	_, err := fmt.Fprintf(out, "\n%d histories: %s; %d operations, %d unknown, %d open; longest pause %s\n", s.Histories,
		strings.Join(verdicts, ", "), s.Operations, s.Unknown, s.Open, s.Longest.Round(time.Millisecond))
	return err
}
