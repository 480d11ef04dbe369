package owner

import (
	"unsafe"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/counter"
	"github.com/keystead/keystead/owner/reqid"
	"github.com/keystead/keystead/owner/wire"
)

// counters is the kind of counters.
type counters struct{}

var counterMachine = machine{name: "counter", cell: unsafe.Sizeof(counter.State{}), states: counters{}, parts: counters{}, old: counters{}}

func (e *entry) counter() *counter.State { return (*counter.State)(e.state()) }

func (counters) absent(_ *shard, e *entry, now int64) bool {
	return e.counter().Version == 0 || e.counter().Expired(now)
}

func (counters) spent(_ *shard, e *entry) bool { return e.counter().Version != 0 }

func (counters) fades() bool { return false }

func (counters) clear(sh *shard, e *entry) {
	*e.counter() = counter.State{}
	sh.counterMovedLocked(e)
}

func (counters) record(sh *shard, e *entry, r *Record, _ bool) {
	if e.counter().Version != 0 {
		r.State = State{sh: sh, e: e}
	}
}

// Counter returns the state of a counter; the zero State if it is absent, cannot be read,
// or is another kind's.
func (r *Record) Counter() (s counter.State) {
	if r.Kind != KindCounter || r.State.Absent() {
		return s
	}
	if e := r.State.e; e != nil {
		return *e.counter()
	}
	from := r.State.reader()
	if s.ReadFrom(&from); !from.Ends() {
		return counter.State{}
	}
	return s
}

// SetCounter makes the record that of a counter, and returns it. A counter that has a value
// and no version gets one: the store that it is put into gives it another.
func (r *Record) SetCounter(s counter.State) *Record {
	r.Kind, r.State = KindCounter, State{}
	if s != (counter.State{}) {
		s.Version = max(s.Version, 1)
		w := wire.Writer{Now: s.At}
		s.AppendTo(&w)
		r.State = ReadState(w.B, w.Now)
	}
	return r
}

func (counters) write(r *Record, to []byte, now int64) []byte {
	s, w := r.Counter(), wire.Writer{B: to, Now: now}
	s.AppendTo(&w)
	return w.B
}

func (counters) judge(r *Record, now int64) (judged any, absent bool, err error) {
	if err := r.memberless(); err != nil || r.State.Absent() {
		return nil, true, err
	}
	var s counter.State
	from := r.State.reader()
	s.ReadFrom(&from)
	switch {
	case !from.Ends():
		return nil, false, errState
	case s.At > now || s.At < -maxMoment:
		return nil, false, errTime
	case s.Version > maxVersion:
		return nil, false, invalid("record", "the counter's version is out of range")
	}
	if err := s.Valid(); err != nil {
		return nil, false, invalid("record", "%v", err)
	}
	return nil, false, nil
}

func (counters) grows(*Record) bool { return false }

func (counters) install(t target, r *Record, _ any) {
	c := r.Counter()
	t.sh.version = max(t.sh.version, c.Version)
	*t.e.counter() = c
	t.sh.counterMovedLocked(t.e)
}

func (counters) version(*Record) byte { return 1 }

func (counters) read(r *Record, from wire.Reader, _ byte) wire.Reader {
	before := from.B
	var s counter.State
	s.ReadFrom(&from)
	r.State = ReadState(before[:len(before)-len(from.B)], from.Now)
	return from
}

func (counters) refresh(t *target) { t.lapseLocked() }

func (counters) room(t *target, id *reqid.ID, _ *Record) *failure.Error {
	if err := t.sh.versionsLeftLocked(); err != nil {
		return err
	}
	return t.roomLocked(id)
}

// put gives a counter that has a value or a version the version of this change, and so one
// that was there before a Join.
func (counters) put(t *target, r *Record) {
	existed := t.ref.Role == Join && t.counterLocked().Version != 0
	c := r.Counter()
	//guard:split-absolute insert c.Value += t.e.counter().Value
	if c.Version != 0 || existed {
		if c == (counter.State{}) {
			c.At = t.now
		}
		c.Version = t.sh.version
	}
	*t.e.counter() = c
	t.sh.counterMovedLocked(t.e)
}
