package rls

import (
	"slices"
	"strings"
)

// Rules are what the files of a configuration say: which limit counts for which
// descriptor. They do not change.
type Rules struct {
	domains map[string]*level
	limits  []*Limit
	files   []string
}

// Limits returns all limits, in the order of the files.
func (r *Rules) Limits() []*Limit { return slices.Clone(r.limits) }

// Domains returns the names of the domains, sorted.
func (r *Rules) Domains() []string {
	names := make([]string, 0, len(r.domains))
	for name := range r.domains {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Files returns the files that were read, in their order.
func (r *Rules) Files() []string { return slices.Clone(r.files) }

// Match returns the limit that counts for a descriptor of keys and values, and the
// key and name of the object that counts it. The limit is nil if there is none.
func (r *Rules) Match(domain string, entries [][2]string) (l *Limit, key, name string) {
	d := r.domains[domain]
	if d == nil {
		return nil, "", ""
	}
	list := make([]entry, len(entries))
	for i, e := range entries {
		list[i] = entry{e[0], e[1]}
	}
	l, found := d.find(list, appendPart(nil, asItIs, domain))
	if l == nil || l.Unlimited {
		return l, "", ""
	}
	return l, fit(found), l.object
}

// entry is a key and a value of a descriptor.
type entry struct{ key, value string }

// level is a descriptor of a configuration, and what is nested in it; or a
// domain.
type level struct {
	exact map[entry]*level
	bare  map[string]*level // by key, whatever the value
	wild  []wildcard        // in the order of the files: the first that fits counts
	limit *Limit            // nil = none

	at            place
	pattern       string // of a wildcard, with its stars
	shared        bool   // all values of the wildcard share the limit
	valueToMetric bool
}

// wildcard is a value with stars in it, each of which stands for any text, also for
// none.
type wildcard struct {
	key     string
	first   string   // before the first star
	between []string // the stars
	last    string   // after the last star
	level   *level
}

// newWildcard splits a pattern that has a star.
func newWildcard(key, pattern string, to *level) wildcard {
	parts := strings.Split(pattern, "*")
	end := len(parts) - 1
	return wildcard{key: key, first: parts[0], between: parts[1:end], last: parts[end], level: to}
}

// fits reports whether the pattern stands for a value: it begins and ends as the
// pattern does, and has the rest between, in order and without overlap.
func (w *wildcard) fits(value string) bool {
	rest, ok := strings.CutPrefix(value, w.first)
	if ok {
		//guard:rls-wildcard-order -> ok = strings.HasSuffix(value, w.last)
		rest, ok = strings.CutSuffix(rest, w.last)
	}
	for _, part := range w.between {
		if !ok {
			break
		}
		_, rest, ok = strings.Cut(rest, part)
	}
	return ok
}

// place is where something stands in the files.
type place struct {
	file string
	line int
}

// how says by what an entry was matched.
type how uint8

const (
	byValue how = iota
	byPattern
	byKey
)

// next returns the level for an entry, the most specific that there is: its value,
// else the first wildcard that fits, else its key. nil = none. A value that is
// written like a wildcard belongs to that one, whichever comes first.
func (l *level) next(e entry) (*level, how) {
	if to := l.exact[e]; to != nil {
		return to, byValue
	}
	if len(l.wild) > 0 && strings.Contains(e.value, "*") {
		if to := l.written(e); to != nil {
			return to, byPattern
		}
	}
	for i := range l.wild {
		if w := &l.wild[i]; w.key == e.key && w.fits(e.value) {
			return w.level, byPattern
		}
	}
	return l.bare[e.key], byKey
}

// written returns the level of the wildcard with this key and pattern, nil if there is
// none.
func (l *level) written(e entry) *level {
	for i := range l.wild {
		if w := &l.wild[i]; w.key == e.key && w.level.pattern == e.value {
			return w.level
		}
	}
	return nil
}

// leaf reports whether a descriptor that is longer cannot be matched.
func (l *level) leaf() bool { return len(l.exact) == 0 && len(l.bare) == 0 && len(l.wild) == 0 }

// find returns the limit for the entries of a descriptor, nil if there is none,
// and key, which holds the domain, with the entries added. The limit is that of
// the level as deep as the descriptor is long.
func (l *level) find(entries []entry, key []byte) (*Limit, []byte) {
	for i, e := range entries {
		to, by := l.next(e)
		if to == nil {
			return nil, key
		}
		key = appendPart(key, asItIs, e.key)
		//guard:rls-slot-key
		if i == len(entries)-1 && to.limit != nil && to.limit.Hold != 0 {
			return to.limit, appendPart(key, asPattern, "*") // all requests share it
		}
		if by == byPattern && to.shared {
			key = appendPart(key, asPattern, to.pattern)
		} else {
			key = appendPart(key, asItIs, e.value)
		}
		if i == len(entries)-1 {
			return to.limit, key
		}
		if to.leaf() {
			return nil, key
		}
		l = to
	}
	return nil, key
}

// label returns the path in the metrics of a limit that find has found and for which
// that depends on the request.
func (l *level) label(entries []entry, detailed bool) string {
	var b strings.Builder
	for i, e := range entries {
		to, by := l.next(e)
		if i > 0 {
			b.WriteByte('.')
		}
		value := e.value
		switch {
		case by == byPattern && to.shared:
			value = to.pattern
		case detailed || by == byValue || to.valueToMetric:
		case by == byPattern:
			value = to.pattern
		default:
			value = ""
		}
		b.WriteString(step(e.key, value))
		l = to
	}
	return b.String()
}

// step is one level of a path.
func step(key, value string) string {
	if value == "" {
		return key
	}
	return key + "_" + value
}
