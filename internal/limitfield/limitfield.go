// Package limitfield writes the fields RateLimit-Policy and RateLimit of HTTP responses, as
// draft-ietf-httpapi-ratelimit-headers has them from its revision 8 on: lists of structured
// fields (RFC 9651), one item for each limit. It writes no more than such a field can have:
// a number that is larger is the largest, and characters that are none of ASCII's are left out.
//
//	RateLimit-Policy: "minute";q=60;w=60, "day";q=1000;w=86400
//	RateLimit: "minute";r=12;t=48, "day";r=511
package limitfield

import (
	"strconv"
	"time"
)

// Names of the fields: sections 3 and 4 of the draft.
const (
	PolicyName = "RateLimit-Policy"
	LimitName  = "RateLimit"
)

// MaxInteger is the largest integer of a structured field (RFC 9651, section 3.3.1).
const MaxInteger = 999_999_999_999_999

// Policy is what a limit allows.
type Policy struct {
	Name   string // as it is; see Quote
	Quota  uint64
	Window time.Duration // in which the quota comes back; written if it is whole seconds
	Burst  uint64        // most at once; 0 = as much as the quota
}

// Append appends the item of RateLimit-Policy.
func (p Policy) Append(b []byte) []byte {
	b = number(Quote(b, p.Name), ";q=", p.Quota)
	if p.Window > 0 && p.Window%time.Second == 0 {
		b = number(b, ";w=", uint64(p.Window/time.Second))
	}
	if p.Burst != 0 && p.Burst != p.Quota {
		b = number(b, ";keystead-burst=", p.Burst)
	}
	return b
}

// Left is what is left of a limit.
type Left struct {
	Name      string // of its Policy
	Remaining uint64
	Until     time.Duration // until there is more, if Known
	Known     bool
}

// Append appends the item of RateLimit.
func (l Left) Append(b []byte) []byte {
	b = number(Quote(b, l.Name), ";r=", l.Remaining)
	if l.Known {
		b = number(b, ";t=", Seconds(l.Until))
	}
	return b
}

// Quote appends a name as a string of a structured field (RFC 9651, section 3.3.3). What
// cannot stand in one is left out.
func Quote(b []byte, name string) []byte {
	b = append(b, '"')
	for _, c := range []byte(name) {
		if c == '"' || c == '\\' {
			b = append(b, '\\')
		}
		if c >= ' ' && c < 0x7f {
			b = append(b, c)
		}
	}
	return append(b, '"')
}

func number(b []byte, parameter string, n uint64) []byte {
	return strconv.AppendUint(append(b, parameter...), min(n, MaxInteger), 10)
}

// Seconds returns a duration in seconds, rounded up: who comes then does not come too early.
func Seconds(d time.Duration) uint64 {
	d = max(d, 0)
	n := uint64(d / time.Second)
	if d%time.Second > 0 {
		n++
	}
	return n
}

// NextToken returns when a bucket has one more token: it lacks missing ones, is full after
// full, and each period brings limit tokens, one after the other.
func NextToken(full time.Duration, missing, limit uint64, period time.Duration) time.Duration {
	if missing == 0 || limit == 0 {
		return 0
	}
	return max(0, full-time.Duration(float64(missing-1)*float64(period)/float64(limit)))
}
