package deploy

import (
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"
)

// The compose file, and what the Envoy there starts from.
const (
	composeFile = "deploy/compose/compose.yaml"
	envoyFile   = "deploy/compose/envoy.yaml"
)

// readCompose reads a compose file. Paths in it are then those from the root of the
// repository, which is "/".
func readCompose(text string) (*types.Project, error) {
	return loader.LoadWithContext(context.Background(), types.ConfigDetails{
		WorkingDir:  "/" + path.Dir(composeFile),
		ConfigFiles: []types.ConfigFile{{Filename: composeFile, Content: []byte(text)}},
		Environment: types.Mapping{},
	}, loader.WithProfiles([]string{"*"}))
}

// Compose returns the nodes of a compose file, by service; its other services are left
// out. They run image.
func Compose(text string, image *Image) (map[string]*Node, error) {
	p, err := readCompose(text)
	if err != nil {
		return nil, err
	}
	nodes := map[string]*Node{}
	for name, s := range p.Services {
		if s.Build == nil {
			continue
		}
		env := map[string]string{}
		for k, v := range s.Environment {
			if v == nil {
				return nil, fmt.Errorf("%s: %s has the value that it has wherever compose is run", name, k)
			}
			env[k] = *v
		}
		n := &Node{Where: composeFile + " " + name, Args: s.Command, Env: under(image.Env, env), Memory: int64(s.MemLimit)}
		if len(n.Args) == 0 {
			n.Args = image.Cmd
		}
		n.Patience = 10 * time.Second // the default
		if s.StopGracePeriod != nil {
			n.Patience = time.Duration(*s.StopGracePeriod)
		}
		for _, v := range s.Volumes {
			if v.Type == types.VolumeTypeVolume {
				n.Volume = v.Target
			}
		}
		nodes[name] = n
	}
	return nodes, nil
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
	for name, s := range p.Services {
		r.composeService(composeFile+" "+name, s, nodes[name])
		r.composeEnvoy(composeFile+" "+name, s, all)
	}
	return names
}

// composeEnvoy judges an Envoy that starts from envoyFile: the nodes say where it
// listens, and that has to be where others reach its container.
func (r *reader) composeEnvoy(where string, s types.ServiceConfig, nodes []*Node) {
	if !slices.ContainsFunc(s.Volumes, func(v types.ServiceVolumeConfig) bool { return v.Source == "/"+envoyFile }) {
		return
	}
	for _, port := range s.Ports {
		want := fmt.Sprintf("0.0.0.0:%d", port.Target)
		for _, n := range nodes {
			if got := n.settings["xds-listener"]; got != want {
				r.wrong(where, "it publishes %d, and %s has it listen at %q: set xds-listener to %s", port.Target, n.settings["id"], got, want)
			}
		}
	}
}

// composeService judges a service; n is nil when it is not a node.
func (r *reader) composeService(where string, s types.ServiceConfig, n *Node) {
	for on, how := range s.DependsOn {
		if how.Condition != types.ServiceConditionHealthy {
			r.wrong(where, "it depends on %s, %s: wait for a service that is healthy", on, how.Condition)
		}
	}
	for _, v := range s.Volumes {
		if v.Type == types.VolumeTypeBind && !r.exists(strings.TrimPrefix(v.Source, "/")) {
			r.wrong(where, "there is no file %q", v.Source)
		}
	}
	for _, p := range s.Ports {
		if p.HostIP != "127.0.0.1" {
			r.wrong(where, "the port %s is open to other machines, and nothing authenticates there", p.Published)
		}
	}
	if n == nil {
		return
	}
	if s.Build.Context != "/" || s.Build.Dockerfile != dockerfile {
		r.wrong(where, "it is built from %s of %s", s.Build.Dockerfile, s.Build.Context)
	}
	inside := slices.Collect(maps.Values(n.ports()))
	for _, p := range s.Ports {
		if !slices.Contains(inside, int(p.Target)) {
			r.wrong(where, "it publishes %d, where the node does not listen", p.Target)
		}
	}
}
