package rpc

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/keystead/keystead/internal/forward"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
)

// Errors of an owner name a demand by its place among those that it was asked for. Callers know others: places in their
// whole request, or names of a policy.

// demandIn returns which demand the field of an error names, and what of it.
func demandIn(field string) (i int, rest string, ok bool) {
	inside, found := strings.CutPrefix(field, "demands[")
	number, rest, closed := strings.Cut(inside, "]")
	i, err := strconv.Atoi(number)
	return i, rest, found && closed && err == nil && i >= 0
}

// atPlace has an error of some of the demands of a request, which have these places there, name the place.
func atPlace(places []int, err error) error {
	w := wire(err)
	i, rest, ok := demandIn(w.Field)
	if !ok || i >= len(places) {
		return err
	}
	there, here := fmt.Sprintf("demands[%d]", i), fmt.Sprintf("demands[%d]", places[i])
	message := w.Message
	if text, ok := strings.CutPrefix(message, there); ok {
		message = here + text
	}
	return &forward.Remote{Wire: &commonpb.Error{Code: w.Code, Message: message, Reason: w.Reason, Hint: w.Hint, Field: here + rest, RetryAfterNs: w.RetryAfterNs}}
}
