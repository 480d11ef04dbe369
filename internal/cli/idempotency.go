package cli

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/keystead/keystead/client"
)

// idempotencyKey names a change, so that it can be asked for again.
type idempotencyKey string

func (k *idempotencyKey) flags(cmd *cobra.Command) {
	cmd.Flags().Var(k, "idempotency-key", "`TEXT` that names this change, such as an order's number: the same command under it acts once")
}

// String and Type implement pflag.Value.
func (k *idempotencyKey) String() string { return string(*k) }
func (*idempotencyKey) Type() string     { return "string" }

// Set refuses an empty text: a variable of a script that is not set must not be a change
// without a key.
func (k *idempotencyKey) Set(text string) error {
	if text == "" {
		return errors.New("it is empty; choose 1 to 64 bytes")
	}
	*k = idempotencyKey(text)
	return nil
}

// option returns what the client takes; none without a key.
func (k idempotencyKey) option() client.CallOption {
	if k == "" {
		return client.CallOption{}
	}
	return client.IdempotencyKey(string(k))
}
