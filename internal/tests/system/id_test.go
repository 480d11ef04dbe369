package system

import (
	"strconv"
	"strings"
	"testing"
)

// TestID: as many as asked for, one a line, none twice.
func TestID(t *testing.T) {
	t.Parallel()
	last := uint64(0)
	for _, count := range []int{1, 3, 25_000} {
		lines := strings.Fields(succeeds(t, "id", "--count", strconv.Itoa(count)))
		if len(lines) != count {
			t.Errorf("%d ids, want %d", len(lines), count)
		}
		for _, l := range lines {
			id, err := strconv.ParseUint(l, 10, 63)
			if err != nil || id <= last {
				t.Fatalf("%q after %d: %v", l, last, err)
			}
			last = id
		}
	}
	left := 10_001.0
	for _, line := range strings.Split(strings.TrimSpace(succeeds(t, "id", "--count", "10001", "--json")), "\n") {
		r := object(t, line+"\n")
		hasFields(t, r, "first", "count", "node")
		first, err := strconv.ParseUint(r["first"].(string), 10, 63)
		if err != nil || first <= last {
			t.Errorf("%v after %d: %v", r, last, err)
		}
		last = first + uint64(number(t, r["count"])) - 1
		left -= number(t, r["count"])
	}
	if left != 0 {
		t.Errorf("%v are missing", left)
	}
	for _, count := range []string{"0", "10000001", "-1", "x"} {
		refuses(t, 2, "--count", "id", "--count", count)
	}
	refuses(t, 2, "takes nothing but flags", "id", "7")
}
