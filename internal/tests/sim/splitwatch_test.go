package sim

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/keystead/keystead/owner"
	adminpb "github.com/keystead/keystead/proto/keystead/admin/v1"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	"github.com/keystead/keystead/ring/epoch/table"
)

const (
	// splitStuck is how long a split may be opening or closing when nothing is broken any
	// more but what was killed.
	splitStuck = failoverTime + 3*time.Second
	// splitPoll is how often the tables are looked at.
	splitPoll = 5 * time.Millisecond
	// splitOrder is how long an order may take: it is longer than a node's patience.
	splitOrder = 10 * time.Second
	// splitForget is how long parts may be held after a merge: sweeps go round in 3 s, and
	// what is no standby's any more is discarded.
	splitForget = 12 * time.Second
)

// splitWatch looks at the splits of the latest table all the time.
type splitWatch struct {
	c *Cluster

	mu      sync.Mutex
	broken  bool                     // guarded by mu: faults are on, of which nobody recovers
	since   time.Time                // guarded by mu: when it was last so
	passing map[uint64]*passing      // guarded by mu: splits that are opening or closing
	worst   map[string]time.Duration // guarded by mu: by phase
	faults  []string                 // guarded by mu
	lost    map[string]bool          // guarded by mu: objects of which some state was lost
	places  []partPlace              // guarded by mu: of all parts that there ever were
	opened  int                      // guarded by mu: splits that were seen open
	ended   int                      // guarded by mu
	seen    map[uint64]table.SplitPhase
}

// passing is a split in a phase that is to be over soon.
type passing struct {
	phase    table.SplitPhase
	since    time.Time
	reported bool
}

func newSplitWatch(c *Cluster) *splitWatch {
	return &splitWatch{c: c, since: time.Now(), passing: map[uint64]*passing{}, worst: map[string]time.Duration{}, lost: map[string]bool{}, seen: map[uint64]table.SplitPhase{}}
}

// run looks until the context ends.
func (w *splitWatch) run(ctx context.Context, s *scene) {
	for ctx.Err() == nil {
		if t := latest(w.c); t != nil {
			w.inspect(t)
		}
		s.sleep(splitPoll)
	}
}

// latest returns the latest table that a process that runs goes by; nil if there is none.
func latest(c *Cluster) (t *table.Table) {
	for _, p := range c.Live() {
		if x := p.Group.Table(); t == nil || x.Epoch > t.Epoch {
			t = x
		}
	}
	return t
}

// trouble says that faults are on which stand in the way of splits, or not any more.
func (w *splitWatch) trouble(on bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.broken, w.since = on, time.Now()
}

func (w *splitWatch) inspect(t *table.Table) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	if w.broken {
		w.since = now
	}
	for id := range w.seen {
		if _, ok := t.SplitOf(id); !ok {
			delete(w.seen, id)
			delete(w.passing, id)
			w.ended++
		}
	}
	for i := range t.Splits {
		sp := &t.Splits[i]
		if w.seen[sp.ID] != sp.Phase {
			if w.seen[sp.ID] == 0 {
				for k := range sp.Parts {
					w.places = append(w.places, partPlace{sp.ID, sp.Key, sp.PartHash(k)})
				}
			}
			w.seen[sp.ID] = sp.Phase
			delete(w.passing, sp.ID)
			if sp.Phase == table.Open {
				w.opened++
			} else {
				w.passing[sp.ID] = &passing{phase: sp.Phase, since: now}
			}
		}
		if p := w.passing[sp.ID]; p != nil {
			from := p.since
			if w.since.After(from) {
				from = w.since
			}
			d := now.Sub(from)
			w.worst[p.phase.String()] = max(w.worst[p.phase.String()], d)
			if d > splitStuck && !p.reported {
				p.reported = true
				w.faults = append(w.faults, fmt.Sprintf("split %d of %s %s has been %s since %s, %s after the faults: %+v", sp.ID, sp.Kind, sp.Key, p.phase, stamp(p.since), d, *sp))
			}
		}
	}
	for _, key := range splitKeys() {
		w.lossLocked(t, key, owner.Hash(key))
	}
	// The row of a part may be lost, and the split be over, between two looks.
	for _, p := range w.places {
		if i := t.Find(p.hash); i >= 0 && t.Rows[i].Lost > p.split {
			w.lost[p.key] = true
		}
	}
}

// partPlace is where a part was, or is.
type partPlace struct {
	split uint64
	key   string
	hash  uint64
}

func (w *splitWatch) lossLocked(t *table.Table, key string, hash uint64) {
	if i := t.Find(hash); i >= 0 && t.Rows[i].Lost != 0 {
		w.lost[key] = true
	}
}

func splitKeys() []string {
	keys := append([]string{casCounter}, sumCounters...)
	for _, b := range buckets {
		keys = append(keys, b.key)
	}
	return keys
}

func kindOf(key string) commonpb.Kind {
	if slices.ContainsFunc(buckets, func(b bucket) bool { return b.key == key }) {
		return commonpb.Kind_KIND_LIMIT
	}
	return commonpb.Kind_KIND_COUNTER
}

// wordOf returns what tables call the kind of an object.
func wordOf(key string) string {
	if kindOf(key) == commonpb.Kind_KIND_LIMIT {
		return "limit"
	}
	return "counter"
}

// divider has objects split and merged.
type divider struct {
	s      *scene
	conns  []*grpc.ClientConn
	splits int // that were acknowledged
	merges int
	errs   map[string]int
}

func (s *splitScene) newDivider(number int) *divider {
	d := &divider{s: s.scene, errs: map[string]int{}}
	for i := range s.hosts {
		conn, err := s.Dial(fmt.Sprintf("10.0.6.%d", number), i)
		if err != nil {
			s.t.Fatal(err)
		}
		d.conns = append(d.conns, conn)
	}
	return d
}

func (d *divider) close() {
	for _, c := range d.conns {
		_ = c.Close()
	}
}

// split orders an object to be split, through some node.
func (d *divider) split(rnd *rand.Rand, key string, parts int) error {
	ctx, cancel := context.WithTimeout(context.Background(), splitOrder)
	defer cancel()
	err := d.splitBy(ctx, rnd.IntN(len(d.conns)), key, parts)
	if err == nil {
		d.splits++
	} else {
		d.errs["split: "+status.Code(err).String()]++
	}
	return err
}

// splitBy orders it through one node, and counts nothing.
func (d *divider) splitBy(ctx context.Context, host int, key string, parts int) error {
	_, err := adminpb.NewAdminServiceClient(d.conns[host]).SplitObject(ctx, &adminpb.SplitObjectRequest{Kind: kindOf(key), Key: key, Parts: uint32(parts)})
	return err
}

// merge orders it to be made whole.
func (d *divider) merge(rnd *rand.Rand, key string) error {
	ctx, cancel := context.WithTimeout(context.Background(), splitOrder)
	defer cancel()
	_, err := adminpb.NewAdminServiceClient(d.conns[rnd.IntN(len(d.conns))]).MergeObject(ctx, &adminpb.MergeObjectRequest{Kind: kindOf(key), Key: key})
	if err == nil {
		d.merges++
	} else {
		d.errs["merge: "+status.Code(err).String()]++
	}
	return err
}

// churn splits and merges until quit.
func (d *divider) churn(rnd *rand.Rand, quit <-chan struct{}, pause time.Duration, keys []string) {
	for {
		select {
		case <-quit:
			return
		default:
		}
		key := keys[rnd.IntN(len(keys))]
		if rnd.IntN(2) == 0 {
			_ = d.split(rnd, key, 2+rnd.IntN(4))
		} else {
			_ = d.merge(rnd, key)
		}
		d.s.sleep(time.Duration(rnd.Int64N(int64(pause))))
	}
}

// placeOf returns the host that owns a position; -1 if none does.
func (s *splitScene) placeOf(hash uint64) int {
	t := latest(s.Cluster)
	if t == nil {
		return -1
	}
	m, _, ok := t.Owner(hash)
	if !ok {
		return -1
	}
	return slices.IndexFunc(s.hosts, func(h *host) bool { return h.name == m.Node })
}

// home returns the host that is the home of an object; it waits until there is one.
func (s *splitScene) home(key string) (i int) {
	s.t.Helper()
	s.until(stableTime, "there is a home", func() bool { i = s.placeOf(owner.Hash(key)); return i >= 0 && s.Running(i) })
	return i
}

// partOwner is a host that owns a part of an object, and not the whole if it can be.
func (s *splitScene) partOwner(key string) (i int) {
	s.t.Helper()
	home := s.home(key)
	sp, ok := latest(s.Cluster).Split(wordOf(key), key, defaultName(key))
	if !ok {
		return s.other(home)
	}
	for _, k := range s.rnd.Perm(len(sp.Parts)) {
		if i := s.placeOf(sp.PartHash(k)); i >= 0 && i != home && s.Running(i) {
			return i
		}
	}
	return s.other(home)
}

func defaultName(key string) string { return wordOf(key) }

// other is a host that runs and is not this one.
func (s *splitScene) other(i int) int {
	k := -1
	s.until(stableTime, "another one runs", func() bool {
		k = s.rnd.IntN(len(s.hosts))
		return k != i && s.Running(k)
	})
	return k
}

// held returns how many objects of a kind the stores of all processes hold, for themselves
// and as standbys.
func (s *splitScene) held(kind string) (n int64) {
	for _, h := range s.hosts {
		if h.node != nil {
			n += h.node.Status().Objects[kind]
		}
	}
	return n
}

// summary returns what was seen, for people.
func (w *splitWatch) summary() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return fmt.Sprintf("%d splits opened, %d ended, longest opening %s, closing %s, lost %v", w.opened, w.ended,
		w.worst["opening"].Round(time.Millisecond), w.worst["closing"].Round(time.Millisecond), slices.SortedFunc(maps.Keys(w.lost), cmp.Compare[string]))
}
