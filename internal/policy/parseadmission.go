package policy

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/internal/fallback"
	"github.com/keystead/keystead/owner/limit"
)

const admissionExample = "for example\n    admissions:\n      chat:\n        key: org:{org}\n        fields: [org, user]\n        demands:\n        - {name: rpm, limit: 1000/1m}\n        - {name: \"user:{user}/rpm\", limit: 60/1m}"

// fieldNames are of fields and amounts of requests.
var fieldNames = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_]{0,31}$`)

func (p *parser) admissions(n *yaml.Node) {
	switch {
	case n.Kind != yaml.MappingNode:
		p.wrong(n.Line, "`admissions` is a map of names, found "+describe(n), admissionExample)
		return
	case len(n.Content)/2+len(p.set.by) > MaxCount:
		p.wrong(n.Line, fmt.Sprintf("there are more than %d policies", MaxCount), "one admission policy is for all keys")
		return
	}
	for i := 0; i+1 < len(n.Content) && !p.full(); i += 2 {
		if a := p.admission(n.Content[i], n.Content[i+1]); a != nil {
			p.apart(a)
			p.set.admissions[a.Name] = a
		}
	}
}

func (p *parser) admission(key, value *yaml.Node) *Admission {
	before := len(p.problems)
	if !p.named(key) {
		return nil
	}
	a := &Admission{Name: key.Value, Line: key.Line}
	var at, fields, demands *yaml.Node
	p.fields(value, "the admission policy `"+a.Name+"`", []string{"key", "fields", "demands", "about"}, func(field string, v *yaml.Node) {
		switch field {
		case "key":
			at = v
		case "fields":
			fields = v
		case "demands":
			demands = v
		case "about":
			a.About = p.about(v)
		}
	})
	switch {
	case len(p.problems) > before:
		return nil
	case at == nil || fields == nil || demands == nil:
		p.wrong(key.Line, fmt.Sprintf("the admission policy `%s` needs key, fields and demands", a.Name), admissionExample)
		return nil
	}
	a.Fields = p.names(fields, "fields", MaxFields)
	a.Key = p.template(at, "key", a.Fields, maxKey)
	if demands.Kind != yaml.SequenceNode || len(demands.Content) == 0 || len(demands.Content) > MaxRules {
		p.wrong(demands.Line, fmt.Sprintf("`demands` is a list of 1 to %d", MaxRules), admissionExample)
		return nil
	}
	for _, n := range demands.Content {
		if r := p.rule(a, n); r != nil {
			a.Demands = append(a.Demands, r)
		}
	}
	if len(p.problems) > before {
		return nil
	}
	p.whole(a)
	if len(p.problems) > before {
		return nil
	}
	a.spec = a.String()
	return a
}

// whole judges the demands together.
func (p *parser) whole(a *Admission) {
	always := false
	for i, r := range a.Demands {
		always = always || len(r.When) == 0
		for _, o := range a.Demands[:i] {
			switch same := o.Name.text == r.Name.text; {
			case same && o.Of != r.Of:
				p.wrong(r.Line, fmt.Sprintf("`%s` is a %s, and on line %d a %s", r.Name, r.Of, o.Line, o.Of), "give one of them another name")
			case same && len(o.When) == 0:
				p.wrong(r.Line, fmt.Sprintf("`%s` never counts: the one on line %d is for all requests", r.Name, o.Line), "of demands with one name the first that is for the request counts: put the one without `when` last")
			}
		}
	}
	p.acts(a)
	if !always {
		p.wrong(a.Line, fmt.Sprintf("all demands of `%s` have a `when`: a request that none is for would have no limit at all", a.Name), "add one without")
	}
}

// acts reports fallbacks that never decide, because something that each request demands has none: an admission is decided
// without its owner only if all that it demands is.
func (p *parser) acts(a *Admission) {
	for _, x := range a.Demands {
		// Of demands with one name, a request has one if any is for all requests.
		if len(x.When) > 0 || slices.ContainsFunc(a.Demands, func(o *Rule) bool { return o.Name.text == x.Name.text && o.Falls() }) {
			continue
		}
		for _, r := range a.Demands {
			if r.says != 0 {
				p.wrong(r.says, fmt.Sprintf("`fallback` of the demand `%s` never decides: each request demands `%s` (line %d) as well, which has none", r.Name, x.Name, x.Line),
					"give all demands of a request one, or leave it out; counters and slots have none")
				return
			}
		}
	}
}

// apart reports demands, also of other admission policies, that could become one object though they
// are written differently.
func (p *parser) apart(a *Admission) {
	for _, r := range a.Demands {
		for _, other := range append(p.inOrder, a) {
			if other != a && a.Key.differ(other.Key) {
				continue
			}
			for _, o := range other.Demands {
				if other == a && o.Name.text == r.Name.text && a.Key.text == other.Key.text {
					if o == r {
						break // those behind it find this one
					}
					continue
				}
				if a.Key.text == other.Key.text && r.Name.text == o.Name.text && r.Of == o.Of && r.Max == o.Max && r.Limit.Params == o.Limit.Params {
					continue // one object, of which both say the same
				}
				if !r.Name.differ(o.Name) {
					p.wrong(r.Line, fmt.Sprintf("`%s` and `%s` (line %d) may become the same name of one key, and do not say the same", r.Name, o.Name, o.Line), "begin one of them with a word of its own, such as user:")
					return
				}
			}
		}
	}
	p.inOrder = append(p.inOrder, a)
}

// rule reads a demand.
func (p *parser) rule(a *Admission, n *yaml.Node) *Rule {
	before := len(p.problems)
	r := &Rule{Line: n.Line, Cost: 1, When: map[string][]string{}}
	d := &draft{Policy: &r.Limit, lines: map[string]int{}}
	var says []string // of limit, policy, counter and slots
	known := append([]string{"name", "when", "cost", "clamp", "counter", "slots", "policy"}, policyFields...)
	p.fields(n, "a demand", slices.DeleteFunc(known, func(f string) bool { return slices.Contains([]string{"about"}, f) }), func(field string, v *yaml.Node) {
		d.lines[field] = v.Line
		switch field {
		case "limit", "policy", "counter", "slots":
			says = append(says, field)
		}
		switch field {
		case "name":
			r.Name = p.template(v, "name", a.Fields, maxName)
		case "when":
			p.when(a, r, v)
		case "cost":
			p.cost(r, v)
		case "clamp":
			r.Clamp = uint32(p.count(field, v, 100, "it is a share of the capacity, 1 to 100 percent"))
		case "counter":
			r.Of, r.Max = OfCounter, int64(p.count(field, v, limit.MaxLimit, "it is the greatest value"))
		case "slots":
			r.Of, r.Max = OfSlots, int64(p.count(field, v, limit.MaxLimit, "it is how many there are"))
		case "max_delay":
			p.wrong(v.Line, "`max_delay` does not go with a demand: an admission passes if the turn of the request is now, and gives no later one", "leave it out; a caller that waits for its turn checks the limit by itself")
		case "policy":
			if pol := p.set.by[v.Value]; pol != nil && v.Kind == yaml.ScalarNode {
				r.Limit = *pol
			} else {
				p.wrong(v.Line, fmt.Sprintf("there is no policy `%s`", shorten(v.Value)), "it is one under `policies` of this file")
			}
		default:
			p.field(d, field, v)
		}
	})
	switch {
	case len(p.problems) > before:
		return nil
	case d.lines["name"] == 0:
		p.wrong(n.Line, "a demand has no name", "write for example `name: user:{user}/rpm`")
	case r.Name.text == "admission":
		p.wrong(n.Line, "`admission` is the name of what keeps the holds", "choose another one")
	case len(says) != 1:
		p.wrong(n.Line, fmt.Sprintf("the demand `%s` has to say one of limit, policy, counter and slots", r.Name), "a limit is how many per period, like `limit: 60/1m`")
	default:
		p.ruleFits(r, d, says[0])
	}
	if len(p.problems) > before {
		return nil
	}
	return r
}

// ruleFits reports what an owner would refuse of a demand.
func (p *parser) ruleFits(r *Rule, d *draft, says string) {
	if says == "policy" && r.Limit.MaxDelay != 0 {
		p.wrong(d.lines["policy"], fmt.Sprintf("`max_delay` of the policy `%s` does not go with a demand: an admission passes if the turn of the request is now, and gives no later one", r.Limit.Name), "write the limit of the demand without it")
		return
	}
	for _, field := range policyFields {
		if field != "limit" && says != "limit" && d.lines[field] != 0 {
			p.wrong(d.lines[field], fmt.Sprintf("`%s` goes with a `limit` only", field), "")
			return
		}
	}
	if r.Clamp != 0 && says == "slots" {
		p.wrong(d.lines["clamp"], "`clamp` does not go with slots: nothing corrects how many run", "")
		return
	}
	var err error
	most := uint64(r.Max)
	if r.Of == OfLimit {
		if says == "limit" {
			err = d.finish()
		}
		if err == nil {
			err = limit.Op{Params: r.Limit.Params, Cost: 1}.Validate()
		}
		if err == nil {
			err = r.Limit.judgeFallback()
		}
		if d.lines["fallback"] != 0 && r.Limit.Fallback.Source != fallback.None {
			r.says = d.lines["fallback"]
		}
		most = r.Limit.Capacity()
	}
	if bad := (*failure.Error)(nil); errors.As(err, &bad) {
		field := strings.TrimSuffix(bad.Field, "_ns")
		if field == "period" || field == "calendar" {
			field = "limit"
		}
		p.wrong(max(d.lines[field], r.Line), fmt.Sprintf("`%s` of the demand `%s` %s", field, r.Name, bad.Message), bad.Hint)
	} else if r.Cost > most && r.Clamp == 0 {
		p.wrong(max(d.lines["cost"], r.Line), fmt.Sprintf("`cost` of the demand `%s` is %d, and at most %d can ever be available", r.Name, r.Cost, most), "")
	}
}

// cost reads how much a request is charged: a number, or what it says of an amount.
func (p *parser) cost(r *Rule, v *yaml.Node) {
	n, err := strconv.ParseUint(strings.ReplaceAll(v.Value, "_", ""), 10, 64)
	switch {
	case v.Kind != yaml.ScalarNode:
		p.wrong(v.Line, "`cost` is a plain value, found "+describe(v), "")
	case err == nil && n > 0 && n <= limit.MaxLimit:
		r.Cost = n
	case fieldNames.MatchString(v.Value):
		r.Cost, r.Per = 0, v.Value
	default:
		p.wrong(v.Line, fmt.Sprintf("`cost: %s` is neither a count of 1 or more nor the name of an amount", shorten(v.Value)), "write 1, or for example `cost: tokens`, if requests say how many")
	}
}

// when reads for which requests a demand is.
func (p *parser) when(a *Admission, r *Rule, n *yaml.Node) {
	p.fields(n, "`when`", a.Fields, func(field string, v *yaml.Node) {
		values := []*yaml.Node{v}
		if v.Kind == yaml.SequenceNode {
			values = v.Content
		}
		if len(values) == 0 || len(values) > MaxRules {
			p.wrong(v.Line, fmt.Sprintf("`%s` has 1 to %d values", field, MaxRules), "")
		}
		for _, v := range values {
			if v.Kind != yaml.ScalarNode || v.Tag == "!!null" || v.Value == "" || len(v.Value) > MaxValue {
				p.wrong(v.Line, "a value of `when` is a plain value, found "+describe(v), "`\"*\"` is any")
				continue
			}
			r.When[field] = append(r.When[field], v.Value)
		}
	})
}

// template reads a template of at most so many bytes.
func (p *parser) template(v *yaml.Node, what string, fields []string, most int) Template {
	if v.Kind != yaml.ScalarNode || v.Tag == "!!null" {
		p.wrong(v.Line, fmt.Sprintf("`%s` is a plain value, found %s", what, describe(v)), "put it into quotes if it begins with a `{`")
		return Template{}
	}
	t, wrong := newTemplate(v.Value, fields, most)
	if wrong != "" {
		p.wrong(v.Line, fmt.Sprintf("the %s `%s` %s", what, shorten(v.Value), wrong), "")
	}
	return t
}

// names reads a list of names of fields.
func (p *parser) names(n *yaml.Node, what string, most int) (names []string) {
	if n.Kind != yaml.SequenceNode || len(n.Content) > most {
		p.wrong(n.Line, fmt.Sprintf("`%s` is a list of at most %d names", what, most), "for example `fields: [org, user]`")
		return nil
	}
	for _, v := range n.Content {
		switch {
		case v.Kind != yaml.ScalarNode || !fieldNames.MatchString(v.Value):
			p.wrong(v.Line, fmt.Sprintf("`%s` cannot be the name of a field", shorten(v.Value)), "use up to 32 letters, digits and `_`, and begin with a letter")
		case slices.Contains(names, v.Value):
			p.wrong(v.Line, fmt.Sprintf("the field `%s` is there a second time", v.Value), "")
		default:
			names = append(names, v.Value)
		}
	}
	return names
}

// about reads what is said for people.
func (p *parser) about(v *yaml.Node) string {
	switch {
	case v.Kind != yaml.ScalarNode:
		p.wrong(v.Line, "`about` is a plain value, found "+describe(v), "")
	case len(v.Value) > MaxAbout:
		p.wrong(v.Line, fmt.Sprintf("`about` has %d bytes; at most %d are allowed", len(v.Value), MaxAbout), "")
	}
	return v.Value
}
