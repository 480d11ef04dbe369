package client

import (
	"cmp"
	"encoding/binary"
	"errors"
	"maps"
	"slices"

	"github.com/keystead/keystead/ring"

	clusterpb "github.com/keystead/keystead/proto/keystead/cluster/v1"
)

// Kinds of objects that may be split, as the table names them.
const (
	limitObject   = "limit"
	counterObject = "counter"
)

// object is what a call is about. Kind "" is for calls that go to the owner of their key,
// whatever is split: those about locks, and operations that a part cannot do.
type object struct{ kind, key, name string }

// objectAt returns an object of a kind. An empty name is that of the kind.
func objectAt(kind, key, name string) object {
	return object{kind, key, cmp.Or(name, kind)}
}

// object returns what a check is about. Only token buckets can be split, and the part that
// an idempotency key belongs to is for the owner of the key to find.
func (q *Check) object() object {
	if q.Limit.rate.Algorithm != TokenBucket || len(q.Options) > 0 {
		return object{key: q.Key, name: q.Limit.name}
	}
	return objectAt(limitObject, q.Key, q.Limit.name)
}

// object returns what an add is about. One with bounds or an expiry needs the whole
// counter: the owner of its key makes it whole.
func (n Counter) object(key string, opts []CounterOption) object {
	for _, o := range opts {
		if o != CounterOption(counterOption{what: idleTTL}) {
			return object{key: key, name: n.name}
		}
	}
	return objectAt(counterObject, key, n.name)
}

// split is an object whose parts are served in its place.
type split struct {
	parts []*member // owners, by the index of their part; nil = not known
	nodes []string  // addresses of the owners, each once
}

// divide applies a change to the announced splits: the new and different ones, and the
// ids of those that are over.
func (v *view) divide(before map[uint64]*clusterpb.Split, changed []*clusterpb.Split, over []uint64) error {
	v.announced = before
	if len(changed)+len(over) > 0 {
		//guard:split-view-copied -> if v.announced == nil { v.announced = map[uint64]*clusterpb.Split{} }
		v.announced = make(map[uint64]*clusterpb.Split, len(before)+len(changed))
		maps.Copy(v.announced, before)
	}
	for _, id := range over {
		if v.announced[id] == nil {
			return errors.New("a split is over that the table did not have")
		}
		delete(v.announced, id)
	}
	for _, w := range changed {
		v.announced[w.GetId()] = w
	}
	v.splits = readSplits(v.announced, v.members)
	return nil
}

// readSplits returns the objects whose parts are served; nil if there are none. While an
// object is being divided, or made whole, its calls go to the owner of its key as ever.
func readSplits(announced map[uint64]*clusterpb.Split, members []member) (all map[object]*split) {
	if len(announced) == 0 {
		return nil
	}
	byID := make(map[string]*member, len(members))
	for i := range members {
		byID[members[i].id] = &members[i]
	}
	for _, w := range announced {
		if w.GetPhase() != clusterpb.SplitPhase_SPLIT_PHASE_OPEN || len(w.Parts) == 0 {
			continue
		}
		s := &split{parts: make([]*member, len(w.Parts))}
		for i, p := range w.Parts {
			m := byID[p.GetOwner()]
			if m == nil {
				continue
			}
			s.parts[i] = m
			if !slices.Contains(s.nodes, m.addr) {
				s.nodes = append(s.nodes, m.addr)
			}
		}
		if all == nil {
			all = make(map[object]*split, len(announced))
		}
		all[objectAt(word(w.Kind, "KIND_"), w.Key, w.Name)] = s
	}
	return all
}

// split finds an object that is served in parts; nil if it is not.
func (v *view) split(o object) *split {
	if v == nil || v.splits == nil || o.kind == "" {
		return nil
	}
	return v.splits[o]
}

// part returns the owner of the part that an operation goes to; nil if it is not known.
func (s *split) part(op *operation) *member {
	c := &op.of.client
	return s.parts[ring.PartOf(binary.BigEndian.Uint64(c[:8]), binary.BigEndian.Uint64(c[8:]), op.seq, len(s.parts))]
}

// owner returns the member that a call goes to: the owner of its part if the object is
// split, or else of its key; nil if that is not known. Of a split object that is only
// read it is not meant: any part will do.
func (r *route) owner(v *view) *member {
	if s := v.split(r.object); s != nil && r.op != nil {
		if m := s.part(r.op); m != nil {
			return m
		}
	}
	return v.owner(r.hash)
}

// moved reports whether the view next sends an attempt elsewhere than v does.
func (r *route) moved(v, next *view) bool {
	if !r.keyed {
		return false
	}
	if r.op == nil {
		if was, is := v.split(r.object) != nil, next.split(r.object) != nil; was || is {
			return was != is
		}
	}
	return !sameOwner(r.owner(v), r.owner(next))
}

// anyPart returns the address of the owner of one of the parts for a call that only
// reads, by the choice of package p2c; "" if the object is not split, or no owner is
// known but the one to be avoided.
func (c *Client) anyPart(v *view, r *route) string {
	s := v.split(r.object)
	if s == nil || r.op != nil {
		return ""
	}
	var few [ring.MaxParts]string
	known := few[:0]
	for _, a := range s.nodes {
		if a != r.avoid {
			known = append(known, a)
		}
	}
	return c.pool.lighter(known, c.clock.Now())
}
