package rls

import (
	"fmt"
	"time"

	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/structpb"

	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
)

// Limit is a rate limit of a configuration.
type Limit struct {
	Domain string
	// Path is its place among the descriptors: key_value or key for each level,
	// with points between. For people and metrics; it is not injective.
	Path string
	// Name is that by which others replace it, "" = none. It is in the answers.
	Name string
	// Replaces are the names of limits that do not count in a request for which
	// this one does.
	Replaces []string
	// Unlimited: nothing is counted, and every answer is OK.
	Unlimited bool
	// RequestsPerUnit come back in each Unit. 0 = all are refused.
	RequestsPerUnit uint32
	Unit            Unit
	// Algorithm says how they come back. Default: FixedWindow.
	Algorithm Algorithm
	// Burst is the most that a token bucket holds. 0 = RequestsPerUnit.
	Burst uint64
	// Aligned: a fixed window begins when the time since 1970 is a multiple of its length, as
	// upstream, and not with the first hit.
	Aligned bool
	// AllOrNothing: what was spent is given back if the request is over another
	// limit.
	AllOrNothing bool
	// Overdraft: hits whose number the request states were used already, such as those of Envoy's
	// apply_on_stream_done. They are spent whether or not they are there.
	Overdraft bool
	// Hold makes it a limit of slots: RequestsPerUnit run at a time. A hit takes a slot, and a negative one with the
	// same last entry gives it back; what nobody gives back comes back after so long. 0 = no slots.
	Hold time.Duration
	// Policy is the name of the cluster's policy that says the numbers, "" = they are here.
	Policy string
	// SpendRest: a request for more than there is takes what is left, as upstream
	// counts it. Otherwise it takes nothing.
	SpendRest bool
	// OnFailure is what becomes of a request while the owner of the key cannot
	// answer. Default: FailError.
	OnFailure Policy
	// Shadow: counted, but never over the limit.
	Shadow bool
	// Quota: being over it refuses a request only if the request is over all of its
	// limits that are quotas.
	Quota bool
	// Detailed: counted in the metrics by the values of the request.
	Detailed bool
	// Metadata is what Envoy gets in the dynamic metadata of answers to requests that
	// are not over the limit. nil = nothing. It does not change.
	Metadata *structpb.Struct
	// File and Line are where it stands.
	File string
	Line int

	period  time.Duration
	dynamic bool    // its path in the metrics depends on the values of the request
	object  string  // name of its objects; see key.go
	current []byte  // RateLimitResponse.RateLimit of the answers
	series  *series // nil when dynamic
}

// Unit is a unit of time of a limit.
type Unit = rlspb.RateLimitResponse_RateLimit_Unit

// periods are the lengths of the units. Months and years are those of upstream.
var periods = map[Unit]time.Duration{
	rlspb.RateLimitResponse_RateLimit_SECOND: time.Second,
	rlspb.RateLimitResponse_RateLimit_MINUTE: time.Minute,
	rlspb.RateLimitResponse_RateLimit_HOUR:   time.Hour,
	rlspb.RateLimitResponse_RateLimit_DAY:    24 * time.Hour,
	rlspb.RateLimitResponse_RateLimit_WEEK:   7 * 24 * time.Hour,
	rlspb.RateLimitResponse_RateLimit_MONTH:  30 * 24 * time.Hour,
	rlspb.RateLimitResponse_RateLimit_YEAR:   365 * 24 * time.Hour,
}

// Algorithm says how a limit refills.
type Algorithm uint8

// The algorithms. Their names in the files are fixed_window, token_bucket and
// sliding_window.
const (
	FixedWindow   Algorithm = iota // all at once, one unit after the first hit
	TokenBucket                    // evenly
	SlidingWindow                  // as the hits of one unit ago leave the window
)

var algorithms = []struct {
	name string
	wire limitpb.Algorithm
}{
	FixedWindow:   {"fixed_window", limitpb.Algorithm_ALGORITHM_FIXED_WINDOW},
	TokenBucket:   {"token_bucket", limitpb.Algorithm_ALGORITHM_TOKEN_BUCKET},
	SlidingWindow: {"sliding_window", limitpb.Algorithm_ALGORITHM_SLIDING_WINDOW},
}

// algorithm returns that of the checks.
func (l *Limit) algorithm() limitpb.Algorithm {
	if l.Aligned {
		return limitpb.Algorithm_ALGORITHM_CALENDAR_WINDOW
	}
	return algorithms[l.Algorithm].wire
}

// How returns how the limit works: its algorithm, slots or policy.
func (l *Limit) How() string {
	switch {
	case l.Hold != 0:
		return "slots"
	case l.Policy != "":
		return "policy"
	}
	return l.Algorithm.String()
}

// String returns the name in the files.
func (a Algorithm) String() string { return algorithms[a].name }

// Policy says what becomes of a request while the owner of a key cannot answer.
type Policy uint8

// The policies. Their names in the files are error, allow and deny.
const (
	FailError Policy = iota // the call fails, and Envoy's failure_mode_deny decides
	FailAllow               // the limit counts as not reached
	FailDeny                // the limit counts as reached
)

var policies = []string{FailError: "error", FailAllow: "allow", FailDeny: "deny"}

// String returns the name in the files.
func (p Policy) String() string { return policies[p] }

// Rate returns the limit for people: 10/minute, unlimited, 20 at a time, 10m0s each, or the name of a policy.
func (l *Limit) Rate() string {
	switch {
	case l.Unlimited:
		return "unlimited"
	case l.Hold != 0:
		return fmt.Sprintf("%d at a time, %s each", l.RequestsPerUnit, l.Hold)
	case l.Policy != "":
		return l.Policy
	}
	return fmt.Sprintf("%d/%s", l.RequestsPerUnit, unitName(l.Unit))
}

// capacity returns the most that can be available at once.
func (l *Limit) capacity() uint64 {
	if l.Burst != 0 {
		return l.Burst
	}
	return uint64(l.RequestsPerUnit)
}

// closed reports whether all hits are refused.
func (l *Limit) closed() bool { return l.RequestsPerUnit == 0 && l.Policy == "" }

// seal works out what answers and checks need of a limit that is complete. Its
// period is that of its unit times multiplier, which is 0 where none was given.
func (l *Limit) seal(multiplier uint32) {
	l.period = periods[l.Unit] * time.Duration(max(multiplier, 1))
	switch {
	case l.Hold != 0:
		l.object = slotHolds
	case l.Policy != "":
		l.object = l.Policy
	default:
		l.object = objectName(l.Algorithm, l.Aligned, l.period)
	}
	var b []byte
	b = appendVarint(b, 1, uint64(l.RequestsPerUnit))
	b = appendVarint(b, 2, uint64(l.Unit))
	if l.Name != "" {
		b = protowire.AppendTag(b, 3, protowire.BytesType)
		b = protowire.AppendString(b, l.Name)
	}
	if multiplier > 0 {
		b = appendMessage(b, 4, appendVarint(nil, 1, uint64(multiplier)))
	}
	l.current = b
}
