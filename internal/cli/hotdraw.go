package cli

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// hotText is how many characters of a key or a name the table shows.
const hotText = 48

// hotRow is a line of the table.
type hotRow [hotColumns]string

// The columns with numbers, which stand to the right, and how many there are in all.
const (
	hotRate    = 4
	hotQueue   = 6
	hotColumns = 8
)

// draw returns the table for people, in lines.
func (v *hotJSON) draw(canvas) string {
	var b strings.Builder
	fmt.Fprintln(&b, v.sums())
	for _, n := range v.Nodes {
		if n.Error != "" {
			fmt.Fprintf(&b, "Nothing of %s: %s\n", n.ID, n.Error)
		}
	}
	if len(v.Keys) == 0 {
		return b.String()
	}
	fmt.Fprintln(&b)
	rows := []hotRow{{"KEY", "NAME", "KIND", "OWNER", "RATE", "SHARE", "QUEUE", "STATE"}}
	for i := range v.Keys {
		rows = append(rows, v.Keys[i].rows(v.parts)...)
	}
	for column := hotRate; column <= hotQueue; column++ {
		toTheRight(rows, column)
	}
	var table strings.Builder
	w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	for _, r := range rows {
		fmt.Fprintln(w, strings.Join(r[:], "\t"))
	}
	_ = w.Flush() // table is in memory
	for line := range strings.Lines(table.String()) {
		fmt.Fprintln(&b, strings.TrimRight(line, " \n"))
	}
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
