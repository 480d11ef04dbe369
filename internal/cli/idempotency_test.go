package cli

import (
	"testing"

	"github.com/keystead/keystead/client"
)

// A key that is given and empty is a mistake, such as a script's variable that is not set.
func TestEmptyIdempotencyKey(t *testing.T) {
	var k idempotencyKey
	if k.Set("") == nil || k.Set("order-7") != nil || k.option() == (client.CallOption{}) {
		t.Errorf("%q", k)
	}
}
