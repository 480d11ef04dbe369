//go:build race

package epoch

// testsAtOnce is how many tests run at a time. With the race detector they take ten times the CPU.
const testsAtOnce = 2
