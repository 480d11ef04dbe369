package caller

import (
	"fmt"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"
)

// Fate is what is known of an attempt that failed.
type Fate uint8

const (
	// Lost attempts may have acted, or may yet.
	Lost Fate = iota
	// Nothing was done by the attempt, and never will be.
	Nothing
	// Over is Nothing, and there is no use in another attempt.
	Over
)

// FateOf returns what is known of an attempt that failed with an error. sent reports whether a
// connection took it. unexpected is what no caller should be told, as "REASON: message".
func FateOf(err error, sent bool) (f Fate, unexpected string) {
	for _, d := range status.Convert(err).Details() {
		info, ok := d.(*errdetails.ErrorInfo)
		if !ok || info.Domain != "keystead" {
			continue
		}
		switch info.Reason {
		case "UNAVAILABLE", "NOT_OWNER", "OVERLOADED", "TOO_MANY_WAITERS", "STORE_FULL", "SUPERSEDED", "RECOVERING":
			return Nothing, ""
		case "REQUEST_TOO_OLD":
			return Over, ""
		case "OUTCOME_UNKNOWN", "GAVE_UP": // a lock may have been granted and given back
			return Lost, ""
		}
		return Over, fmt.Sprintf("%s: %v", info.Reason, err)
	}
	if !sent {
		return Nothing, ""
	}
	return Lost, ""
}
