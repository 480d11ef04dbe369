package divide

import (
	"testing"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/ring/epoch/table"
)

// TestMay: in each phase some roles are let in, with the weight of the part, and all
// others are turned away; also from parts that are none of this split.
func TestMay(t *testing.T) {
	h := newHouse(t, nil)
	if _, err := May(h.tab, h.whole(owner.Whole), owner.KindCounter); err != nil {
		t.Errorf("of what is not split: %v", err)
	}
	h.begin("counter", 100, 7)
	lets := map[table.SplitPhase][]owner.Role{
		table.Opening: {owner.Carry, owner.Plant}, table.Open: {owner.Share, owner.Sample}, table.Closing: {owner.Reap, owner.Join},
	}
	roles := []owner.Role{owner.Whole, owner.Share, owner.Carry, owner.Plant, owner.Reap, owner.Join, owner.Sample}
	onPart := map[owner.Role]bool{owner.Share: true, owner.Plant: true, owner.Reap: true, owner.Sample: true}
	for _, phase := range []table.SplitPhase{table.Opening, table.Open, table.Closing} {
		sp := h.split()
		if sp.Phase != phase {
			t.Fatalf("it is %s", sp.Phase)
		}
		for _, role := range roles {
			want := false
			for _, r := range lets[phase] {
				want = want || r == role
			}
			ref := h.whole(role)
			if onPart[role] {
				ref = h.part(1, role)
			}
			weight, err := May(h.tab, ref, owner.KindCounter)
			if (err == nil) != want || err != nil && reason(err) != failure.NotOwner || want && onPart[role] && weight != 7 {
				t.Errorf("%s, role %d: weight %d, %v", phase, role, weight, err)
			}
			strangers := map[string]owner.Ref{"another name": ref, "another salt": ref, "no such part": ref, "no such split": ref, "no part's key": ref}
			for what, r := range strangers {
				if r.Role = role; !onPart[role] {
					continue
				}
				switch what {
				case "another name":
					r.Name = "m"
				case "another salt":
					r.Key = table.PartKey(sp.ID, 1, sp.Parts[1].Salt+1)
				case "no such part":
					r.Key = table.PartKey(sp.ID, 2, sp.Parts[1].Salt)
				case "no such split":
					r.Key = table.PartKey(sp.ID+1, 1, sp.Parts[1].Salt)
				case "no part's key":
					r.Key = "\x00"
				}
				if _, err := May(h.tab, r, owner.KindCounter); reason(err) != failure.NotOwner {
					t.Errorf("%s, role %d, %s: %v", phase, role, what, err)
				}
			}
			if _, err := May(h.tab, ref, owner.KindLimit); err == nil {
				t.Errorf("%s, role %d: of another kind", phase, role)
			}
			late := ref
			late.Split--
			if _, err := May(h.tab, late, owner.KindCounter); (role == owner.Carry || role == owner.Join) && reason(err) != failure.NotOwner {
				t.Errorf("%s, role %d, for a split of before: %v", phase, role, err)
			}
			other := owner.Ref{Key: "other", Name: "n", Role: role}
			if _, err := May(h.tab, other, owner.KindCounter); (err == nil) != (role == owner.Whole) {
				t.Errorf("%s, role %d, of another object: %v", phase, role, err)
			}
		}
		wrong := failure.KindMismatch
		if phase == table.Opening { // it may be a lock, and then it is not split
			wrong = failure.NotOwner
		}
		if _, err := May(h.tab, h.whole(owner.Whole), owner.KindLock); reason(err) != wrong {
			t.Errorf("%s: a lock at the address: %v", phase, err)
		}
		if phase == table.Opening {
			h.open()
		} else if phase == table.Open {
			h.apply(table.Command{CloseSplit: &table.CloseSplit{ID: sp.ID}})
		}
	}
}

// TestStale: a part is over when its split is, and not before the table has it.
func TestStale(t *testing.T) {
	h := newHouse(t, nil)
	before := h.tab
	sp := h.begin("counter", 1, 1)
	key := []byte(sp.PartKey(0))
	if Stale(before, key) {
		t.Error("the table has not come to its split yet")
	}
	if Stale(h.tab, key) {
		t.Error("it is split")
	}
	h.open()
	h.merge()
	if !Stale(h.tab, key) {
		t.Error("it is whole again")
	}
	if Stale(h.tab, []byte("k")) || Stale(h.tab, []byte("\x00k")) {
		t.Error("what is no part is called one")
	}
}
