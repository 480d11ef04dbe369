package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"

	"github.com/keystead/keystead/client"
)

// printError prints what went wrong and, where it is known, what to do.
func printError(w io.Writer, err error) {
	msg, hint := explain(err)
	fmt.Fprintf(w, "keystead: %s\n", msg)
	if hint != "" {
		fmt.Fprintf(w, "  hint: %s\n", hint)
	}
}

// hinted is an error with a hint.
type hinted struct {
	error
	hint string
}

func (h hinted) Unwrap() error { return h.error }

func explain(err error) (msg, hint string) {
	var h hinted
	if errors.As(err, &h) {
		return h.Error(), h.hint
	}
	var e *client.Error
	if errors.As(err, &e) && e.Reason != "" {
		return fmt.Sprintf("%s (%s)", inFlags(e.Field, e.Message), string(e.Reason)), e.Hint
	}
	st, ok := status.FromError(err)
	if !ok {
		return err.Error(), ""
	}
	for _, d := range st.Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			return fmt.Sprintf("%s (%s)", inFlags(fieldOf(st), st.Message()), info.Reason), info.Metadata["hint"]
		}
	}
	return st.Message() + " (" + st.Code().String() + ")", ""
}

// errorReason returns the reason in the details of an error, "" if it has none.
func errorReason(err error) string {
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			return info.Reason
		}
	}
	return ""
}

// retryAfter returns the pause that an error asks for; 0 = none.
func retryAfter(err error) time.Duration {
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.RetryInfo); ok {
			return info.RetryDelay.AsDuration()
		}
	}
	return 0
}

// graceMark is appended to an answer in the grace period of a loss; "" if there was none.
func graceMark(lost uint64) string {
	if lost == 0 {
		return ""
	}
	return "  (" + graceText(lost) + ")"
}

func graceText(lost uint64) string {
	return fmt.Sprintf("what was kept of the key was lost in epoch %d, and its grace period runs", lost)
}

// partsMark is appended to an answer about a split limit; "" if it is whole.
func partsMark(parts int) string {
	if parts == 0 {
		return ""
	}
	return fmt.Sprintf("  (by one of %d parts)", parts)
}

// printJSON writes one value as one line.
func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// seconds is a duration as it stands in JSON: seconds, to the nanosecond.
type seconds time.Duration

// MarshalJSON writes the duration without an exponent.
func (s seconds) MarshalJSON() ([]byte, error) {
	sign, ns := "", uint64(s)
	if s < 0 {
		sign, ns = "-", -ns
	}
	text := fmt.Sprintf("%s%d.%09d", sign, ns/1e9, ns%1e9)
	return []byte(strings.TrimSuffix(strings.TrimRight(text, "0"), ".")), nil
}

// endless is longer than anything lasts. What never comes is said to come in the longest time that there is.
const endless = 250 * 365 * 24 * time.Hour

// in says what happens in some time, or what is so if it never does.
func in(what string, d time.Duration, never string) string {
	if d > endless {
		return never
	}
	return what + " in " + people(d)
}

// fullIn says when everything is available again.
func fullIn(d time.Duration) string { return in("full", d, "never full") }

// againIn says when what was refused passes.
func againIn(d time.Duration) string { return in("try again", d, "never passes") }

// people writes a duration as people read it: three figures are enough.
func people(d time.Duration) string {
	switch {
	case d >= 10*time.Second:
		return d.Round(time.Second).String()
	case d >= time.Second:
		return d.Round(10 * time.Millisecond).String()
	case d >= time.Millisecond:
		return d.Round(10 * time.Microsecond).String()
	}
	return d.Round(100 * time.Nanosecond).String()
}
