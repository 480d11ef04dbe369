package home

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"github.com/keystead/keystead/hotkey/divide"
	"github.com/keystead/keystead/hotkey/heat"
	"github.com/keystead/keystead/hotkey/plan"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/ring/epoch/table"
)

// Settings say which keys are hot, and what a node does about it.
type Settings struct {
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
	// Exclude are the objects that are never split, also not by hand: each the NAME of such
	// an object, or the beginning of one and a *; after the name of a kind and a colon, like
	// limit:, it is about that kind alone. At most MaxExclude. It is to be the same on all
	// nodes. Default: none.
	Exclude []string
}

// MaxExclude bounds Exclude, which is gone through for each object that may be split.
const MaxExclude = 1000

// WithDefaults fills in what is 0.
func (s Settings) WithDefaults() Settings {
	s.Policy = s.Policy.WithDefaults()
	s.PerPart = cmp.Or(s.PerPart, plan.DefaultPerPart)
	return s
}

// Validate reports what is wrong with the settings, beginning with the name of the field, in lower
// case and with hyphens.
func (s Settings) Validate() error {
	switch {
	case s.Max < 1 || s.Max > table.MaxSplits:
		return fmt.Errorf("max %d: choose 1 to %d", s.Max, table.MaxSplits)
	case !(s.PerPart >= 1 && s.PerPart <= 1e9):
		return fmt.Errorf("per-part %g: choose 1 to 1,000,000,000 operations a second", s.PerPart)
	case len(s.Exclude) > MaxExclude:
		return fmt.Errorf("whole: %d names; at most %d are allowed\n  hint: give what their names begin with and a *, like batch-*", len(s.Exclude), MaxExclude)
	}
	for _, pattern := range s.Exclude {
		if err := checkExclude(pattern); err != nil {
			return fmt.Errorf("whole %q: %w", pattern, err)
		}
	}
	return s.Policy.Validate()
}

// checkExclude reports what is wrong with an item of Exclude.
func checkExclude(pattern string) error {
	_, name, _ := excluded(pattern)
	if len(name) > owner.MaxName {
		return fmt.Errorf("no object has a name of more than %d bytes", owner.MaxName)
	}
	if pattern == "" || strings.HasSuffix(pattern, ":") && name == "" {
		return errors.New("a name is missing\n  hint: write NAME, or the beginning of one and a *, like batch-*, or limit:NAME or counter:NAME")
	}
	word, _, _ := strings.Cut(pattern, ":")
	if misnamed(word) && word != pattern {
		return fmt.Errorf("%q is not a kind that can be split\n  hint: write limit:NAME or counter:NAME; for a limit that is called %q write limit:%s", word, pattern, pattern)
	}
	return nil
}

// misnamed reports whether a word is meant for a kind, but names none whose objects can be
// split: it is that of another kind, or the plural of any.
func misnamed(word string) bool {
	if _, ok := divide.KindOf(word); ok {
		return false
	}
	for _, k := range owner.Kinds() {
		if word == k.String() || word == k.String()+"s" {
			return true
		}
	}
	return false
}

// excluded parses an item of Exclude. kind is 0 for all kinds; begins means that name is
// what the names of objects begin with.
func excluded(pattern string) (kind owner.Kind, name string, begins bool) {
	name = pattern
	if word, rest, ok := strings.Cut(pattern, ":"); ok {
		if k, is := divide.KindOf(word); is {
			kind, name = k, rest
		}
	}
	name, begins = strings.CutSuffix(name, "*")
	return kind, name, begins
}

// KeepsWhole reports whether an object is never to be split.
func (s Settings) KeepsWhole(kind owner.Kind, name string) bool {
	for _, pattern := range s.Exclude {
		k, n, begins := excluded(pattern)
		if (k == 0 || k == kind) && (name == n || begins && strings.HasPrefix(name, n)) {
			return true
		}
	}
	return false
}
