package deploy

import (
	"regexp"
	"slices"
	"strings"
)

// scraped are the labels that a series has of whoever scrapes it, and those of a
// histogram's buckets.
var scraped = []string{"cluster", "instance", "job", "namespace", "pod", "le"}

// grouped finds the labels by which an expression groups or joins, matched the
// conditions on a metric, and label the names in those.
var (
	grouped = regexp.MustCompile(`\b(?:by|on|without|ignoring)\s*\(([^)]*)\)`)
	matched = regexp.MustCompile(`\b((?:keystead|process|go)_[a-z0-9_]+)\{([^}]*)\}`)
	label   = regexp.MustCompile(`([a-zA-Z_]+)\s*(?:=|!=|=~|!~)\s*"`)
)

// labels judges the labels of an expression: a group by one that no series has is a
// single line, and a condition on one never holds.
func (r *reader) labels(where, expr string) {
	if r.prog.Labels == nil {
		return
	}
	all := map[string]bool{}
	for _, name := range MetricNames(expr) {
		for l := range r.prog.Labels[name] {
			all[l] = true
		}
	}
	for _, m := range grouped.FindAllStringSubmatch(expr, -1) {
		for l := range strings.FieldsFuncSeq(m[1], func(c rune) bool { return c == ',' || c == ' ' }) {
			//guard:deployment-labels
			if !all[l] && !slices.Contains(scraped, l) {
				r.wrong(where, "no series of %q has the label %s", expr, l)
			}
		}
	}
	for _, m := range matched.FindAllStringSubmatch(expr, -1) {
		for _, l := range label.FindAllStringSubmatch(m[2], -1) {
			if !r.prog.Labels[m[1]][l[1]] && !slices.Contains(scraped, l[1]) {
				r.wrong(where, "%s has no label %s", m[1], l[1])
			}
		}
	}
}
