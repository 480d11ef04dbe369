package home

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/keystead/keystead/hotkey/divide"
	"github.com/keystead/keystead/hotkey/plan"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/ring"
	"github.com/keystead/keystead/ring/epoch/table"
)

// object is the address of an object, as the planner knows it.
type object struct {
	kind      owner.Kind // 0 = one that this program cannot split
	key, name string
}

func objectOf(sp *table.Split) object {
	kind, _ := divide.KindOf(sp.Kind)
	return object{kind, sp.Key, sp.Name}
}

// forbidTime is how long an object is left alone that turned out to be indivisible.
const forbidTime = time.Minute

// decisions are what a home remembers about which of its objects are worth splitting. All
// may be lost: it is found out again.
type decisions struct {
	settings Settings

	mu        sync.Mutex
	planner   *plan.Planner[object]           // guarded by mu
	reports   map[uint64]plan.Divided[object] // guarded by mu, by split
	forbidden map[object]time.Time            // guarded by mu: objects that are indivisible, until when
	counts    Counts                          // guarded by mu
}

// Counts are what a home has decided and done since it began.
type Counts struct {
	Splits   int64 // decisions to split an object
	Resizes  int64 // decisions to divide one anew: other parts, or other nodes
	Reweighs int64 // changes of weights
	Merges   int64 // splits that it has put together, whatever the reason
	LeftOut  int64 // times that an object was to be split and there was no room for it
}

func newDecisions(s Settings) (*decisions, error) {
	p, err := plan.NewPlanner[object](plan.Policy{Floor: s.Floor, PerPart: s.PerPart, Stay: s.Stay,
		HoldOff: max(plan.DefaultHoldOff, s.Stay), Max: s.Max})
	if err != nil {
		return nil, err
	}
	return &decisions{settings: s, planner: p, reports: map[uint64]plan.Divided[object]{}, forbidden: map[object]time.Time{}}, nil
}

// report stores how a split that is open does.
func (d *decisions) report(r plan.Divided[object]) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.reports[r.ID] = r
}

// reported returns the last report about a split, if there is one.
func (d *decisions) reported(id uint64) (plan.Divided[object], bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	r, ok := d.reports[id]
	return r, ok
}

func (d *decisions) forget(id uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.reports, id)
}

// forbid leaves an object alone for a while that turned out to be indivisible, or whose
// parts could not be planted.
func (d *decisions) forbid(sp *table.Split) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	for o, until := range d.forbidden {
		if now.After(until) {
			delete(d.forbidden, o)
		}
	}
	if len(d.forbidden) < table.MaxSplits {
		d.forbidden[objectOf(sp)] = now.Add(forbidTime)
	}
}

// closed remembers why a split was closed. A person who merges it by hand does not want
// it to be split again at once.
func (d *decisions) closed(sp *table.Split, now int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if strings.HasPrefix(sp.Reason, wholeReason) || sp.Reason == byHand {
		d.planner.NeedsWhole(objectOf(sp), now)
	}
}

// weighed counts a change of weights.
func (d *decisions) weighed() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.counts.Reweighs++
}

// merged counts a split that is whole again.
func (d *decisions) merged() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.counts.Merges++
}

// make decides what is to be done now.
func (d *decisions) make(now int64, scene plan.Scene[object]) []plan.Decision[object] {
	d.mu.Lock()
	defer d.mu.Unlock()
	made := d.planner.Decide(now, scene)
	for _, one := range made {
		switch one.Action {
		case plan.Split:
			d.counts.Splits++
		case plan.Resize, plan.Respread:
			d.counts.Resizes++
		}
	}
	return made
}

// maySplit reports whether an object of a kind that has parts may be split by itself.
func (d *decisions) maySplit(o object) bool {
	if d.settings.KeepsWhole(o.kind, o.name) {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return !time.Now().Before(d.forbidden[o])
}

// Counts returns what this home has decided and done since it began.
func (h *Home) Counts() Counts {
	d := h.decisions
	d.mu.Lock()
	defer d.mu.Unlock()
	c := d.counts
	c.LeftOut = d.planner.LeftOut()
	return c
}

// decide decides from time to time which objects are to be split or merged.
func (h *Home) decide() {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		select {
		case <-h.ctx.Done():
			return
		case <-tick.C:
		}
		t := h.cfg.Cluster.Table()
		if !t.Holds(h.cfg.Cluster.Self()) {
			continue
		}
		for _, one := range h.decisions.make(h.cfg.Now(), h.scene(t)) {
			h.running.Go(func() { h.act(one) })
		}
	}
}

// act does what was decided. If it fails, it is decided again.
func (h *Home) act(d plan.Decision[object]) {
	ctx, cancel := context.WithTimeout(h.ctx, orderPatience)
	defer cancel()
	var err error
	if d.Action == plan.Split {
		_, err = h.begin(ctx, Order{Kind: d.Key.kind, Key: d.Key.key, Name: d.Key.name, Parts: d.Parts, Manual: d.ByHand, Reason: d.Reason})
	} else {
		err = h.close(ctx, d.ID, d.Reason)
	}
	log := h.log.With("decision", d.Action.String(), "key", d.Key.key, "kind", d.Key.kind.String(), "name", d.Key.name, "parts", d.Parts, "why", d.Reason)
	if err != nil {
		log = log.With("error", err)
	}
	log.Info("hot key")
}

// scene returns what there is to decide from.
func (h *Home) scene(t *table.Table) plan.Scene[object] {
	scene := plan.Scene[object]{Moving: t.Transition != nil, Splits: len(t.Splits), Nodes: h.nodes(t)}
	for i := range t.Splits {
		if sp := &t.Splits[i]; h.Of(t, sp) {
			r, ok := h.decisions.reported(sp.ID)
			if !ok || sp.Phase != table.Open {
				r = plan.Divided[object]{Key: objectOf(sp), ID: sp.ID, ByHand: sp.Manual}
			}
			r.Places = placesOf(t, sp)
			scene.Divided = append(scene.Divided, r)
		}
	}
	if h.cfg.Settings.Split && t.Knows(table.Command{BeginSplit: &table.BeginSplit{}}) == nil {
		scene.Hot = h.candidates(t)
	}
	return scene
}

// candidates returns the hot objects of this home that are whole and may be split. One of a
// kind without parts is never among them.
func (h *Home) candidates(t *table.Table) (some []plan.Candidate[object]) {
	self := h.cfg.Cluster.Self()
	for _, k := range h.cfg.Hot().Keys {
		o := object{k.Kind, k.Key, k.Name}
		if !k.Hot ||
			!k.Kind.Parts() || //guard:hot-kind
			k.IsPart() || !h.decisions.maySplit(o) {
			continue
		}
		if _, is := t.Split(k.Kind.String(), k.Key, k.Name); is {
			continue
		}
		if m, _, ok := t.Owner(ring.Hash(k.Key)); ok && m.Holder() == self {
			some = append(some, plan.Candidate[object]{Key: o, Rate: k.RateMax})
		}
	}
	return some
}

// nodes returns the nodes of the wanted ring.
func (h *Home) nodes(t *table.Table) []plan.Node {
	var hot map[string]bool
	if h.cfg.HotNodes != nil {
		hot = h.cfg.HotNodes()
	}
	nodes := make([]plan.Node, 0, len(t.WantedNodes()))
	for _, n := range t.WantedNodes() {
		nodes = append(nodes, plan.Node{Name: n, Hot: hot[n]})
	}
	return nodes
}

// placesOf returns the nodes of a split's parts, by the wanted ring.
func placesOf(t *table.Table, sp *table.Split) []string {
	places := make([]string, len(sp.Parts))
	for i := range places {
		if m, ok := t.WantedOwner(sp.PartHash(i)); ok {
			places[i] = m.Node
		}
	}
	return places
}
