package reqid

import (
	"fmt"
	"math"
	"testing"

	"pgregory.net/rapid"
)

// TestOldKeysBehindNewOnes: keys that come late, as those of a copy do, are forgotten when
// their own window is over, whatever was used before they came.
func TestOldKeysBehindNewOnes(t *testing.T) {
	tab := NewTable(Config{Window: 300 * second, ClientsPerObject: 8, IDsPerClient: 8})
	fresh := KeyID("fresh")
	ref := tab.Note(0, 1, &fresh, Outcome{}, 400*second)
	for i := range 100 {
		old := KeyID(fmt.Sprint("old", i))
		ref = tab.Take(ref, 1, &old, Outcome{}, int64(101+i)*second)
	}
	width := int64(1) << tab.wheel.shift
	for now := 401 * second; now < 502*second; now += second {
		for tab.Expire(now, 10, func(uint32) {}) {
		}
		most := 1 + int((501*second+width-now)/second) // those whose window is not over by more than a bucket
		if n := tab.AllKeys(); n > most || n < most-int(width/second)-2 {
			t.Errorf("at %d s %d keys are left, want %d", now/second, n, most)
		}
	}
}

// TestWheel: keys that come in any order, while time passes in steps of any length, are
// kept for their window, and not for much longer.
func TestWheel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const window = int64(640)
		tab := NewTable(Config{Window: window, ClientsPerObject: 8, IDsPerClient: 8})
		type use struct{ at, came int64 }
		used := map[Client]use{}
		ref, now := uint32(0), rapid.Int64Range(-5000, 5000).Draw(t, "start")
		for i := range rapid.IntRange(1, 200).Draw(t, "steps") {
			if rapid.IntRange(0, 2).Draw(t, "what") > 0 {
				id := KeyID(fmt.Sprint(i))
				at := now - rapid.SampledFrom([]int64{0, 1, 9, 10, 11, 300, window - 1, window, window + 1, 5 * window}).Draw(t, "age")
				used[id.Client] = use{at, now}
				if i%2 == 0 {
					ref = tab.Take(ref, 1, &id, Outcome{}, at)
				} else {
					ref = tab.Note(ref, 1, &id, Outcome{}, at)
				}
				continue
			}
			now += rapid.SampledFrom([]int64{1, 5, 10, 11, 64, window, 3 * window, 100 * window}).Draw(t, "passes")
			for tab.Expire(now, rapid.IntRange(1, 5).Draw(t, "budget"), func(uint32) { ref = 0 }) {
			}
			left := 0
			for c, u := range used {
				switch {
				case ref != 0 && tab.findKey(ref, c) != 0:
					left++
					if now-max(u.at+window, u.came) > 1<<tab.wheel.shift {
						t.Fatalf("a key of %d, which came at %d, is there at %d", u.at, u.came, now)
					}
				case now-u.at <= window:
					t.Fatalf("a key of %d is gone at %d", u.at, now)
				default:
					delete(used, c)
				}
			}
			if n := tab.AllKeys(); n != left {
				t.Fatalf("%d keys in all, %d are found", n, left)
			}
		}
		own := 0
		for c := range used {
			if ref != 0 && tab.findKey(ref, c) != 0 && tab.keys.At(tab.findKey(ref, c)).own {
				own++
			}
		}
		if n := tab.OwnKeys(); n != own {
			t.Fatalf("%d keys are own, %d are counted", own, n)
		}
		for tab.Expire(math.MaxInt64/2, 100, func(uint32) { ref = 0 }) {
		}
		if tab.AllKeys() != 0 || tab.OwnKeys() != 0 {
			t.Fatalf("%d keys are left, %d own", tab.AllKeys(), tab.OwnKeys())
		}
	})
}
