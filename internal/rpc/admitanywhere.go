package rpc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/keystead/keystead/internal/chunk"
	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/admission"
	"github.com/keystead/keystead/owner/reqid"
	admissionpb "github.com/keystead/keystead/proto/keystead/admission/v1"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
	"github.com/keystead/keystead/ring/epoch/table"
)

// A demand with anywhere is paid out of a chunk, by the node that owns the key of the other demands: it takes the
// tokens, decides the others in their one step, and gives the tokens back unless that step has charged now. So what
// a request id stands for is remembered in one place, and no repeated request pays. What no chunk can pay is demanded
// of its owner, as without anywhere.

// paid is a demand that a chunk may pay.
type paid struct {
	at   int // of the demands
	cost uint64
	chunk.Bucket
}

// anywhereOf reports whether chunks may pay some of the demands.
func anywhereOf(q *admissionpb.AdmitRequest) bool {
	return slices.ContainsFunc(q.Demands, (*admissionpb.Demand).GetAnywhere)
}

// admitAnywhere answers an Admit of which chunks may pay some demands.
func (s *Server) admitAnywhere(ctx context.Context, o *admitOp, q *admissionpb.AdmitRequest) (*admissionpb.AdmitResponse, error) {
	one, all, err := beside(q, s.cfg.Cluster == nil)
	if err != nil {
		return nil, s.refuse(err)
	}
	id, err := requestID(q.RequestId)
	if err != nil {
		return nil, s.refuse(err)
	}
	if s.cfg.Cluster != nil && !q.Peek {
		t := s.cfg.Cluster.Table()
		able := !slices.ContainsFunc(all, func(p paid) bool { return mostOf(t, &p) < 2*p.cost })
		//guard:admit-anywhere-repeated id.Age > 0 -> id.Age < 0
		if able || id.Age > 0 { // an earlier attempt may have been paid
			one.Name = o.of.named(q.Name)
			r, err := s.payAtOwner(ctx, one)
			switch {
			case err == nil && len(r.Demands) > 0:
				return r, nil
			//guard:admit-anywhere-voted Reason_REASON_REQUEST_ID_REUSED -> Reason_REASON_UNSPECIFIED
			case err != nil && wire(err).Reason != commonpb.Reason_REASON_REQUEST_ID_REUSED: // else it may have voted
				return nil, Status(err)
			}
		}
	}
	return s.admitAside(ctx, o, q, all)
}

// payAtOwner has the owner of the key decide, out of its chunks. An answer without demands says that there is none.
func (s *Server) payAtOwner(ctx context.Context, one *admissionpb.AdmitRequest) (*admissionpb.AdmitResponse, error) {
	o := admissionAnywhere
	hash, away := s.locate(o.of, one.Key, one.Name)
	if !away {
		f, err := o.frame(ctx, one, hash, s.cfg.Clock.Now())
		a := new(admissionpb.AdmitResponse)
		if err = o.conclude(s, f, one, a, nil, err); err == nil || !s.elsewhere(err) {
			return a, err
		}
	}
	m, err := s.router.Pass(ctx, o.call(one, hash), time.Time{})
	s.cfg.Metrics.forwarded(err)
	if err != nil {
		s.cfg.Metrics.failed[wire(err).Reason].Inc()
		return nil, err
	}
	return m.(*admissionpb.AdmitResponse), nil
}

// admitAside has the owners of all keys decide, beside the chunks of others.
func (s *Server) admitAside(ctx context.Context, o *admitOp, q *admissionpb.AdmitRequest, all []paid) (*admissionpb.AdmitResponse, error) {
	aside := &admissionpb.AdmitRequest{Key: q.Key, Name: q.Name, OnExpiry: q.OnExpiry, Peek: q.Peek, RequestId: q.RequestId, Demands: slices.Clone(q.Demands)}
	for i := range all {
		p := &all[i]
		d := q.Demands[p.at]
		limit := &admissionpb.LimitDemand{Limit: p.Limit, PeriodNs: p.Period, Burst: p.Burst - s.slack(p)}
		aside.Demands[p.at] = &admissionpb.Demand{Key: d.Key, Name: d.Name, Cost: d.Cost, Limit: limit}
	}
	r, err := s.admitAcross(ctx, o, aside)
	if err != nil {
		return nil, err
	}
	for i := range all {
		if p := &all[i]; p.at < len(r.Demands) && !r.Demands[p.at].Overridden && r.Demands[p.at].Capacity != 0 {
			r.Demands[p.at].Capacity = p.Burst
		}
	}
	return r, nil
}

// slack returns how much of a bucket is kept back for chunks.
func (s *Server) slack(p *paid) uint64 {
	if s.cfg.Cluster == nil {
		return 0
	}
	//guard:admit-anywhere-slack chunk.Slack(p.Burst) -> 0
	return chunk.Slack(p.Burst)
}

// mostOf returns how much of a bucket a node may hold.
func mostOf(t *table.Table, p *paid) uint64 {
	return min(chunk.Cap(p.Burst, len(t.Members)), least(t, &p.Bucket))
}

// beside returns what is sent to the owner of the key that all demands have but those that chunks may pay, and these.
// alone says that there are no other nodes.
func beside(q *admissionpb.AdmitRequest, alone bool) (one *admissionpb.AdmitRequest, all []paid, err error) {
	bad := func(i int, message, hint string) error {
		return &failure.Error{Reason: failure.Invalid, Field: fmt.Sprintf("demands[%d].anywhere", i), Message: message, Hint: hint}
	}
	if len(q.Demands) > admission.MaxDemands {
		return nil, nil, failure.Invalidf("demands", "are %d; at most %d are allowed", len(q.Demands), admission.MaxDemands)
	}
	if q.IdempotencyKey != "" {
		return nil, nil, errAcrossKey
	}
	one = &admissionpb.AdmitRequest{OnExpiry: q.OnExpiry, RequestId: q.RequestId}
	own := -1
	for i, d := range q.Demands {
		if d.GetAnywhere() {
			p, err := paidBy(i, d, alone)
			switch {
			case err != nil:
				return nil, nil, err
			case q.HoldNs != 0 || q.HoldTag != "":
				return nil, nil, bad(i, "does not go with a hold: a chunk lives for a second, and is spent at once", "leave anywhere out, and the owner of the key holds what is demanded; or ask without a hold")
			case slices.ContainsFunc(all, func(o paid) bool { return o.Key == p.Key && o.Name == p.Name }):
				return nil, nil, bad(i, "is of the limit of an earlier demand, too", "add their costs")
			}
			all = append(all, p)
			one.Demands = append(one.Demands, d)
			continue
		}
		key := cmp.Or(d.GetKey(), q.Key)
		if own >= 0 && key != one.Key {
			return nil, nil, &failure.Error{Reason: failure.Invalid, Field: fmt.Sprintf("demands[%d].key", i), Message: "is another one than that of an earlier demand, which does not go with anywhere",
				Hint: "leave anywhere out, or have all other demands be of one key"}
		}
		own, one.Key = i, key
		one.Demands = append(one.Demands, ownDemand(d))
	}
	if own < 0 {
		return nil, nil, bad(all[0].at, "goes beside demands of the request's own key, and there are none", "leave anywhere out; a limit alone is a check, which may have anywhere, too")
	}
	for i := range all {
		if all[i].Key == one.Key {
			return nil, nil, bad(all[i].at, "is of a limit of the request's own key, which one step decides", "leave it out")
		}
	}
	return one, all, nil
}

// paidBy returns what a chunk has to have for a demand.
func paidBy(i int, d *admissionpb.Demand, alone bool) (p paid, err error) {
	bad := func(field, message, hint string) (paid, error) {
		return p, &failure.Error{Reason: failure.Invalid, Field: fmt.Sprintf("demands[%d].%s", i, field), Message: message, Hint: hint}
	}
	of, err := demandOf(i, d)
	switch {
	case err != nil:
		return p, err
	case of.Of != admission.Limit:
		return bad("anywhere", "goes with token buckets only, not with counters and slots", "leave it out: then the owner of the key decides")
	case d.Key == "":
		return bad("anywhere", "goes with a limit of another key", "name its key, or leave it out")
	case d.ClampPercent != 0:
		return bad("clamp_percent", "goes with a hold, and not with anywhere", "leave one out")
	}
	if err := (owner.Ref{Key: d.Key, Name: of.Name}).Valid(); err != nil {
		return p, err
	}
	x := d.Limit
	b, err := bucketOf(&limitpb.CheckRequest{Key: d.Key, Name: of.Name, Limit: x.Limit, PeriodNs: x.PeriodNs, Burst: x.Burst, Algorithm: x.Algorithm, Cost: d.Cost}, alone)
	var e *failure.Error
	if errors.As(err, &e) {
		if e.Field == "cost" || e.Field == "anywhere" {
			return bad(e.Field, e.Message, e.Hint)
		}
		return p, inLimit(i, err)
	}
	if of.Cost > b.Burst {
		return bad("cost", fmt.Sprintf("is %d, and the limit has %d at most: it would never be admitted", of.Cost, b.Burst), "")
	}
	return paid{at: i, cost: of.Cost, Bucket: b}, err
}

// payment is what this node has out of its chunks for a request.
type payment struct {
	s       *Server
	taken   []chunk.Taken
	answers []chunk.Answer // for demands that were decided, in their order
	is      owner.Elsewhere
}

// take takes what demands cost out of chunks. An error is why none of it was decided; nil with ElsewhereOpen says that
// there is no chunk for it.
func (x *payment) take(ctx context.Context, all []paid) error {
	s := x.s
	t, row := s.cfg.Cluster.Table(), s.row(limitSpend)
	if !mayHold(t, s.cfg.Cluster.Self()) {
		x.is = owner.ElsewhereOpen
		return nil
	}
	for i := range all {
		p := &all[i]
		most := mostOf(t, p)
		var a chunk.Answer
		var taken chunk.Taken
		err := chunk.ErrFull
		if most >= 2*p.cost {
			a, taken, err = s.chunks.Take(ctx, p.Bucket, p.cost, most)
		}
		if err != nil {
			x.is = owner.ElsewhereOpen
			switch {
			case errors.Is(err, chunk.ErrFull), errors.Is(err, errOverridden):
				return nil
			case ctx.Err() != nil:
				err = gaveUp(ctx)
			}
			row.errored.Inc()
			return err
		}
		x.answers = append(x.answers, a)
		if !a.Allowed {
			row.no.Inc()
			x.is = owner.ElsewhereRefused
			continue
		}
		row.yes.Inc()
		x.taken = append(x.taken, taken)
	}
	return nil
}

// end has what was taken be spent, or given back.
func (x *payment) end(spent bool) {
	for _, t := range x.taken {
		if spent {
			x.s.chunks.Keep(t)
		} else {
			x.s.chunks.GiveBack(t)
		}
	}
}

// admitPaid charges the demands of this node's key, if its chunks pay the others, or none.
func (s *Server) admitPaid(f frame, q *admissionpb.AdmitRequest, r *admissionpb.AdmitResponse) (v verdict, err error) {
	own, all, err := beside(q, false)
	if err != nil {
		return v, err
	}
	op, err := admitOf(q)
	if err != nil {
		return v, err
	}
	op.Asked = askedAnywhere(q)
	var places []int
	if op.Demands, places, err = ownOf(own); err != nil {
		return v, err
	}
	x := payment{s: s}
	look := op
	look.Peek = true
	seen, failed := s.cfg.Store.Admit(s.cfg.Clock.Now(), f.at, reqid.ID{}, look, make([]owner.DemandAnswer, 0, len(op.Demands)))
	switch {
	case failed != nil:
		x.is = owner.ElsewhereOpen
	//guard:admit-anywhere-look !seen.Admitted -> seen.Admitted && !seen.Admitted
	case !seen.Admitted: // so nothing need be taken
		x.is = owner.ElsewhereRefused
	default:
		failed = x.take(f.ctx, all)
	}
	op.Elsewhere = x.is
	a, err := s.cfg.Store.Admit(s.cfg.Clock.Now(), f.at, f.id, op, make([]owner.DemandAnswer, 0, len(op.Demands)))
	//guard:admit-anywhere-back err == nil && a.Admitted -> true
	//guard:admit-anywhere-once !a.Replayed -> true
	spent := err == nil && a.Admitted && !a.Replayed
	x.end(spent)
	switch {
	case err == owner.ErrElsewhere && failed == nil:
		r.Owner, r.Epoch = s.cfg.Node, a.Permit.Epoch // and no demands
		return verdict{a.Meta, false}, nil
	case err == owner.ErrElsewhere:
		err = failed
	}
	if err == owner.ErrDemandSplit {
		s.makeDemandsWhole(f.at, op.Demands)
	}
	if err != nil {
		return v, atPlace(places, err)
	}
	r.Admitted, r.Epoch, r.Replay, r.Owner, r.LostEpoch = a.Admitted, a.Permit.Epoch, replayOf(a.Meta), s.cfg.Node, a.Permit.LostEpoch()
	r.Key, r.Demands = q.Key, make([]*admissionpb.DemandResult, len(q.Demands))
	x.tell(r, all, spent)
	told := demandResults(a.Demands)
	for i := range r.Demands {
		if r.Demands[i] == nil {
			r.Demands[i], told = told[0], told[1:]
		}
	}
	r.RetryAfterNs = retryOf(r)
	return verdict{a.Meta, a.Admitted}, nil
}

// ownOf returns the demands that no chunk pays, and their places.
func ownOf(q *admissionpb.AdmitRequest) (own []owner.Demand, places []int, err error) {
	for i, d := range q.Demands {
		if d.Anywhere {
			continue
		}
		of, err := demandOf(i, d)
		if err != nil {
			return nil, nil, err
		}
		own, places = append(own, of), append(places, i)
	}
	return own, places, nil
}

// tell says what became of demands that chunks pay.
func (x *payment) tell(r *admissionpb.AdmitResponse, all []paid, spent bool) {
	for i := range all {
		p := &all[i]
		d := &admissionpb.DemandResult{Reserved: p.cost, Capacity: p.Burst}
		r.Demands[p.at] = d
		if i >= len(x.answers) {
			continue // that of a repeated request stands
		}
		a := &x.answers[i]
		d.Remaining, d.ResetAfterNs = a.Remaining, a.ResetAfter
		switch {
		case !a.Allowed && !r.Admitted:
			d.Refused, d.RetryAfterNs = true, a.RetryAfter
		case a.Allowed && !spent:
			d.Remaining += p.cost
		}
	}
}

// retryOf returns the time until all demands could pass that refused; 0 if nobody knows.
func retryOf(r *admissionpb.AdmitResponse) (longest int64) {
	for _, d := range r.Demands {
		if d.Refused && d.RetryAfterNs == 0 {
			return 0
		}
		longest = max(longest, d.RetryAfterNs)
	}
	if r.Admitted {
		return 0
	}
	return longest
}

// askedAnywhere stands for what a request asks for, those demands included that chunks pay.
func askedAnywhere(q *admissionpb.AdmitRequest) uint64 {
	of := &admissionpb.AdmitRequest{Demands: q.Demands}
	b, _ := of.MarshalVT()
	return xxhash.Sum64(b) | 1
}
