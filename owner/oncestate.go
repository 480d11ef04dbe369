package owner

import (
	"unsafe"

	"github.com/keystead/keystead/owner/once"
	"github.com/keystead/keystead/owner/wire"
)

// onces is the kind of work that is done once. What points nowhere stands in the cell of the
// object; the fingerprint and, behind it, the holder or the result stand in a slab.
type onces struct{}

// onceCell is a once.State without its texts. The zero cell is one of a key that nobody used.
type onceCell struct {
	token        uint64
	since, until int64
	text         uint32 // in values: fingerprint, then holder or result; 0 = all are empty
	attempt      uint16
	print        uint8 // length of the fingerprint
	phase        once.Phase
}

// OnceLevel is the level of the cluster from which on there is work that is done once.
const OnceLevel = 7

var onceMachine = machine{name: "once", level: OnceLevel, cell: unsafe.Sizeof(onceCell{}), states: onces{}, slab: onces{}, grants: onces{}, results: true}

const _ = uint(MaxAlone - once.MaxState)

func (e *entry) once() *onceCell { return (*onceCell)(e.state()) }

// stateOf returns the state of an entry. Its texts are shared: they are replaced, and their
// bytes never change.
func (onces) stateOf(sh *shard, e *entry) once.State {
	c := e.once()
	s := once.State{Phase: c.phase, Token: c.token, Attempt: uint32(c.attempt), Since: c.since, Until: c.until}
	if c.text == 0 {
		return s
	}
	text := *sh.values.At(c.text)
	if c.print > 0 {
		s.Print = text[:c.print:c.print]
	}
	switch rest := text[c.print:]; {
	case len(rest) == 0:
	case c.phase == once.Finished:
		s.Result = rest
	default:
		s.Holder = rest
	}
	return s
}

// set makes an entry what a state says.
func (onces) set(sh *shard, e *entry, s *once.State) {
	c := e.once()
	was := onces{}.stateOf(sh, e)
	sh.text -= onces{}.refers(sh, e)
	rest := s.Holder
	if s.Phase == once.Finished {
		rest = s.Result
	}
	switch n := len(s.Print) + len(rest); {
	case n == 0 && c.text != 0:
		sh.values.Free(c.text)
		c.text = 0
	case n > 0 && c.text == 0:
		c.text = sh.values.Add()
	}
	if c.text != 0 && (s.Phase != was.Phase || s.Token != was.Token) { // a renewal changes no text
		text := make([]byte, 0, len(s.Print)+len(rest))
		*sh.values.At(c.text) = append(append(text, s.Print...), rest...)
	}
	c.token, c.since, c.until = s.Token, s.Since, s.Until
	c.attempt, c.print, c.phase = uint16(s.Attempt), uint8(len(s.Print)), s.Phase
	sh.text += onces{}.refers(sh, e)
}

func (onces) room(sh *shard) bool { return sh.values.Room() }

func (onces) refers(sh *shard, e *entry) int {
	if v := e.once().text; v != 0 {
		return cap(*sh.values.At(v))
	}
	return 0
}

func (onces) absent(sh *shard, e *entry, now int64) bool {
	s := onces{}.stateOf(sh, e)
	return s.Forgotten(now)
}

func (onces) spent(_ *shard, e *entry) bool { return e.once().phase != once.Absent }

func (onces) fades() bool { return false }

func (onces) clear(sh *shard, e *entry) { onces{}.set(sh, e, &once.State{}) }

func (onces) record(sh *shard, e *entry, r *Record, _ bool) {
	if e.once().phase != once.Absent {
		r.State = State{sh: sh, e: e}
	}
}

// Once returns what is known of the work that is done once; the zero State if nothing is, if it
// cannot be read, or if the record is another kind's. Its texts are not to be changed, and are
// part of the record's bytes if the record is not of a store.
func (r *Record) Once() (s once.State) {
	if r.Kind != KindOnce || r.State.Absent() {
		return s
	}
	if e := r.State.e; e != nil {
		return onces{}.stateOf(r.State.sh, e)
	}
	from := r.State.reader()
	if s.ReadFrom(&from); !from.Ends() {
		return once.State{}
	}
	return s
}

// SetOnce makes the record that of work that is done once, and returns it.
func (r *Record) SetOnce(s once.State) *Record {
	r.Kind, r.State = KindOnce, State{}
	if s.Phase != once.Absent {
		w := wire.Writer{Now: s.Since}
		s.AppendTo(&w)
		r.State = ReadState(w.B, w.Now)
	}
	return r
}

func (onces) write(r *Record, to []byte, now int64) []byte {
	s, w := r.Once(), wire.Writer{B: to, Now: now}
	s.AppendTo(&w)
	return w.B
}

func (onces) judge(r *Record, now int64) (judged any, absent bool, err error) {
	if err := r.memberless(); err != nil || r.State.Absent() {
		return nil, true, err
	}
	var s once.State
	from := r.State.reader()
	s.ReadFrom(&from)
	switch {
	case !from.Ends():
		return nil, false, errState
	case s.Since > now || s.Since < -maxMoment:
		return nil, false, errTime
	}
	if err := s.Valid(); err != nil {
		return nil, false, invalid("record", "%v", err)
	}
	return nil, false, nil
}

// grows reports that a result may be longer than what was there before it.
func (onces) grows(r *Record) bool { return !r.State.Absent() }

func (onces) install(t target, r *Record, _ any) {
	s := r.Once()
	//guard:once-floor
	t.sh.lastToken = max(t.sh.lastToken, s.Token)
	if *t.e.once() != (onceCell{}) { // so that no text is taken for the one that is there
		onces{}.clear(t.sh, t.e)
	}
	onces{}.set(t.sh, t.e, &s)
}

func (onces) remembers(_ *shard, e *entry) bool { return e.once().token != 0 }

// holds reports whether it is the turn of a token: what it changes beside, under the same key,
// is refused from the moment at which another has begun.
func (onces) holds(t target, token uint64) (bool, error) {
	if t.missesTurnLocked(token) {
		return false, t.recovering(unknownTurn)
	}
	s := onces{}.stateOf(t.sh, t.e)
	return s.InForce(token, t.now), nil
}
