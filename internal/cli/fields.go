package cli

import (
	"regexp"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"
)

// typedAs is how a field of a message is typed on the command line.
var typedAs = map[string]string{
	"name": "--name", "cost": "--cost", "burst": "--burst", "limit": "--limit", "period_ns": "--limit",
	"calendar": "--limit", "time_zone": "--time-zone", "first_day": "--first-day", "first_month": "--first-month", "carry_over": "--carry-over",
	"idle_ttl_ns": "--idle-ttl", "ttl_ns": "--ttl", "ends_after_ns": "--for", "wait_ns": "--wait", "holder": "--holder", "metadata": "--metadata",
	"max_delay_ns": "--max-delay", "fallback": "--fallback", "fallback.source": "--fallback", "fallback.cap": "--fallback", "fallback.period_ns": "--fallback",
	"fallback.known_for_ns": "--fallback", "fallback.budget_ns": "--budget",
	"hold_ns": "--hold", "hold_id": "HOLD", "hold_tag": "--tag", "on_expiry": "--on-expiry", "fields": "--field", "amounts": "--amount",
	"min": "--min", "max": "--max", "delta": "DELTA", "kind": "--kind", "parts": "--parts",
}

var (
	badValue   = regexp.MustCompile(`^is (.+); (choose .*|this node allows .*)$`)
	wholeHours = regexp.MustCompile(`(\d)h0m0s`)
	wholeMins  = regexp.MustCompile(`(\d)m0s`)
)

// fieldOf returns the field at fault of an error, "" if there is none.
func fieldOf(st *status.Status) string {
	for _, d := range st.Details() {
		if bad, ok := d.(*errdetails.BadRequest); ok && len(bad.FieldViolations) > 0 {
			return bad.FieldViolations[0].Field
		}
	}
	return ""
}

// inFlags is a message about a field in the words of the command line: the flag, what was
// typed, and what is right.
func inFlags(field, msg string) string {
	what, rest := typedAs[field], strings.TrimPrefix(msg, field+": ")
	if what == "" || rest == msg {
		return msg
	}
	msg = what + ": " + rest
	if m := badValue.FindStringSubmatch(rest); m != nil {
		msg = what + " " + m[1] + ": " + m[2]
		if field == "ttl_ns" && strings.HasPrefix(m[2], "this node") {
			msg += ", its --max-lock-ttl"
		}
	}
	return plainTimes(msg)
}

// plainTimes writes the times in a text as people do: 24h, not 24h0m0s.
func plainTimes(text string) string {
	return wholeMins.ReplaceAllString(wholeHours.ReplaceAllString(text, "${1}h"), "${1}m")
}
