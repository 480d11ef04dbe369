package forward

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/internal/tests/agreed"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
	"github.com/keystead/keystead/ring"
	"github.com/keystead/keystead/ring/epoch/table"
)

// board is the Cluster of its first node, whose table a test changes.
type board struct {
	*agreed.Cluster
	self table.Holder
}

func newBoard(t testing.TB, nodes ...string) *board {
	return &board{agreed.New(t, 100, agreed.Nodes(nodes...)...), agreed.Holder(nodes[0])}
}

func (b *board) Self() table.Holder { return b.self }

// Await hears of nothing: a route is tried once.
func (b *board) Await(ctx context.Context, _ uint64) (*table.Table, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// splittable is the kind of the objects here that may be split, and their name.
const splittable = "counter"

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
	op.Sum = func(string, *table.Split, Message, []Message) Message { return nil }
	c.Op, c.All = &op, true
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
