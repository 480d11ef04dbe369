package rpc

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
	"github.com/keystead/keystead/ring"
	"slices"
	"time"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/internal/forward"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/limit"
	adminpb "github.com/keystead/keystead/proto/keystead/admin/v1"
	clusterpb "github.com/keystead/keystead/proto/keystead/cluster/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
	"github.com/keystead/keystead/ring/epoch/table"
)

// maxInspected bounds the states of the objects of one key that one answer has, in bytes: it
// fits a message between nodes.
const maxInspected = MaxBatch / 2

// ofKey returns an operation of operators on all objects of a key, which changes nothing.
func ofKey[Q, A any, PQ interface {
	*Q
	forward.Message
	GetKey() string
}, PA response[A]](number uint32, name string, do func(*Server, int64, *Q, *A) (owner.Meta, error)) *operation {
	x := &operation{reads: true, verb: canRead, cost: costsMany, durable: asTold, level: owner.DeleteLevel, yes: "answered", no: "none"}
	x.Operation = forward.Operation{
		Number: number, Name: name, Beside: true, // many cells are looked at
		Request:  func() forward.Message { return PQ(new(Q)) },
		Response: func() forward.Message { return PA(new(A)) },
		Call: func(m forward.Message) forward.Call {
			key := any(m).(PQ).GetKey()
			return forward.Call{Op: &x.Operation, Request: m, Key: key, Hash: owner.Hash(key), Harmless: true}
		},
	}
	x.decide = func(ctx context.Context, s *Server, c *forward.Call, later *unconfirmed) (forward.Message, error) {
		a := new(A)
		meta, err := do(s, s.cfg.Clock.Now(), any(c.Request).(*Q), a)
		if err = s.one(ctx, later, s.row(x), verdict{meta, true}, err); err != nil {
			return nil, err
		}
		return PA(a), nil
	}
	return x
}

// ofNode returns an operation of operators on what a node has, which changes nothing.
func ofNode[Q, A any, PQ interface {
	*Q
	forward.Message
}, PA response[A]](number uint32, name string, do func(*Server, int64, *Q, *A) error) *operation {
	x := &operation{reads: true, verb: canRead, cost: costsMany, durable: asTold, level: owner.DeleteLevel, yes: "answered", no: "none"}
	x.Operation = forward.Operation{
		Number: number, Name: name, Beside: true, // many cells are looked at
		Request:  func() forward.Message { return PQ(new(Q)) },
		Response: func() forward.Message { return PA(new(A)) },
		Call: func(m forward.Message) forward.Call {
			return forward.Call{Op: &x.Operation, Request: m, Harmless: true}
		},
	}
	x.decide = func(_ context.Context, s *Server, c *forward.Call, _ *unconfirmed) (forward.Message, error) {
		a := new(A)
		err := do(s, s.cfg.Clock.Now(), any(c.Request).(*Q), a)
		var t tally
		row := s.row(x)
		if t.decided(true, false); err != nil {
			t = tally{errored: 1}
			row.failed[wire(err).Reason].Inc()
		}
		row.add(t)
		if err != nil {
			return nil, err
		}
		return PA(a), nil
	}
	return x
}

// InspectKey implements the AdminService.
func (a *admin) InspectKey(ctx context.Context, req *adminpb.InspectKeyRequest) (*adminpb.InspectKeyResponse, error) {
	m, err := a.ask(ctx, keyInspect.Call(req), "")
	if err != nil {
		return nil, err
	}
	return m.(*adminpb.InspectKeyResponse), nil
}

// ListObjects implements the AdminService.
func (a *admin) ListObjects(ctx context.Context, req *adminpb.ListObjectsRequest) (*adminpb.ListObjectsResponse, error) {
	m, err := a.ask(ctx, objectsList.Call(req), cmp.Or(req.Node, a.s.cfg.Node))
	if err != nil {
		return nil, err
	}
	return m.(*adminpb.ListObjectsResponse), nil
}

// ask has the owner of a key answer a call, or, if one is named, a node.
func (a *admin) ask(ctx context.Context, c forward.Call, node string) (forward.Message, error) {
	s := a.s
	if err := s.levelOf(s.sent[c.Op.Number]); err != nil {
		return nil, s.refuse(err)
	}
	switch {
	case s.cfg.Cluster == nil && node != s.cfg.Node && node != "":
		return nil, s.refuse(unknownNode(node))
	case s.cfg.Cluster == nil || node == s.cfg.Node && node != "":
		m, err := s.decide(ctx, &c, nil)
		return m, Status(err)
	case node == "":
		return s.forward(ctx, &c, time.Now())
	}
	to, ok := s.cfg.Cluster.Table().Member(node)
	if !ok {
		return nil, s.refuse(unknownNode(node))
	}
	m, err := s.passTo(ctx, &c, to)
	return m, Status(err)
}

func unknownNode(node string) error {
	return &failure.Error{Reason: failure.UnknownNode, Field: "node", Message: fmt.Sprintf("%q is no member", node),
		Hint: "see `keystead members`"}
}

// inspectKey reads the objects of a key of this node's.
func (s *Server) inspectKey(now int64, req *adminpb.InspectKeyRequest, r *adminpb.InspectKeyResponse) (owner.Meta, error) {
	size, alone := 0, &table.Table{}
	before := s.tableOr(alone)
	meta, more, err := s.cfg.Store.Objects(now, req.Key, func(x owner.Shown) {
		if size >= maxInspected {
			r.Truncated = true
			return
		}
		o := stateOf(&x)
		size += o.SizeVT()
		r.Objects = append(r.Objects, o)
	})
	if err != nil {
		return meta, err
	}
	slices.SortFunc(r.Objects, func(a, b *adminpb.ObjectState) int { return cmp.Compare(a.Name, b.Name) })
	r.Truncated = r.Truncated || more
	r.Epoch, r.LostEpoch, r.RecoveringNs = meta.Permit.Epoch, meta.Permit.LostEpoch(), s.cfg.Store.GraceLeft(meta.Permit, now)
	r.Owner = &clusterpb.KeyOwner{Hash: owner.Hash(req.Key), Owner: s.cfg.Node, Since: meta.Permit.Seen}
	if s.cfg.Cluster == nil {
		r.LostInPart = r.LostEpoch != 0 && s.cfg.LostInPart
		return meta, nil
	}
	t := s.cfg.Cluster.Table()
	ownerOfKey(t, req.Key, r.Owner)
	if row := &t.Rows[t.Find(r.Owner.Hash)]; r.LostEpoch != 0 && row.Lost == r.LostEpoch {
		r.LostInPart = row.LostInPart()
	}
	for i, o := range r.Objects {
		// The state of one that was divided, or made whole, while it was read may be that of before.
		for _, at := range []*table.Table{t, before} {
			//guard:inspect-merging o.Split == nil -> at == t
			if sp := findSplit(at, kindName(o.Kind), owner.Ref{Key: req.Key, Name: o.Name}); sp != nil && o.Split == nil {
				o.Split = wireSplit(at, sp)
				size += o.Split.SizeVT()
			}
		}
		if size > 2*maxInspected-MaxRequest { // splits of many parts
			r.Objects, r.Truncated = r.Objects[:i], true
			break
		}
	}
	return meta, nil
}

// states is how the state of an object of each kind is told, and when it was changed.
var states = map[owner.Kind]func(o *adminpb.ObjectState, x *owner.Shown) (changed int64){
	owner.KindLimit:     limitState,
	owner.KindCounter:   counterState,
	owner.KindLock:      lockState,
	owner.KindRegister:  registerState,
	owner.KindSemaphore: semaphoreState,
	owner.KindOnce:      onceState,
	owner.KindElection:  electionState,
	owner.KindBarrier:   barrierState,
	owner.KindGroup:     groupState,
	owner.KindAdmission: admissionState,
}

// stateOf tells an object. One of a kind that has no words here is told without its state.
func stateOf(x *owner.Shown) *adminpb.ObjectState {
	o := &adminpb.ObjectState{Kind: wireKind(x.Kind.String()), Name: string(x.Name)}
	if tell := states[x.Kind]; tell != nil {
		o.IdleNs = max(0, x.Now-tell(o, x))
	}
	return o
}

func limitState(o *adminpb.ObjectState, x *owner.Shown) (changed int64) {
	s, marks, _ := x.LimitAt(x.Now)
	if s.Algorithm == limit.CalendarWindow {
		c := limit.Calendar(s.Period)
		spent, back := s.SpentAt(x.Wall)
		o.Limit = &adminpb.LimitState{Algorithm: algorithms[s.Algorithm], Limit: s.Limit, PeriodNs: c.Length(), Spent: spent, ResetAfterNs: back, Calendar: c.String(), Override: overrideOf(x)}
		return x.Now // it keeps no moment
	}
	o.Limit = &adminpb.LimitState{Algorithm: algorithms[s.Algorithm], Limit: s.Limit, PeriodNs: s.Period, Spent: s.Used(marks, x.Now), ResetAfterNs: s.BackIn(marks, x.Now), Override: overrideOf(x)}
	return s.At
}

// algorithms are those of limits, as the API has them.
var algorithms = map[limit.Algorithm]limitpb.Algorithm{
	limit.TokenBucket:    limitpb.Algorithm_ALGORITHM_TOKEN_BUCKET,
	limit.FixedWindow:    limitpb.Algorithm_ALGORITHM_FIXED_WINDOW,
	limit.SlidingWindow:  limitpb.Algorithm_ALGORITHM_SLIDING_WINDOW,
	limit.CalendarWindow: limitpb.Algorithm_ALGORITHM_CALENDAR_WINDOW,
	limit.LeakyBucket:    limitpb.Algorithm_ALGORITHM_LEAKY_BUCKET,
}

func counterState(o *adminpb.ObjectState, x *owner.Shown) (changed int64) {
	s := x.Counter()
	o.Counter = &adminpb.CounterState{Value: s.Value, Version: s.Version, IdleTtlNs: s.IdleTTL}
	return s.At
}

func lockState(o *adminpb.ObjectState, x *owner.Shown) (changed int64) {
	if x.State.Absent() {
		return x.Now
	}
	s, _, first := x.HoldAlone(x.Now)
	o.Lock = &adminpb.LockState{Holder: holderOf(first), Waiting: uint32(x.Waiting)}
	return s.At
}

func registerState(o *adminpb.ObjectState, x *owner.Shown) (changed int64) {
	s := x.Register()
	o.Register = &adminpb.RegisterState{Exists: s.Exists, Size: uint32(len(s.Value)), Version: seen(&s), Fence: s.Fence}
	return s.At
}

func semaphoreState(o *adminpb.ObjectState, x *owner.Shown) (changed int64) {
	s, held, _ := x.HoldAlone(x.Now)
	o.Semaphore = &adminpb.SemaphoreState{Capacity: s.Capacity, CapacitySet: s.Fixed, Held: uint32(held), Waiting: uint32(x.Waiting)}
	return s.At
}

func onceState(o *adminpb.ObjectState, x *owner.Shown) (changed int64) {
	s := x.Once()
	o.Once = &adminpb.OnceState{Phase: oncePhases[s.Phase], Token: s.Token, Attempt: s.Attempt, Holder: string(s.Holder), Size: uint32(len(s.Result)), TtlNs: max(s.Until-x.Now, 0)}
	return s.Since
}

func electionState(o *adminpb.ObjectState, x *owner.Shown) (changed int64) {
	s, _, first := x.HoldAlone(x.Now)
	o.Election = &adminpb.ElectionState{Leader: leaderOf(first), Waiting: uint32(x.Waiting)}
	return s.At
}

func groupState(o *adminpb.ObjectState, x *owner.Shown) (changed int64) {
	s, held, _ := x.HoldAlone(x.Now)
	o.Group = &adminpb.GroupState{Members: uint32(held)} // each has a weight of 1
	return s.At
}

// Sizes of pages.
const (
	maxPage     = 1_000
	defaultPage = 100
)

// page is where a list goes on, as its token has it. A node's objects have their places in one
// process of it.
type page struct {
	process uint64 // that the places are of: drawn when it started
	since   uint64 // epoch of the table when the first page was asked for
	filter  uint64 // what is listed
	place   owner.Place
}

// pageSize is how many bytes a page token has.
const pageSize = 32

func (p page) token() string {
	b := binary.BigEndian.AppendUint64(nil, p.process)
	b = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(b, p.since), p.filter)
	b = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(b, p.place.Shard), p.place.Slot)
	return base64.RawURLEncoding.EncodeToString(b)
}

// pageOf reads the token of a page that goes on with the first one.
func pageOf(token string, first page) (page, error) {
	bad := func(message, hint string) (page, error) {
		return page{}, &failure.Error{Reason: failure.Invalid, Field: "page_token", Message: message, Hint: hint}
	}
	b, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil || len(b) != pageSize {
		return bad("is none that a page had", "send the next_page_token of the page before, or none")
	}
	at := func(i int) uint64 { return binary.BigEndian.Uint64(b[i:]) }
	p := page{process: at(0), since: at(8), filter: at(16), place: owner.Place{Shard: uint32(at(24) >> 32), Slot: uint32(at(24))}}
	switch {
	case p.process != first.process:
		return bad("is of another node, or of one that was started again since", "list that node from the beginning")
	case p.filter != first.filter:
		return bad("is of a list with another kind, name or prefix", "list from the beginning, or ask for the same as before")
	}
	return p, nil
}

// listObjects lists objects that this node owns.
func (s *Server) listObjects(now int64, req *adminpb.ListObjectsRequest, r *adminpb.ListObjectsResponse) error {
	size := cmp.Or(int(req.PageSize), defaultPage)
	if size > maxPage {
		return &failure.Error{Reason: failure.Invalid, Field: "page_size", Message: fmt.Sprintf("is %d; at most %d are allowed, or 0 for %d", req.PageSize, maxPage, defaultPage)}
	}
	of := owner.Kind(0)
	if req.Kind != commonpb.Kind_KIND_UNSPECIFIED {
		var ok bool
		if of, ok = owner.ParseKind(kindName(req.Kind)); !ok {
			return &failure.Error{Reason: failure.Invalid, Field: "kind", Message: fmt.Sprintf("%d is unknown to this node", req.Kind)}
		}
	}
	if req.Overridden {
		if of != 0 && of != owner.KindLimit {
			return &failure.Error{Reason: failure.Invalid, Field: "overridden", Message: "goes with limits only", Hint: "leave kind out"}
		}
		if of = owner.KindLimit; !s.usesLevel(owner.OverrideLevel) {
			return owner.ErrLevel
		}
	}
	p := page{process: s.process, since: s.tableOr(&table.Table{}).Epoch, filter: ring.Hash(fmt.Sprintf("%d %q %q %v", of, req.Name, req.KeyPrefix, req.Overridden))}
	if req.PageToken != "" {
		var err error
		if p, err = pageOf(req.PageToken, p); err != nil {
			return err
		}
	}
	p.since = cmp.Or(req.SinceEpoch, p.since)
	next, done := s.cfg.Store.List(now, p.place, size, req.Overridden, func(kind owner.Kind, key, name []byte) bool {
		return (of == 0 || kind == of) && (req.Name == "" || string(name) == req.Name) && bytes.HasPrefix(key, []byte(req.KeyPrefix))
	}, func(kind owner.Kind, key, name []byte) {
		r.Objects = append(r.Objects, &adminpb.Object{Kind: wireKind(kind.String()), Key: string(key), Name: string(name)})
	})
	// The table of the end, by which the node may have left out what it owned before.
	r.Node, r.Epoch, r.Moved = s.cfg.Node, p.since, movedSince(s.tableOr(&table.Table{Epoch: p.since}), p.since)
	if !done {
		p.place = next
		r.NextPageToken = p.token()
	}
	return nil
}

// usesLevel reports whether all nodes understand a level.
func (s *Server) usesLevel(level uint32) bool {
	return s.cfg.Cluster == nil || s.cfg.Cluster.Table().Uses(level)
}

// tableOr returns the table, or what a node that runs alone has in its place.
func (s *Server) tableOr(alone *table.Table) *table.Table {
	if s.cfg.Cluster == nil {
		return alone
	}
	return s.cfg.Cluster.Table()
}

// movedSince reports whether keys have got another owner since an epoch, or the table does
// not reach so far.
func movedSince(t *table.Table, since uint64) bool {
	//guard:list-moved x.Since > since -> x.Since > since+1<<62
	return t.Epoch < since || slices.ContainsFunc(t.Rows, func(x table.Row) bool { return x.Since > since })
}

// ResetObject implements the AdminService.
func (a *admin) ResetObject(ctx context.Context, req *adminpb.ResetObjectRequest) (*adminpb.ResetObjectResponse, error) {
	switch req.Kind {
	case commonpb.Kind_KIND_LIMIT:
		r, err := limitReset.serve(ctx, a.s, &limitpb.ResetRequest{Key: req.Key, Name: req.Name, RequestId: req.RequestId, IdempotencyKey: req.IdempotencyKey})
		return &adminpb.ResetObjectResponse{Existed: r.GetExisted(), Replay: r.GetReplay()}, err
	case commonpb.Kind_KIND_COUNTER:
		r, err := counterReset.serve(ctx, a.s, &counterpb.ResetRequest{Key: req.Key, Name: req.Name, RequestId: req.RequestId, IdempotencyKey: req.IdempotencyKey})
		return &adminpb.ResetObjectResponse{Existed: r.GetVersion() != 0, Replay: r.GetReplay()}, err
	}
	return nil, a.s.refuse(&failure.Error{Reason: failure.Invalid, Field: "kind",
		Message: "is not that of a limit or a counter", Hint: "a lock ends with its holder, or its TTL"})
}
