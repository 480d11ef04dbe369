package history

import "fmt"

// QuotaParams are a limit by the clock: Limit tokens in each period.
type QuotaParams struct {
	Limit  uint64
	Period int64 // s: periods end when the time since 1970 is a multiple of it
}

// quotaState is what is known of a quota: of its last period, the end and what was spent in it.
type quotaState struct {
	ends   int64 // s since 1970; 0 = there is none
	spent  uint64
	later  bool // the end is a later one, which nobody was told
	unsure bool // nothing is known
}

// quota is the arithmetic of a quota.
type quota struct{ QuotaParams }

// Quota returns the model of a limit by the clock. Its inputs are BucketInput, BucketRefund or
// BucketReset, its outputs BucketOutput.
//
// Answers tell when their period ends. So the model knows no clock, and it does not matter how the
// clocks of nodes are set: in a period exactly what was told is spent, and its end never falls, but
// for a reset.
//
// Relaxation: that a period ends when it should is not looked at.
func Quota(p QuotaParams) Model {
	if p.Limit == 0 || p.Period <= 0 {
		panic(fmt.Sprintf("history: no quota that can be checked: %+v", p))
	}
	return newModel(quotaState{}, quota{p}.step, quotaState{unsure: true})
}

func (q quota) step(s quotaState, at step, out any) []quotaState {
	o, told := out.(BucketOutput)
	_, reset := at.in.(BucketReset)
	switch {
	case o.Parts > 0:
		return nil // quotas are never split
	case reset && told:
		return []quotaState{{}}
	case reset:
		return []quotaState{s, {}}
	case !told || o.Bare:
		return q.untold(s, at.in, o, told)
	case o.Ends <= 0 || o.Ends%q.Period != 0:
		return nil
	case s.unsure:
		return q.adopt(s, at.in, o)
	}
	var all []quotaState
	if o.Ends == s.ends && !s.later || o.Ends > s.ends && s.later {
		if spent, ok := q.decide(s.spent, at.in, o); ok {
			all = append(all, quotaState{ends: o.Ends, spent: spent})
		}
	}
	if o.Ends > s.ends {
		if spent, ok := q.decide(0, at.in, o); ok && spent != 0 {
			all = append(all, quotaState{ends: o.Ends, spent: spent})
		} else if ok { // nothing was kept of that period
			all = append(all, s)
		}
	}
	return all
}

// decide returns what is spent after an operation in a period of which so much was, and whether
// the answer may be that.
func (q quota) decide(spent uint64, in any, o BucketOutput) (after uint64, ok bool) {
	switch in := in.(type) {
	case BucketInput:
		fits := spent+in.Cost <= q.Limit
		if o.Allowed != fits || (o.RetryAfter == 0) != fits || !fits && spent != 0 && o.RetryAfter != o.ResetAfter {
			return 0, false
		}
		if fits && !in.Peek {
			spent += in.Cost
		}
	case BucketRefund:
		if !o.Allowed {
			return 0, false
		}
		spent -= min(in.Tokens, spent)
	}
	return spent, o.Remaining == q.Limit-spent && (o.ResetAfter == 0) == (spent == 0) && o.ResetAfter >= 0
}

// untold is a step of which the period is not known: the answer was lost, or only tells whether it
// was allowed.
func (q quota) untold(s quotaState, in any, o BucketOutput, told bool) []quotaState {
	if s.unsure {
		return []quotaState{s}
	}
	done := s
	switch in := in.(type) {
	case BucketInput:
		fits := s.spent+in.Cost <= q.Limit
		var all []quotaState
		if in.Peek || !told || !o.Allowed && !fits {
			all = append(all, s) // nothing was done
		}
		if in.Peek || told && !o.Allowed {
			return all
		}
		if fits && (s.ends != 0 || s.later) {
			done.spent += in.Cost
			all = append(all, done)
		}
		return append(all, quotaState{ends: s.ends, later: true, spent: in.Cost})
	case BucketRefund:
		done.spent -= min(in.Tokens, s.spent)
		return []quotaState{s, done}
	}
	return []quotaState{s}
}

// adopt takes an answer for what there is.
func (q quota) adopt(s quotaState, in any, o BucketOutput) []quotaState {
	if o.Remaining > q.Limit {
		return nil
	}
	was := q.Limit - o.Remaining
	is, changes := in.(BucketInput)
	if changes = changes && !is.Peek && o.Allowed; changes {
		if was < is.Cost {
			return nil
		}
		was -= is.Cost
	}
	_, refund := in.(BucketRefund)
	if spent, ok := q.decide(was, in, o); ok && !refund {
		s = quotaState{ends: o.Ends, spent: spent}
	} else if !refund {
		return nil
	}
	if changes || refund {
		return []quotaState{s}
	}
	return []quotaState{s, {unsure: true}} // it may have been a look at a period of which nothing is kept
}
