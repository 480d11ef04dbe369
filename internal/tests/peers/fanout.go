package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// watchers is how many watch one key.
	watchers = 10_000
	// puts is how often that is written.
	puts = 10
	// rest is between two of these.
	rest = 100 * time.Millisecond
	// watched is the key, and the name of the register.
	watched = "fan-out"
)

// watch watches the key until ctx ends, and tells each value, the first of which is "": the watch
// has begun.
type watch func(ctx context.Context, c *clients, i int, told func(value string)) error

func etcdWatch(ctx context.Context, c *clients, i int, told func(string)) error {
	for r := range c.etcd[i%conns].Watch(ctx, watched, clientv3.WithCreatedNotify()) {
		if err := r.Err(); err != nil {
			return err
		}
		if r.Created {
			told("")
		}
		for _, e := range r.Events {
			told(string(e.Kv.Value))
		}
	}
	return nil
}

func keysteadWatch(ctx context.Context, c *clients, _ int, told func(string)) error {
	for s, err := range c.watching.Register(watched).Watch(ctx, watched, 0) {
		if err != nil {
			return err
		}
		told(string(s.Value))
	}
	return nil
}

func etcdSet(ctx context.Context, c *clients, value string) error {
	_, err := c.etcd[0].Put(ctx, watched, value)
	return err
}

func keysteadSet(ctx context.Context, c *clients, value string) error {
	_, err := c.one.Register(watched).Put(ctx, watched, []byte(value))
	return err
}

// news is a value on its way to all watchers.
type news struct {
	value string
	began time.Time
	took  []time.Duration // of each watcher
	left  atomic.Int64    // watchers that have not heard it
	all   chan struct{}   // closed when they have
}

func newNews(n int, value string) *news {
	x := &news{value: value, took: make([]time.Duration, n), all: make(chan struct{})}
	x.left.Store(int64(n))
	return x
}

// heard notes that a watcher has it. Each watcher is one goroutine.
func (x *news) heard(i int) {
	if x.took[i] != 0 {
		return // it came again
	}
	if x.took[i] = time.Since(x.began); x.left.Add(-1) == 0 {
		close(x.all)
	}
}

// p99 waits until all have heard it, and returns the time in which 99 of 100 have, in ms.
func (x *news) p99(ctx context.Context, failed <-chan error) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	select {
	case <-x.all:
	case err := <-failed:
		return 0, fmt.Errorf("a watch ended: %v", err)
	case <-ctx.Done():
		return 0, fmt.Errorf("%d of %d watchers have not heard %.3q: %w", x.left.Load(), len(x.took), x.value, ctx.Err())
	}
	slices.Sort(x.took)
	return ms(x.took[len(x.took)*99/100]), nil
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// fanOut has n watchers watch a key that is written so many times, and returns p99 of the time
// from each write until a watcher has heard it, in ms.
func fanOut(ctx context.Context, c *clients, n, times int, follow watch, set func(context.Context, *clients, string) error) (p99s []float64, err error) {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	begun := newNews(n, "")
	begun.began = time.Now()
	by := map[string]*news{"": begun}
	var order []*news
	for i := range times {
		x := newNews(n, fmt.Sprintf("%03d", i)+strings.Repeat("x", len(value)-3))
		by[x.value], order = x, append(order, x)
	}
	failed := make(chan error, n)
	for i := range n {
		all.Go(func() {
			err := follow(ctx, c, i, func(value string) {
				if x := by[value]; x != nil {
					x.heard(i)
				}
			})
			if ctx.Err() == nil {
				failed <- err
			}
		})
	}
	if _, err := begun.p99(ctx, failed); err != nil {
		return nil, err
	}
	for _, x := range order {
		time.Sleep(rest)
		x.began = time.Now()
		if err := set(ctx, c, x.value); err != nil {
			return nil, err
		}
		p99, err := x.p99(ctx, failed)
		if err != nil {
			return nil, err
		}
		p99s = append(p99s, p99)
	}
	return p99s, nil
}
