package node

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"github.com/keystead/keystead/hotkey/heat"
	"github.com/keystead/keystead/hotkey/plan"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/ring/epoch/table"
)

// HotConfig says which keys are hot, and what the node does about it.
type HotConfig struct {
	// Policy says which keys are hot; its zero fields mean the defaults. Stay is also how
	// long an object that the node has split stays so at least, and Max, at most
	// table.MaxSplits, at how many split objects in the cluster it splits no more by itself.
	heat.Policy
	// Split has the node split hot limits and counters by itself. Without it, they are
	// split by hand alone. Settings of the program have it on; here, false is off.
	Split bool
	// PerPart is how many operations a second a part is worth: an object with so many
	// times n gets n parts, within what the ring and the table allow. Default 1,000.
	PerPart float64
	// Whole are the limits and counters that are never split, also not by hand: each the
	// NAME of such an object, or the beginning of one and a *; after limit: or counter:
	// it is about that kind alone. At most MaxHotWhole. It is to be the same on all
	// nodes. Default: none.
	Whole []string
}

// Defaults and bounds of HotConfig.
const (
	DefaultHotPerPart = plan.DefaultPerPart // operations a second
	// MaxHotWhole bounds Whole, which is gone through for each object that may be split.
	MaxHotWhole = 1000
)

// WithDefaults fills in what is 0.
func (c HotConfig) WithDefaults() HotConfig {
	c.Policy = c.Policy.WithDefaults()
	c.PerPart = cmp.Or(c.PerPart, DefaultHotPerPart)
	return c
}

// Validate says what is wrong with it, beginning with the name of the field, in lower
// case and with hyphens.
func (c HotConfig) Validate() error {
	switch {
	case c.Max < 1 || c.Max > table.MaxSplits:
		return fmt.Errorf("max %d: choose 1 to %d", c.Max, table.MaxSplits)
	case !(c.PerPart >= 1 && c.PerPart <= 1e9):
		return fmt.Errorf("per-part %g: choose 1 to 1,000,000,000 operations a second", c.PerPart)
	case len(c.Whole) > MaxHotWhole:
		return fmt.Errorf("whole: %d names; at most %d are allowed\n  hint: give what their names begin with and a *, like batch-*", len(c.Whole), MaxHotWhole)
	}
	for _, pattern := range c.Whole {
		if err := checkWhole(pattern); err != nil {
			return fmt.Errorf("whole %q: %w", pattern, err)
		}
	}
	return c.Policy.Validate()
}

// wrongKinds are beginnings that are mistakes for "limit:" and "counter:".
var wrongKinds = []string{"limits:", "counters:", "lock:", "locks:"}

// checkWhole says what is wrong with an item of Whole.
func checkWhole(pattern string) error {
	_, name, _ := wholeName(pattern)
	if len(name) > owner.MaxName {
		return fmt.Errorf("no object has a name of more than %d bytes", owner.MaxName)
	}
	if pattern == "" || strings.HasSuffix(pattern, ":") && name == "" {
		return errors.New("a name is missing\n  hint: write NAME, or the beginning of one and a *, like batch-*, or limit:NAME or counter:NAME")
	}
	for _, w := range wrongKinds {
		if strings.HasPrefix(pattern, w) {
			return fmt.Errorf("%q is not a kind that can be split\n  hint: write limit:NAME or counter:NAME; for a limit that is called %q write limit:%s", strings.TrimSuffix(w, ":"), pattern, pattern)
		}
	}
	return nil
}

// wholeName takes an item of Whole apart. kind is "" for both; begins says that name is
// what the names of objects begin with.
func wholeName(pattern string) (kind, name string, begins bool) {
	name = pattern
	for _, k := range owner.Kinds() {
		if rest, ok := strings.CutPrefix(pattern, k.String()+":"); ok && k.Parts() {
			kind, name = k.String(), rest
		}
	}
	name, begins = strings.CutSuffix(name, "*")
	return kind, name, begins
}

// KeepsWhole says whether an object, of kind "limit" or "counter", is never to be split.
func (c HotConfig) KeepsWhole(kind, name string) bool {
	for _, pattern := range c.Whole {
		k, n, begins := wholeName(pattern)
		if (k == "" || k == kind) && (name == n || begins && strings.HasPrefix(name, n)) {
			return true
		}
	}
	return false
}
