package divide

import "github.com/keystead/keystead/owner"

// kinds are the kinds of objects that may be split.
var kinds = func() (some []owner.Kind) {
	for _, k := range owner.Kinds() {
		if k.Parts() {
			some = append(some, k)
		}
	}
	return some
}()

// KindOf returns the kind that tables, callers and settings name by this word. It is
// false for a word that names no kind whose objects may be split.
func KindOf(word string) (owner.Kind, bool) {
	if k, ok := owner.ParseKind(word); ok && k.Parts() {
		return k, true
	}
	return 0, false
}
