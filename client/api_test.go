package client_test

import (
	"encoding/json"
	"errors"
	"go/importer"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const (
	module = "github.com/keystead/keystead"
	// maxModules is how many modules, this one among them, a program compiles in that
	// imports the client and nothing else.
	maxModules = 12
)

var (
	// userPackages are those that programs of users import.
	userPackages = []string{"client", "client/fence", "client/fence/keeper", "client/middleware", "client/p2c"}
	// arithmetic is what a limit is decided by, also in a client that reaches no node. It knows of none.
	arithmetic = []string{module + "/owner/limit", module + "/owner/wire", module + "/owner/zone"}
	// adapters bring what they adapt to.
	adapters = []string{"client/keysteadotel", "client/keysteadprom", "client/keysteadtest"}
)

// listed is a package as the go command lists it.
type listed struct {
	ImportPath, Export string
	Module             *struct{ Path string }
}

// list returns a package of this module and all that it needs.
func list(t *testing.T, pkg string, flags ...string) (all []listed) {
	t.Helper()
	cmd := exec.Command("go", append(append([]string{"list", "-deps", "-json=ImportPath,Export,Module"}, flags...), module+"/"+pkg)...)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listed
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

// A program that imports the client compiles in no node.
func TestModulesOfTheClient(t *testing.T) {
	for _, pkg := range userPackages {
		modules := map[string]bool{}
		for _, p := range list(t, pkg) {
			if p.Module != nil {
				modules[p.Module.Path] = true
			}
			for _, not := range []string{"hashicorp/", "envoyproxy/", "prometheus/", "opentelemetry", "internal/node", "internal/rpc", "internal/forward", "keystead/owner"} {
				if strings.Contains(p.ImportPath, not) && !slices.Contains(arithmetic, p.ImportPath) {
					t.Errorf("%s compiles in %s", pkg, p.ImportPath)
				}
			}
		}
		most := maxModules
		if pkg == "client/fence" {
			most = 1 // what is protected need not be a program of Keystead
		}
		if len(modules) > most {
			t.Errorf("%s compiles in %d modules: %v", pkg, len(modules), modules)
		}
	}
}

// generated are the packages of protobuf, and of what it generates.
var generated = []string{module + "/proto", "google.golang.org/protobuf", "google.golang.org/genproto", "github.com/golang/protobuf", "github.com/planetscale/vtprotobuf"}

// What users see has no type of protobuf in it: names on the wire may change, and print
// as what they are there.
func TestNoProtobufInTheAPI(t *testing.T) {
	for _, pkg := range slices.Concat(userPackages, adapters) {
		exports := map[string]string{}
		for _, p := range list(t, pkg, "-export") {
			exports[p.ImportPath] = p.Export
		}
		read := func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) }
		p, err := importer.ForCompiler(token.NewFileSet(), "gc", read).Import(module + "/" + pkg)
		if err != nil {
			t.Fatal(err)
		}
		w := &surface{t: t, of: p, seen: map[types.Type]bool{}}
		exported := 0
		for _, name := range p.Scope().Names() {
			if o := p.Scope().Lookup(name); o.Exported() {
				exported++
				w.walk(name, o.Type())
			}
		}
		if exported == 0 || pkg == "client" && len(w.seen) < 100 {
			t.Errorf("%s: %d names, %d types", pkg, exported, len(w.seen))
		}
	}
}

// surface is what of a package can be reached by what it exports.
type surface struct {
	t    *testing.T
	of   *types.Package
	seen map[types.Type]bool
}

func (w *surface) walk(at string, x types.Type) {
	if w.seen[x] {
		return
	}
	w.seen[x] = true
	switch x := x.(type) {
	case *types.Alias:
		w.walk(at, types.Unalias(x))
	case *types.Named:
		w.named(at, x)
	case interface{ Elem() types.Type }: // pointer, slice, array, channel
		w.walk(at, x.Elem())
		if m, ok := x.(*types.Map); ok {
			w.walk(at, m.Key())
		}
	case *types.Signature:
		for v := range x.Params().Variables() {
			w.walk(at, v.Type())
		}
		for v := range x.Results().Variables() {
			w.walk(at, v.Type())
		}
	case *types.Struct:
		for f := range x.Fields() {
			if f.Exported() || f.Embedded() {
				w.walk(at+"."+f.Name(), f.Type())
			}
		}
	case *types.Interface:
		for m := range x.Methods() {
			w.walk(at+"."+m.Name(), m.Type())
		}
	}
}

func (w *surface) named(at string, x *types.Named) {
	for a := range x.TypeArgs().Types() {
		w.walk(at, a)
	}
	from := x.Obj().Pkg()
	if from == nil {
		return // such as error
	}
	if slices.ContainsFunc(generated, func(p string) bool { return from.Path() == p || strings.HasPrefix(from.Path(), p+"/") }) {
		w.t.Errorf("%s.%s is, or has, a %s", w.of.Name(), at, x)
	}
	if !strings.HasPrefix(from.Path(), module) {
		return // it has an API of its own
	}
	w.walk(at, x.Underlying())
	for m := range x.Methods() {
		if m.Exported() {
			w.walk(at+"."+m.Name(), m.Type())
		}
	}
}
