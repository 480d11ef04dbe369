package rls

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/keystead/keystead/internal/limitfield"
)

// Bounds of the fields of the draft: a client takes a few kilobytes of headers, and what else is in them
// comes from others.
const (
	// maxPolicies bounds the limits that an answer tells of: those nearest to their end.
	maxPolicies = 8
	// maxPolicyName bounds the name of each, in bytes.
	maxPolicyName = 64
)

// appendHeaders adds the headers for the client.
func (c *call) appendHeaders(b []byte) []byte {
	prefix := "RateLimit-"
	switch c.s.cfg.Headers {
	case NoHeaders:
		return b
	case IETF:
		return c.appendFields(b)
	case XRateLimit:
		prefix = "X-RateLimit-"
	}
	it := c.nearest()
	if it == nil {
		return b
	}
	text := func(n uint64) string { return strconv.FormatUint(n, 10) }
	b = appendHeader(b, prefix+"Limit", text(it.quota()))
	b = appendHeader(b, prefix+"Remaining", text(uint64(small(it.left))))
	return appendHeader(b, prefix+"Reset", text(limitfield.Seconds(it.reset)))
}

// nearest returns the item whose limit is nearest to its end, nil if there is none.
func (c *call) nearest() *item {
	var nearest *item
	least := uint64(math.MaxUint64)
	for i := range c.items {
		it := &c.items[i]
		if it.limit == nil || it.unlimited || !it.known {
			continue
		}
		left := uint64(small(it.left))
		if it.refused() {
			left = 0
		}
		if left < least || it.refused() && !it.limit.Quota {
			nearest, least = it, left
		}
	}
	return nearest
}

// appendFields adds RateLimit-Policy and RateLimit: an item for each limit that refuses anybody, in the
// order of the descriptors. Of limits with one name it is the one that is nearest to its end.
func (c *call) appendFields(b []byte) []byte {
	if c.s.cfg.Shadow {
		return b
	}
	var of [maxPolicies + 1]*item
	shown := of[:0]
	for i := range c.items {
		it := &c.items[i]
		if it.limit == nil || it.unlimited || !it.known ||
			it.limit.Shadow { //guard:rls-fields-shadow
			continue
		}
		name := it.limit.policyName()
		same := slices.IndexFunc(shown, func(o *item) bool { return o.limit.policyName() == name })
		switch {
		case same < 0:
			shown = append(shown, it)
		case nearer(it, shown[same]) < 0:
			shown[same] = it
		}
		//guard:rls-fields-bounded false
		if len(shown) > maxPolicies {
			far := slices.Index(shown, slices.MaxFunc(shown, nearer))
			shown = slices.Delete(shown, far, far+1)
		}
	}
	if len(shown) == 0 {
		return b
	}
	var policies, left []byte
	for i, it := range shown {
		if i > 0 {
			policies, left = append(policies, ", "...), append(left, ", "...)
		}
		policies, left = it.policy().Append(policies), it.fieldLeft().Append(left)
	}
	return appendHeader(appendHeader(b, limitfield.PolicyName, policies), limitfield.LimitName, left)
}

// nearer compares how near the limits of two items are to their end.
func nearer(a, b *item) int {
	end := func(it *item) (rank, left uint64) {
		switch {
		case !it.refused():
			return 2, it.left
		case it.limit.Quota:
			return 1, it.left
		}
		return 0, it.left
	}
	rankA, leftA := end(a)
	rankB, leftB := end(b)
	return cmp.Or(cmp.Compare(rankA, rankB), cmp.Compare(leftA, leftB))
}

// policyName returns the name of the limit in the fields.
func (l *Limit) policyName() string {
	name := cmp.Or(l.Name, l.Path)
	name = name[:min(len(name), maxPolicyName)]
	if !slices.ContainsFunc([]byte(name), func(c byte) bool { return c > ' ' && c < 0x7f }) {
		return "limit"
	}
	return name
}

// quota is what comes back in a period, or how many slots there are.
func (it *item) quota() uint64 {
	if it.limit.Policy != "" {
		return it.rate
	}
	return uint64(it.limit.RequestsPerUnit)
}

// policy is what the limit allows.
func (it *item) policy() limitfield.Policy {
	l := it.limit
	p := limitfield.Policy{Name: l.policyName(), Quota: it.quota(), Window: l.period, Burst: l.Burst}
	if l.Policy != "" {
		p.Burst = it.all
	}
	return p
}

// fieldLeft is what is left of the limit of an item.
func (it *item) fieldLeft() limitfield.Left {
	l := limitfield.Left{Name: it.limit.policyName(), Remaining: it.left}
	l.Until, l.Known = it.untilMore()
	return l
}

// untilMore returns when there is more, if that is known.
func (it *item) untilMore() (time.Duration, bool) {
	switch l := it.limit; {
	case l.closed() || l.Hold != 0: // never, or nobody knows
		return 0, false
	case l.Policy != "":
		return it.reset, it.refused() && it.reset > 0
	case it.refused() || l.Algorithm == FixedWindow:
		return it.reset, it.reset > 0
	case l.Algorithm == TokenBucket && it.left < l.capacity():
		return it.more, it.more > 0
	}
	return 0, false
}
