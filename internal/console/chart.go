package console

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// The room of a chart, without units: it is stretched.
const (
	chartWidth  = 600.0
	chartHeight = 120.0
)

// chart is a line over the last minutes.
type chart struct {
	Title string
	Hue   string // class of its colour
	Value string // over the last minute
	Top   string // what the upper edge stands for
	Line  string // an SVG path; "" = nothing is known yet
	Area  string // the same, closed at the lower edge
}

// charts draws the operations a second, and the 99th percentile of the times of calls.
func charts(points []point, last point) (rate, p99 chart) {
	rate = chart{Title: "Operations a second", Hue: "c0", Value: none}
	p99 = chart{Title: "p99 of calls", Hue: "c1", Value: none}
	if len(points) == 0 {
		return rate, p99
	}
	rate.Value = perSecond(last.rate)
	if last.called {
		p99.Value = lasting(int64(last.p99))
	}
	rates, times, called := make([]float64, len(points)), make([]float64, len(points)), make([]bool, len(points))
	known := make([]bool, len(points))
	for i, p := range points {
		rates[i], times[i], called[i], known[i] = p.rate, p.p99.Seconds(), p.called, true
	}
	top := rate.draw(rates, known, 1)
	rate.Top = perSecond(top)
	top = p99.draw(times, called, 1e-6)
	p99.Top = lasting(int64(top * float64(time.Second)))
	return rate, p99
}

// draw draws the values that are known, the latest at the right edge, and returns what the
// upper edge stands for: a round number, least at least.
func (c *chart) draw(values []float64, known []bool, least float64) (top float64) {
	for i, x := range values {
		if known[i] {
			top = max(top, x)
		}
	}
	top = roundUp(max(top, least))
	const step = chartWidth / (maxSamples - 2)
	var line, area strings.Builder
	drawn, from := false, 0.0
	x := chartWidth - step*float64(len(values)-1)
	for i, value := range values {
		y := chartHeight * (1 - value/top)
		switch {
		case known[i] && drawn:
			fmt.Fprintf(&line, "L%.1f %.1f", x, y)
			fmt.Fprintf(&area, "L%.1f %.1f", x, y)
		case known[i]:
			fmt.Fprintf(&line, "M%.1f %.1fh.1", x, y)
			fmt.Fprintf(&area, "M%.1f %.1fL%.1f %.1f", x, chartHeight, x, y)
			from = x
		case drawn:
			fmt.Fprintf(&area, "L%.1f %.1fL%.1f %.1fZ", x-step, chartHeight, from, chartHeight)
		}
		drawn = known[i]
		x += step
	}
	if drawn {
		fmt.Fprintf(&area, "L%.1f %.1fZ", chartWidth, chartHeight)
	}
	c.Line, c.Area = line.String(), area.String()
	return top
}

// roundUp returns the least of 1, 2 and 5 times a power of ten that is not below x.
func roundUp(x float64) float64 {
	power := math.Pow(10, math.Floor(math.Log10(x)))
	for _, n := range []float64{1, 2, 5} {
		if n*power >= x*(1-1e-9) {
			return n * power
		}
	}
	return 10 * power
}
