package httpapi

import (
	"context"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/keystead/keystead/internal/ids"
	"github.com/keystead/keystead/internal/rpc"
)

// curlLine is a call by curl in a text: up to a comment, or the backquote behind it.
var curlLine = regexp.MustCompile("curl (?:[^\n`#']|'[^'\n]*')*:7403(?:[^\n`#']|'[^'\n]*')*")

// A reader who copies a line from the manual is answered.
func TestCurlInDocs(t *testing.T) {
	h := newHouse(t, func(c *rpc.Config, _ *Config) {
		c.IDs = ids.New(ids.Config{Now: func() int64 { return 0 }, Claim: func(context.Context) (uint64, error) { return 7, nil }})
	})
	found := 0
	read := func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".md" {
			return err
		}
		text, err := os.ReadFile(path)
		for _, line := range curlLine.FindAllString(strings.ReplaceAll(string(text), "\\\n", " "), -1) {
			found++
			if a := h.curl(line); a.status != http.StatusOK {
				t.Errorf("%s: %s\n%s", path, line, a)
			}
		}
		return err
	}
	for _, root := range []string{"../../README.md", "../../docs"} {
		if err := filepath.WalkDir(root, read); err != nil {
			t.Fatal(err)
		}
	}
	if found < 8 {
		t.Errorf("%d lines were found", found)
	}
}

var word = regexp.MustCompile(`'[^']*'|[^\s']+`)

// curl does what a line has curl do, at the house.
func (h *house) curl(line string) answer {
	h.t.Helper()
	method, path, body := "GET", "", ""
	var headers []string
	words := word.FindAllString(line, -1)[1:]
	for i := range words {
		words[i] = strings.Trim(words[i], "'")
	}
	for len(words) > 0 {
		switch w := words[0]; {
		case w == "-d" && len(words) > 1:
			method, body, words = "POST", words[1], words[1:]
		case w == "-H" && len(words) > 1:
			headers, words = append(headers, words[1]), words[1:]
		case strings.Contains(w, ":7403"):
			_, path, _ = strings.Cut(w, ":7403")
		case w != "-f":
			h.t.Fatalf("%s: what is %s?", line, w)
		}
		words = words[1:]
	}
	return h.call(method, path, body, headers...)
}

var (
	service = regexp.MustCompile(`(?m)^service (\w+) \{`)
	method  = regexp.MustCompile(`(?m)^  rpc (\w+)\(`)
)

// Every call of the API is in the part of the manual about its service.
func TestCallsInDocs(t *testing.T) {
	text, err := os.ReadFile("../../docs/api.md")
	if err != nil {
		t.Fatal(err)
	}
	protos, err := filepath.Glob("../../proto/keystead/*/v1/*.proto")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, path := range protos {
		proto, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		of := service.FindSubmatch(proto)
		if of == nil || strings.Contains(path, "/peer/") {
			continue
		}
		_, part, _ := strings.Cut(string(text), "\n## "+string(of[1])+"\n")
		part, _, _ = strings.Cut(part, "\n## ")
		for _, m := range method.FindAllSubmatch(proto, -1) {
			found++
			whole := string(of[1]) + "." + string(m[1])
			if !regexp.MustCompile(`\b`+string(m[1])+`\b`).MatchString(part) && !strings.Contains(string(text), "**"+whole+"**") {
				t.Errorf("docs/api.md lacks %s", whole)
			}
		}
	}
	if found < 80 {
		t.Errorf("%d calls were found", found)
	}
}
