package rpc

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/admission"
	"github.com/keystead/keystead/owner/limit"
	adminpb "github.com/keystead/keystead/proto/keystead/admin/v1"
	admissionpb "github.com/keystead/keystead/proto/keystead/admission/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
)

// Admissions is the AdmissionService for callers in this process, as far as they need it.
type Admissions struct{ s *Server }

// Admit charges all demands of a request, or none.
func (a Admissions) Admit(ctx context.Context, q *admissionpb.AdmitRequest) (*admissionpb.AdmitResponse, error) {
	return admissionAdmit.serve(ctx, a.s, q)
}

// Settle ends a hold.
func (a Admissions) Settle(ctx context.Context, q *admissionpb.SettleRequest) (*admissionpb.SettleResponse, error) {
	return admissionSettle.serve(ctx, a.s, q)
}

// maxHoldsShown is how many holds an Inspect shows.
const maxHoldsShown = 100

// slotsName is the name of slots that a demand does not name.
const slotsName = "slots"

var holdStates = map[admission.Phase]admissionpb.HoldState{
	admission.Unknown:  admissionpb.HoldState_HOLD_STATE_HOLD_UNKNOWN,
	admission.Held:     admissionpb.HoldState_HOLD_STATE_HELD,
	admission.Charged:  admissionpb.HoldState_HOLD_STATE_CHARGED,
	admission.Released: admissionpb.HoldState_HOLD_STATE_RELEASED,
}

// holdText returns what a hold is called: the client and the sequence of its request.
func holdText(id admission.ID) string {
	if id == (admission.ID{}) {
		return ""
	}
	return fmt.Sprintf("%016x%016x-%x", id.Client.Hi, id.Client.Lo, id.Sequence)
}

// namedHold reads what holdText wrote.
func namedHold(text string) (id admission.ID, err error) {
	client, sequence, _ := strings.Cut(text, "-")
	b, bad := hex.DecodeString(client)
	if bad == nil && len(b) == 16 {
		id.Client.Hi, _ = strconv.ParseUint(client[:16], 16, 64)
		id.Client.Lo, _ = strconv.ParseUint(client[16:], 16, 64)
		id.Sequence, bad = strconv.ParseUint(sequence, 16, 64)
	}
	if bad != nil || holdText(id) != text || id.Sequence == 0 {
		return admission.ID{}, &failure.Error{Reason: failure.Invalid, Field: "hold_id",
			Message: "is not the name of a hold", Hint: "send the hold that the admission was answered with"}
	}
	return id, nil
}

// maxTag is the longest tag of a hold, in bytes.
const maxTag = 128

func validTag(tag string) error {
	switch {
	case len(tag) > maxTag:
		return failure.Invalidf("hold_tag", "has %d bytes; at most %d are allowed", len(tag), maxTag)
	case !utf8.ValidString(tag):
		return failure.Invalidf("hold_tag", "is not valid UTF-8")
	}
	return nil
}

// settledHold returns which hold is to be settled: that of a name, or one of a tag.
func settledHold(q *admissionpb.SettleRequest) (admission.ID, error) {
	switch {
	case q.HoldTag == "":
		return namedHold(q.HoldId)
	case q.HoldId != "":
		return admission.ID{}, failure.Invalidf("hold_tag", "does not go with a hold_id: one of them names the hold")
	}
	return owner.Tagged(q.HoldTag), validTag(q.HoldTag)
}

// demandOf returns a demand as the store has it.
func demandOf(i int, q *admissionpb.Demand) (d owner.Demand, err error) {
	bad := func(field, message, hint string) error {
		return &failure.Error{Reason: failure.Invalid, Field: fmt.Sprintf("demands[%d].%s", i, field), Message: message, Hint: hint}
	}
	if q == nil {
		return d, bad("limit", "is missing", "say one of limit, counter and slots")
	}
	d.Cost, d.Clamp = max(q.Cost, 1), q.ClampPercent
	of, counter, slots := q.Limit, q.Counter, q.Slots
	switch {
	case of != nil && counter == nil && slots == nil:
		d.Of, d.Name = admission.Limit, cmp.Or(q.Name, limitKind)
		if d.Params, err = paramsOf(of); err != nil {
			return d, inLimit(i, err)
		}
	case of == nil && counter != nil && slots == nil:
		d.Of, d.Name, d.Max = admission.Counter, cmp.Or(q.Name, counterKind), counter.Max
	case of == nil && counter == nil && slots != nil:
		d.Of, d.Name, d.Max = admission.Slots, cmp.Or(q.Name, slotsName), slots.Max
	default:
		return d, bad("limit", "is missing, or is not alone", "say one of limit, counter and slots")
	}
	return d, nil
}

// paramsOf returns the limit that is demanded. What a check refuses of a limit is refused here.
func paramsOf(q *admissionpb.LimitDemand) (limit.Params, error) {
	op := limit.Op{Params: limit.Params{Limit: q.Limit, Period: q.PeriodNs, Burst: q.Burst}}
	plain := q.Calendar == 0 && q.TimeZone == "" && q.FirstDay == 0 && q.FirstMonth == 0 && q.CarryOver == 0
	if plain && q.Algorithm <= limitpb.Algorithm_ALGORITHM_TOKEN_BUCKET && q.Algorithm >= 0 {
		return op.Params, nil
	}
	err := refills(&limitpb.CheckRequest{Limit: q.Limit, PeriodNs: q.PeriodNs, Burst: q.Burst, Algorithm: q.Algorithm,
		Calendar: q.Calendar, TimeZone: q.TimeZone, FirstDay: q.FirstDay, FirstMonth: q.FirstMonth, CarryOver: q.CarryOver}, &op)
	return op.Params, err
}

// inLimit has an error name the limit of the demand that it is about.
func inLimit(i int, err error) error {
	var e *failure.Error
	if !errors.As(err, &e) {
		return err
	}
	of := *e
	of.Field = fmt.Sprintf("demands[%d].limit.%s", i, e.Field)
	return &of
}

// admitOf returns what is asked, without its demands.
func admitOf(q *admissionpb.AdmitRequest) (owner.Admit, error) {
	if q.OnExpiry > admissionpb.OnExpiry_ON_EXPIRY_CHARGE || q.OnExpiry < 0 {
		return owner.Admit{}, &failure.Error{Reason: failure.Invalid, Field: "on_expiry", Message: "is unknown to this node", Hint: "use RELEASE or CHARGE"}
	}
	op := owner.Admit{Hold: q.HoldNs, Charge: q.OnExpiry == admissionpb.OnExpiry_ON_EXPIRY_CHARGE, Peek: q.Peek}
	if q.HoldTag == "" {
		return op, nil
	}
	op.Tag = admission.TagOf(q.HoldTag)
	return op, validTag(q.HoldTag)
}

// admit charges all demands, or none.
func (s *Server) admit(f frame, q *admissionpb.AdmitRequest, r *admissionpb.AdmitResponse) (verdict, error) {
	op, err := admitOf(q)
	if err != nil {
		return verdict{}, err
	}
	if q.Policy != "" {
		return s.admitByPolicy(f, op, q, r)
	}
	if n := len(q.Demands); n > admission.MaxDemands {
		return verdict{}, failure.Invalidf("demands", "are %d; at most %d are allowed", n, admission.MaxDemands)
	}
	if acrossKeys(q) { // another node has sent what is not for one owner
		return verdict{}, failure.Invalidf("demands", "name keys of their own")
	}
	var room [admission.MaxDemands]owner.Demand
	op.Demands = room[:0]
	for i, d := range q.Demands {
		of, err := demandOf(i, d)
		if err != nil {
			return verdict{}, err
		}
		op.Demands = append(op.Demands, of)
	}
	return s.admitted(f, op, r)
}

// admitted charges demands, and answers.
func (s *Server) admitted(f frame, op owner.Admit, r *admissionpb.AdmitResponse) (verdict, error) {
	var answers [admission.MaxDemands]owner.DemandAnswer
	a, err := s.cfg.Store.Admit(f.now, f.at, f.id, op, answers[:0])
	if err != nil {
		if err == owner.ErrDemandSplit {
			s.makeDemandsWhole(f.at, op.Demands)
		}
		return verdict{}, err
	}
	r.Admitted, r.HoldId, r.HoldNs, r.RetryAfterNs = a.Admitted, holdText(a.Hold), a.Left, a.RetryAfter
	r.Demands = demandResults(a.Demands)
	r.Epoch, r.Replay, r.Owner, r.LostEpoch = a.Permit.Epoch, replayOf(a.Meta), s.cfg.Node, a.Permit.LostEpoch()
	return verdict{a.Meta, a.Admitted}, nil
}

// makeDemandsWhole has what is demanded put together again, where it is split.
func (s *Server) makeDemandsWhole(at owner.Ref, demands []owner.Demand) {
	if s.cfg.Cluster == nil {
		return
	}
	t := s.cfg.Cluster.Table()
	for i := range demands {
		kind := counterKind
		if demands[i].Of == admission.Limit {
			kind = limitKind
		}
		if sp := findSplit(t, kind, owner.Ref{Key: at.Key, Name: demands[i].Name, Hash: at.Hash}); sp != nil {
			s.makeWhole(sp.ID)
		}
	}
}

// settle ends a hold.
func (s *Server) settle(f frame, q *admissionpb.SettleRequest, r *admissionpb.SettleResponse) (verdict, error) {
	hold, err := settledHold(q)
	if err != nil {
		return verdict{}, err
	}
	if n := len(q.Costs); n > admission.MaxDemands {
		return verdict{}, failure.Invalidf("costs", "are %d; at most %d are allowed", n, admission.MaxDemands)
	}
	var room [admission.MaxDemands]owner.Cost
	costs := room[:0]
	for _, c := range q.Costs {
		if c.GetKey() != "" && c.Key != q.Key {
			return s.settleAcross(f, q, hold, r)
		}
		costs = append(costs, owner.Cost{Name: c.GetName(), Cost: c.GetCost()})
	}
	var to [admission.MaxDemands]owner.CostAnswer
	a, err := s.cfg.Store.SettleTo(f.now, f.at, f.id, hold, costs, q.Release, to[:0])
	if err == owner.ErrAcross {
		return s.settleAcross(f, q, hold, r)
	}
	if err != nil {
		return verdict{}, s.heldWhole(f, hold, err)
	}
	r.State = holdStates[a.Phase]
	for _, c := range a.Costs {
		r.Costs = append(r.Costs, &admissionpb.CostResult{Name: c.Name, Charged: c.Charged, Back: c.Back, Taken: c.Taken, Debt: c.Debt})
	}
	r.Epoch, r.Replay, r.Owner, r.LostEpoch = a.Permit.Epoch, replayOf(a.Meta), s.cfg.Node, a.Permit.LostEpoch()
	return verdict{a.Meta, a.Phase != admission.Unknown}, nil
}

// heldWhole has what a hold demands put together again, if that is why it failed.
func (s *Server) heldWhole(f frame, hold admission.ID, err error) error {
	if err != owner.ErrDemandSplit {
		return err
	}
	if a, bad := s.cfg.Store.InspectAdmission(f.now, f.at, hold, 1); bad == nil && len(a.Holds) == 1 {
		var demands []owner.Demand
		for _, d := range a.Holds[0].Demands {
			demands = append(demands, owner.Demand{Demand: d})
		}
		s.makeDemandsWhole(f.at, demands)
	}
	return err
}

// extend has a hold end at another time.
func (s *Server) extend(f frame, q *admissionpb.ExtendRequest, r *admissionpb.ExtendResponse) (verdict, error) {
	hold, err := namedHold(q.HoldId)
	if err != nil {
		return verdict{}, err
	}
	a, meta, err := s.cfg.Store.Extend(f.now, f.at, hold, q.HoldNs)
	if err == owner.ErrAcross {
		return s.extendHere(f, q, hold, r)
	}
	if err != nil {
		return verdict{}, s.heldWhole(f, hold, err)
	}
	r.State, r.HoldNs = holdStates[a.Phase], a.Left
	r.Epoch, r.Owner, r.LostEpoch = meta.Permit.Epoch, s.cfg.Node, meta.Permit.LostEpoch()
	return verdict{meta, a.Phase == admission.Held}, nil
}

// inspectAdmission shows holds.
func (s *Server) inspectAdmission(f frame, q *admissionpb.InspectRequest, r *admissionpb.InspectResponse) (verdict, error) {
	var hold admission.ID
	if q.HoldId != "" {
		var err error
		if hold, err = namedHold(q.HoldId); err != nil {
			return verdict{}, err
		}
	}
	a, err := s.cfg.Store.InspectAdmission(f.now, f.at, hold, maxHoldsShown)
	if err != nil {
		return verdict{}, err
	}
	for i := range a.Holds {
		h := &a.Holds[i]
		x := &admissionpb.Hold{HoldId: holdText(h.ID), State: holdStates[h.Phase], AgeNs: h.Age, HoldNs: h.Left, OnExpiry: admissionpb.OnExpiry_ON_EXPIRY_RELEASE}
		if h.Charge {
			x.OnExpiry = admissionpb.OnExpiry_ON_EXPIRY_CHARGE
		}
		for j := range h.Demands {
			x.Reserved = append(x.Reserved, &admissionpb.Cost{Name: h.Demands[j].Name, Cost: h.Demands[j].Cost})
		}
		x.Keys, x.Undecided = h.Keys, h.Undecided
		r.Holds = append(r.Holds, x)
	}
	r.Total = uint32(a.Total)
	r.Epoch, r.Owner, r.LostEpoch = a.Permit.Epoch, s.cfg.Node, a.Permit.LostEpoch()
	return verdict{a.Meta, a.Total > 0}, nil
}

func admissionState(o *adminpb.ObjectState, x *owner.Shown) (changed int64) {
	o.Admission = &adminpb.AdmissionState{Holds: uint32(x.Held())}
	at, _ := x.AdmittedAt()
	return at
}
