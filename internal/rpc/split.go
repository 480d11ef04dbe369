package rpc

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"github.com/keystead/keystead/hotkey/divide"
	"github.com/keystead/keystead/hotkey/home"
	"github.com/keystead/keystead/internal/forward"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/limit"
	"github.com/keystead/keystead/owner/reqid"
	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
	"github.com/keystead/keystead/ring"
	"github.com/keystead/keystead/ring/epoch/table"
)

// Splits does what is decided about splits of objects: a *home.Home.
type Splits interface {
	// MakeWhole has a split object made whole, for an operation that a part cannot do. It
	// does not wait, and does nothing where that is under way.
	MakeWhole(id uint64, why string)
	// Split has an object split, and returns when its parts are served: the split and
	// the table that has it.
	Split(ctx context.Context, o home.Order) (*table.Table, *table.Split, error)
	// Merge has an object made whole, and returns when it is. Errors of both are
	// *failure.Error, or those of the context.
	Merge(ctx context.Context, o home.Order) error
}

// splitVersion marks versions of split counters: whole ones have none of these.
const splitVersion = 1 << 63

// The kinds that may be split, and their default names.
const (
	limitKind   = "limit"
	counterKind = "counter"
	lockKind    = "lock"
)

func findSplit(t *table.Table, kind string, r owner.Ref) *table.Split {
	sp, ok := t.Split(kind, r.Key, r.Name)
	if !ok {
		return nil
	}
	return sp
}

// share is a part of a split object, as an operation addresses it.
type share struct {
	split *table.Split
	index int
}

// ref returns the part's own object.
func (h share) ref(role owner.Role) owner.Ref {
	return owner.Ref{Key: h.split.PartKey(h.index), Name: h.split.Name, Role: role, Hash: h.split.PartHash(h.index)}
}

// kind returns that of the part's object; 0 if this program knows none of that name that has parts.
func (h share) kind() owner.Kind {
	k, _ := divide.KindOf(h.split.Kind)
	return k
}

// shareOf returns the part that a call names. It fails if the part is not served by this
// node's table.
func (s *Server) shareOf(p *peerv1.Part) (share, error) {
	sp, ok := s.cfg.Cluster.Table().SplitOf(p.Split)
	if !ok || int(p.Index) >= len(sp.Parts) {
		return share{}, forward.ErrNotOwner
	}
	return share{sp, int(p.Index)}, nil
}

// place returns the object that an operation on one of this address acts on, on this node:
// the whole one, or a part if the object is split. It fails with forward.ErrNotOwner if it has
// to act elsewhere, or to wait.
func (s *Server) place(kind string, r owner.Ref, part *peerv1.Part, id *reqid.ID) (owner.Ref, share, error) {
	if part != nil {
		h, err := s.shareOf(part)
		if err != nil {
			return r, h, err
		}
		return h.ref(owner.Share), h, nil
	}
	if s.cfg.Cluster == nil {
		return r, share{}, nil
	}
	t := s.cfg.Cluster.Table()
	if len(t.Splits) == 0 {
		return r, share{}, nil
	}
	sp := findSplit(t, kind, r)
	if sp == nil {
		return r, share{}, nil
	}
	//guard:split-place-open
	if sp.Phase != table.Open {
		return r, share{}, forward.ErrNotOwner
	}
	i, here := s.choose(t, sp, id)
	if !here {
		return r, share{}, forward.ErrNotOwner
	}
	h := share{sp, i}
	return h.ref(owner.Share), h, nil
}

// choose chooses the part for an operation: the one of its request id, or else one of
// this node's own, or else the better one of two. here reports whether it is this node's.
func (s *Server) choose(t *table.Table, sp *table.Split, id *reqid.ID) (i int, here bool) {
	n, self := len(sp.Parts), s.cfg.Cluster.Self()
	own := func(i int) bool {
		m, _, ok := t.Owner(sp.PartHash(i))
		return ok && m.Holder() == self
	}
	//guard:split-retry-part
	if id != nil && id.Given() {
		i = ring.PartOf(id.Client.Hi, id.Client.Lo, id.Sequence, n)
		return i, own(i)
	}
	first := rand.IntN(n)
	for k := range n {
		if i := (first + k) % n; own(i) {
			return i, true
		}
	}
	second := (first + 1 + rand.IntN(n-1)) % n
	s.parts.prune(t) // one that owns no part is never asked how it does
	if s.parts.left(sp.ID, second) > s.parts.left(sp.ID, first) {
		first = second
	}
	return first, false
}

// richer returns the better one of two parts of others, if it was last heard to have so many
// tokens left.
func (s *Server) richer(t *table.Table, sp *table.Split, cost uint64) (index int, ok bool) {
	n, self, best := len(sp.Parts), s.cfg.Cluster.Self(), cost
	for range 2 {
		i := rand.IntN(n)
		if m, _, owned := t.Owner(sp.PartHash(i)); !owned || m.Holder() == self {
			continue
		}
		if left := s.parts.left(sp.ID, i); left >= best {
			index, ok, best = i, true, left
		}
	}
	return index, ok
}

// divided turns the error of a part that cannot do an operation into one by which it is
// tried again, when the object is whole.
func (s *Server) divided(h share, err error) error {
	if h.split != nil && err == owner.ErrWhole {
		s.makeWhole(h.split.ID)
	}
	return err
}

// parts is what this node knows of parts of split objects: those that it owns, and
// others that it has asked.
type parts struct {
	all sync.Map // partID → *partState
	n   atomic.Int64
}

type partID struct {
	split uint64
	index int
}

// maxPartStates is how many parts are remembered before those are forgotten that are
// not in the table any more.
const maxPartStates = 2 * table.MaxSplits * table.MaxParts

type partState struct {
	operations, asked, refused atomic.Uint64
	elsewhere                  atomic.Int64 // of a counter: base and other parts, at the last reading
	heard                      atomic.Bool  // the home has told elsewhere
	remaining                  atomic.Uint64
}

func (p *parts) of(split uint64, index int) *partState {
	id := partID{split, index}
	if x, ok := p.all.Load(id); ok {
		return x.(*partState)
	}
	x, had := p.all.LoadOrStore(id, &partState{})
	if !had {
		p.n.Add(1)
	}
	return x.(*partState)
}

// left returns what a part was last heard to have left.
func (p *parts) left(split uint64, index int) uint64 { return p.of(split, index).remaining.Load() }

// prune forgets parts of splits that are over, if there are many.
func (p *parts) prune(t *table.Table) {
	if p.n.Load() < maxPartStates {
		return
	}
	p.all.Range(func(k, _ any) bool {
		if _, ok := t.SplitOf(k.(partID).split); !ok {
			if _, had := p.all.LoadAndDelete(k); had { // nobody else has counted it
				p.n.Add(-1)
			}
		}
		return true
	})
}

// countCheck counts a check that a part has decided.
func (s *Server) countCheck(h share, op *limit.Op, a *owner.CheckAnswer) {
	x := s.parts.of(h.split.ID, h.index)
	x.operations.Add(1)
	x.remaining.Store(a.Remaining)
	if op.Peek || op.Refund != 0 || a.Replayed {
		return
	}
	if x.asked.Add(op.Cost); !a.Allowed {
		x.refused.Add(op.Cost)
	}
}

// remainder returns the sum of the base of a counter and its other parts, as the home has last
// told this node.
func (s *Server) remainder(h share) int64 {
	x := s.parts.of(h.split.ID, h.index)
	if x.heard.Load() {
		return x.elsewhere.Load()
	}
	return h.split.Base
}
