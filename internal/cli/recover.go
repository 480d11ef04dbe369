package cli

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	adminpb "github.com/keystead/keystead/proto/keystead/admin/v1"
)

type recoverFlags struct {
	remote
	without string
	yes     bool
}

func newRecover(std Process) *cobra.Command {
	f := recoverFlags{}
	cmd := &cobra.Command{
		Use:   "recover --without NODE[@INCARNATION]",
		Short: "Have rows wait no longer for a disk that is gone for good",
		Long: `Gives the disk of a node up. In a cluster whose nodes keep what they decide on disk, rows
whose owner and standby are both dead wait for the disk of one of them; "keystead status"
says which. They go on by themselves when a node starts on such a disk. If a disk never
comes back, this command says so: rows that wait for another disk, too, wait for that one
alone, and those that wait for no other are lost. Their counts, limits and locks begin
anew, and the loss is declared as any other.

Without --yes it says what would happen, and changes nothing. NODE@INCARNATION names the
process of the node that had the rows, as status shows it: name it, and nothing is given
up that begins to wait after you have looked.

With --json: {"node", "incarnations": ["…"] that are given up, "rows": that wait for them,
"rows_waiting": of these, for another disk as well, "rows_lost", "done": whether it was
done, "epoch": "…"}.`,
		Example: `  keystead recover --without n2
  keystead recover --without n2@1729 --yes
  keystead recover --without n2 --json | jq .rows_lost`,
		Args: exactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd.Context(), std) },
	}
	f.flags(cmd)
	cmd.Flags().StringVar(&f.without, "without", "", "the node whose disk is gone, and its process that had the rows: `NODE[@INCARNATION]`")
	cmd.Flags().BoolVar(&f.yes, "yes", false, "do it (default: say what would happen)")
	return cmd
}

// recoverJSON is what is given up, as --json prints it.
type recoverJSON struct {
	Node         string   `json:"node"`
	Incarnations []string `json:"incarnations"`
	Rows         uint32   `json:"rows"`
	RowsWaiting  uint32   `json:"rows_waiting"`
	RowsLost     uint32   `json:"rows_lost"`
	Done         bool     `json:"done"`
	Epoch        string   `json:"epoch"`
}

// request reads what --without says.
func (f *recoverFlags) request() (*adminpb.ForgoDiskRequest, error) {
	node, incarnation, named := strings.Cut(f.without, "@")
	if node == "" {
		return nil, usageError{fmt.Errorf("--without %q: name the node whose disk is gone, as n2 or n2@1729", f.without)}
	}
	req := &adminpb.ForgoDiskRequest{Node: node, DryRun: !f.yes}
	if !named {
		return req, nil
	}
	n, err := strconv.ParseUint(incarnation, 10, 64)
	if err != nil || n == 0 {
		return nil, usageError{fmt.Errorf("--without %q: behind the @ comes the incarnation of a process, a number above 0", f.without)}
	}
	req.Incarnations = []uint64{n}
	return req, nil
}

func (f *recoverFlags) run(ctx context.Context, std Process) error {
	req, err := f.request()
	if err != nil {
		return err
	}
	var r *adminpb.ForgoDiskResponse
	err = f.order(ctx, func(ctx context.Context, c adminpb.AdminServiceClient) (err error) {
		r, err = c.ForgoDisk(ctx, req)
		return err
	})
	if err != nil {
		return err
	}
	v := recoverJSON{Node: req.Node, Incarnations: []string{}, Rows: r.Rows, RowsWaiting: r.RowsWaiting, RowsLost: r.RowsLost, Done: f.yes, Epoch: strconv.FormatUint(r.Epoch, 10)}
	for _, n := range r.Incarnations {
		v.Incarnations = append(v.Incarnations, strconv.FormatUint(n, 10))
	}
	if f.json {
		return printJSON(std.Out, v)
	}
	_, err = fmt.Fprint(std.Out, v.text())
	return err
}

// text returns it for people.
func (v recoverJSON) text() string {
	wait, are := "waited", "are lost"
	switch {
	case v.Done:
	case v.Rows == 1:
		wait, are = "waits", "would be lost"
	default:
		wait, are = "wait", "would be lost"
	}
	text := fmt.Sprintf("%s %s for the disk of %s; %d %s, and %d go on waiting for another disk\n", plural(int(v.Rows), "row"), wait, v.Node, v.RowsLost, are, v.RowsWaiting)
	if v.Done {
		return text
	}
	if len(v.Incarnations) == 1 {
		return text + fmt.Sprintf("nothing has changed: to do it, `keystead recover --without %s@%s --yes`\n", v.Node, v.Incarnations[0])
	}
	return text + fmt.Sprintf("nothing has changed: to do it, `keystead recover --without %s --yes`\n", v.Node)
}
