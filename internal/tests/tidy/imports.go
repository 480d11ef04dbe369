package tidy

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
)

// module is the path that the packages of this repository start with.
const module = "github.com/keystead/keystead"

// Packages are named below by their directory.
var (
	// siblings meet only in internal/node; but carriers carry what owner keeps.
	siblings = []string{"owner", "handoff", "hotkey", "envoy"}
	carriers = []string{"handoff", "hotkey/divide", "hotkey/home"}
	// codec is how a record is written. To know it is to know owner's records, and is no wiring.
	codec = "handoff/record"
	// decides is what internal/node leaves to those that it wires.
	decides = []string{"hotkey/heat", "hotkey/plan"}
	// nodeUsers may import internal/node: the binary and what runs whole nodes.
	nodeUsers = []string{"client/keysteadtest", "internal/cli", "internal/cli/bench", "internal/node", "internal/tests/sim"}
	// kinds are the state machines of objects, which do not know each other.
	kinds = []string{"owner/counter", "owner/limit", "owner/lock"}
	// kindless are rooms that serve all kinds and know none, by any way.
	kindless = []string{"internal/forward", "owner/queue", "owner/reqid", "owner/wire"}
	// leaves import nothing of this module, so that all the rest may import them.
	leaves = []string{"internal/failure"}
	// words are spoken by more than one service: no transport is reached for one of them.
	words = []string{"internal/drain", "internal/failure"}
	// services stand above the packages outside internal.
	services = []string{"internal/node", "internal/rpc", "internal/admin"}
)

// outside is what pure packages do not reach, by prefix of the import path.
var outside = map[string]string{
	"google.golang.org/grpc":              "gRPC",
	"google.golang.org/protobuf":          "protobuf",
	"github.com/golang/protobuf":          "protobuf",
	"github.com/planetscale/vtprotobuf":   "protobuf",
	module + "/proto":                     "protobuf",
	"github.com/prometheus/client_golang": "Prometheus",
	"github.com/prometheus/client_model":  "Prometheus",
	"github.com/hashicorp/serf":           "serf",
	"github.com/hashicorp/memberlist":     "serf",
	"github.com/hashicorp/raft":           "raft",
	"github.com/hashicorp/raft-boltdb":    "raft",
	"github.com/hashicorp/raft-autopilot": "raft",
	"go.etcd.io/raft":                     "raft",
}

// drivers are packages among the cores that have goroutines and timers, and so read the
// clock. They reach nothing of outside either: what they need is handed to them.
var drivers = []string{"hotkey/home"}

// pure reports whether a package is one of the cores, which know values and time
// as an argument. ring/member and ring/epoch, which speak serf and raft, are not;
// the state machines below ring/epoch are.
func pure(pkg string) bool {
	return pkg == "ring" || within(pkg, "ring/spread") || strings.HasPrefix(pkg, "ring/epoch/") || within(pkg, "owner") || within(pkg, "hotkey")
}

// carries reports whether a package may know owner although it is a sibling's: it moves
// records, or makes others of them.
func carries(pkg string) bool {
	return slices.ContainsFunc(carriers, func(c string) bool { return within(pkg, c) })
}

// Graph holds the imports of each package, tests left out. Packages of this
// repository are named by their directory, others by their import path.
type Graph map[string][]string

// ReadGraph asks the go command about the packages of the module in dir and all
// that they need.
func ReadGraph(dir string) (Graph, error) {
	cmd := exec.Command("go", "list", "-e", "-deps", "-json=ImportPath,Imports,Standard", "./...")
	cmd.Dir = dir
	out, err := cmd.Output()
	if err != nil {
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
			return nil, fmt.Errorf("go list: %w\n%s", err, exit.Stderr)
		}
		return nil, fmt.Errorf("go list: %w", err)
	}
	g := Graph{}
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p struct {
			ImportPath string
			Imports    []string
			Standard   bool
		}
		if err := d.Decode(&p); err == io.EOF {
			return g, nil
		} else if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		if p.Standard {
			continue // it imports none of ours, and its internal is not ours
		}
		g[local(p.ImportPath)] = nil
		for _, i := range p.Imports {
			g[local(p.ImportPath)] = append(g[local(p.ImportPath)], local(i))
		}
	}
}

func local(importPath string) string {
	if dir, ok := strings.CutPrefix(importPath, module+"/"); ok && !within(dir, "proto") {
		return dir
	}
	return importPath
}

// ours reports whether what a package of this module imports is of this module too.
func ours(pkg string) bool {
	top, _, _ := strings.Cut(pkg, "/")
	return within(pkg, module) || slices.Contains(append([]string{"client", "internal", "ring"}, siblings...), top)
}

// path returns a shortest chain of imports from a package to one that stop
// accepts, both ends included, or nil.
func (g Graph) path(from string, stop func(pkg string) bool) []string {
	cameFrom := map[string]string{from: ""}
	for queue := []string{from}; len(queue) > 0; queue = queue[1:] {
		if pkg := queue[0]; pkg != from && stop(pkg) {
			var chain []string
			for ; pkg != ""; pkg = cameFrom[pkg] {
				chain = append(chain, pkg)
			}
			slices.Reverse(chain)
			return chain
		}
		for _, next := range g[queue[0]] {
			if _, seen := cameFrom[next]; !seen {
				cameFrom[next] = queue[0]
				queue = append(queue, next)
			}
		}
	}
	return nil
}

// Imports checks the arrows between packages.
func Imports(g Graph) []Finding {
	var found []Finding
	for pkg := range g {
		if first, _, _ := strings.Cut(pkg, "/"); strings.Contains(first, ".") {
			continue // another module's
		}
		found = append(found, g.reaches(pkg)...)
		found = append(found, g.meets(pkg)...)
	}
	slices.SortFunc(found, func(a, b Finding) int { return strings.Compare(a.String(), b.String()) })
	return found
}

// reaches checks what a package reaches through any number of others.
func (g Graph) reaches(pkg string) []Finding {
	var found []Finding
	arrow := func(why string, stop func(string) bool) {
		if chain := g.path(pkg, stop); chain != nil {
			found = append(found, Finding{Rule: "imports", Path: pkg, What: why + ": " + strings.Join(chain, " → ")})
		}
	}
	if pure(pkg) || slices.Contains(words, pkg) {
		for prefix, name := range outside {
			arrow("a core knows no "+name, func(p string) bool { return within(p, prefix) })
		}
	}
	if slices.Contains(kinds, pkg) || slices.Contains(kindless, pkg) {
		arrow("one kind of object is not another's, nor forwarding's, business", func(p string) bool {
			return slices.ContainsFunc(kinds, func(k string) bool { return within(p, k) })
		})
	}
	for _, s := range siblings {
		if within(pkg, s) {
			arrow("siblings meet in internal/node", func(p string) bool {
				return slices.ContainsFunc(siblings, func(other string) bool {
					return other != s && within(p, other) && !(other == "owner" && carries(pkg))
				})
			})
		}
	}
	if top, _, _ := strings.Cut(pkg, "/"); slices.Contains(append([]string{"ring", "client"}, siblings...), top) && !slices.Contains(nodeUsers, pkg) {
		arrow("services stand above the packages that they serve", func(p string) bool { return slices.Contains(services, p) })
	}
	return found
}

// meets checks what a package imports itself.
func (g Graph) meets(pkg string) []Finding {
	var found []Finding
	wrong := func(what string) { found = append(found, Finding{Rule: "imports", Path: pkg, What: what}) }
	imports := func(dir string) bool {
		return slices.ContainsFunc(g[pkg], func(p string) bool { return within(p, dir) })
	}
	if !slices.Contains(nodeUsers, pkg) && imports("internal/node") {
		wrong("imports internal/node; only " + strings.Join(nodeUsers, ", ") + " may")
	}
	if slices.Contains(leaves, pkg) {
		for _, p := range g[pkg] {
			if ours(p) {
				wrong("imports " + p + "; a leaf imports nothing of this module")
			}
		}
	}
	if within(pkg, "handoff") && slices.ContainsFunc(kinds, imports) {
		wrong("imports a kind of object; what moves state does not read it")
	}
	if within(pkg, "internal/node") {
		for _, core := range decides {
			if imports(core) {
				wrong("imports " + core + "; a node wires what decides, and does not decide")
			}
		}
		return found
	}
	met := slices.DeleteFunc(slices.Clone(siblings), func(s string) bool {
		return !slices.ContainsFunc(g[pkg], func(p string) bool { return within(p, s) && p != codec })
	})
	if len(met) > 2 {
		wrong("imports " + strings.Join(met, ", ") + "; wiring is for internal/node")
	}
	if pkg != "internal/tests/sim" && imports("ring/member") && imports("ring/epoch") {
		wrong("imports ring/member and ring/epoch; serf facts and raft truth meet in internal/node")
	}
	return found
}
