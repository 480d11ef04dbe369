package rpc

import (
	"context"
	"math"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/keystead/keystead/handoff/record"
	"github.com/keystead/keystead/hotkey/divide"
	"github.com/keystead/keystead/hotkey/home"
	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/internal/forward"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/counter"
	"github.com/keystead/keystead/owner/limit"
	"github.com/keystead/keystead/owner/reqid"
	adminpb "github.com/keystead/keystead/proto/keystead/admin/v1"
	clusterpb "github.com/keystead/keystead/proto/keystead/cluster/v1"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
	"github.com/keystead/keystead/ring"
	"github.com/keystead/keystead/ring/epoch/table"
)

// orders is a Splits that writes down what it is told.
type orders struct {
	whole  []uint64
	splits []home.Order
	merges []home.Order
	t      *table.Table
	sp     *table.Split
	err    error
}

func (o *orders) MakeWhole(id uint64, _ string) { o.whole = append(o.whole, id) }

func (o *orders) Split(_ context.Context, so home.Order) (*table.Table, *table.Split, error) {
	o.splits = append(o.splits, so)
	return o.t, o.sp, o.err
}

func (o *orders) Merge(_ context.Context, so home.Order) error {
	o.merges = append(o.merges, so)
	return o.err
}

func checkOf(key string, a limitpb.Algorithm) *forward.Call {
	return limitCheck.call(&limitpb.CheckRequest{Key: key, Algorithm: a}, owner.Hash(key))
}

func addOf(req *counterpb.AddRequest) *forward.Call { return counterAdd.call(req, owner.Hash(req.Key)) }

func getOf(key string) *forward.Call {
	return counterGet.call(&counterpb.GetRequest{Key: key}, owner.Hash(key))
}

func setOf(key string) *forward.Call {
	return counterCompareAndSet.call(&counterpb.CompareAndSetRequest{Key: key}, owner.Hash(key))
}

func plantOf(req *peerv1.PlantRequest) *forward.Call {
	c := partPlant.Call(req)
	return &c
}

// TestDivisible tells which calls a part can do, and what each call is about.
func TestDivisible(t *testing.T) {
	bound := int64(3)
	for name, tc := range map[string]struct {
		call *forward.Call
		kind string
		want bool
	}{
		"a check":            {checkOf("k", 0), limitKind, true},
		"a token bucket":     {checkOf("k", limitpb.Algorithm_ALGORITHM_TOKEN_BUCKET), limitKind, true},
		"a fixed window":     {checkOf("k", limitpb.Algorithm_ALGORITHM_FIXED_WINDOW), limitKind, false},
		"a sliding window":   {checkOf("k", limitpb.Algorithm_ALGORITHM_SLIDING_WINDOW), limitKind, false},
		"an unknown one":     {checkOf("k", 99), limitKind, false},
		"an add":             {addOf(&counterpb.AddRequest{Key: "k"}), counterKind, true},
		"with a least value": {addOf(&counterpb.AddRequest{Key: "k", Min: &bound}), counterKind, false},
		"with a most value":  {addOf(&counterpb.AddRequest{Key: "k", Max: &bound}), counterKind, false},
		"with an idle TTL":   {addOf(&counterpb.AddRequest{Key: "k", IdleTtlNs: 1}), counterKind, false},
		"a get":              {getOf("k"), counterKind, true},
		"a set if":           {setOf("k"), counterKind, false},
		"a reset":            {counterReset.call(&counterpb.ResetRequest{Key: "k"}, owner.Hash("k")), counterKind, false},
		"an acquire":         {lockAcquire.call(&lockpb.AcquireRequest{Key: "k"}, owner.Hash("k")), "", false},
		"a planting":         {plantOf(&peerv1.PlantRequest{}), "", false},
	} {
		if got, kind := tc.call.Divisible, tc.call.Kind; got != tc.want || kind != tc.kind || kind != "" && tc.call.Key != "k" {
			t.Errorf("%s: %v, of a %q with the key %q", name, got, kind, tc.call.Key)
		}
	}
}

// TestSplitOf: a call finds the split of its own object, under the default name as well,
// and of no other kind.
func TestSplitOf(t *testing.T) {
	b := newBoard(t, "n1", "n2")
	if forward.SplitOf(b.Table(), addOf(&counterpb.AddRequest{Key: "k"})) != nil {
		t.Error("nothing is split")
	}
	id := b.Divide(counterKind, "k", "n1", "n2")
	for name, tc := range map[string]struct {
		call *forward.Call
		want bool
	}{
		"the default name": {addOf(&counterpb.AddRequest{Key: "k"}), true},
		"its name":         {addOf(&counterpb.AddRequest{Key: "k", Name: counterKind}), true},
		"another name":     {addOf(&counterpb.AddRequest{Key: "k", Name: "n"}), false},
		"another key":      {addOf(&counterpb.AddRequest{Key: "l"}), false},
		"another kind":     {checkOf("k", 0), false},
		"a lock":           {lockAcquire.call(&lockpb.AcquireRequest{Key: "k"}, owner.Hash("k")), false},
	} {
		if sp := forward.SplitOf(b.Table(), tc.call); (sp != nil) != tc.want || sp != nil && sp.ID != id {
			t.Errorf("%s: %+v", name, sp)
		}
	}
}

// TestChooseFor: forwarding is given the part of a request id, and an id that is none is
// the caller's mistake; what no part can do has the object made whole.
func TestChooseFor(t *testing.T) {
	b := newBoard(t, "n1", "n2")
	o := &orders{}
	s := &Server{cfg: Config{Cluster: b, Splits: o}}
	sp := b.Reach(b.Divide(counterKind, "k", "n1", "n2", "n1", "n2", "n2"), table.Open)
	rid := &commonpb.RequestId{Client: []byte("0123456789abcdef"), Sequence: 3}
	r, _ := requestID(rid)
	cfg := s.routing()
	if part, err := cfg.Choose(b.Table(), sp, rid); err != nil || part != ring.PartOf(r.Client.Hi, r.Client.Lo, 3, 5) {
		t.Errorf("with an id: %d, %v", part, err)
	}
	if part, err := cfg.Choose(b.Table(), sp, nil); err != nil || part != 0 && part != 2 {
		t.Errorf("without an id: %d, %v", part, err)
	}
	if _, err := cfg.Choose(b.Table(), sp, &commonpb.RequestId{Client: []byte("short"), Sequence: 1}); err == nil || wire(err).Reason != commonpb.Reason_REASON_INVALID {
		t.Errorf("an id that is none: %v", err)
	}
	if cfg.MakeWhole(sp.ID); !slices.Equal(o.whole, []uint64{sp.ID}) {
		t.Errorf("made whole: %v", o.whole)
	}
	s.cfg.Splits = nil
	cfg.MakeWhole(sp.ID) // of a node that splits nothing
}

// TestChoose: an operation with a request id goes to the part of the id, and one without
// to a part of this node, if it has one, or else to where more is left.
func TestChoose(t *testing.T) {
	b := newBoard(t, "n1", "n2", "n3")
	s := &Server{cfg: Config{Cluster: b}}
	id := b.Divide(counterKind, "k", "n1", "n2", "n1", "n3")
	sp := b.Reach(id, table.Open)
	for seq := range uint64(200) {
		rid := &reqid.ID{Client: reqid.Client{Hi: 7, Lo: seq % 5}, Sequence: seq + 1}
		want := ring.PartOf(7, seq%5, seq+1, 4)
		if i, here := s.choose(b.Table(), sp, rid); i != want || here != (i == 0 || i == 2) {
			t.Fatalf("%+v: part %d, here %v; it belongs to %d", rid, i, here, want)
		}
	}
	seen := map[int]int{}
	for range 200 {
		for _, none := range []*reqid.ID{nil, {}} {
			i, here := s.choose(b.Table(), sp, none)
			if seen[i]++; !here {
				t.Fatalf("part %d is not here", i)
			}
		}
	}
	if len(seen) != 2 || seen[0] == 0 || seen[2] == 0 {
		t.Errorf("of 0 and 2 it chooses %v", seen)
	}
	other := b.Reach(b.Divide(counterKind, "l", "n2", "n3"), table.Open)
	s.parts.of(other.ID, 1).remaining.Store(9)
	for range 50 {
		if i, here := s.choose(b.Table(), other, nil); i != 1 || here {
			t.Fatalf("part %d, here %v; in 1 more is left", i, here)
		}
	}
	three := b.Reach(b.Divide(counterKind, "m", "n2", "n3", "n2"), table.Open)
	seen = map[int]int{}
	for range 200 {
		i, here := s.choose(b.Table(), three, nil)
		if seen[i]++; here {
			t.Fatalf("part %d is not here", i)
		}
	}
	if len(seen) != 3 {
		t.Errorf("of three that are the same it chooses %v", seen)
	}
}

// TestPlaceOfOperation tells on what an operation acts here, and which have to act elsewhere, or to
// wait.
func TestPlaceOfOperation(t *testing.T) {
	b := newBoard(t, "n1", "n2")
	o := &orders{}
	s := &Server{cfg: Config{Cluster: b, Splits: o}}
	whole := owner.Ref{Key: "k", Name: counterKind}
	rid := func(part int) *reqid.ID {
		for seq := uint64(1); ; seq++ {
			if ring.PartOf(1, 1, seq, 2) == part {
				return &reqid.ID{Client: reqid.Client{Hi: 1, Lo: 1}, Sequence: seq}
			}
		}
	}
	at := func(what string, part *peerv1.Part, id *reqid.ID, want owner.Ref, fails bool) {
		t.Helper()
		r, h, err := s.place(counterKind, whole, part, id)
		if fails != (err == forward.ErrNotOwner) || !fails && (err != nil || r != want || (h.split != nil) != (r != whole)) {
			t.Errorf("%s: %+v, %+v, %v", what, r, h, err)
		}
	}
	at("not split", nil, rid(0), whole, false)
	at("a part of what is not split", &peerv1.Part{Split: 1}, nil, whole, true)
	id := b.Divide(counterKind, "k", "n1", "n2")
	at("opening", nil, nil, whole, true)
	sp := b.Reach(id, table.Open)
	mine := owner.Ref{Key: sp.PartKey(0), Name: counterKind, Role: owner.Share, Hash: sp.PartHash(0)}
	theirs := owner.Ref{Key: sp.PartKey(1), Name: counterKind, Role: owner.Share, Hash: sp.PartHash(1)}
	at("open, without an id", nil, &reqid.ID{}, mine, false)
	at("open, an id of this node's part", nil, rid(0), mine, false)
	at("open, an id of another", nil, rid(1), mine, true)
	at("the part that a sender names", &peerv1.Part{Split: id, Index: 1}, rid(0), theirs, false) // the store says whose it is
	at("no such part", &peerv1.Part{Split: id, Index: 2}, nil, whole, true)
	at("a part that is no number of one", &peerv1.Part{Split: id, Index: math.MaxUint32}, nil, whole, true)
	if err := s.divided(share{sp, 0}, owner.ErrWhole); err != owner.ErrWhole || !slices.Equal(o.whole, []uint64{id}) {
		t.Errorf("%v, %v", err, o.whole)
	}
	if err := s.divided(share{sp, 0}, forward.ErrNotOwner); err != forward.ErrNotOwner || len(o.whole) != 1 {
		t.Errorf("%v, %v", err, o.whole)
	}
	if err := s.divided(share{}, owner.ErrWhole); err != owner.ErrWhole || len(o.whole) != 1 {
		t.Errorf("%v, %v", err, o.whole)
	}
	b.Reach(id, table.Closing)
	at("closing", nil, rid(0), whole, true)
}

// TestOrder: what may be split is asked for by its address, and what may not is told why.
func TestOrder(t *testing.T) {
	for name, tc := range map[string]struct {
		kind, key, name string
		field           string // "" = it is taken
		want            home.Order
	}{
		"a limit":                {"limit", "k", "n", "", home.Order{Kind: owner.KindLimit, Key: "k", Name: "n", Manual: true}},
		"the default name":       {"counter", "k", "", "", home.Order{Kind: owner.KindCounter, Key: "k", Name: "counter", Manual: true}},
		"the longest":            {"limit", strings.Repeat("k", owner.MaxKey), strings.Repeat("n", owner.MaxName), "", home.Order{Kind: owner.KindLimit, Key: strings.Repeat("k", owner.MaxKey), Name: strings.Repeat("n", owner.MaxName), Manual: true}},
		"a lock":                 {"lock", "k", "", "kind", home.Order{}},
		"no kind":                {"", "k", "", "kind", home.Order{}},
		"no key":                 {"limit", "", "", "key", home.Order{}},
		"a long key":             {"limit", strings.Repeat("k", owner.MaxKey+1), "", "key", home.Order{}},
		"a part":                 {"limit", table.PartKey(1, 1, 1), "", "key", home.Order{}},
		"a key that is no text":  {"limit", "k\xff", "", "key", home.Order{}},
		"a long name":            {"limit", "k", strings.Repeat("n", owner.MaxName+1), "name", home.Order{}},
		"a name that is no text": {"limit", "k", "\xff", "name", home.Order{}},
	} {
		got, err := order(wireKind(tc.kind), tc.key, tc.name)
		if got != tc.want || (err == nil) != (tc.field == "") {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
		if err != nil {
			if w := wire(err); w.Reason != commonpb.Reason_REASON_INVALID || w.Field != tc.field {
				t.Errorf("%s: %v", name, w)
			}
		}
	}
}

// TestSplitService: the service hands on what it was asked for, and refuses before that
// what nobody can do.
func TestSplitService(t *testing.T) {
	b := newBoard(t, "n1", "n2")
	o := &orders{}
	s := bare(newHouse(t, nil))
	s.cfg.Cluster, s.cfg.Splits = b, o
	c := &admin{s: s, c: b}
	ctx := t.Context()
	for _, parts := range []uint32{1, table.MaxParts + 1, math.MaxUint32} {
		_, err := c.SplitObject(ctx, &adminpb.SplitObjectRequest{Kind: commonpb.Kind_KIND_LIMIT, Key: "k", Parts: parts})
		if status.Code(err) != codes.InvalidArgument || len(o.splits) != 0 {
			t.Errorf("%d parts: %v", parts, err)
		}
	}
	if _, err := c.SplitObject(ctx, &adminpb.SplitObjectRequest{Kind: commonpb.Kind_KIND_LOCK, Key: "k"}); status.Code(err) != codes.InvalidArgument || len(o.splits) != 0 {
		t.Errorf("a lock: %v", err)
	}
	if _, err := c.MergeObject(ctx, &adminpb.MergeObjectRequest{Kind: commonpb.Kind_KIND_LIMIT}); status.Code(err) != codes.InvalidArgument || len(o.merges) != 0 {
		t.Errorf("no key: %v", err)
	}
	id := b.Divide(limitKind, "k", "n2", "n1")
	o.t, o.sp = b.Table(), b.Reach(id, table.Opening)
	r, err := c.SplitObject(ctx, &adminpb.SplitObjectRequest{Kind: commonpb.Kind_KIND_LIMIT, Key: "k", Parts: table.MaxParts})
	want := home.Order{Kind: owner.KindLimit, Key: "k", Name: "limit", Parts: table.MaxParts, Manual: true, Reason: "by hand"}
	if err != nil || len(o.splits) != 1 || o.splits[0] != want {
		t.Fatalf("%+v, %v", o.splits, err)
	}
	if sp := r.Split; sp.Id != id || sp.Phase != clusterpb.SplitPhase_SPLIT_PHASE_OPENING || len(sp.Parts) != 2 || sp.Parts[0].Owner != "n2" || sp.Parts[1].Owner != "n1" || sp.Parts[0].Share != 0.5 {
		t.Errorf("%v", sp)
	}
	want.Parts = 0
	if _, err := c.MergeObject(ctx, &adminpb.MergeObjectRequest{Kind: commonpb.Kind_KIND_LIMIT, Key: "k"}); err != nil || len(o.merges) != 1 || o.merges[0] != want {
		t.Errorf("%+v, %v", o.merges, err)
	}
	o.err = &failure.Error{Reason: failure.Unavailable, Message: "no"}
	if _, err := c.SplitObject(ctx, &adminpb.SplitObjectRequest{Kind: commonpb.Kind_KIND_LIMIT, Key: "k"}); status.Code(err) != codes.Unavailable {
		t.Errorf("an error: %v", err)
	}
	if _, err := c.MergeObject(ctx, &adminpb.MergeObjectRequest{Kind: commonpb.Kind_KIND_LIMIT, Key: "k"}); status.Code(err) != codes.Unavailable {
		t.Errorf("an error: %v", err)
	}
	s.cfg.Splits = nil
	if _, err := c.SplitObject(ctx, &adminpb.SplitObjectRequest{Kind: commonpb.Kind_KIND_LIMIT, Key: "k"}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a node that is alone: %v", err)
	}
	if _, err := c.MergeObject(ctx, &adminpb.MergeObjectRequest{Kind: commonpb.Kind_KIND_LIMIT, Key: "k"}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a node that is alone: %v", err)
	}
}

// splitting is a rule by which objects are split as a table says.
type splitting struct {
	*rule
	b *board
}

func (s *splitting) Split(hash uint64) bool { return s.b.Table().MaySplit(hash) }

func (s *splitting) May(r owner.Ref, k owner.Kind) (uint32, error) {
	return divide.May(s.b.Table(), r, k)
}

// parting is a server that owns everything, and can be asked about parts.
func parting(t *testing.T) (*Server, *board) {
	b := newBoard(t, "n1")
	h := newHouse(t, func(c *owner.Config) { c.Rule = &splitting{&rule{}, b} })
	s := bare(h)
	s.cfg.Cluster = b
	return s, b
}

// TestPlantAndRead: a part takes in what is its own while the split opens, and gives it
// back when it closes.
func TestPlantAndRead(t *testing.T) {
	s, b := parting(t)
	id := b.Divide(counterKind, "k", "n1", "n1")
	sp := b.Reach(id, table.Opening)
	part := &peerv1.Part{Split: id, Index: 1}
	now := s.cfg.Clock.Now()
	of := func(change func(r *owner.Record)) *peerv1.PlantRequest {
		r := &owner.Record{Key: []byte(sp.PartKey(1)), Name: []byte(counterKind), At: now, Whole: true, IDs: &reqid.Kept{Evicted: math.MinInt64}}
		r.SetCounter(counter.State{Value: 7, Version: 1, At: now})
		change(r)
		return &peerv1.PlantRequest{Home: "n1", HomeIncarnation: 1, Records: [][]byte{record.Append(nil, r, now)}}
	}
	for name, req := range map[string]*peerv1.PlantRequest{
		"nothing":      {Home: "n1", HomeIncarnation: 1},
		"garbage":      {Home: "n1", HomeIncarnation: 1, Records: [][]byte{[]byte("garbage")}},
		"too many":     {Home: "n1", HomeIncarnation: 1, Records: make([][]byte, maxPartRecords+1)},
		"another key":  of(func(r *owner.Record) { r.Key = []byte(sp.PartKey(0)) }),
		"another name": of(func(r *owner.Record) { r.Name = []byte("n") }),
		"another kind": of(func(r *owner.Record) { r.SetLimit(limit.State{}, nil) }),
		"no whole":     of(func(r *owner.Record) { r.Whole, r.IDs = false, nil }),
	} {
		if _, err := s.plant(part, req); err == nil || wire(err).Reason != commonpb.Reason_REASON_INVALID {
			t.Errorf("%s: %v", name, err)
		}
	}
	good := of(func(*owner.Record) {})
	if _, err := s.plant(nil, good); err == nil || wire(err).Reason != commonpb.Reason_REASON_INVALID {
		t.Errorf("no part: %v", err)
	}
	if _, err := s.plant(&peerv1.Part{Split: id, Index: 2}, good); err != forward.ErrNotOwner {
		t.Errorf("no such part: %v", err)
	}
	for _, of := range []*peerv1.PlantRequest{{Home: "n2", HomeIncarnation: 1}, {Home: "n1", HomeIncarnation: 2}, {}} {
		of.Records = good.Records
		if _, err := s.plant(part, of); err != forward.ErrNotOwner {
			t.Errorf("of another home: %v", err)
		}
	}
	for range 2 { // twice is as once
		if _, err := s.plant(part, good); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.readPart(part, &peerv1.ReadPartRequest{}); err == nil || wire(err).Reason != commonpb.Reason_REASON_NOT_OWNER {
		t.Errorf("a part that is not served is looked at: %v", err)
	}
	b.Reach(id, table.Open)
	if _, err := s.plant(part, good); err == nil || wire(err).Reason != commonpb.Reason_REASON_NOT_OWNER {
		t.Errorf("planted when it is served: %v", err)
	}
	r, err := s.readPart(part, &peerv1.ReadPartRequest{Elsewhere: 30})
	if err != nil || r.Value != 7 || r.Weighed != sp.Weighed || len(r.Records) != 0 {
		t.Errorf("%v, %v", r, err)
	}
	if got := s.remainder(share{sp, 1}); got != 30 {
		t.Errorf("beside the part is %d", got)
	}
	open, _ := b.Table().SplitOf(id)
	if got := s.remainder(share{open, 0}); got != 5 {
		t.Errorf("beside a part that was not told is %d, not the base", got)
	}
	if _, err := s.readPart(part, &peerv1.ReadPartRequest{All: true}); err == nil || wire(err).Reason != commonpb.Reason_REASON_NOT_OWNER {
		t.Errorf("a part that is served is reaped: %v", err)
	}
	b.Reach(id, table.Closing)
	r, err = s.readPart(part, &peerv1.ReadPartRequest{All: true})
	if err != nil || len(r.Records) != 1 || r.Value != 7 {
		t.Fatalf("%v, %v", r, err)
	}
	all, err := partRecords(r.Records, s.cfg.Clock.Now())
	if err != nil || all[0].Counter().Value != 7 || string(all[0].Key) != sp.PartKey(1) {
		t.Errorf("%+v, %v", all, err)
	}
}

// TestReadPartOfMany: a part with more ids than fit a message gives the latest ones, and
// its value is that of all of it.
func TestReadPartOfMany(t *testing.T) {
	s, b := parting(t)
	id := b.Divide(counterKind, "k", "n1", "n1")
	sp := b.Reach(id, table.Open)
	ref := share{sp, 0}.ref(owner.Share)
	const more = divide.MaxIDs + 1000
	for i := range uint64(more) {
		if _, err := s.cfg.Store.Add(s.cfg.Clock.Now(), ref, reqid.ID{Client: reqid.Client{Hi: i % 10}, Sequence: 1 + i/10}, counter.AddOp{Delta: 1}); err != nil {
			t.Fatal(err)
		}
	}
	part := &peerv1.Part{Split: id}
	if r, err := s.readPart(part, &peerv1.ReadPartRequest{}); err != nil || r.Value != more {
		t.Errorf("%v, %v", r, err)
	}
	b.Reach(id, table.Closing)
	r, err := s.readPart(part, &peerv1.ReadPartRequest{All: true})
	if err != nil || r.Value != more {
		t.Fatalf("%d, %v", r.GetValue(), err)
	}
	now := s.cfg.Clock.Now()
	all, err := partRecords(r.Records, now)
	if err != nil || all[0].Counter().Value != more {
		t.Fatalf("%v", err)
	}
	ids := 0
	for _, x := range all {
		if ids += len(x.IDs.Ops) - x.IDs.Keyed(); x.Validate(now) != nil || x.IDs.Evicted == math.MinInt64 {
			t.Errorf("%v; evicted %d", x.Validate(now), x.IDs.Evicted)
		}
	}
	if ids > divide.MaxIDs || ids == 0 {
		t.Errorf("%d ids", ids)
	}
}

// TestPartStates: what is counted of a part is what it was asked and refused, once for
// each operation; what is known of parts of splits that are over is forgotten.
func TestPartStates(t *testing.T) {
	b := newBoard(t, "n1", "n2")
	s := &Server{cfg: Config{Cluster: b}}
	sp := b.Reach(b.Divide(limitKind, "k", "n1", "n2"), table.Open)
	h := share{sp, 1}
	answer := func(allowed bool, left uint64, replayed bool) *owner.CheckAnswer {
		return &owner.CheckAnswer{Result: limit.Result{Allowed: allowed, Remaining: left}, Meta: owner.Meta{Replayed: replayed}}
	}
	s.countCheck(h, &limit.Op{Cost: 3}, answer(true, 7, false))
	s.countCheck(h, &limit.Op{Cost: 8}, answer(false, 7, false))
	s.countCheck(h, &limit.Op{Cost: 8}, answer(false, 6, true))
	s.countCheck(h, &limit.Op{Cost: 5, Peek: true}, answer(false, 6, false))
	s.countCheck(h, &limit.Op{Refund: 5}, answer(true, 11, false))
	x := s.parts.of(sp.ID, 1)
	if o, a, r := x.operations.Load(), x.asked.Load(), x.refused.Load(); o != 5 || a != 11 || r != 8 || s.parts.left(sp.ID, 1) != 11 {
		t.Errorf("%d operations, %d asked for, %d refused, %d left", o, a, r, s.parts.left(sp.ID, 1))
	}
	for i := range maxPartStates - 2 {
		s.parts.of(1, i)
	}
	s.parts.prune(b.Table())
	if n := s.parts.n.Load(); n != maxPartStates-1 {
		t.Errorf("%d are known before there are too many", n)
	}
	s.parts.of(1, maxPartStates)
	s.parts.prune(b.Table())
	if n := s.parts.n.Load(); n != 1 || s.parts.left(sp.ID, 1) != 11 {
		t.Errorf("%d are known, and %d are left in the one that is in the table", n, s.parts.left(sp.ID, 1))
	}
}
