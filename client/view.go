package client

import (
	"cmp"
	"errors"
	"slices"

	"github.com/keystead/keystead/ring"

	clusterpb "github.com/keystead/keystead/proto/keystead/cluster/v1"
)

// view is the ownership table as the client knows it. It never changes.
type view struct {
	cluster   string
	epoch     uint64
	members   []member // by id
	ends      []uint64
	rows      []row                       // by end
	index     ring.Index                  // of ends; only if there are any
	announced map[uint64]*clusterpb.Split // by id, as announced last
	splits    map[object]*split           // the announced ones that are served in parts
	changed   chan struct{}
}

type member struct {
	id, addr    string
	hashKey     string
	incarnation uint64
}

type row struct {
	owner, standby int32 // members from 1; 0 = none
	since          uint64
}

// newView reads a table that came from the node at via.
func newView(t *clusterpb.Table, via string) (*view, error) {
	v := &view{cluster: t.Cluster, epoch: t.Epoch, members: readMembers(t.Members, via, t.Cluster), changed: make(chan struct{})}
	if err := v.divide(nil, t.Splits, nil); err != nil {
		return nil, err
	}
	v.rows, v.ends = make([]row, len(t.Rows)), make([]uint64, len(t.Rows))
	for i, r := range t.Rows {
		if i > 0 && r.End <= v.ends[i-1] {
			return nil, errors.New("the rows of the table are out of order")
		}
		v.ends[i] = r.End
		if err := v.set(i, r); err != nil {
			return nil, err
		}
	}
	if len(v.ends) > 0 {
		v.index = ring.NewIndex(v.ends)
	}
	return v, nil
}

func readMembers(ms []*clusterpb.Member, via, cluster string) []member {
	out := make([]member, len(ms))
	for i, m := range ms {
		out[i] = member{id: m.Id, addr: m.GrpcAddr, hashKey: m.HashKey, incarnation: m.Incarnation}
		// A node that runs alone may not know by which address it is reached,
		// and is the one that was asked.
		if cluster == "" && len(ms) == 1 || m.GrpcAddr == "" {
			out[i].addr = via
		}
	}
	return out
}

func (v *view) set(i int, r *clusterpb.Row) error {
	if int(r.Owner) > len(v.members) || int(r.Standby) > len(v.members) {
		return errors.New("a row of the table names no member")
	}
	v.rows[i] = row{owner: int32(r.Owner), standby: int32(r.Standby), since: r.Since}
	return nil
}

// after returns the view after a change.
func (v *view) after(c *clusterpb.TableChange, via string) (*view, error) {
	next := &view{cluster: v.cluster, epoch: c.Epoch, members: readMembers(c.Members, via, v.cluster),
		ends: v.ends, index: v.index, rows: slices.Clone(v.rows), changed: make(chan struct{})}
	if err := next.divide(v.announced, c.Splits, c.Merged); err != nil {
		return nil, err
	}
	// The rows that stay name their members by other numbers.
	now := make([]int32, len(v.members)+1)
	for i, m := range v.members {
		now[i+1] = int32(1 + slices.IndexFunc(next.members, func(n member) bool {
			return n.id == m.id && n.incarnation == m.incarnation
		}))
	}
	for i := range next.rows {
		r := &next.rows[i]
		r.owner, r.standby = now[r.owner], now[r.standby]
	}
	for _, r := range c.Rows {
		i, ok := slices.BinarySearchFunc(v.ends, r.End, cmp.Compare[uint64])
		if !ok {
			return nil, errors.New("a changed row is not in the table")
		}
		if err := next.set(i, r); err != nil {
			return nil, err
		}
	}
	return next, nil
}

// owner returns the member that owns a position; nil if it is not known.
func (v *view) owner(h uint64) *member {
	if v == nil || len(v.rows) == 0 {
		return nil
	}
	return v.member(v.rows[v.index.Find(h)].owner)
}

func (v *view) standby(h uint64) *member {
	if v == nil || len(v.rows) == 0 {
		return nil
	}
	return v.member(v.rows[v.index.Find(h)].standby)
}

func (v *view) member(i int32) *member {
	if i == 0 {
		return nil
	}
	return &v.members[i-1]
}

// nameOf returns the id of the member at an address, or the address.
func (v *view) nameOf(addr string) string {
	if v != nil {
		for i := range v.members {
			if v.members[i].addr == addr {
				return v.members[i].id
			}
		}
	}
	return addr
}

// replaces reports whether v is newer than old. A node that runs alone counts its
// epochs anew when it starts.
func (v *view) replaces(old *view) bool {
	return old == nil || v.cluster == "" || v.cluster != old.cluster || v.epoch >= old.epoch
}

// usable reports whether the table has rows and members.
func (v *view) usable() bool { return len(v.rows) > 0 && len(v.members) > 0 }
