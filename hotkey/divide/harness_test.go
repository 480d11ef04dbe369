package divide

import (
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/keystead/keystead/handoff/record"
	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/counter"
	"github.com/keystead/keystead/owner/limit"
	"github.com/keystead/keystead/owner/reqid"
	"github.com/keystead/keystead/ring"
	"github.com/keystead/keystead/ring/epoch/table"
)

const second = int64(1e9)

// house is a store that owns everything, by a real table, and what a home does in it.
// It is the rule of the store. What is carried from one object to another is written and
// read again on the way.
type house struct {
	t     testing.TB
	tab   *table.Table
	home  table.Holder
	s     *owner.Store
	now   int64
	since int64 // of the permits
}

func newHouse(t testing.TB, change func(*owner.Config)) *house {
	t.Helper()
	h := &house{t: t, tab: &table.Table{}, home: table.Holder{Node: "n1", Incarnation: 1}, now: 1000 * second, since: math.MinInt64}
	m := table.Member{Node: "n1", Incarnation: 1, HashKey: "n1", Level: table.Level}
	h.apply(table.Command{Init: &table.Init{Cluster: "test", Epoch: 100}})
	h.apply(table.Command{Admit: &table.Admit{Member: m}})
	h.apply(table.Command{Begin: &table.Begin{Want: []table.Holder{h.home}}})
	h.apply(table.Command{End: &table.End{Transition: h.tab.Epoch}})
	cfg := owner.Config{Rule: h, Shards: 1}
	if change != nil {
		change(&cfg)
	}
	var err error
	if h.s, err = owner.New(cfg, h.now); err != nil {
		t.Fatal(err)
	}
	return h
}

func (h *house) apply(c table.Command) {
	h.t.Helper()
	next, err := h.tab.Apply(c)
	if err != nil {
		h.t.Fatalf("%s: %v", c.Kind(), err)
	}
	h.tab = next
}

// Admit implements owner.Rule.
func (h *house) Admit(hash uint64, _ int64) (owner.Permit, error) {
	return owner.Permit{Epoch: h.tab.Epoch, Seen: h.tab.Epoch, Hash: hash, Since: h.since}, nil
}

func (h *house) Confirm(owner.Permit, int64) error             { return nil }
func (h *house) Terms() owner.Terms                            { return owner.Terms{} }
func (h *house) Exhausted(epoch uint64) (uint64, error)        { return epoch + 1, nil }
func (h *house) Split(hash uint64) bool                        { return h.tab.MaySplit(hash) }
func (h *house) May(r owner.Ref, k owner.Kind) (uint32, error) { return May(h.tab, r, k) }

// kindOf returns the kind of a split's object.
func kindOf(sp *table.Split) owner.Kind {
	if sp.Kind == "counter" {
		return owner.KindCounter
	}
	return owner.KindLimit
}

// readObject reads an object as it travels.
func (h *house) readObject(ref owner.Ref, kind owner.Kind) []*owner.Record {
	h.t.Helper()
	var encoded [][]byte
	if _, err := h.s.Read(h.now, ref, kind, func(r *owner.Record, now int64) { encoded = append(encoded, record.Append(nil, r, now)) }); err != nil {
		h.t.Fatalf("taking %+v: %v", ref, err)
	}
	return h.read(encoded)
}

func (h *house) read(encoded [][]byte) []*owner.Record {
	h.t.Helper()
	all := make([]*owner.Record, len(encoded))
	for i, b := range encoded {
		all[i] = &owner.Record{}
		if err := record.Decode(b, h.now, all[i]); err != nil {
			h.t.Fatal(err)
		}
	}
	return all
}

// put makes an object of records, which travel before that.
func (h *house) put(ref owner.Ref, all []*owner.Record) {
	h.t.Helper()
	encoded := make([][]byte, len(all))
	for i, r := range all {
		if err := r.Validate(h.now); err != nil {
			h.t.Fatalf("record %d: %v", i, err)
		}
		encoded[i] = record.Append(nil, r, h.now)
	}
	if _, err := h.s.Put(h.now, ref, h.read(encoded)); err != nil {
		h.t.Fatalf("putting %+v: %v", ref, err)
	}
}

// begin agrees on a split of the object "k" into parts of these weights.
func (h *house) begin(kind string, weights ...uint32) *table.Split {
	h.t.Helper()
	sp := table.Split{ID: h.tab.Epoch + 1, Kind: kind, Key: "k", Name: "n"}
	for i, w := range weights {
		sp.Parts = append(sp.Parts, table.Part{Salt: uint32(i), Weight: w})
	}
	h.apply(table.Command{BeginSplit: &table.BeginSplit{Split: sp}})
	return h.split()
}

// split returns the one that there is.
func (h *house) split() *table.Split {
	h.t.Helper()
	if len(h.tab.Splits) != 1 {
		h.t.Fatalf("there are %d splits", len(h.tab.Splits))
	}
	return &h.tab.Splits[0]
}

// open plants the parts of a split, and has them served.
func (h *house) open() *table.Split {
	h.t.Helper()
	sp := h.split()
	parts, base, err := Divide(h.readObject(h.whole(owner.Carry), kindOf(sp)), sp, h.now)
	if err != nil {
		h.t.Fatal(err)
	}
	for i := range parts {
		h.put(h.part(i, owner.Plant), parts[i])
	}
	h.apply(table.Command{OpenSplit: &table.OpenSplit{ID: sp.ID, Home: h.home, Base: base}})
	return h.split()
}

// part returns the address of a part.
func (h *house) part(i int, role owner.Role) owner.Ref {
	sp := h.split()
	return owner.Ref{Key: sp.PartKey(i), Name: sp.Name, Role: role}
}

// whole returns the address of the object, for the split that there is.
func (h *house) whole(role owner.Role) owner.Ref {
	ref := owner.Ref{Key: "k", Name: "n", Role: role}
	if role != owner.Whole && len(h.tab.Splits) == 1 {
		ref.Split = h.tab.Splits[0].ID
	}
	return ref
}

// close has the parts not served any more, and reads them.
func (h *house) close() (sp *table.Split, parts [][]*owner.Record) {
	h.t.Helper()
	h.apply(table.Command{CloseSplit: &table.CloseSplit{ID: h.split().ID}})
	sp = h.split()
	for i := range sp.Parts {
		parts = append(parts, h.readObject(h.part(i, owner.Reap), kindOf(sp)))
	}
	return sp, parts
}

// merge makes the object whole.
func (h *house) merge() {
	h.t.Helper()
	sp, parts := h.close()
	h.join(sp, united(parts, sp, h.now))
}

func (h *house) join(sp *table.Split, all []*owner.Record) {
	h.t.Helper()
	h.put(h.whole(owner.Join), all)
	h.apply(table.Command{EndSplit: &table.EndSplit{ID: sp.ID, Home: h.home, Since: sp.Since}})
}

// at returns where an operation with a request id goes.
func (h *house) at(id reqid.ID) owner.Ref {
	if len(h.tab.Splits) == 0 {
		return h.whole(owner.Whole)
	}
	return h.part(ring.PartOf(id.Client.Hi, id.Client.Lo, id.Sequence, len(h.split().Parts)), owner.Share)
}

// add adds to the counter, or to the part that the id belongs to.
func (h *house) add(id reqid.ID, delta int64) owner.AddAnswer {
	h.t.Helper()
	a, err := h.s.Add(h.now, h.at(id), id, counter.AddOp{Delta: delta})
	if err != nil {
		h.t.Fatalf("adding %d as %+v: %v", delta, id, err)
	}
	return a
}

// value returns that of the counter.
func (h *house) value() int64 {
	h.t.Helper()
	if len(h.tab.Splits) == 0 {
		g, err := h.s.Get(h.now, h.whole(owner.Whole))
		if err != nil {
			h.t.Fatal(err)
		}
		return g.Value
	}
	sum := h.split().Base
	for i := range h.split().Parts {
		g, err := h.s.Get(h.now, h.part(i, owner.Share))
		if err != nil {
			h.t.Fatal(err)
		}
		sum += g.Value
	}
	return sum
}

// bucket is a token bucket.
func bucket(tokens uint64, period int64) limit.Op {
	return limit.Op{Params: limit.Params{Limit: tokens, Period: period}, Cost: 1}
}

// idOf is a request id of a client, first sent some time ago.
func idOf(client, sequence uint64, age int64) reqid.ID {
	return reqid.ID{Client: reqid.Client{Hi: client, Lo: ^client}, Sequence: sequence, Age: age}
}

// even returns the weights of n parts that are the same.
func even(n int) []uint32 {
	weights := make([]uint32, n)
	for i := range weights {
		weights[i] = uint32(table.FullWeight / n)
	}
	return weights
}

// reason returns that of an error of a store.
func reason(err error) failure.Reason {
	var e *failure.Error
	if errors.As(err, &e) {
		return e.Reason
	}
	return 0
}

// ids returns all that records remember: by client and sequence, what became of it.
func ids(all []*owner.Record) map[string]reqid.Outcome {
	m := map[string]reqid.Outcome{}
	for _, r := range all {
		ops := r.IDs.Ops
		for _, c := range r.IDs.Clients {
			for _, o := range ops[:c.Ops] {
				m[fmt.Sprint(c.Client, o.Sequence)] = o.Outcome
			}
			ops = ops[c.Ops:]
		}
	}
	return m
}

// united returns what parts of an object that may be split make.
func united(parts [][]*owner.Record, sp *table.Split, now int64) []*owner.Record {
	all, err := Unite(parts, sp, now)
	if err != nil {
		panic(err)
	}
	return all
}
