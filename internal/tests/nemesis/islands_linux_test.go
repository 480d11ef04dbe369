//go:build system

package main

import "testing"

// Nodes on islands are cut off and come back, and nobody answers who may not. It
// needs root, and Debian's iproute2 and iptables.
func TestIslands(t *testing.T) {
	all, _, failed := runs(t, "--faults", "partition,oneway", "--length", "3s")
	r := all[0]
	done := 0
	for _, e := range r.Events {
		if e.Skipped == "" && len(e.Victims) == 1 && e.Healed > e.From {
			done++
		}
	}
	if failed || done == 0 {
		t.Errorf("%d cuts were made: %+v", done, r)
	}
}
