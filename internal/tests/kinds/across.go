package kinds

import (
	"context"
	"fmt"
	"math/bits"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"

	"github.com/keystead/keystead/internal/tests/caller"
	"github.com/keystead/keystead/internal/tests/history"
	"github.com/keystead/keystead/owner"
	admissionpb "github.com/keystead/keystead/proto/keystead/admission/v1"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
)

// Across is a counter that is demanded together with others, each under a key of its own, so that their owners differ.
// What a request becomes is the same for all its counters; what each of them has charged is judged by itself.
var Across = Kind{
	Name:     "across",
	Of:       owner.KindAdmission,
	Share:    4,
	Work:     admitAcross,
	Probe:    Probe{In: history.AcrossInput{Op: history.AcrossRead}, Ask: getSpent},
	Model:    history.Across,
	Together: true,
	Workload: "counter",
}

// spent is the name of the counters.
const spent = "spent"

func getSpent(ctx context.Context, conn *grpc.ClientConn, key string) (Answer, error) {
	r, err := counterpb.NewCounterServiceClient(conn).Get(ctx, &counterpb.GetRequest{Key: key, Name: spent})
	return Answer{history.AcrossOutput{Value: r.GetValue()}, r.GetOwner(), r.GetEpoch()}, err
}

const (
	mostDemands   = 4
	mostCost      = 20
	againOf       = 4  // requests, for one that is sent again though it was answered
	askAgainTimes = 40 // a request that was refused, until all say so again
)

// span is a time by the clock of the recording.
type span struct{ from, to int64 }

// party is a counter that an admission demands.
type party struct {
	Object
	cost int64
	slot uint8 // of a hold that is not admitted
}

// admittance is an admission of several keys, from its Admit to its end.
type admittance struct {
	w       *Worker
	ctx     context.Context
	parties []party
	r       *caller.Request
	hold    int64
	charge  bool
	id      string // of the hold
	over    int64  // by when its time may be over
}

// admitAcross demands some counters at once, and ends what it holds in one of several ways.
func admitAcross(ctx context.Context, w *Worker, o Object) {
	if !w.cfg.Abandon {
		ctx = context.WithoutCancel(ctx)
	}
	all := w.objects[o.Kind]
	if len(all) < 2 {
		return
	}
	a := &admittance{w: w, ctx: ctx, charge: w.rng.IntN(2) == 0, hold: w.ttl()}
	count := 2 + w.rng.IntN(mostDemands-1)
	for _, i := range w.rng.Perm(len(all)) {
		if len(a.parties) < count-1 && all[i].Key != o.Key {
			a.parties = append(a.parties, party{Object: all[i]})
		}
	}
	a.parties = append(a.parties, party{Object: o})
	rec := w.cfg.Recording
	for i := range a.parties {
		p := &a.parties[i]
		p.cost, p.slot = 1+w.rng.Int64N(mostCost), rec.takeSlot(p.Key)
		defer rec.leaveSlot(p.Key, p.slot)
	}
	if !a.known() {
		return
	}
	a.r = w.calls.Begin()
	defer a.r.End()
	id := a.r.ID()
	a.id = fmt.Sprintf("%x-%x", id.Client, id.Sequence)
	began := w.now()
	r, sent, ok := a.admit()
	at := span{began, w.now()}
	switch {
	case ok && r.Admitted:
		a.each(func(p *party) { a.record(p, at, history.AcrossInput{Op: history.AcrossCharge, Cost: p.cost}) })
		a.answered(at)
		a.admitted(at)
	case ok:
		a.answered(at)
		a.refused(at, r)
	case sent:
		w.cfg.Log.Open()
		a.each(func(p *party) { a.loose(p, began, p.cost) })
	}
}

// known reports whether the nodes know admissions: what they do not know is given up.
func (a *admittance) known() bool {
	w := a.w
	if w.admits {
		return true
	}
	within, cancel := context.WithTimeout(a.ctx, w.cfg.Attempt)
	defer cancel()
	_, err := admissionpb.NewAdmissionServiceClient(w.conns[w.at]).Admit(within, a.request(true))
	w.admits = err == nil
	return w.admits
}

// request demands all counters.
func (a *admittance) request(peek bool) *admissionpb.AdmitRequest {
	q := &admissionpb.AdmitRequest{Peek: peek, HoldNs: a.hold, OnExpiry: admissionpb.OnExpiry_ON_EXPIRY_RELEASE}
	if a.charge {
		q.OnExpiry = admissionpb.OnExpiry_ON_EXPIRY_CHARGE
	}
	for _, p := range a.parties {
		q.Demands = append(q.Demands, &admissionpb.Demand{Key: p.Key, Name: spent, Cost: uint64(p.cost), Counter: &admissionpb.CounterDemand{Max: history.AcrossMax}})
	}
	if !peek {
		q.RequestId = a.r.ID()
	}
	return q
}

// admit sends the request, until it is answered.
func (a *admittance) admit() (r *admissionpb.AdmitResponse, sent, ok bool) {
	return insist(a.ctx, a.w, func(ctx context.Context, conn *grpc.ClientConn, opt grpc.CallOption) (*admissionpb.AdmitResponse, error) {
		return admissionpb.NewAdmissionServiceClient(conn).Admit(ctx, a.request(false), opt)
	})
}

func (a *admittance) each(do func(p *party)) {
	for i := range a.parties {
		do(&a.parties[i])
	}
}

// record has something happen to a counter, at some moment of a time.
func (a *admittance) record(p *party, at span, in history.AcrossInput) {
	a.w.cfg.Recording.calls[p.Kind].Add(history.Call{Client: a.w.number, Object: p.Key, Input: in, Start: at.from, End: at.to, Output: history.AcrossOutput{}})
}

// loose has something happen to a counter of which nothing will be known.
func (a *admittance) loose(p *party, from, cost int64) {
	if now := a.w.now(); cost != 0 {
		a.record(p, span{min(from, now), now}, history.AcrossInput{Op: history.AcrossLoose, Cost: cost})
	}
}

func (a *admittance) answered(at span) {
	a.each(func(p *party) { a.w.cfg.Log.Answered(p.Key, at.from, at.to, false) })
}

// refused waits until all is given back. A counter that did not refuse has held for a while; it may not have, if it is not
// known to have been asked.
func (a *admittance) refused(at span, r *admissionpb.AdmitResponse) {
	all := len(r.Demands) == len(a.parties)
	maybe := make([]bool, len(a.parties))
	for i, d := range r.Demands {
		maybe[i] = d.Capacity == 0
		all = all && !maybe[i]
	}
	for i := 0; !all && r.Replay == nil; i++ { // until all have said what they think of it
		again, _, ok := a.admit()
		if !ok || i == askAgainTimes {
			break
		}
		if r.Replay = again.Replay; again.Admitted {
			a.w.cfg.Log.Unexpected(fmt.Sprintf("%s is admitted, and was refused", a.id))
		}
	}
	all = all || r.Replay != nil
	for i := range a.parties {
		p := &a.parties[i]
		if i < len(r.Demands) && r.Demands[i].Refused {
			a.record(p, at, history.AcrossInput{Op: history.AcrossRefuse, Cost: p.cost})
			continue
		}
		if !all || !a.await(p, false) {
			a.loose(p, at.from, p.cost)
			continue
		}
		brief := span{at.from, a.w.now()}
		a.record(p, brief, history.AcrossInput{Op: history.AcrossBrief, Cost: p.cost, Slot: p.slot, Maybe: maybe[i]})
		a.record(p, brief, history.AcrossInput{Op: history.AcrossGone, Cost: p.cost, Slot: p.slot, Maybe: maybe[i]})
	}
}

// await waits until a counter has nothing held by the admission any more. With released, it is enough that its time is
// over.
func (a *admittance) await(p *party, released bool) bool {
	w := a.w
	q := &admissionpb.InspectRequest{Key: p.Key, HoldId: a.id}
	for began := w.now(); w.now()-began < int64(w.cfg.Insist); w.Rest(a.ctx, mostRest) {
		r, _, ok := insist(a.ctx, w, func(ctx context.Context, conn *grpc.ClientConn, opt grpc.CallOption) (*admissionpb.InspectResponse, error) {
			return admissionpb.NewAdmissionServiceClient(conn).Inspect(ctx, q, opt)
		})
		switch {
		case !ok || a.ctx.Err() != nil:
			return false
		case len(r.Holds) == 0, released && r.Holds[0].State == admissionpb.HoldState_HOLD_STATE_RELEASED:
			return true
		}
	}
	return false
}

// admitted goes on with a hold.
func (a *admittance) admitted(at span) {
	w := a.w
	a.over = at.from + w.cfg.Drift.Least(a.hold)
	if w.rng.IntN(againOf) == 0 {
		w.moveOn()
		if r, _, ok := a.admit(); ok && (!r.Admitted || r.HoldId != a.id) {
			w.cfg.Log.Unexpected(fmt.Sprintf("%s was admitted, and is not: %v", a.id, r))
		}
	}
	w.Rest(a.ctx, writePace)
	if w.rng.IntN(3) == 0 {
		a.extend()
	}
	if w.rng.IntN(2) == 0 { // its time ends it
		wait(a.ctx, max(time.Duration(a.over-w.now()), 0))
		if !a.charge && w.rng.IntN(2) == 0 {
			a.each(func(p *party) { a.expire(p) })
			return
		}
	}
	a.settle()
}

// extend has the hold end later.
func (a *admittance) extend() {
	w := a.w
	q := &admissionpb.ExtendRequest{Key: a.any().Key, HoldId: a.id, HoldNs: int64(w.cfg.LongestTTL)}
	began := w.now()
	within, cancel := context.WithTimeout(a.ctx, w.cfg.Attempt)
	defer cancel()
	r, err := admissionpb.NewAdmissionServiceClient(w.conns[w.at]).Extend(within, q)
	if err == nil && r.State == admissionpb.HoldState_HOLD_STATE_HELD {
		a.over = began + w.cfg.Drift.Least(q.HoldNs)
		w.cfg.Log.Answered(q.Key, began, w.now(), false)
	}
}

func (a *admittance) any() *party { return &a.parties[a.w.rng.IntN(len(a.parties))] }

// expire waits until a hold has given back what it had.
func (a *admittance) expire(p *party) {
	if !a.await(p, true) {
		a.loose(p, a.over, -p.cost)
		return
	}
	a.record(p, span{a.over, a.w.now()}, history.AcrossInput{Op: history.AcrossChange, Cost: -p.cost})
}

// settle says what it has cost, mostly nothing.
func (a *admittance) settle() {
	w := a.w
	reals := make([]int64, len(a.parties))
	if w.rng.IntN(8) == 0 {
		for i := range reals {
			reals[i] = w.rng.Int64N(4)
		}
	}
	if w.rng.IntN(40) == 0 {
		reals[0] = a.parties[0].cost + 3 // more than was reserved
	}
	began := w.now()
	to := a.any()
	r, sent, ok := a.tell(to, reals)
	if ok && r.State == admissionpb.HoldState_HOLD_STATE_HOLD_UNKNOWN { // its state was lost, and those of others may not
		a.record(to, span{began, w.now()}, history.AcrossInput{Op: history.AcrossForget})
		ok, reals = false, make([]int64, len(reals))
	} else if !ok && sent {
		w.cfg.Log.Open()
	}
	all := ok
	for i := range a.parties {
		p := &a.parties[i]
		if !ok || !a.await(p, false) {
			all = false
			a.unsettled(p, began, reals[i])
			continue
		}
		at := span{began, w.now()}
		if a.charge {
			a.record(p, at, history.AcrossInput{Op: history.AcrossChange, Cost: reals[i] - p.cost})
			continue
		}
		a.record(p, at, history.AcrossInput{Op: history.AcrossChange, Cost: reals[i]}) // what was given back by then is owed
		at.from = min(began, a.over)
		a.record(p, at, history.AcrossInput{Op: history.AcrossChange, Cost: -p.cost})
	}
	if all && w.rng.IntN(againOf) == 0 { // a hold acts once
		reals[0]++
		if r, _, ok := a.tell(a.any(), reals); ok && r.State != admissionpb.HoldState_HOLD_STATE_HOLD_UNKNOWN {
			w.cfg.Log.Unexpected(fmt.Sprintf("%s is settled again: %v", a.id, r))
		}
	}
}

// unsettled has a counter be charged with what a hold has cost, or not.
func (a *admittance) unsettled(p *party, began, real int64) {
	if a.charge {
		a.loose(p, began, real-p.cost)
		return
	}
	a.loose(p, began, real)
	a.loose(p, min(began, a.over), -p.cost)
}

// tell sends the costs to one of the keys, until it is answered.
func (a *admittance) tell(to *party, reals []int64) (r *admissionpb.SettleResponse, sent, ok bool) {
	q := &admissionpb.SettleRequest{Key: to.Key, HoldId: a.id}
	for i, p := range a.parties {
		q.Costs = append(q.Costs, &admissionpb.Cost{Key: p.Key, Name: spent, Cost: uint64(reals[i])})
	}
	return insist(a.ctx, a.w, func(ctx context.Context, conn *grpc.ClientConn, opt grpc.CallOption) (*admissionpb.SettleResponse, error) {
		return admissionpb.NewAdmissionServiceClient(conn).Settle(ctx, q, opt)
	})
}

// insist sends a call at one node after the other, until it is answered or the time is over. sent reports whether it may
// have been received.
func insist[R any](ctx context.Context, w *Worker, call func(ctx context.Context, conn *grpc.ClientConn, opt grpc.CallOption) (R, error)) (out R, sent, ok bool) {
	began := w.now()
	for most := leastRest; w.now()-began < int64(w.cfg.Insist) && ctx.Err() == nil; most = min(2*most, mostRest) {
		var by peer.Peer
		within, cancel := context.WithTimeout(ctx, w.cfg.Attempt)
		out, err := call(within, w.conns[w.at], grpc.Peer(&by))
		cancel()
		if err == nil {
			return out, true, true
		}
		f, unexpected := caller.FateOf(err, by.Addr != nil)
		if sent = sent || by.Addr != nil; unexpected != "" {
			w.cfg.Log.Unexpected(unexpected)
		}
		w.cfg.Log.Failed(err, f)
		if f == caller.Over {
			break
		}
		w.moveOn()
		w.Rest(ctx, most)
		w.connect()
	}
	return out, sent, false
}

// takeSlot returns the number of a brief hold of a key, which no other one has.
func (r *Recording) takeSlot(key string) uint8 {
	r.mu.Lock()
	defer r.mu.Unlock()
	free := bits.TrailingZeros64(^r.slots[key])
	if free >= history.AcrossSlots {
		panic("kinds: more workers than slots")
	}
	r.slots[key] |= 1 << free
	return uint8(free)
}

func (r *Recording) leaveSlot(key string, slot uint8) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.slots[key] &^= 1 << slot
}
