//go:build race

package system

// raceFlags are what the binary is built with when the tests have the race
// detector: its processes then have it, too.
var raceFlags = []string{"-race"}
