package rpc

import (
	"cmp"
	"time"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/gather"
	adminpb "github.com/keystead/keystead/proto/keystead/admin/v1"
	barrierpb "github.com/keystead/keystead/proto/keystead/barrier/v1"
)

var verdicts = map[gather.Verdict]barrierpb.Verdict{
	gather.Unknown:  barrierpb.Verdict_VERDICT_UNSPECIFIED,
	gather.UnderWay: barrierpb.Verdict_VERDICT_UNDER_WAY,
	gather.Passed:   barrierpb.Verdict_VERDICT_PASSED,
	gather.Broken:   barrierpb.Verdict_VERDICT_BROKEN,
}

var causes = map[gather.Cause]barrierpb.Cause{
	gather.None:     barrierpb.Cause_CAUSE_UNSPECIFIED,
	gather.Reset:    barrierpb.Cause_CAUSE_RESET,
	gather.Late:     barrierpb.Cause_CAUSE_LATE,
	gather.Lost:     barrierpb.Cause_CAUSE_LOST,
	gather.OfParent: barrierpb.Cause_CAUSE_PARENT,
}

var arriveRefusals = map[gather.Outcome]barrierpb.Refusal{
	gather.Done:     barrierpb.Refusal_REFUSAL_UNSPECIFIED,
	gather.Over:     barrierpb.Refusal_REFUSAL_OVER,
	gather.NotThere: barrierpb.Refusal_REFUSAL_NOT_REGISTERED,
}

func (s *Server) arrive(f frame, q *barrierpb.ArriveRequest, r *barrierpb.ArriveResponse) (verdict, error) {
	a, err := s.cfg.Store.Arrive(f.now, f.at, f.id, gather.Arrive{Party: q.Party, Need: q.Parties, Phase: q.Phase, Within: q.WithinNs, Child: q.Child})
	if err != nil {
		return verdict{}, err
	}
	r.Arrived, r.Refusal, r.Phase, r.Last = a.Outcome == gather.Done, arriveRefusals[a.Outcome], a.At, a.Last
	r.Verdict, r.Current, r.ArrivedParties, r.Parties = verdicts[a.Verdict], a.Phase, uint32(a.Arrived), uint32(a.Parties)
	r.Epoch, r.Replay, r.Owner, r.LostEpoch = a.Permit.Epoch, replayOf(a.Meta), s.cfg.Node, a.Permit.LostEpoch()
	return verdict{a.Meta, r.Arrived}, nil
}

// awaitPhase answers when a phase has ended, or the wait is over.
func (s *Server) awaitPhase(f frame, q *barrierpb.AwaitRequest, r *barrierpb.AwaitResponse) (verdict, error) {
	if q.Phase == 0 || q.Phase > gather.MaxPhase {
		return verdict{}, &failure.Error{Reason: failure.Invalid, Field: "phase", Message: "is missing, or out of range",
			Hint: "send the phase that Arrive or Register has returned"}
	}
	a, err := await(s, f, func(wait bool) (owner.PhaseAnswer, *owner.Pending[owner.PhaseAnswer], error) {
		return s.cfg.Store.AwaitPhase(s.cfg.Clock.Now(), f.at, q.Phase, wait)
	})
	if err != nil {
		return verdict{}, err
	}
	r.Verdict, r.Cause, r.Party = verdicts[a.Verdict], causes[a.Cause], a.Who
	r.Current, r.ArrivedParties, r.Parties = a.Phase, uint32(a.Arrived), uint32(a.Parties)
	r.Epoch, r.Owner, r.LostEpoch = a.Permit.Epoch, s.cfg.Node, a.Permit.LostEpoch()
	return verdict{a.Meta, a.Verdict != gather.UnderWay}, nil
}

// awaitLook is how often an await makes sure that this node may still answer it.
const awaitLook = 5 * time.Second

// await asks for an answer that may have to be waited for, until it is there or the wait of the
// call is over. What is not there by then is answered as it is.
func await[A any](s *Server, f frame, ask func(wait bool) (A, *owner.Pending[A], error)) (A, error) {
	var nothing A
	if f.wait < 0 || f.wait > int64(maxAwait) {
		return nothing, failure.Invalidf("wait_ns", "is %s; choose 0 to %s", time.Duration(f.wait), maxAwait)
	}
	left := time.Duration(f.wait)
	timer := time.NewTimer(min(left, awaitLook))
	defer timer.Stop()
	a, p, err := ask(left > 0)
	for err == nil && p != nil {
		select {
		case <-p.Done():
			p.End()
			if got, ok := p.Answer(); ok {
				return got, nil
			}
			a, p, err = ask(true)
		case <-timer.C:
			if left -= awaitLook; left <= 0 {
				p.End()
				a, _, err = ask(false)
				return a, err
			}
			timer.Reset(min(left, awaitLook))
			if _, _, err = ask(false); err != nil {
				p.End()
			}
		case <-f.ctx.Done():
			p.End()
			return nothing, gaveUp(f.ctx)
		case <-s.stopping:
			p.End()
			return nothing, errStopping
		}
	}
	return a, err
}

// maxAwait is the longest wait of an await.
const maxAwait = 24 * time.Hour

// patiently serves an await under a method, as one of its kind's service.
func patiently[Q, A any, PQ request[Q], PA response[A]](o *op[Q, A, PQ, PA], method string) *op[Q, A, PQ, PA] {
	o.method = method
	return o
}

// parentOf returns the parent that a request names for a phaser.
func parentOf(of owner.Ref, p *barrierpb.Parent) gather.Parent {
	if p == nil {
		return gather.Parent{}
	}
	return gather.Parent{Key: p.Key, Name: cmp.Or(p.Name, of.Name), Party: cmp.Or(p.Party, of.Key)}
}

func (s *Server) registerParty(f frame, q *barrierpb.RegisterRequest, r *barrierpb.RegisterResponse) (verdict, error) {
	a, err := s.cfg.Store.RegisterParty(f.now, f.at, f.id, gather.Register{Party: q.Party, TTL: q.TtlNs, Breaks: q.Loss != barrierpb.Loss_LOSS_DROP, Parent: parentOf(f.at, q.Parent), Child: q.Child})
	if err != nil {
		return verdict{}, err
	}
	r.Registered, r.Phase, r.Parties = a.OK, a.Phase, uint32(a.Parties)
	r.Epoch, r.Replay, r.Owner, r.LostEpoch = a.Permit.Epoch, replayOf(a.Meta), s.cfg.Node, a.Permit.LostEpoch()
	return verdict{a.Meta, a.OK}, nil
}

func (s *Server) renewParty(f frame, q *barrierpb.RenewRequest, r *barrierpb.RenewResponse) (verdict, error) {
	a, err := s.cfg.Store.RenewParty(f.now, f.at, q.Party, q.TtlNs)
	if err != nil {
		return verdict{}, err
	}
	r.Renewed, r.Phase = a.OK, a.Phase
	r.Epoch, r.Owner, r.LostEpoch = a.Permit.Epoch, s.cfg.Node, a.Permit.LostEpoch()
	return verdict{a.Meta, a.OK}, nil
}

func (s *Server) leaveBarrier(f frame, q *barrierpb.LeaveRequest, r *barrierpb.LeaveResponse) (verdict, error) {
	a, err := s.cfg.Store.LeaveBarrier(f.now, f.at, f.id, gather.Leave{Party: q.Party, Phase: q.Phase, Child: q.Child})
	if err != nil {
		return verdict{}, err
	}
	r.Left = a.OK
	r.Epoch, r.Replay, r.Owner, r.LostEpoch = a.Permit.Epoch, replayOf(a.Meta), s.cfg.Node, a.Permit.LostEpoch()
	return verdict{a.Meta, a.OK}, nil
}

func (s *Server) breakBarrier(f frame, _ *barrierpb.BreakRequest, r *barrierpb.BreakResponse) (verdict, error) {
	a, err := s.cfg.Store.BreakBarrier(f.now, f.at, f.id)
	if err != nil {
		return verdict{}, err
	}
	r.Broken = a.OK
	r.Epoch, r.Replay, r.Owner, r.LostEpoch = a.Permit.Epoch, replayOf(a.Meta), s.cfg.Node, a.Permit.LostEpoch()
	return verdict{a.Meta, a.OK}, nil
}

// defaultParties is how many parties Inspect lists when the caller does not say.
const defaultParties = 16

func (s *Server) inspectBarrier(f frame, q *barrierpb.InspectRequest, r *barrierpb.InspectResponse) (verdict, error) {
	most := int(min(q.MaxListed, maxWaiters))
	if most == 0 {
		most = defaultParties
	}
	a, c, listed, err := s.cfg.Store.InspectBarrier(f.now, f.at, most)
	if err != nil {
		return verdict{}, err
	}
	r.Phase, r.ArrivedParties, r.Parties, r.Phaser, r.Passed = a.Phase, uint32(a.Arrived), uint32(a.Parties), a.Phaser, a.Passes
	r.Epoch, r.Owner, r.LostEpoch = a.Permit.Epoch, s.cfg.Node, a.Permit.LostEpoch()
	if c.Parent.Given() {
		r.Parent, r.WaitsForParent = &barrierpb.Parent{Key: c.Parent.Key, Name: c.Parent.Name, Party: c.Parent.Party}, c.Sent
	}
	for i := range listed {
		r.Listed = append(r.Listed, &barrierpb.Party{Id: listed[i].Name, Arrived: listed[i].Phase == a.Phase})
	}
	return verdict{a.Meta, a.Phase != 0}, nil
}

func barrierState(o *adminpb.ObjectState, x *owner.Shown) (changed int64) {
	s, arrived, parties := x.Phase()
	o.Barrier = &adminpb.BarrierState{Phase: s.Phase, Arrived: uint32(arrived), Parties: uint32(parties), Phaser: s.Need == 0}
	return s.At
}
