package cli

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
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

// wrapped breaks a text into lines of at most width characters, between words; a word that
// is longer stands alone. A width of 0 or less leaves the text as it is.
func wrapped(text string, width int) []string {
	if width <= 0 || utf8.RuneCountInString(text) <= width {
		return []string{text}
	}
	var lines []string
	line, room := "", width
	for word := range strings.FieldsSeq(text) {
		n := utf8.RuneCountInString(word)
		switch {
		case line == "":
			line, room = word, width-n
		case n+1 <= room:
			line, room = line+" "+word, room-n-1
		default:
			lines = append(lines, line)
			line, room = word, width-n
		}
	}
	return append(lines, line)
}
