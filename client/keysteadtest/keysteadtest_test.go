package keysteadtest_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/keystead/keystead/client"
	"github.com/keystead/keystead/client/keysteadtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// shop is what a user's program may be.
type shop struct{ stock client.Counter }

var errSoldOut = errors.New("sold out")

func (s *shop) buy(ctx context.Context, sku string) error {
	change, err := s.stock.Add(ctx, sku, -1, client.AtLeast(0))
	if err == nil && !change.Applied {
		err = errSoldOut
	}
	return err
}

func TestShop(t *testing.T) {
	n := keysteadtest.Start(t)
	c := n.Client(t)
	s := &shop{c.Counter("stock")}
	if _, err := s.stock.Add(t.Context(), "sku", 1); err != nil {
		t.Fatal(err)
	}
	if err := s.buy(t.Context(), "sku"); err != nil {
		t.Error(err)
	}
	if err := s.buy(t.Context(), "sku"); !errors.Is(err, errSoldOut) {
		t.Error(err)
	}
	n.Stop()
	n.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := s.buy(ctx, "sku"); err == nil || errors.Is(err, errSoldOut) {
		t.Errorf("without a node: %v", err)
	}
}

func TestNodesAreApart(t *testing.T) {
	a, b := keysteadtest.Start(t).Client(t), keysteadtest.Start(t).Client(t)
	if _, err := a.Counter("").Add(t.Context(), "k", 1); err != nil {
		t.Fatal(err)
	}
	if got, err := b.Counter("").Get(t.Context(), "k"); err != nil || got.Exists {
		t.Errorf("%+v, %v", got, err)
	}
}
