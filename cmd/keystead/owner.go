package main

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/keystead/keystead/ring"
)

type ownerFlags struct {
	nodes    []string
	ringSize uint64
	json     bool
}

func newOwner(std stdio) *cobra.Command {
	var f ownerFlags
	cmd := &cobra.Command{
		Use:   "owner KEY... --nodes HASHKEY,...",
		Short: "Say which node owns a key",
		Long: `Says which of --nodes owns each KEY, and which one is next in line, by the ring of
Envoy's RING_HASH and gRPC's ring_hash: no node needs to run. A node's hash key is
the ip:port that it advertises, unless it is set.

With --json: a list of {"key", "hash", "owner", "standby"}; the hash is a string.`,
		Example: `  keystead owner tenant-42 --nodes 10.0.0.1:7400,10.0.0.2:7400,10.0.0.3:7400
  keystead owner tenant-42 tenant-43 --nodes n1,n2,n3 --ring-size 1024 --json`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usageError{errors.New("KEY is missing\n  hint: see `" + cmd.CommandPath() + " --help`")}
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error { return f.run(std.out, args) },
	}
	cmd.Flags().StringSliceVar(&f.nodes, "nodes", nil, "hash keys of the nodes, with commas (required)")
	cmd.Flags().Uint64Var(&f.ringSize, "ring-size", 0, "minimum_ring_size of the ring (default: 256 for each node)")
	cmd.Flags().BoolVar(&f.json, "json", false, "print JSON")
	return cmd
}

type ownerJSON struct {
	Key     string `json:"key"`
	Hash    string `json:"hash"`
	Owner   string `json:"owner"`
	Standby string `json:"standby"`
}

func (f *ownerFlags) run(out io.Writer, keys []string) error {
	if len(f.nodes) == 0 {
		return usageError{errors.New("--nodes is missing\n  hint: for example --nodes 10.0.0.1:7400,10.0.0.2:7400")}
	}
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
