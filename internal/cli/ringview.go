package cli

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/bits"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	clusterpb "github.com/keystead/keystead/proto/keystead/cluster/v1"
	"github.com/keystead/keystead/ring"
)

// ringView is an ownership table and the ring that it moves towards. It never changes.
type ringView struct {
	table   *clusterpb.Table
	nodes   []ringNode // the members of the table, in its order
	rows    []ringRow  // by end
	size    int        // points of the wanted ring
	most    float64    // largest share of the wanted ring ÷ the average
	moves   []ringMove // what is left to move, by from and to
	unowned ringMove   // rows without owner
	digest  uint64     // of the wanted ring, computed here
}

type ringNode struct {
	id, hashKey, addr string
	phase             clusterpb.Phase
	wanted, owned     float64 // shares, 0 to 1
}

// ringRow is a segment: where it ends, and its current and its wanted owner, as indexes
// into the nodes; -1 = none.
type ringRow struct {
	end       uint64
	owner, to int
}

// ringMove sums up what moves from one node to another. From is "" for rows without an
// owner.
type ringMove struct {
	From  string  `json:"from"`
	To    string  `json:"to"`
	Rows  int     `json:"rows"`
	Share float64 `json:"share"` // 0 to 1
}

// newRingView reads a table.
func newRingView(t *clusterpb.Table) (*ringView, error) {
	v := &ringView{table: t, nodes: make([]ringNode, len(t.GetMembers())), rows: make([]ringRow, len(t.GetRows()))}
	byID, byKey := map[string]int{}, map[string]int{}
	for i, m := range t.GetMembers() {
		v.nodes[i] = ringNode{id: m.Id, hashKey: m.HashKey, addr: m.GrpcAddr, phase: m.Phase}
		byID[m.Id], byKey[m.HashKey] = i, i
	}
	var want *ring.Ring
	if len(t.GetWanted()) > 0 {
		var keys []string
		for _, id := range t.Wanted {
			i, ok := byID[id]
			if !ok {
				return nil, fmt.Errorf("the wanted ring has the node %q, which is no member", id)
			}
			keys = append(keys, v.nodes[i].hashKey)
		}
		var err error
		if want, err = ring.New(keys); err != nil {
			return nil, fmt.Errorf("the wanted ring: %w", err)
		}
		v.size, v.digest = want.Size(), want.Digest()
		b := want.Balance()
		v.most = b.Most
		for _, n := range b.Nodes {
			v.nodes[byKey[n.Node]].wanted = min(n.Owned, 1)
		}
	}
	for i, r := range t.GetRows() {
		if int(r.Owner) > len(v.nodes) || i > 0 && r.End <= v.rows[i-1].end {
			return nil, errors.New("the rows of the table make no sense")
		}
		v.rows[i] = ringRow{r.End, int(r.Owner) - 1, int(r.Owner) - 1}
		if want != nil {
			v.rows[i].to = byKey[want.Owner(r.End)]
		}
	}
	v.measure()
	return v, nil
}

// measure sums up the rows.
func (v *ringView) measure() {
	type pair struct{ from, to int }
	sums := map[pair]ringMove{}
	for i, r := range v.rows {
		width := v.share(i)
		from := ""
		if r.owner < 0 {
			v.unowned.Rows++
			v.unowned.Share = min(v.unowned.Share+width, 1)
		} else {
			n := &v.nodes[r.owner]
			n.owned, from = min(n.owned+width, 1), n.id
		}
		if r.to != r.owner {
			m := sums[pair{r.owner, r.to}]
			sums[pair{r.owner, r.to}] = ringMove{from, v.nodes[r.to].id, m.Rows + 1, min(m.Share+width, 1)}
		}
	}
	order := slices.SortedFunc(maps.Keys(sums), func(a, b pair) int { return cmp.Or(a.from-b.from, a.to-b.to) })
	for _, p := range order {
		v.moves = append(v.moves, sums[p])
	}
}

// share returns how much of the hash space a row is, from 0 to 1.
func (v *ringView) share(i int) float64 {
	if len(v.rows) == 1 {
		return 1
	}
	before := v.rows[(i+len(v.rows)-1)%len(v.rows)].end
	return float64(v.rows[i].end-before) / math.Exp2(64)
}

// held counts the rows that node i owns, and those that it stands by for.
func (v *ringView) held(i int) (owned, standby int) {
	for _, r := range v.table.Rows {
		switch uint32(i + 1) {
		case r.Owner:
			owned++
		case r.Standby:
			standby++
		}
	}
	return owned, standby
}

// toMove sums up all moves.
func (v *ringView) toMove() (rows int, share float64) {
	for _, m := range v.moves {
		rows, share = rows+m.Rows, share+m.Share
	}
	return rows, min(share, 1)
}

// find returns the row that a position belongs to. There has to be one.
func (v *ringView) find(h uint64) int {
	i, _ := slices.BinarySearchFunc(v.rows, h, func(r ringRow, h uint64) int { return cmp.Compare(r.end, h) })
	return i % len(v.rows)
}

// ringCell is what a character of a drawing stands for: the owner of most of a stretch
// of the hash space (-1 = none), and whether most of that moves.
type ringCell struct {
	owner  int
	moving bool
}

// cells divides the hash space into n equal stretches, from position 0. Where
// two own as much of a stretch, the first of them has it.
func (v *ringView) cells(n int) []ringCell {
	cells := make([]ringCell, n)
	for i := range cells {
		cells[i] = ringCell{owner: -1}
		if len(v.rows) == 0 {
			continue
		}
		owned, moving := make([]uint64, len(v.nodes)+1), make([]uint64, len(v.nodes)+1) // by owner+1
		last := boundary(i+1, n) - 1
		for at := boundary(i, n); ; {
			r := v.rows[v.find(at)]
			till := r.end
			if at > till { // the first row, around the end
				till = math.MaxUint64
			}
			till = min(till, last)
			// A width of 2^64, which does not fit, is one less; it has no rival.
			width := till - at
			if n > 1 {
				width++
			}
			if owned[r.owner+1] += width; r.to != r.owner {
				moving[r.owner+1] += width
			}
			if till == last {
				break
			}
			at = till + 1
		}
		most := 0
		for o := range owned {
			if owned[o] > owned[most] {
				most = o
			}
		}
		cells[i] = ringCell{most - 1, moving[most] > owned[most]/2}
	}
	return cells
}

// boundary returns where the i-th of n equal stretches begins; that of the n-th,
// which would be 2^64, is 0.
func boundary(i, n int) uint64 {
	if i == n {
		return 0
	}
	q, _ := bits.Div64(uint64(i), 0, uint64(n))
	return q
}

// follow returns the table after a message of a watch.
func follow(t *clusterpb.Table, m *clusterpb.WatchResponse) (*clusterpb.Table, error) {
	if m.Snapshot != nil {
		return m.Snapshot, nil
	}
	c := m.Change
	if t == nil || c == nil {
		return nil, errors.New("the watch sent a change of nothing")
	}
	next := &clusterpb.Table{Cluster: t.Cluster, Epoch: c.Epoch, Members: c.Members, Rows: make([]*clusterpb.Row, len(t.Rows)),
		Transition: c.Transition, RingDigest: c.RingDigest, Wanted: c.Wanted}
	// The rows that stay name their members by other numbers.
	now := make([]uint32, len(t.Members)+1)
	for i, m := range t.Members {
		now[i+1] = uint32(1 + slices.IndexFunc(c.Members, func(n *clusterpb.Member) bool { return n.Id == m.Id && n.Incarnation == m.Incarnation }))
	}
	for i, r := range t.Rows {
		if int(r.Owner) >= len(now) || int(r.Standby) >= len(now) {
			return nil, errors.New("the rows of the table make no sense")
		}
		next.Rows[i] = proto.CloneOf(r)
		next.Rows[i].Owner, next.Rows[i].Standby = now[r.Owner], now[r.Standby]
	}
	for _, r := range c.Rows {
		i, ok := slices.BinarySearchFunc(next.Rows, r.End, func(o *clusterpb.Row, end uint64) int { return cmp.Compare(o.End, end) })
		if !ok {
			return nil, errors.New("the watch sent a row that is not in the table")
		}
		next.Rows[i] = r
	}
	return next, nil
}

// changes describes the difference of two states for people: "" if none is visible.
func (v *ringView) changes(old *ringView) string {
	var said []string
	say := func(format string, args ...any) { said = append(said, fmt.Sprintf(format, args...)) }
	before, after := incarnations(old), incarnations(v)
	for _, n := range v.nodes {
		was, had := before[n.id]
		switch {
		case !had:
			say("%s is admitted", n.id)
		case was.incarnation != after[n.id].incarnation:
			say("%s is admitted anew", n.id)
		case was.phase != n.phase:
			say("%s is %s", n.id, phaseNames[n.phase])
		}
	}
	for _, n := range old.nodes {
		if _, has := after[n.id]; !has {
			say("%s is removed", n.id)
		}
	}
	switch now, was := v.table.Transition, old.table.Transition; {
	case now != 0 && was != now:
		say("the ring changes")
	case now == 0 && was != 0:
		say("the change of the ring is over")
	}
	for _, m := range v.moved(old) {
		say("%s %s → %s", plural(m.Rows, "row"), orDash(m.From), orDash(m.To))
	}
	if n := v.lostSince(old.table.Epoch); n > 0 {
		say("%s lost", plural(n, "row"))
	}
	return strings.Join(said, ", ")
}

type standing struct {
	incarnation uint64
	phase       clusterpb.Phase
}

func incarnations(v *ringView) map[string]standing {
	m := map[string]standing{}
	for _, n := range v.table.Members {
		m[n.Id] = standing{n.Incarnation, n.Phase}
	}
	return m
}

// moved sums up what has changed hands since an older state, in pieces that are
// in one row then and now.
func (v *ringView) moved(old *ringView) []ringMove {
	if len(old.rows) == 0 || len(v.rows) == 0 {
		return nil
	}
	var ends []uint64
	for _, r := range slices.Concat(old.rows, v.rows) {
		ends = append(ends, r.end)
	}
	slices.Sort(ends)
	sums := map[[2]string]int{}
	for _, end := range slices.Compact(ends) {
		from, to := old.id(old.rows[old.find(end)].owner), v.id(v.rows[v.find(end)].owner)
		if from != to {
			sums[[2]string{from, to}]++
		}
	}
	var moves []ringMove
	for ids, n := range sums {
		moves = append(moves, ringMove{From: ids[0], To: ids[1], Rows: n})
	}
	slices.SortFunc(moves, func(a, b ringMove) int { return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To)) })
	return moves
}

// id returns the id of a node, "" for -1.
func (v *ringView) id(node int) string {
	if node < 0 {
		return ""
	}
	return v.nodes[node].id
}

// lostSince counts the rows whose state was lost after an epoch.
func (v *ringView) lostSince(epoch uint64) int {
	n := 0
	for _, r := range v.table.Rows {
		if r.Lost > epoch {
			n++
		}
	}
	return n
}
