package cli

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// hotText is how many characters of a key or a name the table shows.
const hotText = 48

// hotRow is a line of the table.
type hotRow [hotColumns]string

// The columns that are cut on a narrow terminal, those with numbers, which stand to the
// right, and how many there are in all.
const (
	hotKey     = 0
	hotName    = 1
	hotRate    = 4
	hotQueue   = 6
	hotColumns = 8
)

const (
	hotLeast = 12 // characters that are left of a key or a name that is cut
	hotState = 24 // columns that the state is to have: "hot 1h12m33s, 3 parts: …"
	hotGap   = 2  // columns between two
)

// draw returns the table for people, in lines. On a terminal they are made to fit: keys
// and names are cut, so that the state is seen, which is why one looks.
func (v *hotJSON) draw(on canvas) string {
	var b strings.Builder
	width := 0
	if on.cut {
		width = on.width
	}
	for _, line := range wrapped(v.sums(), width) {
		fmt.Fprintln(&b, line)
	}
	for _, n := range v.Nodes {
		if n.Error != "" {
			fmt.Fprintln(&b, on.paint(bad, fmt.Sprintf("Nothing of %s: %s", n.ID, n.Error)))
		}
	}
	if len(v.Keys) == 0 {
		return b.String()
	}
	fmt.Fprintln(&b)
	rows := []hotRow{{"KEY", "NAME", "KIND", "OWNER", "RATE", "SHARE", "QUEUE", "STATE"}}
	states := map[int]tone{} // of rows
	for i := range v.Keys {
		states[len(rows)] = v.Keys[i].tone()
		rows = append(rows, v.Keys[i].rows(v.parts)...)
	}
	for column := hotRate; column <= hotQueue; column++ {
		toTheRight(rows, column)
	}
	narrow(rows, width)
	lines := make([][]cell, len(rows))
	for i, r := range rows {
		lines[i] = cells(r[:]...)
		lines[i][hotColumns-1].tone = states[i]
	}
	b.WriteString(on.lines(lines))
	return b.String()
}

// sums returns the total of all nodes, and the rule by which keys are hot.
func (v *hotJSON) sums() string {
	rate, hot, left, answered := 0.0, -v.again, uint64(0), 0
	var policies []string
	for _, n := range v.Nodes {
		if n.Error != "" {
			continue
		}
		answered++
		rate, hot, left = rate+n.Rate, hot+int(n.Hot), left+n.LeftOut
		policies = append(policies, fmt.Sprintf("%s a second and %s times the average of the others", decimal(n.Floor), decimal(n.Factor)))
	}
	slices.Sort(policies)
	text := fmt.Sprintf("%s, %s operations a second, %s hot: from %s", plural(answered, "node"), perSecond(rate), plural(hot, "key"),
		strings.Join(slices.Compact(policies), ", or "))
	if left > 0 {
		text += fmt.Sprintf("; %d times there was no room for another one", left)
	}
	if n := len(v.splits); n > 0 {
		text += fmt.Sprintf("; %s %s split", plural(n, "object"), isAre(n))
	}
	return text
}

// narrow cuts keys, and then names, as far as a terminal of this width needs it; 0 = as
// wide as it likes.
func narrow(rows []hotRow, width int) {
	if width == 0 {
		return
	}
	over := -width
	var wide [hotColumns]int
	for column := range hotColumns {
		for _, r := range rows {
			wide[column] = max(wide[column], utf8.RuneCountInString(r[column]))
		}
		if column == hotColumns-1 {
			wide[column] = min(wide[column], hotState)
		} else {
			over += hotGap
		}
		over += wide[column]
	}
	for _, column := range []int{hotKey, hotName} {
		cut := min(over, wide[column]-hotLeast)
		if cut <= 0 {
			continue
		}
		over -= cut
		for i := range rows {
			rows[i][column] = shorten(rows[i][column], wide[column]-cut)
		}
	}
}

// toTheRight pads a column with spaces in front.
func toTheRight(rows []hotRow, column int) {
	width := 0
	for _, r := range rows {
		width = max(width, len(r[column]))
	}
	for i := range rows {
		rows[i][column] = fmt.Sprintf("%*s", width, rows[i][column])
	}
}

// tone is how an entry stands: a key that is hot, or on which calls wait, is not well.
func (k *hotKeyJSON) tone() tone {
	return toneIf(k.Hot || k.Split != nil && k.Split.Phase != "open", warned)
}

// state returns the STATE column of an entry; with parts, these have lines of their own.
func (k *hotKeyJSON) state(parts bool) string {
	var about []string
	if k.Hot {
		about = append(about, "hot "+time.Duration(k.HotFor).Truncate(time.Second).String())
	}
	if k.Split != nil {
		about = append(about, k.Split.text(k.Kind, parts))
	}
	return strings.Join(about, ", ")
}

func (k *hotKeyJSON) queue() string {
	if k.Kind != "lock" {
		return ""
	}
	return strconv.FormatUint(uint64(k.Waiting), 10)
}

// perSecond writes a rate: whole operations where there are ten or more.
func perSecond(rate float64) string {
	if rate < 10 {
		return strconv.FormatFloat(rate, 'f', 1, 64)
	}
	return strconv.FormatFloat(rate, 'f', 0, 64)
}

// decimal writes a setting as it was given.
func decimal(x float64) string { return strconv.FormatFloat(x, 'f', -1, 64) }
