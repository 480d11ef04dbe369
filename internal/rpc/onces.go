package rpc

import (
	"cmp"
	"time"

	"github.com/keystead/keystead/internal/forward"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/once"
	oncepb "github.com/keystead/keystead/proto/keystead/once/v1"
)

// onceBeat is how often one of the callers that wait for a key asks at least: by then it knows
// that the key has another owner, and goes there.
const onceBeat = time.Second

var onceOutcomes = map[once.Outcome]oncepb.Outcome{
	once.First: oncepb.Outcome_OUTCOME_FIRST,
	once.Busy:  oncepb.Outcome_OUTCOME_BUSY,
	once.Done:  oncepb.Outcome_OUTCOME_DONE,
}

var oncePhases = map[once.Phase]oncepb.Phase{
	once.Absent:   oncepb.Phase_PHASE_UNSPECIFIED,
	once.UnderWay: oncepb.Phase_PHASE_UNDER_WAY,
	once.Finished: oncepb.Phase_PHASE_DONE,
}

// turnClaim returns what a holder shows, the zero TurnClaim if it shows nothing.
func turnClaim(c *oncepb.Reclaim) owner.TurnClaim {
	if c == nil {
		return owner.TurnClaim{}
	}
	return owner.TurnClaim{Print: []byte(c.Fingerprint), Holder: []byte(c.Holder), Left: max(c.LeftNs, 1)}
}

func (s *Server) beginOnce(f frame, q *oncepb.BeginRequest, r *oncepb.BeginResponse) (verdict, error) {
	op := once.Begin{Print: []byte(q.Fingerprint), Holder: []byte(q.Holder), TTL: q.TtlNs}
	a, err := s.cfg.Store.BeginOnce(f.now, f.at, f.id, op)
	if err == nil && a.Outcome == once.Busy && f.wait > 0 {
		a, err = s.awaitTurn(f, op)
	}
	if err != nil {
		return verdict{}, err
	}
	r.Outcome, r.Token, r.TtlNs, r.Attempt = onceOutcomes[a.Outcome], a.Token, a.Left, a.Attempt
	switch a.Outcome {
	case once.First:
		if !a.Replayed {
			r.WaitedNs = max(a.Since-f.now, 0)
		}
	case once.Busy:
		r.Holder, r.AgeNs = string(a.Holder), max(s.cfg.Clock.Now()-a.Since, 0)
	case once.Done:
		r.Result, r.AgeNs = a.Result, max(s.cfg.Clock.Now()-a.Since, 0)
	}
	r.Epoch, r.Replay, r.Owner, r.LostEpoch = a.Permit.Epoch, replayOf(a.Meta), s.cfg.Node, a.Permit.LostEpoch()
	return verdict{a.Meta, a.Outcome == once.First}, nil
}

// awaitTurn is for a Begin that may wait, and was told that another has the turn.
func (s *Server) awaitTurn(f frame, op once.Begin) (owner.Turn, error) {
	w, err := s.cfg.Store.AwaitOnce(f.at)
	if err != nil {
		return owner.Turn{}, err
	}
	defer w.Leave()
	over := time.NewTimer(time.Duration(f.wait))
	defer over.Stop()
	ask := func() (owner.Turn, error) {
		return s.cfg.Store.BeginOnce(s.cfg.Clock.Now(), f.at, f.id, op)
	}
	select {
	case <-w.Lookout():
		w.Asks()
		return s.lookOut(f, w, over.C, ask, op.Print)
	case <-w.Done():
		if t, ok := w.Turn(op.Print); ok {
			return t, nil
		}
		a, err := ask()
		return s.unlessLeft(f, a, err)
	case <-over.C:
		a, err := ask()
		return s.unlessLeft(f, a, err)
	case <-f.ctx.Done():
		return owner.Turn{}, gaveUp(f.ctx)
	case <-s.stopping:
		return owner.Turn{}, errStopping
	}
}

// lookOut asks for the turn until it is the caller's, or the work is done, or its time is over.
func (s *Server) lookOut(f frame, w *owner.OnceWait, over <-chan time.Time, ask func() (owner.Turn, error), print []byte) (owner.Turn, error) {
	for last := false; ; {
		a, err := ask()
		if err != nil || a.Outcome != once.Busy || last {
			return s.unlessLeft(f, a, err)
		}
		look := time.NewTimer(min(time.Duration(max(a.Left, 1)), onceBeat))
		select {
		case <-look.C:
		case <-w.Stirred():
		case <-w.Done():
			if t, ok := w.Turn(print); ok {
				look.Stop()
				return t, nil
			}
			last = true
		case <-over:
			last = true
		case <-f.ctx.Done():
			look.Stop()
			return owner.Turn{}, gaveUp(f.ctx)
		case <-s.stopping:
			look.Stop()
			return owner.Turn{}, errStopping
		}
		look.Stop()
	}
}

// unlessLeft gives a turn up that came as its caller left. With a request id it is the caller's
// still: a retry gets it, or its lease ends it.
func (s *Server) unlessLeft(f frame, a owner.Turn, err error) (owner.Turn, error) {
	if err != nil || f.ctx.Err() == nil || a.Outcome != once.First || f.id.Given() {
		return a, err
	}
	_, _ = s.cfg.Store.AbandonOnce(s.cfg.Clock.Now(), f.at, f.id, a.Token) // else its lease ends it
	return owner.Turn{}, gaveUp(f.ctx)
}

// unbegin returns the end of a turn that began as its caller left: see ungrant.
func unbegin(q *oncepb.BeginRequest, r *oncepb.BeginResponse) *forward.Call {
	if r.Outcome != oncepb.Outcome_OUTCOME_FIRST || q.RequestId != nil || keyOf(q) != "" {
		return nil
	}
	return onceAbandon.call(&oncepb.AbandonRequest{Key: q.Key, Name: q.Name, Token: r.Token}, owner.Hash(q.Key))
}

// addTurnWaited adds what a caller had waited before, here and with former owners: its wait begins
// anew with each.
func addTurnWaited(r *oncepb.BeginResponse, before int64, _ bool) {
	if r.Outcome == oncepb.Outcome_OUTCOME_FIRST && r.Replay == nil {
		r.WaitedNs += before
	}
}

func (s *Server) renewOnce(f frame, q *oncepb.RenewRequest, r *oncepb.RenewResponse) (verdict, error) {
	a, err := s.cfg.Store.RenewOnce(f.now, f.at, q.Token, q.TtlNs, turnClaim(q.Reclaim))
	if err != nil {
		return verdict{}, err
	}
	if r.Renewed, r.Reclaimed = a.OK, a.Reclaimed; a.OK {
		r.TtlNs = a.Left
	} else {
		r.Phase = oncePhases[a.Phase]
	}
	r.Epoch, r.Owner, r.LostEpoch = a.Permit.Epoch, s.cfg.Node, a.Permit.LostEpoch()
	return verdict{a.Meta, a.OK}, nil
}

func (s *Server) completeOnce(f frame, q *oncepb.CompleteRequest, r *oncepb.CompleteResponse) (verdict, error) {
	done, err := s.admitValue(f, len(q.Result))
	if err != nil {
		return verdict{}, err
	}
	defer done()
	a, err := s.cfg.Store.CompleteOnce(f.now, f.at, f.id, q.Token, q.Result, cmp.Or(q.KeepNs, once.DefaultKeep), turnClaim(q.Reclaim))
	if err != nil {
		return verdict{}, err
	}
	if r.Completed = a.OK; a.OK {
		r.KeepNs = a.Left
	} else {
		r.Phase = oncePhases[a.Phase]
	}
	r.Epoch, r.Replay, r.Owner, r.LostEpoch = a.Permit.Epoch, replayOf(a.Meta), s.cfg.Node, a.Permit.LostEpoch()
	return verdict{a.Meta, a.OK}, nil
}

func (s *Server) abandonOnce(f frame, q *oncepb.AbandonRequest, r *oncepb.AbandonResponse) (verdict, error) {
	done, err := s.admitValue(f, 0)
	if err != nil {
		return verdict{}, err
	}
	defer done()
	a, err := s.cfg.Store.AbandonOnce(f.now, f.at, f.id, q.Token)
	if err != nil {
		return verdict{}, err
	}
	r.Abandoned = a.OK
	r.Epoch, r.Replay, r.Owner, r.LostEpoch = a.Permit.Epoch, replayOf(a.Meta), s.cfg.Node, a.Permit.LostEpoch()
	return verdict{a.Meta, a.OK}, nil
}

func (s *Server) getOnce(f frame, _ *oncepb.GetRequest, r *oncepb.GetResponse) (verdict, error) {
	a, err := s.cfg.Store.GetOnce(f.now, f.at)
	if err != nil {
		return verdict{}, err
	}
	if a.OK {
		r.Phase, r.Token, r.Attempt, r.TtlNs = oncePhases[a.Phase], a.Token, a.Attempt, a.Left
		r.Holder, r.Fingerprint, r.Result = string(a.Holder), string(a.Print), a.Result
		r.AgeNs = max(f.now-a.Since, 0)
	}
	r.Epoch, r.Owner, r.LostEpoch = a.Permit.Epoch, s.cfg.Node, a.Permit.LostEpoch()
	return verdict{a.Meta, a.OK}, nil
}

func (s *Server) forgetOnce(f frame, q *oncepb.ForgetRequest, r *oncepb.ForgetResponse) (verdict, error) {
	a, err := s.cfg.Store.ForgetOnce(f.now, f.at, f.id, q.UnderWay)
	if err != nil {
		return verdict{}, err
	}
	r.Forgotten, r.Phase = a.OK, oncePhases[a.Phase]
	r.Epoch, r.Replay, r.Owner, r.LostEpoch = a.Permit.Epoch, replayOf(a.Meta), s.cfg.Node, a.Permit.LostEpoch()
	return verdict{a.Meta, a.OK}, nil
}
