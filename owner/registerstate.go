package owner

import (
	"bytes"
	"unsafe"

	"github.com/keystead/keystead/owner/value"
	"github.com/keystead/keystead/owner/wire"
)

// registers is the kind of registers. What points nowhere stands in the cell of the object,
// and the value, if there is one, in a slab.
type registers struct{}

// registerCell is a register without its value. The zero cell is one that never was.
type registerCell struct {
	version, fence uint64
	at             int64
	value          uint32 // in values; 0 = it is empty, or does not exist
	exists         uint32 // 1 or 0
}

// RegisterLevel is the level of the cluster from which on there are registers.
const RegisterLevel = 6

var registerMachine = machine{name: "register", level: RegisterLevel, cell: unsafe.Sizeof(registerCell{}), states: registers{}, slab: registers{}}

const _ = uint(MaxAlone - value.MaxState)

func (e *entry) register() *registerCell { return (*registerCell)(e.state()) }

// stateOf returns the state of an entry. Its value is shared: values are replaced, and their
// bytes never change.
func (registers) stateOf(sh *shard, e *entry) value.State {
	c := e.register()
	s := value.State{Exists: c.exists != 0, Version: c.version, Fence: c.fence, At: c.at}
	if c.value != 0 {
		s.Value = *sh.values.At(c.value)
	}
	return s
}

// set makes the register of an entry what a state says. The bytes of its value are kept.
func (registers) set(sh *shard, e *entry, s *value.State) {
	c := e.register()
	sh.text -= registers{}.refers(sh, e)
	switch {
	case len(s.Value) == 0 && c.value != 0:
		sh.values.Free(c.value)
		c.value = 0
	case len(s.Value) > 0 && c.value == 0:
		c.value = sh.values.Add()
	}
	if c.value != 0 {
		*sh.values.At(c.value) = s.Value
	}
	c.version, c.fence, c.at, c.exists = s.Version, s.Fence, s.At, 0
	if s.Exists {
		c.exists = 1
	}
	sh.text += registers{}.refers(sh, e)
	//guard:watch-told
	sh.watchedChangedLocked(e)
}

func (registers) room(sh *shard) bool { return sh.values.Room() }

func (registers) refers(sh *shard, e *entry) int {
	if v := e.register().value; v != 0 {
		return cap(*sh.values.At(v))
	}
	return 0
}

func (registers) absent(_ *shard, e *entry, _ int64) bool {
	c := e.register()
	return c.exists == 0 && c.fence == 0
}

func (registers) spent(*shard, *entry) bool { return false }

func (registers) fades() bool { return false }

func (registers) clear(sh *shard, e *entry) { registers{}.set(sh, e, &value.State{}) }

func (registers) record(sh *shard, e *entry, r *Record, _ bool) {
	if !(registers{}).absent(sh, e, 0) {
		r.State = State{sh: sh, e: e}
	}
}

// Register returns the state of a register; the zero State if it is absent, cannot be read, or
// is another kind's. Its value is not to be changed, and is part of the record's bytes if the
// record is not of a store.
func (r *Record) Register() (s value.State) {
	if r.Kind != KindRegister || r.State.Absent() {
		return s
	}
	if e := r.State.e; e != nil {
		return registers{}.stateOf(r.State.sh, e)
	}
	from := r.State.reader()
	if s.ReadFrom(&from); !from.Ends() {
		return value.State{}
	}
	return s
}

// SetRegister makes the record that of a register, and returns it.
func (r *Record) SetRegister(s value.State) *Record {
	r.Kind, r.State = KindRegister, State{}
	if !s.Absent() {
		w := wire.Writer{Now: s.At}
		s.AppendTo(&w)
		r.State = ReadState(w.B, w.Now)
	}
	return r
}

func (registers) write(r *Record, to []byte, now int64) []byte {
	s, w := r.Register(), wire.Writer{B: to, Now: now}
	s.AppendTo(&w)
	return w.B
}

func (registers) judge(r *Record, now int64) (judged any, absent bool, err error) {
	if err := r.memberless(); err != nil || r.State.Absent() {
		return nil, true, err
	}
	var s value.State
	from := r.State.reader()
	s.ReadFrom(&from)
	switch {
	case !from.Ends():
		return nil, false, errState
	case s.At > now || s.At < -maxMoment:
		return nil, false, errTime
	}
	if err := s.Valid(); err != nil {
		return nil, false, invalid("record", "%v", err)
	}
	return nil, false, nil
}

// grows reports that a value may be longer than the one before it.
func (registers) grows(r *Record) bool { return !r.State.Absent() }

func (registers) install(t target, r *Record, _ any) {
	s := r.Register()
	//guard:register-floor
	t.sh.lastToken = max(t.sh.lastToken, s.Version)
	s.Value = bytes.Clone(s.Value)
	registers{}.set(t.sh, t.e, &s)
}
