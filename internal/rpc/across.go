package rpc

import (
	"context"
	"encoding/binary"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/internal/forward"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/across"
	"github.com/keystead/keystead/owner/admission"
	"github.com/keystead/keystead/owner/reqid"
	admissionpb "github.com/keystead/keystead/proto/keystead/admission/v1"
	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
)

// What a participant of an admission of several keys answers to other nodes: to the Hold of a coordinator, which goes
// to the key, and to words and questions, which come many at a time to the node. No answer leaves before the copies
// have what it tells, whatever the settings say of admissions.

// maxNews is how many words or questions a message has at most.
const maxNews = 1_000

// wireKnowledge returns what a participant knows as it travels. now is that of its clock.
func wireKnowledge(a *across.Answer, now int64) *peerv1.Knowledge {
	k := new(peerv1.Knowledge)
	tellKnowledge(k, a, now)
	return k
}

func tellKnowledge(k *peerv1.Knowledge, a *across.Answer, now int64) {
	k.Phase, k.Costs = uint32(a.Phase), a.Costs
	if a.Phase == across.Refused {
		k.Demands, k.RetryNs, k.Contended = uint32(a.Demands), a.RetryAt-now, a.Contended
	}
}

// knowledge reads what wireKnowledge wrote, by the clock of this node.
func knowledge(k *peerv1.Knowledge, now int64) (a across.Answer) {
	if k == nil || k.Phase > uint32(across.Forgotten) {
		return a // nothing
	}
	a.Phase, a.Costs = across.Phase(k.Phase), k.Costs
	if a.Phase == across.Refused {
		a.Refusal = across.Refusal{Demands: across.Set(k.Demands), RetryAt: now + k.RetryNs, Contended: k.Contended}
	}
	return a
}

// holdAcross charges what is demanded of one participant, or refuses it.
func (s *Server) holdAcross(f frame, q *peerv1.HoldRequest, r *peerv1.HoldResponse) (verdict, error) {
	if len(q.Demands) > admission.MaxDemands || len(q.Of) > across.MaxDemands || q.Self >= across.MaxKeys {
		return verdict{}, failure.Invalidf("demands", "are not those of an admission")
	}
	op := owner.HoldAcross{Self: uint8(q.Self), Epoch: q.Epoch,
		Terms: across.Terms{Keys: q.Keys, Of: q.Of, Names: q.Names, Hold: q.HoldNs, Charge: q.Charge, Print: q.Print}}
	var room [admission.MaxDemands]owner.Demand
	op.Demands = room[:0]
	for i, d := range q.Demands {
		of, err := demandOf(i, d)
		if err != nil {
			return verdict{}, err
		}
		op.Demands = append(op.Demands, of)
	}
	var answers [admission.MaxDemands]owner.DemandAnswer
	a, err := s.cfg.Store.HoldAcross(f.now, f.at, f.id, op, answers[:0])
	if err != nil {
		if err == owner.ErrDemandSplit {
			s.makeDemandsWhole(f.at, op.Demands)
		}
		return verdict{}, err
	}
	r.Knows, r.Demands, r.HoldNs = wireKnowledge(&a.Answer, a.Now), demandResults(a.Demands), a.Left
	r.Epoch, r.Replay, r.LostEpoch = a.Permit.Epoch, replayOf(a.Meta), a.Permit.LostEpoch()
	return verdict{a.Meta, a.Phase.Holds()}, nil
}

// ofNews returns an operation on words or questions that are for keys of one node. It is the same when it is done twice.
func ofNews(number uint32, name string, do func(*Server, int64, *peerv1.News, across.ID) (owner.AcrossAnswer, error)) *operation {
	x := &operation{verb: ofPeers, cost: costsMany, durable: asDone, level: owner.AdmissionLevel}
	x.Operation = forward.Operation{
		Number: number, Name: name, Beside: true, Bare: true, // it waits for copies
		Request:  func() forward.Message { return new(peerv1.NewsRequest) },
		Response: func() forward.Message { return new(peerv1.NewsResponse) },
		Call: func(m forward.Message) forward.Call {
			return forward.Call{Op: &x.Operation, Request: m, Harmless: true}
		},
	}
	x.decide = func(_ context.Context, s *Server, c *forward.Call, _ *unconfirmed) (forward.Message, error) {
		return s.heardNews(c.Request.(*peerv1.NewsRequest), do)
	}
	return x
}

// heardNews has the participants of this node answer, and waits until the answers may be told. One that may not is left
// out: it is asked or told again.
func (s *Server) heardNews(q *peerv1.NewsRequest, do func(*Server, int64, *peerv1.News, across.ID) (owner.AcrossAnswer, error)) (*peerv1.NewsResponse, error) {
	if len(q.News) > maxNews {
		return nil, failure.Invalidf("news", "are %d; at most %d are allowed", len(q.News), maxNews)
	}
	r := &peerv1.NewsResponse{Answers: make([]*peerv1.Knowledge, len(q.News))}
	permits := make([]owner.Permit, len(q.News))
	now := s.cfg.Clock.Now() // of all: reading it is a system call
	knows := make([]peerv1.Knowledge, len(q.News))
	for i, x := range q.News {
		r.Answers[i] = &knows[i]
		id, ok := acrossID(x)
		if !ok {
			continue
		}
		a, err := do(s, now, x, id)
		if err != nil {
			continue // it says nothing
		}
		tellKnowledge(r.Answers[i], &a.Answer, a.Now)
		permits[i] = a.Permit
	}
	for i, k := range r.Answers {
		//guard:across-news-copied
		if k.Phase != 0 && s.awaitCopies(permits[i].Hash, false) != nil {
			k.Reset()
		}
	}
	now = s.cfg.Clock.Now()
	for i, k := range r.Answers {
		//guard:across-news-confirmed
		if k.Phase != 0 && s.cfg.Store.Confirm(permits[i], now) != nil {
			k.Reset()
		}
	}
	return r, nil
}

func acrossID(x *peerv1.News) (id across.ID, ok bool) {
	if x == nil || len(x.Client) != 16 || x.Sequence == 0 || x.To >= across.MaxKeys || x.Phase > uint32(across.Forgotten) {
		return id, false
	}
	return across.ID{Client: reqid.Client{Hi: binary.BigEndian.Uint64(x.Client), Lo: binary.BigEndian.Uint64(x.Client[8:])}, Sequence: x.Sequence}, true
}

func (s *Server) newsRef(x *peerv1.News) owner.Ref {
	return owner.Ref{Key: x.Key, Name: x.Name, Hash: owner.Hash(x.Key)}
}

// wordAcross tells a participant of this node news of an admission. What cannot be given back because it is split is put
// together again: it is told again.
func (s *Server) wordAcross(now int64, x *peerv1.News, id across.ID) (owner.AcrossAnswer, error) {
	f := frame{now: now, at: s.newsRef(x)}
	a, err := s.cfg.Store.TellAcross(f.now, f.at, across.Word{ID: id, To: uint8(x.To), Key: x.Key, Epoch: x.Epoch,
		Phase: across.Phase(x.Phase), Costs: x.Costs, All: x.All, Print: x.Print})
	return a, s.heldWhole(f, admission.ID(id), err)
}

// questionAcross asks a participant of this node what it knows of an admission.
func (s *Server) questionAcross(now int64, x *peerv1.News, id across.ID) (owner.AcrossAnswer, error) {
	return s.cfg.Store.AskAcross(now, s.newsRef(x), across.Question{ID: id, To: uint8(x.To), Key: x.Key, Epoch: x.Epoch, Age: max(x.AgeNs, 0), Print: x.Print})
}

// wireClient returns the client of an id as it travels.
func wireClient(c reqid.Client) []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(make([]byte, 0, 16), c.Hi), c.Lo)
}

func wireQuestion(name string, q *across.Question) *peerv1.News {
	return &peerv1.News{Key: q.Key, Name: name, Client: wireClient(q.Client), Sequence: q.Sequence, To: uint32(q.To), Epoch: q.Epoch, Print: q.Print, AgeNs: q.Age}
}

func wireWord(name string, w *across.Word) *peerv1.News {
	return &peerv1.News{Key: w.Key, Name: name, Client: wireClient(w.Client), Sequence: w.Sequence, To: uint32(w.To), Epoch: w.Epoch, Print: w.Print,
		Phase: uint32(w.Phase), Costs: w.Costs, All: w.All}
}

// demandResults are what became of demands, in the words of the API.
func demandResults(all []owner.DemandAnswer) []*admissionpb.DemandResult {
	results := make([]admissionpb.DemandResult, len(all))
	told := make([]*admissionpb.DemandResult, len(all))
	for i, d := range all {
		x := &results[i]
		x.Refused, x.Reserved, x.Capacity, x.Remaining, x.Debt, x.RetryAfterNs, x.ResetAfterNs, x.Overridden = d.Refused, d.Reserved, d.Capacity, d.Remaining, d.Debt, d.RetryAfter, d.ResetAfter, d.Overridden
		told[i] = x
	}
	return told
}
