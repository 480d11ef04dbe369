package keeper_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/keystead/keystead/client"
	"github.com/keystead/keystead/client/fence"
	"github.com/keystead/keystead/client/fence/keeper"
	"github.com/keystead/keystead/client/keysteadtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Two processes with one register refuse the same late holders, and so does one that is
// started anew.
func TestKeeper(t *testing.T) {
	n := keysteadtest.Start(t)
	register := n.Client(t).Register("fence")
	one, other := fence.NewGate(fence.Config{Keeper: keeper.In(register)}), fence.NewGate(fence.Config{Keeper: keeper.In(n.Client(t).Register("fence"))})
	for i, tc := range []struct {
		gate  *fence.Gate
		scope string
		token uint64
		stale bool
	}{
		{one, "a", 33, false},
		{other, "a", 34, false},
		{one, "a", 33, true}, // it has not seen 34 itself
		{one, "a", 34, false},
		{other, "a", 33, true},
		{other, "b", 1, false},
		{fence.NewGate(fence.Config{Keeper: keeper.In(register)}), "a", 33, true},
	} {
		_, leave, err := tc.gate.Enter(t.Context(), tc.scope, tc.token)
		if errors.Is(err, fence.ErrStale) != tc.stale || !tc.stale && err != nil {
			t.Errorf("%d: %v", i, err)
		}
		if err == nil {
			leave()
		}
	}
	if s, err := register.Get(t.Context(), "a"); err != nil || s.Fence != 34 || len(s.Value) != 0 {
		t.Errorf("%+v %v", s, err)
	}
}

// What Keystead takes for no key is not let in, and neither is anything without an answer.
func TestKeeperFails(t *testing.T) {
	n := keysteadtest.Start(t)
	gate := fence.NewGate(fence.Config{Keeper: keeper.In(n.Client(t).Register("fence")), Wait: 50 * time.Millisecond})
	if _, _, err := gate.Enter(t.Context(), "\xff", 33); !errors.Is(err, fence.ErrInvalid) || !errors.Is(err, client.ErrInvalid) {
		t.Error(err)
	}
	if _, _, err := gate.Enter(t.Context(), strings.Repeat("x", 512), 33); err != nil {
		t.Error(err)
	}
	n.Stop()
	if _, _, err := gate.Enter(t.Context(), "a", 33); err == nil || errors.Is(err, fence.ErrStale) || errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
