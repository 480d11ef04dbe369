package node

import (
	"strings"
	"testing"
	"time"

	"github.com/keystead/keystead/ring/epoch/serving"
	"github.com/keystead/keystead/ring/epoch/table"
)

// A status says for how long no locks of lost rows are granted: of the node's own rows what
// is left, of those of others how long it may be.
func TestGraceText(t *testing.T) {
	tab := &table.Table{Rows: make([]table.Row, 3)}
	tab.LockTTL = int64(10 * time.Minute)
	if problem, hint := graceText("n1", nil, tab, 0); problem != "" || hint != "" {
		t.Errorf("nothing was lost: %q, %q", problem, hint)
	}
	tab.Rows[1].Grace = true
	if problem, hint := graceText("n1", nil, tab, 0); problem != "the owners of lost rows grant no locks of them for up to 10m0s" || hint == "" {
		t.Errorf("rows of others: %q, %q", problem, hint)
	}
	now := int64(time.Hour)
	own := []serving.Recovery{{At: now - int64(9*time.Minute)}, {At: now - int64(25*time.Second) - 1}}
	if problem, _ := graceText("n1", own, tab, now); problem != "n1 grants no locks of 2 lost rows for another 9m35s" {
		t.Error(problem)
	}
}

// A clock that is more than a minute off is told of, and that no time is known.
func TestTimeText(t *testing.T) {
	for _, tc := range []struct {
		ahead           time.Duration
		known, timeless bool
		want            string
	}{
		{0, false, false, ""},
		{0, false, true, "n1 does not know what time it is, and refuses limits by the calendar: no majority of the nodes has clocks within a minute of each other"},
		{time.Minute, true, false, ""},
		{-time.Minute, true, false, ""},
		{61 * time.Second, true, false, "the clock of n1 is 1m1s ahead of the time that the cluster has agreed on"},
		{-61 * time.Second, true, false, "the clock of n1 is 1m1s behind the time that the cluster has agreed on"},
		{-1 << 63, true, false, "the clock of n1 is"},
	} {
		problem, hint := timeText("n1", tc.ahead, tc.known, tc.timeless)
		if !strings.HasPrefix(problem, tc.want) || (problem == "") != (tc.want == "") || (hint == "") != (tc.want == "") {
			t.Errorf("%+v: %q, %q", tc, problem, hint)
		}
	}
}

// A program that is older than what the cluster uses says so, and one that is as old as
// that, or newer, does not.
func TestLevelText(t *testing.T) {
	for level, warned := range map[uint32]bool{0: false, table.Level - 1: false, table.Level: false, table.Level + 1: true} {
		problem, hint := levelText(&table.Table{Level: level})
		if (problem != "") != warned || (hint != "") != warned {
			t.Errorf("level %d: %q, %q", level, problem, hint)
		}
	}
}
