package owner

import (
	"fmt"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/limit"
	"github.com/keystead/keystead/owner/reqid"
)

// Policies are limits with names, which the cluster has agreed on.
type Policies interface {
	// Limit returns the limit of a name, and the version of the policies that were asked,
	// 0 if there are none at all. ok is false if there is none of the name. It is called
	// under the shard lock, after the rule has let the operation in, must be quick, and
	// never returns an earlier version than before: so no key is decided by one. err is why
	// nothing can be said.
	Limit(name string) (p limit.Named, version uint64, ok bool, err error)
}

// Resolved is what a policy said when it was asked.
type Resolved struct {
	limit.Named
	Version uint64 // of the policies; 0 = they were not asked, or there are none
}

// CheckPolicy is Check of the limit that a policy has, as this process knows it when the
// shard is locked. The parameters of op mean nothing. A replay is a replay whatever has become of the
// policy; if it is gone, only Allowed and Delay are told.
func (s *Store) CheckPolicy(now int64, ref Ref, id reqid.ID, policy string, op limit.Op) (a CheckAnswer, by Resolved, err error) {
	t := target{ref: ref, kind: KindLimit, now: now}
	if err := t.enter(s); err != nil {
		return CheckAnswer{}, by, err
	}
	defer t.leave()
	by, never, err := s.resolve(policy, &op)
	if err == nil {
		err = t.checkedLocked(&id, &op, policy, never, &a)
		return a, by, err
	}
	//guard:policy-replay id.Given() -> false
	if id.Given() {
		replay, out, age, late := t.judgeLocked(&id, printOfCheck(&id, &op, policy))
		switch {
		case late != nil:
			return CheckAnswer{}, by, late
		case replay:
			return t.replayed(limit.Result{}, &out, age), by, nil
		}
	}
	return CheckAnswer{}, by, err
}

// resolve gives an operation the parameters that a policy has now. never is its error unless an
// override applies; see limit.Op.Fits.
func (s *Store) resolve(policy string, op *limit.Op) (by Resolved, never, err error) {
	if s.policies == nil {
		return by, nil, unknownPolicy(policy, 0)
	}
	ok := false
	by.Named, by.Version, ok, err = s.policies.Limit(policy)
	switch {
	case err != nil:
		return by, nil, err
	case !ok:
		return by, nil, unknownPolicy(policy, by.Version)
	}
	op.Params = by.Params
	if by.MaxDelay != 0 {
		op.MaxDelay = min(op.MaxDelay, by.MaxDelay) //guard:policy-max-delay by.MaxDelay -> op.MaxDelay
	}
	never, err = op.Fits()
	return by, never, err
}

func unknownPolicy(name string, version uint64) error {
	e := &failure.Error{Reason: failure.PolicyUnknown,
		Message: fmt.Sprintf("there is no policy %q in version %d of the policies; nothing happened", name, version),
		Hint:    "`keystead policy show` lists those that are there; `keystead policy apply FILE` adds some"}
	if version == 0 {
		e.Message = fmt.Sprintf("there is no policy %q: there are none at all; nothing happened", name)
	}
	return e
}
