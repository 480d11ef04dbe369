package client_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/keystead/keystead/client"
	"github.com/keystead/keystead/internal/node"
)

// start runs a node in this process. Programs dial nodes that run elsewhere.
func start() (addr string, stop func()) {
	n, err := node.Start(node.Config{ID: "n1", GRPCAddr: "127.0.0.1:0"})
	if err != nil {
		panic(err)
	}
	return n.GRPCAddr(), n.Stop
}

// dial connects to a node of its own.
func dial() (c *client.Client, stop func()) {
	addr, stopNode := start()
	c, err := client.Dial(context.Background(), addr)
	if err != nil {
		panic(err)
	}
	return c, func() { c.Close(); stopNode() }
}

func Example() {
	addr, stop := start()
	defer stop()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()

	c, err := client.Dial(ctx, addr)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()

	api := c.Limit("api", client.PerMinute(2))
	for range 3 {
		d, err := api.Check(ctx, "tenant-42")
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(d.Allowed, d.Remaining)
	}
	// Output:
	// true 1
	// true 0
	// false 0
}

func ExampleClient_Add() {
	c, stop := dial()
	defer stop()
	ctx := context.Background()

	sell := client.Add{Key: "stock:42", Delta: -1, Min: client.Bound(0)}
	_, _ = c.Add(ctx, client.Add{Key: "stock:42", Delta: 1})
	for range 2 {
		v, err := c.Add(ctx, sell)
		fmt.Println(v.Applied, v.Value, v.Refusal == client.BelowMin, err)
	}
	// Output:
	// true 0 false <nil>
	// false 0 true <nil>
}

func ExampleClient_SetIf() {
	c, stop := dial()
	defer stop()
	ctx := context.Background()

	first, _ := c.SetIf(ctx, client.SetIf{Key: "config", Value: 7}) // must not exist
	late, _ := c.SetIf(ctx, client.SetIf{Key: "config", Value: 8})
	next, _ := c.SetIf(ctx, client.SetIf{Key: "config", Value: 9, Version: first.Version})
	fmt.Println(first.Applied, late.Applied, next.Applied, next.Value)
	// Output: true false true 9
}

func ExampleClient_BatchCheck() {
	c, stop := dial()
	defer stop()

	rate := client.PerHour(1)
	results, err := c.BatchCheck(context.Background(), []client.Check{
		{Key: "a", Rate: rate}, {Key: "a", Rate: rate}, {Key: "b", Rate: rate}, {Key: ""},
	})
	fmt.Println(err)
	for _, r := range results {
		fmt.Println(r.Allowed, errors.Is(r.Err, client.ErrInvalid))
	}
	// Output:
	// <nil>
	// true false
	// false false
	// true false
	// false true
}

func ExampleClient_Lock() {
	c, stop := dial()
	defer stop()
	ctx := context.Background()

	l, err := c.Lock(ctx, "nightly-report", client.LockOptions{TTL: 5 * time.Second, Wait: time.Minute})
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = c.Lock(ctx, "nightly-report", client.LockOptions{Wait: client.NoWait})
	fmt.Println("another:", errors.Is(err, client.ErrLockHeld))

	report := func(ctx context.Context, token uint64) error { return ctx.Err() }
	fmt.Println("report:", report(l.Context(), l.Token()))
	fmt.Println("unlock:", l.Unlock(ctx), context.Cause(l.Context()))
	// Output:
	// another: true
	// report: <nil>
	// unlock: <nil> keystead: UNLOCKED: the lock was given back
}

func ExampleConfig() {
	addr, stop := start()
	defer stop()

	c, err := client.Config{Timeout: 2 * time.Second, MaxInFlight: 1000}.Dial(context.Background(), addr)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	o := c.Owner("tenant-42")
	fmt.Println(o.Hash, o.Addr == addr, c.Ring()[0].Owned > 0.999)
	// Output: 18013195270154702656 true true
}
