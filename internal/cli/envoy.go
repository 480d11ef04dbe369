package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/keystead/keystead/envoy/bootstrap"
	clusterpb "github.com/keystead/keystead/proto/keystead/cluster/v1"
	"github.com/keystead/keystead/ring"
)

func newEnvoy(std Process) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "envoy",
		Short: "Print configurations for Envoy",
		Long: `Prints configurations with which a stock Envoy sends each request to the owner of the
key in its header: Envoy's RING_HASH is the ring of the nodes. docs/envoy.md says what
has to be as it is, and what happens when it is not.`,
		Example: `  keystead envoy bootstrap --nodes 10.0.0.1:7400,10.0.0.2:7400 > envoy.yaml
  keystead envoy static --from 10.0.0.1:7400 > envoy.yaml`,
	}
	onlySubcommands(cmd)
	cmd.AddCommand(newEnvoyBootstrap(std), newEnvoyStatic(std))
	return cmd
}

// envoyFlags are the settings of both kinds of configuration.
type envoyFlags struct {
	proxy       bootstrap.Proxy
	listener    bootstrap.Listener
	limit       bootstrap.RateLimit
	descriptors []string
	failure     string
}

// listenerFlags are those that have no effect without a listener.
var listenerFlags = []string{"key-header", "upstream", "rls", "rls-descriptor", "rls-failure", "rls-timeout", "app"}

func (f *envoyFlags) flags(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.StringVar(&f.proxy.ID, "envoy-id", bootstrap.DefaultID, "node.id of this Envoy")
	fl.StringVar(&f.proxy.Cluster, "envoy-cluster", bootstrap.DefaultCluster, "node.cluster of this Envoy")
	fl.StringVar(&f.proxy.Admin, "envoy-admin", bootstrap.DefaultAdmin, "`IP:PORT` of its admin interface; empty = none")
	fl.StringVar(&f.listener.KeyHeader, "key-header", bootstrap.DefaultKeyHeader, "request header that holds the key")
	fl.StringVar(&f.limit.Domain, "rls", "", "ask the nodes' rate limit service about each request, in this `DOMAIN`")
	fl.StringSliceVar(&f.descriptors, "rls-descriptor", nil, "with --rls: what it is asked about, KEY=HEADER or remote_address, with commas (default: "+bootstrap.DefaultDescriptor+" = the key header)")
	fl.StringVar(&f.failure, "rls-failure", "allow", "with --rls: what becomes of requests when it does not answer: allow or deny")
	fl.DurationVar(&f.limit.Timeout, "rls-timeout", bootstrap.DefaultRateLimitTimeout, "with --rls: how long a request waits for it, 1ms to 1m")
	fl.StringSliceVar(&f.listener.Upstream, "upstream", nil, "with --rls: `HOST:PORT`s of the application that gets what is let through, instead of the nodes")
}

// settings builds the settings from the flags.
func (f *envoyFlags) settings(cmd *cobra.Command) error {
	f.proxy.Made = madeBy(cmd)
	if f.limit.Domain == "" {
		for _, name := range []string{"rls-descriptor", "rls-failure", "rls-timeout"} {
			if cmd.Flags().Changed(name) {
				return wrongUse(cmd, "--"+name+" goes with --rls", "--rls names the domain of the limits")
			}
		}
		return nil
	}
	switch f.failure {
	case "allow", "deny":
		f.limit.Deny = f.failure == "deny"
	default:
		return wrongUse(cmd, fmt.Sprintf("--rls-failure %q: choose allow or deny", f.failure), "")
	}
	for _, text := range f.descriptors {
		d := bootstrap.Descriptor{Key: text}
		if text != remoteAddress {
			at := strings.LastIndexByte(text, '=')
			if at < 0 {
				return wrongUse(cmd, fmt.Sprintf("--rls-descriptor %q: write KEY=HEADER or %s", text, remoteAddress), "")
			}
			if d.Key, d.Header = text[:at], text[at+1:]; d.Header == "" {
				return wrongUse(cmd, fmt.Sprintf("--rls-descriptor %q names no header", text), "")
			}
		}
		f.limit.Descriptors = append(f.limit.Descriptors, d)
	}
	f.listener.RateLimit = &f.limit
	return nil
}

// remoteAddress is the descriptor that needs no header.
const remoteAddress = "remote_address"

// envoyFields are the flags behind the fields of a configuration.
var envoyFields = map[string]string{
	"ID": "envoy-id", "Cluster": "envoy-cluster", "Admin": "envoy-admin", "Nodes": "nodes",
	"Listener.Addr": "listener", "Listener.KeyHeader": "key-header", "Listener.Upstream": "upstream",
	"Listener.RateLimit.Domain": "rls", "Listener.RateLimit.Timeout": "rls-timeout", "Listener.RateLimit.Descriptors": "rls-descriptor",
}

// envoySetting makes an error about a field one about a flag.
func envoySetting(cmd *cobra.Command, err error) error {
	var bad *bootstrap.Error
	if errors.As(err, &bad) && envoyFields[bad.Field] != "" {
		return wrongUse(cmd, "--"+envoyFields[bad.Field]+": "+bad.Problem, bad.Hint)
	}
	return err
}

func newEnvoyBootstrap(std Process) *cobra.Command {
	var f envoyFlags
	var nodes []string
	cmd := &cobra.Command{
		Use:   "bootstrap",
		Short: "Print an Envoy bootstrap that learns the nodes by xDS",
		Long: `Prints a bootstrap for an Envoy that asks the nodes, by xDS, who the nodes are, and
follows as they come and go. One address is enough to find all nodes; more are for the
case that it is down. A name may stand for several.

Where Envoy listens is told by the nodes (--xds-listener of keystead server), unless
--listener says it here. Then --app sends requests to the application beside the key's
owner (--app-addr of keystead server), and --rls asks the rate limit service first. The
descriptor remote_address is the address of the connection, not what a caller says in
X-Forwarded-For; docs/envoy.md says what to change behind another proxy.`,
		Example: `  keystead envoy bootstrap --nodes 10.0.0.1:7400,10.0.0.2:7400,10.0.0.3:7400
  keystead envoy bootstrap --nodes keystead.internal:7400 --envoy-id edge-7
  keystead envoy bootstrap --nodes keystead.internal:7400 --listener 0.0.0.0:8080 --app --key-header x-api-key
  keystead envoy bootstrap --nodes keystead.internal:7400 --listener 0.0.0.0:8080 \
    --rls web --rls-descriptor key=x-api-key,remote_address --upstream 10.0.1.1:8000`,
		Args: exactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			d := bootstrap.Dynamic{Nodes: nodes}
			if f.listener.Addr == "" {
				for _, name := range listenerFlags {
					if cmd.Flags().Changed(name) {
						return wrongUse(cmd, "--"+name+" goes with --listener", "without it, the nodes say where Envoy listens, and for what header")
					}
				}
			} else {
				d.Listener = &f.listener
			}
			if err := f.settings(cmd); err != nil {
				return err
			}
			d.Proxy = f.proxy
			text, err := d.YAML()
			if err != nil {
				return envoySetting(cmd, err)
			}
			_, err = std.Out.Write(text)
			return err
		},
	}
	f.flags(cmd)
	cmd.Flags().StringSliceVar(&nodes, "nodes", []string{defaultAddr}, "`HOST:PORT`s of nodes to ask, with commas")
	cmd.Flags().StringVar(&f.listener.Addr, "listener", "", "`IP:PORT` where Envoy listens (default: where the nodes say)")
	cmd.Flags().BoolVar(&f.listener.App, "app", false, "with --listener: requests go to the application beside the key's owner")
	return cmd
}

// envoyStaticFlags are the settings of `envoy static`.
type envoyStaticFlags struct {
	envoyFlags
	remote remote // of --from
	nodes  []string
}

func newEnvoyStatic(std Process) *cobra.Command {
	var f envoyStaticFlags
	cmd := &cobra.Command{
		Use:   "static",
		Short: "Print an Envoy configuration that names the nodes, without xDS",
		Long: `Prints a configuration for an Envoy that names the nodes and needs no xDS. Requests with
the key header go to the node that owns the key, by the same ring; those without go to
the less busy of two nodes. It has to be printed again when a node is added or gone;
until then requests go right, some of them a hop longer.

Name the nodes with --nodes, or have a node of the running cluster asked for them with
--from. A node's hash key is the host:port that it advertises, unless it was set with
--hash-key; write it behind the address then, or if Envoy reaches the node at another
address: ADDR=HASHKEY. A name has to resolve to one address.

With --rls, Envoy asks the rate limit service of the nodes about each request; with
--upstream, what it lets through goes to an application instead of to the nodes. The
descriptor remote_address is the address of the connection, not what a caller says in
X-Forwarded-For; docs/envoy.md says what to change behind another proxy.`,
		Example: `  keystead envoy static --nodes 10.0.0.1:7400,10.0.0.2:7400,10.0.0.3:7400
  keystead envoy static --nodes n1.internal:7400=n1,n2.internal:7400=n2 --listener 0.0.0.0:10000
  keystead envoy static --from 10.0.0.1:7400 --envoy-admin ""
  keystead envoy static --from 10.0.0.1:7400 --rls web --rls-failure deny --upstream 127.0.0.1:8000`,
		Args: exactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			text, err := f.run(cmd)
			if err != nil {
				return err
			}
			_, err = std.Out.Write(text)
			return err
		},
	}
	f.flags(cmd)
	cmd.Flags().StringSliceVar(&f.nodes, "nodes", nil, "nodes, ADDR or ADDR=HASHKEY, with commas")
	cmd.Flags().StringVar(&f.remote.addr, "from", "", "`HOST:PORT` of a node that is asked for the nodes")
	cmd.Flags().DurationVar(&f.remote.timeout, "timeout", 5*time.Second, "with --from: give up after this long")
	cmd.Flags().StringVar(&f.listener.Addr, "listener", bootstrap.DefaultListener, "`IP:PORT` where Envoy listens")
	return cmd
}

func (f *envoyStaticFlags) run(cmd *cobra.Command) ([]byte, error) {
	if err := f.settings(cmd); err != nil {
		return nil, err
	}
	s := bootstrap.Static{Proxy: f.proxy, Listener: f.listener}
	switch {
	case len(f.nodes) == 0 && f.remote.addr == "":
		return nil, wrongUse(cmd, "no nodes", "name them with --nodes, or a node that knows them with --from")
	case len(f.nodes) > 0 && f.remote.addr != "":
		return nil, wrongUse(cmd, "--nodes and --from exclude each other", "leave one of them out")
	case f.remote.addr != "":
		var err error
		if s.Nodes, err = f.ask(cmd.Context()); err != nil {
			return nil, err
		}
	}
	for _, text := range f.nodes {
		addr, key, named := strings.Cut(text, "=")
		if named && key == "" {
			return nil, wrongUse(cmd, fmt.Sprintf("--nodes: %q has an empty hash key", text), "leave the = out, or write the hash key behind it")
		}
		s.Nodes = append(s.Nodes, bootstrap.Node{Addr: addr, HashKey: key})
	}
	text, err := s.YAML()
	var bad *bootstrap.Error
	if errors.As(err, &bad) && bad.Field == "Nodes" && f.remote.addr != "" {
		return nil, hinted{fmt.Errorf("the nodes as %s knows them: %s", f.remote.addr, bad.Problem), "write the nodes down with --nodes, by addresses that Envoy reaches"}
	}
	if err != nil {
		return nil, envoySetting(cmd, err)
	}
	return text, nil
}

// ask asks a node for the nodes on the ring, and checks that its ring is the same.
func (f *envoyStaticFlags) ask(ctx context.Context) ([]bootstrap.Node, error) {
	if _, port, err := net.SplitHostPort(f.remote.addr); err != nil || port == "" {
		return nil, usageError{fmt.Errorf("--from %q: write HOST:PORT, like %s", f.remote.addr, defaultAddr)}
	}
	var r *clusterpb.GetRingResponse
	err := f.remote.askCluster(ctx, func(ctx context.Context, c clusterpb.ClusterServiceClient) (err error) {
		r, err = c.GetRing(ctx, &clusterpb.GetRingRequest{})
		return err
	})
	if h := (hinted{}); errors.As(err, &h) {
		return nil, hinted{h.error, "name another node with --from, or the nodes themselves with --nodes"}
	}
	if err != nil {
		return nil, err
	}
	if len(r.Nodes) == 0 {
		return nil, hinted{fmt.Errorf("%s knows no node on the ring", f.remote.addr), "wait until the cluster is ready: `keystead status --addr " + f.remote.addr + "`"}
	}
	nodes, keys := make([]bootstrap.Node, len(r.Nodes)), make([]string, len(r.Nodes))
	for i, n := range r.Nodes {
		nodes[i] = bootstrap.Node{Addr: n.GrpcAddr, HashKey: n.HashKey}
		if n.GrpcAddr == "" && len(r.Nodes) == 1 {
			nodes[i].Addr = f.remote.addr // a node that runs alone may not know how it is reached
		}
		keys[i] = n.HashKey
	}
	mine, err := ring.New(keys)
	if err != nil {
		return nil, err
	}
	if mine.Digest() != r.Digest {
		return nil, hinted{fmt.Errorf("%s has another ring of these nodes than this program", f.remote.addr), "use the keystead that the nodes run"}
	}
	return nodes, nil
}

// plainWord is a word that a shell does not change.
var plainWord = regexp.MustCompile(`^[A-Za-z0-9_./:,=@%+-]+$`)

// madeBy returns the command that is running, with the flags that were set, in the order
// of their names.
func madeBy(cmd *cobra.Command) string {
	var b strings.Builder
	b.WriteString(cmd.CommandPath())
	// Not Visit, which leaves out lists that the environment or the file has set.
	cmd.Flags().VisitAll(func(fl *pflag.Flag) {
		if !fl.Changed || fl.Name == "config" || fl.Name == "timeout" {
			return
		}
		value := fl.Value.String()
		switch fl.Value.Type() {
		case "stringSlice":
			value = strings.TrimSuffix(strings.TrimPrefix(value, "["), "]")
		case "bool":
			b.WriteString(strings.TrimSuffix(" --"+fl.Name+"="+value, "=true"))
			return
		}
		if !plainWord.MatchString(value) {
			value = "'" + strings.ReplaceAll(value, "'", `'\''`) + "'"
		}
		fmt.Fprintf(&b, " --%s %s", fl.Name, value)
	})
	return b.String()
}
