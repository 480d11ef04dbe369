package owner

import (
	"github.com/keystead/keystead/owner/admission"
	"github.com/keystead/keystead/owner/reqid"
)

// A hold may be known by a tag instead of the id of its request: a text of its caller's. What ends it has to know the
// text, and was perhaps never told an id. Several holds of an object may have one tag. Their ids are the tag and the
// smallest number that none of them has, and to end "a hold of the tag" ends exactly one.

// MaxTagged is how many holds of an object have one tag at a time. All are looked at in a step.
const MaxTagged = 64

// anyTagged is the sequence by which Settle finds a hold of a tag.
const anyTagged = 0

// Tagged returns what Settle finds a hold by.
func Tagged(tag string) admission.ID {
	return admission.ID{Client: admission.TagOf(tag), Sequence: anyTagged}
}

func (op *Admit) tagged() bool { return op.Tag != reqid.Client{} }

// holdID returns the id of the hold that an Admit makes; ok is false if its tag has as many as may be.
func (t *target) holdID(id *reqid.ID, op *Admit) (as admission.ID, ok bool) {
	if !op.tagged() {
		return admission.ID{Client: id.Client, Sequence: id.Sequence}, true
	}
	for n := uint64(1); n <= MaxTagged; n++ {
		as = admission.ID{Client: op.Tag, Sequence: n}
		//guard:admission-tag-free !known || h.Phase != admission.Held -> !known || true || h.Phase != admission.Held
		if h, _, known := t.reservationLocked(as); !known || h.Phase != admission.Held {
			return as, true
		}
	}
	return admission.ID{}, false
}

// refuseAll makes an answer one that all demands have refused, for as long as nobody knows.
func (a *AdmitAnswer) refuseAll() {
	a.Admitted, a.RetryAfter = false, 0
	for i := range a.Demands {
		d := &a.Demands[i]
		d.Refused, d.RetryAfter = true, 0
		d.Remaining += d.Reserved
	}
}

// taggedLocked returns the hold that the end of "a hold of a tag" is about: of those that are held the one that ends
// first, so that what stays held ends no sooner than what was asked for last. Else it is one that is only remembered.
func (t *target) taggedLocked(tag admission.ID) admission.ID {
	found, of := tag, admission.Hold{}
	for n := uint64(1); n <= MaxTagged; n++ {
		as := admission.ID{Client: tag.Client, Sequence: n}
		h, _, known := t.reservationLocked(as)
		if !known {
			continue
		}
		held, before := h.Phase == admission.Held && h.Until > t.now, of.Phase == admission.Held && of.Until > t.now
		if found == tag || held && !before || held == before && h.Until < of.Until {
			found, of = as, h
		}
	}
	return found
}
