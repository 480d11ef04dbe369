package divide

import (
	"testing"

	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/ring/epoch/table"
)

// TestKinds: a word names a kind here when the store has parts for the kind and the table
// takes the word: what is decided can be agreed on, and done.
func TestKinds(t *testing.T) {
	h := newHouse(t, nil)
	words := []string{"", "limits", "semaphore"}
	for _, k := range owner.Kinds() {
		words = append(words, k.String())
	}
	named := 0
	for _, word := range words {
		sp := table.Split{ID: h.tab.Epoch + 1, Kind: word, Key: "k", Name: "n", Parts: []table.Part{{Weight: 1}, {Weight: 1}}}
		_, err := h.tab.Apply(table.Command{BeginSplit: &table.BeginSplit{Split: sp}})
		k, ok := KindOf(word)
		if ok != (err == nil) || ok && (k.String() != word || !k.Parts() || dividerOf(k) == nil) {
			t.Errorf("%q is the kind %d, %v; the table has %v", word, k, ok, err)
		}
		if ok {
			named++
		}
	}
	if named != len(dividers) || named == 0 {
		t.Errorf("%d of %d kinds", named, len(dividers))
	}
}
