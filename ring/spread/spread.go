// Package spread places the sub-keys of a hot key on nodes, with bounded loads:
// no node carries more than ⌈1.25·n/N⌉ of n sub-keys on N nodes, and a node that
// comes or goes moves few of them.
//
// # Guarantee
//
// The places depend on the key, on n and on the set of nodes alone: every
// program that knows these computes the same. The points of the nodes are those of package
// ring, hashed alike; where a sub-key goes is decided by
// github.com/buraksezer/consistent (Mirrokni, Thorup, Zadimoghaddam: Consistent
// Hashing with Bounded Loads, 2018).
//
// # Non-guarantee
//
// A sub-key of a hot key does not stand where the key itself stands on the ring.
package spread

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/buraksezer/consistent"
	"github.com/cespare/xxhash/v2"

	"github.com/keystead/keystead/ring"
)

const (
	// MaxSubKeys bounds n: a split is agreed upon, kept and renewed part by part.
	MaxSubKeys = 4096
	// load is how far above the average a node may be: a quarter keeps moves
	// few and nodes even.
	load = 1.25
)

// Place returns the node of each of n sub-keys of a key.
func Place(key string, n int, nodes []string) ([]string, error) {
	if n < 1 || n > MaxSubKeys {
		return nil, fmt.Errorf("spread: %d sub-keys; choose 1 to %d", n, MaxSubKeys)
	}
	// consistent misbehaves when a member is added twice, and where points
	// collide its result depends on the order: sort, and take no duplicates.
	nodes = slices.Sorted(slices.Values(nodes))
	if len(nodes) == 0 {
		return nil, errors.New("spread: there are no nodes")
	}
	members := make([]consistent.Member, len(nodes))
	for i, node := range nodes {
		if i > 0 && node == nodes[i-1] {
			return nil, fmt.Errorf("spread: the node %q is named twice", node)
		}
		members[i] = member(node)
	}
	c := consistent.New(members, consistent.Config{
		Hasher:            hasher{seed: ring.Hash(key)},
		PartitionCount:    n,
		ReplicationFactor: ring.PointsPerNode,
		Load:              load, // ⌈load·n/N⌉·N ≥ n: there is always room
		ReplicaKey:        replicaKey,
	})
	places := make([]string, n)
	for i := range places {
		places[i] = c.GetPartitionOwner(i).String()
	}
	return places, nil
}

// Most returns how many of n sub-keys one of so many nodes may carry.
func Most(n, nodes int) int { return (5*n + 4*nodes - 1) / (4 * nodes) }

type member string

func (m member) String() string { return string(m) }

// replicaPrefix tells points from sub-keys, which consistent gives its hasher
// as exactly 8 bytes.
const replicaPrefix = "replica: "

func replicaKey(name string, i int) []byte {
	return strconv.AppendInt([]byte(replicaPrefix+name+"_"), int64(i), 10)
}

// hasher hashes points as package ring does, and sub-keys under a seed that
// differs from key to key.
type hasher struct{ seed uint64 }

// Sum64 implements consistent.Hasher.
func (h hasher) Sum64(b []byte) uint64 {
	if len(b) > 8 {
		return xxhash.Sum64(b[len(replicaPrefix):])
	}
	d := xxhash.NewWithSeed(h.seed)
	_, _ = d.Write(binary.LittleEndian.AppendUint64(nil, binary.LittleEndian.Uint64(b))) // never fails
	return d.Sum64()
}
