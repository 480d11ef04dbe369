package owner

import (
	"unsafe"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/counter"
	"github.com/keystead/keystead/owner/reqid"
)

// counters is the kind of counters.
type counters struct{}

var counterMachine = machine{name: "counter", cell: unsafe.Sizeof(counter.State{}), states: counters{}, parts: counters{}}

func (e *entry) counter() *counter.State { return (*counter.State)(e.state()) }

func (counters) absent(_ *shard, e *entry, now int64) bool {
	return e.counter().Version == 0 || e.counter().Expired(now)
}

func (counters) spent(_ *shard, e *entry) bool { return e.counter().Version != 0 }

func (counters) fades() bool { return false }

func (counters) clear(_ *shard, e *entry) { *e.counter() = counter.State{} }

func (counters) record(_ *shard, e *entry, r *Record, _ bool) { r.Counter = *e.counter() }

func (counters) refresh(t *target) { t.lapseLocked() }

func (counters) room(t *target, id *reqid.ID, _ *Record) *failure.Error { return t.roomLocked(id) }

// put gives a counter that has a value or a version the version of this change, and so one
// that was there before a Join.
func (counters) put(t *target, r *Record) {
	existed := t.ref.Role == Join && t.counterLocked().Version != 0
	c := r.Counter
	//guard:split-absolute insert c.Value += t.e.counter().Value
	if c.Version != 0 || existed {
		if c == (counter.State{}) {
			c.At = t.now
		}
		c.Version = t.sh.version
	}
	*t.e.counter() = c
}
