package forward

import (
	"errors"
	"sync"

	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
	"github.com/keystead/keystead/ring"
	"github.com/keystead/keystead/ring/epoch/table"
)

// errSplitOver is the error of a call about a part of a split that is over, or has left the
// phase that the call is for.
var errSplitOver = errors.New("the split is over, or in another phase")

// aim finds where the next attempt goes: it sets the part and the position. With a split
// and no part, the call has to wait for the split's next phase, or is a Get for all
// parts.
func (rt *route) aim(t *table.Table) (*table.Split, error) {
	if rt.fixed {
		sp, ok := t.SplitOf(rt.part.Split)
		if !ok {
			return nil, errSplitOver
		}
		//guard:split-aim-phase
		if sp.Phase != rt.call.InPhase() {
			return nil, errSplitOver
		}
		rt.hash = sp.PartHash(int(rt.part.Index))
		return sp, nil
	}
	sp := SplitOf(t, rt.call)
	rt.part = nil
	switch {
	case sp == nil, sp.Phase != table.Open, rt.call.All:
		rt.hash = rt.call.Hash
		return sp, nil
	case !rt.call.Divisible:
		rt.r.cfg.MakeWhole(sp.ID)
		rt.hash = rt.call.Hash
		return sp, nil
	}
	i, err := rt.r.cfg.Choose(t, sp, rt.call.ID)
	if err != nil {
		return nil, err
	}
	rt.part = &peerv1.Part{Split: sp.ID, Index: uint32(i)}
	rt.hash = sp.PartHash(i)
	return sp, nil
}

// SplitOf finds the split that a call is about; nil if its object is whole.
func SplitOf(t *table.Table, c *Call) *table.Split {
	if len(t.Splits) == 0 || c.Kind == "" {
		return nil
	}
	sp, ok := t.Split(c.Kind, c.Key, c.Name)
	if !ok {
		return nil
	}
	return sp
}

// sinceOf returns the epoch since which a split is as it is; 0 if there is none.
func sinceOf(sp *table.Split) uint64 {
	if sp == nil {
		return 0
	}
	return sp.Since
}

// misrouted reports whether an attempt went where a later table does not have it go: it can be
// made again at once.
func (rt *route) misrouted(t *table.Table) bool {
	if rt.part == nil {
		return SplitOf(t, rt.call) != nil
	}
	sp, ok := t.SplitOf(rt.part.Split)
	return !ok || sp.Phase != table.Open && !rt.fixed
}

// sum has all parts of a split object answer. again says that the split was closed
// meanwhile.
//
// Each part is read after the call came, so what was acknowledged before is in the sum.
// Of two sums, one after the other, each part of the second is read after that of the
// first.
func (rt *route) sum(sp *table.Split) (answer Message, again bool, err error) {
	t := rt.r.cfg.Cluster.Table()
	if m, _, ok := t.Owner(rt.hash); rt.stays && (!ok || m.Holder() != rt.r.cfg.Cluster.Self()) {
		return nil, false, &Remote{rt.r.notOwner(t, rt.hash)} // the home asks the parts for everybody
	}
	answers, errs := make([]Message, len(sp.Parts)), make([]error, len(sp.Parts))
	var wg sync.WaitGroup
	for i := range sp.Parts {
		q := newRoute(rt.ctx, rt.r, rt.call, rt.began)
		q.over, q.fixed, q.stays, q.part = rt.over, true, false, &peerv1.Part{Split: sp.ID, Index: uint32(i)}
		wg.Go(func() { answers[i], errs[i] = q.run() })
	}
	wg.Wait()
	for _, err := range errs {
		switch {
		case errors.Is(err, errSplitOver):
			return nil, true, nil
		case err != nil:
			return nil, false, err
		}
	}
	return rt.call.Op.Sum(rt.r.cfg.Node, sp, rt.call.Request, answers), false, nil
}

// ownerOf returns who owns what a call is about, and since when it is for the owner to do:
// the row, or the split, is as it is since then.
func ownerOf(t *table.Table, c *Call) (m table.Member, since uint64, ok bool) {
	if c.Part == nil {
		m, since, ok = t.Owner(c.Hash)
		return m, max(since, sinceOf(SplitOf(t, c))), ok
	}
	sp, ok := t.SplitOf(c.Part.Split)
	if !ok || int(c.Part.Index) >= len(sp.Parts) {
		return m, 0, false
	}
	m, since, ok = t.Owner(sp.PartHash(int(c.Part.Index)))
	return m, max(since, sp.Since), ok
}

// mayBeBehind reports whether a call from another node was not let in because this one does
// not know yet what the sender knows, or hands the row over, so that a later table may
// let it in.
func mayBeBehind(t *table.Table, c *Call, self table.Holder) bool {
	m, since, ok := ownerOf(t, c)
	if c.Part == nil {
		if sp := SplitOf(t, c); sp != nil {
			//guard:split-behind-whole true
			return sp.Phase != table.Open // of open ones the sender has to learn
		}
		return !ok || since < c.Since || m.Holder() == self
	}
	sp, found := t.SplitOf(c.Part.Split)
	switch {
	case !found:
		return t.Epoch < c.Since
	//guard:split-behind-part
	case sp.Phase > c.InPhase():
		return false // it is over
	}
	return !ok || since < c.Since || m.Holder() == self
}

// turnedAway returns the error for a call from another node that this one does not act for.
func (r *Router) turnedAway(t *table.Table, c *Call) *commonpb.Error {
	w := r.cfg.Wire(ErrNotOwner)
	if m, since, ok := ownerOf(t, c); ok {
		w.Owner, w.OwnerAddr, w.Epoch = m.Node, m.GRPCAddr, since
	}
	return w
}

// lineOf returns the line in which a call stands with others: those on one object.
func lineOf(c *Call) uint64 {
	if c.Part != nil {
		return ring.Hash(table.PartKey(c.Part.Split, int(c.Part.Index), 0))
	}
	return c.Hash
}
