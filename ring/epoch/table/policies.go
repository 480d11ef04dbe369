package table

import (
	"bytes"
	"compress/flate"
	"errors"
	"fmt"
	"io"
)

// PoliciesLevel is the level from which on a cluster agrees on policies.
const PoliciesLevel = 8

// Bounds of policies, with their reasons.
const (
	// MaxPolicies is how many bytes the text of policies may have.
	MaxPolicies = 1 << 20
	// MaxPacked is how many it may have when it is packed: an entry of the log that is as
	// large as raft sends at once (raft.SuggestedMaxDataSize), less what base64 adds.
	MaxPacked = 384 << 10
)

// SetPolicies replaces the policies of the cluster, all of them. It is refused unless their
// version is the one expected. PoliciesLevel.
//
// It is an entry of the same log as what changes the table, and that is what keeps a key
// from being decided by an earlier version than before: a process that owns a row by an
// entry has applied all that any owner before it had applied when it decided.
type SetPolicies struct {
	Expect uint64 `json:"expect"` // 0 = there are none
	Packed []byte `json:"packed"` // see PackPolicies
}

// Policies are those that a cluster has agreed on. They are no part of the table: who watches
// that is not told of them.
type Policies struct {
	Version uint64 `json:"version"` // 1 or more
	ID      string `json:"id"`      // of the command that set them
	Packed  []byte `json:"packed"`
}

// After returns the policies after a command. A command that comes again is done once, and
// the same text changes nothing, whatever version is expected: then a caller that did not hear
// what became of it can send it again. p is nil if there are none yet.
func (p *Policies) After(t *Table, c Command) (*Policies, error) {
	if p == nil {
		p = &Policies{}
	}
	switch {
	case t.Cluster == "":
		return p, refused("the cluster has not been made")
	//guard:policies-level
	case !t.Uses(PoliciesLevel): // or one that does not know them could still become a member
		return p, refused("not all nodes know policies")
	case p.Version != 0 && (p.ID == c.ID || bytes.Equal(p.Packed, c.Policies.Packed)):
		return p, nil
	//guard:policies-expected
	case p.Version != c.Policies.Expect:
		return p, refused("the policies have version %d, and not %d", p.Version, c.Policies.Expect)
	//guard:policies-bound
	case len(c.Policies.Packed) > MaxPacked:
		return p, refused("the policies have %d bytes; at most %d are allowed", len(c.Policies.Packed), MaxPacked)
	}
	// The epoch is one that no cluster of before has got to, also where this one has lost all
	// that it knew: so does the version.
	return &Policies{Version: max(p.Version+1, t.Epoch), ID: c.ID, Packed: c.Policies.Packed}, nil //guard:policies-version t.Epoch -> 0
}

// PackPolicies makes a text one that fits an entry of the log.
func PackPolicies(text []byte) ([]byte, error) {
	if len(text) > MaxPolicies {
		return nil, fmt.Errorf("%d bytes; at most %d are allowed", len(text), MaxPolicies)
	}
	var b bytes.Buffer
	w := newPacker(&b)
	if _, err := w.Write(text); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	if b.Len() > MaxPacked {
		return nil, fmt.Errorf("%d bytes when they are packed; at most %d are allowed", b.Len(), MaxPacked)
	}
	return b.Bytes(), nil
}

func newPacker(w io.Writer) *flate.Writer {
	p, err := flate.NewWriter(w, flate.BestCompression)
	if err != nil {
		panic("table: " + err.Error()) // there is such a level
	}
	return p
}

// Text returns the text of policies.
func (p *Policies) Text() ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(flate.NewReader(bytes.NewReader(p.Packed)), MaxPolicies+1))
	if err == nil && len(text) > MaxPolicies {
		err = errors.New("they are longer than is allowed")
	}
	if err != nil {
		return nil, fmt.Errorf("the policies of version %d are damaged: %w", p.Version, err)
	}
	return text, nil
}
