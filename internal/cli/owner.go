package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"text/tabwriter"

	"github.com/spf13/cobra"

	clusterpb "github.com/keystead/keystead/proto/keystead/cluster/v1"
	"github.com/keystead/keystead/ring"
)

// ownerBatch is how many keys go into one question: of the longest keys, half a
// megabyte.
const ownerBatch = 1000

type ownerFlags struct {
	remote
	nodes    []string
	ringSize uint64
	online   bool // --addr is on the command line
	sized    bool // --ring-size is
}

func newOwner(std Process) *cobra.Command {
	var f ownerFlags
	cmd := &cobra.Command{
		Use:   "owner KEY...",
		Short: "Say which node owns a key",
		Long: `Says which node owns each KEY now, which one is next in line, where the owner's API
listens, and since which epoch that is so, as the node at --addr sees it.

With --nodes it computes instead which of these would own it, by the ring of Envoy's
RING_HASH and gRPC's ring_hash: no node needs to run. A node's hash key is the ip:port
that it advertises, unless it is set.

With --json: a list of {"key", "hash", "owner", "standby"}, and, without --nodes,
"owner_addr" and "since"; the hash and the epoch are strings. What nobody owns has the
owner "".`,
		Example: `  keystead owner tenant-42 tenant-43
  keystead owner tenant-42 --addr 10.0.0.1:7400 --json
  keystead owner tenant-42 --nodes 10.0.0.1:7400,10.0.0.2:7400,10.0.0.3:7400
  keystead owner tenant-42 tenant-43 --nodes n1,n2,n3 --ring-size 1024 --json`,
		Args: f.args,
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd.Context(), std.Out, args) },
	}
	f.flags(cmd)
	cmd.Flags().StringSliceVar(&f.nodes, "nodes", nil, "compute it for nodes with these hash keys, with commas")
	cmd.Flags().Uint64Var(&f.ringSize, "ring-size", 0, "with --nodes: minimum_ring_size of the ring (default: 256 for each node)")
	return cmd
}

// args checks the command line. The environment and the file come later: there,
// an address does not contradict --nodes.
func (f *ownerFlags) args(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return usageError{errors.New("KEY is missing\n  hint: see `" + cmd.CommandPath() + " --help`")}
	}
	f.online, f.sized = cmd.Flags().Changed("addr"), cmd.Flags().Changed("ring-size")
	for _, name := range []string{"addr", "timeout"} {
		if cmd.Flags().Changed("nodes") && cmd.Flags().Changed(name) {
			return wrongUse(cmd, "--nodes and --"+name+" exclude each other", "leave --nodes out to ask a cluster, or --"+name+" to compute")
		}
	}
	return nil
}

type ownerJSON struct {
	Key     string `json:"key"`
	Hash    string `json:"hash"`
	Owner   string `json:"owner"`
	Standby string `json:"standby"`
}

// ownedJSON is the cluster's answer about a key.
type ownedJSON struct {
	ownerJSON
	OwnerAddr string `json:"owner_addr"`
	Since     string `json:"since"`
}

func (f *ownerFlags) run(ctx context.Context, out io.Writer, keys []string) error {
	if len(f.nodes) > 0 && !f.online {
		return f.compute(out, keys)
	}
	if f.sized {
		return usageError{errors.New("--ring-size goes with --nodes: a cluster has its own ring\n  hint: for example --nodes 10.0.0.1:7400,10.0.0.2:7400")}
	}
	var owners []*clusterpb.KeyOwner
	for some := range slices.Chunk(keys, ownerBatch) {
		err := f.askCluster(ctx, func(ctx context.Context, c clusterpb.ClusterServiceClient) error {
			r, err := c.GetOwners(ctx, &clusterpb.GetOwnersRequest{Keys: some})
			if err == nil {
				owners = append(owners, r.Owners...)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	if len(owners) != len(keys) {
		return fmt.Errorf("%s named %d owners of %d keys", f.at(), len(owners), len(keys))
	}
	return f.show(out, keys, owners)
}

func (f *ownerFlags) show(out io.Writer, keys []string, owners []*clusterpb.KeyOwner) error {
	list := make([]ownedJSON, len(keys))
	for i, o := range owners {
		list[i] = ownedJSON{ownerJSON{keys[i], strconv.FormatUint(o.Hash, 10), o.Owner, o.Standby}, o.OwnerAddr, strconv.FormatUint(o.Since, 10)}
		if o.Owner != "" {
			list[i].OwnerAddr = cmp.Or(o.OwnerAddr, f.at()) // a node that runs alone may not know how it is reached
		}
	}
	if f.json {
		return printJSON(out, list)
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "KEY\tHASH\tOWNER\tSTANDBY\tADDR\tSINCE")
	for _, o := range list {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", o.Key, o.Hash, orDash(o.Owner), orDash(o.Standby), orDash(o.OwnerAddr), o.Since)
	}
	return w.Flush()
}

// compute answers without a cluster.
func (f *ownerFlags) compute(out io.Writer, keys []string) error {
	r, err := ring.New(f.nodes)
	if err == nil && f.ringSize > 0 {
		r, err = ring.NewSized(f.nodes, f.ringSize, ring.MaxPoints)
	}
	if err != nil {
		return usageError{err}
	}
	owners := make([]ownerJSON, len(keys))
	for i, key := range keys {
		h := ring.Hash(key)
		standby, _ := r.Standby(h)
		owners[i] = ownerJSON{key, strconv.FormatUint(h, 10), r.Owner(h), standby}
	}
	if f.json {
		return printJSON(out, owners)
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "KEY\tHASH\tOWNER\tSTANDBY")
	for _, o := range owners {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", o.Key, o.Hash, o.Owner, orDash(o.Standby))
	}
	return w.Flush()
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
