package heat

import (
	"bufio"
	"flag"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/cespare/xxhash/v2"
)

var logFile = flag.String("log", "", "TestLog: an access log in the common or combined format; \"\" = it does nothing")

// TestLog compares sketches with the exact counts of a real log, by client, and by client
// and path:
//
//	go test ./hotkey/heat -run TestLog -log access.log -v
func TestLog(t *testing.T) {
	if *logFile == "" {
		return
	}
	f, err := os.Open(*logFile)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var clients, both []string
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 7 {
			continue
		}
		clients, both = append(clients, fields[0]), append(both, fields[0]+" "+fields[6])
	}
	for _, sets := range []int{1, DefaultSets} {
		compare(t, "client", clients, sets)
		compare(t, "client and path", both, sets)
	}
}

// compare counts keys with 64 sketches of so many sets, as a node does, and exactly.
func compare(t *testing.T, what string, keys []string, sets int) {
	t.Helper()
	all := make([]*Sketch, 64)
	for i := range all {
		all[i] = NewSketch(sets)
	}
	exact := map[uint64]float64{}
	for _, k := range keys {
		h := xxhash.Sum64String(k)
		exact[h]++
		all[h>>58].Touch(uint32(h), 0)
	}
	shown := map[uint64]Count{}
	for i, s := range all {
		s.Each(0, func(c Count) { shown[uint64(i)<<32|uint64(c.Tag)] = c })
	}
	var counts []float64
	for _, n := range exact {
		counts = append(counts, n)
	}
	slices.Sort(counts)
	slices.Reverse(counts)
	worst, missing := 0.0, 0.0
	for h, is := range exact {
		c, has := shown[h>>58<<32|uint64(uint32(h))]
		most, sure := math.Round(c.RateMax/perSecond(0)/unit), math.Round(c.RateMin/perSecond(0)/unit)
		switch {
		case !has:
			missing = max(missing, is)
		case most < is || sure > is:
			t.Errorf("%s: %.0f of a key, and it counts %.0f to %.0f", what, is, sure, most)
		default:
			worst = max(worst, most-is)
		}
	}
	t.Logf("%s, %d sets a sketch: %d operations on %d keys, the first three have %v; at most %.0f counted too much, the largest that has no place has %.0f",
		what, sets, len(keys), len(exact), counts[:min(3, len(counts))], worst, missing)
}
