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
	"time"

	"github.com/keystead/keystead/internal/ids"
	"github.com/keystead/keystead/internal/policy"
	"github.com/keystead/keystead/internal/rpc"
	"github.com/keystead/keystead/owner"
)

// curlLine is a call by curl in a text: up to a comment, or the backquote behind it.
var curlLine = regexp.MustCompile("curl (?:[^\n`#']|'[^']*')*:7403(?:[^\n`#']|'[^']*')*")

// dated is sole with the time of day.
type dated struct{ sole }

func (dated) Wall(now int64) (int64, bool) { return now, true }

// told are the policies of the manual.
type told struct {
	rpc.Policies
	inForce policy.InForce
}

func (p *told) InForce() *policy.InForce { return &p.inForce }

// policyFile is a file of policies in a text that has admission policies.
var policyFile = regexp.MustCompile("(?s)```yaml\n(policies:.*?\nadmissions:.*?)```")

// A reader who copies a call from the manual is answered.
func TestCurlInDocs(t *testing.T) {
	manual, err := os.ReadFile("../../docs/policies.md")
	if err != nil {
		t.Fatal(err)
	}
	policies := &told{}
	policies.inForce.Put(policy.NewAgreed(1, "", policyFile.FindSubmatch(manual)[1], nil))
	h := newHouse(t, func(c *rpc.Config, _ *Config) {
		if c.Store, err = owner.New(owner.Config{Rule: dated{}, Policies: policies.InForce()}, int64(time.Hour)); err != nil {
			t.Fatal(err)
		}
		c.Policies = policies
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
