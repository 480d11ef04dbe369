//go:build !race

package sim

const slower = 1 // see race_test.go
