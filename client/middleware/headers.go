package middleware

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/keystead/keystead/client"
)

// Names of the fields: draft-ietf-httpapi-ratelimit-headers, sections 3 and 4, and RFC 9110,
// section 10.2.3.
const (
	rateLimitField  = "RateLimit"
	policyFieldName = "RateLimit-Policy"
	retryAfterField = "Retry-After"
)

// maxInteger is the largest integer of a structured field (RFC 9651, section 3.3.1).
const maxInteger = 999_999_999_999_999

// quoted returns a name as a string of a structured field (RFC 9651, section 3.3.3). What
// cannot stand in one is left out.
func quoted(name string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, c := range []byte(name) {
		if c == '"' || c == '\\' {
			b.WriteByte('\\')
		}
		if c >= ' ' && c < 0x7f {
			b.WriteByte(c)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// policyField returns the field that tells the policy: the quota q of a window of w seconds,
// and the burst if it is another number.
func policyField(name string, r client.Rate) string {
	f := fmt.Sprintf("%s;q=%d", name, min(r.Limit, maxInteger))
	if r.Period%time.Second == 0 {
		f += fmt.Sprintf(";w=%d", r.Period/time.Second)
	}
	if r.Algorithm == client.TokenBucket && r.Burst != 0 && r.Burst != r.Limit {
		f += fmt.Sprintf(";keystead-burst=%d", min(r.Burst, maxInteger))
	}
	return f
}

// limitField returns the field that tells what is left: r tokens, and t seconds until there
// is more, if that is known.
func (l *Limiter) limitField(d *client.Decision) string {
	f := fmt.Sprintf("%s;r=%d", l.name, min(d.Remaining, maxInteger))
	if t, ok := l.untilMore(d); ok {
		f += ";t=" + seconds(t)
	}
	return f
}

// untilMore returns when there is more, if that is known.
func (l *Limiter) untilMore(d *client.Decision) (time.Duration, bool) {
	r := l.limit.Rate()
	switch {
	case !d.Allowed:
		return d.RetryAfter, true
	case r.Algorithm == client.FixedWindow:
		return d.ResetAfter, d.ResetAfter > 0
	case r.Algorithm == client.TokenBucket && d.Remaining < d.Capacity:
		// The bucket is full when all that is missing has come, one after the other.
		missing := float64(d.Capacity - d.Remaining - 1)
		return max(0, d.ResetAfter-time.Duration(missing*float64(r.Period)/float64(r.Limit))), true
	}
	return 0, false
}

// seconds returns a duration in seconds, rounded up: who comes then does not come too
// early.
func seconds(d time.Duration) string {
	return strconv.FormatInt(int64((max(d, 0)+time.Second-1)/time.Second), 10)
}

// retryAfter returns when to come again, at least a second from now.
func retryAfter(d time.Duration) string { return seconds(max(d, time.Second)) }
