package owner

import (
	"fmt"
	"reflect"
	"testing"
	"unsafe"

	"github.com/keystead/keystead/owner/counter"
	"github.com/keystead/keystead/owner/hold"
	"github.com/keystead/keystead/owner/limit"
	"github.com/keystead/keystead/owner/lock"
	"github.com/keystead/keystead/owner/queue"
	"github.com/keystead/keystead/owner/reqid"
)

// A clone is equal, and shares no memory with the record that could be written to.
func TestCloneSharesNothing(t *testing.T) {
	rid := reqid.ID{Client: reqid.Client{Hi: 1}, Sequence: 2}
	waiter := hold.Waiter{Caller: queue.Caller{ID: rid}, Request: hold.Request{Weight: lock.All, Name: "w", Metadata: []byte("m"), TTL: second}}
	window := limit.State{Algorithm: limit.SlidingWindow, At: 2, Spent: 5, Limit: 9, Period: second}
	for name, r := range map[string]*Record{
		"empty": {},
		"limit": (&Record{Key: []byte("k"), Name: []byte("n"), Whole: true, IDs: &reqid.Kept{Clients: []reqid.KeptClient{{Ops: 1}}, Ops: []reqid.KeptOp{{Sequence: 1}}}}).
			SetLimit(window, []limit.Mark{{At: 1, Tokens: 2}, {At: 2, Tokens: 3}}),
		"lock": (&Record{Key: []byte("k"), Done: []Done{{ID: rid}}}).
			SetLock(hold.State{Holders: []hold.Holder{{Name: "h", Metadata: []byte("m")}}, Queue: queue.Queue[hold.Request]{Places: []hold.Waiter{waiter}}}),
		"places": (&Record{Key: []byte("k")}).SetMoves(hold.State{Holders: []hold.Holder{{Token: 1}}}, Move{Waiter: waiter}),
	} {
		c := r.Clone()
		if !reflect.DeepEqual(c, r) {
			t.Errorf("%s: %+v is cloned as %+v", name, *r, *c)
		}
		mine := map[unsafe.Pointer]string{}
		memory(reflect.ValueOf(r).Elem(), name, mine)
		if name != "empty" && len(mine) < 3 {
			t.Errorf("%s: only %v can be written to", name, mine)
		}
		theirs := map[unsafe.Pointer]string{}
		memory(reflect.ValueOf(*c), name, theirs)
		for at, path := range theirs {
			if mine[at] != "" {
				t.Errorf("%s is shared with the clone", path)
			}
		}
	}
}

// memory finds what a value points to that can be written to.
func memory(v reflect.Value, path string, found map[unsafe.Pointer]string) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			found[v.UnsafePointer()] = path
			memory(v.Elem(), path, found)
		}
	case reflect.Slice:
		if v.Len() > 0 {
			found[v.UnsafePointer()] = path
		}
		for i := range v.Len() {
			memory(v.Index(i), path, found)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			memory(v.Field(i), path+"."+v.Type().Field(i).Name, found)
		}
	}
}

// What Read emits stands in the store. A clone of it is what it was, whatever comes after.
func TestCloneOfTheStores(t *testing.T) {
	s := newStore(t, nil)
	ref := Ref{Key: "k", Name: "limit"}
	op := sliding(100)
	op.Period = 60 * second
	must(s.Check(second, ref, noID, op))
	must(s.Check(2*second, ref, noID, op))
	acquire(t, s, 2*second, noID, asks("a", 60*second, 0))
	acquire(t, s, 2*second, id(1), asks("b", second, 60*second))
	var all []*Record
	var before []string
	text := func(r *Record) string { return fmt.Sprintf("%+v", copyOf(r)) }
	s.Export(func() int64 { return 3 * second }, always, func(r *Record, _ int64) bool {
		all, before = append(all, r.Clone()), append(before, text(r))
		return true
	}, func() bool { return true })
	must(s.Check(4*second, ref, noID, op))
	s.Discard(always)
	must(s.Add(4*second, Ref{Key: "k2"}, noID, counter.AddOp{Delta: 1}))
	for i, r := range all {
		if got := text(r); got != before[i] || r.State.e != nil {
			t.Errorf("it was\n%s and is\n%s", before[i], got)
		}
	}
	if len(all) != 2 {
		t.Errorf("%d objects", len(all))
	}
}
