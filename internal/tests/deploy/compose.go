package deploy

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The compose file, and what the Envoy there starts from.
const (
	composeFile = "deploy/compose/compose.yaml"
	envoyFile   = "deploy/compose/envoy.yaml"
)

// composeService is what is in use of a service of compose.
type composeService struct {
	Image       string
	Build       struct{ Context, Dockerfile string }
	Command     []string
	Environment map[string]string
	Networks    []string
	Restart     string
	StopGrace   string   `yaml:"stop_grace_period"`
	ReadOnly    bool     `yaml:"read_only"`
	CapDrop     []string `yaml:"cap_drop"`
	SecurityOpt []string `yaml:"security_opt"`
	MemLimit    string   `yaml:"mem_limit"`
	Ulimits     map[string]int
	Ports       []string
	Volumes     []string
	Profiles    []string
	DependsOn   map[string]struct{ Condition string } `yaml:"depends_on"`
}

// composeProject is a compose file.
type composeProject struct {
	Name     string
	Services map[string]composeService
	Networks map[string]struct{}
	Volumes  map[string]struct{}
	Shared   map[string]any `yaml:",inline"` // x-…, which services take parts from
}

// Compose are the nodes of a compose file, by service; its other services are left
// out. They run image.
func Compose(text string, image *Image) (map[string]*Node, error) {
	p, err := readCompose(text)
	if err != nil {
		return nil, err
	}
	nodes := map[string]*Node{}
	for name, s := range p.Services {
		if s.Build.Dockerfile == "" {
			continue
		}
		n := &Node{Where: composeFile + " " + name, Args: s.Command, Env: under(image.Env, s.Environment)}
		if len(n.Args) == 0 {
			n.Args = image.Cmd
		}
		if s.MemLimit != "" {
			n.Memory = size(s.MemLimit)
		}
		if n.Patience, err = time.ParseDuration(s.StopGrace); err != nil {
			return nil, fmt.Errorf("%s: stop_grace_period: %w", name, err)
		}
		for _, v := range s.Volumes {
			if from, to, _ := strings.Cut(v, ":"); !strings.ContainsAny(from, "./") {
				n.Volume = to
			}
		}
		nodes[name] = n
	}
	return nodes, nil
}

func readCompose(text string) (composeProject, error) {
	var p composeProject
	if err := strict(text, func() any { return &p }); err != nil {
		return p, err
	}
	for key := range p.Shared {
		if !strings.HasPrefix(key, "x-") {
			return p, fmt.Errorf("%q is no key of compose", key)
		}
	}
	return p, nil
}

// compose judges the compose file, and returns the names of its nodes' services.
func (r *reader) compose(image *Image) []string {
	text := r.text(composeFile)
	p, err := readCompose(text)
	var nodes map[string]*Node
	if err == nil {
		nodes, err = Compose(text, image)
	}
	if err != nil {
		r.wrong(composeFile, "%v", err)
		return nil
	}
	names := slices.Sorted(maps.Keys(nodes))
	var all []*Node
	for _, name := range names {
		r.node(nodes[name])
		all = append(all, nodes[name])
		if id := nodes[name].settings["id"]; id != name {
			r.wrong(nodes[name].Where, "its id is %q: let it be the service's name", id)
		}
		for _, to := range list(nodes[name].settings["join"]) {
			host, port, _ := strings.Cut(to, ":")
			if nodes[host] == nil || port != strconv.Itoa(nodes[name].ports()["gossip"]) {
				r.wrong(nodes[name].Where, "it joins %s, where no node gossips", to)
			}
		}
	}
	r.cluster(composeFile, all)
	envoy := r.text(envoyFile)
	for _, n := range all {
		if at := fmt.Sprintf("{address: %q, port_value: %d}", n.settings["id"], n.ports()["grpc"]); !strings.Contains(envoy, at) {
			r.wrong(envoyFile, "it does not ask %s: make it anew, as its first lines say", at)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(p.Services)) {
		r.composeService(name, p, nodes[name])
		r.composeEnvoy(composeFile+" "+name, p.Services[name], all)
	}
	return names
}

// composeEnvoy judges an Envoy that starts from envoyFile: the nodes say where it
// listens, and that has to be where others reach its container.
func (r *reader) composeEnvoy(where string, s composeService, nodes []*Node) {
	if !slices.ContainsFunc(s.Volumes, func(v string) bool { return strings.HasPrefix(v, "./"+path.Base(envoyFile)+":") }) {
		return
	}
	for _, port := range s.Ports {
		want := "0.0.0.0" + port[strings.LastIndexByte(port, ':'):]
		for _, n := range nodes {
			if got := n.settings["xds-listener"]; got != want {
				r.wrong(where, "it publishes %s, and %s has it listen at %q: set xds-listener to %s", port, n.settings["id"], got, want)
			}
		}
	}
}

// composeService judges a service; n is nil when it is not a node.
func (r *reader) composeService(name string, p composeProject, n *Node) {
	s, where := p.Services[name], composeFile+" "+name
	for _, x := range s.Networks {
		if _, ok := p.Networks[x]; !ok {
			r.wrong(where, "there is no network %q", x)
		}
	}
	for on, how := range s.DependsOn {
		if _, ok := p.Services[on]; !ok || how.Condition != "service_healthy" {
			r.wrong(where, "it depends on %s, %s: wait for a service that is healthy", on, how.Condition)
		}
	}
	for _, v := range s.Volumes {
		from, _, _ := strings.Cut(v, ":")
		if _, ok := p.Volumes[from]; !ok && !r.exists(path.Join(path.Dir(composeFile), from)) {
			r.wrong(where, "there is neither a volume nor a file %q", from)
		}
	}
	for _, v := range s.Ports {
		if !strings.HasPrefix(v, "127.0.0.1:") {
			r.wrong(where, "the port %s is open to other machines, and nothing authenticates there", v)
		}
	}
	if n == nil {
		return
	}
	if path.Join(path.Dir(composeFile), s.Build.Context, s.Build.Dockerfile) != dockerfile {
		r.wrong(where, "it is built from %s of %s", s.Build.Dockerfile, s.Build.Context)
	}
	inside := slices.Collect(maps.Values(n.ports()))
	for _, v := range s.Ports {
		if port, err := strconv.Atoi(v[strings.LastIndexByte(v, ':')+1:]); err != nil || !slices.Contains(inside, port) {
			r.wrong(where, "it publishes %s, where the node does not listen", v)
		}
	}
}
