package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	clusterpb "github.com/keystead/keystead/proto/keystead/cluster/v1"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
)

func newMembers(std Process) *cobra.Command {
	var f remote
	var colors colorMode
	cmd := &cobra.Command{
		Use:   "members",
		Short: "List the members of the cluster, and what else gossips",
		Long: `Lists the members of the table, and other processes that gossip, as the node at
--addr sees them. PHASE is what the table says: joining (admitted, not yet on the ring), active
(owns what the ring gives it), leaving (is being drained), drained (holds nothing, and
is given nothing), or - for one that is no member; GOSSIP is what gossip says: alive,
failed, leaving, left; RAFT is leader, voter or nonvoter; SHARE is the share of the
keys that the node owns now, ROWS how many rows of the table that is, and STANDBY how
many it stands by for. APP, where any node has one, is the application beside it.

With --json: a list of {"id", "phase", "gossip", "gossip_addr", "raft",
"owned_share": 0 to 1, "rows_owned", "rows_standby", "hash_key", "grpc_addr", "raft_addr", "incarnation": "…",
"version", "app_addr"}; what is not known is "".`,
		Example: `  keystead members
  keystead members --json | jq -r '.[] | select(.phase == "active") | .grpc_addr'`,
		Args: exactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			var r *clusterpb.ListMembersResponse
			err := f.askCluster(cmd.Context(), func(ctx context.Context, c clusterpb.ClusterServiceClient) (err error) {
				r, err = c.ListMembers(ctx, &clusterpb.ListMembersRequest{})
				return err
			})
			if err != nil {
				return err
			}
			if f.json {
				return printJSON(std.Out, membersJSON(r.Members))
			}
			return printMembers(std.Out, membersJSON(r.Members), colors.canvas(std.Out))
		},
	}
	f.flags(cmd)
	colors.flags(cmd)
	return cmd
}

// memberJSON is a node as `members --json` prints it.
type memberJSON struct {
	ID          string  `json:"id"`
	Phase       string  `json:"phase"`
	Gossip      string  `json:"gossip"`
	GossipAddr  string  `json:"gossip_addr"`
	Raft        string  `json:"raft"`
	OwnedShare  float64 `json:"owned_share"`
	RowsOwned   uint32  `json:"rows_owned"`
	RowsStandby uint32  `json:"rows_standby"`
	HashKey     string  `json:"hash_key"`
	GRPCAddr    string  `json:"grpc_addr"`
	RaftAddr    string  `json:"raft_addr"`
	Incarnation string  `json:"incarnation"`
	Version     string  `json:"version"`
	AppAddr     string  `json:"app_addr"`
}

// rows is a number of rows, or - for a node that is no member.
func (m memberJSON) rows(n uint32) string {
	if m.Phase == "" {
		return "-"
	}
	return strconv.FormatUint(uint64(n), 10)
}

var phaseNames = map[clusterpb.Phase]string{
	clusterpb.Phase_PHASE_JOINING: "joining",
	clusterpb.Phase_PHASE_ACTIVE:  "active",
	clusterpb.Phase_PHASE_LEAVING: "leaving",
	clusterpb.Phase_PHASE_DRAINED: "drained",
}

func membersJSON(members []*clusterpb.MemberStatus) []memberJSON {
	list := make([]memberJSON, len(members))
	for i, m := range members {
		list[i] = memberJSON{ID: m.Id, Gossip: word(m.Gossip, "GOSSIP_"), GossipAddr: m.GossipAddr, Raft: word(m.Raft, "RAFT_"), OwnedShare: m.OwnedShare, RowsOwned: m.RowsOwned, RowsStandby: m.RowsStandby, AppAddr: m.AppAddr}
		if t := m.Member; t != nil {
			list[i].Phase, list[i].HashKey, list[i].GRPCAddr, list[i].RaftAddr = phaseNames[t.Phase], t.HashKey, t.GrpcAddr, t.RaftAddr
			list[i].Incarnation, list[i].Version = strconv.FormatUint(t.Incarnation, 10), t.Version
		}
	}
	return list
}

func printMembers(out io.Writer, members []memberJSON, on canvas) error {
	apps := slices.ContainsFunc(members, func(m memberJSON) bool { return m.AppAddr != "" })
	rows := [][]cell{cells("ID", "PHASE", "GOSSIP", "RAFT", "SHARE", "ROWS", "STANDBY", "API", "VERSION")}
	if apps {
		rows[0] = append(rows[0], cell{text: "APP"})
	}
	for _, m := range members {
		row := append([]cell{{text: m.ID}, m.phase(), m.gossip()},
			cells(orDash(m.Raft), percent(m.OwnedShare), m.rows(m.RowsOwned), m.rows(m.RowsStandby), orDash(m.GRPCAddr), orDash(m.Version))...)
		if apps {
			row = append(row, cell{text: orDash(m.AppAddr)})
		}
		rows = append(rows, row)
	}
	_, err := io.WriteString(out, on.lines(rows))
	return err
}

// phase is what the table says of a node: what passes is a warning.
func (m memberJSON) phase() cell {
	c := cell{text: orDash(m.Phase)}
	if m.Phase != "" && m.Phase != phaseNames[clusterpb.Phase_PHASE_ACTIVE] {
		c.tone = warned
	}
	return c
}

// gossip is what gossip says of a node: a member that is not there is bad.
func (m memberJSON) gossip() cell {
	c := cell{text: orDash(m.Gossip)}
	switch {
	case m.Gossip == "failed", m.Gossip == "left" && m.Phase != "":
		c.tone = bad
	case m.Gossip == "leaving":
		c.tone = warned
	}
	return c
}

// word returns what people call a value of an enum: without its prefix, in lower case; ""
// for the unspecified one.
func word(e fmt.Stringer, prefix string) string {
	w := strings.ToLower(strings.TrimPrefix(e.String(), prefix))
	if w == "unspecified" {
		return ""
	}
	return w
}

// kindOf returns the kind of object that people call so; unspecified if there is none.
func kindOf(word string) commonpb.Kind {
	return commonpb.Kind(commonpb.Kind_value["KIND_"+strings.ToUpper(word)])
}
