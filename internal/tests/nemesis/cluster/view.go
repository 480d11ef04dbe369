package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	adminpb "github.com/keystead/keystead/proto/keystead/admin/v1"
	clusterpb "github.com/keystead/keystead/proto/keystead/cluster/v1"
	"github.com/keystead/keystead/ring"
)

// View is the cluster as one of its nodes sees it.
type View struct {
	By     string // the node
	Epoch  uint64
	Leader string // "" = none is known
	// Bare rows have no synced standby.
	Rows, Unowned, Bare int
	Changing            bool
	// Active are the nodes that own what the ring gives them, by name.
	Active []string
	table  *clusterpb.Table
}

// Standbys reports whether all rows have a synced standby.
func (v View) Standbys() bool { return v.Rows > 0 && v.Bare == 0 }

// row returns that of a key; nil if there is none.
func (v View) row(key string) *clusterpb.Row {
	rows := v.table.GetRows()
	if len(rows) == 0 {
		return nil
	}
	i, _ := slices.BinarySearchFunc(rows, ring.Hash(key), func(r *clusterpb.Row, h uint64) int { return cmp.Compare(r.End, h) })
	return rows[i%len(rows)]
}

// Owner returns the node that owns a key, "" if nobody does.
func (v View) Owner(key string) string { return v.name(v.row(key).GetOwner()) }

func (v View) name(i uint32) string {
	if members := v.table.GetMembers(); i > 0 && int(i) <= len(members) {
		return members[i-1].GetId()
	}
	return ""
}

// Lost reports whether the table declares that the state of a key was lost after an
// epoch; LostRows, of how many rows.
func (v View) Lost(key string, after uint64) bool { return v.row(key).GetLost() > after }

// LostRows is of how many rows the table declares the state lost after an epoch.
func (v View) LostRows(after uint64) (n int) {
	for _, r := range v.table.GetRows() {
		if r.Lost > after {
			n++
		}
	}
	return n
}

// callTime bounds a call of the cluster's service.
const callTime = time.Second

// view asks one node.
func (n *Node) view(ctx context.Context) (View, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	c := clusterpb.NewClusterServiceClient(n.conn)
	st, err := c.GetStatus(ctx, &clusterpb.GetStatusRequest{})
	if err != nil {
		return View{}, err
	}
	t, err := c.GetTable(ctx, &clusterpb.GetTableRequest{})
	if err != nil {
		return View{}, err
	}
	v := View{By: n.ID, Epoch: t.GetTable().GetEpoch(), Leader: st.Leader, Changing: st.Changing, table: t.Table, Rows: len(t.GetTable().GetRows())}
	for _, r := range t.GetTable().GetRows() {
		if r.Owner == 0 {
			v.Unowned++
		}
		if r.Standby == 0 || !r.Synced {
			v.Bare++
		}
	}
	for _, m := range t.GetTable().GetMembers() {
		if m.Phase == clusterpb.Phase_PHASE_ACTIVE {
			v.Active = append(v.Active, m.Id)
		}
	}
	if !st.Serving {
		return v, fmt.Errorf("cluster: %s does not serve", n.ID)
	}
	return v, nil
}

// Inspect asks the nodes that run until one serves and knows a leader.
func (c *Cluster) Inspect(ctx context.Context) (View, error) {
	err := errors.New("cluster: no node runs")
	for _, n := range c.Running() {
		var v View
		if v, err = n.view(ctx); err == nil {
			if v.Leader != "" {
				return v, nil
			}
			err = fmt.Errorf("cluster: %s knows no leader", n.ID)
		}
	}
	return View{}, err
}

// pollEvery is between two looks of Await.
const pollEvery = 50 * time.Millisecond

// Await waits until all nodes that run serve, know one table, and no row waits for
// anything; with standbys, until all rows also have a synced standby. It says what
// is missing when ctx ends.
func (c *Cluster) Await(ctx context.Context, standbys bool) (View, error) {
	for {
		v, err := c.stable(ctx, standbys)
		if err == nil || !wait(ctx, pollEvery) {
			return v, err
		}
	}
}

// AwaitLevel waits until the cluster uses the formats that its nodes know: what needs them
// is refused until then; and until it has agreed on what the disks of its nodes promise, if they keep
// something there. A program that tells no level is not waited for.
func (c *Cluster) AwaitLevel(ctx context.Context) error {
	n := c.Running()[0]
	for {
		call, cancel := context.WithTimeout(ctx, callTime)
		st, err := clusterpb.NewClusterServiceClient(n.conn).GetStatus(call, &clusterpb.GetStatusRequest{})
		cancel()
		if err == nil && st.Level >= st.LevelKnown && (st.Disk == nil || st.Disk.Agreed != "none") {
			return nil
		}
		if !wait(ctx, pollEvery) {
			return fmt.Errorf("cluster: %s does not tell that the level is used: %v", n.ID, err)
		}
	}
}

func (c *Cluster) stable(ctx context.Context, standbys bool) (View, error) {
	var want []string
	var last View
	running := c.Running()
	for _, n := range running {
		v, err := n.view(ctx)
		switch {
		case n.Drained() && v.By != "": // it need not serve
			continue
		case err != nil:
			return last, err
		case v.Leader == "" || last.By != "" && (v.Leader != last.Leader || v.Epoch != last.Epoch):
			return v, fmt.Errorf("cluster: %s is at epoch %d under %q, %s at %d under %q", n.ID, v.Epoch, v.Leader, last.By, last.Epoch, last.Leader)
		}
		want, last = append(want, n.ID), v
	}
	slices.Sort(want)
	// One node alone has nobody to stand by.
	standbys = standbys && len(want) > 1
	switch {
	case len(running) == 0:
		return last, errors.New("cluster: no node runs")
	case !slices.Equal(want, last.Active):
		return last, fmt.Errorf("cluster: the members that are active are %v, not %v", last.Active, want)
	case last.Changing || last.Unowned > 0 || last.Rows == 0 || standbys && last.Bare > 0:
		return last, fmt.Errorf("cluster: changing: %t; of %d rows %d have no owner and %d no synced standby", last.Changing, last.Rows, last.Unowned, last.Bare)
	}
	return last, nil
}

// ErrUnsupported says that the nodes cannot be drained.
var ErrUnsupported = errors.New("cluster: the nodes do not know of draining")

// Drain has a node give away all that it owns; AwaitDrained waits for it.
func (c *Cluster) Drain(ctx context.Context, n *Node) error {
	err := c.order(ctx, n, func(ctx context.Context, s adminpb.AdminServiceClient) error {
		_, err := s.Drain(ctx, &adminpb.DrainRequest{Node: n.ID})
		return err
	})
	if err == nil {
		n.SetDrained(true)
	}
	return err
}

// Undrain takes it back.
func (c *Cluster) Undrain(ctx context.Context, n *Node) error {
	err := c.order(ctx, n, func(ctx context.Context, s adminpb.AdminServiceClient) error {
		_, err := s.Undrain(ctx, &adminpb.UndrainRequest{Node: n.ID})
		return err
	})
	if err == nil {
		n.SetDrained(false)
	}
	return err
}

// order asks the nodes one after the other, over and over, until one takes an order.
func (c *Cluster) order(ctx context.Context, about *Node, give func(context.Context, adminpb.AdminServiceClient) error) error {
	for {
		err := errors.New("cluster: no node runs")
		for _, n := range c.Running() {
			call, cancel := context.WithTimeout(ctx, 2*callTime)
			err = give(call, adminpb.NewAdminServiceClient(n.conn))
			cancel()
			switch status.Code(err) {
			case codes.OK:
				return nil
			case codes.Unimplemented:
				return ErrUnsupported
			}
		}
		if !wait(ctx, 4*pollEvery) {
			return fmt.Errorf("cluster: nobody takes the order about %s: %w", about.ID, err)
		}
	}
}

// AwaitDrained waits until a node is drained.
func (c *Cluster) AwaitDrained(ctx context.Context, n *Node) error {
	for {
		v, err := c.Inspect(ctx)
		if err == nil {
			i := slices.IndexFunc(v.table.GetMembers(), func(m *clusterpb.Member) bool { return m.Id == n.ID })
			if i >= 0 && v.table.Members[i].Phase == clusterpb.Phase_PHASE_DRAINED {
				return nil
			}
			err = fmt.Errorf("cluster: %s is not drained yet", n.ID)
		}
		if !wait(ctx, pollEvery) {
			return err
		}
	}
}
