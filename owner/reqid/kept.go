package reqid

import (
	"errors"
	"math"
)

// Kept is what is remembered of the ids of one object, or a part of it: what a
// copy of the object needs in order to answer retries as its owner would.
type Kept struct {
	Evicted int64        // when an id was last evicted for want of room; math.MinInt64 = never
	Clients []KeptClient // longest idle first
	Ops     []KeptOp     // of the clients, in their order; those of one in the order in which they took effect
}

// KeptClient is a client on the object.
type KeptClient struct {
	Client Client
	Floor  uint64 // the greatest Settled that it sent
	Seen   int64  // when it was last seen
	Linked int64  // … when it was put in this order; not after Seen
	Ops    int    // how many of Kept.Ops are its own
}

// KeptOp is an operation and its outcome.
type KeptOp struct {
	Sequence uint64
	At       int64
	Outcome  Outcome
}

// Cursor is a place in what is remembered of an object. The zero Cursor is its
// beginning. It is valid until the table changes.
type Cursor struct {
	client, op uint32
	begun      bool
	last       bool   // the client's last operation is next
	keys       bool   // all clients are done
	key        uint32 // the next key then
}

// Save puts what is remembered of an object into k, whose slices it uses again,
// from a place on, and not more than about most clients and operations. It
// returns where to go on; done says that this was all.
func (t *Table) Save(ref uint32, from Cursor, most int, k *Kept) (next Cursor, done bool) {
	k.Evicted, k.Clients, k.Ops = math.MinInt64, k.Clients[:0], k.Ops[:0]
	if ref == 0 {
		return from, true
	}
	obj := t.objects.At(ref)
	k.Evicted = obj.evicted
	if !from.begun {
		from = t.cursor(obj.oldest)
	}
	for from.client != 0 {
		if len(k.Clients)+len(k.Ops) >= most {
			return from, false
		}
		from = t.saveClient(from, most, k)
	}
	if !from.keys {
		from.keys, from.key = true, obj.keys.oldest
	}
	from.key = t.saveKeys(from.key, most, k)
	return from, from.key == 0
}

// cursor returns the place where a client begins.
func (t *Table) cursor(c uint32) Cursor {
	at := Cursor{client: c, begun: true}
	if c != 0 {
		at.op = t.clients.At(c).first
		at.last = at.op == 0
	}
	return at
}

func (t *Table) saveClient(from Cursor, most int, k *Kept) Cursor {
	cl := t.clients.At(from.client)
	k.Clients = append(k.Clients, KeptClient{Client: cl.id, Floor: cl.floor, Seen: cl.seen, Linked: cl.linked})
	into := &k.Clients[len(k.Clients)-1]
	for !from.last {
		if len(k.Clients)+len(k.Ops) >= most && into.Ops > 0 {
			return from
		}
		x := t.ops.At(from.op)
		k.Ops = append(k.Ops, KeptOp{x.seq, x.at, x.out})
		into.Ops++
		from.op = x.next
		from.last = from.op == 0
	}
	if cl.last.seq != 0 {
		k.Ops = append(k.Ops, KeptOp{cl.last.seq, cl.last.at, cl.last.out})
		into.Ops++
	}
	return t.cursor(cl.inObject.newer)
}

// Load adds what was saved elsewhere to the ids of an object, and returns their
// reference, as Note does. Where this table remembers less than the other one, it
// evicts, as of now. own says that the keys count as used here. k must be Valid.
func (t *Table) Load(ref, owner uint32, k *Kept, now int64, own bool) uint32 {
	ops := k.Ops
	for i := range k.Clients {
		kc := &k.Clients[i]
		ref = t.object(ref, owner)
		t.loadClient(ref, kc, ops[:kc.Ops], now, own)
		ops = ops[kc.Ops:]
	}
	if ref != 0 {
		t.evictedAt(ref, k.Evicted)
	}
	return ref
}

// loadClient adds a client with its operations, or a key.
func (t *Table) loadClient(ref uint32, kc *KeptClient, ops []KeptOp, now int64, own bool) {
	keys := 0
	for _, o := range ops {
		//guard:key-loaded
		if o.Sequence == KeySequence {
			t.noteKey(ref, kc.Client, o.Outcome, o.At, own)
			keys++
		}
	}
	if keys > 0 && keys == len(ops) && kc.Floor == 0 {
		return
	}
	c := t.find(ref, kc.Client)
	if c == 0 {
		c = t.addClient(ref, kc.Client, now)
		cl := t.clients.At(c)
		cl.seen, cl.linked = kc.Seen, kc.Linked
	}
	for _, o := range ops {
		if o.Sequence == KeySequence {
			continue
		}
		for int(t.clients.At(c).n) >= t.cfg.IDsPerClient {
			t.popOp(c)
			t.evictedAt(ref, now)
		}
		t.addOp(c, op{seq: o.Sequence, at: o.At, out: o.Outcome})
	}
	cl := t.clients.At(c)
	cl.floor = max(cl.floor, kc.Floor)
}

// errKept says that something that came from elsewhere was not saved by a table.
var errKept = errors.New("reqid: what is remembered does not hold together")

// minMoment bounds times that came from elsewhere, ns, so that no difference
// overflows.
const minMoment = -1 << 61

// Valid reports whether what came from elsewhere can be loaded now.
func (k *Kept) Valid(now int64) error {
	n := 0
	for i := range k.Clients {
		c := &k.Clients[i]
		if c.Ops < 0 || c.Ops > len(k.Ops)-n || c.Seen > now || c.Linked > c.Seen || c.Linked < minMoment {
			return errKept
		}
		n += c.Ops
	}
	for i := range k.Ops {
		if k.Ops[i].Sequence == 0 || k.Ops[i].At > now || k.Ops[i].At < minMoment {
			return errKept
		}
	}
	if n != len(k.Ops) || k.Evicted > now || k.Evicted < minMoment && k.Evicted != math.MinInt64 {
		return errKept
	}
	return nil
}
