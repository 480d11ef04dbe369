package client_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/keystead/keystead/client"
	"github.com/keystead/keystead/client/keysteadtest"
)

// start runs a node in this process. Programs dial nodes that run elsewhere.
func start() (addr string, stop func()) {
	n, err := keysteadtest.Run()
	if err != nil {
		panic(err)
	}
	return n.Addr(), n.Stop
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

func ExampleIdempotencyKey() {
	c, stop := dial()
	defer stop()
	ctx := context.Background()

	stock := c.Counter("stock")
	_, _ = stock.Add(ctx, "sku-42", 10)
	for range 2 { // the customer clicks twice, and another process gets the second click
		v, err := stock.Add(ctx, "sku-42", -1, client.AtLeast(0), client.IdempotencyKey("order-7"))
		fmt.Println(v.Applied, v.Value, v.Replayed, err)
	}
	// Output:
	// true 9 false <nil>
	// true 9 true <nil>
}

func ExampleLimit_CheckN() {
	c, stop := dial()
	defer stop()
	ctx := context.Background()

	tokens := c.Limit("llm-tokens", client.PerMinute(1000).WithBurst(1500))
	d, _ := tokens.CheckN(ctx, "tenant-42", 1200)
	fmt.Println(d.Allowed, d.Remaining, "of", d.Capacity)
	d, _ = tokens.CheckN(ctx, "tenant-42", 1200)
	fmt.Println(d.Allowed, d.RetryAfter.Round(time.Second))
	// Output:
	// true 300 of 1500
	// false 54s
}

func ExampleLimit_Peek() {
	c, stop := dial()
	defer stop()
	ctx := context.Background()

	api := c.Limit("api", client.PerHour(20))
	_, _ = api.Check(ctx, "tenant-42")
	d, err := api.Peek(ctx, "tenant-42")
	fmt.Println(d.Allowed, d.Remaining, err)
	// Output: true 19 <nil>
}

func ExampleLimit_Refund() {
	c, stop := dial()
	defer stop()
	ctx := context.Background()

	api := c.Limit("api", client.PerHour(20))
	_, _ = api.CheckN(ctx, "tenant-42", 5) // the work needed 3 only
	d, err := api.Refund(ctx, "tenant-42", 2)
	fmt.Println(d.Remaining, err)
	// Output: 17 <nil>
}

func ExampleLimit_BatchCheck() {
	c, stop := dial()
	defer stop()

	results, err := c.Limit("api", client.PerHour(1)).BatchCheck(context.Background(), []string{"a", "a", "b", ""})
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

// Several limits of a key, and different costs, in one call.
func ExampleClient_BatchCheck() {
	c, stop := dial()
	defer stop()

	second, day := c.Limit("second", client.PerSecond(10)), c.Limit("day", client.PerDay(1000))
	results, err := c.BatchCheck(context.Background(), []client.Check{
		{Limit: second, Key: "tenant-42"},
		{Limit: day, Key: "tenant-42", Cost: 3},
		{Limit: day, Key: "tenant-7", Peek: true},
	})
	for _, r := range results {
		fmt.Println(r.Allowed, r.Remaining, r.Err)
	}
	fmt.Println(err)
	// Output:
	// true 9 <nil>
	// true 997 <nil>
	// true 1000 <nil>
	// <nil>
}

func ExampleCounter_Add() {
	c, stop := dial()
	defer stop()
	ctx := context.Background()

	stock := c.Counter("stock")
	_, _ = stock.Add(ctx, "sku-42", 1)
	for range 2 {
		v, err := stock.Add(ctx, "sku-42", -1, client.AtLeast(0))
		fmt.Println(v.Applied, v.Value, v.Refusal, err)
	}
	// Output:
	// true 0 none <nil>
	// false 0 below the minimum <nil>
}

func ExampleCounter_Get() {
	c, stop := dial()
	defer stop()
	ctx := context.Background()

	views := c.Counter("views")
	_, _ = views.Add(ctx, "/index.html", 3, client.IdleTTL(24*time.Hour))
	v, err := views.Get(ctx, "/index.html")
	fmt.Println(v.Value, v.Exists, err)
	v, err = views.Get(ctx, "/none.html")
	fmt.Println(v.Value, v.Exists, err)
	// Output:
	// 3 true <nil>
	// 0 false <nil>
}

func ExampleCounter_CompareAndSet() {
	c, stop := dial()
	defer stop()
	ctx := context.Background()

	config := c.Counter("config")
	first, _ := config.CompareAndSet(ctx, "replicas", 7, 0) // must not exist
	late, _ := config.CompareAndSet(ctx, "replicas", 8, 0)
	next, _ := config.CompareAndSet(ctx, "replicas", 9, first.Version)
	fmt.Println(first.Applied, late.Applied, late.Refusal, next.Applied, next.Value)
	// Output: true false another version true 9
}

func ExampleCounter_Reset() {
	c, stop := dial()
	defer stop()
	ctx := context.Background()

	failures := c.Counter("failures")
	_, _ = failures.Add(ctx, "login:alice", 4)
	was, err := failures.Reset(ctx, "login:alice")
	fmt.Println(was.Previous, was.Existed, err)
	// Output: 4 true <nil>
}

func ExampleClient_BatchAdd() {
	c, stop := dial()
	defer stop()

	stock := c.Counter("stock")
	results, err := c.BatchAdd(context.Background(), []client.Add{
		{Counter: stock, Key: "sku-1", Delta: 10},
		{Counter: stock, Key: "sku-1", Delta: -3, Options: []client.CounterOption{client.AtLeast(0)}},
		{Counter: c.Counter("sold"), Key: "sku-1", Delta: 3},
	})
	for _, r := range results {
		fmt.Println(r.Value, r.Err)
	}
	fmt.Println(err)
	// Output:
	// 10 <nil>
	// 7 <nil>
	// 3 <nil>
	// <nil>
}

func ExampleCounter_BatchGet() {
	c, stop := dial()
	defer stop()
	ctx := context.Background()

	stock := c.Counter("stock")
	_, _ = stock.Add(ctx, "sku-1", 10)
	results, err := stock.BatchGet(ctx, []string{"sku-1", "sku-2"})
	fmt.Println(results[0].Value, results[1].Exists, err)
	// Output: 10 false <nil>
}

func ExampleLock_Acquire() {
	c, stop := dial()
	defer stop()
	ctx := context.Background()

	// Waits until the lock is free, a minute at most; without Wait, until ctx ends.
	held, err := c.Lock("nightly").Acquire(ctx, "report", client.TTL(5*time.Second), client.Wait(time.Minute))
	if err != nil {
		fmt.Println(err)
		return
	}
	// Give the lock back also when ctx has ended, as it has at a shutdown.
	defer func() {
		fmt.Println("release:", held.Release(context.WithoutCancel(ctx)), context.Cause(held.Context()))
	}()

	// The work goes on as long as the lock is held. What it writes to can refuse
	// smaller tokens than it has seen.
	report := func(ctx context.Context, token uint64) error { return ctx.Err() }
	fmt.Println("report:", report(held.Context(), held.Token()))
	// Output:
	// report: <nil>
	// release: <nil> keystead: RELEASED: the lock was given back
}

// Hazard leases: readers share the lock of what they read, for a short time, and what frees it takes
// the lock alone, when all readers are gone.
func ExampleShared() {
	c, stop := dial()
	defer stop()
	ctx := context.Background()

	segments := c.Lock("segment")
	reader, _ := segments.Acquire(ctx, "7", client.Shared(), client.TTL(2*time.Second))
	freed := make(chan error)
	go func() {
		alone, err := segments.Acquire(ctx, "7") // waits for the readers, and lets no later one pass
		if err == nil {
			fmt.Println("freed")
			err = alone.Release(ctx)
		}
		freed <- err
	}()
	for waiting := 0; waiting == 0; {
		state, _ := segments.Inspect(ctx, "7")
		waiting = state.Waiting
	}
	fmt.Println("read:", reader.Held()) // look after the read: what was read is good if it is still held
	_ = reader.Release(ctx)
	fmt.Println(<-freed)
	// Output:
	// read: true
	// freed
	// <nil>
}

func ExampleLock_TryAcquire() {
	c, stop := dial()
	defer stop()
	ctx := context.Background()

	nightly := c.Lock("nightly")
	held, _ := nightly.TryAcquire(ctx, "report", client.HeldBy("worker-1"))
	defer held.Release(ctx)
	_, err := nightly.TryAcquire(ctx, "report")
	var e *client.Error
	if errors.Is(err, client.ErrLockHeld) && errors.As(err, &e) {
		fmt.Println("held by", e.Holder.ID)
	}
	// Output: held by worker-1
}

func ExampleLock_Inspect() {
	c, stop := dial()
	defer stop()
	ctx := context.Background()

	nightly := c.Lock("nightly")
	held, _ := nightly.Acquire(ctx, "report", client.HeldBy("worker-1"), client.Metadata([]byte("since midnight")))
	defer held.Release(ctx)
	s, err := nightly.Inspect(ctx, "report")
	fmt.Printf("%s, %s, %d waiting, %v\n", s.Holder.ID, s.Holder.Metadata, s.Waiting, err)
	// Output: worker-1, since midnight, 0 waiting, <nil>
}

func ExampleClient_NextID() {
	c, stop := dial()
	defer stop()
	ctx := context.Background()

	a, _ := c.NextID(ctx)
	b, _ := c.NextID(ctx)
	fmt.Println(a != b)
	// Output: true
}

func ExampleClient_NextIDs() {
	c, stop := dial()
	defer stop()

	const n = 100
	first, err := c.NextIDs(context.Background(), n)
	last := first + n - 1
	fmt.Println(last-first, err)
	// Output: 99 <nil>
}

func ExampleCluster_Members() {
	c, stop := dial()
	defer stop()

	members, err := c.Cluster().Members(context.Background())
	for _, m := range members {
		fmt.Printf("%s owns %.0f %%\n", m.ID, 100*m.Share)
	}
	fmt.Println(err)
	// Output:
	// test owns 100 %
	// <nil>
}

func ExampleCluster_Owner() {
	c, stop := dial()
	defer stop()

	o := c.Cluster().Owner("tenant-42")
	fmt.Println(o.Node, o.Hash)
	// Output: test 18013195270154702656
}

// A node is drained before its machine goes away: its keys move to others, with all
// that is kept of them.
func ExampleAdmin_Drain() {
	c, stop := dial()
	defer stop()

	_, err := c.Admin().Drain(context.Background(), "test")
	fmt.Println(errors.Is(err, client.ErrLastNode))
	// Output: true
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
	fmt.Println(c.Cluster().Ring()[0].Addr == addr)
	// Output: true
}
