package home

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/keystead/keystead/hotkey/heat"
	"github.com/keystead/keystead/owner"
)

const (
	// pollEvery is the time between two polls of the sketches: a key that gets hot is shown
	// a quarter of a second later at most, and a poll takes about two thousandths of it.
	pollEvery = 250 * time.Millisecond
	// MaxHotKeys is how many of the busiest objects a poll finds the names of, each under
	// the lock of its shard. More than the policy lets be hot, by default.
	MaxHotKeys = 128
	// heatLines is how many lines a poll writes to the log: with pollEvery, ten a second.
	heatLines = 5
)

// HotKeys is what a node saw of its busiest objects at a poll. It does not change. All
// rates are in operations a second over the last ten seconds or so.
type HotKeys struct {
	At      int64   // of the poll, ns by the clock of the store
	Rate    float64 // of all objects together
	Objects int64   // that the node holds as their owner; about
	LeftOut int64   // how often, since the start, there was no room for one that was hot enough
	Hot     int     // how many of Keys are hot

	Floor  float64 // the least rate of a hot one
	Factor float64 // times the average of the others that it has
	Stay   int64   // how long it is hot at least, ns
	Max    int     // how many are hot at a time, at most

	Keys []HotKey // the busiest first, at most MaxHotKeys
}

// HotKey is an object that is busy.
type HotKey struct {
	owner.Object
	RateMax float64
	RateMin float64
	Hot     bool
	Since   int64 // when it got hot, ns by the clock of the store; 0 if it is not
}

// IsPart reports whether the object is a part of one that is split.
func (k *HotKey) IsPart() bool { return isPart(k.Key) }

// isPart reports whether a key is that of a part: no user's key begins with NUL.
func isPart(key string) bool { return key != "" && key[0] == 0 }

// identity is what is hot or not. An object of another kind in its place is another one.
type identity struct {
	owner.Ref
	kind owner.Kind
}

// Observer finds out which keys are hot. Sketches count in the store, each under the lock
// of its shard; what a poll of all of them has found, one after the other, is published
// whole.
type Observer struct {
	policy heat.Policy
	watch  *heat.Watch[identity] // belongs to the goroutine that polls
	log    *slog.Logger
	last   atomic.Pointer[HotKeys] // never nil
}

// NewObserver returns an observer by a policy, whose zero fields mean the defaults. now
// is by the clock of the store.
func NewObserver(policy heat.Policy, now int64, log *slog.Logger) (*Observer, error) {
	w, err := heat.NewWatch[identity](policy)
	if err != nil {
		return nil, err
	}
	o := &Observer{policy: policy.WithDefaults(), watch: w, log: log}
	o.last.Store(o.snapshot(now, 0, 0, nil))
	return o, nil
}

// sketch is what counts in a shard, a heat.Sketch.
type sketch interface {
	owner.Heat
	Each(now int64, f func(heat.Count))
}

// Sketch returns what counts in one shard of the store: see owner.Config.
func (o *Observer) Sketch() owner.Heat { return heat.NewSketch(heat.DefaultSets) }

// Last returns what the last poll saw.
func (o *Observer) Last() *HotKeys { return o.last.Load() }

// Run polls the sketches of a store until the context ends. objects returns about how
// many objects this node holds as their owner, and now is the clock of the store.
func (o *Observer) Run(ctx context.Context, store *owner.Store, objects, now func() int64) {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			o.poll(store, objects(), now())
		}
	}
}

// poll finds the busiest objects, decides which are hot, and publishes that.
func (o *Observer) poll(store *owner.Store, objects, now int64) {
	var top busiest
	rate, shard := 0.0, 0
	store.EachHeat(func(counted owner.Heat, _ func(uint32) []owner.Object) {
		counted.(sketch).Each(now, func(c heat.Count) {
			rate += c.RateMax // what a place owes to others was counted for it, and for no other place
			top.add(place{c, shard})
		})
		shard++
	})
	keys := o.named(store, top.byShard())
	seen := make([]heat.Seen[identity], len(keys))
	for i, k := range keys {
		seen[i] = heat.Seen[identity]{Key: identity{k.Ref, k.Kind}, RateMax: k.RateMax, RateMin: k.RateMin}
	}
	changes := o.watch.Update(now, heat.Load{Rate: rate, Keys: objects}, seen)
	o.last.Store(o.snapshot(now, rate, objects, keys))
	o.write(changes)
}

// named asks the shards which objects the places are of; the busiest come first.
func (o *Observer) named(store *owner.Store, places []place) []HotKey {
	keys := make([]HotKey, 0, len(places))
	shard := 0
	store.EachHeat(func(_ owner.Heat, named func(tag uint32) []owner.Object) {
		for ; len(places) > 0 && places[0].shard == shard; places = places[1:] {
			c := places[0].Count
			objects := named(c.Tag)
			//guard:hot-shared
			if len(objects) > 1 {
				c.RateMin = 0 // they share a tag, and any of them may have done it all
			}
			for _, x := range objects {
				keys = append(keys, HotKey{Object: x, RateMax: c.RateMax, RateMin: c.RateMin})
			}
		}
		shard++
	})
	slices.SortFunc(keys, func(a, b HotKey) int {
		return cmp.Or(cmp.Compare(b.RateMax, a.RateMax), strings.Compare(a.Key, b.Key), strings.Compare(a.Name, b.Name))
	})
	return keys[:min(len(keys), MaxHotKeys)]
}

// snapshot returns what a poll has seen. It marks which of the keys are hot.
func (o *Observer) snapshot(now int64, rate float64, objects int64, keys []HotKey) *HotKeys {
	hot := map[identity]int64{}
	for _, k := range o.watch.Hot() {
		hot[k.Key] = k.Since
	}
	s := &HotKeys{
		At: now, Rate: rate, Objects: objects, LeftOut: o.watch.LeftOut(), Keys: keys,
		Floor: o.policy.Floor, Factor: o.policy.Factor, Stay: o.policy.Stay, Max: o.policy.Max,
	}
	for i := range keys {
		k := &keys[i]
		if k.Since, k.Hot = hot[identity{k.Ref, k.Kind}]; k.Hot {
			s.Hot++
		}
	}
	return s
}

// write logs which keys became hot, and which no longer are.
func (o *Observer) write(changes []heat.Change[identity]) {
	// Parts of split objects are busy because those are.
	changes = slices.DeleteFunc(changes, func(c heat.Change[identity]) bool { return isPart(c.Key.Key) })
	lines := changes
	if len(lines) > heatLines {
		lines = lines[:heatLines-1]
	}
	for _, c := range lines {
		what := "a key is no longer hot"
		if c.Hot {
			what = "a key is hot"
		}
		o.log.Info(what, "key", c.Key.Key, "name", c.Key.Name, "kind", c.Key.kind.String())
	}
	if left := len(changes) - len(lines); left > 0 {
		o.log.Info("more keys changed (not listed)", "keys", left)
	}
}

// place is what a sketch knows of a tag.
type place struct {
	heat.Count
	shard int // in the order of EachHeat
}

// busiest keeps the places with the highest rates, MaxHotKeys at most when asked. The
// zero busiest is empty.
type busiest struct {
	places []place // at most 2 MaxHotKeys
	least  float64 // rates up to this one cannot be among them
}

func (b *busiest) add(p place) {
	if p.RateMax <= b.least {
		return
	}
	if b.places = append(b.places, p); len(b.places) == 2*MaxHotKeys {
		b.cut()
	}
}

// cut leaves the highest MaxHotKeys.
func (b *busiest) cut() {
	slices.SortFunc(b.places, func(x, y place) int { return cmp.Compare(y.RateMax, x.RateMax) })
	if len(b.places) > MaxHotKeys {
		b.places = b.places[:MaxHotKeys]
		b.least = b.places[MaxHotKeys-1].RateMax
	}
}

// byShard returns the places that are left, those of the first shard first.
func (b *busiest) byShard() []place {
	b.cut()
	slices.SortStableFunc(b.places, func(x, y place) int { return cmp.Compare(x.shard, y.shard) })
	return b.places
}
