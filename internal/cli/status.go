package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/keystead/keystead/internal/health"
	adminpb "github.com/keystead/keystead/proto/keystead/admin/v1"
	clusterpb "github.com/keystead/keystead/proto/keystead/cluster/v1"
)

// exitUnhealthy is the exit code of `status --exit-code` when something is
// wrong.
const exitUnhealthy = 3

// statusPause is the time between two inquiries of `status --wait`.
const statusPause = 200 * time.Millisecond

// askCluster calls f with a client of the cluster's service, again while the
// node cannot be reached and time is left.
func (r *remote) askCluster(ctx context.Context, f func(context.Context, clusterpb.ClusterServiceClient) error) error {
	return r.ask(ctx, func(ctx context.Context, conn grpc.ClientConnInterface) error {
		return f(ctx, clusterpb.NewClusterServiceClient(conn))
	})
}

// askAdmin is askCluster for orders.
func (r *remote) askAdmin(ctx context.Context, f func(context.Context, adminpb.AdminServiceClient) error) error {
	return r.ask(ctx, func(ctx context.Context, conn grpc.ClientConnInterface) error {
		return f(ctx, adminpb.NewAdminServiceClient(conn))
	})
}

func (r *remote) ask(ctx context.Context, f func(context.Context, grpc.ClientConnInterface) error) error {
	conn, err := r.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	return r.call(ctx, func(ctx context.Context) error { return f(ctx, conn) })
}

type statusFlags struct {
	remote
	wait     time.Duration
	members  int
	exitCode bool
	colors   colorMode
}

func newStatus(std Process) *cobra.Command {
	var f statusFlags
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Say how the cluster is, as one of its nodes sees it",
		Long: `Says how the cluster is, as the node at --addr sees it, and, if it is not healthy,
what is wrong and what to do. It is healthy when the node may act, a leader is
known, every row has an owner and stands where the ring wants it, all members are
there, and voters are left to survive a death. A cluster that was made of one or two
nodes survives none; that is said, and no fault. A node that is cut off tells what
it has learnt before.

The exit code is 0 either way. With --exit-code it is 3 for "not healthy", and when
state was lost or a disk is full. --wait waits
until the cluster is healthy, also for a node that is not up yet; the exit code is 1
if it does not come to that. --members makes it part of "healthy" that the cluster
has exactly so many active members.

With --json: {"cluster", "id", "healthy", "problems": [{"problem", "hint"}],
"warnings": likewise, "epoch": "…", "leader", "voters": […], "rows",
"rows_to_move", "rows_unowned", "rows_cold": of these, rows that wait for a disk,
"awaited": for which ones, [{"node", "incarnation": "…", "rows", "rows_alone": that wait for
no other, "waiting": seconds}], "rows_unprotected", "rows_in_grace",
"rows_in_grace_in_part": of these, rows of which what was answered last may be lost,
"recovering": seconds until the node grants locks of all its rows, "changing", "serving",
"phase", "rows_owned", "rows_standby": of this node, "incarnation": "…",
"lease_left": seconds, "uptime": seconds, "version", "level": of the formats that
the cluster uses, "level_known": by the node, "policy_version": that the node goes by,
"grpc_addr", "raft_addr", "gossip_addr", "copies": that this node makes for others, [{"to", "rows",
"objects": sent, "objects_expected": about, "bytes": sent, "age": seconds,
"caught_up"}], "members": as "keystead members --json"}.`,
		Example: `  keystead status
  keystead status --wait 30s --members 3 && ./start-the-rest.sh
  keystead status --exit-code --json --addr 10.0.0.2:7400`,
		Args: exactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd.Context(), std) },
	}
	f.flags(cmd)
	f.colors.flags(cmd)
	cmd.Flags().DurationVar(&f.wait, "wait", 0, "wait so long for the cluster to be healthy (default: do not wait)")
	cmd.Flags().IntVar(&f.members, "members", 0, "active members that the cluster should have (default: any number)")
	cmd.Flags().BoolVar(&f.exitCode, "exit-code", false, "exit with 3 when the cluster is not healthy, state was lost or a disk is full")
	return cmd
}

func (f *statusFlags) run(ctx context.Context, std Process) error {
	if f.wait < 0 {
		return usageError{fmt.Errorf("--wait %s: choose a time that is not negative", f.wait)}
	}
	if f.members < 0 {
		return usageError{fmt.Errorf("--members %d: choose a number that is not negative", f.members)}
	}
	o, err := f.ask(ctx, std.Err)
	if err != nil {
		return err
	}
	if err := f.show(std.Out, o); err != nil {
		return err
	}
	if f.exitCode && (!o.healthy() || o.alarmed) {
		return exitCode(exitUnhealthy)
	}
	return nil
}

// once asks the node once.
func (f *statusFlags) once(ctx context.Context, c clusterpb.ClusterServiceClient) (*overview, error) {
	st, err := c.GetStatus(ctx, &clusterpb.GetStatusRequest{})
	if err != nil {
		return nil, err
	}
	m, err := c.ListMembers(ctx, &clusterpb.ListMembersRequest{})
	if err != nil {
		return nil, err
	}
	o := newOverview(st, m.Members, f.members)
	w, differ := policiesDiffer(f.policyVersions(ctx, st, m.Members))
	if differ { // new ones may be on their way
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(statusPause):
		}
		if st, err = c.GetStatus(ctx, &clusterpb.GetStatusRequest{}); err != nil {
			return nil, err
		}
		w, differ = policiesDiffer(f.policyVersions(ctx, st, m.Members))
	}
	if differ {
		o.Warnings = append(o.Warnings, w)
	}
	return o, nil
}

// ask asks once, or with --wait until the cluster is healthy.
func (f *statusFlags) ask(ctx context.Context, progressTo io.Writer) (o *overview, err error) {
	if f.wait > 0 {
		return f.await(ctx, progressTo)
	}
	err = f.askCluster(ctx, func(ctx context.Context, c clusterpb.ClusterServiceClient) (err error) {
		o, err = f.once(ctx, c)
		return err
	})
	return o, err
}

// await polls until the cluster is healthy, or --wait is over.
func (f *statusFlags) await(ctx context.Context, progressTo io.Writer) (*overview, error) {
	conn, err := f.dial()
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	client := clusterpb.NewClusterServiceClient(conn)
	ctx, cancel := context.WithTimeout(ctx, f.wait)
	defer cancel()
	bar := newProgress(progressTo)
	defer bar.clear()
	began := time.Now()
	var last *overview // or the error of the last inquiry:
	var lastErr error
	for {
		call, done := context.WithTimeout(ctx, f.timeout)
		o, err := f.once(call, client)
		done()
		switch code := status.Code(err); {
		case err == nil && o.healthy():
			return o, nil
		case err != nil && ctx.Err() != nil && (last != nil || lastErr != nil):
			return nil, f.gaveUp(last, lastErr) // this inquiry was cut short, and tells less than the one before
		case err != nil && code != codes.Unavailable && code != codes.DeadlineExceeded:
			return nil, f.explain(err)
		}
		last, lastErr = o, f.explain(err)
		bar.show(-1, fmt.Sprintf("%s  waiting: %s", time.Since(began).Round(time.Second), firstLine(last, lastErr)))
		select {
		case <-ctx.Done():
			return nil, f.gaveUp(last, lastErr)
		case <-time.After(statusPause):
		}
	}
}

func firstLine(o *overview, err error) string {
	if err != nil {
		msg, _ := explain(err)
		return msg
	}
	return o.Problems[0].Problem
}

func (f *statusFlags) gaveUp(o *overview, err error) error {
	_, hint := explain(err)
	if err == nil {
		hint = o.Problems[0].Hint
	}
	return hinted{fmt.Errorf("not healthy after %s: %s", f.wait, firstLine(o, err)), hint}
}

// overview is what `status` shows.
type overview struct {
	Cluster         string           `json:"cluster"`
	ID              string           `json:"id"`
	Healthy         bool             `json:"healthy"`
	Problems        []health.Finding `json:"problems"`
	Warnings        []health.Finding `json:"warnings"`
	Epoch           string           `json:"epoch"`
	Leader          string           `json:"leader"`
	Voters          []string         `json:"voters"`
	Rows            uint32           `json:"rows"`
	RowsToMove      uint32           `json:"rows_to_move"`
	RowsUnowned     uint32           `json:"rows_unowned"`
	RowsCold        uint32           `json:"rows_cold"` // that wait for a disk
	RowsUnprotected uint32           `json:"rows_unprotected"`
	RowsInGrace     uint32           `json:"rows_in_grace"`
	RowsGraceInPart uint32           `json:"rows_in_grace_in_part"`
	Recovering      seconds          `json:"recovering"` // until the last grace of the node's rows is over
	Phase           string           `json:"phase"`
	RowsOwned       uint32           `json:"rows_owned"`
	RowsStandby     uint32           `json:"rows_standby"`
	Changing        bool             `json:"changing"`
	Serving         bool             `json:"serving"`
	Incarnation     string           `json:"incarnation"`
	LeaseLeft       seconds          `json:"lease_left"`
	Uptime          seconds          `json:"uptime"`
	Version         string           `json:"version"`
	Level           uint32           `json:"level"`       // that the cluster uses
	LevelKnown      uint32           `json:"level_known"` // that the program of the node knows
	Disk            *statusDisk      `json:"disk,omitempty"`
	GRPCAddr        string           `json:"grpc_addr"`
	RaftAddr        string           `json:"raft_addr"`
	GossipAddr      string           `json:"gossip_addr"`
	Policies        uint64           `json:"policy_version"` // that the node goes by
	Awaited         []awaitedDisk    `json:"awaited"`        // disks that rows wait for
	Copies          []copyJSON       `json:"copies"`         // that the node makes
	Members         []memberJSON     `json:"members"`

	spare   int  // voters that may die
	alarmed bool // a warning changes the exit code with --exit-code
}

func (o *overview) healthy() bool { return len(o.Problems) == 0 }

// alone reports whether the node runs without a cluster.
func (o *overview) alone() bool { return o.Cluster == "" }

// newOverview combines the answers of a node. want is the number of active members
// that there should be; 0 = any.
func newOverview(st *clusterpb.GetStatusResponse, members []*clusterpb.MemberStatus, want int) *overview {
	o := &overview{
		Cluster: st.Cluster, ID: st.Id, Epoch: strconv.FormatUint(st.Epoch, 10), Leader: st.Leader, Voters: st.Voters,
		Rows: st.Rows, RowsToMove: st.RowsToMove, RowsUnowned: st.RowsUnowned, RowsCold: st.RowsCold, Awaited: awaitedJSON(st.Awaited), RowsUnprotected: st.RowsUnprotected, RowsInGrace: st.RowsInGrace, RowsGraceInPart: st.RowsInGraceInPart, Recovering: seconds(st.RecoveringNs), Changing: st.Changing, Serving: st.Serving,
		Phase: phaseNames[st.Phase], RowsOwned: st.RowsOwned, RowsStandby: st.RowsStandby,
		Incarnation: strconv.FormatUint(st.Incarnation, 10), LeaseLeft: seconds(st.LeaseLeftNs), Uptime: seconds(st.UptimeNs),
		Version: st.Version, Level: st.Level, LevelKnown: st.LevelKnown, GRPCAddr: st.GrpcAddr, RaftAddr: st.RaftAddr, GossipAddr: st.GossipAddr,
		Policies: st.PolicyVersion, Disk: diskJSON(st.Disk), Copies: copiesJSON(st.Copies), Members: membersJSON(members),
	}
	if o.Voters == nil {
		o.Voters = []string{}
	}
	slices.Sort(o.Voters)
	r := health.Assess(st, members, want)
	o.Problems, o.Warnings, o.alarmed, o.spare = r.Problems, r.Warnings, r.Alarmed, r.Spare
	o.Healthy = o.healthy()
	return o
}

func (f *statusFlags) show(out io.Writer, o *overview) error {
	if f.json {
		return printJSON(out, o)
	}
	return o.print(out, f.at(), f.colors.canvas(out))
}

const (
	statusLabel = len("Policies ") // the labels at the left of a status
	statusLeast = 24               // columns of the texts beside them, on a terminal that is too narrow
)

// print writes the overview for people: on a terminal, broken between words. addr is where
// the node was asked.
func (o *overview) print(out io.Writer, addr string, on canvas) error {
	var b strings.Builder
	width := 0
	if on.cut {
		width = max(on.width-statusLabel, statusLeast)
	}
	line := func(label string, t tone, text string) {
		for _, text := range wrapped(text, width) {
			fmt.Fprintf(&b, "%-*s%s\n", statusLabel, label, on.paint(t, text))
			label = ""
		}
	}
	if o.alone() {
		line("Cluster", plain, "none: "+o.ID+" runs alone")
	} else {
		line("Cluster", plain, o.Cluster+", as "+o.ID+" sees it")
	}
	o.printHealth(line)
	line("Epoch", plain, o.Epoch)
	if o.Rows > 0 { // otherwise there is no ring yet
		line("Rows", o.rowsTone(), o.rows())
	}
	if !o.alone() {
		line("Leader", toneIf(o.Leader == "", bad), orDash(o.Leader))
		line("Voters", plain, o.voters())
	}
	line("Node", toneIf(!o.Serving, bad), o.node())
	for i, y := range o.Copies {
		line([]string{"Copies", ""}[min(i, 1)], plain, y.String())
	}
	if o.Policies > 0 {
		line("Policies", plain, fmt.Sprintf("version %d", o.Policies))
	}
	if o.Disk != nil {
		line("Disk", toneIf(!o.Disk.Taking, bad), o.Disk.String())
	}
	line("API", plain, cmp.Or(o.GRPCAddr, addr))
	if !o.alone() {
		line("Raft", plain, orDash(o.RaftAddr))
		line("Gossip", plain, orDash(o.GossipAddr))
	}
	fmt.Fprintln(&b)
	rows := [][]cell{cells("MEMBER", "PHASE", "SHARE", "ROWS", "STANDBY", "RAFT", "GOSSIP")}
	for _, m := range o.Members {
		rows = append(rows, []cell{{text: m.ID}, m.phase(), {text: percent(m.OwnedShare)}, {text: m.rows(m.RowsOwned)}, {text: m.rows(m.RowsStandby)}, {text: orDash(m.Raft)}, m.gossip()})
	}
	b.WriteString(on.lines(rows))
	_, err := io.WriteString(out, b.String())
	return err
}

// printHealth writes what is wrong, the gravest first.
func (o *overview) printHealth(line func(label string, t tone, text string)) {
	if len(o.Problems)+len(o.Warnings) == 0 {
		line("Health", good, "healthy")
	}
	label, but := "Health", "healthy, but "
	for _, p := range o.Problems {
		line(label, bad, p.Problem+"; "+p.Hint)
		label, but = "", ""
	}
	for _, p := range o.Warnings {
		line(label, warned, but+p.Problem+"; "+p.Hint)
		label, but = "", ""
	}
}

// toneIf returns a tone if it is so.
func toneIf(so bool, t tone) tone {
	if so {
		return t
	}
	return plain
}

// rowsTone is that of the text of rows.
func (o *overview) rowsTone() tone {
	switch {
	case o.RowsUnowned > 0:
		return bad
	case o.RowsToMove+o.RowsUnprotected+o.RowsInGrace > 0:
		return warned
	}
	return plain
}

func (o *overview) rows() string {
	text := fmt.Sprintf("%d, %d to move, %d without owner", o.Rows, o.RowsToMove, o.RowsUnowned)
	if o.RowsUnowned == 0 && o.RowsToMove == 0 {
		text = fmt.Sprintf("%d, all where the ring wants them", o.Rows)
	}
	if o.RowsCold > 0 {
		text += fmt.Sprintf(" (%d wait for a disk)", o.RowsCold)
	}
	if o.RowsUnprotected > 0 {
		text += fmt.Sprintf(", %d without their copy", o.RowsUnprotected)
	}
	if o.RowsInGrace > 0 {
		text += fmt.Sprintf(", %d in grace", o.RowsInGrace)
		if o.RowsGraceInPart > 0 {
			text += fmt.Sprintf(" (%d after the loss of a part)", o.RowsGraceInPart)
		}
	}
	return text
}

func (o *overview) voters() string {
	if len(o.Voters) == 0 {
		return "-"
	}
	may := "none may die"
	if o.spare > 0 && o.Leader != "" { // without a leader a majority of them is not heard, whatever gossip says
		may = strconv.Itoa(o.spare) + " may die"
	}
	return strings.Join(o.Voters, ", ") + "; " + may
}

func (o *overview) node() string {
	parts := []string{"serves"}
	if !o.Serving {
		parts[0] = "does not serve"
	}
	if !o.alone() {
		if o.LeaseLeft <= 0 {
			parts = append(parts, "no lease")
		} else {
			parts = append(parts, "lease for "+people(time.Duration(o.LeaseLeft)))
		}
	}
	if o.Phase == phaseNames[clusterpb.Phase_PHASE_LEAVING] || o.Phase == phaseNames[clusterpb.Phase_PHASE_DRAINED] {
		parts = append(parts, o.Phase)
	}
	if !o.alone() {
		parts = append(parts, fmt.Sprintf("owns %s and stands by for %d", plural(int(o.RowsOwned), "row"), o.RowsStandby))
	}
	parts = append(parts, "up "+people(time.Duration(o.Uptime)))
	if o.Version != "" {
		parts = append(parts, "version "+o.Version)
	}
	return o.ID + ": " + strings.Join(parts, ", ")
}
