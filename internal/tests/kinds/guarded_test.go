package kinds

import (
	"strings"
	"testing"
)

func TestFencing(t *testing.T) {
	w := func(holder string, token uint64, at, until int64, accepted bool) Write {
		return Write{Holder: holder, Token: token, At: at, Until: until, Accepted: accepted}
	}
	for what, tc := range map[string]struct {
		writes []Write
		says   string // "" = legal
	}{
		"nothing":                 {},
		"in turn":                 {writes: []Write{w("a", 5, 1, 10, true), w("a", 5, 2, 10, true), w("b", 6, 11, 20, true)}},
		"a late one, first":       {writes: []Write{w("a", 5, 15, 10, true), w("b", 6, 16, 20, true)}},
		"a late one, refused":     {writes: []Write{w("b", 6, 11, 20, true), w("a", 5, 12, 10, false)}},
		"a late one, accepted":    {writes: []Write{w("b", 6, 11, 20, true), w("a", 5, 12, 10, true)}, says: "was accepted after"},
		"refused under its lease": {writes: []Write{w("b", 6, 11, 20, true), w("a", 5, 12, 13, false)}, says: "before the end of its lease"},
		"one token, two holders":  {writes: []Write{w("a", 5, 1, 10, true), w("b", 5, 2, 12, true)}, says: "was granted to a and to b"},
	} {
		err := Fencing(tc.writes)
		if (err == nil) != (tc.says == "") || err != nil && !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestGuarded(t *testing.T) {
	now := int64(0)
	r := &Guarded{now: func() int64 { now++; return now }}
	for _, w := range []struct {
		token    uint64
		accepted bool
	}{{5, true}, {5, true}, {7, true}, {5, false}, {7, true}, {6, false}, {8, true}} {
		if got := r.Write(1, "a", w.token, 9); got != w.accepted {
			t.Errorf("token %d: %t", w.token, got)
		}
	}
	all := r.Writes()
	if len(all) != 7 || all[3] != (Write{Client: 1, Holder: "a", Token: 5, At: 4, Until: 9}) {
		t.Errorf("%+v", all)
	}
}
