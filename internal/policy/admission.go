package policy

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/internal/fallback"
	"github.com/keystead/keystead/owner/limit"
)

// Bounds of admission policies.
const (
	MaxFields  = 16  // that an admission policy knows
	MaxRules   = 64  // demands of an admission policy
	MaxDemands = 16  // that one request selects
	MaxValue   = 512 // bytes of the value of a field

	maxKey  = 512 // bytes of a key, as of all objects
	maxName = 128 // bytes of a name
)

// Admission says which limits, counters and slots of one key a request needs, by its fields.
type Admission struct {
	Name, About string
	Line        int
	Fields      []string // that a request may have, and templates and conditions name
	Key         Template
	Demands     []*Rule

	spec string // all that it says
}

// Of is what a demand is of.
type Of uint8

const (
	OfLimit Of = iota
	OfCounter
	OfSlots
)

// String returns the name of the field that says it.
func (o Of) String() string { return [...]string{"limit", "counter", "slots"}[o] }

// Rule is a demand of the requests that it is for.
type Rule struct {
	Name  Template
	When  map[string][]string // by field: the values for which it is; "*" is any
	Of    Of
	Limit Policy // of OfLimit
	Max   int64  // of the others
	Cost  uint64 // of a request; 0 = it is that of Per
	Per   string // the amount that a request says it costs
	Clamp uint32 // percent of the capacity that an estimate may reserve; 0 = none
	Line  int

	says int // the line of a fallback of its own; 0 = it has none, or that of a policy
}

// Falls reports whether the demand can be decided without the owner of the key.
func (r *Rule) Falls() bool { return r.Of == OfLimit && r.Limit.Fallback.Source != fallback.None }

// Selected is what an admission policy demands of a request.
type Selected struct {
	Key     string
	Demands []Demand
}

// Demand is one of the demands.
type Demand struct {
	*Rule
	Name string
	Cost uint64
}

// Params returns the limit that is demanded.
func (r *Rule) Params() limit.Params { return r.Limit.Params }

// Select returns what is demanded of a request with these fields, which costs these amounts. Of
// rules with one name, the first that is for the request counts. The error is of reason Invalid.
func (a *Admission) Select(fields map[string]string, amounts map[string]uint64) (Selected, error) {
	if err := a.judge(fields, amounts); err != nil {
		return Selected{}, err
	}
	s := Selected{Demands: make([]Demand, 0, min(len(a.Demands), MaxDemands))}
	var err error
	if s.Key, err = a.Key.fill(a, fields, true); err != nil {
		return Selected{}, err
	}
	for _, r := range a.Demands {
		if !r.is(fields) || slices.ContainsFunc(s.Demands, func(d Demand) bool { return d.Rule.Name.text == r.Name.text }) {
			continue
		}
		d := Demand{Rule: r, Cost: r.Cost}
		if d.Name, err = r.Name.fill(a, fields, false); err != nil {
			return Selected{}, err
		}
		if r.Per != "" {
			n, told := amounts[r.Per]
			if !told || n == 0 {
				return Selected{}, &failure.Error{Reason: failure.Invalid, Field: "amounts." + r.Per,
					Message: fmt.Sprintf("is missing: %q is charged by it", d.Name), Hint: "say what the request will cost, 1 at least: an estimate, if it is settled later"}
			}
			d.Cost = n
		}
		if s.Demands = append(s.Demands, d); len(s.Demands) > MaxDemands {
			return Selected{}, failure.Invalidf("fields", "select more than %d demands of the admission policy %q", MaxDemands, a.Name)
		}
	}
	return s, nil
}

// Falls reports whether the request can be decided without the owner of the key: if each demand can, by its own fallback.
func (s *Selected) Falls() bool {
	return !slices.ContainsFunc(s.Demands, func(d Demand) bool { return !d.Falls() })
}

// judge reports a field or an amount of a request that the policy does not know.
func (a *Admission) judge(fields map[string]string, amounts map[string]uint64) error {
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if !slices.Contains(a.Fields, name) {
			return &failure.Error{Reason: failure.Invalid, Field: "fields",
				Message: fmt.Sprintf("has %.64q, which the admission policy %q does not know", name, a.Name), Hint: "it knows " + strings.Join(a.Fields, ", ")}
		}
		if v := fields[name]; len(v) > MaxValue {
			return failure.Invalidf("fields."+name, "has %d bytes; at most %d are allowed", len(v), MaxValue)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(amounts)) {
		if !slices.ContainsFunc(a.Demands, func(r *Rule) bool { return r.Per == name }) {
			hint := "its demands are charged by " + strings.Join(a.Amounts(), ", ")
			if len(a.Amounts()) == 0 {
				hint = "leave it out: its demands are charged by no amount"
			}
			return &failure.Error{Reason: failure.Invalid, Field: "amounts",
				Message: fmt.Sprintf("has %.64q, by which no demand of the admission policy %q is charged", name, a.Name), Hint: hint}
		}
	}
	return nil
}

// is reports whether the rule is for a request.
func (r *Rule) is(fields map[string]string) bool {
	for field, values := range r.When {
		v, told := fields[field]
		if !told || v == "" || !slices.Contains(values, v) && !slices.Contains(values, anyValue) {
			return false
		}
	}
	return true
}

const anyValue = "*"

// Amounts returns the names of what requests say they cost, in order.
func (a *Admission) Amounts() []string {
	var names []string
	for _, r := range a.Demands {
		if r.Per != "" && !slices.Contains(names, r.Per) {
			names = append(names, r.Per)
		}
	}
	slices.Sort(names)
	return names
}

// Short says in a few words what a rule demands.
func (r *Rule) Short() string {
	text := r.text()
	if r.Per != "" {
		text += ", by " + r.Per
	} else if r.Cost != 1 {
		text += fmt.Sprintf(", %d each", r.Cost)
	}
	if r.Clamp != 0 {
		text += fmt.Sprintf(", %d %% reserved at most", r.Clamp)
	}
	if r.Falls() {
		text += fmt.Sprintf(", or %s after %s", r.Limit.FallbackName(), Span(r.Limit.Fallback.Total()))
	}
	return text
}

// Explain says what is demanded of a request, in words and numbers.
func (s Selected) Explain(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "Key %s\n", s.Key)
	for i := range s.Demands {
		d := &s.Demands[i]
		fmt.Fprintf(&b, "  %s: %d of %s\n", d.Name, d.Cost, d.Rule.text())
		if when := d.condition(); when != "" {
			fmt.Fprintf(&b, "    because %s (line %d)\n", when, d.Line)
		}
		if d.Clamp != 0 {
			fmt.Fprintf(&b, "    at most %d %% of the capacity are reserved\n", d.Clamp)
		}
		if d.Of != OfLimit {
			continue
		}
		for _, x := range d.Limit.Bounds() {
			fmt.Fprintf(&b, "    in any time shorter than %s at most %s, and once %d more after a loss\n", Span(x.Time), x.AtMost, d.Limit.AfterLoss())
		}
	}
	for _, line := range s.fallbackWords() {
		fmt.Fprintf(&b, "  %s\n", line)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Budget returns for how long the owner is waited for, with the time for the answer, if the request Falls: the shortest
// time of all demands.
func (s *Selected) Budget() time.Duration {
	least := s.Demands[0].Limit.Fallback.Total()
	for i := range s.Demands {
		least = min(least, s.Demands[i].Limit.Fallback.Total())
	}
	return least
}

// fallbackWords says what is admitted while the owner cannot be asked.
func (s *Selected) fallbackWords() []string {
	for i := range s.Demands {
		if d := &s.Demands[i]; !d.Falls() {
			return []string{fmt.Sprintf("The owner cannot be asked: an error, and nothing is admitted (%s has no fallback).", d.Name)}
		}
	}
	lines := []string{fmt.Sprintf("The owner cannot be asked within %s: each node decides by itself, and admits if all of these do, beside the bounds above,", Span(s.Budget()))}
	for i := range s.Demands {
		d := &s.Demands[i]
		each := d.Limit.WithoutOwner()
		lines = append(lines, fmt.Sprintf("  %s: at most %d in any time shorter than %s (%s), so 3 nodes %s, 5 nodes %s", d.Name, each.AtMost, Span(each.Time), d.Limit.FallbackName(), each.Of(3), each.Of(5)))
	}
	return append(lines, "  There is no hold then, and nothing to settle. Answers say so (degraded).")
}

// text is what there is.
func (r *Rule) text() string {
	if r.Of == OfLimit {
		return r.Limit.Short()
	}
	return fmt.Sprintf("%d, %s", r.Max, map[Of]string{OfCounter: "a counter", OfSlots: "slots"}[r.Of])
}

// condition is Rule.When in words.
func (r *Rule) condition() string {
	var parts []string
	for _, field := range slices.Sorted(maps.Keys(r.When)) {
		parts = append(parts, field+" is "+strings.Join(r.When[field], " or "))
	}
	return strings.Join(parts, " and ")
}

// String is all that the policy says.
func (a *Admission) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: key %s, fields %s\n", a.Name, a.Key.text, strings.Join(a.Fields, ", "))
	for _, r := range a.Demands {
		fmt.Fprintf(&b, "  %s: %s", r.Name.text, r.Short())
		if when := r.condition(); when != "" {
			fmt.Fprintf(&b, ", when %s", when)
		}
		b.WriteByte('\n')
	}
	return b.String()
}
