package rpc

import (
	"errors"
	"sync"

	"github.com/keystead/keystead/internal/forward"
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
		if sp.Phase != p.call.InPhase() {
			return nil, errSplitOver
		}
		p.hash = sp.PartHash(int(p.part.Index))
		return sp, nil
	}
	sp := splitOf(t, p.call)
	p.part = nil
	switch {
	case sp == nil, sp.Phase != table.Open, p.call.Op.Sum != nil:
		p.hash = p.call.Hash
		return sp, nil
	case !p.call.Divisible:
		if p.s.cfg.Splits != nil {
			p.s.cfg.Splits.MakeWhole(sp.ID, "an operation that needs the whole")
		}
		p.hash = p.call.Hash
		return sp, nil
	}
	id, err := requestID(p.call.ID)
	if err != nil {
		return nil, err
	}
	i, _ := p.s.choose(t, sp, &id)
	p.part = &peerv1.Part{Split: sp.ID, Index: uint32(i)}
	p.hash = sp.PartHash(i)
	return sp, nil
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
func (p *passage) misrouted(t *table.Table) bool {
	if p.part == nil {
		return splitOf(t, p.call) != nil
	}
	sp, ok := t.SplitOf(p.part.Split)
	return !ok || sp.Phase != table.Open && !p.fixed
}

// sum has all parts of a split object answer. again says that the split was closed
// meanwhile.
//
// Each part is read after the call came, so what was acknowledged before is in the sum.
// Of two sums, one after the other, each part of the second is read after that of the
// first.
func (p *passage) sum(sp *table.Split) (answer forward.Message, again bool, err error) {
	t := p.s.cfg.Cluster.Table()
	if m, _, ok := t.Owner(p.hash); p.stays && (!ok || m.Holder() != p.s.cfg.Cluster.Self()) {
		return nil, false, asError(notOwner(t, p.hash)) // the home asks the parts for everybody
	}
	answers, errs := make([]forward.Message, len(sp.Parts)), make([]error, len(sp.Parts))
	var wg sync.WaitGroup
	for i := range sp.Parts {
		q := newPassage(p.ctx, p.s, p.call, p.began)
		q.over, q.fixed, q.stays, q.part = p.over, true, false, &peerv1.Part{Split: sp.ID, Index: uint32(i)}
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
	return p.call.Op.Sum(p.s.cfg.Node, sp, answers), false, nil
}

// ownerOf returns who owns what a call is about, and since when it is for the owner to do:
// the row, or the split, is as it is since then.
func ownerOf(t *table.Table, c *forward.Call) (m table.Member, since uint64, ok bool) {
	if c.Part == nil {
		m, since, ok = t.Owner(c.Hash)
		return m, max(since, sinceOf(splitOf(t, c))), ok
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
func mayBeBehind(t *table.Table, c *forward.Call, self table.Holder) bool {
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
	case sp.Phase > c.InPhase():
		return false // it is over
	}
	return !ok || since < c.Since || m.Holder() == self
}

// turnedAway returns the error for a call from another node that this one does not act for.
func turnedAway(t *table.Table, c *forward.Call) *pb.Error {
	w := wire(errNotOwner)
	if m, since, ok := ownerOf(t, c); ok {
		w.Owner, w.OwnerAddr, w.Epoch = m.Node, m.GRPCAddr, since
	}
	return w
}

// fromHome reports whether a call is one that a split's home makes of a part. It waits for
// the copies of the part before it is answered, and no other call is to wait with it.
func fromHome(c *forward.Call) bool { return c.Op.Beside }

// lineOf returns the line in which a call stands with others: those on one object.
func lineOf(c *forward.Call) uint64 {
	if c.Part != nil {
		return owner.Hash(table.PartKey(c.Part.Split, int(c.Part.Index), 0))
	}
	return c.Hash
}
