package kinds

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/keystead/keystead/internal/cli/bench"
	"github.com/keystead/keystead/internal/clock"
	"github.com/keystead/keystead/internal/node"
	"github.com/keystead/keystead/internal/tests/caller"
	"github.com/keystead/keystead/internal/tests/history"
	"github.com/keystead/keystead/owner"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A kind that lacks a part is told by its name; so is a kind of the store that no kind here
// is of: nothing would look for faults in it.
func TestEveryKindIsWhole(t *testing.T) {
	names := map[string]bool{}
	for _, k := range All {
		for part, lacks := range map[string]bool{
			"a name of its own":      k.Name == "" || names[k.Name],
			"a kind of the store":    k.Of == 0,
			"a share of the work":    k.Share < 1,
			"work":                   k.Work == nil,
			"a probe":                k.Probe.In == nil || k.Probe.Ask == nil,
			"a model":                k.Model == nil,
			"parts in the store":     k.Splits && !k.Of.Parts(),
			"a workload of bench":    !slices.Contains(bench.Workloads, k.Workload),
			"a model that allows it": k.Model != nil && history.Check(k.Model(0), nil, time.Second) != nil,
		} {
			if lacks {
				t.Errorf("kind %q lacks %s", k.Name, part)
			}
		}
		names[k.Name] = true
	}
	for _, of := range owner.Kinds() {
		if !slices.ContainsFunc(All, func(k *Kind) bool { return k.Of == of }) {
			t.Errorf("no kind is of the store's %q", of)
		}
	}
}

// crowd is told what workers do.
type crowd struct {
	mu         sync.Mutex
	answered   map[string]int // guarded by mu: by key
	unexpected []string       // guarded by mu
}

func (c *crowd) Answered(key string, _, _ int64, _ bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answered[key]++
}

// enough reports whether a key had as many answers.
func (c *crowd) enough(key string, n int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.answered[key] >= n
}

func (c *crowd) Failed(error, caller.Fate) {}
func (c *crowd) Open()                     {}

func (c *crowd) Unexpected(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unexpected = append(c.unexpected, what)
}

// What workers and probes of each kind are told by a node is what its model expects.
func TestEveryKindWorks(t *testing.T) {
	// In an empty directory, for a node that keeps nothing refuses keys for a while.
	n, err := node.Start(node.Config{ID: "kinds", GRPCAddr: "127.0.0.1:0", StopGrace: time.Second, DataDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Stop()
	rec := NewRecording(clock.System().Now)
	log := &crowd{answered: map[string]int{}}
	cfg := Config{
		Recording: rec, Log: log, Nodes: func() int { return 1 },
		Attempt: time.Second, Insist: 5 * time.Second, LongestTTL: 400 * time.Millisecond, SessionTTL: 10 * time.Second,
		Connect: func() ([]*grpc.ClientConn, error) {
			conn, err := grpc.NewClient(n.GRPCAddr(), grpc.WithTransportCredentials(insecure.NewCredentials()))
			return []*grpc.ClientConn{conn}, err
		},
	}
	objects := NewObjects(1, "")
	objects[&Across] = NewObjects(2, "")[&Across]
	const enough = 10                                            // calls of each kind
	ctx, stop := context.WithTimeout(t.Context(), 2*time.Minute) // it takes a second
	defer stop()
	began := time.Now()
	var all sync.WaitGroup
	for i, o := range objects.Each() {
		for j := range 2 {
			all.Go(func() {
				w := NewWorker(cfg, 2*i+j, 1)
				defer w.Close()
				w.objects = objects
				for ctx.Err() == nil && (time.Since(began) < 600*time.Millisecond || !log.enough(o.Key, enough)) {
					o.Kind.Work(ctx, w, o)
					w.Probe(ctx, o, time.Second)
					w.Rest(ctx, 10*time.Millisecond)
				}
			})
		}
	}
	all.Wait()
	if len(log.unexpected) > 0 {
		t.Errorf("%q", log.unexpected)
	}
	record := rec.Record()
	for _, o := range objects.Each() {
		calls := record.Calls[o.Kind.Name]
		if len(calls) < enough || log.answered[o.Key] < enough {
			t.Errorf("%s: %d calls, %d answered", o.Kind.Name, len(calls), log.answered[o.Key])
		}
	}
	for k, calls := range record.Objects() {
		if err := errors.Join(history.Check(Slack{}.Of(k), calls, time.Minute), history.Epochs(calls)); err != nil {
			t.Errorf("%s: %v", k.Name, err)
		}
		if !slices.ContainsFunc(calls, func(c history.Call) bool { return c.Owner != "" && c.Epoch != 0 }) {
			t.Errorf("%s: no answer names its owner and its epoch", k.Name)
		}
	}
	if err := Fencing(record.Writes[objects[&Lock][0].Key]); err != nil {
		t.Error(err)
	}
}

// The objects of a record come by kind, in the order of All.
func TestObjectsOfARecord(t *testing.T) {
	r := Record{Calls: map[string][]history.Call{
		"lock":    {{Object: "b"}, {Object: "a"}, {Object: "b", Output: history.BucketOutput{Parts: 2}}},
		"counter": {{Object: "c"}},
	}}
	var got []string
	for k, calls := range r.Objects() {
		got = append(got, k.Name, calls[0].Object)
	}
	if want := []string{"counter", "c", "lock", "a", "lock", "b"}; !slices.Equal(got, want) || r.ByParts() != 1 {
		t.Errorf("%q, not %q; %d by parts", got, want, r.ByParts())
	}
}
