//go:build race

package node

// testsAtOnce is how many tests run at a time at least. With the race detector they take ten times
// the CPU.
const testsAtOnce = 1
