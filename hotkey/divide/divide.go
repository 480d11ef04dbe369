// Package divide divides an object into parts, and puts it together again: state and
// request ids, as records (package owner) have them.
//
// # Guarantee
//
// What is put together of the parts of an object, as they were planted, is the object as
// it was: a counter exactly, a token bucket with at least as much spent, and less than
// one token more for each part. What is remembered of a request id is in the part that
// the id belongs to (ring.PartOf), and in the whole again; ids that are too many are
// dropped, the oldest first, and covered by time, as reqid does when it has no room.
//
// It is pure: it reads no clock and changes none of its arguments.
package divide

import (
	"cmp"
	"errors"
	"math"
	"slices"

	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/reqid"
	"github.com/keystead/keystead/ring"
	"github.com/keystead/keystead/ring/epoch/table"
)

const (
	// MaxIDs is how many request ids travel when an object is divided, or put together:
	// with those of as many clients as may be, some 500 KB in all.
	MaxIDs = 8192
	// MaxKeys is how many idempotency keys of all parts travel beside them when the object
	// is put together, some 2 MB, page by page.
	MaxKeys = 32_768
	// PlantKeys is how many may be divided: all of them may belong to one part, whose
	// records go to their owner in one message. See ErrKeys.
	PlantKeys = 4096
	// chunk is how many ids are in one record.
	chunk = owner.MaxKept / 2
)

// ErrKind is the error of a split of a kind that has no parts.
var ErrKind = errors.New("objects of this kind are not split")

// ErrKeys is why an object is not divided: keys are not forgotten while they may be sent
// again.
var ErrKeys = errors.New("objects that remember more idempotency keys than travel are not split")

// Divide returns the records of each part of an object, and the value that no part has.
// The times of the records are of one clock, and now is of it. Its errors are for people:
// the object cannot be divided.
func Divide(whole []*owner.Record, sp *table.Split, now int64) (parts [][]*owner.Record, base int64, err error) {
	kind, ok := KindOf(sp.Kind)
	if !ok {
		return nil, 0, ErrKind
	}
	d, first := dividerOf(kind), &owner.Record{Kind: kind}
	if len(whole) > 0 {
		first = whole[0]
	}
	states := make([]*owner.Record, len(sp.Parts))
	for i := range states {
		states[i] = &owner.Record{Key: []byte(sp.PartKey(i)), Name: []byte(sp.Name), Kind: kind, At: now}
	}
	if base, err = d.divide(first, sp, states); err != nil {
		return nil, 0, err
	}
	ids := gather(whole)
	//guard:split-keys-many
	if ids.lost || ids.keys() > PlantKeys {
		return nil, 0, ErrKeys
	}
	ids.answers(d.divided, base)
	for i, at := range states {
		mine := ids.of(func(c reqid.Client, seq uint64) bool {
			//guard:split-ids-part ring.PartOf(c.Hi, c.Lo, seq, len(states)) -> ring.PartOf(0, 0, seq, len(states))
			return ring.PartOf(c.Hi, c.Lo, seq, len(states)) == i ||
				reqid.IsMark(c, seq) //guard:split-key-marks
		})
		parts = append(parts, records(at, mine))
	}
	return parts, base, nil
}

// Unite returns the records of the whole object that these parts are of. A part that has
// no record, or no state where it should, was lost: of a limit, all of it counts as spent.
func Unite(parts [][]*owner.Record, sp *table.Split, now int64) ([]*owner.Record, error) {
	kind, ok := KindOf(sp.Kind)
	if !ok {
		return nil, ErrKind
	}
	d, at := dividerOf(kind), &owner.Record{Key: []byte(sp.Key), Name: []byte(sp.Name), Kind: kind, At: now}
	states := make([]*owner.Record, len(parts))
	for i, part := range parts {
		if len(part) > 0 {
			states[i] = part[0]
		}
	}
	d.unite(states, sp, at)
	ids := gather(slices.Concat(parts...))
	ids.answers(d.united, sp.Base)
	return records(at, ids), nil
}

// Trim returns the records of an object with as many ids as travel, the latest ones; the
// records themselves if they have no more.
func Trim(all []*owner.Record) []*owner.Record {
	ids, keys := 0, 0
	for _, r := range all {
		if r.IDs != nil {
			n := r.IDs.Keyed()
			ids, keys = ids+len(r.IDs.Ops)-n, keys+n
		}
	}
	if ids <= MaxIDs && keys <= MaxKeys {
		return all
	}
	whole := *all[0]
	return records(&whole, gather(all))
}

// Bare is a whole record without its ids and keys, all of which count as forgotten at this
// moment.
func Bare(whole *owner.Record, now int64) *owner.Record {
	bare := *whole
	bare.At = now
	ids := kept{evicted: now}
	ids.mark(now)
	return records(&bare, ids)[0]
}

// records returns a record with these ids, cut into some.
func records(whole *owner.Record, ids kept) []*owner.Record {
	//guard:split-ids-nobody
	if len(ids.clients) == 0 && ids.evicted != math.MinInt64 {
		// When ids were evicted is remembered as long as some client is: one of nobody.
		ids.clients = []client{{KeptClient: reqid.KeptClient{Floor: 1, Seen: whole.At, Linked: whole.At}}}
	}
	whole.Whole, whole.IDs = true, &reqid.Kept{Evicted: ids.evicted}
	out := []*owner.Record{whole}
	last := whole.IDs
	for _, c := range ids.clients {
		for first := true; first || len(c.ops) > 0; first = false {
			if len(last.Ops)+len(last.Clients) >= chunk {
				last = &reqid.Kept{Evicted: ids.evicted}
				out = append(out, &owner.Record{Key: whole.Key, Name: whole.Name, Kind: whole.Kind, At: whole.At, More: true, IDs: last})
			}
			n := min(len(c.ops), max(1, chunk-len(last.Ops)-len(last.Clients)))
			kc := c.KeptClient
			kc.Ops = n
			last.Clients = append(last.Clients, kc)
			last.Ops = append(last.Ops, c.ops[:n]...)
			c.ops = c.ops[n:]
		}
	}
	return out
}

// kept is what is remembered of request ids: by client, each once.
type kept struct {
	evicted int64
	lost    bool     // keys were dropped: there is a mark
	clients []client // longest idle first
}

type client struct {
	reqid.KeptClient
	ops []reqid.KeptOp // in the order in which they took effect
}

// gather takes the ids of records together.
func gather(all []*owner.Record) kept {
	k := kept{evicted: math.MinInt64}
	at := map[reqid.Client]int{}
	for _, r := range all {
		if r.IDs == nil {
			continue
		}
		k.evicted = max(k.evicted, r.IDs.Evicted)
		ops := r.IDs.Ops
		for _, c := range r.IDs.Clients {
			i, ok := at[c.Client]
			if !ok {
				i = len(k.clients)
				at[c.Client], k.clients = i, append(k.clients, client{KeptClient: c})
			}
			x := &k.clients[i]
			x.Floor, x.Seen, x.Linked = max(x.Floor, c.Floor), max(x.Seen, c.Seen), max(x.Linked, c.Linked)
			x.ops = append(x.ops, ops[:c.Ops]...)
			ops = ops[c.Ops:]
		}
	}
	for i := range k.clients {
		slices.SortStableFunc(k.clients[i].ops, func(a, b reqid.KeptOp) int { return cmp.Compare(a.At, b.At) })
	}
	slices.SortStableFunc(k.clients, func(a, b client) int { return cmp.Compare(a.Linked, b.Linked) })
	last := k.bound(MaxIDs, false)
	//guard:split-ids-evicted
	k.evicted = max(k.evicted, last)
	if last := k.bound(MaxKeys, true); last != math.MinInt64 {
		k.lost = true
		//guard:split-keys-lost
		k.mark(last)
	}
	k.clients = slices.DeleteFunc(k.clients, func(c client) bool { return len(c.ops) == 0 && c.Floor == 0 }) // nothing is known of them
	return k
}

// keys returns how many of the ids are idempotency keys.
func (k *kept) keys() (n int) {
	for _, c := range k.clients {
		for _, o := range c.ops {
			if o.Sequence == reqid.KeySequence {
				n++
			}
		}
	}
	return n
}

// bound drops the oldest ids, or the oldest keys, if there are more than most. It returns
// when the last of them was done, math.MinInt64 if none is dropped.
func (k *kept) bound(most int, keys bool) int64 {
	var times []int64
	for _, c := range k.clients {
		for _, o := range c.ops {
			if keys == (o.Sequence == reqid.KeySequence) {
				times = append(times, o.At)
			}
		}
	}
	//guard:split-ids-bound true
	if len(times) <= most {
		return math.MinInt64
	}
	slices.Sort(times)
	last := times[len(times)-most-1] // of those that go
	for i := range k.clients {
		c := &k.clients[i]
		c.ops = slices.DeleteFunc(c.ops, func(o reqid.KeptOp) bool {
			return o.At <= last && keys == (o.Sequence == reqid.KeySequence)
		})
	}
	return last
}

// mark adds that keys up to a moment are forgotten.
func (k *kept) mark(at int64) {
	var m reqid.Kept
	m.AddMark(at)
	k.clients = append(k.clients, client{KeptClient: m.Clients[0], ops: m.Ops})
}

// answers changes all that is remembered of the answers; not if change is nil.
func (k *kept) answers(change func(o *reqid.Outcome, base int64), base int64) {
	if change == nil {
		return
	}
	for i := range k.clients {
		for j := range k.clients[i].ops {
			change(&k.clients[i].ops[j].Outcome, base)
		}
	}
}

// of returns the ids of a part: those that belong to it, and the floors of all clients.
func (k *kept) of(mine func(c reqid.Client, sequence uint64) bool) kept {
	out := kept{evicted: k.evicted}
	for _, c := range k.clients {
		x := client{KeptClient: c.KeptClient}
		for _, o := range c.ops {
			if mine(c.Client, o.Sequence) {
				x.ops = append(x.ops, o)
			}
		}
		if len(x.ops) > 0 ||
			x.Floor > 0 { //guard:split-ids-floors
			out.clients = append(out.clients, x)
		}
	}
	return out
}
