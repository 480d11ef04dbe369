package rpc

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/keystead/keystead/internal/tests/agreed"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/hold"
	"github.com/keystead/keystead/owner/reqid"
	adminpb "github.com/keystead/keystead/proto/keystead/admin/v1"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
	"github.com/keystead/keystead/ring/epoch/table"
)

// adopted is a group whose members have agreed on the level of deleting.
func adopted(t *testing.T, n int) *group {
	g := grouped(t, n, false, nil)
	g.apply(table.Command{Adopt: &table.Adopt{Level: owner.DeleteLevel}})
	return g
}

func (m *member) admin() adminpb.AdminServiceClient { return adminpb.NewAdminServiceClient(m.conn) }

// TestNewOperationsNeedTheLevel: a node does not send others what they may not know.
func TestNewOperationsNeedTheLevel(t *testing.T) {
	g := grouped(t, 2, false, nil)
	ctx := bound(t)
	calls := map[string]func() error{
		"delete": func() error {
			_, err := g.nodes["n1"].counters.Delete(ctx, &counterpb.DeleteRequest{Key: g.key("n2")})
			return err
		},
		"reset": func() error {
			_, err := g.nodes["n1"].limits.Reset(ctx, &limitpb.ResetRequest{Key: g.key("n2")})
			return err
		},
		"inspect": func() error {
			_, err := g.nodes["n1"].admin().InspectKey(ctx, &adminpb.InspectKeyRequest{Key: g.key("n2")})
			return err
		},
		"list": func() error {
			_, err := g.nodes["n1"].admin().ListObjects(ctx, &adminpb.ListObjectsRequest{Node: "n2"})
			return err
		},
	}
	for name, call := range calls {
		if err := call(); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "not all nodes") {
			t.Errorf("%s: %v", name, err)
		}
	}
	g.apply(table.Command{Adopt: &table.Adopt{Level: owner.DeleteLevel}})
	for name, call := range calls {
		if err := call(); err != nil {
			t.Errorf("%s at its level: %v", name, err)
		}
	}
}

// TestDeleteAndReset: any node takes them, and a retry finds the first answer.
func TestDeleteAndReset(t *testing.T) {
	g := adopted(t, 2)
	ctx, m, key := bound(t), g.nodes["n1"], g.key("n2")
	first := must(m.counters.Add(ctx, &counterpb.AddRequest{Key: key, Delta: 7}))(t)
	id := &commonpb.RequestId{Client: []byte("0123456789abcdef"), Sequence: 1}
	d := must(m.counters.Delete(ctx, &counterpb.DeleteRequest{Key: key, RequestId: id}))(t)
	if !d.Deleted || d.Previous != 7 || d.Version <= first.Version || d.Owner != "n2" || d.Epoch == 0 || d.Replay != nil {
		t.Errorf("%v", d)
	}
	if r := must(m.counters.Get(ctx, &counterpb.GetRequest{Key: key}))(t); r.Version != 0 {
		t.Errorf("%v", r)
	}
	again := must(m.counters.Add(ctx, &counterpb.AddRequest{Key: key, Delta: 5}))(t)
	if id.AgeNs = 1; again.Value != 5 || again.Version <= d.Version {
		t.Errorf("made again: %v", again)
	}
	if r := must(m.counters.Delete(ctx, &counterpb.DeleteRequest{Key: key, RequestId: id}))(t); r.Replay == nil || !r.Deleted || r.Previous != 7 || r.Version != d.Version || r.Current != 5 {
		t.Errorf("a retry: %v", r)
	}
	check := &limitpb.CheckRequest{Key: key, Limit: 5, PeriodNs: 3600e9, Cost: 5}
	must(m.limits.Check(ctx, check))(t)
	id = &commonpb.RequestId{Client: []byte("0123456789abcdef"), Sequence: 2}
	if r := must(m.limits.Reset(ctx, &limitpb.ResetRequest{Key: key, RequestId: id}))(t); !r.Existed || r.Spent != 5 || r.Owner != "n2" || r.Epoch == 0 {
		t.Errorf("%v", r)
	}
	if r := must(m.limits.Check(ctx, check))(t); !r.Allowed {
		t.Errorf("%v", r)
	}
	id.AgeNs = 1
	if r := must(m.limits.Reset(ctx, &limitpb.ResetRequest{Key: key, RequestId: id}))(t); r.Replay == nil || r.Spent != 5 {
		t.Errorf("a retry: %v", r)
	}
	if r := must(m.limits.Check(ctx, check))(t); r.Allowed {
		t.Errorf("a retry has reset it: %v", r)
	}
}

func TestInspectKey(t *testing.T) {
	g := adopted(t, 2)
	ctx, m, key := bound(t), g.nodes["n1"], g.key("n2")
	must(m.counters.Add(ctx, &counterpb.AddRequest{Key: key, Name: "b", Delta: 7, IdleTtlNs: 60e9}))(t)
	must(m.limits.Check(ctx, &limitpb.CheckRequest{Key: key, Name: "a", Limit: 5, PeriodNs: 3600e9, Cost: 2}))(t)
	held := must(m.locks.Acquire(ctx, &lockpb.AcquireRequest{Key: key, Name: "c", Holder: "h", TtlNs: 60e9}))(t)
	r := must(m.admin().InspectKey(ctx, &adminpb.InspectKeyRequest{Key: key}))(t)
	if r.Owner.GetOwner() != "n2" || r.Owner.GetOwnerAddr() != "n2:7400" || r.Owner.GetStandby() != "n1" || r.Epoch == 0 || r.Truncated || len(r.Objects) != 3 {
		t.Fatalf("%v", r)
	}
	a, b, c := r.Objects[0], r.Objects[1], r.Objects[2]
	if a.Kind != commonpb.Kind_KIND_LIMIT || a.Limit.GetSpent() != 2 || a.Limit.GetLimit() != 5 || a.Limit.GetPeriodNs() != 3600e9 || a.Limit.GetResetAfterNs() <= 0 {
		t.Errorf("%v", a)
	}
	if b.Kind != commonpb.Kind_KIND_COUNTER || b.Counter.GetValue() != 7 || b.Counter.GetVersion() == 0 || b.Counter.GetIdleTtlNs() != 60e9 || b.Split != nil {
		t.Errorf("%v", b)
	}
	if c.Kind != commonpb.Kind_KIND_LOCK || c.Lock.GetHolder().GetToken() != held.Token || c.Lock.GetWaiting() != 0 {
		t.Errorf("%v", c)
	}
	_, err := m.admin().InspectKey(ctx, &adminpb.InspectKeyRequest{})
	badField("key").check(in(t, "no key"), err)
}

// TestInspectOfMuch: an answer is one that fits between nodes, however much there is.
func TestInspectOfMuch(t *testing.T) {
	g := adopted(t, 2)
	ctx, key := bound(t), g.key("n2")
	for i := range owner.MaxOfKey {
		ref := owner.Ref{Key: key, Name: fmt.Sprint(strings.Repeat("x", owner.MaxName-4), i)}
		if _, _, err := g.nodes["n2"].store.Acquire(g.nodes["n2"].clock.Now(), ref, reqid.ID{}, owner.AcquireLock{Holder: strings.Repeat("h", hold.MaxName), TTL: int64(time.Hour), Metadata: make([]byte, hold.MaxMetadata)}); err != nil {
			t.Fatal(err)
		}
	}
	r := must(g.nodes["n1"].admin().InspectKey(ctx, &adminpb.InspectKeyRequest{Key: key}))(t)
	if size := r.SizeVT(); !r.Truncated || size < maxInspected || size > maxInspected+MaxRequest {
		t.Errorf("%d objects in %d bytes, %v", len(r.Objects), size, r.Truncated)
	}
}

// TestListObjects: each node tells its own, page by page.
func TestListObjects(t *testing.T) {
	g := adopted(t, 2)
	ctx, want := bound(t), map[string][]string{}
	for _, node := range []string{"n1", "n2"} {
		for _, key := range g.keys(node, 30, nil) {
			must(g.nodes["n1"].counters.Add(ctx, &counterpb.AddRequest{Key: key, Delta: 1}))(t)
			must(g.nodes["n1"].limits.Check(ctx, &limitpb.CheckRequest{Key: key, Limit: 5, PeriodNs: 3600e9}))(t)
			want[node] = append(want[node], key)
		}
		slices.Sort(want[node])
	}
	for node, keys := range want {
		var got []string
		req := &adminpb.ListObjectsRequest{Node: node, Kind: commonpb.Kind_KIND_COUNTER, KeyPrefix: "key-", PageSize: 7}
		for more := true; more; more = req.PageToken != "" {
			r := must(g.nodes["n1"].admin().ListObjects(ctx, req))(t)
			if r.Node != node || len(r.Objects) > 7 || r.Moved {
				t.Errorf("%v", r)
			}
			for _, o := range r.Objects {
				if got = append(got, o.Key); o.Kind != commonpb.Kind_KIND_COUNTER || o.Name != "counter" {
					t.Errorf("%v", o)
				}
			}
			req.PageToken = r.NextPageToken
		}
		if slices.Sort(got); !slices.Equal(got, keys) {
			t.Errorf("%s has %q, and tells %q", node, keys, got)
		}
	}
	if r := must(g.nodes["n2"].admin().ListObjects(ctx, &adminpb.ListObjectsRequest{Name: "limit"}))(t); r.Node != "n2" || len(r.Objects) != 30 {
		t.Errorf("those of the node that is asked: %v", r)
	}
}

// TestListOfAnother: what a page token cannot go on with is refused, and moves are told.
func TestListOfAnother(t *testing.T) {
	g := adopted(t, 3)
	ctx, m := bound(t), g.nodes["n1"]
	for _, key := range g.keys("n1", 3, nil) {
		must(m.counters.Add(ctx, &counterpb.AddRequest{Key: key, Delta: 1}))(t)
	}
	token := must(m.admin().ListObjects(ctx, &adminpb.ListObjectsRequest{PageSize: 1}))(t).NextPageToken
	for name, tc := range map[string]struct {
		req  *adminpb.ListObjectsRequest
		want refusal
	}{
		"garbage":        {&adminpb.ListObjectsRequest{PageToken: "x"}, badField("page_token")},
		"another node":   {&adminpb.ListObjectsRequest{PageToken: token, Node: "n2"}, badField("page_token")},
		"another prefix": {&adminpb.ListObjectsRequest{PageToken: token, KeyPrefix: "x"}, badField("page_token")},
		"too many":       {&adminpb.ListObjectsRequest{PageSize: maxPage + 1}, badField("page_size")},
		"no kind":        {&adminpb.ListObjectsRequest{Kind: 99}, badField("kind")},
	} {
		_, err := m.admin().ListObjects(ctx, tc.req)
		tc.want.hint = tc.req.PageToken != ""
		tc.want.check(in(t, name), err)
	}
	if _, err := m.admin().ListObjects(ctx, &adminpb.ListObjectsRequest{Node: "n9"}); status.Code(err) != codes.NotFound {
		t.Error(err)
	}
	g.without("n3")
	if r := must(m.admin().ListObjects(ctx, &adminpb.ListObjectsRequest{PageToken: token}))(t); !r.Moved {
		t.Errorf("rows have moved since: %v", r)
	}
}

// A list of all nodes, one after the other, tells that keys have moved from one that is still
// to be listed to one that was.
func TestListOfAllNodes(t *testing.T) {
	g := adopted(t, 3)
	ctx, m := bound(t), g.nodes["n1"]
	for _, key := range g.keys("n1", 3, nil) {
		must(m.counters.Add(ctx, &counterpb.AddRequest{Key: key, Delta: 1}))(t)
	}
	since := uint64(0)
	list := func(node string) (moved bool) {
		req := &adminpb.ListObjectsRequest{Node: node, PageSize: 1, SinceEpoch: since}
		for more := true; more; more = req.PageToken != "" {
			r := must(m.admin().ListObjects(ctx, req))(t)
			if moved = moved || r.Moved; since == 0 {
				since = r.Epoch
			}
			if r.Epoch != since {
				t.Errorf("since %d, not %d", r.Epoch, since)
			}
			req.PageToken = r.NextPageToken
		}
		return moved
	}
	if list("n1") || since != g.board.Table().Epoch {
		t.Error("nothing has moved yet")
	}
	g.without("n3") // its rows go to n1 and n2
	if !list("n2") {
		t.Error("rows have gone to n1 after it was listed, and nothing says so")
	}
	since = g.board.Table().Epoch
	if list("n2") {
		t.Error("nothing has moved since")
	}
	since++
	if !list("n2") {
		t.Error("the node does not know that epoch yet: rows may have moved")
	}
}

// A page tells of moves until its end: what the node has lost while it looked is missing.
func TestMovedWhileListed(t *testing.T) {
	g := adopted(t, 3)
	ctx, m := bound(t), g.nodes["n1"]
	must(m.counters.Add(ctx, &counterpb.AddRequest{Key: g.key("n1"), Delta: 1}))(t)
	move := func() { // under the lock of a shard
		g.board.Must(table.Command{Remove: &table.Remove{Members: []table.Holder{agreed.Holder("n3")}}})
		m.Set(g.board.Table())
	}
	r := new(adminpb.ListObjectsResponse)
	if err := m.server.listObjects(m.clock.Now(), &adminpb.ListObjectsRequest{PageSize: 1}, r); err != nil || r.Moved || r.NextPageToken == "" {
		t.Fatal(r, err)
	}
	m.owned.Store(&move)
	r = new(adminpb.ListObjectsResponse)
	if err := m.server.listObjects(m.clock.Now(), &adminpb.ListObjectsRequest{}, r); err != nil || !r.Moved {
		t.Errorf("rows have moved before the page ended: %v, %v", r, err)
	}
}

// A list, and a look at a key, that another node passes on take a while: they hold up none of
// the calls that come the same way.
func TestListsHoldUpNoCalls(t *testing.T) {
	g := adopted(t, 2)
	n1, n2 := g.nodes["n1"], g.nodes["n2"]
	quarter := func(key string) uint64 { return owner.Hash(key) >> 62 } // the shard, of four
	key := g.key("n2")
	other := g.keys("n2", 1, func(h uint64) bool { return h>>62 != quarter(key) })[0]
	must(n1.counters.Add(bound(t), &counterpb.AddRequest{Key: key, Delta: 1}))(t)
	for what, tc := range map[string]struct {
		hook *atomic.Pointer[func()] // called while the call is decided
		call func() error
	}{
		"a list": {&n2.owned, func() error {
			_, err := n1.admin().ListObjects(bound(t), &adminpb.ListObjectsRequest{Node: "n2"})
			return err
		}},
		"a key": {&n2.after, func() error {
			_, err := n1.admin().InspectKey(bound(t), &adminpb.InspectKeyRequest{Key: key})
			return err
		}},
	} {
		begun, end, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
		block := func() { close(begun); <-end }
		tc.hook.Store(&block)
		go func() { done <- tc.call() }()
		<-begun
		ctx, cancel := context.WithTimeout(bound(t), time.Second)
		if _, err := n1.counters.Add(ctx, &counterpb.AddRequest{Key: other, Delta: 1}); err != nil {
			t.Errorf("%s holds up another call: %v", what, err)
		}
		cancel()
		close(end)
		if err := <-done; err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// An object that is made whole while it is read is told as one that is split: the state may
// be that of before.
func TestInspectKeyWhileMerging(t *testing.T) {
	g := adopted(t, 2)
	key, m := g.key("n2"), g.nodes["n2"]
	must(m.counters.Add(bound(t), &counterpb.AddRequest{Key: key, Delta: 1}))(t)
	sp := table.Split{ID: g.board.Table().Epoch + 1, Kind: counterKind, Key: key, Name: counterKind, Parts: []table.Part{{Salt: 1, Weight: table.FullWeight / 2}, {Salt: 2, Weight: table.FullWeight / 2}}}
	g.apply(table.Command{BeginSplit: &table.BeginSplit{Split: sp}})
	inspect := func() *adminpb.ObjectState {
		r := new(adminpb.InspectKeyResponse)
		if _, err := m.server.inspectKey(m.clock.Now(), &adminpb.InspectKeyRequest{Key: key}, r); err != nil || len(r.Objects) != 1 {
			t.Fatal(r, err)
		}
		return r.Objects[0]
	}
	if o := inspect(); len(o.Split.GetParts()) != 2 {
		t.Errorf("%v", o)
	}
	merge := func() { // under the lock of the shard
		g.board.Must(table.Command{EndSplit: &table.EndSplit{ID: sp.ID, Home: agreed.Holder("n2"), Since: sp.ID}})
		m.Set(g.board.Table())
	}
	m.after.Store(&merge)
	if o := inspect(); len(o.Split.GetParts()) != 2 {
		t.Errorf("it is told as whole: %v", o)
	}
	if o := inspect(); o.Split != nil {
		t.Errorf("it is whole: %v", o)
	}
}

// What a caller can send as a prefix matches bytes, and nothing else.
func TestPrefixes(t *testing.T) {
	h := build(t, nil)
	ctx, c := context.Background(), adminpb.NewAdminServiceClient(h.conn)
	for _, key := range []string{"k", "k\x00", "é", "è", "\u07ff", "\U0010ffff"} {
		must(h.counters.Add(ctx, &counterpb.AddRequest{Key: key, Delta: 1}))(t)
	}
	for prefix, want := range map[string]int{"": 6, "k": 2, "k\x00": 1, "k\x00\x00": 0, "\x00": 0, "é": 1, "\U0010ffff": 1, strings.Repeat("k", owner.MaxKey+1): 0} {
		if r := must(c.ListObjects(ctx, &adminpb.ListObjectsRequest{KeyPrefix: prefix}))(t); len(r.Objects) != want {
			t.Errorf("%q: %v", prefix, r.Objects)
		}
	}
	for prefix, want := range map[string]int{"\xc3": 2, "\xff": 0, "k\xff": 0} { // no text of proto, and what gRPC makes of it
		r := new(adminpb.ListObjectsResponse)
		if err := h.server.listObjects(0, &adminpb.ListObjectsRequest{KeyPrefix: prefix}, r); err != nil || len(r.Objects) != want {
			t.Errorf("%q: %v, %v", prefix, r.Objects, err)
		}
	}
}

// The key of a request to reset is that of its kind's, through any node.
func TestResetObjectUnderAKey(t *testing.T) {
	g := adopted(t, 2)
	for _, m := range g.nodes {
		m.known.Store(true)
	}
	ctx, m, key := bound(t), g.nodes["n1"], g.key("n2")
	fill := func() {
		must(m.counters.Add(ctx, &counterpb.AddRequest{Key: key, Delta: 1}))(t)
		must(m.limits.Check(ctx, &limitpb.CheckRequest{Key: key, Limit: 5, PeriodNs: 3600e9}))(t)
	}
	for _, kind := range []commonpb.Kind{commonpb.Kind_KIND_LIMIT, commonpb.Kind_KIND_COUNTER} {
		req := &adminpb.ResetObjectRequest{Kind: kind, Key: key, IdempotencyKey: "monday"}
		fill()
		if r := must(m.admin().ResetObject(ctx, req))(t); !r.Existed || r.Replay != nil {
			t.Errorf("%v: %v", kind, r)
		}
		fill()
		if r := must(g.nodes["n2"].admin().ResetObject(ctx, req))(t); !r.Existed || r.Replay == nil {
			t.Errorf("%v: a retry: %v", kind, r)
		}
		req.RequestId = &commonpb.RequestId{Client: []byte("0123456789abcdef"), Sequence: 1}
		_, err := m.admin().ResetObject(ctx, req)
		want := badField("idempotency_key")
		want.hint = true
		want.check(in(t, "both"), err)
	}
	if v := must(m.counters.Get(ctx, &counterpb.GetRequest{Key: key}))(t); v.Value != 1 {
		t.Errorf("the retry has reset it: %v", v)
	}
}

// Each request that may have a request id may have an idempotency key.
func TestKeysBesideIDs(t *testing.T) {
	n := 0
	protoregistry.GlobalFiles.RangeFiles(func(f protoreflect.FileDescriptor) bool {
		if strings.HasPrefix(string(f.Package()), "keystead.peer.") {
			return true
		}
		for i := range f.Messages().Len() {
			d := f.Messages().Get(i)
			if !strings.HasSuffix(string(d.Name()), "Request") || d.Fields().ByName("request_id") == nil {
				continue
			}
			if n++; d.Fields().ByName("idempotency_key") == nil {
				t.Errorf("%s has a request_id, and no idempotency_key", d.FullName())
			}
		}
		return true
	})
	if n < 9 {
		t.Errorf("only %d requests have ids", n)
	}
}

// A node says for how long what was lost of a key may still be held.
func TestInspectKeyInGrace(t *testing.T) {
	g := adopted(t, 2)
	ctx, key := bound(t), g.key("n2")
	inspect := func() *adminpb.InspectKeyResponse {
		return must(g.nodes["n1"].admin().InspectKey(ctx, &adminpb.InspectKeyRequest{Key: key}))(t)
	}
	if r := inspect(); r.RecoveringNs != 0 {
		t.Errorf("%v", r)
	}
	g.nodes["n2"].lost.Store(g.since(key) + 5)
	if r := inspect(); r.RecoveringNs <= int64(23*time.Hour) || r.RecoveringNs > int64(24*time.Hour) || r.LostEpoch == 0 {
		t.Errorf("%v", r)
	}
}

// All who wait for a lock count, whether or not their requests have ids.
func TestWaitingOfInspectKey(t *testing.T) {
	g := adopted(t, 2)
	key, m := g.key("n2"), g.nodes["n2"]
	for i := range 5 {
		op := owner.AcquireLock{Holder: fmt.Sprint(i), TTL: int64(time.Hour), Wait: int64(time.Hour)}
		if _, _, err := m.store.Acquire(m.clock.Now(), owner.Ref{Key: key, Name: "lock"}, reqid.ID{}, op); err != nil {
			t.Fatal(err)
		}
	}
	if r := must(g.nodes["n1"].admin().InspectKey(bound(t), &adminpb.InspectKeyRequest{Key: key}))(t); r.Objects[0].Lock.GetWaiting() != 4 || r.Objects[0].Lock.GetHolder().GetId() != "0" {
		t.Errorf("%v", r)
	}
}

func TestResetObject(t *testing.T) {
	g := adopted(t, 2)
	ctx, m, key := bound(t), g.nodes["n1"], g.key("n2")
	reset := func(kind commonpb.Kind) (*adminpb.ResetObjectResponse, error) {
		return m.admin().ResetObject(ctx, &adminpb.ResetObjectRequest{Kind: kind, Key: key})
	}
	for _, existed := range []bool{false, true} {
		for _, kind := range []commonpb.Kind{commonpb.Kind_KIND_LIMIT, commonpb.Kind_KIND_COUNTER} {
			if r := must(reset(kind))(t); r.Existed != existed {
				t.Errorf("%v: %v", kind, r)
			}
		}
		must(m.counters.Add(ctx, &counterpb.AddRequest{Key: key, Delta: 1}))(t)
		must(m.limits.Check(ctx, &limitpb.CheckRequest{Key: key, Limit: 5, PeriodNs: 3600e9}))(t)
	}
	for _, kind := range []commonpb.Kind{0, commonpb.Kind_KIND_LOCK, 99} {
		_, err := reset(kind)
		want := badField("kind")
		want.hint = true
		want.check(in(t, kind.String()), err)
	}
}

// A node that runs alone answers for itself.
func TestObjectsOfALoneNode(t *testing.T) {
	h := build(t, nil)
	ctx, c := context.Background(), adminpb.NewAdminServiceClient(h.conn)
	must(h.counters.Add(ctx, &counterpb.AddRequest{Key: "k", Delta: 1}))(t)
	if r := must(c.InspectKey(ctx, &adminpb.InspectKeyRequest{Key: "k"}))(t); len(r.Objects) != 1 || r.Owner == nil {
		t.Errorf("%v", r)
	}
	if r := must(c.ListObjects(ctx, &adminpb.ListObjectsRequest{}))(t); len(r.Objects) != 1 || r.NextPageToken != "" || r.Moved {
		t.Errorf("%v", r)
	}
	if _, err := c.ListObjects(ctx, &adminpb.ListObjectsRequest{Node: "n9"}); status.Code(err) != codes.NotFound {
		t.Error(err)
	}
}
