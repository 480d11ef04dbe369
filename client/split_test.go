package client

import (
	"context"
	"encoding/binary"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cespare/xxhash/v2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/keystead/keystead/ring/epoch/table"

	clusterpb "github.com/keystead/keystead/proto/keystead/cluster/v1"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
)

// split divides an object into parts, one on each of these nodes, which are not served
// yet.
func (w *town) split(kind, key, name string, nodes ...string) (id uint64) {
	w.t.Helper()
	id = w.now().Epoch + 1
	salts, ok := w.now().Place(id, nodes)
	if !ok {
		w.t.Fatal("no salts for ", nodes)
	}
	s := table.Split{ID: id, Kind: kind, Key: key, Name: name}
	for _, salt := range salts {
		s.Parts = append(s.Parts, table.Part{Salt: salt, Weight: table.FullWeight / uint32(len(nodes))})
	}
	w.apply(table.Command{BeginSplit: &table.BeginSplit{Split: s}})
	return id
}

// open has the parts of a split served.
func (w *town) open(id uint64) {
	w.t.Helper()
	s, _ := w.now().SplitOf(id)
	w.apply(table.Command{OpenSplit: &table.OpenSplit{ID: id, Home: holder(ownerOf(w, s.Key))}})
}

// asked is an operation as it came to a node.
type asked struct {
	node, key string
	id        *commonpb.RequestId // nil if it changes nothing
}

// spy stands before the nodes: it notes what is asked of which, and answers itself.
type spy struct {
	answer func(a asked) error // nil = all is well
	delay  time.Duration       // of every answer

	mu  sync.Mutex // guards what follows
	got []asked
}

// reset returns the operations since the last call.
func (s *spy) reset() []asked {
	s.mu.Lock()
	defer s.mu.Unlock()
	got := s.got
	s.got = nil
	return got
}

// nodes returns those that were asked since the last call, each with how often.
func (s *spy) nodes() map[string]int {
	n := map[string]int{}
	for _, a := range s.reset() {
		n[a.node]++
	}
	return n
}

func (s *spy) one(a asked) error {
	s.mu.Lock()
	s.got = append(s.got, a)
	s.mu.Unlock()
	if s.answer == nil {
		return nil
	}
	return s.answer(a)
}

func (s *spy) intercept(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, next grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	node := strings.TrimSuffix(strings.TrimPrefix(cc.Target(), "passthrough:///"), ":1")
	if s.delay > 0 {
		<-time.After(s.delay)
	}
	switch q := req.(type) {
	case *limitpb.CheckRequest:
		reply.(*limitpb.CheckResponse).Parts = 3
		return s.one(asked{node, q.Key, q.RequestId})
	case *counterpb.AddRequest:
		reply.(*counterpb.AddResponse).Parts = 3
		return s.one(asked{node, q.Key, q.RequestId})
	case *counterpb.GetRequest:
		reply.(*counterpb.GetResponse).Parts = 3
		return s.one(asked{node, q.Key, nil})
	case *counterpb.CompareAndSetRequest:
		return s.one(asked{node, q.Key, q.RequestId})
	case *counterpb.ResetRequest:
		return s.one(asked{node, q.Key, q.RequestId})
	case *limitpb.BatchCheckRequest:
		for _, x := range q.Checks {
			r := &limitpb.CheckResult{Response: &limitpb.CheckResponse{Parts: 3}}
			reply.(*limitpb.BatchCheckResponse).Results = append(reply.(*limitpb.BatchCheckResponse).Results, r)
			_ = s.one(asked{node, x.Key, x.RequestId})
		}
		return nil
	case *counterpb.BatchAddRequest:
		for _, x := range q.Adds {
			r := &counterpb.AddResult{Response: &counterpb.AddResponse{Parts: 3}}
			reply.(*counterpb.BatchAddResponse).Results = append(reply.(*counterpb.BatchAddResponse).Results, r)
			_ = s.one(asked{node, x.Key, x.RequestId})
		}
		return nil
	case *counterpb.BatchGetRequest:
		for _, x := range q.Gets {
			r := &counterpb.GetResult{Response: &counterpb.GetResponse{Parts: 3}}
			reply.(*counterpb.BatchGetResponse).Results = append(reply.(*counterpb.BatchGetResponse).Results, r)
			_ = s.one(asked{node, x.Key, nil})
		}
		return nil
	}
	return next(ctx, method, req, reply, cc, opts...)
}

// watched is a client whose calls a spy answers.
func (w *town) watched(s *spy) *Client {
	cfg := Config{Timeout: 20 * time.Second, DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(s.intercept)}}
	return w.client(cfg, "n1")
}

// hashed returns the node of the part that a request id belongs to, by the rule that
// clients in any language go by.
func hashed(id *commonpb.RequestId, parts []string) string {
	h := xxhash.Sum64(binary.BigEndian.AppendUint64(slices.Clone(id.Client), id.Sequence))
	return parts[h%uint64(len(parts))]
}

// spread checks that operations with ids are where their parts are.
func spread(t *testing.T, got []asked, want int, parts ...string) {
	t.Helper()
	seen := map[string]int{}
	for _, a := range got {
		if a.id == nil || a.node != hashed(a.id, parts) {
			t.Errorf("%v came to %s", a.id, a.node)
		}
		seen[a.node]++
	}
	if len(got) != want {
		t.Errorf("%d operations, want %d", len(got), want)
	}
	for _, n := range parts {
		if seen[n] < want/len(parts)/2 {
			t.Errorf("the parts are not used alike: %v", seen)
		}
	}
}

// Operations of a split object go to the owner of the part of their id; those without
// an id to any of them, and all others to their owner as ever.
func TestSplitGoesToTheParts(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1", "n2", "n3"}, nil)
		s := &spy{}
		c := w.watched(s)
		key, parts := w.keyOf("n2"), []string{"n3", "n1", "n1", "n3"}
		w.open(w.split("limit", key, "limit", parts...))
		w.open(w.split("counter", key, "hits", parts...))
		synctest.Wait()
		ctx := soon(t)
		for i := range 200 {
			rate := PerSecond(9)
			rate.Algorithm = []Algorithm{0, TokenBucket}[i%2]
			if d := must(c.Limit("", rate).Check(ctx, key))(t); d.Parts != 3 {
				t.Fatalf("%+v", d)
			}
		}
		spread(t, s.reset(), 200, parts...)
		for range 200 {
			if v := must(c.Counter("hits").Add(ctx, key, 1))(t); v.Parts != 3 {
				t.Fatalf("%+v", v)
			}
		}
		spread(t, s.reset(), 200, parts...)
		for range 200 {
			if v := must(c.Counter("hits").Get(ctx, key))(t); v.Parts != 3 {
				t.Fatalf("%+v", v)
			}
			must(c.Limit("", PerSecond(9)).Peek(ctx, key))(t)
		}
		if n := s.nodes(); n["n1"] < 100 || n["n3"] < 100 || n["n1"]+n["n3"] != 400 {
			t.Errorf("reads went to %v", n)
		}
		// What a part cannot do is for the owner of the key, and so are other objects.
		for range 20 {
			must(c.Counter("hits").Add(ctx, key, 1, AtLeast(0)))(t)
			must(c.Counter("hits").Add(ctx, key, 1, AtMost(9)))(t)
			must(c.Counter("hits").Add(ctx, key, 1, IdleTTL(time.Hour)))(t)
			must(c.Counter("hits").CompareAndSet(ctx, key, 0, 0))(t)
			must(c.Counter("hits").Reset(ctx, key))(t)
			must(c.Limit("", PerSecond(9).Sliding()).Check(ctx, key))(t)
			must(c.Limit("", PerSecond(9).Windowed()).Check(ctx, key))(t)
			must(c.Counter("").Add(ctx, key, 1))(t)
			must(c.Counter("").Get(ctx, key))(t)
			must(c.Limit("hits", PerSecond(9)).Check(ctx, key))(t)
		}
		if n := s.nodes(); !maps.Equal(n, map[string]int{"n2": 200}) {
			t.Errorf("the rest went to %v", n)
		}
	})
}

// Batches, given or gathered, are taken apart by part.
func TestSplitBatches(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1", "n2", "n3"}, nil)
		s := &spy{delay: time.Millisecond}
		c := w.watched(s)
		key, other, parts := w.keyOf("n2"), w.keyOf("n1"), []string{"n1", "n2", "n3"}
		w.open(w.split("counter", key, "counter", parts...))
		w.open(w.split("limit", key, "limit", parts...))
		synctest.Wait()
		of := func(key string) func(a asked) bool { return func(a asked) bool { return a.key == key } }
		limit := c.Limit("", PerSecond(1))
		var adds []Add
		var checks []Check
		var gets []Get
		for range 200 {
			adds = append(adds, Add{Key: key, Delta: 1}, Add{Key: other, Delta: 1})
			checks = append(checks, Check{Limit: limit, Key: key}, Check{Limit: limit, Key: other})
			gets = append(gets, Get{Key: key}, Get{Key: other})
		}
		answers := func(got []asked) {
			t.Helper()
			spread(t, slices.DeleteFunc(slices.Clone(got), of(other)), 200, parts...)
			for _, a := range slices.DeleteFunc(got, of(key)) {
				if a.node != "n1" {
					t.Fatalf("%s came to %s", a.key, a.node)
				}
			}
		}
		for _, r := range must(c.BatchAdd(soon(t), adds))(t) {
			if r.Err != nil || r.Parts != 3 {
				t.Fatal(r)
			}
		}
		answers(s.reset())
		for _, r := range must(c.BatchCheck(soon(t), checks))(t) {
			if r.Err != nil || r.Parts != 3 {
				t.Fatal(r)
			}
		}
		answers(s.reset())
		for _, r := range must(c.BatchGet(soon(t), gets))(t) {
			if r.Err != nil || r.Parts != 3 {
				t.Fatal(r)
			}
		}
		if n := s.nodes(); n["n2"] < 10 || n["n3"] < 10 || n["n1"] < 210 {
			t.Errorf("gets went to %v", n)
		}
		var callers sync.WaitGroup
		for i := range 400 {
			callers.Go(func() {
				if _, err := c.Counter("").Add(soon(t), adds[i].Key, adds[i].Delta); err != nil {
					t.Error(err)
				}
			})
		}
		callers.Wait()
		answers(s.reset())
		if st := c.Stats(); st.Items < 100 || st.Forwarded != 0 || st.Retries != 0 {
			t.Errorf("%+v", st)
		}
	})
}

// While an object is divided or made whole its owner has it, and who has waited for
// that goes on at once.
func TestSplitPhases(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1", "n2", "n3"}, nil)
		s := &spy{}
		c := w.watched(s)
		key, parts := w.keyOf("n2"), []string{"n1", "n3"}
		ctx := soon(t)
		went := func(what string, want ...string) {
			t.Helper()
			synctest.Wait()
			for range 20 {
				must(c.Counter("").Add(ctx, key, 1))(t)
				must(c.Counter("").Get(ctx, key))(t)
			}
			if n := s.nodes(); !slices.Equal(slices.Sorted(maps.Keys(n)), want) {
				t.Errorf("%s: %v, want %v", what, n, want)
			}
		}
		went("whole", "n2")
		id := w.split("counter", key, "counter", parts...)
		went("opening", "n2")
		w.open(id)
		went("open", "n1", "n3")
		now, _ := w.now().SplitOf(id)
		w.apply(table.Command{Weigh: &table.Weigh{ID: id, Home: holder("n2"), Expect: now.Weighed, Weights: []uint32{1, 2}}})
		went("weighed", "n1", "n3")
		w.ring("n2", "n3")
		w.remove("n1")
		went("without n1", "n2", "n3") // the one that has the row of that part now
		w.apply(table.Command{CloseSplit: &table.CloseSplit{ID: id}})
		went("closing", "n2")
		w.apply(table.Command{EndSplit: &table.EndSplit{ID: id, Home: holder("n2"), Since: w.now().Epoch}})
		went("whole again", "n2")
	})
}

// A retry goes by the table of then, under the id of before, and does not wait longer
// than for the news.
func TestSplitRetries(t *testing.T) {
	late := &Error{Code: codes.Unavailable, Reason: ErrUnavailable, RetryAfter: 10 * time.Second}
	adds := func(c *Client, key string) error {
		_, err := c.Counter("").Add(context.Background(), key, 1)
		return err
	}
	reads := func(c *Client, key string) error {
		_, err := c.Counter("").Get(context.Background(), key)
		return err
	}
	closes := func(w *town, id uint64) { w.apply(table.Command{CloseSplit: &table.CloseSplit{ID: id}}) }
	for name, tc := range map[string]struct {
		call          func(c *Client, key string) error
		before, after func(w *town, id uint64) // the first attempt, and while it waits
		twice         func(a, b asked) bool
	}{
		"opens for a read": {
			call: reads, before: func(*town, uint64) {}, after: (*town).open,
			twice: func(a, b asked) bool { return a.node == "n2" && b.node != "n2" },
		},
		"closes for a read": {
			call: reads, before: (*town).open, after: closes,
			twice: func(a, b asked) bool { return a.node != "n2" && b.node == "n2" },
		},
		"opens": {
			call: adds, before: func(*town, uint64) {}, after: (*town).open,
			twice: func(a, b asked) bool { return a.node == "n2" && b.node == hashed(b.id, []string{"n1", "n3"}) },
		},
		"closes": {
			call: adds, before: (*town).open, after: closes,
			twice: func(a, b asked) bool { return a.node == hashed(a.id, []string{"n1", "n3"}) && b.node == "n2" },
		},
	} {
		bubble(t, func(t *testing.T) {
			w := build(t, []string{"n1", "n2", "n3"}, nil)
			s := &spy{}
			c := w.watched(s)
			key := w.keyOf("n2")
			id := w.split("counter", key, "counter", "n1", "n3")
			tc.before(w, id)
			synctest.Wait()
			failed := false
			s.answer = func(asked) error {
				if failed {
					return nil
				}
				failed = true
				return late
			}
			began, done := time.Now(), make(chan error, 1)
			go func() { done <- tc.call(c, key) }()
			synctest.Wait()
			<-time.After(time.Second)
			tc.after(w, id)
			if err := <-done; err != nil {
				t.Fatal(name, err)
			}
			got := s.reset()
			if len(got) != 2 || !tc.twice(got[0], got[1]) || got[0].id.GetSequence() != got[1].id.GetSequence() || got[1].id != nil && got[1].id.AgeNs == 0 {
				t.Errorf("%s: %v", name, got)
			}
			if took := time.Since(began); took > 2*time.Second {
				t.Errorf("%s: it took %s", name, took)
			}
		})
	}
}

// Where the owner of a part does not answer, another node is asked: it passes on what
// has an id, and reads what has none from another part.
func TestSplitPartDoesNotAnswer(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1", "n2", "n3"}, nil)
		s := &spy{answer: func(a asked) error {
			if a.node == "n1" {
				return &Error{Code: codes.Unavailable, broken: true, unknown: true}
			}
			return nil
		}}
		c := w.watched(s)
		key := w.keyOf("n2")
		w.open(w.split("counter", key, "counter", "n1", "n3"))
		synctest.Wait()
		for range 40 {
			must(c.Counter("").Add(soon(t), key, 1))(t)
		}
		spared := 0
		for i, got := 0, s.reset(); i < len(got); i++ {
			if got[i].node != hashed(got[i].id, []string{"n1", "n3"}) {
				t.Fatalf("%v went to %s first", got[i].id, got[i].node)
			}
			if got[i].node == "n1" {
				if i++; got[i].node == "n1" || got[i].id.Sequence != got[i-1].id.Sequence {
					t.Fatalf("then %v went to %s", got[i].id, got[i].node)
				}
				spared++
			}
		}
		if spared < 5 {
			t.Errorf("only %d met n1", spared)
		}
		for range 40 {
			must(c.Counter("").Get(soon(t), key))(t)
		}
		if n := s.nodes(); n["n2"] != 0 || n["n3"] != 40 {
			t.Errorf("reads went to %v", n)
		}
		again := toObject(objectAt(counterObject, key, ""), nil)
		c = w.watched(s) // which has heard nothing of n1
		for again.avoid = "n1:1"; spared < 100; spared++ {
			if a := c.address(c.view.Load(), &again); a != "n3:1" {
				t.Fatalf("a read that n1 has not answered goes to %s", a)
			}
		}
	})
}

// What a node tells of splits is a hint: what makes no sense is passed over.
func TestReadSplits(t *testing.T) {
	members := []member{{id: "n1", addr: "a"}, {id: "n2", addr: "b"}, {id: "n3", addr: "a"}}
	got := readSplits(map[uint64]*clusterpb.Split{
		1: {Kind: commonpb.Kind_KIND_LIMIT, Key: "k", Phase: clusterpb.SplitPhase_SPLIT_PHASE_OPEN, Parts: []*clusterpb.SplitPart{{Owner: "n3"}, {Owner: ""}, {Owner: "gone"}, nil, {Owner: "n1"}, {Owner: "n2"}}},
		2: {Kind: commonpb.Kind_KIND_COUNTER, Key: "k", Name: "x", Phase: clusterpb.SplitPhase_SPLIT_PHASE_CLOSING, Parts: []*clusterpb.SplitPart{{Owner: "n1"}}},
		3: {Kind: commonpb.Kind_KIND_COUNTER, Key: "k", Name: "y", Phase: clusterpb.SplitPhase_SPLIT_PHASE_OPENING, Parts: []*clusterpb.SplitPart{{Owner: "n1"}}},
		4: {Kind: commonpb.Kind_KIND_COUNTER, Key: "k", Name: "z", Phase: clusterpb.SplitPhase_SPLIT_PHASE_OPEN},
		5: nil,
	}, members)
	s := got[object{"limit", "k", "limit"}]
	if len(got) != 1 || s == nil {
		t.Fatalf("%v", got)
	}
	want := []*member{&members[2], nil, nil, nil, &members[0], &members[1]}
	if !slices.Equal(s.parts, want) || !slices.Equal(s.nodes, []string{"a", "b"}) {
		t.Errorf("%+v", s)
	}
	if readSplits(nil, members) != nil || readSplits(map[uint64]*clusterpb.Split{1: {Phase: clusterpb.SplitPhase_SPLIT_PHASE_CLOSING}}, members) != nil {
		t.Error("there is a map of nothing")
	}
}

// A change tells what is different: the rest stays, at members as they are now.
func TestSplitChanges(t *testing.T) {
	of := func(id uint64, key, owner string) *clusterpb.Split {
		return &clusterpb.Split{Id: id, Kind: commonpb.Kind_KIND_LIMIT, Key: key, Phase: clusterpb.SplitPhase_SPLIT_PHASE_OPEN, Parts: []*clusterpb.SplitPart{{Owner: owner}, {Owner: "n1"}}}
	}
	first := &view{members: []member{{id: "n1", addr: "a"}, {id: "n2", addr: "b"}}}
	if err := first.divide(nil, []*clusterpb.Split{of(1, "x", "n1"), of(2, "y", "n2"), of(3, "z", "n2")}, nil); err != nil {
		t.Fatal(err)
	}
	next := &view{members: []member{{id: "n0", addr: "c"}, {id: "n1", addr: "d"}, {id: "n2", addr: "b"}}}
	if err := next.divide(first.announced, []*clusterpb.Split{of(2, "y", "n0"), of(4, "u", "n2")}, []uint64{3}); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{"x": "d", "y": "c", "z": "", "u": "b"} {
		got := ""
		if s := next.split(objectAt(limitObject, key, "")); s != nil {
			got = s.parts[0].addr
		}
		if got != want {
			t.Errorf("part 0 of %s is at %q, not %q", key, got, want)
		}
	}
	if len(first.announced) != 3 || first.split(objectAt(limitObject, "z", "")) == nil || first.splits[objectAt(limitObject, "y", "")].parts[0].addr != "b" {
		t.Error("the view before has changed")
	}
	if err := next.divide(first.announced, nil, []uint64{4}); err == nil {
		t.Error("one is over that was never there")
	}
}

// An operation whose part has no owner that is known goes to the owner of the key.
func TestSplitPartOfNobody(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1", "n2"}, nil)
		c := w.client(Config{}, "n1")
		key := w.keyOf("n2")
		v := *c.view.Load()
		o := objectAt(counterObject, key, "")
		v.splits = map[object]*split{o: {parts: make([]*member, 2)}}
		op := c.ops.begin()
		defer op.finish()
		write, read := toObject(o, op), toObject(o, nil)
		if a, b := c.address(&v, &write), c.address(&v, &read); a != "n2:1" || b != "n2:1" {
			t.Errorf("it goes to %q, and a read to %q", a, b)
		}
	})
}

// Finding the way allocates nothing, whether anything is split or not.
func TestSplitAllocations(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1", "n2", "n3"}, nil)
		c := w.client(Config{}, "n1")
		op := c.ops.begin()
		defer op.finish()
		way := func() {
			q := Add{Key: "key-1", Delta: 1}
			r := toObject(q.Counter.object(q.Key, q.Options), op)
			_ = c.address(c.view.Load(), &r)
		}
		if n := testing.AllocsPerRun(100, way); n != 0 {
			t.Errorf("%v allocations while nothing is split", n)
		}
		w.open(w.split("counter", "key-1", "counter", "n1", "n2", "n3"))
		synctest.Wait()
		if len(c.view.Load().splits) != 1 {
			t.Fatal("the client does not know")
		}
		if n := testing.AllocsPerRun(100, way); n != 0 {
			t.Errorf("%v allocations for a split object", n)
		}
	})
}

// Whatever the nodes make of it, an add to a counter that is split, and made whole,
// counts once.
func TestSplitCountsOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1", "n2", "n3"}, nil)
		c := w.client(Config{}, "n1")
		key := w.keyOf("n2")
		w.open(w.split("counter", key, "counter", "n1", "n2", "n3"))
		synctest.Wait()
		for i := range 60 {
			if v := must(c.Counter("").Add(soon(t), key, int64(i)))(t); !v.Applied {
				t.Fatalf("%+v", v)
			}
		}
		if v := must(c.Counter("").Get(soon(t), key))(t); v.Value != 60*59/2 {
			t.Errorf("%+v", v)
		}
	})
}
