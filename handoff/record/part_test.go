package record

import (
	"fmt"
	"math"
	"testing"

	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/counter"
	"github.com/keystead/keystead/owner/limit"
	"github.com/keystead/keystead/owner/reqid"
)

// splitRule lets in whatever comes, to parts of half of the weight.
type splitRule struct{ rule }

func (r *splitRule) Split(uint64) bool                         { return true }
func (r *splitRule) May(owner.Ref, owner.Kind) (uint32, error) { return limit.FullWeight / 2, nil }

// A part that is planted gets to the copy with its weight and all of its request ids,
// in as many records as they take, and so does what changes from then on.
func TestPlantedPartGetsToTheCopy(t *testing.T) {
	const ids = owner.MaxKept + 10
	r, w := &splitRule{rule{epoch: 7, since: math.MinInt64}}, &cable{t: t}
	store := func(sink owner.Sink) *owner.Store {
		s, err := owner.New(owner.Config{Rule: r, Sink: sink, Shards: 2, RequestIDs: reqid.Config{Window: window, IDsPerClient: 2 * ids}}, 0)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	a, b := store(w), store(nil)
	w.to = b
	now := 100 * second
	op := limit.Op{Params: limit.Params{Limit: 1 << 16, Period: 1000 * second}, Cost: 1}
	id := func(n int) reqid.ID { return reqid.ID{Client: reqid.Client{Hi: 1}, Sequence: uint64(n + 1), Age: 1} }
	put := func(key string, r owner.Role, from owner.Ref, kind owner.Kind) {
		var all []*owner.Record
		_, err := a.Read(now, from, kind, func(r *owner.Record, now int64) {
			one := r.Clone()
			if state, _ := one.Limit(); state != (limit.State{}) {
				one.SetLimit(state.Divide([]uint32{limit.FullWeight / 2}, now)[0], nil)
			}
			all = append(all, one)
		})
		if err == nil {
			_, err = a.Put(now, owner.Ref{Key: key, Name: from.Name, Role: r}, all)
		}
		if err != nil || len(all) < 2 {
			t.Fatalf("%d records: %v", len(all), err)
		}
	}
	for i := range ids {
		if _, err := a.Check(now, owner.Ref{Key: "home", Name: "limit"}, id(i), op); err != nil {
			t.Fatal(err)
		}
		if _, err := a.Add(now, owner.Ref{Key: "home", Name: "counter"}, id(i), counter.AddOp{Delta: 1}); err != nil {
			t.Fatal(err)
		}
	}
	put("\x00p", owner.Plant, owner.Ref{Key: "home", Name: "limit", Role: owner.Carry}, owner.KindLimit)
	put("\x00p", owner.Plant, owner.Ref{Key: "home", Name: "counter", Role: owner.Carry}, owner.KindCounter)
	share := owner.Ref{Key: "\x00p", Name: "limit", Role: owner.Share}
	if _, err := a.Check(now, share, id(ids), op); err != nil {
		t.Fatal(err)
	}
	w.to = nil
	var answers [2]string
	for n, s := range []*owner.Store{a, b} {
		for i := range ids + 1 {
			at, err := s.Check(now, share, id(i), op)
			if err != nil || !at.Replayed || !at.Allowed || at.Capacity != 1<<16 || at.Slack != 1<<15 {
				t.Fatalf("%d: id %d: %+v %v", n, i, at, err)
			}
		}
		for i := range ids {
			at, err := s.Add(now, owner.Ref{Key: "\x00p", Name: "counter", Role: owner.Share}, id(i), counter.AddOp{Delta: 1})
			if err != nil || !at.Replayed || at.Value != int64(i+1) {
				t.Fatalf("%d: id %d: %+v %v", n, i, at, err)
			}
		}
		_, err := s.Read(now, owner.Ref{Key: "\x00p", Name: "limit", Role: owner.Reap}, owner.KindLimit, func(r *owner.Record, _ int64) {
			state, _ := r.Limit()
			answers[n] += fmt.Sprintf("%+v %v %v %+v\n", state, r.Whole, r.More, *r.IDs)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if answers[0] != answers[1] {
		t.Errorf("the owner has\n%.300s\nthe copy\n%.300s", answers[0], answers[1])
	}
}
