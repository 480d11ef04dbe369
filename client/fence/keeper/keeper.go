// Package keeper keeps the fencing tokens of a fence.Gate in registers of Keystead, so that
// they outlive the process, and several processes refuse the same late holders.
//
//	gate := fence.NewGate(fence.Config{Keeper: keeper.In(c.Register("fence"))})
//
// # Guarantee
//
// A token is let in only if no greater one was raised in the same register and key, by any
// process. Each scope is the register of a key: it holds no value, only the fence.
//
// # Non-guarantees
//
//   - Between two processes there is a gap: a request that passed in one may still write when
//     a request under a greater token has passed in the other. Within one process the gate
//     closes it. Over several, what is written to has to compare: see fence.Rows and
//     fence.Tokens.
//   - Registers are in memory. When owner and standby die together the tokens are forgotten,
//     and each process knows only what it saw itself.
//   - Without an answer nothing is let in.
package keeper

import (
	"context"
	"errors"
	"fmt"

	"github.com/keystead/keystead/client"
	"github.com/keystead/keystead/client/fence"
)

// Keeper is a fence.Keeper.
type Keeper struct{ r client.Register }

var _ fence.Keeper = Keeper{}

// In keeps tokens in a register, of which each scope has its own. Nothing else should write
// to it.
func In(r client.Register) Keeper { return Keeper{r} }

// Raise implements fence.Keeper.
func (k Keeper) Raise(ctx context.Context, scope string, token uint64) error {
	//guard:fence-kept client.Fenced(token) -> client.Fenced(0)
	w, err := k.r.Put(ctx, scope, nil, client.Fenced(token))
	switch {
	case err != nil && errors.Is(err, client.ErrInvalid):
		return fmt.Errorf("%w: scope %q: %w", fence.ErrInvalid, scope, err)
	case err != nil:
		return fmt.Errorf("fence: raise the token of %q: %w", scope, err)
	case w.Applied:
		return nil
	case w.Refusal == client.OldFence:
		return &fence.StaleError{What: scope, Token: token}
	}
	return fmt.Errorf("fence: the register of %q was not written: %s", scope, w.Refusal)
}
