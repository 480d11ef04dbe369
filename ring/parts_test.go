package ring

import "testing"

// Clients in other languages compute the part of a request id, too: it is what it is.
func TestPartOf(t *testing.T) {
	for _, tc := range []struct {
		hi, lo, sequence uint64
		want             [3]int // of 2, of 3, of 64
	}{
		{0, 0, 0, [3]int{0, 2, 40}},
		{0, 0, 1, [3]int{1, 2, 37}},
		{0x0001020304050607, 0x08090a0b0c0d0e0f, 1, [3]int{1, 2, 61}},
		{1<<64 - 1, 1<<64 - 1, 1<<64 - 1, [3]int{0, 2, 54}},
	} {
		got := [3]int{PartOf(tc.hi, tc.lo, tc.sequence, 2), PartOf(tc.hi, tc.lo, tc.sequence, 3), PartOf(tc.hi, tc.lo, tc.sequence, 64)}
		if got != tc.want {
			t.Errorf("%x %x %d: %v, want %v", tc.hi, tc.lo, tc.sequence, got, tc.want)
		}
	}
}

// TestPartOfSpreads: the ids of one client, and the first ones of many, go to all parts
// evenly.
func TestPartOfSpreads(t *testing.T) {
	const ids = 64_000
	for _, parts := range []int{2, 3, 7, 16, MaxParts} {
		for name, of := range map[string]func(i uint64) int{
			"sequences of one client":   func(i uint64) int { return PartOf(7, 9, i, parts) },
			"first ids of many clients": func(i uint64) int { return PartOf(i, ^i, 1, parts) },
			"every so manieth sequence": func(i uint64) int { return PartOf(7, 9, i*uint64(parts), parts) },
		} {
			n := make([]int, parts)
			for i := range uint64(ids) {
				n[of(i)]++
			}
			even := float64(ids) / float64(parts)
			x := 0.0
			for _, got := range n {
				x += (float64(got) - even) * (float64(got) - even) / even
			}
			// Chi-square is parts−1 on average, and hardly ever that much above it.
			if most := float64(parts) + 30 + 2*float64(parts); x > most {
				t.Errorf("%d parts, %s: chi-square is %.1f: %v", parts, name, x, n)
			}
		}
	}
}
