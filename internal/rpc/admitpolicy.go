package rpc

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/cespare/xxhash/v2"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/internal/policy"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/admission"
	admissionpb "github.com/keystead/keystead/proto/keystead/admission/v1"
)

// admitOp is the type of admissionAdmit.
type admitOp = op[admissionpb.AdmitRequest, admissionpb.AdmitResponse, *admissionpb.AdmitRequest, *admissionpb.AdmitResponse]

// frontAdmit answers the Admit of a user. The key of one by policy is that of the policies of this
// node; the owner goes by these, or later ones.
func (s *Server) frontAdmit(ctx context.Context, o *admitOp, q *admissionpb.AdmitRequest) (*admissionpb.AdmitResponse, error) {
	x, err := s.addressAdmit(q)
	switch {
	case err != nil:
		return nil, s.refuse(err)
	case q.Policy != "" && x.Falls():
		return s.admitOr(ctx, o, q, &x)
	}
	if anywhereOf(q) {
		return s.admitAnywhere(ctx, o, q)
	}
	if acrossKeys(q) {
		return s.admitAcross(ctx, o, q)
	}
	return o.atOwner(ctx, s, q)
}

// addressAdmit says the key of a request, and what it demands, if that is by policy.
func (s *Server) addressAdmit(q *admissionpb.AdmitRequest) (x policy.Selected, err error) {
	if q.Policy == "" {
		if len(q.Fields) > 0 || len(q.Amounts) > 0 || q.PolicyVersion != 0 {
			return x, failure.Invalidf("policy", "is missing: fields, amounts and policy_version go with one")
		}
		return x, nil
	}
	if q.Key != "" || len(q.Demands) > 0 {
		return x, failure.Invalidf("policy", "says key and demands: leave them out, or leave it out")
	}
	if err := s.heardOf(q.PolicyVersion); err != nil {
		return x, err
	}
	x, version, err := s.selectDemands(q)
	if err != nil {
		return x, err
	}
	q.Key, q.PolicyVersion = x.Key, version
	return x, nil
}

// selectDemands returns what the policies of this node demand of a request, and their version.
func (s *Server) selectDemands(q *admissionpb.AdmitRequest) (x policy.Selected, version uint64, err error) {
	fields, amounts, err := saidOf(q)
	if err != nil {
		return x, 0, err
	}
	if !policy.ValidName(q.Policy) {
		return x, 0, failure.Invalidf("policy", "is %.64q; the name of a policy has 1 to %d letters, digits, '.', '_', '-' and '/'", q.Policy, policy.MaxName)
	}
	a, version, err := s.inForce().Admission(q.Policy)
	if err != nil {
		return x, version, err
	}
	if a == nil {
		e := &failure.Error{Reason: failure.PolicyUnknown,
			Message: fmt.Sprintf("there is no admission policy %q in version %d of the policies; nothing happened", q.Policy, version),
			Hint:    "`keystead policy show` lists those that are there, under `admissions`; `keystead policy apply FILE` adds some"}
		if version == 0 {
			e.Message = fmt.Sprintf("there is no admission policy %q: there are no policies at all; nothing happened", q.Policy)
		}
		return x, version, e
	}
	x, err = a.Select(fields, amounts)
	return x, version, err
}

// saidOf returns what a request says of itself, by name.
func saidOf(q *admissionpb.AdmitRequest) (fields map[string]string, amounts map[string]uint64, err error) {
	if len(q.Fields) > policy.MaxFields || len(q.Amounts) > policy.MaxFields {
		return nil, nil, failure.Invalidf("fields", "and amounts are %d and %d; at most %d of each are allowed", len(q.Fields), len(q.Amounts), policy.MaxFields)
	}
	fields, amounts = map[string]string{}, map[string]uint64{}
	for _, x := range q.Fields {
		if _, twice := fields[x.GetName()]; twice {
			return nil, nil, failure.Invalidf("fields", "has %.64q twice", x.GetName())
		}
		fields[x.GetName()] = x.GetValue()
	}
	for _, x := range q.Amounts {
		if _, twice := amounts[x.GetName()]; twice {
			return nil, nil, failure.Invalidf("amounts", "has %.64q twice", x.GetName())
		}
		amounts[x.GetName()] = x.GetCost()
	}
	return fields, amounts, nil
}

// askedFor stands for what a request by policy asks for, whatever that demands by now.
func askedFor(q *admissionpb.AdmitRequest) uint64 {
	fields, amounts, _ := saidOf(q)
	var b []byte
	add := func(text string) { b = append(binary.AppendUvarint(b, uint64(len(text))), text...) }
	add(q.Policy)
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		add(name)
		add(fields[name])
	}
	add("")
	for _, name := range slices.Sorted(maps.Keys(amounts)) {
		add(name)
		b = binary.AppendUvarint(b, amounts[name])
	}
	return xxhash.Sum64(b) | 1
}

// admitTries is how often demands are selected anew because the policies were changed meanwhile.
const admitTries = 4

// admitByPolicy charges what the policies of this node demand of a request.
func (s *Server) admitByPolicy(f frame, op owner.Admit, q *admissionpb.AdmitRequest, r *admissionpb.AdmitResponse) (verdict, error) {
	if err := s.behind(q.PolicyVersion); err != nil {
		return verdict{}, err
	}
	op.Asked = askedFor(q)
	for range admitTries {
		x, version, err := s.selectDemands(q)
		if err != nil {
			return verdict{}, err
		}
		// The policies may have another key by now.
		//guard:admission-policy-key
		if x.Key != q.Key {
			return verdict{}, owner.ErrPolicies
		}
		op.Policies, op.Demands = version, make([]owner.Demand, len(x.Demands))
		for i, d := range x.Demands {
			op.Demands[i] = demandBy(&d)
		}
		v, err := s.admitted(f, op, r)
		if err == owner.ErrPolicies {
			continue
		}
		if err != nil {
			return v, ofPolicy(x.Demands, err)
		}
		r.Key, r.PolicyVersion = x.Key, version
		for i := range r.Demands {
			r.Demands[i].Name = x.Demands[i].Name
		}
		return v, nil
	}
	return verdict{}, owner.ErrPolicies
}

// ofPolicy has an error name the demand that it is about, which its caller knows by no number.
func ofPolicy(demands []policy.Demand, err error) error {
	var e *failure.Error
	if !errors.As(err, &e) {
		return err
	}
	i, _, ok := demandIn(e.Field)
	if !ok || i >= len(demands) {
		return err
	}
	of := *e
	of.Message = fmt.Sprintf("%s (the demand %q)", e.Message, demands[i].Name)
	return &of
}

// demandBy returns a demand of a policy as the store has it.
func demandBy(d *policy.Demand) owner.Demand {
	x := owner.Demand{Clamp: d.Clamp}
	x.Name, x.Cost = d.Name, d.Cost
	switch d.Of {
	case policy.OfLimit:
		x.Of, x.Params = admission.Limit, d.Params()
	case policy.OfCounter:
		x.Of, x.Max = admission.Counter, d.Max
	case policy.OfSlots:
		x.Of, x.Max = admission.Slots, d.Max
	}
	return x
}
