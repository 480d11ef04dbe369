package manual

import (
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/keystead/keystead/internal/cli"
	"github.com/keystead/keystead/internal/config"
)

// top is the repository, seen from this package.
const top = "../../../.."

// others are flags, variables and names of other programs that the pages name.
var others = []string{
	"KEYSTEAD_SERVICE_HOST", "KEYSTEAD_PORT", // Kubernetes
	"--stop-timeout", "--profile", // Docker
	"--faults",                    // internal/tests/nemesis
	"--no-forward", "--in-flight", // internal/tests/grpcjs
	"--tenant", "--per-minute", "--lease", // examples/shop-python and shop-typescript
	"GRPC_XDS_ENDPOINT_HASH_KEY_BACKWARD_COMPAT", "DELTA_GRPC", // gRPC and Envoy
	"MERGE_DOMAIN_CONFIG", "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "RESPONSE_DYNAMIC_METADATA", "SHADOW_MODE", // envoyproxy/ratelimit
}

// TestCheck has a row for each way to be wrong, and one for what looks like it.
func TestCheck(t *testing.T) {
	p := Program{Root: newRoot, Variables: []string{"KEYSTEAD_GRPC_ADDR"}, Others: []string{"--stop-timeout"},
		Metric: func(name string) bool { return name == "keystead_epoch" }, Constant: func(name string) bool { return name == "STORE_FULL" }}
	for _, tc := range []struct {
		page string
		want []int // lines
	}{
		{page: "`keystead status` and `keystead hot --top 5`, `keystead lock KEY -- cmd --foo`, `keystead COMMAND --help`, `keystead` too"},
		{page: "`keystead stauts`", want: []int{1}},
		{page: "\n`keystead status --bogus`", want: []int{2}},
		{page: "`keystead counter frobnicate KEY`", want: []int{1}},
		{page: "`--grpc-addr` and `--stop-timeout 45`, and\n`--bogus`", want: []int{2}},
		{page: "KEYSTEAD_GRPC_ADDR, KEYSTEAD_…,\nKEYSTEAD_BOGUS", want: []int{2}},
		{page: "`keystead_epoch`, `keystead_raft_*`,\n`keystead_epoc`", want: []int{2}},
		{page: "STORE_FULL, `STORE_FULL`, INVALID, $MY_OWN, x_STORE_X,\nSTORE_FUL", want: []int{2}},
		{page: "```sh\nkeystead dev --nodes 3 &   # keystead bogus\nA=1 ./keystead limit check \"a b\" \\\n  --limit 20/1m > out.txt && go build -o keystead ./cmd/keystead\n```"},
		{page: "text\n```sh\nls | keystead bogus\n```\n", want: []int{2}},
		{page: "```sh\ngo run ./cmd/keystead dev --nodes three\n```", want: []int{1}},
		{page: "```sh\ndocker exec n1 /usr/bin/keystead bogus\n```", want: []int{1}},
		{page: "```\nkeystead bogus\n```\n`keystead bogus`", want: []int{4}},
	} {
		var got []int
		for _, f := range p.Check("a.md", tc.page) {
			got = append(got, f.Line)
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%q: found lines %v, want %v", tc.page, got, tc.want)
		}
	}
}

func TestRows(t *testing.T) {
	got := Rows("a | b\n| INVALID | x |\n| `a`, `b` | `c` |\n")
	if want := []string{"INVALID", "a", "b", "`a`, `b`"}; !slices.Equal(got, want) {
		t.Errorf("rows are %q, want %q", got, want)
	}
}

// TestPages holds the pages of this repository against the program.
func TestPages(t *testing.T) {
	literals, constants := stringsOf(t, "internal", "envoy", "client"), constantsOf(t)
	p := Program{Root: newRoot, Others: others, Metric: func(name string) bool { return made(literals, name) },
		Constant: func(name string) bool { return constants[name] }}
	for _, name := range append(config.Program(newRoot()), "config", "fencing-token") {
		p.Variables = append(p.Variables, config.Variable(name))
	}
	for name, text := range pages(t) {
		p := p
		if strings.HasPrefix(name, "docs/from/") { // words of other programs
			p.Constant = func(string) bool { return true }
		}
		for _, f := range p.Check(name, text) {
			t.Error(f)
		}
	}
}

// TestAllIsDocumented holds the program against the pages.
func TestAllIsDocumented(t *testing.T) {
	var all strings.Builder
	var rows []string
	for name, text := range pages(t) {
		all.WriteString(text)
		if strings.HasPrefix(name, "docs/") {
			rows = append(rows, Rows(text)...)
		}
	}
	server, _, err := newRoot().Find([]string{"server"})
	if err != nil {
		t.Fatal(err)
	}
	server.Flags().VisitAll(func(f *pflag.Flag) {
		if f.Name != "show-config" && !f.Hidden && !slices.Contains(rows, f.Name) {
			t.Errorf("no table of settings in docs has --%s", f.Name)
		}
	})
	for _, name := range metrics(t) {
		if !regexp.MustCompile(`\b` + name + `\b`).MatchString(all.String()) {
			t.Errorf("no page names the metric %s", name)
		}
	}
	api, reasons := Rows(pages(t)["docs/api.md"]), reasons(t)
	for _, r := range reasons {
		if !slices.Contains(api, r) {
			t.Errorf("the table of errors in docs/api.md has no row for %s", r)
		}
	}
}

func newRoot() *cobra.Command {
	return cli.New(cli.Process{In: strings.NewReader(""), Out: io.Discard, Err: io.Discard})
}

// pages returns the pages by their paths.
func pages(t *testing.T) map[string]string {
	t.Helper()
	all := make(map[string]string)
	for _, dir := range []string{"README.md", "docs", "deploy", "examples"} {
		err := filepath.WalkDir(filepath.Join(top, dir), func(p string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() && d.Name() == "decisions" {
				return fs.SkipDir // they say what was decided then
			}
			if err != nil || d.IsDir() || filepath.Ext(p) != ".md" {
				return err
			}
			text, err := os.ReadFile(p)
			name, _ := filepath.Rel(top, p)
			all[filepath.ToSlash(name)] = string(text)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(all) < 5 {
		t.Fatalf("%d pages: this is not the repository", len(all))
	}
	return all
}

// stringsOf returns the strings that the code below some directories has.
func stringsOf(t *testing.T, dirs ...string) map[string]bool {
	t.Helper()
	all := make(map[string]bool)
	for _, dir := range dirs {
		err := filepath.WalkDir(filepath.Join(top, dir), func(p string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || filepath.Ext(p) != ".go" || strings.HasSuffix(p, "_test.go") {
				return err
			}
			f, err := parser.ParseFile(token.NewFileSet(), p, nil, 0)
			if err != nil {
				return err
			}
			ast.Inspect(f, func(n ast.Node) bool {
				if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
					if s, err := strconv.Unquote(l.Value); err == nil {
						all[s] = true
					}
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// constantsOf returns the words in capitals that the code has, also behind the name of
// an enumeration: STORE_FULL of REASON_STORE_FULL.
func constantsOf(t *testing.T) map[string]bool {
	t.Helper()
	word := regexp.MustCompile(`\b[A-Z]+(?:_[A-Z0-9]+)+\b`)
	all := make(map[string]bool)
	err := filepath.WalkDir(top, func(p string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && d.Name() == ".git" {
			return fs.SkipDir
		}
		if err != nil || d.IsDir() || !slices.Contains([]string{".go", ".proto", ".yaml", ".mjs", ".service"}, filepath.Ext(p)) {
			return err
		}
		text, err := os.ReadFile(p)
		for _, w := range word.FindAllString(string(text), -1) {
			all[w] = true
			_, w, _ = strings.Cut(w, "_")
			all[w] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// made reports whether the code can make a name of a metric: of one string, or of two of
// which the first ends in an underscore.
func made(literals map[string]bool, name string) bool {
	for _, suffix := range []string{"", "_bucket", "_sum", "_count"} {
		base, ok := strings.CutSuffix(name, suffix)
		if !ok {
			continue
		}
		if literals[base] {
			return true
		}
		for i, c := range base {
			if c == '_' && literals[base[:i+1]] && literals[base[i+1:]] {
				return true
			}
		}
	}
	return false
}

// reasons returns the reasons that nodes give.
func reasons(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(top, "proto", "keystead", "*", "common.proto"))
	more, err2 := filepath.Glob(filepath.Join(top, "proto", "keystead", "*", "*", "common.proto"))
	if files = append(files, more...); err != nil || err2 != nil || len(files) == 0 {
		t.Fatalf("no common.proto: %v, %v", err, err2)
	}
	var all []string
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?m)^\s*REASON_([A-Z_]+) = [1-9]`).FindAllStringSubmatch(string(text), -1) {
			all = append(all, m[1])
		}
	}
	if len(all) < 10 {
		t.Fatalf("reasons: %v", all)
	}
	return all
}

// metrics returns the names of what a node of a cluster shows of its own.
func metrics(t *testing.T) []string {
	t.Helper()
	dir := t.TempDir()
	const limits = "domain: web\ndescriptors:\n  - key: remote_address\n    rate_limit: {unit: minute, requests_per_unit: 60}\n"
	if err := os.WriteFile(filepath.Join(dir, "limits.yaml"), []byte(limits), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	log, written := io.Pipe()
	done := make(chan int, 1)
	go func() {
		done <- cli.Run(ctx, []string{"server", "--id", "n1", "--cluster-id", "docs", "--bootstrap", "--rls-config", dir, "--data-dir", filepath.Join(dir, "data"),
			"--grpc-addr", "127.0.0.1:0", "--raft-addr", "127.0.0.1:0", "--gossip-addr", "127.0.0.1:0", "--admin-addr", "127.0.0.1:0"},
			cli.Process{In: strings.NewReader(""), Out: io.Discard, Err: written})
		written.Close()
	}()
	addr := make(chan string, 1)
	go func() {
		find := regexp.MustCompile(`msg=serving .* admin=(\S+)`)
		var text string
		for buf := make([]byte, 4096); ; {
			n, err := log.Read(buf)
			text += string(buf[:n])
			if m := find.FindStringSubmatch(text); m != nil && strings.Contains(text, "epoch=") {
				addr <- m[1]
				_, _ = io.Copy(io.Discard, log)
				return
			}
			if err != nil {
				addr <- ""
				return
			}
		}
	}()
	names := scrape(t, <-addr)
	cancel()
	if code := <-done; code != 0 {
		t.Errorf("the node ended with %d", code)
	}
	return names
}

func scrape(t *testing.T, addr string) []string {
	t.Helper()
	if addr == "" {
		t.Fatal("the node did not start")
	}
	c := http.Client{Timeout: 30 * time.Second}
	res, err := c.Get(fmt.Sprintf("http://%s/metrics", addr))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	libraries := regexp.MustCompile(`^keystead_(raft|serf|memberlist|runtime|libraries)_`)
	var names []string
	for _, m := range regexp.MustCompile(`(?m)^# TYPE (keystead_\w+) `).FindAllStringSubmatch(string(text), -1) {
		if !libraries.MatchString(m[1]) {
			names = append(names, m[1])
		}
	}
	if len(names) < 30 {
		t.Fatalf("the node shows %d metrics of its own", len(names))
	}
	return names
}
