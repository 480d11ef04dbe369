package system

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	adminpb "github.com/keystead/keystead/proto/keystead/admin/v1"
	clusterpb "github.com/keystead/keystead/proto/keystead/cluster/v1"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
)

// hotNode answers for a node of a cluster of three: what is asked of it stands in fields.
type hotNode struct {
	clusterpb.UnimplementedClusterServiceServer
	adminpb.UnimplementedAdminServiceServer
	id, addr string
	others   []*hotNode

	mu     sync.Mutex                    // guards what follows
	leader *hotNode                      // guarded by mu: whose splits it tells of, nil = its own
	busy   chan struct{}                 // guarded by mu: orders wait until it is closed; nil = they do not
	keys   []*clusterpb.HotKey           // guarded by mu
	splits []*clusterpb.Split            // guarded by mu
	fails  error                         // guarded by mu: what orders are answered with
	split  []*adminpb.SplitObjectRequest // guarded by mu: the orders that came
	merged []*adminpb.MergeObjectRequest // guarded by mu
	calls  int                           // guarded by mu: orders
}

func startHotNode(t *testing.T, id string, others ...*hotNode) *hotNode {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := &hotNode{id: id, addr: l.Addr().String(), others: others}
	s := grpc.NewServer()
	clusterpb.RegisterClusterServiceServer(s, n)
	adminpb.RegisterAdminServiceServer(s, n)
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	t.Cleanup(func() { s.Stop(); <-done })
	return n
}

func (n *hotNode) ListMembers(context.Context, *clusterpb.ListMembersRequest) (*clusterpb.ListMembersResponse, error) {
	r := &clusterpb.ListMembersResponse{}
	for _, m := range append([]*hotNode{n}, n.others...) {
		r.Members = append(r.Members, &clusterpb.MemberStatus{Id: m.id, Member: &clusterpb.Member{Id: m.id, GrpcAddr: m.addr}})
	}
	return r, nil
}

func (n *hotNode) ListHot(_ context.Context, req *clusterpb.ListHotRequest) (*clusterpb.ListHotResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.leader != nil {
		n.leader.set(func() { n.splits = slices.Clone(n.leader.splits) })
	}
	return proto.Clone(&clusterpb.ListHotResponse{
		Id: n.id, Epoch: 7, Rate: 1000, Policy: &clusterpb.HotPolicy{Floor: 100, Factor: 10},
		Keys: n.keys[:min(len(n.keys), int(req.MaxKeys))], Splits: n.splits,
	}).(*clusterpb.ListHotResponse), nil
}

// order waits as long as orders are to, and says what they are answered with.
func (n *hotNode) order(ctx context.Context) error {
	n.mu.Lock()
	n.calls++
	fails, busy := n.fails, n.busy
	n.mu.Unlock()
	if busy != nil {
		select {
		case <-busy:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return fails
}

func (n *hotNode) SplitObject(ctx context.Context, req *adminpb.SplitObjectRequest) (*adminpb.SplitObjectResponse, error) {
	if err := n.order(ctx); err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.split = append(n.split, req)
	for _, s := range n.splits {
		if s.Kind == req.Kind && s.Key == req.Key && s.Name == req.Name {
			return proto.Clone(&adminpb.SplitObjectResponse{Split: s}).(*adminpb.SplitObjectResponse), nil
		}
	}
	s := &clusterpb.Split{Id: 8, Kind: req.Kind, Key: req.Key, Name: req.Name, Phase: clusterpb.SplitPhase_SPLIT_PHASE_OPEN, Since: 9, Manual: true, Reason: "by hand"}
	parts := 3
	if req.Parts > 0 {
		parts = int(req.Parts)
	}
	for i := range parts {
		s.Parts = append(s.Parts, &clusterpb.SplitPart{Owner: fmt.Sprint("n", i+1), Share: 1 / float64(parts)})
	}
	n.splits = append(n.splits, s)
	return proto.Clone(&adminpb.SplitObjectResponse{Split: s}).(*adminpb.SplitObjectResponse), nil
}

func (n *hotNode) MergeObject(ctx context.Context, req *adminpb.MergeObjectRequest) (*adminpb.MergeObjectResponse, error) {
	if err := n.order(ctx); err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.merged = append(n.merged, req)
	n.splits = slices.DeleteFunc(n.splits, func(s *clusterpb.Split) bool { return s.Kind == req.Kind && s.Key == req.Key && s.Name == req.Name })
	return &adminpb.MergeObjectResponse{}, nil
}

// set sets what a node is asked for.
func (n *hotNode) set(f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f()
}

// refusal returns an error as nodes answer with it.
func refusal(t *testing.T, code codes.Code, reason, message, hint string) error {
	t.Helper()
	st, err := status.New(code, message).WithDetails(&errdetails.ErrorInfo{Reason: reason, Domain: "keystead", Metadata: map[string]string{"hint": hint}})
	if err != nil {
		t.Fatal(err)
	}
	return st.Err()
}

// An object is found out where that is possible, split, and made whole.
func TestHotSplitAndMerge(t *testing.T) {
	t.Parallel()
	other := startHotNode(t, "n2")
	n := startHotNode(t, "n1", other)
	with := func(args ...string) []string { return append(append([]string{"hot"}, args...), "--addr", n.addr) }
	n.set(func() {
		n.keys = []*clusterpb.HotKey{{Key: "door", Name: "lock", Kind: commonpb.Kind_KIND_LOCK, RateMax: 9}, {Key: "page", Name: "hits", Kind: commonpb.Kind_KIND_COUNTER, RateMax: 5}}
	})
	other.set(func() {
		other.leader = n
		other.keys = []*clusterpb.HotKey{
			{Key: "tenant", Name: "api", Kind: commonpb.Kind_KIND_LIMIT, RateMax: 50}, {Key: "tenant", Name: "lock", Kind: commonpb.Kind_KIND_LOCK, RateMax: 9}, {Key: "page", Name: "reads", Kind: commonpb.Kind_KIND_LIMIT, RateMax: 5},
		}
	})

	if got := succeeds(t, with("split", "tenant")...); got != "split: limit \"api\" of key \"tenant\" into 3 parts: n1, n2, n3\n" {
		t.Error(got)
	}
	raw := object(t, succeeds(t, with("split", "page", "--name", "hits", "--into", "2", "--json")...))
	hasFields(t, raw, "key", "name", "kind", "id", "phase", "since", "manual", "reason", "parts")
	hasFields(t, raw["parts"].([]any)[0], "part", "owner", "limit_share")
	if raw["kind"] != "counter" || raw["id"] != "8" || raw["phase"] != "open" || len(raw["parts"].([]any)) != 2 {
		t.Errorf("%v", raw)
	}
	if got := succeeds(t, with("split", "idle", "--kind", "limit")...); got != "split: limit \"limit\" of key \"idle\" into 3 parts: n1, n2, n3\n" {
		t.Error(got)
	}
	if got := succeeds(t, with("split", "a\x1b\"", "--kind", "counter", "--name", "x")...); got != "split: counter \"x\" of key \"a\\x1b\\\"\" into 3 parts: n1, n2, n3\n" {
		t.Error(got)
	}
	n.set(func() {
		want := []*adminpb.SplitObjectRequest{
			{Kind: commonpb.Kind_KIND_LIMIT, Key: "tenant", Name: "api"}, {Kind: commonpb.Kind_KIND_COUNTER, Key: "page", Name: "hits", Parts: 2},
			{Kind: commonpb.Kind_KIND_LIMIT, Key: "idle", Name: "limit"}, {Kind: commonpb.Kind_KIND_COUNTER, Key: "a\x1b\"", Name: "x"},
		}
		if !slices.EqualFunc(n.split, want, func(a, b *adminpb.SplitObjectRequest) bool { return proto.Equal(a, b) }) {
			t.Errorf("asked for %v", n.split)
		}
	})
	for manual, want := range map[bool]string{
		false: "(it was, because it is hot, and is merged when it no longer is)\n", true: "(it was already: merge it first for another number)\n",
	} {
		n.set(func() { n.splits[0].Manual = manual })
		if got := succeeds(t, with("split", "tenant", "--into", "2")...); !strings.HasPrefix(got, "split: limit \"api\" of key \"tenant\" into 3 parts: n1") || !strings.HasSuffix(got, want) {
			t.Error(got)
		}
	}
	// What is split is seen as that, though a node may still tell of the whole as well.
	if got := succeeds(t, with("merge", "tenant")...); got != "merged: limit \"api\" of key \"tenant\" is whole\n" {
		t.Error(got)
	}
	hasFields(t, object(t, succeeds(t, with("merge", "page", "--json")...)), "key", "name", "kind")
	n.set(func() {
		if len(n.merged) != 2 || n.merged[1].Kind != commonpb.Kind_KIND_COUNTER || n.merged[1].Name != "hits" || len(n.splits) != 2 {
			t.Errorf("asked for %v, and %v are left", n.merged, n.splits)
		}
	})
	for _, tc := range []struct {
		code int
		says string
		args []string
	}{
		{exitUsage, "key \"page\" has several: counter \"hits\", limit \"reads\"\n  hint: say which with --kind and --name", with("split", "page")},
		{exitError, "no limit or counter of key \"nobody\" is among the busiest of a node\n  hint: say what it is with --kind", with("split", "nobody")},
		{exitError, "no limit or counter of key \"tenant\" with the name \"other\" is among", with("split", "tenant", "--name", "other")},
		{exitError, "of key \"door\" only a lock is seen, and locks are never split", with("split", "door")},
		{exitError, "nothing of key \"tenant\" is split", with("merge", "tenant")},
		{exitError, "nothing of key \"tenant\" with the name \"api\" is split", with("merge", "tenant", "--name", "api")},
		{exitUsage, "--kind \"lock\": choose limit or counter\n  hint: locks are never split", with("split", "door", "--kind", "lock")},
		{exitUsage, "--kind \"limits\": choose limit or counter", with("merge", "door", "--kind", "limits")},
		{exitUsage, "--into 1: choose 2 to 64", with("split", "tenant", "--into", "1")},
		{exitUsage, "--into 65: choose 2 to 64", with("split", "tenant", "--into", "65")},
		{exitUsage, "takes KEY", with("split")},
		{exitUsage, "takes KEY", with("merge", "a", "b")},
	} {
		refuses(t, tc.code, tc.says, tc.args...)
	}
}

// What a node answers stands; what takes long is said, and what comes too late may be done.
func TestHotSplitTroubles(t *testing.T) {
	t.Parallel()
	n := startHotNode(t, "n1", &hotNode{id: "n2", addr: "127.0.0.1:1"})
	args := []string{"hot", "split", "k", "--kind", "limit", "--addr", n.addr}
	busy := make(chan struct{})
	refuses(t, exitError, "is among the busiest of a node, and n2 does not answer", "hot", "split", "k", "--addr", n.addr)
	n.set(func() { n.fails = refusal(t, codes.InvalidArgument, "INVALID", "kept whole", "see --hot-whole") })
	refuses(t, exitUsage, "kept whole (INVALID)\n  hint: see --hot-whole", args...)
	n.set(func() { n.fails, n.calls = refusal(t, codes.Unavailable, "UNAVAILABLE", "no leader", ""), 0 })
	refuses(t, exitError, "no leader (UNAVAILABLE)", args...)
	n.set(func() {
		if n.calls != 1 {
			t.Errorf("asked %d times", n.calls)
		}
		n.fails, n.busy = nil, busy
	})
	slow := start(t, nil, args...)
	eventually(t, "it says what it waits for", func() bool { return slow.err() == "splitting limit \"limit\" of key \"k\"\n" })
	late := start(t, nil, "hot", "merge", "k", "--kind", "limit", "--addr", n.addr, "--timeout", "300ms")
	late.ends(t, exitError)
	if !strings.Contains(late.err(), "no answer from "+n.addr+" within 300ms\n  hint: it may be done all the same") {
		t.Error(late.err())
	}
	close(busy)
	slow.ends(t, 0)
	if slow.out() != "split: limit \"limit\" of key \"k\" into 3 parts: n1, n2, n3\n" || strings.Count(slow.err(), "\n") != 1 {
		t.Errorf("%q %q", slow.out(), slow.err())
	}
	refuses(t, exitError, "cannot reach a node at 127.0.0.1:1", "hot", "merge", "k", "--addr", "127.0.0.1:1")
}

// --json has the splits, and tells of those beyond --top.
func TestHotSplitsJSON(t *testing.T) {
	t.Parallel()
	n := startHotNode(t, "n1")
	n.set(func() {
		n.keys = []*clusterpb.HotKey{{Key: "first", Name: "n", Kind: commonpb.Kind_KIND_COUNTER, RateMax: 9}, {Key: "k", Name: "limit", Kind: commonpb.Kind_KIND_LIMIT, RateMax: 5, RateMin: 4, Parts: 2, Part: 1}}
		n.splits = []*clusterpb.Split{{Id: 1 << 60, Kind: commonpb.Kind_KIND_LIMIT, Key: "k", Name: "limit", Phase: clusterpb.SplitPhase_SPLIT_PHASE_OPEN, Since: 3, Parts: []*clusterpb.SplitPart{{Owner: "n2", Share: 0.5}, {Owner: "n1", Share: 0.5}}}}
	})
	keys := object(t, succeeds(t, "hot", "--json", "--top", "1", "--addr", n.addr))["keys"].([]any)
	if len(keys) != 2 {
		t.Fatal(keys)
	}
	first, split := keys[0].(map[string]any), keys[1].(map[string]any)
	if first["split"] != nil || first["owner"] != "n1" || split["owner"] != "" {
		t.Errorf("%v %v", first, split)
	}
	about := split["split"].(map[string]any)
	hasFields(t, about, "id", "phase", "since", "manual", "reason", "parts")
	parts := about["parts"].([]any)
	hasFields(t, parts[0], "part", "owner", "limit_share")
	hasFields(t, parts[1], "part", "owner", "limit_share", "rate", "sure", "share")
	if about["id"] != "1152921504606846976" {
		t.Error(about["id"])
	}
	if text := succeeds(t, "hot", "--top", "1", "--parts", "--addr", n.addr); !strings.Contains(text, "\n  part 1 ") {
		t.Error(text)
	}
}
