package middleware

import (
	"cmp"
	"strconv"
	"time"

	"github.com/keystead/keystead/client"
	"github.com/keystead/keystead/internal/limitfield"
)

// Names of the fields: package limitfield, and RFC 9110, section 10.2.3.
const (
	rateLimitField  = limitfield.LimitName
	policyFieldName = limitfield.PolicyName
	retryAfterField = "Retry-After"
)

// policyName returns the name of the policy of a limit.
func policyName(l client.Limit) string { return cmp.Or(l.Name(), "limit") }

// policyField returns the field that tells the policy: the quota of a window, and the burst if
// it is another number.
func policyField(name string, r client.Rate) string {
	p := limitfield.Policy{Name: name, Quota: r.Limit, Window: r.Period}
	if r.Algorithm == client.TokenBucket {
		p.Burst = r.Burst
	}
	return string(p.Append(nil))
}

// fields returns the fields that tell the policy and what is left, each once: none if nothing is known. Of a policy of the
// cluster the first has the quota that it had when the request was decided, and not the time that this is for, which
// nodes do not tell.
func (l *Limiter) fields(v *verdict) (policy, left string, ok bool) {
	if !v.limited {
		return "", "", false
	}
	d := &v.decision
	if policy = l.policy; policy == "" {
		quota := cmp.Or(d.Limit, d.Capacity)
		if quota == 0 {
			return "", "", false
		}
		policy = string(limitfield.Policy{Name: policyName(l.limit), Quota: quota}.Append(nil))
	}
	return policy, l.limitField(d), true
}

// limitField returns the field that tells what is left: the tokens, and the time until there
// is more, if that is known.
func (l *Limiter) limitField(d *client.Decision) string {
	left := limitfield.Left{Name: policyName(l.limit), Remaining: d.Remaining}
	left.Until, left.Known = l.untilMore(d)
	return string(left.Append(nil))
}

// untilMore returns when there is more, if that is known.
func (l *Limiter) untilMore(d *client.Decision) (time.Duration, bool) {
	r := l.limit.Rate()
	switch {
	case !d.Allowed:
		return d.RetryAfter, true
	case l.limit.Policy() != "": // how it refills is known to the policy alone
		return 0, false
	case r.Algorithm == client.FixedWindow:
		return d.ResetAfter, d.ResetAfter > 0
	case r.Algorithm == client.TokenBucket && d.Remaining < d.Capacity:
		return limitfield.NextToken(d.ResetAfter, d.Capacity-d.Remaining, r.Limit, r.Period), true
	}
	return 0, false
}

// retryAfter returns when to come again, at least a second from now.
func retryAfter(d time.Duration) string {
	return strconv.FormatUint(limitfield.Seconds(max(d, time.Second)), 10)
}
