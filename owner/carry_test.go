package owner

import (
	"math"
	"testing"

	"github.com/keystead/keystead/owner/counter"
	"github.com/keystead/keystead/owner/reqid"
)

// TestTakeTellsWhatIsUnknown: what is carried elsewhere says since when its request ids
// are known, for the row that it comes to knows nothing of the one that it came from.
func TestTakeTellsWhatIsUnknown(t *testing.T) {
	for name, tc := range map[string]struct {
		since, evicted, want int64
		object               bool
	}{
		"everything is known":      {since: math.MinInt64, want: math.MinInt64, object: true},
		"nothing from before":      {since: 70 * second, want: 70 * second, object: true},
		"of what is not there":     {since: 70 * second, want: 70 * second},
		"a moment that is to come": {since: 900 * second, want: 100 * second, object: true},
	} {
		rule := &splitRule{home: "home", phase: opening, weights: []uint32{1, 1}}
		s, _ := newSplit(t, rule)
		ref := Ref{Key: "home", Name: "n"}
		if tc.object {
			rule.phase = single
			must(s.Add(100*second, ref, id(1), counter.AddOp{Delta: 1}))
			rule.phase = opening
		}
		rule.since = tc.since
		ref.Role = Carry
		all := readAll(t, s, 100*second, ref, KindCounter)
		if len(all) != 1 || all[0].IDs.Evicted != tc.want {
			t.Errorf("%s: ids of before %d count as evicted, not of before %d", name, all[0].IDs.Evicted, tc.want)
		}
		ops := all[0].IDs.Ops
		marked := len(ops) > 0 && reqid.IsMark(all[0].IDs.Clients[len(all[0].IDs.Clients)-1].Client, ops[len(ops)-1].Sequence)
		if marked != (tc.since != math.MinInt64) || marked && ops[len(ops)-1].At != tc.want {
			t.Errorf("%s: keys count as forgotten: %t: %+v", name, marked, all[0].IDs)
		}
		if marked {
			ops = ops[:len(ops)-1]
		}
		if tc.object != (len(ops) == 1 && all[0].IDs.Clients[0].Client != reqid.Client{}) {
			t.Errorf("%s: %+v", name, all[0].IDs)
		}
	}
}
