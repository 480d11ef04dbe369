package rpc

import (
	"cmp"
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/internal/forward"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/across"
	"github.com/keystead/keystead/owner/admission"
	"github.com/keystead/keystead/owner/reqid"
	admissionpb "github.com/keystead/keystead/proto/keystead/admission/v1"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
)

// The node that gets an Admit whose demands are of several keys coordinates it: it sends the Holds, answers the caller,
// and tells the participants behind that. It keeps nothing that anybody needs.

var errAcrossKey = &failure.Error{Reason: failure.Invalid, Field: "idempotency_key",
	Message: "does not go with demands of several keys", Hint: "send a request_id, or name the levels of one key"}

// errAcrossOpen is the end of an admission of which this node has not learnt whether it takes place.
var errAcrossOpen = &failure.Error{Reason: failure.OutcomeUnknown, RetryAfter: 200 * time.Millisecond,
	Message: "not all owners of the keys have answered; it may be admitted",
	Hint:    "try again with the same request id to learn what became of it"}

// errAcrossLost is that of an admission that was sent before the row of one of its keys was lost.
var errAcrossLost = &failure.Error{Reason: failure.OutcomeUnknown,
	Message: "what was kept of one of the keys was lost since the request was first sent, and with it whether it was admitted; the other keys are charged for it, unless one of them refuses it",
	Hint:    "send it under a new request id if it may be charged twice"}

// coordination is an admission of several keys at this node.
type coordination struct {
	s    *Server
	name string
	id   *commonpb.RequestId
	of   reqid.ID
	q    *admissionpb.AdmitRequest
	at   []int // places of the demands of each participant, one behind the other
	from []int // where those of each begin in at

	mu sync.Mutex
	c  *across.Coordinator // guarded by mu

	answers []*peerv1.HoldResponse // of participants; nil = none
	errs    []error
}

// keysOf returns the keys of the demands, in the order in which they come.
func keysOf(q *admissionpb.AdmitRequest) (keys []string) {
	for _, d := range q.Demands {
		if key := cmp.Or(d.GetKey(), q.Key); !slices.Contains(keys, key) {
			keys = append(keys, key)
		}
	}
	return keys
}

// acrossKeys reports whether demands name keys of their own.
func acrossKeys(q *admissionpb.AdmitRequest) bool {
	return slices.ContainsFunc(q.Demands, func(d *admissionpb.Demand) bool { return d.GetKey() != "" && d.Key != q.Key })
}

// admitAcross answers an Admit whose demands name keys of their own.
func (s *Server) admitAcross(ctx context.Context, o *admitOp, q *admissionpb.AdmitRequest) (*admissionpb.AdmitResponse, error) {
	keys := keysOf(q)
	if len(keys) == 1 { // it is another one than that of the request
		one := ownDemands(q, keys[0], q.Demands)
		r, err := o.atOwner(ctx, s, one)
		if err == nil {
			r.Key = keys[0]
		}
		return r, err
	}
	if err := validAcross(o, q, keys); err != nil {
		return nil, s.refuse(err)
	}
	if q.Peek {
		return s.peekAcross(ctx, o, q, keys)
	}
	k, err := s.coordinate(o, q, keys)
	if err != nil {
		return nil, s.refuse(err)
	}
	row := s.row(o.operation)
	r, err := k.run(ctx)
	var t tally
	if err != nil {
		t.errored++
		row.failed[wire(err).Reason].Inc()
	} else {
		t.decided(r.Admitted, r.Replay != nil)
	}
	row.add(t)
	return r, Status(err)
}

// ownDemands returns the request with some of its demands, all of one key.
func ownDemands(q *admissionpb.AdmitRequest, key string, demands []*admissionpb.Demand) *admissionpb.AdmitRequest {
	one := &admissionpb.AdmitRequest{Key: key, Name: q.Name, HoldNs: q.HoldNs, OnExpiry: q.OnExpiry, Peek: q.Peek, RequestId: q.RequestId, IdempotencyKey: q.IdempotencyKey, HoldTag: q.HoldTag}
	for _, d := range demands {
		one.Demands = append(one.Demands, ownDemand(d))
	}
	return one
}

// ownDemand returns a demand as the owner of its key is asked, which need not be told the key again.
func ownDemand(d *admissionpb.Demand) *admissionpb.Demand {
	return &admissionpb.Demand{Name: d.GetName(), Cost: d.GetCost(), ClampPercent: d.GetClampPercent(), Limit: d.GetLimit(), Counter: d.GetCounter(), Slots: d.GetSlots()}
}

// validAcross reports what no owner would hold. The rest each of them judges.
func validAcross(o *admitOp, q *admissionpb.AdmitRequest, keys []string) error {
	switch n := len(q.Demands); {
	case n > admission.MaxDemands:
		return failure.Invalidf("demands", "are %d; at most %d are allowed", n, admission.MaxDemands)
	case q.IdempotencyKey != "":
		return errAcrossKey
	case q.HoldTag != "":
		return failure.Invalidf("hold_tag", "goes with demands of one key only")
	case q.OnExpiry > admissionpb.OnExpiry_ON_EXPIRY_CHARGE || q.OnExpiry < 0:
		return &failure.Error{Reason: failure.Invalid, Field: "on_expiry", Message: "is unknown to this node", Hint: "use RELEASE or CHARGE"}
	case q.HoldNs != 0 && !q.Peek && q.RequestId == nil:
		return &failure.Error{Reason: failure.Invalid, Field: "request_id", Message: "is missing: a hold is known by the request that made it",
			Hint: "send a request_id, or leave hold_ns at 0"}
	case q.HoldNs < 0:
		return failure.Invalidf("hold_ns", "is negative")
	}
	name := o.of.named(q.Name)
	for _, key := range keys {
		if err := (owner.Ref{Key: key, Name: name}).Valid(); err != nil {
			return err
		}
	}
	for i, d := range q.Demands {
		if _, err := demandOf(i, d); err != nil {
			return err
		}
	}
	return nil
}

// coordinate begins an admission.
func (s *Server) coordinate(o *admitOp, q *admissionpb.AdmitRequest, keys []string) (k *coordination, err error) {
	k = &coordination{s: s, name: o.of.named(q.Name), q: q, id: q.RequestId, answers: make([]*peerv1.HoldResponse, len(keys)), errs: make([]error, len(keys))}
	if k.id == nil {
		k.id = s.numbers.begin()
	}
	if k.of, err = requestID(k.id); err != nil {
		return nil, err
	}
	terms := across.Terms{Keys: keys, Hold: q.HoldNs, Charge: q.OnExpiry == admissionpb.OnExpiry_ON_EXPIRY_CHARGE, Print: printOf(q)}
	for _, d := range q.Demands {
		key := cmp.Or(d.Key, q.Key)
		of, _ := demandOf(0, d)
		terms.Of = append(terms.Of, uint8(slices.Index(keys, key)))
		terms.Names = append(terms.Names, owner.NameAcross(key, of.Name))
	}
	epoch := uint64(1)
	if s.cfg.Cluster != nil {
		epoch = max(s.cfg.Cluster.Table().Epoch, 1)
	}
	for i := range keys {
		k.from = append(k.from, len(k.at))
		for n, of := range terms.Of {
			if int(of) == i {
				k.at = append(k.at, n)
			}
		}
	}
	k.from = append(k.from, len(k.at))
	k.c = across.NewCoordinator(across.ID{Client: k.of.Client, Sequence: k.of.Sequence}, terms, epoch, k.of.Age, math.MaxInt64)
	return k, nil
}

// printOf tells a request from another one under its id.
func printOf(q *admissionpb.AdmitRequest) uint32 {
	of := ownDemands(q, q.Key, nil)
	of.Demands, of.RequestId = q.Demands, nil
	b, _ := of.MarshalVT()
	return uint32(xxhash.Sum64(b))
}

// run has all participants hold, and answers. The participants are told behind that.
func (k *coordination) run(ctx context.Context) (*admissionpb.AdmitResponse, error) {
	s, o := k.s, acrossHold
	if k.q.RequestId == nil {
		defer s.numbers.end(k.id.Sequence)
	}
	var away []forward.Item
	var here []*peerv1.HoldRequest
	for i, key := range k.c.Keys {
		q := k.hold(i)
		hash, there := s.locate(o.of, key, k.name)
		if there {
			away = append(away, forward.Item{At: i, Call: o.call(q, hash)})
		} else {
			here = append(here, q)
		}
	}
	var sent forward.Departed
	if len(away) > 0 {
		sent = s.router.Depart(ctx, away)
	}
	k.holdHere(ctx, here)
	if len(away) > 0 {
		sent.Arrive(func(i int, m forward.Message, err error) {
			s.cfg.Metrics.forwarded(err)
			if k.errs[i] = err; err == nil {
				k.answers[i] = m.(*peerv1.HoldResponse)
			}
		})
	}
	return k.conclude()
}

// holdHere has the participants hold that are at this node, as far as it knows.
func (k *coordination) holdHere(ctx context.Context, here []*peerv1.HoldRequest) {
	s, o := k.s, acrossHold
	now := s.cfg.Clock.Now()
	verdicts := make([]verdict, len(here))
	for n, q := range here {
		f, err := o.frame(ctx, q, owner.Hash(q.Key), now)
		a := new(peerv1.HoldResponse)
		if err == nil {
			verdicts[n], err = o.do(s, f, q, a)
		}
		k.answers[q.Self], k.errs[q.Self] = a, err
	}
	for n, q := range here {
		err := s.one(ctx, nil, s.row(o.operation), verdicts[n], k.errs[q.Self])
		if k.errs[q.Self] = err; err == nil {
			continue
		}
		k.answers[q.Self] = nil
		if s.elsewhere(err) {
			m, err := s.router.Pass(ctx, o.call(q, owner.Hash(q.Key)), time.Time{})
			s.cfg.Metrics.forwarded(err)
			if k.errs[q.Self] = err; err == nil {
				k.answers[q.Self] = m.(*peerv1.HoldResponse)
			}
		}
	}
}

// hold returns the Hold of a participant.
func (k *coordination) hold(i int) *peerv1.HoldRequest {
	t := &k.c.Terms
	q := &peerv1.HoldRequest{Key: t.Keys[i], Name: k.name, Keys: t.Keys, Of: t.Of, Names: t.Names, HoldNs: t.Hold, Charge: t.Charge, Print: t.Print,
		Self: uint32(i), Epoch: k.c.Epoch, RequestId: k.id}
	for _, n := range k.at[k.from[i]:k.from[i+1]] {
		q.Demands = append(q.Demands, k.q.Demands[n])
	}
	return q
}

// conclude says what the caller is told, and has the participants told behind it.
func (k *coordination) conclude() (*admissionpb.AdmitResponse, error) {
	now := k.s.cfg.Clock.Now()
	var out *across.Outcome
	var words []across.Word
	said := make([]across.Answer, len(k.c.Keys))
	for i, a := range k.answers {
		if a != nil {
			said[i] = knowledge(a.Knows, now)
		}
	}
	for _, denials := range []bool{false, true} { // the last answer is the one that decides
		for i, a := range said {
			if a.Phase.Denies() != denials {
				continue
			}
			done, more := k.c.Answered(uint8(i), a)
			if done != nil {
				out = done
			}
			words = append(words, more...)
		}
	}
	k.tell(words)
	if out == nil || out.Phase == across.Unknown {
		return nil, k.unknown(said)
	}
	return k.response(out, now), nil
}

// unknown returns why there is no outcome. An error of one participant that says that nothing happened there is that of
// all: it has not held, and does not unless the caller asks again.
func (k *coordination) unknown(said []across.Answer) error {
	k.askWhoFailed()
	for i, err := range k.errs {
		if err != nil && wire(err).Reason != commonpb.Reason_REASON_OUTCOME_UNKNOWN {
			return atPlace(k.at[k.from[i]:k.from[i+1]], err)
		}
	}
	if slices.ContainsFunc(said, func(a across.Answer) bool { return a.Phase == across.Lost }) {
		return errAcrossLost
	}
	return errAcrossOpen
}

// stays are reasons of errors that the same request gets again. Others pass: a client tries again by itself, with the same
// id, and may be admitted then.
var stays = map[commonpb.Reason]bool{
	commonpb.Reason_REASON_INVALID: true, commonpb.Reason_REASON_KIND_MISMATCH: true, commonpb.Reason_REASON_STORE_FULL: true, commonpb.Reason_REASON_TOO_LARGE: true,
	commonpb.Reason_REASON_REQUEST_TOO_OLD: true, commonpb.Reason_REASON_REQUEST_ID_REUSED: true,
}

// lasts reports whether an error stays, or at least until the participants that hold ask for themselves, and leave the mark.
func lasts(err error) bool {
	w := wire(err)
	return stays[w.Reason] || w.Reason == commonpb.Reason_REASON_RECOVERING && w.RetryAfterNs >= 2*across.Patience
}

// askWhoFailed has participants that have answered with an error that stays say that they never hold, so that the others
// give back what they hold now, and not after a question of their own.
func (k *coordination) askWhoFailed() {
	held := slices.ContainsFunc(k.answers, func(a *peerv1.HoldResponse) bool { return a != nil })
	for i, err := range k.errs {
		//guard:across-error-stays lasts(err) -> true
		if err == nil || !held || !lasts(err) {
			continue
		}
		q := across.Question{ID: k.c.ID, To: uint8(i), Key: k.c.Keys[i], Epoch: k.c.Epoch, Age: k.of.Age, Print: k.c.Print}
		k.s.outboxes.send(acrossQuestion, outgoing{wireQuestion(k.name, &q), k.hears(q.To)})
	}
}

// hears returns what is told the answer of a participant to a word or a question.
func (k *coordination) hears(from uint8) func(across.Answer) {
	return func(a across.Answer) {
		k.mu.Lock()
		_, more := k.c.Answered(from, a)
		k.mu.Unlock()
		k.tell(more)
	}
}

// tell has participants told, and what they answer gone by.
func (k *coordination) tell(words []across.Word) {
	for i := range words {
		w := &words[i]
		x := outgoing{news: wireWord(k.name, w)}
		if !w.All && w.Phase == across.Admitted {
			x.hear = k.hears(w.To)
		}
		k.s.outboxes.send(acrossWord, x)
	}
}

// response tells the outcome. What each demand has become is told by those that have decided now.
func (k *coordination) response(out *across.Outcome, now int64) *admissionpb.AdmitResponse {
	s := k.s
	r := &admissionpb.AdmitResponse{Admitted: out.Phase == across.Admitted, Contended: out.Contended, Owner: s.cfg.Node, Key: k.c.Keys[0],
		Demands: make([]*admissionpb.DemandResult, len(k.q.Demands))}
	left, repeats, age, unknown := k.c.Hold, 0, int64(0), false
	for i, a := range k.answers {
		if a == nil {
			continue
		}
		r.Epoch, r.LostEpoch, left = max(r.Epoch, a.Epoch), max(r.LostEpoch, a.LostEpoch), min(left, a.HoldNs)
		if a.Replay != nil {
			repeats++
			age = max(age, a.Replay.AgeNs)
		}
		for n, at := range k.at[k.from[i]:k.from[i+1]] {
			if n < len(a.Demands) {
				r.Demands[at] = a.Demands[n]
			}
		}
		unknown = unknown || slices.ContainsFunc(a.Demands, func(d *admissionpb.DemandResult) bool { return d.Refused && d.RetryAfterNs == 0 })
	}
	for i, d := range r.Demands {
		if d == nil { // it was decided before
			r.Demands[i] = &admissionpb.DemandResult{Refused: out.Demands.Has(uint8(i)), Reserved: max(k.q.Demands[i].Cost, 1)}
		}
	}
	if repeats == len(k.answers) {
		r.Replay = &commonpb.Replay{AgeNs: age}
	}
	if !r.Admitted {
		if !unknown {
			r.RetryAfterNs = max(out.RetryAt-now, 0)
		}
		return r
	}
	if k.c.Hold != 0 {
		r.HoldId, r.HoldNs = holdText(admission.ID(k.c.ID)), left
	}
	return r
}

// peekAcross looks at what the owners of all keys would answer. Nothing is held.
func (s *Server) peekAcross(ctx context.Context, o *admitOp, q *admissionpb.AdmitRequest, keys []string) (*admissionpb.AdmitResponse, error) {
	answers, errs := make([]*admissionpb.AdmitResponse, len(keys)), make([]error, len(keys))
	places := make([][]int, len(keys))
	for n, d := range q.Demands {
		i := slices.Index(keys, cmp.Or(d.Key, q.Key))
		places[i] = append(places[i], n)
	}
	var wg sync.WaitGroup
	for i, key := range keys {
		one := ownDemands(q, key, nil)
		for _, n := range places[i] {
			one.Demands = append(one.Demands, ownDemand(q.Demands[n]))
		}
		wg.Go(func() { answers[i], errs[i] = o.atOwner(ctx, s, one) })
	}
	wg.Wait()
	r := &admissionpb.AdmitResponse{Admitted: true, Owner: s.cfg.Node, Key: keys[0], Demands: make([]*admissionpb.DemandResult, len(q.Demands))}
	unknown := false
	for i, a := range answers {
		if errs[i] != nil {
			return nil, errs[i]
		}
		r.Admitted = r.Admitted && a.Admitted
		r.Epoch, r.LostEpoch, r.RetryAfterNs = max(r.Epoch, a.Epoch), max(r.LostEpoch, a.LostEpoch), max(r.RetryAfterNs, a.RetryAfterNs)
		unknown = unknown || !a.Admitted && a.RetryAfterNs == 0
		for n, at := range places[i] {
			r.Demands[at] = a.Demands[n]
		}
	}
	if unknown {
		r.RetryAfterNs = 0
	}
	return r, nil
}

// numbers are the ids of requests whose callers have sent none. This node is their client, and says which are finished.
type numbers struct {
	mu     sync.Mutex
	client []byte              // guarded by mu: drawn when the first one begins
	next   uint64              // guarded by mu
	low    uint64              // guarded by mu: all below it are finished
	open   map[uint64]struct{} // guarded by mu
}

func (x *numbers) begin() *commonpb.RequestId {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.open == nil {
		x.open, x.low = map[uint64]struct{}{}, 1
		x.client = wireClient(reqid.Client{Hi: rand.Uint64(), Lo: rand.Uint64()})
	}
	x.next++
	x.open[x.next] = struct{}{}
	return &commonpb.RequestId{Client: x.client, Sequence: x.next, Settled: x.low}
}

func (x *numbers) end(sequence uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.open, sequence)
	for x.low <= x.next {
		if _, open := x.open[x.low]; open {
			return
		}
		x.low++
	}
}
