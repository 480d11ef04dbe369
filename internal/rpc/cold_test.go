package rpc

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/keystead/keystead/internal/forgo"
	"github.com/keystead/keystead/internal/tests/agreed"
	adminpb "github.com/keystead/keystead/proto/keystead/admin/v1"
	clusterpb "github.com/keystead/keystead/proto/keystead/cluster/v1"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	"github.com/keystead/keystead/ring/epoch/table"
)

// coldBoard is a cluster of n1 to n3, where disks count, and n2 and n3 are dead.
func coldBoard(t *testing.T) *board {
	t.Helper()
	b := &board{Cluster: agreed.New(t, 100, agreed.Numbered(3, table.DiskLevel)...), t: t, self: agreed.Nth(1)}
	b.Must(table.Command{Adopt: &table.Adopt{Level: table.DiskLevel, Durable: table.Always}},
		table.Command{Remove: &table.Remove{Members: []table.Holder{agreed.Nth(2), agreed.Nth(3)}}})
	return b
}

// Propose has a command take effect at once.
func (b *board) Propose(_ context.Context, c table.Command) (uint64, error) { return b.Apply(c) }

// TestForgoDisk: the status says which disks rows wait for, and an operator gives one of them up.
func TestForgoDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := coldBoard(t)
		b.state.Awaited = []Awaited{{agreed.Nth(3), time.Minute}, {agreed.Nth(1), time.Hour}}
		g := &forgo.Giver{Group: b, NewID: func() string { return "id" }}
		h, cluster := clusterOf(t, Config{Cluster: b, Forgo: g.Give})
		c := adminpb.NewAdminServiceClient(h.conn)
		ctx := bound(t)
		rows := map[string]uint32{}
		for _, g := range b.Table().ColdRows() {
			rows[g.Was.Node] += uint32(len(g.Rows))
		}
		st := must(cluster.GetStatus(ctx, &clusterpb.GetStatusRequest{}))(t)
		if int(st.RowsCold) != b.Table().Cold() || st.RowsCold != st.RowsUnowned || len(st.Awaited) != 2 {
			t.Fatalf("%v", st)
		}
		for _, d := range st.Awaited {
			if d.Incarnation != 1 || d.Rows != rows[d.Node] || d.RowsAlone != d.Rows || (d.WaitingNs == int64(time.Minute)) != (d.Node == "n3") {
				t.Errorf("%v", d)
			}
		}
		epoch := b.Table().Epoch
		want := &adminpb.ForgoDiskResponse{Incarnations: []uint64{1}, Rows: rows["n2"], RowsLost: rows["n2"], Epoch: epoch}
		same(t, must(c.ForgoDisk(ctx, &adminpb.ForgoDiskRequest{Node: "n2", DryRun: true}))(t), want)
		want.Epoch++
		same(t, must(c.ForgoDisk(ctx, &adminpb.ForgoDiskRequest{Node: "n2", Incarnations: []uint64{1}}))(t), want)
		nothing := refusal{code: codes.NotFound, why: commonpb.Reason_REASON_UNKNOWN_NODE, hint: true}
		for _, x := range []struct {
			what string
			req  *adminpb.ForgoDiskRequest
			want refusal
		}{
			{"nobody", &adminpb.ForgoDiskRequest{}, badField("node")},
			{"again", &adminpb.ForgoDiskRequest{Node: "n2"}, nothing},
			{"another process", &adminpb.ForgoDiskRequest{Node: "n3", Incarnations: []uint64{2}}, nothing},
			{"too many", &adminpb.ForgoDiskRequest{Node: "n3", Incarnations: make([]uint64, maxForgone+1)}, badField("incarnations")},
		} {
			_, err := c.ForgoDisk(ctx, x.req)
			x.want.check(in(t, x.what), err)
		}
		if st := must(cluster.GetStatus(ctx, &clusterpb.GetStatusRequest{}))(t); len(st.Awaited) != 1 || st.RowsCold != rows["n3"] {
			t.Errorf("%v", st)
		}
	})
}

// TestForgoDiskOfALoneNode: nothing waits for any disk there.
func TestForgoDiskOfALoneNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, _ := clusterOf(t, Config{Node: "n1"})
		_, err := adminpb.NewAdminServiceClient(h.conn).ForgoDisk(bound(t), &adminpb.ForgoDiskRequest{Node: "n1"})
		refusal{code: codes.NotFound, why: commonpb.Reason_REASON_UNKNOWN_NODE, hint: true}.check(t, err)
	})
}
