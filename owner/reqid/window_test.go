package reqid

import (
	"fmt"
	"math"
	"testing"
)

// TestWindowChanges: a table may be told another window. What was forgotten under a shorter
// one is in doubt until the longer one is over; if nothing was, nothing is.
func TestWindowChanges(t *testing.T) {
	forgets := func(tab *Table, now int64) {
		for tab.Expire(now, 10, func(uint32) {}) {
		}
	}
	judge := func(tab *Table, ref uint32, key string, now int64) Verdict {
		id := KeyID(key)
		v, _, _ := tab.Judge(ref, &id, 7, math.MinInt64, now)
		return v
	}
	tab := NewTable(Config{Window: 60 * second, ClientsPerObject: 8, IDsPerClient: 8})
	ref := uint32(0)
	for i := range 20 {
		id := KeyID(fmt.Sprint(i))
		ref = tab.Note(ref, 1, &id, Outcome{Print: 7}, int64(100+10*i)*second)
	}
	numbered := ID{Client: Client{Hi: 1}, Sequence: 1}
	ref = tab.Note(ref, 1, &numbered, Outcome{Print: 7}, 230*second)
	now := 295 * second
	tab.SetWindow(300 * second)
	if v := judge(tab, ref, "new", now); v != New {
		t.Errorf("nothing is forgotten yet: verdict %d", v)
	}
	if v := judge(tab, ref, "0", now); v != Replay {
		t.Errorf("a key that is still there: verdict %d", v)
	}
	forgets(tab, now)
	if n := tab.AllKeys(); n != 20 {
		t.Fatalf("%d keys are left", n)
	}
	tab.SetWindow(60 * second)
	forgets(tab, now)
	if n := tab.AllKeys(); n != 6 {
		t.Fatalf("%d keys are left of the last 60 s", n)
	}
	tab.SetWindow(300 * second)
	for key, want := range map[string]Verdict{"0": Unsure, "new": Unsure, "19": Replay} {
		if v := judge(tab, ref, key, now); v != want {
			t.Errorf("%s is %d, want %d", key, v, want)
		}
	}
	numbered.Age = 70 * second
	if v, _, _ := tab.Judge(0, &numbered, 7, math.MinInt64, now); v != TooOld {
		t.Errorf("a retry of what may be forgotten: verdict %d", v)
	}
	gone := 230 * second // the last that was forgotten
	if v := judge(tab, ref, "new", gone+300*second); v != Unsure {
		t.Errorf("verdict %d", v)
	}
	if v := judge(tab, ref, "new", gone+300*second+1); v != New {
		t.Errorf("verdict %d", v)
	}
	forgets(tab, 591*second)
	if n := tab.AllKeys(); n != 0 {
		t.Errorf("%d keys are left", n)
	}
}

// TestWindowOfIDsAlone: request ids that were forgotten under a shorter window put no key in doubt.
func TestWindowOfIDsAlone(t *testing.T) {
	tab := NewTable(Config{Window: 60 * second, ClientsPerObject: 8, IDsPerClient: 8})
	id := ID{Client: Client{Hi: 1}, Sequence: 1}
	tab.Note(0, 1, &id, Outcome{Print: 7}, 100*second)
	now := 200 * second
	for tab.Expire(now, 10, func(uint32) {}) {
	}
	tab.SetWindow(300 * second)
	id.Age = 105 * second
	if v, _, _ := tab.Judge(0, &id, 7, math.MinInt64, now); v != TooOld {
		t.Errorf("a retry of what is forgotten: verdict %d", v)
	}
	key := KeyID("order")
	if v, _, _ := tab.Judge(0, &key, 7, math.MinInt64, now); v != New {
		t.Errorf("a key, of which none was used before: verdict %d", v)
	}
}
