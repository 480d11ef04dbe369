package console

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
)

// maxText bounds how many bytes of a text of anybody are shown.
const maxText = 600

// printable is a text of anybody as it is shown: what cannot be seen, or changes how the
// rest is seen, is escaped.
func printable(text string) string {
	var b strings.Builder
	for i, r := range text {
		if b.Len() > maxText {
			return b.String() + "…"
		}
		switch {
		case r == unicode.ReplacementChar && !strings.HasPrefix(text[i:], string(unicode.ReplacementChar)):
			fmt.Fprintf(&b, `\x%02x`, text[i])
		case r == ' ' || unicode.IsPrint(r):
			b.WriteRune(r)
		default:
			quoted := strconv.QuoteRuneToASCII(r)
			b.WriteString(quoted[1 : len(quoted)-1])
		}
	}
	return b.String()
}

// count writes a number with commas.
func count(n uint64) string {
	text := strconv.FormatUint(n, 10)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// plural returns the word for n of a kind of object.
func plural(kind string, n int64) string {
	if n == 1 {
		return kind
	}
	return kind + "s"
}

// size writes a number of bytes.
func size(n int64) string {
	const units = "KMGT"
	if n < 1<<10 {
		return fmt.Sprintf("%d B", n)
	}
	x, i := float64(n)/1024, 0
	for ; x >= 1024 && i < len(units)-1; i++ {
		x /= 1024
	}
	return fmt.Sprintf("%s %ciB", strings.TrimSuffix(strconv.FormatFloat(x, 'f', 1, 64), ".0"), units[i])
}

// perSecond writes a rate.
func perSecond(rate float64) string {
	if rate < 10 {
		return strconv.FormatFloat(rate, 'f', 1, 64)
	}
	return count(uint64(rate + 0.5))
}
