package divide

import (
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/reqid"
	"github.com/keystead/keystead/ring/epoch/table"
)

// divider is how the objects of one kind are divided, and united: all that this package
// knows of a kind.
type divider struct {
	kind owner.Kind
	// weighed reports whether each part has a weight, which is all that it may use of the
	// object. Parts of other kinds are alike.
	weighed bool
	// divide gives each part its state, and returns the value that no part has. whole is
	// the zero Record if there is no object. The error is for people: it cannot be divided.
	divide func(whole *owner.Record, sp *table.Split, parts []*owner.Record) (base int64, err error)
	// unite gives the whole the state that its parts make. A part that was lost is nil.
	unite func(parts []*owner.Record, sp *table.Split, whole *owner.Record)
	// divided and united change what is remembered of an answer as its object is divided,
	// and united. nil: nothing changes.
	divided, united func(o *reqid.Outcome, base int64)
}

// dividers has the divider of each kind whose objects may be split. A kind that the store
// has parts for and this list has not, or the other way round, fails a test.
var dividers = [...]*divider{&limits, &counters}

// dividerOf finds the divider of a kind; nil if its objects are not split.
func dividerOf(k owner.Kind) *divider {
	for _, d := range dividers {
		if d.kind == k {
			return d
		}
	}
	return nil
}

// Weighed reports whether the parts of objects of a kind have weights.
func Weighed(k owner.Kind) bool {
	d := dividerOf(k)
	return d != nil && d.weighed
}

// KindOf returns the kind that tables, callers and settings name by this word. It is
// false for a word that names no kind whose objects may be split.
func KindOf(word string) (owner.Kind, bool) {
	if k, ok := owner.ParseKind(word); ok && k.Parts() {
		return k, true
	}
	return 0, false
}
