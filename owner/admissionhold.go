package owner

import (
	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/admission"
)

// What an admission does with the holds of its target: whether there is room for one, where it is, and how it is kept.

// heldRoomLocked returns the error of a hold that needs memory for which there is no room.
func (t *target) heldRoomLocked(demands []admission.Demand) *failure.Error {
	return t.sh.store.grows(admission.Size(demands), !t.hasAdmission())
}

// hasSpare reports whether the target has the place of a hold that is gone, or is only remembered.
func (t *target) hasSpare() bool {
	if !t.hasAdmission() {
		return false
	}
	s := t.sh.admissions.At(t.e.rest)
	_, over := s.Oldest()
	return over || s.Spare()
}

// reservationLocked returns a hold of the target.
func (t *target) reservationLocked(id admission.ID) (h admission.Hold, n uint32, ok bool) {
	if !t.hasAdmission() {
		return h, 0, false
	}
	s := t.sh.admissions.At(t.e.rest)
	if n, ok = s.Find(id); ok {
		h = s.Hold(n)
	}
	return h, n, ok
}

func (t *target) holdDemandsLocked(h admission.Hold, demands []admission.Demand) {
	if t.slot == 0 {
		t.createLocked()
	}
	s := t.sh.admissionOf(t.e)
	if n, ok := s.Find(h.ID); ok { // it was of the tag, and is only remembered
		s.Drop(n)
	}
	drop := func(n uint32) {
		t.sh.ended = append(t.sh.ended, s.Hold(n).ID)
		s.Drop(n)
	}
	for n, ok := s.InTheWay(demands); ok; n, ok = s.InTheWay(demands) {
		drop(n)
	}
	if n, ok := s.Oldest(); ok && !s.Spare() && t.heldRoomLocked(demands) != nil {
		drop(n)
	}
	s.Add(h, demands)
	t.sh.ended = append(t.sh.ended, h.ID)
}
