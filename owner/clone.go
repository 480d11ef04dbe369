package owner

import (
	"bytes"
	"slices"

	"github.com/keystead/keystead/owner/reqid"
)

// Clone returns a copy of the record that points to nothing of the store nor of r: it
// may be kept and changed when the shard is no longer locked. Its times are moments of
// the same clock.
func (r *Record) Clone() *Record {
	c := *r
	c.Key, c.Name = bytes.Clone(r.Key), bytes.Clone(r.Name)
	c.Marks, c.Done = slices.Clone(r.Marks), slices.Clone(r.Done)
	if r.Lock != nil {
		state := r.Lock.Clone()
		c.Lock = &state
	}
	c.Moves = slices.Clone(r.Moves)
	for i := range c.Moves {
		c.Moves[i].Request.Metadata = bytes.Clone(c.Moves[i].Request.Metadata)
	}
	if r.IDs != nil {
		c.IDs = &reqid.Kept{Evicted: r.IDs.Evicted, Clients: slices.Clone(r.IDs.Clients), Ops: slices.Clone(r.IDs.Ops)}
	}
	return &c
}
