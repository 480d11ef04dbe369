package handoff_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/keystead/keystead/handoff"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/counter"
	"github.com/keystead/keystead/owner/reqid"
	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
	"github.com/keystead/keystead/ring/epoch/serving"
	"github.com/keystead/keystead/ring/epoch/table"
)

// free lets everything in.
type free struct{}

func (free) Admit(uint64, int64) (owner.Permit, error) { return owner.Permit{Epoch: 1}, nil }
func (free) Confirm(owner.Permit, int64) error         { return nil }
func (free) Exhausted(uint64) (uint64, error)          { return 0, errors.New("not here") }
func (free) Terms() owner.Terms                        { return owner.Terms{} }
func member(node string) table.Member                  { return table.Member{Node: node, Incarnation: 1, HashKey: node} }
func begin(nodes ...table.Holder) table.Command {
	return table.Command{Begin: &table.Begin{Want: nodes}}
}
func holderOf(node string) table.Holder                 { return table.Holder{Node: node, Incarnation: 1} }
func (d *duo) now() int64                               { return int64(time.Since(d.began)) }
func (d *duo) dial(to string) (*grpc.ClientConn, error) { return d.at(to).dial() }

// duo are two members that agree without a raft: a command is applied at once.
type duo struct {
	t      *testing.T
	began  time.Time
	nodes  []*side
	frozen chan time.Duration

	mu    sync.Mutex
	table *table.Table // guarded by mu
}

// side is one of the two.
type side struct {
	self   table.Holder
	rule   *serving.Rule
	store  *owner.Store
	source *handoff.Source
	l      *bufconn.Listener
}

func (n *side) dial() (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+n.self.Node, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return n.l.DialContext(ctx) }))
}

// newDuo is a cluster of n1 alone; n2 runs, and is no member. Copies send rate
// bytes a second.
func newDuo(t *testing.T, rate int64) *duo {
	d := &duo{t: t, began: time.Now(), table: &table.Table{}, frozen: make(chan time.Duration, 10)}
	for _, node := range []string{"n1", "n2"} {
		n := &side{self: holderOf(node), rule: serving.New(holderOf(node)), l: bufconn.Listen(1 << 16)}
		n.source = handoff.New(handoff.Config{
			Propose:  func(_ context.Context, c table.Command) (uint64, error) { return d.apply(c) },
			Dial:     func(_ context.Context, to table.Holder) (grpc.ClientConnInterface, error) { return d.dial(to.Node) },
			Rule:     n.rule,
			NewID:    func() string { return "x" },
			Now:      d.now,
			CopyRate: rate, Frozen: func(_ int, long time.Duration) { d.frozen <- long },
			Log: slog.New(slog.DiscardHandler),
		})
		var err error
		if n.store, err = owner.New(owner.Config{Rule: free{}, Sink: n.source}, d.now()); err != nil {
			t.Fatal(err)
		}
		target := handoff.NewTarget(handoff.TargetConfig{
			Rule: n.rule, Store: n.store, Now: d.now, Log: slog.New(slog.DiscardHandler),
			Await: func(ctx context.Context, epoch uint64) error {
				for n.rule.Table().Epoch < epoch && ctx.Err() == nil {
					time.Sleep(time.Millisecond)
				}
				return ctx.Err()
			},
		})
		server := grpc.NewServer(grpc.MaxRecvMsgSize(4 << 20))
		peerv1.RegisterStateServiceServer(server, target.Intake)
		served := make(chan struct{})
		go func() { defer close(served); _ = server.Serve(n.l) }()
		n.source.Run(n.store)
		n.rule.Extend(1 << 60)
		d.nodes = append(d.nodes, n)
		t.Cleanup(func() { server.Stop(); <-served })
	}
	t.Cleanup(func() {
		for _, n := range d.nodes {
			n.source.Close()
		}
	})
	d.must(table.Command{Init: &table.Init{Cluster: "c", Epoch: 100}}, table.Command{Admit: &table.Admit{Member: member("n1")}}, begin(holderOf("n1")))
	d.must(table.Command{End: &table.End{Transition: d.table.Transition.ID}})
	return d
}

func (d *duo) at(node string) *side {
	return d.nodes[slices.IndexFunc(d.nodes, func(n *side) bool { return n.self.Node == node })]
}

// apply has a command agreed on, and both learn of it.
func (d *duo) apply(c table.Command) (uint64, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	next, err := d.table.Apply(c)
	if err != nil {
		return d.table.Epoch, err
	}
	d.table = next
	for _, n := range d.nodes {
		n.source.Learn(next)
		if lost := n.rule.Learn(next); len(lost) > 0 {
			n.store.Discard(func(h uint64) bool {
				return slices.ContainsFunc(lost, func(r serving.Range) bool { return r.Holds(h) })
			})
		}
		n.rule.Cleaned(next.Epoch)
	}
	return next.Epoch, nil
}

func (d *duo) must(commands ...table.Command) {
	d.t.Helper()
	for _, c := range commands {
		if _, err := d.apply(c); err != nil {
			d.t.Fatal(err)
		}
	}
}

// unprotected returns the rows without their standby.
func (d *duo) unprotected() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.table.Unprotected() + len(d.table.Moves())
}

// TestCopyKeepsToItsRate has a second node join. The copy takes as long as its rate
// says, tells how far it is, and holds nothing back that changes meanwhile.
func TestCopyKeepsToItsRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const objects, rate = 20_000, 400_000
		d := newDuo(t, rate)
		n1, n2 := d.at("n1"), d.at("n2")
		for i := range objects {
			if _, err := n1.store.Add(d.now(), owner.Ref{Key: fmt.Sprint("key", i)}, reqid.ID{}, counter.AddOp{Delta: int64(i)}); err != nil {
				t.Fatal(err)
			}
		}
		if p := n1.source.Progress(); len(p.Copies) != 0 || len(p.Standbys) != 0 || p.Totals != (handoff.Totals{}) {
			t.Errorf("before: %+v", p)
		}
		d.must(table.Command{Admit: &table.Admit{Member: member("n2")}}, begin(holderOf("n1"), holderOf("n2")))
		joined := time.Now()
		time.Sleep(time.Second)
		p := n1.source.Progress()
		if len(p.Copies) != 1 {
			t.Fatalf("under way: %+v", p)
		}
		y := p.Copies[0]
		if y.To != "n2" || y.Caught || y.Rows < 100 || y.Age < 900*time.Millisecond || y.Age > time.Second ||
			y.Objects < objects/10 || y.Objects > objects*9/10 || y.Expected < objects-1 || y.Expected > objects+1 || y.Bytes < rate*9/10 || y.Bytes > rate*11/10 {
			t.Errorf("after a second: %+v", y)
		}
		// What changes is at the target at once, behind nothing but what is under way.
		if _, err := n1.store.Add(d.now(), owner.Ref{Key: "new"}, reqid.ID{}, counter.AddOp{Delta: 7}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Millisecond)
		if a, err := n2.store.Get(d.now(), owner.Ref{Key: "new"}); err != nil || a.Value != 7 {
			t.Errorf("what was added is %d at the target: %v", a.Value, err)
		}
		for d.unprotected() > 0 && time.Since(joined) < time.Minute {
			time.Sleep(10 * time.Millisecond)
		}
		took := time.Since(joined)
		p = n1.source.Progress()
		if least := time.Duration(p.Totals.Bytes) * time.Second / rate; took < least*9/10 || took > least*5/4+200*time.Millisecond {
			t.Errorf("%d bytes took %s, and should %s", p.Totals.Bytes, took, least)
		}
		d.joined(p, objects)
		d.noneLost(n2, objects)
	})
}

// joined checks what is told when the join is over: n2 stood by for each row, and
// owns some of them then.
func (d *duo) joined(p handoff.Progress, objects int64) {
	t := d.t
	rows := 0
	for _, r := range d.table.Rows {
		if r.Owner == holderOf("n1") {
			rows++
		}
	}
	want := handoff.Totals{Objects: p.Totals.Objects, Bytes: p.Totals.Bytes, Copied: int64(len(d.table.Rows)), Synced: int64(len(d.table.Rows)), Handed: int64(len(d.table.Rows) - rows)}
	if p.Totals != want || p.Totals.Objects < objects || p.Totals.Objects > objects+1 {
		t.Errorf("in all: %+v, want %+v", p.Totals, want)
	}
	if len(p.Copies) != 0 || len(p.Standbys) != 1 || p.Standbys[0].Node != "n2" || p.Standbys[0].Rows != rows {
		t.Errorf("at the end: %+v", p)
	}
	select {
	case long := <-d.frozen:
		if long > 50*time.Millisecond || len(d.frozen) > 0 {
			t.Errorf("rows were frozen for %s, and %d times more", long, len(d.frozen))
		}
	default:
		t.Error("nobody was told of a freeze")
	}
}

// noneLost checks that a node has all of the counters.
func (d *duo) noneLost(n *side, objects int) {
	for i := range objects {
		if a, err := n.store.Get(d.now(), owner.Ref{Key: fmt.Sprint("key", i)}); err != nil || a.Value != int64(i) {
			d.t.Fatalf("key%d is %d at %s: %v", i, a.Value, n.self.Node, err)
		}
	}
}
