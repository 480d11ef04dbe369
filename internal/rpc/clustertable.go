package rpc

import (
	"math"

	"github.com/keystead/keystead/ring/epoch/table"

	clusterpb "github.com/keystead/keystead/proto/keystead/cluster/v1"
)

var phases = map[table.Phase]clusterpb.Phase{
	table.Joining: clusterpb.Phase_PHASE_JOINING,
	table.Active:  clusterpb.Phase_PHASE_ACTIVE,
	table.Leaving: clusterpb.Phase_PHASE_LEAVING,
	table.Drained: clusterpb.Phase_PHASE_DRAINED,
}

func wireMember(m *table.Member) *clusterpb.Member {
	return &clusterpb.Member{
		Id: m.Node, Incarnation: m.Incarnation, HashKey: m.HashKey, GrpcAddr: m.GRPCAddr,
		Phase: phases[m.Phase], RaftAddr: m.RaftAddr, Version: m.Version,
	}
}

func wireMembers(t *table.Table) []*clusterpb.Member {
	members := make([]*clusterpb.Member, len(t.Members))
	for i := range t.Members {
		members[i] = wireMember(&t.Members[i])
	}
	return members
}

// places returns the members' indexes on the wire, from 1. A process that is no member has 0.
func places(t *table.Table) map[table.Holder]uint32 {
	at := make(map[table.Holder]uint32, len(t.Members))
	for i := range t.Members {
		at[t.Members[i].Holder()] = uint32(i + 1)
	}
	return at
}

// wireRows converts the rows for which pick says so. They are allocated in one
// piece: a table may have 32,768.
func wireRows(t *table.Table, n int, pick func(i int) bool) []*clusterpb.Row {
	at := places(t)
	cells, rows := make([]clusterpb.Row, 0, n), make([]*clusterpb.Row, 0, n)
	// Neighbours are often of one holder, and the map is what costs.
	owner, standby := table.Holder{}, table.Holder{}
	var ownerAt, standbyAt uint32
	for i := range t.Rows {
		if !pick(i) {
			continue
		}
		r := &t.Rows[i]
		if r.Owner != owner {
			owner, ownerAt = r.Owner, at[r.Owner]
		}
		if r.Standby != standby {
			standby, standbyAt = r.Standby, at[r.Standby]
		}
		cells = append(cells, clusterpb.Row{End: r.End, Owner: ownerAt, Standby: standbyAt, Synced: r.Synced, Since: r.Since, Lost: r.Lost, Grace: r.Grace, LostInPart: r.LostInPart()})
		rows = append(rows, &cells[len(cells)-1])
	}
	return rows
}

// wireTable is a table as it travels.
func wireTable(t *table.Table) *clusterpb.Table {
	return &clusterpb.Table{
		Cluster: t.Cluster, Epoch: t.Epoch, Members: wireMembers(t),
		Rows:       wireRows(t, len(t.Rows), func(int) bool { return true }),
		Transition: transitionOf(t), RingDigest: digestOf(t), Wanted: t.WantedNodes(), Splits: wireSplits(t),
	}
}

// wireChange returns what turns from into to; nil if a snapshot is needed, or is not
// larger.
func wireChange(from, to *table.Table) *clusterpb.TableChange {
	if from.Cluster != to.Cluster || len(from.Rows) != len(to.Rows) {
		return nil
	}
	n := 0
	for i := range to.Rows {
		if from.Rows[i].End != to.Rows[i].End {
			return nil
		}
		if differs(&from.Rows[i], &to.Rows[i]) {
			n++
		}
	}
	if n > 0 && n == len(to.Rows) {
		return nil
	}
	splits, merged := wireSplitChange(from, to)
	//guard:split-told-over merged -> merged[:0]
	return &clusterpb.TableChange{
		Epoch: to.Epoch, Members: wireMembers(to),
		Rows:       wireRows(to, n, func(i int) bool { return differs(&from.Rows[i], &to.Rows[i]) }),
		Transition: transitionOf(to), RingDigest: digestOf(to), Wanted: to.WantedNodes(), Splits: splits, Merged: merged,
	}
}

// differs reports whether two rows differ in what travels of them.
func differs(a, b *table.Row) bool {
	return a.Owner != b.Owner || a.Standby != b.Standby || a.Synced != b.Synced || a.Since != b.Since || a.Lost != b.Lost || a.Grace != b.Grace
}

func transitionOf(t *table.Table) uint64 {
	if t.Transition == nil {
		return 0
	}
	return t.Transition.ID
}

func digestOf(t *table.Table) uint64 {
	if w := t.Wanted(); w != nil {
		return w.Digest()
	}
	return 0
}

// ownedShares returns how much of the hash space each node owns, from 0 to 1.
func ownedShares(t *table.Table) map[string]float64 {
	shares := make(map[string]float64, len(t.Members))
	n := len(t.Rows)
	for i := range t.Rows {
		width := 1.0
		if n > 1 {
			width = float64(t.Rows[i].End-t.Rows[(i+n-1)%n].End) / math.Exp2(64)
		}
		if o := t.Rows[i].Owner; !o.None() {
			shares[o.Node] = min(shares[o.Node]+width, 1) // rounding must not make it more
		}
	}
	return shares
}
