package manual

import (
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// preamble is what the examples take for granted: a client, a context, and what is the
// reader's own.
const preamble = `package pages

import (
	"context"
	"database/sql"
	"errors"
	"log"
	"log/slog"
	"math"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/keystead/keystead/client"
	"github.com/keystead/keystead/client/fence"
	"github.com/keystead/keystead/client/keysteadprom"
	"github.com/keystead/keystead/client/keysteadtest"
	"github.com/keystead/keystead/client/middleware"
)

var (
	ctx    context.Context
	c      *client.Client
	mux    http.Handler
	db     *sql.DB
	l      *client.HeldLock
	sku    string
	text   string
	tenant string
	local  interface{ Allow() bool }
)

func customerOf(*http.Request) string             { return "" }
func report(context.Context, uint64)              {}
func serve(http.ResponseWriter, *http.Request)    {}
func sold(sku string, left int64)                 {}
`

// TestGoBlocks type-checks the Go in the pages for users: each block is the body of a
// function, or declarations. A variable that an example does not use is no mistake.
func TestGoBlocks(t *testing.T) {
	fset := token.NewFileSet()
	files := []*ast.File{parse(t, fset, "preamble", preamble)}
	imports := preamble[strings.Index(preamble, "import"):strings.Index(preamble, "var (")]
	for name, text := range pages(t) {
		if name != "README.md" && name != "docs/go.md" && !strings.HasPrefix(name, "docs/kinds/") && !strings.HasPrefix(name, "docs/howto/") && !strings.HasPrefix(name, "docs/from/") {
			continue
		}
		for line, block := range blocks(text, "go") {
			body := "func _() {\n" + fmt.Sprintf("//line %s:%d\n", name, line) + block + "\n}\n"
			if strings.HasPrefix(block, "func ") {
				body = fmt.Sprintf("//line %s:%d\n", name, line) + block
			}
			files = append(files, parse(t, fset, name, "package pages\n"+imports+body))
		}
	}
	if len(files) < 5 {
		t.Fatalf("%d blocks of Go", len(files)-1)
	}
	conf := types.Config{Importer: exports(t, fset), Error: func(err error) {
		e := err.(types.Error)
		if !strings.HasPrefix(e.Msg, "declared and not used") && !strings.Contains(e.Msg, "imported and not used") {
			t.Errorf("%s: %s", fset.Position(e.Pos), e.Msg)
		}
	}}
	_, _ = conf.Check("pages", fset, files, nil)
}

func parse(t *testing.T, fset *token.FileSet, name, text string) *ast.File {
	t.Helper()
	f, err := parser.ParseFile(fset, name, text, 0)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return f
}

// blocks returns the blocks of a language by the line that each begins on.
func blocks(text, language string) map[int]string {
	all := make(map[int]string)
	lines := strings.Split(text, "\n")
	for i := 0; i < len(lines); i++ {
		m := fence.FindStringSubmatch(lines[i])
		if m == nil {
			continue
		}
		end := i + 1
		for end < len(lines) && !strings.HasPrefix(strings.TrimSpace(lines[end]), m[1]) {
			end++
		}
		if m[2] == language {
			all[i+2] = strings.Join(lines[i+1:min(end, len(lines))], "\n")
		}
		i = end
	}
	return all
}

// exports imports packages from what the go command has compiled of them.
func exports(t *testing.T, fset *token.FileSet) types.Importer {
	t.Helper()
	cmd := exec.Command("go", "list", "-export", "-deps", "-f", "{{if .Export}}{{.ImportPath}} {{.Export}}{{end}}",
		"./client/...", "context", "database/sql", "errors", "log", "log/slog", "math", "net/http", "strconv", "testing", "time")
	cmd.Dir = top
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	files := make(map[string]string)
	for line := range strings.Lines(string(out)) {
		name, file, _ := strings.Cut(strings.TrimSpace(line), " ")
		files[name] = file
	}
	return importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) {
		if files[path] == "" {
			return nil, fmt.Errorf("the examples may not import %s", path)
		}
		return os.Open(files[path])
	})
}

func TestBlocks(t *testing.T) {
	got := blocks("a\n```go\nx\ny\n```\n```sh\nz\n```\n1. b\n   ```go\n   w\n   ```\n", "go")
	if len(got) != 2 || got[3] != "x\ny" || got[11] != "   w" {
		t.Errorf("blocks are %v", got)
	}
}
