package rls

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// loadText loads files with these contents, named a.yaml, b.yaml, …
func loadText(t testing.TB, opts LoadOptions, texts ...string) (*Rules, error) {
	t.Helper()
	dir := t.TempDir()
	var paths []string
	for i, text := range texts {
		path := filepath.Join(dir, fmt.Sprintf("%c.yaml", 'a'+i))
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		paths = append(paths, path)
	}
	return Load(paths, opts)
}

// What is wrong is said with its line, and with what to do.
func TestLoadRefuses(t *testing.T) {
	t.Parallel()
	const limit = "rate_limit: {unit: day, requests_per_unit: 1}"
	in := func(descriptor string) string { return "domain: d\ndescriptors:\n- " + descriptor + "\n" }
	rate := func(body string) string { return in("key: a\n  rate_limit:\n    " + body) }
	for _, tc := range []struct {
		name, text string
		line       int
		says       string // message and hint
	}{
		{"nothing", "", 0, "the file is empty"},
		{"comments only", "# nothing\n", 0, "the file is empty"},
		{"not YAML", "domain: [\n", 1, "this is not YAML: did not find expected node content"},
		{"a list", "- a\n", 1, "a file must be a map, found a list"},
		{"no domain", "descriptors: []\n", 1, "the domain is missing"},
		{"empty domain", "domain: ''\n", 1, "the domain is missing"},
		{"two documents", "domain: d\n---\ndomain: e\n", 2, "a second document starts here"},
		{"unknown field", "domain: d\ndescriptor: []\n", 2, `a file has no "descriptor"; it knows descriptors, domain`},
		{"unknown field of a descriptor", in("key: a\n  ratelimit: {}"), 4, `a descriptor has no "ratelimit"; it knows descriptors, detailed_metric, key`},
		{"unknown field of a limit", rate("requestsperunit: 1"), 5, `a rate_limit has no "requestsperunit"`},
		{"a field in the wrong place", rate("shadow_mode: true"), 5, "a rate_limit has no `shadow_mode`; it belongs in the descriptor, beside `rate_limit:`"},
		{"a field of a limit outside", in("key: a\n  unit: day"), 4, "a descriptor has no `unit`; it belongs in `rate_limit:`"},
		{"a field twice", in("key: a\n  key: b"), 4, "`key` comes a second time; the first is on line 3"},
		{"no key", in("value: a"), 3, "the descriptor has no key"},
		{"empty key", in("key: ''"), 3, "the descriptor has no key"},
		{"the same twice", in("key: a\n  value: b\n- key: a\n  value: b"), 5, `the descriptor "a_b" comes a second time; the first is in`},
		{"the same key twice", in("key: a\n- key: a"), 4, `the descriptor "a" comes a second time`},
		{"the same wildcard twice", in("key: a\n  value: b*\n- key: a\n  value: b*"), 5, `the descriptor "a_b*" comes a second time`},
		{"descriptors are a map", "domain: d\ndescriptors: {key: a}\n", 2, "descriptors must be a list, found a map"},
		{"a descriptor is text", in("a"), 3, "a descriptor must be a map"},
		{"key is a number with a point", in("key: 0.25"), 3, "`key` is the number 0.25, which can be written in several ways; put it in quotes"},
		{"a name is a number", in("key: a\n  0.25: b"), 4, `a descriptor has no "0.25"`},
		{"a name is a list", in("? [a]\n  : b"), 3, "a name was expected, found a list"},
		{"no unit", rate("requests_per_unit: 1"), 5, "the unit is missing"},
		{"unknown unit", rate("{unit: foo, requests_per_unit: 1}"), 5, `the unit "foo" is unknown; choose second, minute`},
		{"the unit unknown", rate("{unit: unknown, requests_per_unit: 1}"), 5, `the unit "unknown" is unknown`},
		{"no number", rate("unit: day"), 5, "requests_per_unit is missing; write"},
		{"a negative number", rate("{unit: day, requests_per_unit: -1}"), 5, "takes a whole number from 0 to 4294967295, found \"-1\""},
		{"too large a number", rate("{unit: day, requests_per_unit: 4294967296}"), 5, "takes a whole number"},
		{"a number with a point", rate("{unit: day, requests_per_unit: 1.5}"), 5, "takes a whole number"},
		{"a number in quotes", rate("{unit: day, requests_per_unit: '1'}"), 5, "takes a whole number"},
		{"unlimited with a unit", rate("{unit: day, unlimited: true}"), 5, "the limit is unlimited and has a unit"},
		{"unlimited with settings", rate("{unlimited: true, keystead: {}}"), 5, "there is nothing to set"},
		{"an empty limit", in("key: a\n  rate_limit:"), 4, "a rate_limit must be a map, found nothing"},
		{"truth is a word", in("key: a\n  shadow_mode: maybe"), 4, "`shadow_mode` takes true or false, found \"maybe\""},
		{"replaces itself", rate("{unit: day, requests_per_unit: 1, name: x, replaces: [{name: x}]}"), 5, `the limit "x" replaces itself`},
		{"replaces nothing", rate("{unit: day, requests_per_unit: 1, replaces: [{name: ''}]}"), 5, "the entry of replaces has no name"},
		{"replaces text", rate("{unit: day, requests_per_unit: 1, replaces: x}"), 5, "replaces must be a list"},
		{"share_threshold without a wildcard", in("key: a\n  value: b\n  share_threshold: true"), 3, "share_threshold goes with a value that has a `*`"},
		{"the same wildcard twice, in the middle", in("key: a\n  value: b*c\n- key: a\n  value: b*c"), 5, `the descriptor "a_b*c" comes a second time`},
		{"metadata is a list", in("key: a\n  metadata: [a]"), 4, "`metadata` must be a map, found a list"},
		{"metadata is a text", in("key: a\n  metadata: a"), 4, "`metadata` must be a map, found \"a\""},
		{"metadata of a limit", rate("metadata: {a: b}"), 5, "a rate_limit has no `metadata`; it belongs in the descriptor, beside `rate_limit:`"},
		{"metadata with a name twice", in("key: a\n  metadata:\n    a: 1\n    b: 2\n    a: 3"), 7, "`a` comes a second time; the first is on line 5"},
		{"metadata with a list as a name", in("key: a\n  metadata: {? [a] : b}"), 4, "a name was expected, found a list"},
		{"metadata too deep", in("key: a\n  metadata: {a: " + strings.Repeat("[", MaxDepth) + strings.Repeat("]", MaxDepth) + "}"), 4, "`metadata` is nested more than 16 deep"},
		{"metadata in itself", in("key: a\n  metadata: &x\n    a: *x"), 4, "`metadata` is nested more than 16 deep"},
		{"metadata that merges itself", in("key: a\n  metadata: &x\n    <<: *x"), 4, "`metadata` is nested more than 16 deep"},
		{"metadata that merges a text", in("key: a\n  metadata:\n    <<: b"), 5, "`<<` merges maps, found \"b\""},
		{"metadata too large", in("key: a\n  metadata: {a: " + strings.Repeat("x", MaxMetadata) + "}"), 4, "`metadata` has more than 16384 bytes; Envoy gets it with every answer"},
		{"metadata with too much in it", in("key: a\n  metadata: {a: [" + strings.Repeat(",~", MaxMetadata)[1:] + "]}"), 4, "`metadata` has more than 16384 bytes"},
		{"metadata that is not text", in("key: a\n  metadata: {a: !!binary /w==}"), 4, "a value of `metadata` is a text, a number, true, false, a list or a map"},
		{"metadata with names of no text", in("key: a\n  metadata: {a: {? !!binary /w== : b}}"), 4, "takes a text"},
		{"unknown algorithm", rate("{unit: day, requests_per_unit: 1, keystead: {algorithm: leaky}}"), 5, "`algorithm` is \"leaky\"; choose fixed_window, token_bucket or sliding_window"},
		{"a burst of a window", rate("{unit: day, requests_per_unit: 1, keystead: {burst: 5}}"), 5, "burst goes with token buckets only"},
		{"aligned, of a bucket", rate("{unit: day, requests_per_unit: 1, keystead: {algorithm: token_bucket, aligned: true}}"), 5, "aligned goes with fixed windows only"},
		{"no burst", rate("{unit: day, requests_per_unit: 1, keystead: {algorithm: token_bucket, burst: 0}}"), 5, "burst is 0"},
		{"owed and given back", rate("{unit: day, requests_per_unit: 1, keystead: {all_or_nothing: true, overdraft: true}}"), 5, "choose one of them"},
		{"nothing and all", rate("{unit: day, requests_per_unit: 1, keystead: {all_or_nothing: true, over_limit: spend_rest}}"), 5, "choose one of them"},
		{"unknown policy", rate("{unit: day, requests_per_unit: 1, keystead: {on_failure: shrug}}"), 5, "choose error, allow or deny"},
		{"too deep", "domain: d\n" + deep(MaxDepth+1), 3 + 2*MaxDepth, "nested more than 16 deep"},
		{"an alias of itself", "domain: d\ndescriptors: &x\n- key: a\n  descriptors: *x\n", 2, "nested more than 16 deep"},
		{"maps that merge themselves", in("&x\n  key: a\n  <<: *x"), 3, "maps are merged more than 16 deep"},
		{"a limit of its own twice", in("key: a\n  " + limit + "\n  " + limit), 5, "`rate_limit` comes a second time"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			rules, err := loadText(t, LoadOptions{}, tc.text)
			var p Problems
			if !errors.As(err, &p) || rules != nil {
				t.Fatalf("loaded: %v %v", rules, err)
			}
			if got := p[0].Message + "; " + p[0].Hint; !strings.Contains(got, tc.says) || p[0].Line != tc.line {
				t.Errorf("line %d: %s\nwant line %d: …%s…", p[0].Line, got, tc.line, tc.says)
			}
		})
	}
}

// deep is n levels of descriptors, of two lines each.
func deep(n int) string {
	var b strings.Builder
	for i := range n {
		pad := strings.Repeat(" ", 2*i)
		fmt.Fprintf(&b, "%sdescriptors:\n%s- key: k\n", pad, pad)
	}
	return b.String()
}

// What upstream takes is taken, however it is written.
func TestLoadTakes(t *testing.T) {
	t.Parallel()
	rules, err := loadText(t, LoadOptions{}, `
domain: d
descriptors:
- key: 404
  value: 10
  rate_limit: &daily
    unit: DAY
    requests_per_unit: 5
- key: yes
  value: true
  rate_limit:
    <<: *daily
    requests_per_unit: 6
- key: date
  value: 2026-01-01
  rate_limit: *daily
- key: nothing
  value:
  descriptors:
- {key: j, "value": "x y", "shadow_mode": yes, "rate_limit": {"unit": "Year", "requests_per_unit": 0x10}}
- key: free
  rate_limit: {unlimited: true, requests_per_unit: 5, replaces: }
- key: own
  rate_limit:
    unit: second
    requests_per_unit: 3
    keystead: {algorithm: token_bucket, burst: 9, all_or_nothing: true, on_failure: deny}
`)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, l := range rules.Limits() {
		got = append(got, fmt.Sprintf("%s %s %s %d", l.Path, l.Rate(), l.Algorithm, l.Line))
	}
	want := []string{"404_10 5/day fixed_window 6", "yes_true 6/day fixed_window 12", "date_2026-01-01 5/day fixed_window 16",
		"j_x y 16/year fixed_window 20", "free unlimited fixed_window 22", "own 3/second token_bucket 25"}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	own := rules.limits[len(rules.limits)-1]
	if own.Burst != 9 || !own.AllOrNothing || own.SpendRest || own.OnFailure != FailDeny || own.period.Seconds() != 1 {
		t.Errorf("%+v", own)
	}
	if !slices.Equal(rules.Domains(), []string{"d"}) || len(rules.Files()) != 1 {
		t.Errorf("%v %v", rules.Domains(), rules.Files())
	}
}

// Configurations of the shapes that upstream tests, and whether it takes them.
func TestLoadAsUpstream(t *testing.T) {
	t.Parallel()
	const day = "rate_limit: {unit: day, requests_per_unit: 1}"
	domain := func(descriptors ...string) string {
		return "domain: d\ndescriptors:\n- " + strings.Join(descriptors, "\n- ") + "\n"
	}
	for _, tc := range []struct {
		name  string
		files []string
		merge bool
		says  string // "" = it is taken
	}{
		{name: "levels, with and without limits", files: []string{domain("{key: a, value: b, descriptors: [{key: c, "+day+"}, {key: c, value: d, "+day+"}, {key: e, descriptors: [{key: f}]}]}", "{key: g, "+day+"}")}},
		{name: "shadow_mode", files: []string{domain("{key: a, shadow_mode: true, "+day+"}", "{key: a, value: b, shadow_mode: false, "+day+"}", "{key: c, shadow_mode: true}")}},
		{name: "wildcards", files: []string{domain("{key: a, value: b*, "+day+"}", "{key: a, value: b*c, "+day+"}", "{key: a, value: b*c*d, "+day+"}", "{key: e, value: f, descriptors: [{key: a, value: g*, "+day+"}]}")}},
		{name: "share_threshold", files: []string{domain("{key: a, value: b/*, share_threshold: true, value_to_metric: true, "+day+"}", "{key: c, value: x*y, share_threshold: true, descriptors: [{key: a, value: x*y*z, share_threshold: true, detailed_metric: true, "+day+"}, {key: b, value: q*, share_threshold: false, "+day+"}]}")}},
		{name: "metadata", files: []string{domain("{key: a, "+day+", metadata: {name: one}}", "{key: b, quota_mode: true, "+day+", metadata: {service: {name: two, 7: [1, 2.5, x]}}}", "{key: c, metadata: }", "{key: d, metadata: {}}")}},
		{name: "domains that are merged", files: []string{domain("{key: a, " + day + "}"), domain("{key: b, " + day + "}")}, merge: true},
		{name: "replaces and unlimited", files: []string{domain("{key: a, rate_limit: {unit: minute, requests_per_unit: 0, name: x, replaces: [{name: y}, {name: z}]}}", "{key: b, rate_limit: {unlimited: true, name: y}}")}},
		{name: "a domain twice", files: []string{domain("{key: a}"), domain("{key: b}")}, says: `the domain "d" comes a second time`},
		{name: "a descriptor twice in merged domains", files: []string{domain("{key: a}"), domain("{key: a}")}, merge: true, says: `the descriptor "a" comes a second time`},
		{name: "a descriptor twice", files: []string{domain("{key: a, value: b}", "{key: a, value: b}")}, says: "comes a second time"},
		{name: "no domain", files: []string{"domain:\ndescriptors: []\n"}, says: "the domain is missing"},
		{name: "no key", files: []string{domain("{value: b}")}, says: "the descriptor has no key"},
		{name: "an unknown unit", files: []string{domain("{key: a, rate_limit: {unit: blink, requests_per_unit: 5}}")}, says: "the unit"},
		{name: "unlimited with a unit", files: []string{domain("{key: a, rate_limit: {unlimited: true, unit: day, requests_per_unit: 5}}")}, says: "the limit is unlimited and has a unit"},
		{name: "a limit that replaces itself", files: []string{domain("{key: a, rate_limit: {unit: day, requests_per_unit: 1, name: x, replaces: [{name: x}]}}")}, says: "replaces itself"},
		{name: "a limit that replaces no name", files: []string{domain("{key: a, rate_limit: {unit: day, requests_per_unit: 1, replaces: [{name: ''}]}}")}, says: "has no name"},
		{name: "not YAML", files: []string{"domain: d\ndescriptors:\n- key: a\n   value: b\n"}, says: "this is not YAML"},
		{name: "a misspelled name", files: []string{domain("{key: a, ratelimit: {unit: day, requests_per_unit: 1}}")}, says: `no "ratelimit"`},
		{name: "a misspelled name of a limit", files: []string{domain("{key: a, rate_limit: {unit: day, requests_per_units: 1}}")}, says: `no "requests_per_units"`},
		{name: "a name that is no text", files: []string{domain("{key: a, 0.25: b}")}, says: `no "0.25"`},
		{name: "a list of texts", files: []string{domain("a")}, says: "a descriptor must be a map"},
	} {
		_, err := loadText(t, LoadOptions{MergeDomains: tc.merge}, tc.files...)
		if tc.says == "" && err != nil || tc.says != "" && (err == nil || !strings.Contains(err.Error(), tc.says)) {
			t.Errorf("%s: %v, want %q", tc.name, err, tc.says)
		}
	}
}

// Several files add to one domain only if they may.
func TestMergeDomains(t *testing.T) {
	t.Parallel()
	first := "domain: d\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1}}]\n"
	second := "domain: d\ndescriptors: [{key: b, rate_limit: {unit: day, requests_per_unit: 2}}]\n"
	if _, err := loadText(t, LoadOptions{}, first, second); err == nil || !strings.Contains(err.Error(), `b.yaml:1: the domain "d" comes a second time`) {
		t.Errorf("%v", err)
	}
	rules, err := loadText(t, LoadOptions{MergeDomains: true}, first, second)
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]uint32{"a": 1, "b": 2} {
		if l, _ := rules.domains["d"].find([]entry{{key, "x"}}, nil); l == nil || l.RequestsPerUnit != want {
			t.Errorf("%s: %+v", key, l)
		}
	}
	if _, err := loadText(t, LoadOptions{MergeDomains: true}, first, first); err == nil || !strings.Contains(err.Error(), `b.yaml:2: the descriptor "a" comes a second time`) {
		t.Errorf("%v", err)
	}
}

// What is too large is refused, and does not take long.
func TestLoadBounds(t *testing.T) {
	t.Parallel()
	var many strings.Builder
	many.WriteString("domain: d\ndescriptors:\n")
	for i := range MaxDescriptors + 1 {
		fmt.Fprintf(&many, "- {key: k%d}\n", i)
	}
	// Each level repeats the one below it ten times: ten to the tenth in all.
	laughs := "domain: d\ndescriptors:\n- key: a0\n  descriptors: &l0 [{key: x0}]\n"
	for i := 1; i <= 10; i++ {
		one := fmt.Sprintf("{key: %%d, descriptors: *l%d}", i-1)
		var list []string
		for n := range 10 {
			list = append(list, fmt.Sprintf(one, n))
		}
		laughs += fmt.Sprintf("- key: a%d\n  descriptors: &l%d [%s]\n", i, i, strings.Join(list, ", "))
	}
	var wrong strings.Builder
	wrong.WriteString("domain: d\ndescriptors:\n")
	for range 100 {
		wrong.WriteString("- {kee: k}\n")
	}
	for _, tc := range []struct{ name, text, says string }{
		{"bytes", "domain: d\n#" + strings.Repeat("x", MaxFileSize), "more than 4194304 bytes"},
		{"descriptors", many.String(), "more than 50000 descriptors"},
		{"aliases", laughs, "more than 50000 descriptors"},
	} {
		rules, err := loadText(t, LoadOptions{}, tc.text)
		var p Problems
		if !errors.As(err, &p) || rules != nil || len(p) != 1 || !strings.Contains(p[0].Message, tc.says) {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
	var p Problems
	if _, err := loadText(t, LoadOptions{}, wrong.String()); !errors.As(err, &p) || len(p) != maxProblems {
		t.Errorf("%d problems of 100", len(p))
	}
	dir := t.TempDir()
	for i := range MaxFiles + 1 {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%d.yaml", i)), []byte(fmt.Sprintf("domain: d%d\n", i)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Load([]string{dir}, LoadOptions{}); err == nil || !strings.Contains(err.Error(), "at most 256 are read") {
		t.Errorf("files: %v", err)
	}
}

// Metadata that repeats itself ten to the many times is refused as well, by values and
// by maps that are merged.
func TestMetadataBounds(t *testing.T) {
	t.Parallel()
	bomb := func(levels int, what string) string {
		text := "domain: d\ndescriptors:\n- {key: k0, metadata: &m0 {x: 1}}\n"
		for i := 1; i <= levels; i++ {
			text += fmt.Sprintf("- {key: k%d, metadata: &m%d %s}\n", i, i, strings.ReplaceAll(what, "*m", fmt.Sprintf("*m%d", i-1)))
		}
		return text
	}
	values := bomb(15, "{a: *m, b: *m, c: *m, d: *m}")
	merges := bomb(7, "{<<: [*m"+strings.Repeat(", *m", 40)+"]}")
	for text, says := range map[string]string{values: "`metadata` has more than 16384 bytes", merges: "with what its aliases stand for the file is too large"} {
		var p Problems
		if _, err := loadText(t, LoadOptions{}, text); !errors.As(err, &p) || !strings.Contains(p[0].Message, says) {
			t.Errorf("%s: %v", says, err)
		}
	}
}

// FuzzLoad: whatever is in a file is refused with a place, or understood.
func FuzzLoad(f *testing.F) {
	for _, seed := range []string{
		"", "domain: d\n", "domain: d\ndescriptors:\n- key: a\n  value: b*\n  share_threshold: true\n  rate_limit: {unit: day, requests_per_unit: 1}\n",
		"domain: d\ndescriptors: &x\n- key: a\n  descriptors: *x\n", "domain: d\ndescriptors: [{<<: &m {key: a, <<: *m}}]\n", "a: &a [*a]\n<<: *a\n",
		"domain: d\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1, name: n, replaces: [{name: m}], keystead: {algorithm: token_bucket, burst: 3, on_failure: allow}}}]",
		"domain: d\ndescriptors: [{key: a, value: b*c*, metadata: &m {x: [1, ~, yes, 2026-01-01], <<: [{y: {z: !!binary aGk=}}], w: *m}}]",
		"domain: !!binary aGk=\ndescriptors: !!set {a, b}\n", "---\n---\n", "? a\n: b\n", "domain: d\ndescriptors: [{key: a, shadow_mode: on, quota_mode: n, detailed_metric: ~}]",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		l := &loader{rules: &Rules{domains: map[string]*level{}}}
		l.file("f.yaml", data)
		if len(l.problems) > maxProblems {
			t.Fatalf("%d problems", len(l.problems))
		}
		for _, p := range l.problems {
			if p.Message == "" || p.File == "" || p.Line < 0 {
				t.Errorf("%+v", p)
			}
		}
		if len(l.problems) > 0 {
			return
		}
		if len(l.rules.domains) != 1 {
			t.Fatalf("%d domains", len(l.rules.domains))
		}
		for _, lim := range l.rules.limits {
			if !lim.Unlimited && lim.period == 0 || lim.Path == "" || lim.capacity() > maxBurst {
				t.Errorf("%+v", lim)
			}
		}
	})
}
