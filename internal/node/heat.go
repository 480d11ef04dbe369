package node

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/keystead/keystead/hotkey/heat"
	"github.com/keystead/keystead/internal/rpc"
	"github.com/keystead/keystead/owner"
)

// Defaults of Config.Hot.
const (
	DefaultHotFloor  = heat.DefaultFloor  // operations a second
	DefaultHotFactor = heat.DefaultFactor // times the average of the others
	DefaultHotStay   = heat.DefaultStay   // nanoseconds
	DefaultHotMax    = heat.DefaultMax    // objects
)

const (
	// lookEvery is the time between two looks at the sketches: a key that gets hot is
	// shown a quarter of a second later at most, and a look takes about two thousandths of it.
	lookEvery = 250 * time.Millisecond
	// shownKeys is how many of the busiest objects a look finds out the names of, each
	// under the lock of its shard. More than the policy lets be hot, by default.
	shownKeys = rpc.MaxHotKeys
	// heatLines is how many lines a look writes to the log: with lookEvery, ten a second.
	heatLines = 5
)

// hotID is what is hot or not. An object of another kind that comes in its place is
// another one.
type hotID struct {
	owner.Ref
	kind owner.Kind
}

// observer finds out which keys are hot. Sketches count in the store, each under the lock of
// its shard; a look at all of them, one after the other, is published whole.
type observer struct {
	policy heat.Policy
	watch  *heat.Watch[hotID] // belongs to whoever looks
	log    *slog.Logger
	last   atomic.Pointer[rpc.HotKeys] // never nil
}

func newObserver(policy heat.Policy, now int64, log *slog.Logger) (*observer, error) {
	w, err := heat.NewWatch[hotID](policy)
	if err != nil {
		return nil, err
	}
	h := &observer{policy: policy.WithDefaults(), watch: w, log: log}
	h.last.Store(h.snapshot(now, 0, 0, nil))
	return h, nil
}

// sketch is what counts in a shard, a heat.Sketch.
type sketch interface {
	owner.Heat
	Each(now int64, f func(heat.Count))
}

// count makes what counts in a shard: see owner.Config.
func (h *observer) count() owner.Heat { return heat.NewSketch(heat.DefaultSets) }

// lookForHot looks until the context ends.
func (n *Node) lookForHot(ctx context.Context) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			n.heat.look(n.store, n.ownedObjects(), n.cfg.Clock.Now())
		}
	}
}

// ownedObjects is about how many objects the node holds as their owner. The store does
// not count those apart that it holds for others; they are taken to be spread over the
// rows alike.
func (n *Node) ownedObjects() (objects int64) {
	for _, count := range n.store.Stats().Objects {
		objects += count
	}
	if n.cluster == nil {
		return objects
	}
	owned, standby := rowsOf(n.cluster.Table(), n.cluster.Self())
	return objects * int64(owned) / int64(max(owned+standby, 1))
}

// look finds the busiest objects, decides which are hot, and publishes that.
func (h *observer) look(store *owner.Store, objects, now int64) {
	var top busiest
	rate, shard := 0.0, 0
	store.EachHeat(func(counted owner.Heat, _ func(uint32) []owner.Object) {
		counted.(sketch).Each(now, func(c heat.Count) {
			rate += c.Rate // what a place owes to others was counted for it, and for no other place
			top.add(place{c, shard})
		})
		shard++
	})
	keys := h.named(store, top.byShard())
	seen := make([]heat.Seen[hotID], len(keys))
	for i, k := range keys {
		seen[i] = heat.Seen[hotID]{Key: hotID{k.Ref, k.Kind}, Rate: k.Rate, Sure: k.Sure}
	}
	changes := h.watch.Look(now, heat.Load{Rate: rate, Keys: objects}, seen)
	h.last.Store(h.snapshot(now, rate, objects, keys))
	h.tell(changes)
}

// named asks the shards which objects the places are of; the busiest come first.
func (h *observer) named(store *owner.Store, places []place) []rpc.HotKey {
	keys := make([]rpc.HotKey, 0, len(places))
	shard := 0
	store.EachHeat(func(_ owner.Heat, named func(tag uint32) []owner.Object) {
		for ; len(places) > 0 && places[0].shard == shard; places = places[1:] {
			c := places[0].Count
			objects := named(c.Tag)
			//guard:hot-shared
			if len(objects) > 1 {
				c.Sure = 0 // they share a tag, and any of them may have done it all
			}
			for _, o := range objects {
				keys = append(keys, rpc.HotKey{Object: o, Rate: c.Rate, Sure: c.Sure})
			}
		}
		shard++
	})
	slices.SortFunc(keys, func(a, b rpc.HotKey) int {
		return cmp.Or(cmp.Compare(b.Rate, a.Rate), strings.Compare(a.Key, b.Key), strings.Compare(a.Name, b.Name))
	})
	return keys[:min(len(keys), shownKeys)]
}

// snapshot is what a look has seen. It marks which of the keys are hot.
func (h *observer) snapshot(now int64, rate float64, objects int64, keys []rpc.HotKey) *rpc.HotKeys {
	hot := map[hotID]int64{}
	for _, k := range h.watch.Hot() {
		hot[k.Key] = k.Since
	}
	s := &rpc.HotKeys{
		At: now, Rate: rate, Objects: objects, LeftOut: h.watch.LeftOut(), Keys: keys,
		Floor: h.policy.Floor, Factor: h.policy.Factor, Stay: h.policy.Stay, Max: h.policy.Max,
	}
	for i := range keys {
		k := &keys[i]
		if k.Since, k.Hot = hot[hotID{k.Ref, k.Kind}]; k.Hot {
			s.Hot++
		}
	}
	return s
}

// tell writes to the log which keys got hot, or are so no longer.
func (h *observer) tell(changes []heat.Change[hotID]) {
	// Parts of split objects are busy because those are.
	changes = slices.DeleteFunc(changes, func(c heat.Change[hotID]) bool { return c.Key.Key[0] == 0 })
	lines := changes
	if len(lines) > heatLines {
		lines = lines[:heatLines-1]
	}
	for _, c := range lines {
		what := "a key is no longer hot"
		if c.Hot {
			what = "a key is hot"
		}
		h.log.Info(what, "key", c.Key.Key, "name", c.Key.Name, "kind", c.Key.kind.String())
	}
	if left := len(changes) - len(lines); left > 0 {
		h.log.Info("more keys got hot, or are so no longer", "keys", left)
	}
}

// place is what a sketch knows of a tag.
type place struct {
	heat.Count
	shard int // in the order of EachHeat
}

// busiest keeps the places with the highest rates, shownKeys at most when asked. The
// zero busiest is empty.
type busiest struct {
	places []place // at most 2 shownKeys
	least  float64 // rates up to this one cannot be among them
}

func (b *busiest) add(p place) {
	if p.Rate <= b.least {
		return
	}
	if b.places = append(b.places, p); len(b.places) == 2*shownKeys {
		b.cut()
	}
}

// cut leaves the highest shownKeys.
func (b *busiest) cut() {
	slices.SortFunc(b.places, func(x, y place) int { return cmp.Compare(y.Rate, x.Rate) })
	if len(b.places) > shownKeys {
		b.places = b.places[:shownKeys]
		b.least = b.places[shownKeys-1].Rate
	}
}

// byShard are the places that are left, those of the first shard first.
func (b *busiest) byShard() []place {
	b.cut()
	slices.SortStableFunc(b.places, func(x, y place) int { return cmp.Compare(x.shard, y.shard) })
	return b.places
}
