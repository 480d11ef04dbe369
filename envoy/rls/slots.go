package rls

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"time"

	admissionpb "github.com/keystead/keystead/proto/keystead/admission/v1"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
)

// A limit of slots bounds how much runs at a time. A hit takes a slot, and a negative one gives it back; Envoy sends
// that when the stream is done. Both have an entry that is the request's own, such as its x-request-id: the last one of
// the descriptor. It is the tag of a hold at the owner of the other entries, so that a hit that gives back ends one hold
// that was made under the same entry, or nothing. What nobody gives back, the time of the hold does.
//
// A slot is asked for before limits are: a request that gets none spends nothing of them.

// Admitter keeps slots: the admission service of a node, which passes each call on to the owner of its key.
type Admitter interface {
	Admit(ctx context.Context, req *admissionpb.AdmitRequest) (*admissionpb.AdmitResponse, error)
	Settle(ctx context.Context, req *admissionpb.SettleRequest) (*admissionpb.SettleResponse, error)
}

// Bounds of slots, which are those of an admission.
const (
	maxSlots = 8192
	minHold  = 10 * time.Millisecond
	maxHold  = 24 * time.Hour // and LoadOptions.MaxHold
)

// Names of the objects of slots: the admission that has the holds, and the counter of the slots that are taken.
const (
	slotHolds = "envoy.rls/slots"
	slotsUsed = "envoy.rls/slots/taken"
)

// maxSlotTag is the longest entry that is a tag as it is, in bytes.
const maxSlotTag = 120

// slotTag returns the tag of the holds of a request. Entries that differ have different ones, unless SHA-256 collides.
func slotTag(entry string) string {
	//guard:rls-slot-tag
	if len(entry) > maxSlotTag || strings.HasPrefix(entry, "#") {
		sum := sha256.Sum256([]byte(entry))
		return "#" + hex.EncodeToString(sum[:])
	}
	return entry
}

// ofNobody returns a tag that no request has.
func ofNobody() string {
	var b [16]byte
	_, _ = rand.Read(b[:])
	return "#" + hex.EncodeToString(b[:])
}

// slot is what is asked of the slots of one item, and what was answered.
type slot struct {
	it     *item // only for the call itself
	take   *admissionpb.AdmitRequest
	giving *admissionpb.SettleRequest

	taken *admissionpb.AdmitResponse
	given *admissionpb.SettleResponse
}

// slots takes and gives back all slots of the call, at once. The error is that of an item whose limit has no
// policy for it.
func (c *call) slots(ctx context.Context) (failure error) {
	var questions []*question
	for i := range c.items {
		it := &c.items[i]
		if it.limit == nil || it.limit.Hold == 0 {
			continue
		}
		if s := it.slot(); s != nil {
			questions = append(questions, &question{slot: s})
		} else if it.negative {
			c.s.metrics.releases[unmatched].Inc()
		}
	}
	if len(questions) == 0 {
		return nil
	}
	c.await(ctx, questions)
	for _, q := range questions {
		if err := c.concludeSlot(q); err != nil && failure == nil {
			failure = err
		}
	}
	return failure
}

// slot returns what is to be asked for an item, nil if that is nothing.
func (it *item) slot() *slot {
	l := it.limit
	if it.negative {
		if it.hits == 0 || it.tag == "" {
			return nil
		}
		return &slot{it: it, giving: &admissionpb.SettleRequest{Key: it.key, Name: slotHolds, HoldTag: slotTag(it.tag), Release: true}}
	}
	tag := slotTag(it.tag)
	if it.tag == "" {
		tag = ofNobody()
	}
	all := l.capacity()
	return &slot{it: it, take: &admissionpb.AdmitRequest{Key: it.key, Name: slotHolds, HoldTag: tag, HoldNs: int64(l.Hold), Peek: it.hits == 0 || it.hits > all,
		Demands: []*admissionpb.Demand{{Name: slotsUsed, Cost: min(max(it.hits, 1), all), Slots: &admissionpb.SlotsDemand{Max: int64(all)}}}}}
}

// ask asks the owner.
func (s *slot) ask(ctx context.Context, a Admitter) (err error) {
	if s.take != nil {
		s.taken, err = a.Admit(ctx, s.take)
		return err
	}
	s.given, err = a.Settle(ctx, s.giving)
	return err
}

// took reports whether the answer is that slots were taken.
func (s *slot) took() bool { return s.taken.GetAdmitted() && !s.take.Peek }

// concludeSlot applies the answer to an item.
func (c *call) concludeSlot(q *question) error {
	s, it := q.slot, q.slot.it
	switch {
	case !q.done || q.err != nil:
		it.failed = true
		if it.negative {
			c.s.metrics.releases[failed].Inc()
		}
		return c.fail(it, nil, q.err)
	case s.given != nil:
		c.s.metrics.released(s.given)
		return nil
	}
	a := s.taken
	it.denied = !a.Admitted || it.hits > it.limit.capacity()
	if len(a.Demands) > 0 {
		if it.known, it.left = true, a.Demands[0].Remaining; a.Admitted && s.take.Peek {
			it.left += s.take.Demands[0].Cost // it says what there would be
		}
	}
	if s.took() {
		it.took = s
	}
	return nil
}

// giveSlotsBack gives back what the call has taken. The call does not wait for it.
func (c *call) giveSlotsBack() {
	for i := range c.items {
		it := &c.items[i]
		if it.took == nil {
			continue
		}
		s := it.took
		it.left, it.took = min(it.left+s.take.Demands[0].Cost, it.limit.capacity()), nil
		if !c.s.room(c.s.refunds) {
			c.s.metrics.refunds[false].Inc()
			continue
		}
		go func() {
			defer func() { <-c.s.refunds }()
			c.s.giveBackSlot(c.ctx, s)
		}()
	}
}

// giveBackSlot ends the very hold that was made. ctx may have ended.
func (s *Service) giveBackSlot(ctx context.Context, of *slot) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), maxRefundTime)
	defer cancel()
	_, err := s.admitter.Settle(ctx, &admissionpb.SettleRequest{Key: of.take.Key, Name: of.take.Name, HoldId: of.taken.HoldId, Release: true})
	s.metrics.refunds[err == nil].Inc()
}

// putSlot asks one question about slots, and gives back what its call did not hear of in time.
func (c *call) putSlot(ctx context.Context, in *inquiry, q *question) {
	ctx, cancel := c.s.beyond(ctx)
	defer cancel()
	err := q.slot.ask(ctx, c.s.admitter)
	//guard:rls-slot-late q.slot.took() -> false
	if !in.deliver(q, nil, err) && q.slot.took() {
		if <-c.decided; c.vain {
			c.s.giveBackSlot(ctx, q.slot)
		}
	}
}

// refusedForever reports whether an owner has refused hits because a policy never has so many at once.
func refusedForever(l *Limit, e *commonpb.Error) bool {
	return l.Policy != "" && e.GetReason() == commonpb.Reason_REASON_INVALID && (e.Field == "cost" || strings.HasSuffix(e.Field, ".cost"))
}
