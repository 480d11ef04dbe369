package lease

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

const years = int64(365 * 24 * 3600 * 1e9)

func TestWalls(t *testing.T) {
	const s = int64(1e9)
	for name, tc := range map[string]struct {
		members int
		ahead   []int64 // those that are told
		want    int64
		ok      bool
	}{
		"alone":                        {1, []int64{5}, 5, true},
		"nobody":                       {1, nil, 0, false},
		"all alike":                    {3, []int64{7, 7, 7}, 7, true},
		"the last of a majority":       {3, []int64{7 * s, 9 * s, 8 * s}, 7 * s, true},
		"one is years ahead":           {3, []int64{4, 10 * years, 5}, 4, true},
		"one is years behind":          {3, []int64{4, -10 * years, 5}, 4, true},
		"two of two":                   {2, []int64{4, 5}, 4, true},
		"one of two is years ahead":    {2, []int64{4, 10 * years}, 0, false},
		"one of two":                   {2, []int64{4}, 0, false},
		"two of three, one silent":     {3, []int64{4, 5}, 4, true},
		"two of four":                  {4, []int64{4, 5}, 0, false},
		"half of four are wrong alike": {4, []int64{4, 5, years, years}, 0, false},
		"a minute apart":               {2, []int64{0, 60 * s}, 0, true},
		"more than a minute":           {2, []int64{0, 60*s + 1}, 0, false},
		"three that drift":             {3, []int64{0, 50 * s, 100 * s}, 0, true},
		"the narrowest":                {3, []int64{0, 50 * s, 99 * s}, 50 * s, true},
		"far apart":                    {3, []int64{math.MinInt64 / 2, 0, math.MaxInt64 / 2}, 0, false},
		"farther than can be told":     {2, []int64{math.MinInt64, math.MaxInt64}, 0, false},
	} {
		var w Walls[int]
		members := make([]int, tc.members)
		for i := range members {
			members[i] = i
		}
		for i, ahead := range tc.ahead {
			w.Heard(i, ahead+100, 100, 50)
		}
		w.Heard(99, 5, 100, 50) // it is no member
		if got, ok := w.Agreed(members, 40); ok != tc.ok || ok && got != tc.want {
			t.Errorf("%s: %d, %v", name, got, ok)
		}
		if _, ok := w.Agreed(members, 51); ok {
			t.Errorf("%s: what was told long ago counts", name)
		}
		if len(w.told) > tc.members {
			t.Errorf("%s: %d are remembered", name, len(w.told))
		}
	}
}

// As long as more than half of the clocks are right, the time is right, whatever the others show,
// and not ahead of the fastest of those that are right.
func TestMinorityHasNoSay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 9).Draw(t, "members")
		wrong := rapid.IntRange(0, (n-1)/2).Draw(t, "wrong")
		off := rapid.Int64Range(0, WallsWithin/2)
		var w Walls[int]
		var members []int
		least, most := int64(math.MaxInt64), int64(math.MinInt64)
		for i := range n {
			ahead := off.Draw(t, "off")
			if i < wrong {
				ahead = rapid.Int64Range(-50*years, 50*years).Draw(t, "wrong by")
			} else {
				least, most = min(least, ahead), max(most, ahead)
			}
			w.Heard(i, ahead, 0, 0)
			members = append(members, i)
		}
		got, ok := w.Agreed(members, 0)
		if !ok || got < least-WallsWithin || got > most {
			t.Fatalf("%d, %v; right are %d to %d", got, ok, least, most)
		}
	})
}

// What a node counts lies between what messages allow, and stays while it does.
func TestWallLearns(t *testing.T) {
	var w Wall
	if _, known := w.Ahead(); known {
		t.Error("it is known")
	}
	for _, s := range []struct{ wall, sent, answered, want int64 }{
		{1000, 100, 110, 890},
		{1010, 110, 116, 894}, // it took less time
		{1030, 130, 190, 894}, // and much more
		{1100, 210, 220, 890}, // the time was set back
		{900, 300, 310, 600},
		{5000, 310, 320, 4680}, // and ahead
	} {
		w.Learn(s.wall, s.sent, s.answered)
		if got, known := w.Ahead(); !known || got != s.want {
			t.Errorf("%+v: %d", s, got)
		}
	}
}
