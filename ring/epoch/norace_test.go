//go:build !race

package epoch

// testsAtOnce is how many tests run at a time: they wait for raft nearly all of the time, on any number of
// CPUs. See race_test.go.
const testsAtOnce = 8
