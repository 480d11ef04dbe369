package cli

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"

	idpb "github.com/keystead/keystead/proto/keystead/id/v1"
)

// Bounds of the ids of one command.
const (
	idsPerCall = 10_000 // as many as a node gives at once
	maxIDs     = 10_000_000
)

func newID(std Process) *cobra.Command {
	var f remote
	var count uint64
	cmd := &cobra.Command{
		Use:   "id",
		Short: "Get unique numbers",
		Long: `Asks the node at --addr for ids: numbers below 2^63 that are unique in the cluster,
whichever node issues them. An id that is requested more than a minute after another was
received is greater.

Prints one a line; with --json {"first": "id", "count": number, "node": id} for each run
of consecutive ids, of at most 10,000.`,
		Example: `  keystead id
  keystead id --count 1000 --addr n2:7400
  keystead id --count 100 --json`,
		Args: exactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if count < 1 || count > maxIDs {
				return usageError{fmt.Errorf("--count %d: choose 1 to %d", count, maxIDs)}
			}
			return printIDs(cmd.Context(), std.Out, &f, count)
		},
	}
	f.flags(cmd)
	cmd.Flags().Uint64Var(&count, "count", 1, "how many")
	return cmd
}

// runJSON is a run of ids as `id --json` prints it. The first is a string, for readers
// that keep numbers as 64-bit floats would lose its last digits.
type runJSON struct {
	First string `json:"first"`
	Count uint32 `json:"count"`
	Node  string `json:"node"`
}

func printIDs(ctx context.Context, out io.Writer, f *remote, count uint64) error {
	conn, err := f.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	client, w := idpb.NewIdServiceClient(conn), bufio.NewWriter(out)
	for left := count; left > 0; {
		var r *idpb.NextResponse
		err := f.call(ctx, func(ctx context.Context) (err error) {
			r, err = client.Next(ctx, &idpb.NextRequest{Count: uint32(min(left, idsPerCall))})
			return err
		})
		if err != nil {
			_ = w.Flush() // what there is, is good
			return err
		}
		left -= min(left, uint64(r.Count))
		if err := printRun(w, r, f.json); err != nil {
			return err
		}
	}
	return w.Flush()
}

func printRun(w io.Writer, r *idpb.NextResponse, json bool) error {
	if json {
		return printJSON(w, runJSON{strconv.FormatUint(r.First, 10), r.Count, r.Node})
	}
	for i := range uint64(r.Count) {
		if _, err := fmt.Fprintln(w, r.First+i); err != nil {
			return err
		}
	}
	return nil
}
