package home

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/ring/epoch/table"
)

// TestPartReport: what a part was asked for counts once, also when another owner has taken
// the part over and counts from 0.
func TestPartReport(t *testing.T) {
	p := &partReport{}
	for i, tc := range []struct {
		operations, asked, refused uint64
		want                       uint64 // operations since the last report
		tokens, missed             float64
	}{
		{10, 30, 5, 10, 30, 5},
		{10, 30, 5, 0, 30, 5},
		{14, 42, 6, 4, 42, 6},
		{3, 7, 2, 3, 49, 8}, // another owner
		{4, 9, 2, 1, 51, 8},
	} {
		got := p.receive(Report{Value: int64(i), Operations: tc.operations, Asked: tc.asked, Refused: tc.refused})
		if got != tc.want || p.tokens != tc.tokens || p.missed != tc.missed || p.value != int64(i) {
			t.Errorf("report %d: %d operations, %+v", i, got, p)
		}
	}
}

// TestCutBeforeRaise: weight moves to the part that is asked. It is cut first, and raised
// when the owners of all parts have reported that they go by the cut.
func TestCutBeforeRaise(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEstate(t, nil, "n1", "n2")
		const lag = 3 * time.Second // of the second part's owner
		const step = 10 * time.Millisecond
		seen := map[uint64]time.Time{}
		asked := uint64(0)
		e.report = func(sp *table.Split, part int) Report {
			if _, ok := seen[sp.Weighed]; !ok {
				seen[sp.Weighed] = time.Now()
			}
			if part == 0 {
				asked += 100
				return Report{Asked: asked, Refused: asked, Operations: asked, Weighed: sp.Weighed}
			}
			if time.Since(seen[sp.Weighed]) < lag {
				return Report{Weighed: sp.Weighed - 1}
			}
			return Report{Weighed: sp.Weighed}
		}
		e.run()
		_, sp, err := e.home.Split(t.Context(), Order{Kind: owner.KindLimit, Key: e.own(), Name: "limit", Parts: 2, Manual: true})
		if err != nil {
			t.Fatal(err)
		}
		was, cut, raised, at := weightsOf(sp), 0, 0, time.Time{}
		for began := time.Now(); time.Since(began) < time.Minute; time.Sleep(step) {
			now, _ := e.Table().SplitOf(sp.ID)
			weights := weightsOf(now)
			switch {
			case weights[0] == was[0] && weights[1] == was[1]:
				continue
			case weights[0] <= was[0] && weights[1] <= was[1]:
				cut++
				at = time.Now()
			default:
				raised++
				if raised > cut || time.Since(at) < lag-step { // the cut was seen up to a step late
					t.Errorf("raised %d times after %d cuts, the last %v ago: %v, and was %v", raised, cut, time.Since(at), weights, was)
				}
			}
			if now.Weight() > table.FullWeight {
				t.Errorf("%v are more than the whole", weights)
			}
			was = weights
		}
		if cut == 0 || raised != cut || was[0] < 3*was[1] || was[0]+was[1] != table.FullWeight {
			t.Errorf("%d cuts, %d raises, %v", cut, raised, was)
		}
		synctest.Wait()
		if c := e.home.Counts(); c.Reweighs != int64(cut+raised) {
			t.Errorf("%+v", c)
		}
	})
}
