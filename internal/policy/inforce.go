package policy

import (
	"context"
	"sync/atomic"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/limit"
)

// Agreed are policies under the version that a cluster, or a node that runs alone, gave them.
type Agreed struct {
	Version uint64 // 0 = there are none
	ID      string // of what set them
	Text    []byte
	*Set          // never nil
	Err     error // why this program cannot go by them: then Set is empty
}

// NewAgreed reads policies that were agreed on. A later program may have written them.
func NewAgreed(version uint64, id string, text []byte, err error) *Agreed {
	a := &Agreed{Version: version, ID: id, Text: text, Set: &Set{}, Err: err}
	if err != nil {
		return a
	}
	set, err := Parse("", text)
	if a.Err = err; err == nil {
		a.Set = set
	}
	return a
}

// InForce are the policies that a process goes by. Its zero value has none. Looking one up
// takes no lock and allocates nothing.
type InForce struct{ latest atomic.Pointer[inForce] }

type inForce struct {
	*Agreed
	replaced chan struct{} // closed when there are later ones
}

func (f *InForce) load() *inForce {
	if p := f.latest.Load(); p != nil {
		return p
	}
	f.latest.CompareAndSwap(nil, &inForce{&Agreed{Set: &Set{}}, make(chan struct{})})
	return f.latest.Load()
}

// Load returns those that are in force.
func (f *InForce) Load() *Agreed { return f.load().Agreed }

// Put puts policies in force, unless those that are have the same version or a later one.
func (f *InForce) Put(a *Agreed) {
	for {
		was := f.load()
		//guard:policy-version-rises
		if a.Version <= was.Version {
			return
		}
		if f.latest.CompareAndSwap(was, &inForce{a, make(chan struct{})}) {
			close(was.replaced)
			return
		}
	}
}

// Await returns the policies in force as soon as they have at least a version.
func (f *InForce) Await(ctx context.Context, version uint64) (*Agreed, error) {
	for {
		p := f.load()
		if p.Version >= version {
			return p.Agreed, nil
		}
		select {
		case <-p.replaced:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Limit implements owner.Policies.
func (f *InForce) Limit(name string) (limit.Named, uint64, bool, error) {
	p := f.latest.Load()
	if p == nil {
		return limit.Named{}, 0, false, nil
	}
	if p.Err != nil {
		return limit.Named{}, p.Version, false, errNotRead
	}
	pol := p.Lookup(name)
	if pol == nil {
		return limit.Named{}, p.Version, false, nil
	}
	return limit.Named{Params: pol.Params, MaxDelay: pol.MaxDelay}, p.Version, true, nil
}

// Admission returns the admission policy of a name, nil if there is none, and the version of all.
func (f *InForce) Admission(name string) (a *Admission, version uint64, err error) {
	p := f.latest.Load()
	switch {
	case p == nil:
		return nil, 0, nil
	case p.Err != nil:
		return nil, p.Version, errNotRead
	}
	return p.Set.Admission(name), p.Version, nil
}

// errNotRead is the error of a check by policies that this program cannot read. It must not
// go by those of before.
var errNotRead error = &failure.Error{Reason: failure.Unavailable, Message: "this node cannot read the policies of the cluster; nothing happened",
	Hint: "upgrade it: `keystead policy show` says what is wrong"}
