package deploy

import (
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	labelset "k8s.io/apimachinery/pkg/labels"
)

// Program is what a deployment has to fit.
type Program struct {
	// Resolve has the program say what it makes of arguments and variables: every
	// setting by its name. The error is what it prints when it refuses them.
	Resolve func(args []string, env map[string]string) (map[string]string, error)
	// Metrics are the names of the series that nodes show. Nil = names are not judged.
	Metrics map[string]bool
	// Labels are the labels of these series. Nil = labels are not judged.
	Labels map[string]map[string]bool
}

// Node is a node as a file of deploy/ starts it.
type Node struct {
	Where string            // the file, and which of its nodes
	Args  []string          // of the program, "server" first
	Env   map[string]string // besides the machine's
	// Patience is the time from SIGTERM to SIGKILL.
	Patience time.Duration
	// Memory is what the node may have, in bytes; 0 = it is not bounded.
	Memory int64
	// Volume is the directory that outlives the process.
	Volume string

	settings map[string]string // as the program resolves them
}

// leaveTime is what a node takes to leave its cluster after the drain and the last
// calls: see internal/node, which gives it twice a second and gossip's good-bye.
const leaveTime = 5 * time.Second

// reader reads a tree and collects what is wrong with it.
type reader struct {
	fs    fs.FS
	prog  Program
	found []string
}

// Check judges deploy/ in a tree, which is that of the repository. It returns what is
// wrong, one finding each, in no order that matters; none = nothing is.
func Check(tree fs.FS, p Program) []string {
	r := &reader{fs: tree, prog: p}
	image := r.image()
	r.unit()
	compose := r.compose(image)
	r.kubernetes(image)
	r.prometheus(compose)
	r.dashboard()
	return r.found
}

// wrong notes a finding.
func (r *reader) wrong(where, format string, args ...any) {
	r.found = append(r.found, where+": "+fmt.Sprintf(format, args...))
}

// text reads a file; a file that is not there is a finding.
func (r *reader) text(path string) string {
	b, err := fs.ReadFile(r.fs, path)
	if err != nil {
		r.wrong(path, "%v", err)
	}
	return string(b)
}

func (r *reader) exists(path string) bool {
	_, err := fs.Stat(r.fs, path)
	return err == nil
}

// node judges what is the same for all deployments.
func (r *reader) node(n *Node) {
	s, err := r.prog.Resolve(n.Args, n.Env)
	if err != nil {
		r.wrong(n.Where, "the program does not take its settings: %v", err)
		s = map[string]string{}
	}
	n.settings = s
	if s["bootstrap"] == "true" {
		r.wrong(n.Where, "--bootstrap stays in a file for ever, and makes a second cluster when a disk was lost: use --founders")
	}
	if need := n.duration("drain-timeout") + n.duration("stop-grace") + leaveTime; n.Patience <= need {
		r.wrong(n.Where, "it is killed %s after SIGTERM, and may take %s: drain-timeout, stop-grace and %s", n.Patience, need, leaveTime)
	}
	if dir := s["data-dir"]; n.Volume == "" || dir != n.Volume && !strings.HasPrefix(dir, n.Volume+"/") {
		r.wrong(n.Where, "the data directory %q is not in %q, which outlives the process", dir, n.Volume)
	}
	r.memory(n)
}

// memory judges how the bounds of a node's memory fit each other: see Sizing in
// docs/operations.md.
func (r *reader) memory(n *Node) {
	store, soft := size(n.settings["max-memory"]), size(n.Env["GOMEMLIMIT"])
	if n.Memory == 0 {
		return
	}
	if store <= 0 || store > n.Memory/2 {
		r.wrong(n.Where, "max-memory %s is more than half of the %d bytes that the node may have", n.settings["max-memory"], n.Memory)
	}
	if soft <= store || soft > n.Memory*8/10 {
		r.wrong(n.Where, "GOMEMLIMIT %q is not above max-memory and at most 0.8 of the %d bytes that the node may have", n.Env["GOMEMLIMIT"], n.Memory)
	}
}

// cluster judges nodes that make one cluster.
func (r *reader) cluster(where string, nodes []*Node) {
	if len(nodes) < 3 {
		r.wrong(where, "%d nodes: the death of one stops a cluster of fewer than three", len(nodes))
	}
	ids := map[string]bool{}
	for _, n := range nodes {
		if id := n.settings["id"]; ids[id] {
			r.wrong(n.Where, "the id %q is another node's as well", id)
		}
		ids[n.settings["id"]] = true
		for _, same := range []string{"cluster-id", "founders", "join"} {
			if n.settings[same] != nodes[0].settings[same] {
				r.wrong(n.Where, "%s is %s, and %s with %s", same, n.settings[same], nodes[0].settings[same], nodes[0].Where)
			}
		}
		if n.settings["hash-key"] != "" {
			r.wrong(n.Where, "its hash key is %q: clients that go by addresses, grpc-js among them, would miss the owner with two calls of three", n.settings["hash-key"])
		}
		if addr := n.settings["admin-addr"]; addr != "" && !strings.HasPrefix(addr, "127.0.0.1:") {
			r.wrong(n.Where, "its admin address is %s: anybody who reaches it can drain the node", addr)
		}
	}
	if len(nodes) == 0 {
		return
	}
	founders := list(nodes[0].settings["founders"])
	if len(founders) < 3 {
		r.wrong(where, "the founders %v: name three", founders)
	}
	for _, f := range founders {
		if !ids[f] {
			r.wrong(where, "the founder %q is none of its nodes: the cluster is never made", f)
		}
	}
}

// ports returns the ports of a node's settings.
func (n *Node) ports() map[string]int {
	out := map[string]int{}
	for _, name := range []string{"grpc", "raft", "gossip", "metrics"} {
		if _, port, ok := strings.Cut(n.settings[name+"-addr"], ":"); ok {
			out[name], _ = strconv.Atoi(port)
		}
	}
	return out
}

func (n *Node) duration(setting string) time.Duration {
	d, err := time.ParseDuration(n.settings[setting])
	if err != nil {
		return 0
	}
	return d
}

// list returns what a setting that holds a list shows, [a,b] or a,b.
func list(text string) []string {
	text = strings.Trim(text, `"[]`)
	if text == "" {
		return nil
	}
	return strings.FieldsFunc(text, func(c rune) bool { return c == ',' || c == ' ' })
}

// sizes are the units of bytes in settings and GOMEMLIMIT.
var sizes = []struct {
	suffix string
	bytes  int64
}{{"MiB", 1 << 20}, {"GiB", 1 << 30}}

// size reads a number of bytes; -1 if it is none.
func size(text string) int64 {
	unit := int64(1)
	for _, s := range sizes {
		if rest, ok := strings.CutSuffix(text, s.suffix); ok {
			text, unit = rest, s.bytes
			break
		}
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return -1
	}
	return n * unit
}

// under is a copy of the variables below with those above put over it.
func under(below, above map[string]string) map[string]string {
	out := maps.Clone(below)
	if out == nil {
		out = map[string]string{}
	}
	maps.Copy(out, above)
	return out
}

// has reports whether a selector, which names labels alone, selects an object. An empty
// one means everything, which is never meant here.
func has(labels map[string]string, selector *meta.LabelSelector) bool {
	if selector == nil || len(selector.MatchLabels) == 0 {
		return false
	}
	s, err := meta.LabelSelectorAsSelector(selector)
	return err == nil && s.Matches(labelset.Set(labels))
}

// files returns the names of the files of a directory that end so.
func (r *reader) files(dir, ext string) []string {
	entries, err := fs.ReadDir(r.fs, dir)
	if err != nil {
		r.wrong(dir, "%v", err)
	}
	var names []string
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ext) {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	return names
}
