package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	admissionpb "github.com/keystead/keystead/proto/keystead/admission/v1"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
)

// MaxDemands is the most demands that one Admit has.
const MaxDemands = 16

// Admission is a named admission that many keys have, each its own: what keeps holds on limits, counters
// and slots of its key. It is a small value: making one costs nothing, and it may be copied and kept.
type Admission struct {
	c    *Client
	name string
}

// Admission names an admission, with at most 128 bytes. name "" = "admission".
func (c *Client) Admission(name string) Admission { return Admission{c, name} }

// Demand is what a request needs of one limit, counter or set of slots. Limit.Demand, Counter.Demand and
// Slots make one.
type Demand struct {
	limit *admissionpb.LimitDemand
	count int64
	slots bool
	name  string
	cost  uint64
	clamp int
	key   string
	wrong error

	anywhere bool
}

// Demand is a demand of n tokens of the limit. One that is Spaced passes if its turn is now; a caller that is ready to
// wait for it asks the limit by itself, when all else is admitted. The limit of a policy cannot be demanded.
//
// A demand of a limit that is Anywhere, Under a key of its own, is paid out of a chunk by the owner of the key of the
// others: no message goes to its own owner. Then there is no Hold, and all others are of one key.
func (l Limit) Demand(n uint64) Demand {
	r, c := &l.rate, &l.rate.Calendar
	d := Demand{name: l.name, cost: n, anywhere: l.anywhere, limit: &admissionpb.LimitDemand{Limit: r.Limit, PeriodNs: int64(r.Period), Burst: r.Burst, Algorithm: r.Algorithm.onWire(),
		Calendar: limitpb.CalendarUnit(c.Unit), TimeZone: c.TimeZone, FirstDay: uint32(c.FirstDay), FirstMonth: uint32(c.FirstMonth), CarryOver: c.CarryOver}}
	switch {
	case l.policy != "":
		d.wrong = invalid("Demand", "is of the policy %q: state its rate, or check it by itself", l.policy)
	case l.maxDelay != 0:
		d.wrong = invalid("MaxDelay", "does not go with a demand: it passes if its turn is now")
	}
	return d
}

// Demand is a demand that the counter rises by n and not above most.
func (n Counter) Demand(by uint64, most int64) Demand {
	return Demand{name: n.name, cost: by, count: most}
}

// Slots is a demand of n slots of so many. They come back when the hold ends, however it does. name "" =
// "slots".
func Slots(name string, n uint64, of int64) Demand {
	return Demand{name: name, cost: n, count: of, slots: true}
}

// Clamped has an estimate reserve a share of the capacity at most, in percent, 1 to 100. What it has
// cost is charged when it is settled, so it goes with a Hold. Not of slots, which nothing corrects.
func (d Demand) Clamped(percent int) Demand {
	d.clamp = percent
	return d
}

// called returns the name of what is demanded.
func (d *Demand) called() string {
	switch {
	case d.limit != nil:
		return cmp.Or(d.name, "limit")
	case d.slots:
		return cmp.Or(d.name, "slots")
	default:
		return cmp.Or(d.name, "counter")
	}
}

// Admit asks whether a request may run.
type Admit struct {
	Key string
	// Demands are 1 to MaxDemands, of objects of Key, each with another name, or of other keys (Demand.Under). What is
	// of one key costs one step of one node; with several keys, all of their owners are asked at once. Key may be ""
	// if all demands have keys. An IdempotencyKey does not go with several.
	Demands []Demand
	// Hold is for how long what is demanded is reserved at most, 10 ms to 24 h; it is settled before.
	// 0 = it is spent at once.
	Hold time.Duration
	// Charge has what nobody settles stay charged. Else it is given back.
	Charge bool
	// Keep extends the hold by itself until Settle or Release is called, so that Hold may be short and the request long:
	// what a process that dies has reserved, or what could not be settled, ends after Hold.
	Keep bool
	Peek bool // answer as for a real request, but charge nothing

	// Tag names the hold for who was never told its id: Admission.SettleTag and ReleaseTag, and Settle and Release of the
	// handle, end one of the holds of the tag. At most 128 bytes, and 64 holds of an admission of a key have one
	// tag at a time. A retry makes another hold, which its time ends: with a Tag, a Hold is short. It goes with
	// demands of one key, and not with Keep or an IdempotencyKey.
	Tag string

	// Policy names an admission policy, which says Key and Demands by what the request is: see
	// Admin.ApplyPolicies. One that is not there is ErrPolicyUnknown.
	Policy  string
	Fields  map[string]string // what the request is, by the names that the policy has for it
	Amounts map[string]uint64 // what it costs, likewise

	Options []CallOption
}

// DemandResult is what became of a demand.
type DemandResult struct {
	Name       string // of its limit, counter or slots, for Settle
	Refused    bool
	Reserved   uint64 // what it charges: its cost, or less if that was clamped
	Capacity   uint64
	Remaining  uint64
	Debt       uint64        // what is charged beyond the capacity, and has to be paid first
	RetryAfter time.Duration // until it could pass, if it was refused; 0 = nobody knows
	ResetAfter time.Duration // until everything is available; 0 of a counter and of slots
	Overridden bool          // an override was in force, of which Capacity is
	Degraded   Degraded      // by what it was decided, if Admitted.Degraded; Capacity and Remaining are that's
}

// Admitted is a request that may run, or was refused. Its methods may be called from any goroutine.
type Admitted struct {
	OK            bool
	PolicyVersion uint64        // of the policies that the owner went by; 0 without a Policy
	RetryAfter    time.Duration // until all demands could pass, if not OK; 0 = nobody knows
	// Contended reports that demands of several keys would all pass but for what is held for requests that may be
	// refused yet.
	Contended bool
	Demands   []DemandResult
	// Degraded says that the owner could not be asked in time, and the fallbacks of the Policy decided, those of all
	// demands. Owner is then the node that did. There is no hold: Settle and Release do nothing, and nothing is
	// charged when the owner is back.
	Degraded bool
	Meta

	of   Admission
	key  string
	keys []string // of all demands, if they are of several
	hold string
	tag  string // by which it is ended, in place of hold
	ttl  time.Duration

	mu      sync.Mutex
	settled bool
	stop    func() // of the keeper; nil = there is none
	lost    chan struct{}
}

// Admit asks the admission "admission" of a key: see Admission.Admit.
func (c *Client) Admit(ctx context.Context, q Admit) (*Admitted, error) {
	return c.Admission("").Admit(ctx, q)
}

// Admit charges all that q demands, or nothing. If a demand refuses, the error is ErrNotAdmitted, and what is
// returned beside it says which, and when to try again. If the outcome cannot be learnt, the error is
// ErrOutcomeUnknown, and a hold that may have been made is released in the background, but under an IdempotencyKey.
// The Release of what was not admitted, or has no hold, does nothing:
//
//	h, err := c.Admit(ctx, q)
//	if err != nil { … }
//	defer h.Release(ctx)
func (a Admission) Admit(ctx context.Context, q Admit) (*Admitted, error) {
	const what = "admit"
	idem, err := keyOf(q.Options)
	h := &Admitted{of: a, key: q.Key, keys: q.keys(), tag: q.Tag, ttl: q.Hold, lost: make(chan struct{})}
	if q.Key == "" && len(h.keys) > 0 {
		h.key = h.keys[0]
	}
	addressed := a.c.judge(ctx, h.key, a.name)
	if q.Policy != "" {
		addressed = a.c.judge(ctx, q.Policy, a.name) // its key is not known here
	}
	if err := cmp.Or(addressed, err, q.validate(idem)); err != nil {
		return h, about(err, what, q.Key, "")
	}
	demands := make([]*admissionpb.Demand, len(q.Demands))
	for i := range q.Demands {
		demands[i] = q.Demands[i].onWire()
	}
	expiry := admissionpb.OnExpiry_ON_EXPIRY_RELEASE
	if q.Charge {
		expiry = admissionpb.OnExpiry_ON_EXPIRY_CHARGE
	}
	var op *operation // nil: the hold is known by its tag
	if q.Tag == "" {
		op = a.c.ops.begin()
		defer op.finish()
	}
	sent := time.Now() // the owner counts from a moment after it
	to := toKey(h.key, q.Peek).of(what)
	if q.Policy != "" {
		to = route{what: what}
	}
	r, err := ask(ctx, a.c, to, op, func(ctx context.Context, conn *grpc.ClientConn, id *commonpb.RequestId, opts ...grpc.CallOption) (*admissionpb.AdmitResponse, error) {
		return admissionpb.NewAdmissionServiceClient(conn).Admit(ctx, &admissionpb.AdmitRequest{Key: q.Key, Name: a.name, Demands: demands, HoldNs: int64(q.Hold), OnExpiry: expiry, Peek: q.Peek,
			Policy: q.Policy, Fields: q.fields(), Amounts: q.amounts(), RequestId: unlessKeyed(id, idem), IdempotencyKey: idem, HoldTag: q.Tag}, opts...)
	})
	if err != nil {
		// With a tag that could end a hold of another request.
		//guard:client-admit-back
		if op != nil && errors.Is(err, ErrOutcomeUnknown) && q.Hold != 0 && !q.Peek && idem == "" && h.key != "" {
			op.finish()
			a.giveBack(h.key, holdOf(op))
		}
		return h, err
	}
	h.told(r, q.Demands)
	if !h.OK {
		return h, h.refusal(r)
	}
	if q.Keep && h.hold != "" {
		left := q.Hold
		//guard:client-hold-left false
		if idem != "" || r.HoldNs == 0 { // an earlier call may have made it
			left = time.Duration(r.HoldNs)
		}
		h.keep(sent, left)
	}
	return h, nil
}

// giveBack releases, in the background, a hold that may have been made when its caller had left. What comes after it
// of the request is refused by its id, or ends by its time.
func (a Admission) giveBack(key, hold string) {
	a.c.start(func() {
		ctx, cancel := a.c.bounded(a.c.ctx, a.c.cfg.Timeout)
		defer cancel()
		_, _ = a.Release(ctx, key, hold)
	})
}

func (q *Admit) validate(idem string) error {
	for i := range q.Demands {
		d := &q.Demands[i]
		switch {
		case d.wrong != nil:
			return d.wrong
		case d.cost == 0:
			return invalid("Demand", "is of 0 of %q; demand 1 or more, or leave it out", d.name)
		case d.clamp < 0 || d.clamp > 100:
			return invalid("Clamped", "is %d; choose 1 to 100 percent", d.clamp)
		}
	}
	switch {
	case q.Policy != "" && (q.Key != "" || len(q.Demands) > 0):
		return invalid("Policy", "says Key and Demands: leave them out")
	case q.Policy == "" && len(q.Fields)+len(q.Amounts) > 0:
		return invalid("Fields", "and Amounts go with a Policy")
	}
	switch {
	case q.Keep && q.Hold == 0:
		return invalid("Keep", "goes with a Hold")
	case q.Tag != "" && q.Hold == 0 && !q.Peek:
		return invalid("Tag", "goes with a Hold")
	case q.Tag != "" && q.Keep:
		return invalid("Tag", "does not go with Keep: another one may end the hold; leave one of them out")
	case q.Tag != "" && idem != "":
		return invalid("Tag", "does not go with an IdempotencyKey: one of them names the hold")
	}
	return nil
}

// fields returns what the request is, in order.
func (q *Admit) fields() (all []*admissionpb.Field) {
	for _, name := range slices.Sorted(maps.Keys(q.Fields)) {
		all = append(all, &admissionpb.Field{Name: name, Value: q.Fields[name]})
	}
	return all
}

func (h *Admitted) told(r *admissionpb.AdmitResponse, demands []Demand) {
	if r.Key != "" {
		h.key = r.Key
	}
	h.PolicyVersion, h.Contended, h.Degraded = r.PolicyVersion, r.Contended, r.Degraded
	h.OK, h.hold, h.RetryAfter, h.Meta = r.Admitted, r.HoldId, time.Duration(r.RetryAfterNs), metaOf(r, r.Replay)
	for i, d := range r.Demands {
		if d.Name == "" && i < len(demands) { // only what a policy has selected is told by its name
			d.Name = demands[i].called()
		}
		h.Demands = append(h.Demands, DemandResult{d.Name, d.Refused, d.Reserved, d.Capacity, d.Remaining, d.Debt, time.Duration(d.RetryAfterNs), time.Duration(d.ResetAfterNs), d.Overridden, degradedBy[d.DegradedSource]})
	}
}

// refusal returns the error of what was not admitted.
func (h *Admitted) refusal(r *admissionpb.AdmitResponse) error {
	var refused []string
	for _, d := range h.Demands {
		if d.Refused {
			refused = append(refused, d.Name)
		}
	}
	return &Error{Op: "admit", Key: h.key, Node: r.Owner, Code: codes.ResourceExhausted, Reason: ErrNotAdmitted, RetryAfter: h.RetryAfter,
		Message: fmt.Sprintf("%d of %d demands refused, %s; nothing was charged", len(refused), len(h.Demands), strings.Join(refused, ", "))}
}

// Key is that of the request, which a policy may have said.
func (h *Admitted) Key() string { return h.key }

// Hold names the hold, for Admission.Settle of another process; "" if there is none.
func (h *Admitted) Hold() string { return h.hold }

// Lost is closed when a hold that is kept (Admit.Keep) was over before it was settled, or may be: its time is over by
// the count of this process, which has not learnt that it goes on.
func (h *Admitted) Lost() <-chan struct{} { return h.lost }

// keep extends the hold, which was asked for at a moment and goes on for so long, until it is settled. That is less than
// its time if another call has made it, under the same key. It is lost at the latest when its time is over as it is
// counted here, which is before it is over at its owner, whatever has become of the call that was to extend it.
func (h *Admitted) keep(sent time.Time, left time.Duration) {
	ctx, cancel := context.WithCancel(h.of.c.ctx)
	over := time.AfterFunc(time.Until(sent.Add(left)), func() {
		//guard:client-hold-lost
		close(h.lost)
		cancel()
	})
	h.stop = func() {
		cancel()
		over.Stop()
	}
	started := h.of.c.start(func() { h.extend(ctx, over, left) })
	if !started { // the client is closed
		cancel()
	}
}

// extend keeps the hold until ctx ends, which it does when the hold is over.
func (h *Admitted) extend(ctx context.Context, over *time.Timer, left time.Duration) {
	each := h.ttl / 3
	next := time.NewTimer(min(each, left-2*each)) // at once if it has been held for longer
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-next.C:
		}
		next.Reset(each)
		sent := time.Now()
		once, cancel := context.WithTimeout(ctx, h.ttl/2)
		goesOn, err := h.of.Extend(once, h.key, h.hold, h.ttl)
		cancel()
		switch {
		case err != nil && !errors.Is(err, ErrHoldUnknown):
			continue
		case !goesOn:
			h.mu.Lock() // a settlement may be under way that has ended it
			if !h.settled && over.Stop() {
				close(h.lost)
			}
			h.mu.Unlock()
			return
		case !over.Stop(): // it is lost, or settled
			return
		}
		over.Reset(time.Until(sent.Add(h.ttl)))
		if ctx.Err() != nil { // it was settled meanwhile
			over.Stop()
		}
	}
}
