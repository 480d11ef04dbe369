package owner

import (
	"bytes"
	"slices"

	"github.com/keystead/keystead/owner/reqid"
	"github.com/keystead/keystead/owner/wire"
)

// State is the state of the object of a record. It stands in the store, and is written when
// somebody asks for it, or it is the bytes that its kind wrote. The zero State is that of an
// object that is absent.
type State struct {
	sh *shard
	e  *entry // in the store, valid under the lock of the shard; nil: it is bytes

	plain bool // it is written in the old form of locks

	bytes []byte
	now   int64 // the moment before which those in bytes are
}

// ReadState returns a state that was written by Record.AppendState, as of now.
func ReadState(b []byte, now int64) State { return State{bytes: b, now: now} }

// Absent reports whether there is no state.
func (s *State) Absent() bool { return s.e == nil && len(s.bytes) == 0 }

// reader reads the bytes of a state that does not stand in the store.
func (s *State) reader() wire.Reader { return wire.Reader{B: s.bytes, Now: s.now} }

// AppendState writes the state of the object, without its members.
func (r *Record) AppendState(w *wire.Writer) {
	if r.State.e == nil && r.State.now == w.Now {
		w.B = append(w.B, r.State.bytes...)
		return
	}
	if !r.State.Absent() {
		w.B = machines[r.Kind].states.write(r, w.B, w.Now)
	}
}

// The headers of versions 1 to 3 tell neither where a state ends nor of members. They are
// written for nodes that know no other, and read for ever.

// Old reports whether there were objects of the kind before version 4 of the header.
func (k Kind) Old() bool { return k.Known() && machines[k].old != nil }

// OldVersion returns the version that says what the record does, of a kind that is Old.
func (r *Record) OldVersion() byte { return machines[r.Kind].old.version(r) }

// AppendOld writes the state and the members as they stand behind the headers of versions 1
// to 3.
func (r *Record) AppendOld(w *wire.Writer) { w.B = machines[r.Kind].old.write(r, w.B, w.Now) }

// ReadOld reads what AppendOld wrote behind a header of that version.
func (r *Record) ReadOld(from *wire.Reader, version byte) {
	if *from = machines[r.Kind].old.read(r, *from, version); from.Bad || version != r.OldVersion() {
		from.Fail()
	}
}

// Clone returns a copy of the record that points to nothing of the store nor of r: it may
// be kept and changed when the shard is no longer locked. Its times are moments of the same
// clock.
func (r *Record) Clone() *Record {
	c := *r
	c.Key, c.Name, c.Done = bytes.Clone(r.Key), bytes.Clone(r.Name), slices.Clone(r.Done)
	if r.State.e != nil {
		w := wire.Writer{Now: r.State.sh.now}
		r.AppendState(&w)
		c.State = ReadState(w.B, w.Now)
	} else {
		c.State.bytes = bytes.Clone(r.State.bytes)
	}
	c.Members, c.Beside = slices.Clone(r.Members), cloneBeside(r.Beside)
	for i := range c.Members {
		c.Members[i].State = bytes.Clone(c.Members[i].State)
	}
	if r.IDs != nil {
		c.IDs = &reqid.Kept{Evicted: r.IDs.Evicted, Clients: slices.Clone(r.IDs.Clients), Ops: slices.Clone(r.IDs.Ops)}
	}
	return &c
}
