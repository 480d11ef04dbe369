package node

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/keystead/keystead/hotkey/plan"
	"github.com/keystead/keystead/internal/rpc"
	"github.com/keystead/keystead/ring"
	"github.com/keystead/keystead/ring/epoch/table"
)

// splitKey is an object, as the planner knows it.
type splitKey struct{ kind, key, name string }

func keyOfSplit(sp *table.Split) splitKey { return splitKey{sp.Kind, sp.Key, sp.Name} }

// forbidTime is how long an object is left alone that turned out to be indivisible.
const forbidTime = time.Minute

// decisions are what this node, as a home, remembers about which of its objects are worth to be
// split. All may be lost: it is found out again.
type decisions struct {
	cfg   HotConfig
	hotAt func() map[string]bool // nodes that are for hot keys

	mu       sync.Mutex
	planner  *plan.Planner[splitKey]           // guarded by mu
	reports  map[uint64]plan.Divided[splitKey] // guarded by mu, by split
	left     map[splitKey]time.Time            // guarded by mu: objects that are indivisible, until when
	splits   int64                             // guarded by mu: decided here, since the start
	merges   int64                             // guarded by mu
	resizes  int64                             // guarded by mu
	reweighs int64                             // guarded by mu
}

func newDecisions(cfg HotConfig, hotAt func() map[string]bool) (*decisions, error) {
	p, err := plan.NewPlanner[splitKey](plan.Policy{Floor: cfg.Floor, PerPart: cfg.PerPart, Stay: cfg.Stay,
		HoldOff: max(plan.DefaultHoldOff, cfg.Stay), Max: cfg.Max})
	if err != nil {
		return nil, err
	}
	return &decisions{cfg: cfg, hotAt: hotAt, planner: p, reports: map[uint64]plan.Divided[splitKey]{}, left: map[splitKey]time.Time{}}, nil
}

// report takes in how a split that is open does.
func (p *decisions) report(d plan.Divided[splitKey]) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reports[d.ID] = d
}

// reported is the last report about a split, if there is one.
func (p *decisions) reported(id uint64) (plan.Divided[splitKey], bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	d, ok := p.reports[id]
	return d, ok
}

func (p *decisions) forget(id uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.reports, id)
}

// forbid has an object left alone for a while that turned out to be indivisible, or whose
// parts could not be planted.
func (p *decisions) forbid(sp *table.Split) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	for k, until := range p.left {
		if now.After(until) {
			delete(p.left, k)
		}
	}
	if len(p.left) < table.MaxSplits {
		p.left[keyOfSplit(sp)] = now.Add(forbidTime)
	}
}

// weighed counts a change of weights.
func (p *decisions) weighed() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reweighs++
}

// closed takes note of why a split was closed. Who has it merged by hand does not want it
// to be split again at once.
func (p *decisions) closed(sp *table.Split, now int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if strings.HasPrefix(sp.Reason, wholeReason) || sp.Reason == byHand {
		p.planner.NeedsWhole(keyOfSplit(sp), now)
	}
}

// merged counts a split that is whole again.
func (p *decisions) merged() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.merges++
}

// look decides what is to be done now.
func (p *decisions) look(now int64, scene plan.Scene[splitKey]) []plan.Decision[splitKey] {
	p.mu.Lock()
	defer p.mu.Unlock()
	decisions := p.planner.Look(now, scene)
	for _, d := range decisions {
		switch d.Action {
		case plan.Split:
			p.splits++
		case plan.Resize, plan.Respread:
			p.resizes++
		}
	}
	return decisions
}

// mayDivide says whether an object may be split.
func (p *decisions) mayDivide(k splitKey) bool {
	if p.cfg.KeepsWhole(k.kind, k.name) {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return !time.Now().Before(p.left[k])
}

// decide looks from time to time which objects are to be split or merged.
func (s *splits) decide() {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-s.c.ctx.Done():
			return
		case <-tick.C:
		}
		t := s.c.group.Table()
		if !t.Holds(s.c.Self()) {
			continue
		}
		for _, d := range s.plan.look(s.c.cfg.Clock.Now(), s.scene(t)) {
			s.running.Go(func() { s.act(d) })
		}
	}
}

// act does what was decided. If it fails, the next look decides again.
func (s *splits) act(d plan.Decision[splitKey]) {
	ctx, cancel := context.WithTimeout(s.c.ctx, splitPatience)
	defer cancel()
	var err error
	if d.Action == plan.Split {
		_, err = s.begin(ctx, rpc.SplitOrder{Kind: d.Key.kind, Key: d.Key.key, Name: d.Key.name, Parts: d.Parts, Manual: d.ByHand, Reason: reason(d.Reason)})
	} else {
		err = s.close(ctx, d.ID, d.Reason)
	}
	log := s.log.With("decision", d.Action.String(), "key", d.Key.key, "kind", d.Key.kind, "name", d.Key.name, "parts", d.Parts, "why", d.Reason)
	if err != nil {
		log = log.With("error", err)
	}
	log.Info("hot key")
}

// scene is what there is to decide from.
func (s *splits) scene(t *table.Table) plan.Scene[splitKey] {
	scene := plan.Scene[splitKey]{Moving: t.Transition != nil, Splits: len(t.Splits)}
	scene.Nodes = s.nodes(t)
	for i := range t.Splits {
		if sp := &t.Splits[i]; s.isHome(t, sp) {
			d, ok := s.plan.reported(sp.ID)
			if !ok || sp.Phase != table.Open {
				d = plan.Divided[splitKey]{Key: keyOfSplit(sp), ID: sp.ID, ByHand: sp.Manual}
			}
			d.Places = placesOf(t, sp)
			scene.Divided = append(scene.Divided, d)
		}
	}
	if !s.plan.cfg.Split || t.Knows(table.Command{BeginSplit: &table.BeginSplit{}}) != nil {
		return scene
	}
	self := s.c.Self()
	for _, k := range s.heat.last.Load().Keys {
		key := splitKey{k.Kind.String(), k.Key, k.Name}
		if !k.Hot || !k.Kind.Parts() || k.Key[0] == 0 || !s.plan.mayDivide(key) {
			continue
		}
		if _, is := t.Split(key.kind, key.key, key.name); is {
			continue
		}
		if m, _, ok := t.Owner(ring.Hash(k.Key)); ok && m.Holder() == self {
			scene.Hot = append(scene.Hot, plan.Candidate[splitKey]{Key: key, Rate: k.Rate})
		}
	}
	return scene
}

// nodes are the nodes of the wanted ring.
func (s *splits) nodes(t *table.Table) []plan.Node {
	hot := s.plan.hotAt()
	nodes := make([]plan.Node, 0, len(t.WantedNodes()))
	for _, n := range t.WantedNodes() {
		nodes = append(nodes, plan.Node{Name: n, Hot: hot[n]})
	}
	return nodes
}

// placesOf are the nodes of a split's parts, by the wanted ring.
func placesOf(t *table.Table, sp *table.Split) []string {
	places := make([]string, len(sp.Parts))
	for i := range places {
		if m, ok := t.WantedOwner(sp.PartHash(i)); ok {
			places[i] = m.Node
		}
	}
	return places
}
