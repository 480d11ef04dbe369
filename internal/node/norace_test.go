//go:build !race

package node

// testsAtOnce is how many tests run at a time at least: those of clusters wait for leases and for
// leaders nearly all of the time. See race_test.go.
const testsAtOnce = 4
