package rpc

import (
	"errors"
	"sync"

	"github.com/keystead/keystead/owner"
	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
	pb "github.com/keystead/keystead/proto/keystead/v1"
	"github.com/keystead/keystead/ring/epoch/table"
)

// errSplitOver is the error of a call about a part of a split that is over, or has left the
// phase that the call is for.
var errSplitOver = errors.New("the split is over, or in another phase")

// aim finds where the next attempt goes: it sets the part and the position. With a split
// and no part, the call has to wait for the split's next phase, or is a Get for all
// parts.
func (p *passage) aim(t *table.Table) (*table.Split, error) {
	if p.fixed {
		sp, ok := t.SplitOf(p.part.Split)
		if !ok {
			return nil, errSplitOver
		}
		//guard:split-aim-phase
		if sp.Phase != phaseOf(p.call) {
			return nil, errSplitOver
		}
		p.hash = sp.PartHash(int(p.part.Index))
		return sp, nil
	}
	sp := splitOf(t, p.call)
	p.part = nil
	switch {
	case sp == nil, sp.Phase != table.Open, p.call.GetGet() != nil:
		p.hash = hashOf(p.call)
		return sp, nil
	case !divisible(p.call):
		if p.s.cfg.Splits != nil {
			p.s.cfg.Splits.MakeWhole(sp.ID, "an operation that needs the whole")
		}
		p.hash = hashOf(p.call)
		return sp, nil
	}
	id, err := requestID(identified(p.call))
	if err != nil {
		return nil, err
	}
	i, _ := p.s.choose(t, sp, &id)
	p.part = &peerv1.Part{Split: sp.ID, Index: uint32(i)}
	p.hash = sp.PartHash(i)
	return sp, nil
}

// phaseOf is the phase in which a part answers a call about it.
func phaseOf(c *peerv1.ForwardCall) table.SplitPhase {
	switch {
	case c.GetPlant() != nil:
		return table.Opening
	case c.GetReadPart().GetAll():
		return table.Closing
	}
	return table.Open
}

// sinceOf is the epoch since which a split is as it is; 0 if there is none.
func sinceOf(sp *table.Split) uint64 {
	if sp == nil {
		return 0
	}
	return sp.Since
}

// astray says whether an attempt went where a later table does not have it go: it can be
// made again at once.
func (p *passage) astray(t *table.Table) bool {
	if p.part == nil {
		return splitOf(t, p.call) != nil
	}
	sp, ok := t.SplitOf(p.part.Split)
	return !ok || sp.Phase != table.Open && !p.fixed
}

// sum reads a split counter part by part. again says that the split was closed
// meanwhile.
//
// Each part is read after the call came, so what was acknowledged before is in the sum.
// Of two sums, one after the other, each part of the second is read after that of the
// first.
func (p *passage) sum(sp *table.Split) (answer *peerv1.ForwardAnswer, again bool, err error) {
	t := p.s.cfg.Cluster.Table()
	if m, _, ok := t.Owner(p.hash); p.stays && (!ok || m.Holder() != p.s.cfg.Cluster.Self()) {
		return nil, false, asError(notOwner(t, p.hash)) // the home asks the parts for everybody
	}
	answers, errs := make([]*peerv1.ForwardAnswer, len(sp.Parts)), make([]error, len(sp.Parts))
	var wg sync.WaitGroup
	for i := range sp.Parts {
		q := newPassage(p.ctx, p.s, p.call, p.began)
		q.over, q.fixed, q.stays, q.part = p.over, true, false, &peerv1.Part{Split: sp.ID, Index: uint32(i)}
		wg.Go(func() { answers[i], errs[i] = q.run() })
	}
	wg.Wait()
	r := &pb.GetResponse{Value: sp.Base, Version: splitVersion, Epoch: sp.ID, Owner: p.s.cfg.Node, Parts: uint32(len(sp.Parts))}
	for i, a := range answers {
		switch {
		case errors.Is(errs[i], errSplitOver):
			return nil, true, nil
		case errs[i] != nil:
			return nil, false, errs[i]
		}
		g := a.GetGet()
		r.Value += g.Value
		r.Version = (r.Version + g.Version) | splitVersion
		r.Epoch, r.LostEpoch = max(r.Epoch, g.Epoch), max(r.LostEpoch, g.LostEpoch)
	}
	return &peerv1.ForwardAnswer{Answer: &peerv1.ForwardAnswer_Get{Get: r}}, false, nil
}

// ownerOf is who owns what a call is about, and since when it is for the owner to do:
// the row, or the split, is as it is since then.
func ownerOf(t *table.Table, c *peerv1.ForwardCall) (m table.Member, since uint64, ok bool) {
	if c.Part == nil {
		m, since, ok = t.Owner(hashOf(c))
		return m, max(since, sinceOf(splitOf(t, c))), ok
	}
	sp, ok := t.SplitOf(c.Part.Split)
	if !ok || int(c.Part.Index) >= len(sp.Parts) {
		return m, 0, false
	}
	m, since, ok = t.Owner(sp.PartHash(int(c.Part.Index)))
	return m, max(since, sp.Since), ok
}

// mayBeBehind says whether a call from another node was not let in because this one does
// not know yet what the sender knows, or hands the row over, so that a later table may
// let it in.
func mayBeBehind(t *table.Table, c *peerv1.ForwardCall, self table.Holder) bool {
	m, since, ok := ownerOf(t, c)
	if c.Part == nil {
		if sp := splitOf(t, c); sp != nil {
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
	case sp.Phase > phaseOf(c):
		return false // it is over
	}
	return !ok || since < c.Since || m.Holder() == self
}

// turnedAway is the error for a call from another node that this one does not act for.
func turnedAway(t *table.Table, c *peerv1.ForwardCall) *pb.Error {
	w := wire(errNotOwner)
	if m, since, ok := ownerOf(t, c); ok {
		w.Owner, w.OwnerAddr, w.Epoch = m.Node, m.GRPCAddr, since
	}
	return w
}

// ofHome says whether a call is one that a split's home makes of a part. It waits for
// the copies of the part before it is answered, and no other call is to wait with it.
func ofHome(c *peerv1.ForwardCall) bool { return c.GetPlant() != nil || c.GetReadPart() != nil }

// lineOf is the line in which a call stands with others: those on one object.
func lineOf(c *peerv1.ForwardCall) uint64 {
	if c.Part != nil {
		return owner.Hash(table.PartKey(c.Part.Split, int(c.Part.Index), 0))
	}
	return hashOf(c)
}
