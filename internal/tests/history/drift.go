package history

// Drift is by how much the clocks of nodes run fast or slow at most, against the
// recorder's: parts of a million.
type Drift int64

// million is what a Drift counts parts of.
const million = 1_000_000

// Drifting returns the model of objects of nodes whose clocks drift: what takes a node some
// time may be over a little sooner by the recorder's clock, or a little later.
func (m Model) Drifting(d Drift) Model {
	m.drift = d
	return m
}

// Least returns how long a time of a node's clock takes at least by the recorder's.
func (d Drift) Least(ns int64) int64 { return d.least(ns) }

// least returns how long so much of a node's time takes at least.
func (d Drift) least(x int64) int64 {
	if d == 0 || x <= 0 {
		return x
	}
	return x - x/million*int64(d) - x%million*int64(d)/million - 1
}

// most returns how long so much of a node's time takes at most. Clocks that are slow by a part
// take longer by a little more than that part.
func (d Drift) most(x int64) int64 {
	if d == 0 || x <= 0 {
		return x
	}
	more := int64(d)*million/(million-int64(d)) + 1
	return x + x/million*more + x%million*more/million + 1
}
