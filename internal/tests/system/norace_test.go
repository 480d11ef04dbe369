//go:build !race

package system

var raceFlags []string
