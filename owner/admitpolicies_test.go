package owner

import (
	"testing"

	"github.com/keystead/keystead/owner/admission"
	"github.com/keystead/keystead/owner/limit"
)

// Demands of a policy are charged only if its version is in force when the key is locked, and an owner
// before may have gone by it.
func TestAdmitByPolicies(t *testing.T) {
	n := &named{}
	n.version.Store(3)
	r := &testRule{epoch: 100}
	s := newStore(t, func(c *Config) { c.Rule, c.Policies = r, n })
	ref := Ref{Key: "k", Name: "admission"}
	op := Admit{Demands: []Demand{{}}, Policies: 3, Asked: 1}
	op.Demands[0].Of, op.Demands[0].Name, op.Demands[0].Cost, op.Demands[0].Params = admission.Limit, "rpm", 1, limit.Params{Limit: 5, Period: second}
	admit := func(s *Store, version uint64) (AdmitAnswer, error) {
		op.Policies = version
		return s.Admit(0, ref, noID, op, nil)
	}
	if a, err := admit(s, 3); err != nil || !a.Admitted || a.Demands[0].Remaining != 4 {
		t.Errorf("%+v %v", a, err)
	}
	n.version.Store(4)
	if _, err := admit(s, 3); err != ErrPolicies {
		t.Error(err)
	}
	if a, err := admit(s, 4); err != nil || a.Demands[0].Remaining != 3 { // and nothing was charged meanwhile
		t.Errorf("%+v %v", a, err)
	}
	moving := newStore(t, func(c *Config) { c.Rule, c.Policies = &changing{testRule{epoch: 100}, n}, n })
	if _, err := admit(moving, 4); err != ErrPolicies { // the rule let it in when they had changed
		t.Error(err)
	}
	if _, err := admit(newStore(t, nil), 3); err != ErrPolicies {
		t.Error(err)
	}
}
