package httpapi

import (
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// What is sent, and what comes back. A line is METHOD PATH, and headers in the form
// "name=value"; below it, the body.
func TestCalls(t *testing.T) {
	h := newHouse(t)
	datadriven.RunTest(t, "testdata/calls", func(t *testing.T, d *datadriven.TestData) string {
		h.t = t
		method, rest, _ := strings.Cut(strings.TrimSpace(d.Input), " ")
		line, body, _ := strings.Cut(rest, "\n")
		words := strings.Fields(line)
		path, headers := words[0], words[1:]
		for i, x := range headers {
			headers[i] = strings.Replace(x, "=", ": ", 1)
		}
		return h.call(method, path, body, headers...).String()
	})
}
