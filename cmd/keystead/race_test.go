//go:build race

package main

// raceFlags are what the binary is built with when the tests have the race
// detector: its processes then have it, too.
var raceFlags = []string{"-race"}
