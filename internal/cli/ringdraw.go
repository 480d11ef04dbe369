package cli

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"unicode/utf8"

	clusterpb "github.com/keystead/keystead/proto/keystead/cluster/v1"
)

// The drawing is a band between two ellipses. Characters are about twice as
// high as wide, so it looks like a ring.
const (
	drawWidth  = 34 // even, so that no character lies on the axis
	drawHeight = 17
	drawHole   = 62 // diameter of the hole, percent of the whole
	drawRoom   = 72 // columns below which there is only the strip

	stripMax = 64 // stretches in the strip

	shareBarMax   = 24 // columns of a bar
	shareBarLeast = 6
	idLeast       = 8 // columns of an id that is cut
)

// canvas is where a ring is drawn.
type canvas struct {
	width, height int  // of the terminal, in characters; height 0 = as high as it likes
	color         bool // with colours
	cut           bool // ids that are too long for the width are cut
}

// marks are the characters of the nodes. In small letters they mean that the
// stretch moves.
const marks = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"

const (
	markNobody = '.'
	markMany   = '*' // all nodes beyond marks
)

// colors are of the 256 that terminals have: bright ones, for black letters.
var colors = []int{39, 214, 77, 207, 226, 51, 203, 141, 119, 215, 45, 218, 190, 111, 180, 252}

// palette gives each node a mark, the same for as long as it lives. It may be
// used by one goroutine at a time.
type palette struct{ places map[string]int }

// of gives the nodes their places, in their order.
func (p *palette) of(nodes []ringNode) []int {
	if p.places == nil {
		p.places = map[string]int{}
	}
	there, taken := map[string]bool{}, map[int]bool{}
	for _, n := range nodes {
		there[n.id] = true
	}
	for id, place := range p.places {
		if there[id] {
			taken[place] = true
		} else {
			delete(p.places, id)
		}
	}
	places, next := make([]int, len(nodes)), 0
	for i, n := range nodes {
		place, ok := p.places[n.id]
		for ; !ok; next++ {
			if !taken[next] {
				place, ok = next, true
				p.places[n.id] = place
			}
		}
		places[i] = place
	}
	return places
}

// drawing draws one view.
type drawing struct {
	canvas
	*ringView
	places []int // of the nodes
}

// draw returns the ring as text, lines with an end.
func (v *ringView) draw(c canvas, p *palette) string {
	d := &drawing{c, v, p.of(v.nodes)}
	lines := d.head()
	if d.width >= drawRoom && (d.height == 0 || d.height >= drawHeight+6) {
		lines = append(lines, d.sideBySide(d.circle(), d.legend(d.width-drawWidth-2))...)
	} else {
		lines = append(lines, d.legend(d.width)...)
	}
	lines = append(lines, "", d.strip())
	lines = append(lines, d.foot()...)
	return strings.Join(lines, "\n") + "\n"
}

func (d *drawing) head() []string {
	of := d.table.Cluster
	if of == "" {
		of = "a node that runs alone"
	}
	if d.size == 0 {
		return []string{fmt.Sprintf("Ring of %s at epoch %d: none yet, nobody owns anything", of, d.table.Epoch), ""}
	}
	lines := []string{
		fmt.Sprintf("Ring of %s at epoch %d: %s, %d points", of, d.table.Epoch, plural(len(d.table.Wanted), "node"), d.size),
		fmt.Sprintf("digest %d, balance %.3f (largest share ÷ average)", d.table.RingDigest, d.most), "",
	}
	if d.digest != d.table.RingDigest {
		lines[1] = d.canvas.paint(bad, fmt.Sprintf("digest %d; this program computes %d: it is of another version", d.table.RingDigest, d.digest))
	}
	return lines
}

// paint returns the mark of a cell, coloured if that is wanted.
func (d *drawing) paint(c ringCell) string {
	if c.owner < 0 {
		return string(markNobody)
	}
	place := d.places[c.owner]
	mark := string(markMany)
	if place < len(marks) {
		mark = marks[place : place+1]
	}
	if c.moving {
		mark = strings.ToLower(mark)
	}
	if !d.color {
		return mark
	}
	return fmt.Sprintf("\x1b[30;48;5;%dm%s\x1b[0m", colors[place%len(colors)], mark)
}

// spot is a character of the band, x to the right and y down from the centre,
// scaled so that the ellipse is a circle.
type spot struct{ row, column, x, y int }

// clockwise orders spots by their angle from the top, exactly; from the centre
// outwards where it is the same.
func clockwise(a, b spot) int {
	left := func(s spot) int { // 0 for the right half, which comes first
		if s.x > 0 || s.x == 0 && s.y < 0 {
			return 0
		}
		return 1
	}
	return cmp.Or(left(a)-left(b), b.x*a.y-a.x*b.y, a.x*a.x+a.y*a.y-b.x*b.x-b.y*b.y)
}

// band returns the characters of the ring, clockwise from the top.
func band() []spot {
	const radius = drawWidth * drawHeight
	var spots []spot
	for row := range drawHeight {
		for column := range drawWidth {
			s := spot{row, column, (2*column + 1 - drawWidth) * drawHeight, (2*row + 1 - drawHeight) * drawWidth}
			if d := s.x*s.x + s.y*s.y; d <= radius*radius && d*100*100 >= radius*radius*drawHole*drawHole {
				spots = append(spots, s)
			}
		}
	}
	slices.SortFunc(spots, clockwise)
	return spots
}

// circle draws the band, and a few words in its middle.
func (d *drawing) circle() []string {
	picture := make([][]string, drawHeight)
	for i := range picture {
		picture[i] = slices.Repeat([]string{" "}, drawWidth)
	}
	spots := band()
	for i, c := range d.cells(len(spots)) {
		picture[spots[i].row][spots[i].column] = d.paint(c)
	}
	words := []string{cmp.Or(d.table.Cluster, d.id(len(d.nodes)-1)), plural(len(d.nodes), "node")}
	if rows, share := d.toMove(); rows > 0 {
		words = append(words, percent(share)+" to move")
	}
	if d.unowned.Rows > 0 {
		words = append(words, percent(d.unowned.Share)+" unowned")
	}
	const hole = drawWidth*drawHole/100 - 4
	for i, word := range words {
		word = shorten(word, hole)
		row := picture[drawHeight/2-len(words)/2+i]
		at := (drawWidth - utf8.RuneCountInString(word)) / 2
		for _, r := range word {
			row[at] = string(r)
			at++
		}
	}
	lines := make([]string, drawHeight)
	for i, row := range picture {
		lines[i] = strings.Join(row, "")
	}
	return lines
}

// sideBySide puts a picture to the left of a text. The picture's lines are all
// drawWidth wide.
func (d *drawing) sideBySide(picture, text []string) []string {
	lines := make([]string, max(len(picture), len(text)))
	from := max(0, (len(picture)-len(text))/2)
	for i := range lines {
		left, right := strings.Repeat(" ", drawWidth), ""
		if i < len(picture) {
			left = picture[i]
		}
		if i >= from && i-from < len(text) {
			right = text[i-from]
		}
		lines[i] = strings.TrimRight(left+"  "+right, " ")
	}
	return lines
}

// legend lists the nodes in a width.
func (d *drawing) legend(width int) []string {
	if len(d.nodes) == 0 {
		return nil
	}
	longest, most := len("NODE"), 0.0
	for _, n := range d.nodes {
		longest, most = max(longest, utf8.RuneCountInString(n.id)), max(most, n.wanted, n.owned)
	}
	const others = len("A  ") + len("  WANTED") + len("   OWNED")
	room := longest
	if d.cut {
		room = min(longest, max(idLeast, width-others))
	}
	bar := min(shareBarMax, width-others-room-2)
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, " \tNODE\tWANTED\t OWNED\t")
	for _, n := range d.nodes {
		fmt.Fprintf(w, " \t%s\t%6s\t%6s\t%s\n", shorten(n.id, room), percent(n.wanted), percent(n.owned), shareBar(n, most, bar))
	}
	_ = w.Flush() // to memory
	lines := strings.Split(strings.TrimSuffix(text.String(), "\n"), "\n")
	for i := range d.nodes {
		lines[i+1] = d.paint(ringCell{owner: i}) + lines[i+1][1:]
	}
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return lines
}

// shareBar draws the share of a node: # is wanted and owned, · wanted and not owned yet,
// + owned and no longer wanted.
func shareBar(n ringNode, most float64, width int) string {
	if width < shareBarLeast || most == 0 {
		return ""
	}
	columns := func(share float64) int { return int(share/most*float64(width) + 0.5) }
	owned, wanted := columns(n.owned), columns(n.wanted)
	both := min(owned, wanted)
	return strings.Repeat("#", both) + strings.Repeat("+", owned-both) + strings.Repeat("·", wanted-both)
}

// strip returns the ring in one line.
func (d *drawing) strip() string {
	n := max(1, min(stripMax, d.width-len("0 || 2^64")))
	var line strings.Builder
	line.WriteString("0 |")
	for _, c := range d.cells(n) {
		line.WriteString(d.paint(c))
	}
	line.WriteString("| 2^64")
	return line.String()
}

// foot explains the drawing and lists what moves.
func (d *drawing) foot() []string {
	lines := []string{"A character: who owns most of a stretch of hash space, clockwise from the top."}
	if d.width < len(lines[0]) {
		lines[0] = "A character: who owns most of a stretch."
	}
	if d.unowned.Rows > 0 {
		lines = append(lines, d.canvas.paint(bad, fmt.Sprintf("%s without owner, %s: %c", plural(d.unowned.Rows, "row"), percent(d.unowned.Share), markNobody)))
	}
	lines = append(lines, d.leaving()...)
	rows, share := d.toMove()
	switch {
	case rows > 0:
		lines = append(lines, d.canvas.paint(warned, fmt.Sprintf("The ring changes: %d of %d rows to move, %s; small letters move.", rows, len(d.rows), percent(share))))
	case d.table.Transition != 0:
		lines = append(lines, d.canvas.paint(warned, "The ring changes: all rows have moved."))
	}
	if rows == 0 {
		return lines
	}
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	for _, m := range d.moves {
		fmt.Fprintf(w, "  %s → %s\t%s, %s\n", orDash(m.From), m.To, plural(m.Rows, "row"), percent(m.Share))
	}
	_ = w.Flush() // to memory
	return append(lines, strings.Split(strings.TrimSuffix(text.String(), "\n"), "\n")...)
}

// leaving lists the nodes that are drained, and what they have left.
func (d *drawing) leaving() []string {
	var lines []string
	for i, n := range d.nodes {
		switch n.phase {
		case clusterpb.Phase_PHASE_LEAVING:
			rows, standby := d.held(i)
			lines = append(lines, d.canvas.paint(warned, fmt.Sprintf("%s is leaving: %s and %s left.", n.id, plural(rows, "row"), plural(standby, "standby row"))))
		case clusterpb.Phase_PHASE_DRAINED:
			lines = append(lines, d.canvas.paint(warned, n.id+" is drained."))
		}
	}
	return lines
}

// shorten cuts a text to a number of characters.
func shorten(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	return string([]rune(s)[:max(n-1, 0)]) + "…"
}
