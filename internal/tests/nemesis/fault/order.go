package fault

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/keystead/keystead/internal/tests/nemesis/cluster"
)

// Object is one that can be split: a counter or a limit of the default name.
type Object struct {
	Kind string // as orders name it: "counter" or "limit"
	Key  string
}

// Order is one to split an object, or to make it whole. Times are by the clock of the
// history.
type Order struct {
	Kind   Kind   `json:"kind"` // Split or Merge
	Object string `json:"object"`
	Parts  int    `json:"parts,omitempty"` // of a Split
	By     string `json:"by"`              // the node that was told
	From   int64  `json:"from"`
	Until  int64  `json:"until"`
	// Error is what the node said, or that it did not in time; the order may be done all
	// the same. That an order is refused is as it should be: the object is split already,
	// or is not, or somebody does not serve just now.
	Error string `json:"error,omitempty"`
}

const (
	// leastBetween and mostBetween are the rests between two orders: some objects are
	// split at any time, and most faults find one that is opened or closed.
	leastBetween, mostBetween = 20 * time.Millisecond, 400 * time.Millisecond
	// leastPatience and mostPatience are for how long an answer is waited for: less than
	// it takes, so that the next order finds this one under way, up to an election.
	leastPatience, mostPatience = 10 * time.Millisecond, 2 * time.Second
	// leastParts and mostParts bound what is ordered: more than there are nodes, too.
	leastParts, mostParts = 2, 4
	// splitsOfThree is how many of three orders are splits, where both are ordered: many
	// objects are made whole by what clients do.
	splitsOfThree = 2
)

// Orderer gives orders to split objects and to make them whole, at random moments, by way
// of random nodes, whatever else is under way.
type Orderer struct {
	cfg OrdererConfig
	rng *rand.Rand

	mu     sync.Mutex
	orders []Order // guarded by mu
}

// OrdererConfig says what is ordered.
type OrdererConfig struct {
	Cluster *cluster.Cluster
	// Now is the clock of the history, in ns.
	Now  func() int64
	Seed uint64
	// Kinds are Split, Merge or both. Others do not count.
	Kinds []Kind
	// Objects are those about which orders are given.
	Objects []Object
}

// NewOrderer prepares an orderer.
func NewOrderer(cfg OrdererConfig) *Orderer {
	return &Orderer{cfg: cfg, rng: rand.New(rand.NewPCG(cfg.Seed, 0x0bde5))}
}

// Run gives orders until ctx ends. Without a kind, or an object, it gives none.
func (o *Orderer) Run(ctx context.Context) {
	if !Any(o.cfg.Kinds, Ordered) || len(o.cfg.Objects) == 0 {
		return
	}
	for rest(ctx, o.between(leastBetween, mostBetween)) {
		of, order, node, patience := o.next()
		running := o.cfg.Cluster.Running()
		if len(running) == 0 {
			continue
		}
		bounded, cancel := context.WithTimeout(ctx, patience)
		_ = o.give(bounded, running[node%len(running)], of, order)
		cancel()
	}
}

// next draws an order, of what it is, who is told, and how long that may take. All are
// drawn for each, so that equal seeds draw equal ones.
func (o *Orderer) next() (of Object, order Order, node int, patience time.Duration) {
	order.Kind = Merge
	if split := o.rng.IntN(3) < splitsOfThree; slices.Contains(o.cfg.Kinds, Split) && (split || !slices.Contains(o.cfg.Kinds, Merge)) {
		order.Kind = Split
	}
	of = o.cfg.Objects[o.rng.IntN(len(o.cfg.Objects))]
	if parts := leastParts + o.rng.IntN(mostParts-leastParts+1); order.Kind == Split {
		order.Parts = parts
	}
	order.Object = of.Key
	return of, order, o.rng.IntN(1 << 20), o.between(leastPatience, mostPatience)
}

func (o *Orderer) between(least, most time.Duration) time.Duration {
	return least + time.Duration(o.rng.Int64N(int64(most-least)))
}

// give gives an order, and notes it before: it may be done from then on.
func (o *Orderer) give(ctx context.Context, n *cluster.Node, of Object, order Order) error {
	order.By, order.From, order.Error = n.ID, o.cfg.Now(), "no answer yet"
	o.mu.Lock()
	i := len(o.orders)
	o.orders = append(o.orders, order)
	o.mu.Unlock()
	var err error
	if order.Kind == Split {
		err = n.Split(ctx, of.Kind, of.Key, order.Parts)
	} else {
		err = n.Merge(ctx, of.Kind, of.Key)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.orders[i].Until, o.orders[i].Error = o.cfg.Now(), ""; err != nil {
		o.orders[i].Error = err.Error()
	}
	return err
}

// Orders returns those that were given so far, in their order.
func (o *Orderer) Orders() []Order {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.orders)
}

// mergeTime bounds an order of MakeWhole, of which some may be needed.
const mergeTime = 5 * time.Second

// MakeWhole has all objects made whole of which a split was ordered, so that what is read
// afterwards is exact. The error says which was not made whole until ctx ended.
func (o *Orderer) MakeWhole(ctx context.Context) error {
	for _, of := range o.cfg.Objects {
		if !slices.ContainsFunc(o.Orders(), func(x Order) bool { return x.Kind == Split && x.Object == of.Key }) {
			continue
		}
		if err := o.makeWhole(ctx, of); err != nil {
			return fmt.Errorf("fault: %s is not made whole: %w", of.Key, err)
		}
	}
	return nil
}

func (o *Orderer) makeWhole(ctx context.Context, of Object) (err error) {
	for {
		for _, n := range o.cfg.Cluster.Running() {
			bounded, cancel := context.WithTimeout(ctx, mergeTime)
			err = o.give(bounded, n, of, Order{Kind: Merge, Object: of.Key})
			cancel()
			if err == nil || status.Code(err) == codes.InvalidArgument { // it is not split
				return nil
			}
		}
		if !rest(ctx, leastBetween) {
			return err
		}
	}
}

// SplitSince returns when it was first ordered to split each object, in ns of the history.
func SplitSince(orders []Order) map[string]int64 {
	since := map[string]int64{}
	for _, x := range orders {
		if _, ok := since[x.Object]; x.Kind == Split && !ok {
			since[x.Object] = x.From
		}
	}
	return since
}
