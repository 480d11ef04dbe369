package owner

import (
	"unsafe"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/hold"
	"github.com/keystead/keystead/owner/reqid"
)

// nextTokensLocked returns the fencing tokens that the next grants in this shard get, as many
// as a step may need or the epoch has left.
func (sh *shard) nextTokensLocked(rule Rule, p Permit) (hold.Tokens, error) {
	first, err := sh.nextTokenLocked(rule, p)
	if err != nil {
		return hold.Tokens{}, err
	}
	//guard:tokens-of-the-epoch first&(1<<SeqBits-1) -> 0
	left := 1<<SeqBits - first&(1<<SeqBits-1)
	return hold.Tokens{First: first, Count: int(min(hold.MaxGrants+1, left))}, nil
}

// holdLocked returns the state of the target, which is held, made if there is none.
func (t *target) holdLocked() *hold.State {
	if t.slot == 0 {
		t.createLocked()
	}
	if t.e.rest == 0 {
		t.e.rest = t.sh.holds.Add()
	}
	return t.sh.holds.At(t.e.rest)
}

// memberRoomLocked returns the error of an object that may have no further holder or place with
// such a text.
func (t *target) memberRoomLocked(name string, metadata []byte) *failure.Error {
	return t.growHoldLocked(int(unsafe.Sizeof(hold.Waiter{})) + len(name) + cap(metadata))
}

// growHoldLocked returns the error of an object that may not refer to so many bytes more.
func (t *target) growHoldLocked(n int) *failure.Error {
	first := t.e == nil || t.e.rest == 0 || t.sh.holds.At(t.e.rest).Vacant()
	return t.sh.store.grows(n, first)
}

// grows returns the error of what may not take so many bytes more. The first who holds an object
// may use the reserve of the request ids: what is there goes on when nothing new is let in.
func (s *Store) grows(n int, first bool) *failure.Error {
	switch after := s.bytes.Load() + int64(n); {
	case n <= 0, first && after <= s.cfg.MaxBytes+s.cfg.MaxBytes/idReserve:
		return nil
	//guard:holders-memory after > s.cfg.MaxBytes || s.idsFull(idHalf) -> false
	case after > s.cfg.MaxBytes || s.idsFull(idHalf):
		return errMemory
	}
	return nil
}

// expireHoldLocked lets time pass for an object that is held and has a state.
func (t *target) expireHoldLocked() error {
	sh := t.sh
	tokens, err := sh.nextTokensLocked(sh.store.cfg.Rule, t.permit)
	if err != nil {
		return err
	}
	sh.holds.At(t.e.rest).Expire(t.now, tokens, &sh.holdFx)
	t.holdSteppedLocked(&reqid.ID{}, reqid.Outcome{}, 0)
	return nil
}

// holdSteppedLocked concludes a step of an object that is held, which granted its caller this token, 0 if
// none: it records what changed, answers the callers that it concerned, and schedules the
// next wake.
func (t *target) holdSteppedLocked(id *reqid.ID, out reqid.Outcome, token uint64) {
	sh, fx := t.sh, &t.sh.holdFx
	if fx.Lapsed > 0 {
		sh.store.lapsed.Add(int64(fx.Lapsed))
	}
	//guard:hold-watch-told
	if fx.News {
		sh.watchedChangedLocked(t.e)
	}
	if fx.Changed {
		sh.advanceLocked()
		holds{}.account(sh, t.e)
		sh.holdersLocked(t.slot, sh.holds.At(t.e.rest), fx.Holders)
	}
	if sh.store.partial != nil {
		sh.holders = append(sh.holders, fx.Holders...)
	}
	//guard:called-told
	if fx.Called != 0 {
		holds{}.changed(sh, t.e, fx.Called)
	}
	if id.Given() {
		t.noteLocked(id, out)
	}
	queued := len(fx.TimedOut)+len(fx.TooLarge)+len(fx.Grants) > 0
	if queued {
		t.noteEntrantsLocked()
	}
	if fx.Changed || len(sh.done) > 0 {
		sh.notifySinkLocked(t.slot, t.hash)
	} else {
		sh.holders = sh.holders[:0]
	}
	if queued {
		t.answerEntrantsLocked()
	}
	if token != 0 {
		sh.tokenUsedLocked(token)
	}
	t.scheduleLocked()
}

// noteEntrantsLocked remembers the answers that answerEntrantsLocked gives. One record has all
// of them: a copy must not know of a grant and not for whom it is.
func (t *target) noteEntrantsLocked() {
	sh, fx := t.sh, &t.sh.holdFx
	for i := range fx.TimedOut {
		over := &fx.TimedOut[i]
		w := sh.waits[over.Ticket]
		if w == nil {
			continue // it left, and had no request id
		}
		//guard:place-gone
		sh.goneLocked(&over.Caller)
		//guard:ticket-over-unused w.kept -> false
		if !w.away() && w.named && !w.kept {
			t.noteLocked(&over.Caller.ID, reqid.Outcome{Print: over.Caller.Print, Code: refused})
		}
	}
	for i := range fx.TooLarge {
		sh.goneLocked(&fx.TooLarge[i].Caller)
	}
	for i := range fx.Grants {
		if g := &fx.Grants[i]; g.Caller.ID.Given() {
			sh.goneLocked(&g.Caller)
			t.noteLocked(&g.Caller.ID, reqid.Outcome{Print: g.Caller.Print, Code: done, A: int64(g.Token), B: g.Waited})
		}
	}
}

// answerEntrantsLocked answers the callers that the last step of an object that is held concerned: those
// that were granted what they wait for, those whose wait was over, and those that want more than there is
// by now.
func (t *target) answerEntrantsLocked() {
	sh, fx := t.sh, &t.sh.holdFx
	state := sh.holds.At(t.e.rest)
	a := GrantAnswer{Capacity: state.Capacity, Meta: Meta{Permit: t.permit}}
	held, blocked := state.Held(t.now)
	for i := range fx.TimedOut {
		over := &fx.TimedOut[i]
		switch w := sh.waits[over.Ticket]; {
		case w == nil:
		case w.kept: // the node stood still until now
			w.removeLocked(t.slot, &over.Caller, errTicketOver)
		default:
			a.Held, a.Place, a.Holder = held+blocked, over.Position, state.First(t.now)
			answerLocked(w, t.slot, &over.Caller, a)
		}
	}
	for i := range fx.TooLarge {
		large := &fx.TooLarge[i]
		if w := sh.waits[large.Ticket]; w != nil {
			w.removeLocked(t.slot, &large.Caller, errLowered)
		}
	}
	a.Held, a.Place, a.Holder = 0, 0, hold.Holding{}
	for i := range fx.Grants {
		g := &fx.Grants[i]
		sh.tokenUsedLocked(g.Token)
		w := sh.waits[g.Ticket]
		if w == nil || w.away() {
			panic("owner: it was granted to nobody")
		}
		a.Acquired, a.Token, a.TTL, a.Waited = true, g.Token, g.Expires-state.At, g.Waited
		answerLocked(w, t.slot, &g.Caller, a)
	}
}
