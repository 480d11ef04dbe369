package rls

import (
	"errors"
	"strings"
	"testing"
	"time"
)

// TestLoadSlots: what makes no sense of slots and policies is refused, with the name that is wrong.
func TestLoadSlots(t *testing.T) {
	t.Parallel()
	for text, says := range map[string]string{
		"{keystead: {slots: 20, hold: 10m}}":                                     "",
		"{name: n, replaces: [{name: m}], keystead: {slots: 1, hold: 10ms}}":     "",
		"{keystead: {slots: 8192, hold: 1h, on_failure: deny}}":                  "",
		"{keystead: {policy: a/b-c_d.e, overdraft: true, on_failure: allow}}":    "",
		"{keystead: {policy: a, all_or_nothing: true}}":                          "",
		"{keystead: {slots: 20}}":                                                "the hold is missing",
		"{keystead: {hold: 10m}}":                                                "hold goes with slots only",
		"{keystead: {slots: 0, hold: 10m}}":                                      "there are 0 slots",
		"{keystead: {slots: 8193, hold: 10m}}":                                   "from 0 to 8192",
		"{keystead: {slots: 1, hold: 9ms}}":                                      "takes a time from 10ms to 24h0m0s",
		"{keystead: {slots: 1, hold: 25h}}":                                      "takes a time from 10ms to 24h0m0s",
		"{keystead: {slots: 1, hold: 61m}}":                                      "this node holds nothing for longer than 1h0m0s",
		"{keystead: {slots: 1, hold: 10}}":                                       "takes a time",
		"{unit: day, keystead: {slots: 1, hold: 1m}}":                            "unit and requests_per_unit do not go with `slots:`",
		"{requests_per_unit: 5, keystead: {policy: a}}":                          "unit and requests_per_unit do not go with `policy:`",
		"{keystead: {slots: 1, hold: 1m, policy: a}}":                            "slots and policy do not go together",
		"{keystead: {slots: 1, hold: 1m, algorithm: token_bucket}}":              "do not go with `slots:`",
		"{keystead: {policy: a, burst: 5}}":                                      "do not go with `policy:`",
		"{keystead: {policy: a, over_limit: spend_rest}}":                        "do not go with `policy:`",
		"{keystead: {policy: a, aligned: true}}":                                 "do not go with `policy:`",
		"{keystead: {slots: 1, hold: 1m, overdraft: true}}":                      "do not go with slots",
		"{keystead: {slots: 1, hold: 1m, all_or_nothing: true}}":                 "do not go with slots",
		"{keystead: {policy: a, all_or_nothing: true, overdraft: true}}":         "choose one of them",
		"{keystead: {policy: }}":                                                 "`policy` takes the name of a policy",
		"{keystead: {policy: -a}}":                                               "`policy` takes the name of a policy",
		"{unlimited: true, keystead: {slots: 1, hold: 1m}}":                      "the limit is unlimited",
		"{keystead: {slots: 1, hold: 1m}}\n  value: x":                           "leave the value out",
		"{keystead: {slots: 1, hold: 1m}}\n  value: x*\n  share_threshold: true": "leave the value out",
		"{keystead: {slots: 1, hold: 1m}}\n  detailed_metric: true":              "detailed_metric and value_to_metric do not go with slots",
		"{keystead: {slots: 1, hold: 1m}}\n  value_to_metric: true":              "detailed_metric and value_to_metric do not go with slots",
	} {
		_, err := loadText(t, LoadOptions{MaxHold: time.Hour}, "domain: d\ndescriptors:\n- key: a\n  rate_limit: "+text+"\n")
		var p Problems
		switch {
		case says == "" && err != nil:
			t.Errorf("%s: %v", text, err)
		case says != "" && (!errors.As(err, &p) || !strings.Contains(err.Error(), says) || p[0].Line == 0):
			t.Errorf("%s: %v, want %s", text, err, says)
		}
	}
}

// TestMatchSlots: all requests have one key, and it is that of no other descriptor.
func TestMatchSlots(t *testing.T) {
	t.Parallel()
	rules, err := loadText(t, LoadOptions{}, `
domain: d
descriptors:
- key: team
  rate_limit: {keystead: {policy: per-team}}
  descriptors:
  - key: request
    rate_limit: {keystead: {slots: 3, hold: 90s}}
`)
	if err != nil {
		t.Fatal(err)
	}
	_, a, name := rules.Match("d", [][2]string{{"team", "x"}, {"request", "1"}})
	l, b, _ := rules.Match("d", [][2]string{{"team", "x"}, {"request", "22"}})
	if a != b || a != "1:d4:team1:x7:request1**" || name != slotHolds || l.Rate() != "3 at a time, 1m30s each" || l.How() != "slots" {
		t.Errorf("%q %q %q %s", a, b, name, l.Rate())
	}
	if l, key, name := rules.Match("d", [][2]string{{"team", "x"}}); key != "1:d4:team1:x" || name != "per-team" || l.Rate() != "per-team" || l.How() != "policy" {
		t.Errorf("%q %q", key, name)
	}
}
