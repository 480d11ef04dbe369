package main

import (
	"fmt"
	"html"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

const (
	cellWidth  = 8.4
	cellHeight = 18
	columns    = 82
	ringLines  = 24
	allLines   = ringLines + 5
	margin     = 14
)

// svg draws the film: every picture is a group that is seen in its time.
func (f *film) svg() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := before + after + end
	var b strings.Builder
	width, height := columns*cellWidth+2*margin, float64(allLines*cellHeight+2*margin)
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %.0f" font-family="ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace" font-size="14">`+"\n", width, height)
	fmt.Fprintf(&b, "<title>keystead ring while %s is killed, and a counter that goes on</title>\n", html.EscapeString(f.victim))
	fmt.Fprintf(&b, `<rect width="%.0f" height="%.0f" rx="10" fill="#16191d"/><g transform="translate(%d %d)" fill="#d9dee4">`+"\n", width, height, margin, margin)
	for i, p := range f.rings {
		from, till := p.at, all
		if i == 0 {
			from = 0
		}
		if i+1 < len(f.rings) {
			till = f.rings[i+1].at
		}
		b.WriteString(seen(from, till, all, screen(p.text)))
	}
	b.WriteString(line(ringLines+1, "#8b949e", "A program adds 1 to "+key+", again and again:"))
	for at := time.Duration(0); at < before+after; at += 100 * time.Millisecond {
		till := at + 100*time.Millisecond
		if till >= before+after {
			till = all
		}
		b.WriteString(seen(at, till, all, f.counter(at)))
	}
	b.WriteString(seen(f.killed, all, all, line(ringLines+4, "#ff7b72", fmt.Sprintf("kill -9 %s, the owner of %s", f.victim, key))))
	b.WriteString("</g></svg>\n")
	return b.String()
}

// counter draws what is known of the counter at a time.
func (f *film) counter(at time.Duration) string {
	var last answer
	longest := time.Duration(0)
	for _, a := range f.adds {
		if a.at > at {
			break
		}
		last, longest = a, max(longest, a.took)
	}
	text, color := fmt.Sprintf("%d", last.value), "#7ee787"
	if quiet := at - last.at; quiet > 200*time.Millisecond && at < before+after-200*time.Millisecond {
		text, color = fmt.Sprintf("%d  … no answer for %.1f s", last.value, quiet.Seconds()), "#e3b341"
	} else if at >= f.killed && longest > 200*time.Millisecond {
		text = fmt.Sprintf("%d  goes on; the longest add took %.1f s, and none is lost or counted twice", last.value, longest.Seconds())
	}
	return line(ringLines+2, color, text)
}

// seen is a group that is visible from one time to another.
func seen(from, till, all time.Duration, inside string) string {
	if from == 0 && till == all {
		return "<g>" + inside + "</g>\n"
	}
	part := func(t time.Duration) string {
		return strconv.FormatFloat(t.Seconds()/all.Seconds(), 'f', 4, 64)
	}
	values, times := "hidden;visible;hidden", "0;"+part(from)+";"+part(till)
	switch {
	case from == 0:
		values, times = "visible;hidden", "0;"+part(till)
	case till == all:
		values, times = "hidden;visible", "0;"+part(from)
	}
	return fmt.Sprintf(`<g visibility="hidden"><animate attributeName="visibility" calcMode="discrete" dur="%gs" repeatCount="indefinite" values="%s" keyTimes="%s"/>%s</g>`+"\n",
		all.Seconds(), values, times, inside)
}

func line(n int, color, text string) string {
	return fmt.Sprintf(`<text y="%d" fill="%s" xml:space="preserve">%s</text>`, n*cellHeight, color, html.EscapeString(text))
}

// run is a stretch of a line in one colour: that of the letters, or of what is behind them.
type run struct {
	text      string
	ink, back string // "" = as usual
}

// screen draws lines with the escapes of colours.
func screen(text string) string {
	var b strings.Builder
	behind := map[string]*strings.Builder{} // paths by colour
	var order []string
	for n, l := range strings.Split(text, "\n") {
		var letters strings.Builder
		column := 0
		for _, r := range runs(l) {
			wide := utf8.RuneCountInString(r.text)
			if r.back != "" {
				if behind[r.back] == nil {
					behind[r.back] = &strings.Builder{}
					order = append(order, r.back)
				}
				fmt.Fprintf(behind[r.back], "M%.1f %dh%.1fv%dh-%.1fz", float64(column)*cellWidth, n*cellHeight+4, float64(wide)*cellWidth, cellHeight, float64(wide)*cellWidth)
			}
			switch {
			case r.back != "":
				fmt.Fprintf(&letters, `<tspan fill="#16191d">%s</tspan>`, html.EscapeString(r.text))
			case r.ink != "":
				fmt.Fprintf(&letters, `<tspan fill="%s">%s</tspan>`, r.ink, html.EscapeString(r.text))
			default:
				letters.WriteString(html.EscapeString(r.text))
			}
			column += wide
		}
		if column > 0 {
			fmt.Fprintf(&b, `<text y="%d" xml:space="preserve" textLength="%.1f">%s</text>`, (n+1)*cellHeight, float64(column)*cellWidth, joined(letters.String()))
		}
	}
	var paths strings.Builder
	for _, color := range order {
		fmt.Fprintf(&paths, `<path fill="%s" d="%s"/>`, color, behind[color])
	}
	return paths.String() + b.String()
}

// joined puts neighbours of one colour together.
func joined(spans string) string {
	return strings.ReplaceAll(spans, `</tspan><tspan fill="#16191d">`, "")
}

// runs divides a line at its escapes, and joins neighbours of the same colours.
func runs(l string) (list []run) {
	var now run
	add := func(text string) {
		if text == "" {
			return
		}
		if n := len(list); n > 0 && list[n-1].ink == now.ink && list[n-1].back == now.back {
			list[n-1].text += text
			return
		}
		list = append(list, run{text, now.ink, now.back})
	}
	for {
		text, rest, more := strings.Cut(l, "\x1b[")
		add(text)
		if !more {
			return list
		}
		code, after, _ := strings.Cut(rest, "m")
		now.ink, now.back = colorsOf(code)
		l = after
	}
}

// inks are the colours of letters that commands use.
var inks = map[string]string{"31": "#ff7b72", "32": "#7ee787", "33": "#e3b341"}

// colorsOf reads the code of an escape: one of inks, or 30;48;5;N.
func colorsOf(code string) (ink, back string) {
	if n, ok := strings.CutPrefix(code, "30;48;5;"); ok {
		i, _ := strconv.Atoi(n)
		return "", rgb(i)
	}
	return inks[code], ""
}

// rgb is a colour of the cube of 6 by 6 by 6, or of the greys, of a terminal with 256.
func rgb(i int) string {
	if i >= 232 {
		grey := 8 + 10*(i-232)
		return fmt.Sprintf("#%02x%02x%02x", grey, grey, grey)
	}
	level := func(n int) int {
		if n == 0 {
			return 0
		}
		return 55 + 40*n
	}
	i -= 16
	return fmt.Sprintf("#%02x%02x%02x", level(i/36), level(i/6%6), level(i%6))
}
