package ring

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
)

// Move is a stretch of the hash space whose owner or standby differs between
// two rings: the positions after After, up to and including UpTo, around the
// end if UpTo is below After.
type Move struct {
	After, UpTo          uint64
	OldOwner, NewOwner   string
	OldBackup, NewBackup string // standby; "" = none
}

// Share returns how much of the hash space the stretch is, from 0 to 1.
func (m Move) Share() float64 {
	if m.After == m.UpTo {
		return 1
	}
	return share(m.UpTo - m.After)
}

func share(width uint64) float64 { return float64(width) / math.Exp2(64) }

// Diff returns who hands what to whom when a ring becomes another one: the stretches
// whose owner or standby changes, in order of position, neighbours that change
// alike taken together.
func Diff(from, to *Ring) []Move {
	edges := slices.Concat(from.points, to.points)
	slices.Sort(edges)
	edges = slices.Compact(edges)
	var moves []Move
	after := edges[len(edges)-1] // the first stretch begins at the last point and goes around the end
	for _, upTo := range edges {
		m := Move{After: after, UpTo: upTo}
		after = upTo
		m.OldOwner, m.OldBackup = from.at(upTo)
		m.NewOwner, m.NewBackup = to.at(upTo)
		if m.OldOwner == m.NewOwner && m.OldBackup == m.NewBackup {
			continue
		}
		if n := len(moves); n > 0 && moves[n-1].UpTo == m.After && moves[n-1].alike(m) {
			moves[n-1].UpTo = m.UpTo
			continue
		}
		moves = append(moves, m)
	}
	return moves
}

func (r *Ring) at(h uint64) (owner, standby string) {
	standby, _ = r.Standby(h)
	return r.Owner(h), standby
}

func (m Move) alike(o Move) bool {
	return m.OldOwner == o.OldOwner && m.NewOwner == o.NewOwner && m.OldBackup == o.OldBackup && m.NewBackup == o.NewBackup
}

// Movement sums up a Diff.
type Movement struct {
	Owner   float64 // share of the hash space whose owner changes, from 0 to 1
	Standby float64 // … whose standby changes
}

// Moved sums up what changes between two rings.
func Moved(moves []Move) (sum Movement) {
	for _, m := range moves {
		if m.OldOwner != m.NewOwner {
			sum.Owner += m.Share()
		}
		if m.OldBackup != m.NewBackup {
			sum.Standby += m.Share()
		}
	}
	return sum
}

// NodeShare is how much of the hash space a node owns and stands by for.
type NodeShare struct {
	Node    string
	Points  int
	Owned   float64 // from 0 to 1
	Standby float64
}

// Balance is how evenly a ring divides the hash space.
type Balance struct {
	Nodes []NodeShare
	Most  float64 // the largest share owned ÷ the average
	Least float64 // the smallest share owned ÷ the average
}

// Balance measures the shares of the nodes.
func (r *Ring) Balance() Balance {
	b := Balance{Nodes: make([]NodeShare, len(r.nodes))}
	for i, n := range r.nodes {
		b.Nodes[i].Node = n
	}
	before := r.points[len(r.points)-1]
	for i, p := range r.points {
		width := share(p - before)
		if len(r.points) == 1 {
			width = 1
		}
		before = p
		n := &b.Nodes[r.owner[i]]
		n.Points++
		n.Owned += width
		if r.next[i] >= 0 {
			b.Nodes[r.next[i]].Standby += width
		}
	}
	b.Least = math.Inf(1)
	for _, n := range b.Nodes {
		b.Most = max(b.Most, n.Owned*float64(len(r.nodes)))
		b.Least = min(b.Least, n.Owned*float64(len(r.nodes)))
	}
	return b
}

// String is a table for people.
func (b Balance) String() string {
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "points\towned\tstandby\t node")
	for _, n := range b.Nodes {
		fmt.Fprintf(w, "%d\t%.2f%%\t%.2f%%\t %s\n", n.Points, 100*n.Owned, 100*n.Standby, n.Node)
	}
	_ = w.Flush() // to memory
	fmt.Fprintf(&text, "most %.3f, least %.3f of the average\n", b.Most, b.Least)
	return text.String()
}
