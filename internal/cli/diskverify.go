package cli

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/keystead/keystead/internal/node"
)

func newDiskVerify(std Process) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "verify DIR",
		Short: "Check all that a stopped node has on disk",
		Long: `Reads all of the stores in DIR, the --data-dir of a node that is stopped: checksums
of all blocks, the order of the tables, and each object and entry. It changes nothing. The exit
code is 0 if all is well, and 1 with what is wrong and what to do.

After a failure of the disk a node writes a new store beside the old one: directories with
numbers. The last one that is whole counts.

With --json: {"ok": bool, "stores": [{"number", "dir", "counts": bool, "whole": bool, "objects",
"request_id_entries", "bytes", "tables", "disk_bytes", "took": seconds, "error"}], "unused": why
a node would not go on from what counts, "advice": what to do}.`,
		Example: `  keystead disk verify /var/lib/keystead
  keystead disk verify /var/lib/keystead --json`,
		Args: exactArgs("DIR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o, err := node.OpenOffline(args[0])
			if err != nil {
				return offlineHint(err)
			}
			defer o.Close()
			v, err := verifyDisk(cmd.Context(), std.Err, o)
			if err != nil {
				return err
			}
			if asJSON {
				err = printJSON(std.Out, v)
			} else {
				v.print(std.Out)
			}
			if err == nil && !v.OK {
				return exitCode(exitError)
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// verifyJSON is what `disk verify --json` prints.
type verifyJSON struct {
	OK     bool           `json:"ok"`
	Stores []verifiedJSON `json:"stores"`
	Unused string         `json:"unused,omitempty"`
	Advice string         `json:"advice,omitempty"`
}

type verifiedJSON struct {
	storeJSON
	Objects   int64   `json:"objects"`
	Entries   int64   `json:"request_id_entries"`
	Bytes     int64   `json:"bytes"`
	Tables    int64   `json:"tables"`
	DiskBytes int64   `json:"disk_bytes"`
	Took      seconds `json:"took"`
}

// verifyDisk checks all stores. The error is that of ctx.
func verifyDisk(ctx context.Context, progressTo io.Writer, o *node.Offline) (*verifyJSON, error) {
	v := &verifyJSON{OK: true, Unused: o.Unused}
	bar := newProgress(progressTo)
	defer bar.clear()
	older := "" // that is whole, below one that is damaged
	for i, s := range storesJSON(o) {
		x := verifiedJSON{storeJSON: s}
		if s.Error == "" {
			r, err := o.Stores[i].Verify(ctx, func(part float64) { bar.show(part, fmt.Sprintf("store %d", s.Number)) })
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			if err != nil {
				x.Error = err.Error()
			}
			x.Objects, x.Entries, x.Bytes, x.Tables, x.DiskBytes, x.Took = r.Objects, r.Entries, r.Bytes, r.Tables, r.DiskBytes, seconds(r.Took.Round(time.Millisecond))
		}
		switch {
		case x.Error == "" && x.Whole:
			older = s.Dir
		case x.Error != "":
			v.OK = false
			if o.OfCluster {
				v.Advice = "move " + o.Dir + " away, all of it, and start the node: the cluster goes on with what other nodes have, and `keystead status` shows what waits for this one; look after the medium"
				break
			}
			v.Advice = "restore a backup into another directory (`keystead restore`), or move " + o.Dir + " away, and a node that starts there begins anew and declares the loss; look after the medium"
			if older != "" {
				v.Advice += "; " + older + " is whole, and older: with " + s.Dir + " moved away, the node goes on from it"
			}
		}
		v.Stores = append(v.Stores, x)
	}
	return v, nil
}

func (v *verifyJSON) print(out io.Writer) {
	for _, s := range v.Stores {
		switch {
		case s.Error != "":
			fmt.Fprintf(out, "%s: DAMAGED: %s\n", s.Dir, s.Error)
		case s.Counts:
			fmt.Fprintf(out, "%s: all is well: %d objects, %d entries of request ids, %d bytes; %d tables, %d bytes on disk; this one counts\n", s.Dir, s.Objects, s.Entries, s.Bytes, s.Tables, s.DiskBytes)
		default:
			fmt.Fprintf(out, "%s: all is well, but it %s\n", s.Dir, beside(s.storeJSON))
		}
	}
	if v.Unused != "" {
		fmt.Fprintf(out, "unused: %s\n", v.Unused)
	}
	if v.Advice != "" {
		fmt.Fprintf(out, "  hint: %s\n", v.Advice)
	}
}
