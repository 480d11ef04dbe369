package home

import (
	"strings"
	"testing"

	"github.com/keystead/keystead/hotkey/heat"
	"github.com/keystead/keystead/owner"
)

func TestKeepsWhole(t *testing.T) {
	c := Settings{Exclude: []string{"api", "batch-*", "limit:web", "counter:x*", "limit:limits:odd", "*e*"}}
	if err := c.WithDefaults().Validate(); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		kind owner.Kind
		name string
		want bool
	}{
		{owner.KindLimit, "api", true}, {owner.KindCounter, "api", true}, {owner.KindLimit, "api2", false}, {owner.KindLimit, "ap", false},
		{owner.KindLimit, "batch-", true}, {owner.KindCounter, "batch-7", true}, {owner.KindLimit, "batch", false},
		{owner.KindLimit, "web", true}, {owner.KindCounter, "web", false}, {owner.KindLimit, "limit:web", false},
		{owner.KindCounter, "xy", true}, {owner.KindCounter, "x", true}, {owner.KindLimit, "xy", false},
		{owner.KindLimit, "limits:odd", true}, {owner.KindCounter, "limits:odd", false},
		{owner.KindLimit, "*e", true}, {owner.KindLimit, "*every", true}, {owner.KindLimit, "every", false},
	} {
		if got := c.KeepsWhole(tc.kind, tc.name); got != tc.want {
			t.Errorf("%s %q: %v", tc.kind, tc.name, got)
		}
	}
	if !(Settings{Exclude: []string{"limit:*"}}).KeepsWhole(owner.KindLimit, "") || (Settings{}).KeepsWhole(owner.KindLimit, "limit") {
		t.Error("all limits, or none")
	}
}

func TestSettingsRefuse(t *testing.T) {
	long := strings.Repeat("x", 129)
	for _, tc := range []struct {
		says string
		with Settings
	}{
		{"max 101: choose 1 to 100", Settings{Policy: heat.Policy{Max: 101}}},
		{"floor 0.5:", Settings{Policy: heat.Policy{Floor: 0.5}}},
		{"per-part -1:", Settings{PerPart: -1}},
		{`whole "": a name is missing`, Settings{Exclude: []string{"api", ""}}},
		{`whole "counter:": a name is missing`, Settings{Exclude: []string{"counter:"}}},
		{"more than 128 bytes", Settings{Exclude: []string{"limit:" + long + "*"}}},
		{`"lock" is not a kind that can be split`, Settings{Exclude: []string{"lock:door"}}},
		{"whole: 1001 names", Settings{Exclude: make([]string, MaxExclude+1)}},
	} {
		if err := tc.with.WithDefaults().Validate(); err == nil || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%v, want %q", err, tc.says)
		}
	}
	fits := Settings{Exclude: []string{"limit:" + long[:128] + "*", "*", "limit:lock:door"}}.WithDefaults()
	if err := fits.Validate(); err != nil || fits.PerPart != 1000 || fits.Max != 100 || fits.Split {
		t.Errorf("%+v, %v", fits, err)
	}
}
