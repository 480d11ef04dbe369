// Package divide divides an object into parts, and puts it together again: state and
// request ids, as records (package owner) have them.
//
// # Guarantee
//
// What is put together of the parts of an object, as they were planted, is the object as
// it was: a counter exactly, a token bucket with at least as much spent, and less than
// one token more for each part. What is remembered of a request id is in the part that
// the id belongs to (table.PartOf), and in the whole again; ids that are too many are
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
	"github.com/keystead/keystead/owner/counter"
	"github.com/keystead/keystead/owner/limit"
	"github.com/keystead/keystead/owner/reqid"
	"github.com/keystead/keystead/ring/epoch/table"
)

const (
	// MaxIDs is how many request ids travel when an object is divided, or put together:
	// with those of as many clients as may be, some 500 KB in all.
	MaxIDs = 8192
	// maxBase bounds the value of a counter that is divided, in either direction: the sum
	// of it and table.MaxParts parts, which package owner bounds by 2^56 each, does not
	// overflow.
	maxBase = 1 << 61
	// chunk is how many ids are in one record.
	chunk = owner.MaxKept / 2
)

// Marks in the version that a counter answered with. Versions are below both.
const (
	OfWhole = 1 << 62       // while it is remembered by a part: the whole answered
	ofPart  = math.MinInt64 // while it is remembered by the whole: a part answered
)

// Why an object is not divided. They are for people.
var (
	ErrKind   = errors.New("objects of this kind are not split")
	ErrWindow = errors.New("only limits that are token buckets are split")
	ErrTTL    = errors.New("counters with an idle TTL are not split")
	ErrLarge  = errors.New("the counter is too large to be split")
)

// Divide returns the records of each part of an object, and of a counter the value that
// no part has. The times of the records are of one clock, and now is of it.
func Divide(whole []*owner.Record, sp *table.Split, now int64) (parts [][]*owner.Record, base int64, err error) {
	n := len(sp.Parts)
	first := owner.Record{}
	if len(whole) > 0 {
		first = *whole[0]
	}
	kind, _ := KindOf(sp.Kind)
	var states []limit.State
	switch kind {
	case owner.KindCounter:
		switch c := first.Counter(); {
		//guard:split-ttl
		case c.IdleTTL != 0:
			return nil, 0, ErrTTL
		case c.Value > maxBase ||
			c.Value < -maxBase: //guard:split-large
			return nil, 0, ErrLarge
		default:
			base = c.Value
		}
	case owner.KindLimit:
		s, _ := first.Limit()
		//guard:split-window
		if s.Spent != 0 && s.Algorithm != limit.TokenBucket {
			return nil, 0, ErrWindow
		}
		weights := make([]uint32, n)
		for i, p := range sp.Parts {
			weights[i] = p.Weight
		}
		states = s.Divide(weights, now)
	default:
		return nil, 0, ErrKind
	}
	ids := gather(whole)
	if kind == owner.KindCounter {
		//guard:split-ids-answers o.A-base -> o.A
		ids.answers(func(o *reqid.Outcome) { o.A, o.B = o.A-base, o.B|OfWhole })
	}
	for i := range n {
		//guard:split-ids-part table.PartOf(c.Hi, c.Lo, seq, n) -> int(seq)%n
		mine := ids.of(func(c reqid.Client, seq uint64) bool { return table.PartOf(c.Hi, c.Lo, seq, n) == i })
		at := &owner.Record{Key: []byte(sp.PartKey(i)), Name: []byte(sp.Name), Kind: kind, At: now}
		if kind == owner.KindLimit {
			at.SetLimit(states[i], nil)
		}
		parts = append(parts, records(at, mine))
	}
	return parts, base, nil
}

// Unite returns the records of the whole object that these parts are of. A part that has
// no record, or no state where it should, was lost: of a limit, all of it counts as spent.
func Unite(parts [][]*owner.Record, sp *table.Split, now int64) []*owner.Record {
	kind, _ := KindOf(sp.Kind)
	at := &owner.Record{Key: []byte(sp.Key), Name: []byte(sp.Name), Kind: kind, At: now}
	ids := gather(slices.Concat(parts...))
	var states []limit.State
	//guard:split-base -> value, exists := int64(0), sp.Base != 0
	value, exists := sp.Base, sp.Base != 0
	for _, part := range parts {
		if len(part) == 0 {
			continue
		}
		c := part[0].Counter()
		value, exists = value+c.Value, exists || c.Version != 0
		//guard:split-lost-empty true
		if s, _ := part[0].Limit(); s.Weight != 0 {
			//guard:split-lost-empty insert s.Weight = max(s.Weight, sp.Parts[0].Weight)
			states = append(states, s)
		}
	}
	switch {
	case kind == owner.KindCounter:
		ids.answers(func(o *reqid.Outcome) {
			//guard:split-ids-united sp.Base -> 0
			if o.A += sp.Base; o.B&OfWhole != 0 {
				o.B &^= OfWhole
			} else {
				o.B |= ofPart
			}
		})
		if exists {
			at.SetCounter(counter.State{Value: value, Version: 1, At: now})
		}
	case kind != owner.KindLimit:
		panic("divide: a split of an object that has no parts")
	case len(states) > 0:
		at.SetLimit(limit.Unite(states, now), nil)
	default: // nothing is left of it
		at.SetLimit(limit.State{Weight: 1}, nil)
	}
	return records(at, ids)
}

// Trim returns the records of an object with as many ids as travel, the latest ones; the
// records themselves if they have no more.
func Trim(all []*owner.Record) []*owner.Record {
	total := 0
	for _, r := range all {
		if r.IDs != nil {
			total += len(r.IDs.Ops)
		}
	}
	if total <= MaxIDs {
		return all
	}
	whole := *all[0]
	return records(&whole, gather(all))
}

// Bare is a whole record without its ids, all of which count as evicted at this moment.
func Bare(whole *owner.Record, now int64) *owner.Record {
	bare := *whole
	bare.At = now
	return records(&bare, kept{evicted: now})[0]
}

// records are a record with these ids, cut into some.
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
	clients []client // the one idle longest first
}

type client struct {
	reqid.KeptClient
	ops []reqid.KeptOp // in the order in which they took effect
}

// gather takes the ids of records together.
func gather(all []*owner.Record) kept {
	k := kept{evicted: math.MinInt64}
	at := map[reqid.Client]int{}
	total := 0
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
			total += c.Ops
		}
	}
	for i := range k.clients {
		slices.SortStableFunc(k.clients[i].ops, func(a, b reqid.KeptOp) int { return cmp.Compare(a.At, b.At) })
	}
	slices.SortStableFunc(k.clients, func(a, b client) int { return cmp.Compare(a.Linked, b.Linked) })
	k.bound(total)
	k.clients = slices.DeleteFunc(k.clients, func(c client) bool { return len(c.ops) == 0 && c.Floor == 0 }) // nothing is known of them
	return k
}

// bound drops the oldest ids if there are too many.
func (k *kept) bound(total int) {
	//guard:split-ids-bound true
	if total <= MaxIDs {
		return
	}
	times := make([]int64, 0, total)
	for _, c := range k.clients {
		for _, o := range c.ops {
			times = append(times, o.At)
		}
	}
	slices.Sort(times)
	last := times[total-MaxIDs-1] // of those that go
	//guard:split-ids-evicted
	k.evicted = max(k.evicted, last)
	for i := range k.clients {
		c := &k.clients[i]
		c.ops = slices.DeleteFunc(c.ops, func(o reqid.KeptOp) bool { return o.At <= last })
	}
}

// answers changes all that is remembered of the answers.
func (k *kept) answers(f func(o *reqid.Outcome)) {
	for i := range k.clients {
		for j := range k.clients[i].ops {
			f(&k.clients[i].ops[j].Outcome)
		}
	}
}

// of are the ids of a part: those that belong to it, and the floors of all clients.
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
