package deploy

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// The files of Prometheus and Grafana, and where people are told what to do.
const (
	scrapeFile     = "deploy/prometheus/prometheus.yml"
	scrapePodsFile = "deploy/prometheus/prometheus-kubernetes.yml"
	rulesFile      = "deploy/prometheus/keystead.rules.yml"
	rulesTestFile  = "deploy/prometheus/keystead.rules.test.yml"
	dashboardFile  = "deploy/grafana/dashboard.json"
	operationsFile = "docs/operations.md"
	runbooks       = "https://github.com/keystead/keystead/blob/main/" + operationsFile + "#"
)

// metricName finds the names of series in an expression: ours, those of the process and
// of the Go runtime, and Prometheus' own.
var metricName = regexp.MustCompile(`\b(?:(?:keystead|process|go)_[a-z0-9_]+|up)\b`)

// ownSeries are those that Prometheus makes itself.
var ownSeries = []string{"up", "ALERTS"}

// MetricNames are the names of the series that an expression of Prometheus asks for, in
// order, each once.
func MetricNames(expr string) []string {
	names := metricName.FindAllString(expr, -1)
	slices.Sort(names)
	return slices.Compact(names)
}

// metrics judges the names of an expression.
func (r *reader) metrics(where, expr string) {
	names := MetricNames(expr)
	if len(names) == 0 {
		r.wrong(where, "%q asks for no series", expr)
	}
	if r.prog.Metrics == nil {
		return
	}
	for _, name := range names {
		if !r.prog.Metrics[name] && !slices.Contains(ownSeries, name) {
			r.wrong(where, "no node shows %s", name)
		}
	}
	r.labels(where, expr)
}

type alertRules struct {
	Groups []struct {
		Name  string
		Rules []alert
	}
}

type alert struct {
	Alert, Expr, For    string
	Labels, Annotations map[string]string
}

type ruleTests struct {
	RuleFiles []string `yaml:"rule_files"`
	Every     string   `yaml:"evaluation_interval"`
	Tests     []struct {
		Name, Interval string
		Input          []struct{ Series, Values string } `yaml:"input_series"`
		Exprs          []struct {
			Expr    string
			At      string `yaml:"eval_time"`
			Samples []struct {
				Labels string
				Value  float64
			} `yaml:"exp_samples"`
		} `yaml:"promql_expr_test"`
	}
}

type scrapeConfig struct {
	Global struct {
		Every    string `yaml:"scrape_interval"`
		Evaluate string `yaml:"evaluation_interval"`
	}
	RuleFiles []string    `yaml:"rule_files"`
	Jobs      []scrapeJob `yaml:"scrape_configs"`
}

type scrapeJob struct {
	Name   string `yaml:"job_name"`
	Static []struct {
		Targets []string
		Labels  map[string]string
	} `yaml:"static_configs"`
	Pods []struct {
		Role      string
		Selectors []struct{ Role, Label string }
	} `yaml:"kubernetes_sd_configs"`
	Relabel []struct {
		Sources       []string `yaml:"source_labels"`
		Regex, Action string
		Target        string `yaml:"target_label"`
	} `yaml:"relabel_configs"`
}

// prometheus judges the scrape configurations, the alerts and their tests. nodes are
// those of compose.
func (r *reader) prometheus(nodes []string) {
	var s scrapeConfig
	if err := strict(r.text(scrapeFile), func() any { return &s }); err != nil {
		r.wrong(scrapeFile, "%v", err)
	} else if got, want := targets(s), nodes; !slices.Equal(got, want) {
		r.wrong(scrapeFile, "it scrapes %v, and compose runs %v", got, want)
	}
	var pods scrapeConfig
	if err := strict(r.text(scrapePodsFile), func() any { return &pods }); err != nil {
		r.wrong(scrapePodsFile, "%v", err)
	}
	for file, c := range map[string]scrapeConfig{scrapeFile: s, scrapePodsFile: pods} {
		if len(c.Jobs) != 1 || c.Jobs[0].Name != "keystead" || !slices.Equal(c.RuleFiles, []string{"keystead.rules.yml"}) {
			r.wrong(file, "the alerts want one job, keystead, and are in keystead.rules.yml")
		}
	}
	var rules alertRules
	if err := strict(r.text(rulesFile), func() any { return &rules }); err != nil {
		r.wrong(rulesFile, "%v", err)
	}
	var tests ruleTests
	if err := strict(r.text(rulesTestFile), func() any { return &tests }); err != nil {
		r.wrong(rulesTestFile, "%v", err)
	}
	r.alerts(rules, fires(tests))
	for _, t := range tests.Tests {
		for _, in := range t.Input {
			r.metrics(rulesTestFile, in.Series)
		}
	}
}

// targets are the nodes that a configuration scrapes at their metrics port.
func targets(c scrapeConfig) []string {
	var names []string
	for _, j := range c.Jobs {
		for _, s := range j.Static {
			for _, t := range s.Targets {
				names = append(names, strings.TrimSuffix(t, ":7481"))
			}
		}
	}
	slices.Sort(names)
	return names
}

// fires is the text of all that tests expect to fire.
func fires(t ruleTests) string {
	var all strings.Builder
	for _, one := range t.Tests {
		for _, e := range one.Exprs {
			for _, s := range e.Samples {
				all.WriteString(s.Labels)
			}
		}
	}
	return all.String()
}

func (r *reader) alerts(rules alertRules, tested string) {
	anchors, documented := Anchors(r.text(operationsFile)), 0
	for _, g := range rules.Groups {
		for _, a := range g.Rules {
			where := rulesFile + " " + a.Alert
			r.metrics(where, a.Expr)
			if !slices.Contains([]string{"critical", "warning", "info"}, a.Labels["severity"]) || a.Annotations["summary"] == "" || a.Annotations["description"] == "" {
				r.wrong(where, "it lacks a severity, a summary or a description")
			}
			anchor := strings.ToLower(a.Alert)
			if a.Annotations["runbook_url"] != runbooks+anchor || !anchors[anchor] {
				r.wrong(where, "there is no section %q in %s, or runbook_url does not lead to it", a.Alert, operationsFile)
			}
			if !strings.Contains(tested, fmt.Sprintf("alertname=%q", a.Alert)) {
				r.wrong(where, "no test makes it fire")
			}
			documented++
		}
	}
	if documented == 0 {
		r.wrong(rulesFile, "there are no alerts")
	}
}

var (
	heading   = regexp.MustCompile(`(?m)^#{1,6} +(.+?) *$`)
	anchorGap = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
)

// Anchors are those of the headings of a Markdown text, as code hosts make them.
func Anchors(text string) map[string]bool {
	out := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(text, -1) {
		out[strings.ReplaceAll(strings.ToLower(anchorGap.ReplaceAllString(m[1], "")), " ", "-")] = true
	}
	return out
}

// dashboard judges the names in Grafana's dashboard.
func (r *reader) dashboard() {
	var d struct {
		Title, UID string
		Panels     []struct {
			ID      int
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal([]byte(r.text(dashboardFile)), &d); err != nil {
		r.wrong(dashboardFile, "%v", err)
		return
	}
	ids := map[int]bool{}
	for _, p := range d.Panels {
		if p.Title == "" || ids[p.ID] || len(p.Targets) == 0 {
			r.wrong(dashboardFile, "panel %d %q: give it a title, an id of its own and a series", p.ID, p.Title)
		}
		ids[p.ID] = true
		for _, t := range p.Targets {
			r.metrics(dashboardFile+" "+p.Title, t.Expr)
		}
	}
	if len(d.Panels) == 0 || d.UID == "" {
		r.wrong(dashboardFile, "it has no panels, or no uid by which an import replaces it")
	}
}
