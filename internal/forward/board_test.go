package forward

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/keystead/keystead/internal/failure"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
	"github.com/keystead/keystead/ring"
	"github.com/keystead/keystead/ring/epoch/table"
)

// board is the Cluster of its first node, whose table a test changes. Nobody learns of that
// who waits for it.
type board struct {
	t     testing.TB
	self  table.Holder
	table *table.Table
}

func holder(node string) table.Holder { return table.Holder{Node: node, Incarnation: 1} }

func newBoard(t testing.TB, nodes ...string) *board {
	b := &board{t: t, self: holder(nodes[0]), table: &table.Table{}}
	b.apply(table.Command{Init: &table.Init{Cluster: "test", Epoch: 100}})
	var want []table.Holder
	for _, n := range nodes {
		b.apply(table.Command{Admit: &table.Admit{Member: table.Member{Node: n, Incarnation: 1, HashKey: n + ":7400", GRPCAddr: n + ":7400"}}})
		want = append(want, holder(n))
	}
	b.apply(table.Command{Begin: &table.Begin{Want: want}})
	b.apply(table.Command{End: &table.End{Transition: b.table.Transition.ID}})
	return b
}

func (b *board) apply(c table.Command) {
	b.t.Helper()
	next, err := b.table.Apply(c)
	if err != nil {
		b.t.Fatal(c.Kind(), err)
	}
	b.table = next
}

func (b *board) Self() table.Holder { return b.self }

func (b *board) Table() *table.Table { return b.table }

func (b *board) Await(ctx context.Context, _ uint64) (*table.Table, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// home returns who owns a key.
func (b *board) home(key string) table.Holder {
	m, _, _ := b.table.Owner(ring.Hash(key))
	return m.Holder()
}

// owned is a key that a node owns.
func (b *board) owned(node string) string {
	for i := 0; ; i++ {
		if key := fmt.Sprint("key-", i); b.home(key).Node == node {
			return key
		}
	}
}

// splittable is the kind of the objects here that may be split, and their name.
const splittable = "counter"

// divide begins a split of an object, whose parts are on these nodes.
func (b *board) divide(key string, nodes ...string) uint64 {
	b.t.Helper()
	salts, ok := b.table.Place(b.table.Epoch+1, nodes)
	if !ok {
		b.t.Fatalf("there is no place on %v", nodes)
	}
	sp := table.Split{ID: b.table.Epoch + 1, Kind: splittable, Key: key, Name: splittable}
	for _, salt := range salts {
		sp.Parts = append(sp.Parts, table.Part{Salt: salt, Weight: uint32(table.FullWeight / len(nodes))})
	}
	b.apply(table.Command{BeginSplit: &table.BeginSplit{Split: sp}})
	return sp.ID
}

// reach brings a split as far as a phase.
func (b *board) reach(id uint64, phase table.SplitPhase) *table.Split {
	b.t.Helper()
	sp, ok := b.table.SplitOf(id)
	if !ok {
		b.t.Fatalf("there is no split %d", id)
	}
	if phase >= table.Open && sp.Phase < table.Open {
		b.apply(table.Command{OpenSplit: &table.OpenSplit{ID: id, Home: b.home(sp.Key), Base: 5}})
	}
	if phase >= table.Closing && sp.Phase < table.Closing {
		b.apply(table.Command{CloseSplit: &table.CloseSplit{ID: id}})
	}
	sp, _ = b.table.SplitOf(id)
	return sp
}

// add is a call on a key that a part can do.
func (b *board) add(key string) *Call {
	c := operation(numGet).Call(&counterpb.GetRequest{Key: key})
	c.Kind, c.Name, c.Hash, c.Divisible = splittable, splittable, ring.Hash(key), true
	return &c
}

// get is one for all parts.
func (b *board) get(key string) *Call {
	c := b.add(key)
	op := *c.Op
	op.Sum = func(string, *table.Split, []Message) Message { return nil }
	c.Op = &op
	return c
}

// set is one that no part can do.
func (b *board) set(key string) *Call {
	c := b.add(key)
	c.Divisible = false
	return c
}

// onPart is a call of a split's home, which a part answers in a phase.
func (b *board) onPart(phase table.SplitPhase) *Call {
	return &Call{Op: &Operation{Beside: true}, Request: &peerv1.PlantRequest{}, Harmless: true, Phase: phase}
}

// with is a call as another node passes it on.
func with(c *Call, since uint64, part *peerv1.Part) *Call {
	x := *c
	x.Since, x.Part = since, part
	return &x
}

// errBadID is the error of a request id that is none.
var errBadID = errors.New("it is none")

// router is a Router of a board that sends nothing. It writes down what is to be made whole.
func (b *board) router(whole *[]uint64) *Router {
	return &Router{cfg: Config{Node: b.self.Node, Cluster: b,
		Choose: func(_ *table.Table, sp *table.Split, id *commonpb.RequestId) (int, error) {
			switch {
			case id == nil:
				return 2, nil
			case len(id.Client) != 16:
				return 0, errBadID
			}
			return int(id.Sequence) % len(sp.Parts), nil
		},
		MakeWhole: func(id uint64) {
			if !slices.Contains(*whole, id) {
				*whole = append(*whole, id)
			}
		},
		Wire: func(err error) *commonpb.Error {
			w := &commonpb.Error{Message: err.Error()}
			if isElsewhere(err) {
				w.Reason = commonpb.Reason_REASON_NOT_OWNER
			}
			return w
		},
		Stopped: &failure.Error{Reason: failure.Unavailable},
	}}
}
