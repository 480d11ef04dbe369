package home

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/keystead/keystead/hotkey/divide"
	"github.com/keystead/keystead/hotkey/plan"
	"github.com/keystead/keystead/ring/epoch/table"
)

const (
	// reportTime bounds a question to a part how it does.
	reportTime = 300 * time.Millisecond
	// weighAfter is how long weights stay as they are, at least: what parts are asked for
	// is noise before.
	weighAfter = 2 * time.Second
	// weighAsked is for how many tokens parts have to have been asked, in all, before
	// weights are changed.
	weighAsked = 100
	// fade is what is left after a second of what was counted.
	fade = 0.9
)

// reports are what a home has heard of the parts of a split.
type reports struct {
	parts    []partReport
	at       time.Time // of the last poll
	counted  float64   // operations, faded
	weighed  uint64    // epoch of the weights that asked and refused are under
	since    time.Time // when they were first seen
	aim, cut []uint32  // weights to come, when all parts go by cut; nil = there are none
}

// partReport is what a part reported last.
type partReport struct {
	value                      int64
	left                       uint64 // tokens
	operations, asked, refused uint64
	tokens, missed             float64 // asked for and refused since the weights changed
}

// receive stores what a part reported, and returns how many operations it had since.
func (p *partReport) receive(r Report) (operations uint64) {
	more := func(now uint64, was *uint64) uint64 {
		d := now - *was
		//guard:split-look-restarts
		if now < *was { // another owner counts
			d = now
		}
		*was = now
		return d
	}
	p.value, p.left = r.Value, r.Left
	p.tokens += float64(more(r.Asked, &p.asked))
	p.missed += float64(more(r.Refused, &p.refused))
	return more(r.Operations, &p.operations)
}

// balance asks the parts how they do, tells them of each other, and moves weight to where
// it is asked for.
func (d *drive) balance(home table.Holder, t *table.Table, sp *table.Split) {
	l := &d.seen
	now := time.Now()
	if len(l.parts) != len(sp.Parts) {
		*l = reports{parts: make([]partReport, len(sp.Parts)), at: now}
	}
	if l.weighed != sp.Weighed {
		l.weighed, l.since = sp.Weighed, now
		for i := range l.parts {
			l.parts[i].tokens, l.parts[i].missed = 0, 0
		}
	}
	answers := d.ask(sp)
	l.counted *= math.Pow(fade, now.Sub(l.at).Seconds())
	l.at = now
	silent, applied := 0, true
	for i, r := range answers {
		if r == nil {
			silent++
			applied = false
			continue
		}
		l.counted += float64(l.parts[i].receive(*r))
		applied = applied && r.Weighed == sp.Weighed
	}
	d.h.decisions.report(plan.Divided[object]{Key: objectOf(sp), ID: sp.ID, Open: true, ByHand: sp.Manual,
		Rate: l.counted * -math.Log(fade), Silent: silent, Places: placesOf(t, sp)})
	if divide.Weighed(objectOf(sp).kind) {
		d.weigh(home, sp, applied)
	}
}

// ask asks all parts; nil is for one that did not answer.
func (d *drive) ask(sp *table.Split) []*Report {
	ctx, cancel := context.WithTimeout(d.h.ctx, reportTime)
	defer cancel()
	sum, left := sp.Base, make([]uint64, len(sp.Parts))
	for i := range d.seen.parts {
		sum += d.seen.parts[i].value
		left[i] = d.seen.parts[i].left
	}
	answers := make([]*Report, len(sp.Parts))
	err := each(len(sp.Parts), func(i int) error {
		r, err := d.h.parts.Ask(ctx, sp, i, Question{Elsewhere: sum - d.seen.parts[i].value, Left: left})
		if err == nil {
			answers[i] = &r
		}
		return err
	})
	if err != nil {
		d.log.Debug("asking the parts", "error", err)
	}
	return answers
}

// weigh changes weights, if that is worth it. applied says that the owners of all parts
// go by the weights of the table, so that none of them goes by a higher one of before:
// only then weights are raised.
func (d *drive) weigh(home table.Holder, sp *table.Split, applied bool) {
	l, old := &d.seen, weightsOf(sp)
	propose := func(weights []uint32) {
		err := d.h.propose(d.h.ctx, table.Command{Weigh: &table.Weigh{ID: sp.ID, Home: home, Expect: sp.Weighed, Weights: weights}})
		if err == nil {
			d.h.decisions.weighed()
		}
		d.log.Debug("weighing", "weights", weights, "error", err)
	}
	if l.aim != nil && slices.Equal(old, l.cut) {
		//guard:split-raise-applied true
		if applied {
			propose(l.aim)
			l.aim = nil
		}
		return
	}
	l.aim = nil
	shares, asked, took := make([]plan.Share, len(old)), 0.0, time.Since(l.since)
	for i, p := range l.parts {
		shares[i] = plan.Share{Weight: old[i], Asked: p.tokens / took.Seconds(), Refused: p.missed / took.Seconds()}
		asked += p.tokens
	}
	if sp.Weight() == table.FullWeight && (took < weighAfter || asked < weighAsked) {
		return
	}
	r, ok := plan.Weigh(shares)
	switch {
	case !ok:
	case !slices.Equal(r.Cut, old):
		l.aim, l.cut = r.New, r.Cut
		propose(r.Cut)
	case applied && !slices.Equal(r.New, old):
		propose(r.New)
	}
}

func weightsOf(sp *table.Split) []uint32 {
	weights := make([]uint32, len(sp.Parts))
	for i, p := range sp.Parts {
		weights[i] = p.Weight
	}
	return weights
}
