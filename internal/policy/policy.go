package policy

import (
	"maps"
	"slices"
	"strings"

	"github.com/keystead/keystead/internal/fallback"
	"github.com/keystead/keystead/owner/limit"
)

// Bounds of a file of policies.
const (
	MaxFile  = 1<<20 - 1<<10 // bytes: a message of 1 MiB has room for it
	MaxCount = 10_000        // policies
	MaxName  = 64            // bytes of a name
	MaxAbout = 1024          // bytes of what is said about a policy, for people
)

// Policy is a limit with a name.
type Policy struct {
	Name  string
	About string // for people
	limit.Params
	MaxDelay int64 // of a leaky bucket: the latest turn that is given, in ns from the check; 0 = any
	// Fallback says how a check is decided when the owner of its key cannot be asked in time.
	Fallback fallback.Rule
	Line     int // where it is in its file
}

// Set is what a file says. The zero Set has no policies.
type Set struct {
	by         map[string]*Policy
	admissions map[string]*Admission
}

// Lookup returns the policy of a name, nil if there is none.
func (s *Set) Lookup(name string) *Policy { return s.by[name] }

// Admission returns the admission policy of a name, nil if there is none.
func (s *Set) Admission(name string) *Admission { return s.admissions[name] }

// Admissions returns the admission policies by name.
func (s *Set) Admissions() []*Admission {
	all := make([]*Admission, 0, len(s.admissions))
	for _, name := range slices.Sorted(maps.Keys(s.admissions)) {
		all = append(all, s.admissions[name])
	}
	return all
}

// Len returns how many policies there are.
func (s *Set) Len() int { return len(s.by) + len(s.admissions) }

// All returns the policies by name.
func (s *Set) All() []*Policy {
	all := make([]*Policy, 0, len(s.by))
	for _, name := range slices.Sorted(maps.Keys(s.by)) {
		all = append(all, s.by[name])
	}
	return all
}

// algorithm is what a file calls a limit's.
type algorithm struct {
	name string
	is   limit.Algorithm
}

var algorithms = []algorithm{{"token-bucket", limit.TokenBucket}, {"fixed-window", limit.FixedWindow}, {"sliding-window", limit.SlidingWindow}, {"leaky-bucket", limit.LeakyBucket}, {"calendar-window", limit.CalendarWindow}}

func algorithmNames() string {
	names := make([]string, len(algorithms))
	for i, a := range algorithms {
		names[i] = a.name
	}
	return strings.Join(names, ", ")
}

// AlgorithmName returns what a file calls the algorithm of a policy.
func (p *Policy) AlgorithmName() string {
	for _, a := range algorithms {
		if a.is == p.Algorithm {
			return a.name
		}
	}
	return ""
}

// Change is how two sets differ.
type Change struct {
	Added, Changed, Removed []string // names, in order
}

// None reports whether two sets mean the same.
func (c Change) None() bool { return len(c.Added)+len(c.Changed)+len(c.Removed) == 0 }

// Changes returns how next differs from s in what its limits do.
func (s *Set) Changes(next *Set) Change {
	var c Change
	for _, p := range next.All() {
		switch was := s.Lookup(p.Name); {
		case was == nil:
			c.Added = append(c.Added, p.Name)
		case was.Params != p.Params || was.MaxDelay != p.MaxDelay || was.Fallback != p.Fallback:
			c.Changed = append(c.Changed, p.Name)
		}
	}
	for _, p := range s.All() {
		if next.Lookup(p.Name) == nil {
			c.Removed = append(c.Removed, p.Name)
		}
	}
	for _, a := range next.Admissions() {
		switch was := s.Admission(a.Name); {
		case was == nil:
			c.Added = append(c.Added, a.Name)
		case was.spec != a.spec:
			c.Changed = append(c.Changed, a.Name)
		}
	}
	for _, a := range s.Admissions() {
		if next.Admission(a.Name) == nil {
			c.Removed = append(c.Removed, a.Name)
		}
	}
	for _, names := range [][]string{c.Added, c.Changed, c.Removed} {
		slices.Sort(names)
	}
	return c
}
