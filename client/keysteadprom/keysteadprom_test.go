package keysteadprom_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/keystead/keystead/client"
	"github.com/keystead/keystead/client/keysteadprom"
	"github.com/keystead/keystead/client/keysteadtest"
)

func TestMetrics(t *testing.T) {
	m := keysteadprom.New()
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(m)
	n := keysteadtest.Start(t)
	c, err := client.Config{Observers: []client.Observer{m}}.Dial(t.Context(), n.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	api := c.Limit("api", client.PerHour(1))
	for range 3 {
		if _, err := api.Check(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := api.BatchCheck(t.Context(), []string{"a", "a", ""}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Counter("").Add(t.Context(), "k", 1, client.IdleTTL(-1)); err == nil {
		t.Fatal("no error")
	}
	n.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second) // for a retry, on a busy machine
	defer cancel()
	_, _ = c.Counter("").Get(ctx, "k")
	want := `
		# HELP keystead_client_calls_total Calls of the Keystead client, by operation and result; each item of a batch counts.
		# TYPE keystead_client_calls_total counter
		keystead_client_calls_total{op="add",result="INVALID"} 1
		keystead_client_calls_total{op="check",result="failed"} 1
		keystead_client_calls_total{op="check",result="ok"} 2
		keystead_client_calls_total{op="check",result="refused"} 3
		keystead_client_calls_total{op="get",result="UNAVAILABLE"} 1
	`
	if err := testutil.CollectAndCompare(m, strings.NewReader(want), "keystead_client_calls_total"); err != nil {
		t.Error(err)
	}
	if n := testutil.CollectAndCount(m, "keystead_client_call_duration_seconds"); n != 3 {
		t.Errorf("durations of %d operations", n)
	}
	if n := testutil.CollectAndCount(m, "keystead_client_retries_total"); n != 1 {
		t.Errorf("retries of %d operations", n)
	}
	if problems, err := testutil.GatherAndLint(reg); err != nil || len(problems) > 0 {
		t.Error(problems, err)
	}
}

func Example() {
	n, err := keysteadtest.Run()
	if err != nil {
		panic(err)
	}
	defer n.Stop()
	ctx := context.Background()

	metrics := keysteadprom.New()
	prometheus.NewRegistry().MustRegister(metrics)
	c, err := client.Config{Observers: []client.Observer{metrics}}.Dial(ctx, n.Addr())
	if err != nil {
		panic(err)
	}
	defer c.Close()
	_, _ = c.Counter("visits").Add(ctx, "/", 1)
	fmt.Println(testutil.CollectAndCount(metrics, "keystead_client_calls_total"))
	// Output: 1
}
