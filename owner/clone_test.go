package owner

import (
	"reflect"
	"testing"
	"unsafe"

	"github.com/keystead/keystead/owner/limit"
	"github.com/keystead/keystead/owner/lock"
	"github.com/keystead/keystead/owner/queue"
	"github.com/keystead/keystead/owner/reqid"
)

// A clone is equal, and shares no memory with the record that could be written to.
func TestCloneSharesNothing(t *testing.T) {
	rid := reqid.ID{Client: reqid.Client{Hi: 1}, Sequence: 2}
	waiter := lock.Waiter{Caller: queue.Caller{ID: rid}, Request: lock.Request{Holder: "w", Metadata: []byte("m"), TTL: second}}
	for name, r := range map[string]Record{
		"empty": {},
		"limit": {Key: []byte("k"), Name: []byte("n"), Kind: KindLimit, Limit: limit.State{Spent: 1}, Marks: []limit.Mark{{At: 1, Tokens: 2}, {At: 2, Tokens: 3}},
			Whole: true, IDs: &reqid.Kept{Clients: []reqid.KeptClient{{Ops: 1}}, Ops: []reqid.KeptOp{{Sequence: 1}}}},
		"lock":   {Key: []byte("k"), Kind: KindLock, Lock: &lock.State{Holder: "h", Metadata: []byte("m"), Queue: queue.Queue[lock.Request]{Places: []lock.Waiter{waiter}}}, Done: []Done{{ID: rid}}},
		"places": {Key: []byte("k"), Kind: KindLock, ByPlace: true, Moves: []Move{{Waiter: waiter}}},
	} {
		c := r.Clone()
		if !reflect.DeepEqual(*c, r) {
			t.Errorf("%s: %+v is cloned as %+v", name, r, *c)
		}
		mine := map[unsafe.Pointer]string{}
		memory(reflect.ValueOf(r), name, mine)
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
