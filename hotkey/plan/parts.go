package plan

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/keystead/keystead/ring"
	subkeys "github.com/keystead/keystead/ring/spread"
)

const (
	// MinParts is what it takes to be split.
	MinParts = 2
	// MaxParts bounds the parts of an object: each has a place in the agreed table, and a
	// read of the sum asks all of them.
	MaxParts = 64
)

// Parts returns how many parts an object with this rate, in operations a second, is worth: one
// for each perPart of it, at least [MinParts], at most as many as there are nodes and
// [MaxParts]. It is 1, the whole object, where there are not two nodes.
func Parts(rate, perPart float64, nodes int) int {
	limit := min(nodes, MaxParts)
	if limit < MinParts {
		return 1
	}
	wanted := math.Ceil(rate / perPart)
	switch {
	case wanted >= float64(limit):
		return limit
	case wanted > MinParts:
		return int(wanted)
	}
	return MinParts // also for what is no number
}

// Node is a member of the ring that may get parts.
type Node struct {
	Name string // as the ring has it
	Hot  bool   // it has the tag hot=true: it is there for hot keys
}

// wanted returns the nodes that n parts belong to: those for hot keys where they are enough,
// and all otherwise.
func wanted(n int, nodes []Node) []Node {
	hot := slices.DeleteFunc(slices.Clone(nodes), func(n Node) bool { return !n.Hot })
	if len(hot) >= n {
		return hot
	}
	return nodes
}

// Spread returns the node of each of n parts of an object. If the nodes with [Node.Hot]
// are n or more, only they get parts; otherwise all nodes do. No node gets a second part
// while another one that gets parts has none, and those for hot keys come first. The key
// is what tells objects apart: it decides which nodes, where they are more than parts.
//
// The places depend on the arguments alone, not on the order of the nodes, and few of them
// change when a node comes or goes: they are those of [subkeys.Place], but for the parts
// above an even share, which go to the nodes that have least. It is an error if there are
// no nodes, if one is named twice, or if n is less than 1 or more than [MaxParts].
func Spread(key string, n int, nodes []Node) ([]string, error) {
	if n < 1 || n > MaxParts {
		return nil, fmt.Errorf("plan: %d parts; choose 1 to %d", n, MaxParts)
	}
	among := wanted(n, nodes)
	names := make([]string, len(among))
	for i, node := range among {
		names[i] = node.Name
	}
	places, err := subkeys.Place(key, n, names)
	if err != nil {
		return nil, fmt.Errorf("plan: %w", err)
	}
	even(key, places, among)
	return places, nil
}

// even moves parts from the nodes that have most to those that have least, until no node
// has two more than another, nor one more than a node for hot keys unless it is one.
func even(key string, places []string, nodes []Node) {
	count := make(map[string]int, len(nodes))
	for _, name := range places {
		count[name]++
	}
	// Which of the nodes with the least comes first differs from key to key.
	order := slices.Clone(nodes)
	slices.SortFunc(order, func(a, b Node) int {
		return cmp.Or(cmp.Compare(turn(key, a.Name), turn(key, b.Name)), cmp.Compare(a.Name, b.Name))
	})
	// Twice the count, and one less for a node for hot keys: what is to be made even.
	load := func(n Node) int {
		if n.Hot {
			return 2*count[n.Name] - 1
		}
		return 2 * count[n.Name]
	}
	for {
		least := slices.MinFunc(order, func(a, b Node) int { return cmp.Compare(load(a), load(b)) })
		most := slices.MaxFunc(order, func(a, b Node) int { return cmp.Compare(load(a), load(b)) })
		if load(most)-load(least) <= 2 { // a part that moved would make it no more even
			return
		}
		i := slices.Index(places, most.Name)
		places[i] = least.Name
		count[most.Name]--
		count[least.Name]++
	}
}

// turn is a node's place among those of a key.
func turn(key, node string) uint64 {
	return ring.Hash(fmt.Sprintf("%d:%s%s", len(key), key, node))
}

// uneven reports whether a part shares its node, or is on one that it does not belong to,
// while a node that it does belong to has none; and which.
func uneven(places []string, nodes []Node) (from, to string, is bool) {
	count := make(map[string]int, len(places))
	for _, name := range places {
		count[name]++
	}
	among := wanted(len(places), nodes)
	free := slices.IndexFunc(among, func(n Node) bool { return count[n.Name] == 0 })
	if free < 0 {
		return "", "", false
	}
	for _, name := range places {
		belongs := slices.ContainsFunc(among, func(n Node) bool { return n.Name == name })
		if count[name] > 1 || !belongs {
			return name, among[free].Name, true
		}
	}
	return "", "", false
}
