package cli

import (
	"fmt"
	"strconv"
)

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return strconv.Itoa(n) + " " + what + "s"
}

func isAre(n int) string {
	if n == 1 {
		return "is"
	}
	return "are"
}

// percent writes a share, from 0 to 1.
func percent(share float64) string { return fmt.Sprintf("%.1f%%", 100*share) }
