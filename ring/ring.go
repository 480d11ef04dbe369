// Package ring is the hash ring that says which node owns a key. It is Envoy's
// RING_HASH and gRPC's ring_hash, point for point: a proxy or client that builds
// its ring from the same hosts sends each request to the node that this package
// names.
//
// # Guarantee
//
// Point i of a node is at xxHash64("<hash key>_<i>"), i from 0; a key is at
// xxHash64(key) and belongs to the first point at or after it, around the end.
// With PointsPerNode points a node, adding or removing a node leaves the points
// of all others where they are: only what the new node takes, or the gone one
// had, changes hands, and what the gone one had falls to the next distinct node
// clockwise, its standby.
//
// A Ring never changes, depends on nothing but its hash keys and its size, and
// is the same whatever order they come in.
//
// # Non-guarantee
//
// The ring is what is wanted. Who owns a key now is for the ownership table to
// say.
//
// Source: Envoy, source/extensions/load_balancing_policies/ring_hash/
// ring_hash_lb.cc; gRPC A42 and A76.
package ring

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/cespare/xxhash/v2"
)

const (
	// PointsPerNode is how many points a node has: a power of two, so that the
	// counts come out equal for every number of nodes in the arithmetic of Envoy.
	// The spread of the shares is about 1/√256 = 6%.
	PointsPerNode = 256
	// MaxPoints is the largest ring: Envoy's own limit.
	MaxPoints = 8 << 20
	// MaxNodes is how many nodes a ring of PointsPerNode points each may have.
	MaxNodes = MaxPoints / PointsPerNode
	// MaxHashKey is the longest hash key, in bytes.
	MaxHashKey = 512
)

// Hash returns the position of a key.
func Hash(key string) uint64 { return xxhash.Sum64String(key) }

// HashValues returns the position that Envoy gives a request whose hashed header has
// several values: they are sorted, and each is hashed with the hash of those
// before it as the seed. For one value it is Hash.
func HashValues(values []string) uint64 {
	var h uint64
	for _, v := range slices.Sorted(slices.Values(values)) {
		d := xxhash.NewWithSeed(h)
		_, _ = d.WriteString(v) // never fails
		h = d.Sum64()
	}
	return h
}

// Ring is a set of nodes and their points.
type Ring struct {
	nodes  []string // hash keys, bytewise; a node is its index
	points []uint64 // positions, ascending
	owner  []int32  // node of each point
	next   []int32  // the next distinct node clockwise of each point; -1 = none
	index  Index
	digest uint64
}

// New returns the ring of the nodes with these hash keys, PointsPerNode points
// each. There must be at least one, and no two may be equal.
func New(hashKeys []string) (*Ring, error) {
	n := uint64(len(hashKeys)) * PointsPerNode
	if n > MaxPoints {
		return nil, fmt.Errorf("ring: %d nodes; at most %d are allowed", len(hashKeys), MaxNodes)
	}
	return NewSized(hashKeys, n, MaxPoints)
}

// NewSized returns the ring that Envoy builds of hosts of equal weight with this
// minimum_ring_size and maximum_ring_size.
func NewSized(hashKeys []string, minSize, maxSize uint64) (*Ring, error) {
	nodes := slices.Sorted(slices.Values(hashKeys))
	if err := validate(nodes, minSize, maxSize); err != nil {
		return nil, err
	}
	r := &Ring{nodes: nodes}
	r.place(minSize, maxSize)
	r.link()
	r.sum()
	return r, nil
}

func validate(nodes []string, minSize, maxSize uint64) error {
	switch {
	case len(nodes) == 0:
		return errors.New("ring: there are no nodes")
	case minSize > maxSize:
		return fmt.Errorf("ring hash: minimum_ring_size (%d) > maximum_ring_size (%d)", minSize, maxSize)
	case minSize == 0 || maxSize > MaxPoints:
		return fmt.Errorf("ring: sizes from %d to %d; they must lie from 1 to %d", minSize, maxSize, MaxPoints)
	}
	for i, n := range nodes {
		if n == "" || len(n) > MaxHashKey {
			return fmt.Errorf("ring: the hash key %.40q has %d bytes; 1 to %d are allowed", n, len(n), MaxHashKey)
		}
		if i > 0 && n == nodes[i-1] {
			return fmt.Errorf("ring: two nodes have the hash key %q", n)
		}
	}
	return nil
}

// place computes the points, with the floating-point arithmetic of Envoy: one
// running sum over all hosts decides how many points each has.
func (r *Ring) place(minSize, maxSize uint64) {
	type point struct {
		at   uint64
		node int32
	}
	weight := 1 / float64(len(r.nodes))
	scale := min(math.Ceil(weight*float64(minSize))/weight, float64(maxSize))
	points := make([]point, 0, int(math.Ceil(scale))+len(r.nodes))
	var have, want float64
	name := make([]byte, 0, MaxHashKey+8)
	for i, node := range r.nodes {
		want += float64(scale * weight) // the conversion forbids a fused multiply-add, which would round differently
		name = append(append(name[:0], node...), '_')
		for k := int64(0); have < want; k++ {
			at := xxhash.Sum64(strconv.AppendInt(name, k, 10))
			points = append(points, point{at, int32(i)})
			have++
		}
	}
	// Points that collide stand in the order of their nodes.
	slices.SortFunc(points, func(a, b point) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.node, b.node))
	})
	r.points, r.owner = make([]uint64, len(points)), make([]int32, len(points))
	for i, p := range points {
		r.points[i], r.owner[i] = p.at, p.node
	}
}

// link finds the next distinct node of each point and makes the index.
func (r *Ring) link() {
	n := len(r.points)
	r.next = make([]int32, n)
	// Going round backwards twice, next[i] is the owner of the nearest point
	// ahead that is not of the same node.
	for i := 2*n - 1; i >= 0; i-- {
		at, after := i%n, (i+1)%n
		switch {
		case r.owner[after] != r.owner[at]:
			r.next[at] = r.owner[after]
		case i >= 2*n-1:
			r.next[at] = -1
		default:
			r.next[at] = r.next[after]
		}
	}
	r.index = NewIndex(r.points)
}

// digestVersion changes when what a ring is made of changes.
const digestVersion = "keystead ring 1\n"

func (r *Ring) sum() {
	line := []byte(digestVersion)
	for _, node := range r.nodes {
		line = fmt.Appendf(line, "%d %s\n", len(node), node)
	}
	d := xxhash.New()
	_, _ = d.Write(line) // never fails
	for i, at := range r.points {
		line = strconv.AppendUint(line[:0], at, 16)
		line = strconv.AppendInt(append(line, ' '), int64(r.owner[i]), 10)
		_, _ = d.Write(append(line, '\n'))
	}
	r.digest = d.Sum64()
}

// Point returns the index of the point that a position belongs to.
func (r *Ring) Point(h uint64) int { return r.index.Find(h) }

// Owner returns the hash key of the node that a position belongs to.
func (r *Ring) Owner(h uint64) string { return r.nodes[r.owner[r.Point(h)]] }

// Standby returns the hash key of the next distinct node clockwise, which a position
// belongs to when its owner is gone. ok is false if there is only one node.
func (r *Ring) Standby(h uint64) (node string, ok bool) {
	next := r.next[r.Point(h)]
	if next < 0 {
		return "", false
	}
	return r.nodes[next], true
}

// Third returns the hash key of the next distinct node clockwise after the standby. ok is
// false if there are fewer than three nodes. It takes a few steps among many nodes, and
// one for each point of a ring at worst.
func (r *Ring) Third(h uint64) (node string, ok bool) {
	if len(r.nodes) < 3 {
		return "", false
	}
	at := r.Point(h)
	owner, next := r.owner[at], r.next[at]
	for k := 1; k < len(r.points); k++ {
		if n := r.owner[(at+k)%len(r.points)]; n != owner && n != next {
			return r.nodes[n], true
		}
	}
	return "", false
}

// Nodes returns the hash keys, bytewise. The caller must not change them.
func (r *Ring) Nodes() []string { return r.nodes }

// Size returns the number of points.
func (r *Ring) Size() int { return len(r.points) }

// At returns the position and the node of a point, by index.
func (r *Ring) At(i int) (position uint64, node string) { return r.points[i], r.nodes[r.owner[i]] }

// Digest is equal for equal rings, and, but for one chance in 2^64, different
// for different ones.
func (r *Ring) Digest() uint64 { return r.digest }
