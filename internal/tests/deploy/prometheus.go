package deploy

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"sigs.k8s.io/yaml"
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

type ruleTests struct {
	RuleFiles []string `json:"rule_files"`
	Every     string   `json:"evaluation_interval"`
	Tests     []struct {
		Name, Interval string
		Input          []struct{ Series, Values string } `json:"input_series"`
		Exprs          []struct {
			Expr    string
			At      string `json:"eval_time"`
			Samples []struct {
				Labels string
				Value  float64
			} `json:"exp_samples"`
		} `json:"promql_expr_test"`
	}
}

type scrapeConfig struct {
	Global struct {
		Every    string `json:"scrape_interval"`
		Evaluate string `json:"evaluation_interval"`
	}
	RuleFiles []string    `json:"rule_files"`
	Jobs      []scrapeJob `json:"scrape_configs"`
}

type scrapeJob struct {
	Name   string `json:"job_name"`
	Static []struct {
		Targets []string
		Labels  map[string]string
	} `json:"static_configs"`
	Pods []struct {
		Role      string
		Selectors []struct{ Role, Label string }
	} `json:"kubernetes_sd_configs"`
	Relabel []struct {
		Sources       []string `json:"source_labels"`
		Regex, Action string
		Target        string `json:"target_label"`
	} `json:"relabel_configs"`
}

// prometheus judges the scrape configurations, the alerts and their tests. nodes are
// those of compose.
func (r *reader) prometheus(nodes []string) {
	var s scrapeConfig
	if err := yaml.UnmarshalStrict([]byte(r.text(scrapeFile)), &s); err != nil {
		r.wrong(scrapeFile, "%v", err)
	} else if got, want := targets(s), nodes; !slices.Equal(got, want) {
		r.wrong(scrapeFile, "it scrapes %v, and compose runs %v", got, want)
	}
	var pods scrapeConfig
	if err := yaml.UnmarshalStrict([]byte(r.text(scrapePodsFile)), &pods); err != nil {
		r.wrong(scrapePodsFile, "%v", err)
	}
	for file, c := range map[string]scrapeConfig{scrapeFile: s, scrapePodsFile: pods} {
		if len(c.Jobs) != 1 || c.Jobs[0].Name != "keystead" || !slices.Equal(c.RuleFiles, []string{"keystead.rules.yml"}) {
			r.wrong(file, "the alerts want one job, keystead, and are in keystead.rules.yml")
		}
	}
	rules, wrong := rulefmt.Parse([]byte(r.text(rulesFile)), false, model.LegacyValidation, language, slog.New(slog.DiscardHandler))
	for _, err := range wrong {
		r.wrong(rulesFile, "%v", err)
	}
	var tests ruleTests
	if err := yaml.UnmarshalStrict([]byte(r.text(rulesTestFile)), &tests); err != nil {
		r.wrong(rulesTestFile, "%v", err)
	}
	if rules != nil {
		r.alerts(rules, fires(tests))
	}
	for _, t := range tests.Tests {
		for _, in := range t.Input {
			r.series(rulesTestFile, in.Series)
		}
	}
}

// targets returns the nodes that a configuration scrapes at their metrics port.
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

// fires returns the text of all that tests expect to fire.
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

func (r *reader) alerts(rules *rulefmt.RuleGroups, tested string) {
	anchors, documented := Anchors(r.text(operationsFile)), 0
	for _, g := range rules.Groups {
		for _, a := range g.Rules {
			where := rulesFile + " " + a.Alert
			r.series(where, a.Expr)
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

// Anchors returns those of the headings of a Markdown text, as code hosts make them.
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
			r.series(dashboardFile+" "+p.Title, t.Expr)
		}
	}
	if len(d.Panels) == 0 || d.UID == "" {
		r.wrong(dashboardFile, "it has no panels, or no uid by which an import replaces it")
	}
}
