package divide

import (
	"fmt"
	"time"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/ring/epoch/table"
)

var errNotNow = &failure.Error{Reason: failure.NotOwner, RetryAfter: 50 * time.Millisecond,
	Message: "the object is split, or about to be, or not any more; nothing happened",
	Hint:    "try again: it will be routed by the current table"}

// phaseFor is the phase in which a part may be acted on in a role.
var phaseFor = map[owner.Role]table.SplitPhase{owner.Plant: table.Opening, owner.Share: table.Open, owner.Sample: table.Open, owner.Reap: table.Closing}

// May returns nil if an operation in the role of ref may be done on an object, by a table,
// and the weight of a part: it is what owner.Splits asks. A process that owns an object
// goes by the table that it has applied, and by no other; then it does not matter how late
// it is: a process that acts in a phase has heard from all that acted in the one before
// that they have applied it. What was read of one split is joined in no later one of the same object.
func May(t *table.Table, ref owner.Ref, kind owner.Kind) (weight uint32, err error) {
	switch ref.Role {
	case owner.Whole, owner.Carry, owner.Join:
		return 0, mayWhole(t, ref, kind)
	}
	id, i, ok := table.OfPart(ref.Key)
	if !ok {
		return 0, errNotNow
	}
	sp, ok := t.SplitOf(id)
	//guard:split-part-closed sp.Phase != phaseFor[ref.Role] -> sp.Phase < phaseFor[ref.Role]
	//guard:split-part-opened sp.Phase != phaseFor[ref.Role] -> sp.Phase > phaseFor[ref.Role]
	if !ok || i >= len(sp.Parts) ||
		sp.PartKey(i) != ref.Key || //guard:split-part-key
		sp.Name != ref.Name || sp.Kind != kind.String() || sp.Phase != phaseFor[ref.Role] {
		return 0, errNotNow
	}
	return sp.Parts[i].Weight, nil
}

func mayWhole(t *table.Table, ref owner.Ref, kind owner.Kind) error {
	for _, d := range dividers {
		k := d.kind
		sp, ok := t.Split(k.String(), ref.Key, ref.Name)
		switch {
		case !ok:
		case k != kind && sp.Phase == table.Opening:
			return errNotNow // whether it is one of this kind, its home has still to find out
		case k != kind:
			return &failure.Error{Reason: failure.KindMismatch,
				Message: fmt.Sprintf("this key and name hold a %s, not a %s", k, kind), Hint: "use another name, or the calls of its kind"}
		//guard:split-join-late
		case sp.ID != ref.Split && ref.Role != owner.Whole:
			return errNotNow // it comes from a split before this one, late
		case ref.Role == owner.Carry && //guard:split-whole-frozen
			sp.Phase == table.Opening, ref.Role == owner.Join &&
			sp.Phase == table.Closing: //guard:split-join-closed
			return nil
		default:
			return errNotNow
		}
	}
	if ref.Role == owner.Whole {
		return nil
	}
	return errNotNow
}

// Stale reports whether the object under a key is a part of a split that is over. Records of
// a part reach no process before the table that has its split, so that a split that is not in
// a table of its epoch or a later one is over.
func Stale(t *table.Table, key []byte) bool {
	id, _, ok := table.OfPart(string(key))
	_, is := t.SplitOf(id)
	return ok && !is &&
		t.Epoch >= id //guard:split-stale-early
}
