package rls

import (
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// A wildcard stands for what it does as a regular expression in which each star is any
// text.
func TestWildcardFits(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		pattern := rapid.StringMatching(`[ab*]{0,3}\*[ab*]{0,5}`).Draw(t, "pattern")
		value := rapid.StringMatching(`[ab]{0,8}`).Draw(t, "value")
		parts := strings.Split(pattern, "*")
		for i := range parts {
			parts[i] = regexp.QuoteMeta(parts[i])
		}
		w := newWildcard("k", pattern, nil)
		if got, want := w.fits(value), regexp.MustCompile(`^`+strings.Join(parts, ".*")+`$`).MatchString(value); got != want {
			t.Errorf("%q stands for %q: %v, want %v", pattern, value, got, want)
		}
	})
}

// Two maps of metadata that are merged stay as they were.
func TestMergedIsNew(t *testing.T) {
	t.Parallel()
	rules, err := loadText(t, LoadOptions{}, `
domain: d
descriptors:
- {key: a, metadata: {m: {x: 1}, s: a}, rate_limit: {unit: day, requests_per_unit: 1}}
- {key: b, metadata: {m: {y: 2}, s: b}, rate_limit: {unit: day, requests_per_unit: 1}}
`)
	if err != nil {
		t.Fatal(err)
	}
	a, b := rules.limits[0].Metadata, rules.limits[1].Metadata
	before := a.String() + b.String()
	if all := merged(a.Fields, b.Fields); len(all["m"].GetStructValue().GetFields()) != 2 || all["s"].GetStringValue() != "a" {
		t.Errorf("%v", all)
	}
	if after := a.String() + b.String(); after != before {
		t.Errorf("%s, before %s", after, before)
	}
}
