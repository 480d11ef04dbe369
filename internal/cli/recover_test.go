package cli

import (
	"testing"
)

// TestRecoverSays: what is going to be lost is said before it is done, with the command that does
// it to what was seen.
func TestRecoverSays(t *testing.T) {
	for _, c := range []struct {
		name string
		v    recoverJSON
		want string
	}{
		{"before", recoverJSON{Node: "n2", Incarnations: []string{"7"}, Rows: 144, RowsWaiting: 51, RowsLost: 93},
			"144 rows wait for the disk of n2; 93 would be lost, and 51 go on waiting for another disk\nnothing has changed: to do it, `keystead recover --without n2@7 --yes`\n"},
		{"before, of two processes", recoverJSON{Node: "n2", Incarnations: []string{"7", "8"}, Rows: 1, RowsLost: 1},
			"1 row waits for the disk of n2; 1 would be lost, and 0 go on waiting for another disk\nnothing has changed: to do it, `keystead recover --without n2 --yes`\n"},
		{"done", recoverJSON{Node: "n2", Incarnations: []string{"7"}, Rows: 144, RowsWaiting: 51, RowsLost: 93, Done: true},
			"144 rows waited for the disk of n2; 93 are lost, and 51 go on waiting for another disk\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := c.v.text(); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}
