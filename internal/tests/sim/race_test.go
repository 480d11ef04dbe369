//go:build race

package sim

// slower is how many times less is done with the race detector, under which all takes
// ten times as long: it looks for other things than the scenarios do.
const slower = 4
