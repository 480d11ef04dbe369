package deploy

import (
	"maps"
	"slices"
	"strings"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/promql/parser"
)

// language is that of Prometheus' expressions.
var language = parser.NewParser(parser.Options{})

// variables are those of Grafana that stand where the language wants a number.
var variables = strings.NewReplacer("$__rate_interval", "5m", "$__interval", "1m")

// ownSeries are those that Prometheus makes itself.
var ownSeries = []string{"up", "ALERTS"}

// scraped are the labels that a series gets when it is scraped, and those of a
// histogram's buckets.
var scraped = []string{"cluster", "instance", "job", "namespace", "pod", "le"}

// series judges the names of the series that an expression asks for, and their labels: a
// group by one that no series has is a single line, and a condition on one never holds.
func (r *reader) series(where, expr string) {
	e, err := language.ParseExpr(variables.Replace(expr))
	if err != nil {
		r.wrong(where, "%q: %v", expr, err)
		return
	}
	named, grouped := read(e)
	if len(named) == 0 {
		r.wrong(where, "%q asks for no series", expr)
	}
	all := map[string]bool{}
	for _, s := range named {
		if r.prog.Metrics != nil && !r.prog.Metrics[s.Name] && !slices.Contains(ownSeries, s.Name) {
			r.wrong(where, "no node shows %s", s.Name)
		}
		maps.Copy(all, r.prog.Labels[s.Name])
	}
	if r.prog.Labels == nil {
		return
	}
	for _, l := range grouped {
		//guard:deployment-labels
		if !all[l] && !slices.Contains(scraped, l) {
			r.wrong(where, "no series of %q has the label %s", expr, l)
		}
	}
	for _, s := range named {
		for _, m := range s.LabelMatchers {
			if l := m.Name; l != model.MetricNameLabel && !r.prog.Labels[s.Name][l] && !slices.Contains(scraped, l) {
				r.wrong(where, "%s has no label %s", s.Name, l)
			}
		}
	}
}

// read returns the series of an expression, and the labels by which it groups or joins.
func read(e parser.Expr) (named []*parser.VectorSelector, grouped []string) {
	parser.Inspect(e, func(n parser.Node, _ []parser.Node) error {
		switch n := n.(type) {
		case *parser.VectorSelector:
			named = append(named, n)
		case *parser.AggregateExpr:
			grouped = append(grouped, n.Grouping...)
		case *parser.BinaryExpr:
			if m := n.VectorMatching; m != nil {
				grouped = append(append(grouped, m.MatchingLabels...), m.Include...)
			}
		}
		return nil
	})
	return named, grouped
}
