package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	adminpb "github.com/keystead/keystead/proto/keystead/admin/v1"
	clusterpb "github.com/keystead/keystead/proto/keystead/cluster/v1"
)

const (
	// drainTimeout is how long `drain --wait` waits by default.
	drainTimeout = 5 * time.Minute
	// drainCall bounds the order itself, before any waiting: longer than a node
	// tries to have it agreed on.
	drainCall = 10 * time.Second
	// drainPoll is the time between two inquiries about a drain that is waited for.
	drainPoll = 200 * time.Millisecond
)

type drainFlags struct {
	remote
	wait, force bool
}

func newDrain(std Process) *cobra.Command {
	f := drainFlags{}
	cmd := &cobra.Command{
		Use:   "drain NODE",
		Short: "Have a node give away all that it owns and stands by for",
		Long: `Has a node give away all that it owns and stands by for, with its state: counts,
limits, locks and their queues. It goes on serving until the last row has moved, and
forwards calls afterwards; then it may be stopped without anybody noticing. It stays
drained, and is given nothing, until ` + "`keystead undrain`" + ` or until its process is
started again. Draining a node twice does no harm.

A node that is stopped with SIGTERM drains itself; drain is for a node that should
stay, or whose stop should be quick.

Any node takes the order. It is refused for the last node, which has nobody to give
anything to, and for one after which fewer than a majority of the voters would be left
that are not drained: stopping those would stop the cluster. --force drains it all the
same.

--wait waits until the node is drained, at most for --timeout, and says how far it is;
the exit code is 1 if it does not come to that. The drain goes on then.

With --json: {"node", "phase": "leaving" or "drained", "rows_owned", "rows_standby",
"already": whether it was being drained before, "incarnation": "…", "epoch": "…"}.`,
		Example: `  keystead drain n2
  keystead drain n2 --wait && systemctl restart keystead   # on n2
  keystead drain n2 --wait --timeout 30s --json | jq -r .phase
  keystead undrain n2`,
		Args: exactArgs("the id of a node"),
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd.Context(), std, args[0]) },
	}
	f.drainFlags(cmd)
	cmd.Flags().BoolVar(&f.wait, "wait", false, "wait until the node is drained")
	cmd.Flags().BoolVar(&f.force, "force", false, "also if fewer than a majority of the voters are left that are not drained")
	return cmd
}

func newUndrain(std Process) *cobra.Command {
	f := drainFlags{}
	cmd := &cobra.Command{
		Use:   "undrain NODE",
		Short: "Take a drain back: give the node again what the ring gives it",
		Long: `Takes a drain back. What the node has given away moves back to it, with its state; a
drain that is under way is given up. For a node that is not being drained it does
nothing.

With --json: as "keystead drain --json"; "already" says that it was not being drained.`,
		Example: `  keystead undrain n2
  keystead undrain n2 --addr 10.0.0.1:7400 --json`,
		Args: exactArgs("the id of a node"),
		RunE: func(cmd *cobra.Command, args []string) error { return f.undo(cmd.Context(), std, args[0]) },
	}
	f.drainFlags(cmd)
	return cmd
}

// drainFlags are those of remote, with another --timeout.
func (f *drainFlags) drainFlags(cmd *cobra.Command) {
	f.remote.flags(cmd)
	t := cmd.Flags().Lookup("timeout")
	f.timeout, t.DefValue = drainTimeout, drainTimeout.String()
}

// order gives an order within --timeout, and within drainCall. It does not retry what a
// node has answered: the node has tried for a while itself.
func (r remote) order(ctx context.Context, order func(context.Context, adminpb.AdminServiceClient) error) error {
	r.timeout = min(r.timeout, drainCall)
	var refused error
	err := r.askAdmin(ctx, func(ctx context.Context, c adminpb.AdminServiceClient) error {
		err := order(ctx, c)
		if errorReason(err) == "" {
			return err
		}
		refused = err
		return nil
	})
	if err == nil {
		err = refused
	}
	return err
}

// drainJSON is the state of a drain as --json prints it.
type drainJSON struct {
	Node        string `json:"node"`
	Phase       string `json:"phase"`
	RowsOwned   uint32 `json:"rows_owned"`
	RowsStandby uint32 `json:"rows_standby"`
	Already     bool   `json:"already"`
	Incarnation string `json:"incarnation"`
	Epoch       string `json:"epoch"`
}

func newDrainJSON(s *adminpb.DrainState) drainJSON {
	return drainJSON{
		Node: s.GetNode(), Phase: phaseNames[s.GetPhase()], RowsOwned: s.GetRowsOwned(), RowsStandby: s.GetRowsStandby(),
		Already: s.GetAlready(), Incarnation: strconv.FormatUint(s.GetIncarnation(), 10), Epoch: strconv.FormatUint(s.GetEpoch(), 10),
	}
}

// text returns the state for people.
func (d drainJSON) text() string {
	if d.Phase == phaseNames[clusterpb.Phase_PHASE_DRAINED] {
		return d.Node + " is drained: it owns nothing and stands by for nothing"
	}
	return fmt.Sprintf("%s is %s: %s and %s left", d.Node, d.Phase, plural(int(d.RowsOwned), "row"), plural(int(d.RowsStandby), "standby row"))
}

func (f *drainFlags) run(ctx context.Context, std Process, node string) error {
	began := time.Now()
	var r *adminpb.DrainResponse
	err := f.order(ctx, func(ctx context.Context, c adminpb.AdminServiceClient) (err error) {
		r, err = c.Drain(ctx, &adminpb.DrainRequest{Node: node, Force: f.force})
		return err
	})
	if err != nil {
		return err
	}
	d := newDrainJSON(r.State)
	if f.wait && d.Phase != phaseNames[clusterpb.Phase_PHASE_DRAINED] {
		if d, err = f.await(ctx, std, d, f.timeout-time.Since(began)); err != nil {
			return err
		}
	}
	if f.json {
		return printJSON(std.Out, d)
	}
	text := d.text()
	if d.Already && !f.wait {
		text += " (it was being drained already)"
	}
	_, err = fmt.Fprintln(std.Out, text)
	return err
}

func (f *drainFlags) undo(ctx context.Context, std Process, node string) error {
	var r *adminpb.UndrainResponse
	err := f.order(ctx, func(ctx context.Context, c adminpb.AdminServiceClient) (err error) {
		r, err = c.Undrain(ctx, &adminpb.UndrainRequest{Node: node})
		return err
	})
	if err != nil {
		return err
	}
	d := newDrainJSON(r.State)
	if f.json {
		return printJSON(std.Out, d)
	}
	text := fmt.Sprintf("%s is %s, and is given again what the ring gives it", d.Node, d.Phase)
	if d.Already {
		text = fmt.Sprintf("%s is %s: it was not being drained", d.Node, d.Phase)
	}
	_, err = fmt.Fprintln(std.Out, text)
	return err
}

// await polls until the node is drained, or the time is over. d is its last state.
func (f *drainFlags) await(ctx context.Context, std Process, d drainJSON, within time.Duration) (drainJSON, error) {
	conn, err := f.dial()
	if err != nil {
		return d, err
	}
	defer conn.Close()
	client := clusterpb.NewClusterServiceClient(conn)
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	show := newDrainProgress(std.Err)
	defer show.end()
	for d.Phase != phaseNames[clusterpb.Phase_PHASE_DRAINED] {
		show.state(d)
		select {
		case <-ctx.Done():
			return d, f.gaveUp(d)
		case <-time.After(drainPoll):
		}
		call, done := context.WithTimeout(ctx, drainCall)
		r, err := client.ListMembers(call, &clusterpb.ListMembersRequest{})
		done()
		switch code := status.Code(err); {
		case err == nil:
			if d, err = d.next(r); err != nil {
				return d, err
			}
		case ctx.Err() != nil:
			return d, f.gaveUp(d)
		case code != codes.Unavailable && code != codes.DeadlineExceeded:
			return d, f.explain(err)
		}
	}
	return d, nil
}

// next returns the state of the drain by a later answer.
func (d drainJSON) next(r *clusterpb.ListMembersResponse) (drainJSON, error) {
	for _, m := range r.Members {
		t := m.Member
		if m.Id != d.Node || t == nil || strconv.FormatUint(t.Incarnation, 10) != d.Incarnation {
			continue
		}
		d.Phase, d.RowsOwned, d.RowsStandby, d.Epoch = phaseNames[t.Phase], m.RowsOwned, m.RowsStandby, strconv.FormatUint(r.Epoch, 10)
		if t.Phase != clusterpb.Phase_PHASE_LEAVING && t.Phase != clusterpb.Phase_PHASE_DRAINED {
			return d, errors.New("the drain of " + d.Node + " was taken back")
		}
		return d, nil
	}
	return d, fmt.Errorf("%s, as it was, is no member of the cluster any more: it has stopped, or was started again; %s left then", d.Node, plural(int(d.RowsOwned), "row"))
}

func (f *drainFlags) gaveUp(d drainJSON) error {
	return hinted{fmt.Errorf("not drained after %s: %s", f.timeout, d.text()), "it goes on: see `keystead members`; allow more with --timeout, or take it back with `keystead undrain " + d.Node + "`"}
}

// drainProgress shows how far a drain is: on a terminal in a line that is redrawn,
// elsewhere in a line for each change.
type drainProgress struct {
	out   io.Writer
	bar   *progress // nil where there is no terminal
	began time.Time
	last  string
	most  uint32 // rows that were there at first
}

func newDrainProgress(out io.Writer) *drainProgress {
	p := &drainProgress{out: out, began: time.Now()}
	if f, ok := out.(*os.File); ok && isTerminal(f) {
		p.bar = newProgress(out)
	}
	return p
}

func (p *drainProgress) state(d drainJSON) {
	left, text := d.RowsOwned+d.RowsStandby, d.text()
	p.most = max(p.most, left)
	if p.bar != nil {
		done := 0.0
		if p.most > 0 {
			done = 1 - float64(left)/float64(p.most)
		}
		p.bar.show(done, fmt.Sprintf("%s  %s", time.Since(p.began).Round(time.Second), text))
		return
	}
	if text != p.last {
		p.last = text
		fmt.Fprintln(p.out, text)
	}
}

func (p *drainProgress) end() {
	if p.bar != nil {
		p.bar.clear()
	}
}
