package cli

import (
	"fmt"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
)

// colorMode is when a command paints: never with a meaning that the text lacks.
type colorMode string

const (
	colorAuto   colorMode = "auto"   // on a terminal that has colours, unless NO_COLOR is set
	colorAlways colorMode = "always" // also into a file or a pipe
	colorNever  colorMode = "never"
)

// flags adds --color.
func (m *colorMode) flags(cmd *cobra.Command) {
	*m = colorAuto
	cmd.Flags().Var(m, "color", "paint what is not well: `auto`, always or never; auto = on a terminal, unless NO_COLOR is set or TERM is dumb")
}

// String implements pflag.Value.
func (m *colorMode) String() string { return string(*m) }

// Set implements pflag.Value.
func (m *colorMode) Set(text string) error {
	switch mode := colorMode(text); mode {
	case colorAuto, colorAlways, colorNever:
		*m = mode
		return nil
	}
	return fmt.Errorf("choose %s, %s or %s", colorAuto, colorAlways, colorNever)
}

// Type implements pflag.Value.
func (m *colorMode) Type() string { return "WHEN" }

// paints reports whether there are colours on what is a terminal, or is none.
func (m colorMode) paints(terminal bool, env func(string) string) bool {
	switch m {
	case colorAlways:
		return true
	case colorNever:
		return false
	}
	return terminal && env("NO_COLOR") == "" && env("TERM") != "dumb"
}

// canvas returns what can be drawn on there, with colours or without.
func (m colorMode) canvas(out any) canvas {
	f, _ := out.(*os.File)
	c := canvasOf(f)
	c.color = m.paints(c.cut, os.Getenv)
	return c
}

// tone is how something stands. The text says the same.
type tone int

const (
	plain tone = iota
	good
	warned
	bad
)

// tones are the colours that every terminal has, which its user has chosen.
var tones = map[tone]string{good: "\x1b[32m", warned: "\x1b[33m", bad: "\x1b[31m"}

const toneEnd = "\x1b[0m"

// paint returns a text in the colour of a tone.
func (c canvas) paint(t tone, text string) string {
	if !c.color || t == plain || text == "" {
		return text
	}
	return tones[t] + text + toneEnd
}

// cell is one field of a table.
type cell struct {
	text string
	tone tone
}

// cells are plain fields.
func cells(texts ...string) []cell {
	row := make([]cell, len(texts))
	for i, text := range texts {
		row[i].text = text
	}
	return row
}

// tableGap is how many columns are between two fields.
const tableGap = 2

// lines returns the rows of a table as lines, their fields one below the other. The colours take no room.
func (c canvas) lines(rows [][]cell) string {
	var wide []int
	for _, row := range rows {
		for i, field := range row {
			if i == len(wide) {
				wide = append(wide, 0)
			}
			wide[i] = max(wide[i], utf8.RuneCountInString(field.text))
		}
	}
	var b strings.Builder
	for _, row := range rows {
		gap := 0 // that is left out at the end of a line
		for i, field := range row {
			room := wide[i] + tableGap
			if strings.TrimSpace(field.text) == "" {
				gap += room
				continue
			}
			b.WriteString(strings.Repeat(" ", gap))
			b.WriteString(c.paint(field.tone, field.text))
			gap = room - utf8.RuneCountInString(field.text)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// clip cuts a line to a number of characters. Its colours take no room, and end with it.
func clip(line string, width int) string {
	if !strings.Contains(line, "\x1b") {
		return shorten(line, width)
	}
	var kept strings.Builder
	room, painted := width, false
	for i := 0; i < len(line); {
		if end := strings.IndexByte(line[i:], 'm'); line[i] == '\x1b' && end >= 0 {
			code := line[i : i+end+1]
			painted = code != toneEnd
			kept.WriteString(code)
			i += len(code)
			continue
		}
		_, size := utf8.DecodeRuneInString(line[i:])
		if room <= 1 && visible(line[i:]) > room {
			if room == 1 {
				kept.WriteString("…")
			}
			if painted {
				kept.WriteString(toneEnd)
			}
			return kept.String()
		}
		kept.WriteString(line[i : i+size])
		i, room = i+size, room-1
	}
	return kept.String()
}

// visible counts the characters of a line that take room.
func visible(line string) int {
	n := 0
	for i := 0; i < len(line); n++ {
		for i < len(line) && line[i] == '\x1b' {
			end := strings.IndexByte(line[i:], 'm')
			if end < 0 {
				break
			}
			i += end + 1
		}
		if i == len(line) {
			break
		}
		_, size := utf8.DecodeRuneInString(line[i:])
		i += size
	}
	return n
}
