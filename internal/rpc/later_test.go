package rpc

import (
	"testing"

	"github.com/keystead/keystead/internal/forward"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
)

// An error of a node of a later version has a reason that this one does not know: it is
// told, and ends no process.
func TestReasonsOfLaterNodes(t *testing.T) {
	for _, w := range []*commonpb.Error{
		{Code: 9, Message: "of a later version", Reason: 99},
		{Code: 9, Message: "elsewhere", Reason: commonpb.Reason_REASON_NOT_OWNER}, // without a hint
	} {
		func() {
			defer func() {
				if p := recover(); p != nil {
					t.Errorf("%v: panic: %v", w, p)
				}
			}()
			_ = Status(&forward.Remote{Wire: w})
		}()
	}
}
