package rls

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/types/known/structpb"
)

// loader makes rules of files. It reads nodes and not values, because only nodes
// have lines and show keys that come twice.
type loader struct {
	opts     LoadOptions
	rules    *Rules
	problems Problems

	path        string // of the file that is read
	descriptors int    // so far, of all files
	visits      int    // at nodes of the file, through aliases too
	stop        bool   // the rest is not looked at
}

// maxVisits bounds the nodes of a file as often as aliases repeat them.
const maxVisits = 40 * MaxDescriptors

// full reports whether so much is wrong already that the rest does not matter.
func (l *loader) full() bool { return l.stop || len(l.problems) >= maxProblems }

func (l *loader) wrong(line int, hint, format string, args ...any) {
	if !l.full() {
		l.problems = append(l.problems, Problem{File: l.path, Line: line, Message: fmt.Sprintf(format, args...), Hint: hint})
	}
}

var yamlLine = regexp.MustCompile(`^yaml: line ([0-9]+): `)

// notYAML reports what the YAML parser says, which gives lines as text only.
func (l *loader) notYAML(err error) {
	text, line := err.Error(), 0
	if m := yamlLine.FindStringSubmatch(text); m != nil {
		line, _ = strconv.Atoi(m[1])
		text = text[len(m[0]):]
	}
	l.wrong(line, "", "this is not YAML: %s", strings.TrimPrefix(text, "yaml: "))
}

// file adds what a file says.
func (l *loader) file(path string, data []byte) {
	l.path, l.visits = path, 0
	l.rules.files = append(l.rules.files, path)
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var doc, second yaml.Node
	if err := decoder.Decode(&doc); err == io.EOF {
		l.wrong(0, "write `domain: NAME` and `descriptors:`", "the file is empty")
		return
	} else if err != nil {
		l.notYAML(err)
		return
	}
	l.root(doc.Content[0])
	if err := decoder.Decode(&second); err == nil {
		l.wrong(second.Line, "remove the `---`, and give each domain a file of its own", "a second document starts here")
	} else if err != io.EOF {
		l.notYAML(err)
	}
}

func (l *loader) root(n *yaml.Node) {
	var domain string
	var at, descriptors *yaml.Node
	if !l.fields(n, "a file", map[string]func(*yaml.Node){
		"domain":      func(v *yaml.Node) { at, domain = v, l.text(v, "domain") },
		"descriptors": func(v *yaml.Node) { descriptors = v },
	}) {
		return
	}
	if domain == "" {
		l.wrong(n.Line, "write `domain: NAME`, as it is in Envoy's configuration", "the domain is missing")
		return
	}
	d := l.rules.domains[domain]
	if d == nil {
		d = &level{at: place{l.path, at.Line}}
		l.rules.domains[domain] = d
	} else if !l.opts.MergeDomains {
		l.wrong(at.Line, fmt.Sprintf("the first is in %s:%d; --rls-merge-domains lets several files add to one domain", d.at.file, d.at.line), "the domain %s comes a second time", quote(domain))
		return
	}
	if descriptors != nil {
		l.list(d, descriptors, where{domain: domain})
	}
}

// where is a place among the descriptors.
type where struct {
	domain  string
	path    string // with a point at its end, unless it is empty
	depth   int
	dynamic bool // a level above is in the metrics with the request's value
}

// list adds a list of descriptors to a level.
func (l *loader) list(to *level, n *yaml.Node, at where) {
	n = l.visit(n)
	switch {
	case isNull(n):
		return
	case n.Kind != yaml.SequenceNode:
		l.wrong(n.Line, "write each as `- key: NAME`", "descriptors must be a list, found %s", describe(n))
		return
	case at.depth == MaxDepth:
		l.wrong(n.Line, "", "descriptors are nested more than %d deep", MaxDepth)
		return
	}
	at.depth++
	for _, e := range n.Content {
		if l.full() {
			return
		}
		if l.descriptors++; l.descriptors > MaxDescriptors {
			l.wrong(e.Line, "", "there are more than %d descriptors", MaxDescriptors)
			l.stop = true
			return
		}
		l.descriptor(to, e, at)
	}
}

// descriptor adds a descriptor to a level.
func (l *loader) descriptor(to *level, n *yaml.Node, at where) {
	var e entry
	var detailed, shadow, quota bool
	var rate, nested *yaml.Node
	var metadata *structpb.Struct
	d := &level{at: place{l.path, n.Line}}
	if !l.fields(n, "a descriptor", map[string]func(*yaml.Node){
		"key":             func(v *yaml.Node) { e.key = l.text(v, "key") },
		"value":           func(v *yaml.Node) { e.value = l.text(v, "value") },
		"rate_limit":      func(v *yaml.Node) { rate = v },
		"descriptors":     func(v *yaml.Node) { nested = v },
		"shadow_mode":     func(v *yaml.Node) { shadow = l.truth(v, "shadow_mode") },
		"quota_mode":      func(v *yaml.Node) { quota = l.truth(v, "quota_mode") },
		"detailed_metric": func(v *yaml.Node) { detailed = l.truth(v, "detailed_metric") },
		"value_to_metric": func(v *yaml.Node) { d.valueToMetric = l.truth(v, "value_to_metric") },
		"share_threshold": func(v *yaml.Node) { d.shared = l.truth(v, "share_threshold") },
		"metadata":        func(v *yaml.Node) { metadata = l.metadata(v) },
	}) {
		return
	}
	if e.key == "" {
		l.wrong(n.Line, "write `key: NAME`", "the descriptor has no key")
		return
	}
	wild := strings.Contains(e.value, "*")
	if wild {
		d.pattern = e.value
	} else if d.shared {
		l.wrong(n.Line, "write a `*` into the value, or remove share_threshold", "share_threshold goes with a value that has a `*`; this one is %s", quote(e.value))
	}
	if first := to.place(e, d); first != nil {
		l.wrong(n.Line, fmt.Sprintf("the first is in %s:%d", first.at.file, first.at.line), "the descriptor %s comes a second time", quote(at.path+step(e.key, e.value)))
		return
	}
	at.dynamic = at.dynamic || d.valueToMetric && (e.value == "" || wild && !d.shared)
	path := at.path + step(e.key, e.value)
	if rate != nil {
		if limit := l.limit(rate); limit != nil && l.ofEach(n, limit, e, detailed || d.valueToMetric) {
			limit.Domain, limit.Path, limit.Shadow, limit.Quota, limit.Detailed = at.domain, path, shadow, quota, detailed
			limit.Metadata, limit.dynamic = metadata, at.dynamic || detailed
			limit.seal(0)
			d.limit = limit
			l.rules.limits = append(l.rules.limits, limit)
		}
	}
	if nested != nil {
		at.path = path + "."
		l.list(d, nested, at)
	}
}

// ofEach reports whether a descriptor with slots has any value: that of the request.
func (l *loader) ofEach(n *yaml.Node, limit *Limit, e entry, counted bool) bool {
	switch {
	case limit.Hold == 0:
		return true
	case e.value != "":
		l.wrong(n.Line, "leave the value out; what the slots are of goes into descriptors above", "a descriptor with slots has any value, which names the request; this one is %s", quote(e.value))
	case counted:
		l.wrong(n.Line, "remove it", "detailed_metric and value_to_metric do not go with slots: each request has a value of its own")
	default:
		return true
	}
	return false
}

// place adds a descriptor to those of a level. It returns the one that is there
// already, if there is one.
func (l *level) place(e entry, d *level) *level {
	switch {
	case d.pattern != "":
		if first := l.written(e); first != nil {
			return first
		}
		l.wild = append(l.wild, newWildcard(e.key, d.pattern, d))
	case e.value == "":
		if first := l.bare[e.key]; first != nil {
			return first
		}
		if l.bare == nil {
			l.bare = map[string]*level{}
		}
		l.bare[e.key] = d
	default:
		if first := l.exact[e]; first != nil {
			return first
		}
		if l.exact == nil {
			l.exact = map[entry]*level{}
		}
		l.exact[e] = d
	}
	return nil
}

// limit reads a rate_limit; nil if it is wrong.
func (l *loader) limit(n *yaml.Node) *Limit {
	before := len(l.problems)
	lim := &Limit{File: l.path, Line: n.Line}
	var unit string
	var own, requests, at *yaml.Node
	if !l.fields(n, "a rate_limit", map[string]func(*yaml.Node){
		"unit": func(v *yaml.Node) { at, unit = v, l.text(v, "unit") },
		"requests_per_unit": func(v *yaml.Node) {
			requests = v
			lim.RequestsPerUnit = uint32(l.number(v, "requests_per_unit", math.MaxUint32))
		},
		"unlimited": func(v *yaml.Node) { lim.Unlimited = l.truth(v, "unlimited") },
		"name":      func(v *yaml.Node) { lim.Name = l.text(v, "name") },
		"replaces":  func(v *yaml.Node) { lim.Replaces = l.replaces(v) },
		"keystead":  func(v *yaml.Node) { own = v },
	}) {
		return nil
	}
	lim.Unit = unitOf(unit)
	_, known := periods[lim.Unit]
	lim.SpendRest = true
	if own != nil && !lim.Unlimited {
		l.own(lim, own)
	}
	switch {
	case lim.How() != lim.Algorithm.String(): // slots, or a policy
		for _, v := range []*yaml.Node{at, requests} {
			if v != nil {
				l.wrong(v.Line, "remove it", "unit and requests_per_unit do not go with `%s:`", lim.How())
			}
		}
	case lim.Unlimited && unit != "":
		l.wrong(n.Line, "remove one of them", "the limit is unlimited and has a unit")
	case lim.Unlimited && own != nil:
		l.wrong(own.Line, "remove `keystead:`", "the limit is unlimited: there is nothing to set")
	case lim.Unlimited:
	case unit == "":
		l.wrong(n.Line, "write `unit: minute`, or `unlimited: true`", "the unit is missing")
	case !known:
		l.wrong(n.Line, "choose second, minute, hour, day, week, month or year", "the unit %s is unknown", quote(unit))
	case requests == nil:
		l.wrong(n.Line, "write `requests_per_unit: NUMBER`; 0 refuses all", "requests_per_unit is missing")
	}
	if lim.Name != "" && slices.Contains(lim.Replaces, lim.Name) {
		l.wrong(n.Line, "remove it from `replaces`", "the limit %s replaces itself", quote(lim.Name))
	}
	if len(l.problems) > before {
		return nil
	}
	return lim
}

func unitOf(name string) Unit {
	return Unit(rlspb.RateLimitResponse_RateLimit_Unit_value[strings.ToUpper(name)])
}

func unitName(u Unit) string { return strings.ToLower(u.String()) }

// replaces reads a list of `name: NAME`.
func (l *loader) replaces(n *yaml.Node) []string {
	n = l.visit(n)
	if isNull(n) {
		return nil
	}
	if n.Kind != yaml.SequenceNode {
		l.wrong(n.Line, "write each as `- name: NAME`", "replaces must be a list, found %s", describe(n))
		return nil
	}
	var names []string
	for _, e := range n.Content {
		var name string
		ok := l.fields(e, "an entry of replaces", map[string]func(*yaml.Node){
			"name": func(v *yaml.Node) { name = l.text(v, "name") },
		})
		if ok && name == "" {
			l.wrong(e.Line, "write `- name: NAME`", "the entry of replaces has no name")
		}
		names = append(names, name)
	}
	return names
}

// own reads what only Keystead has.
func (l *loader) own(lim *Limit, n *yaml.Node) {
	over := ""
	var burst, aligned, overdraft, slots *yaml.Node
	l.fields(n, "`keystead:`", map[string]func(*yaml.Node){
		"algorithm": func(v *yaml.Node) {
			names := make([]string, len(algorithms))
			for i := range algorithms {
				names[i] = algorithms[i].name
			}
			lim.Algorithm = Algorithm(l.choice(v, "algorithm", names))
		},
		"aligned":        func(v *yaml.Node) { aligned = v; lim.Aligned = l.truth(v, "aligned") },
		"burst":          func(v *yaml.Node) { burst = v; lim.Burst = l.number(v, "burst", maxBurst) },
		"all_or_nothing": func(v *yaml.Node) { lim.AllOrNothing = l.truth(v, "all_or_nothing") },
		"overdraft":      func(v *yaml.Node) { overdraft = v; lim.Overdraft = l.truth(v, "overdraft") },
		"on_failure":     func(v *yaml.Node) { lim.OnFailure = Policy(l.choice(v, "on_failure", policies)) },
		"slots":          func(v *yaml.Node) { slots = v; lim.RequestsPerUnit = uint32(l.number(v, "slots", maxSlots)) },
		"hold":           func(v *yaml.Node) { lim.Hold = l.span(v, "hold") },
		"policy":         func(v *yaml.Node) { lim.Policy = l.policy(v) },
		"over_limit": func(v *yaml.Node) {
			over = []string{"spend_rest", "spend_nothing"}[l.choice(v, "over_limit", []string{"spend_rest", "spend_nothing"})]
		},
	})
	if slots != nil || lim.Hold != 0 || lim.Policy != "" {
		l.special(lim, n, slots, burst != nil || over != "" || lim.Aligned || lim.Algorithm != FixedWindow)
		return
	}
	switch {
	case lim.Aligned && lim.Algorithm != FixedWindow:
		l.wrong(aligned.Line, "leave the algorithm out, or remove it", "aligned goes with fixed windows only")
	case burst != nil && lim.Algorithm != TokenBucket:
		l.wrong(burst.Line, "write `algorithm: token_bucket`, or remove it", "burst goes with token buckets only")
	case burst != nil && lim.Burst == 0:
		l.wrong(burst.Line, "leave it out for as many as requests_per_unit", "burst is 0")
	case lim.Overdraft && lim.AllOrNothing:
		l.wrong(overdraft.Line, "choose one of them", "overdraft spends what was used, and all_or_nothing gives it back")
	case lim.AllOrNothing && over == "spend_rest":
		l.wrong(n.Line, "choose one of them", "all_or_nothing spends nothing when the request is over the limit, and `over_limit: spend_rest` does")
	}
	lim.SpendRest = over != "spend_nothing" && !lim.AllOrNothing
}

// special completes a limit of slots, or by a policy. numbers says that it has what only goes with numbers.
func (l *loader) special(lim *Limit, n, slots *yaml.Node, numbers bool) {
	lim.SpendRest = false
	switch {
	case slots != nil && lim.Policy != "":
		l.wrong(n.Line, "choose one of them", "slots and policy do not go together")
	case slots == nil && lim.Hold != 0:
		l.wrong(n.Line, "write `slots: NUMBER`, how many run at a time", "hold goes with slots only")
	case slots != nil && lim.RequestsPerUnit == 0:
		l.wrong(slots.Line, "choose 1 to 8192", "there are 0 slots")
	case slots != nil && lim.Hold == 0:
		l.wrong(slots.Line, "write `hold: 10m`, longer than requests run: then a slot comes back that nobody gives back", "the hold is missing")
	case numbers:
		l.wrong(n.Line, "remove them", "algorithm, aligned, burst and over_limit do not go with `%s:`", lim.How())
	case slots != nil && (lim.Overdraft || lim.AllOrNothing):
		l.wrong(n.Line, "remove it: a request that is refused gives its slot back", "overdraft and all_or_nothing do not go with slots")
	case lim.Overdraft && lim.AllOrNothing:
		l.wrong(n.Line, "choose one of them", "overdraft spends what was used, and all_or_nothing gives it back")
	}
}

// span reads how long a slot is held.
func (l *loader) span(n *yaml.Node, name string) time.Duration {
	d, err := time.ParseDuration(l.text(n, name))
	most := cmp.Or(l.opts.MaxHold, maxHold)
	switch {
	case err != nil || d < minHold || d > maxHold:
		l.wrong(n.Line, "write it like 90s or 10m", "`%s` takes a time from %s to %s, found %s", name, minHold, maxHold, describe(l.visit(n)))
		return minHold
	case d > most:
		l.wrong(n.Line, "shorten it, or start all nodes with a longer --max-lock-ttl", "`%s` is %s; this node holds nothing for longer than %s", name, d, most)
	}
	return d
}

// policy reads the name of a policy.
func (l *loader) policy(n *yaml.Node) string {
	name := l.text(n, "policy")
	if !policyName.MatchString(name) {
		l.wrong(n.Line, "`keystead policy show` lists those that are there", "`policy` takes the name of a policy, of letters, digits, '.', '_', '-' and '/', found %s", describe(l.visit(n)))
		return "?"
	}
	return name
}

// policyName is what policies are called.
var policyName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._/-]{0,63}$`)

// maxBurst is the most tokens that Keystead's API lets a bucket hold.
const maxBurst = 1_000_000_000_000
