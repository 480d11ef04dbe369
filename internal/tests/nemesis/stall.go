package main

import (
	"context"
	"sync"
	"time"
)

const (
	stallTick = 20 * time.Millisecond
	// stallLeast is how late a tick has to be to count: less is the usual.
	stallLeast = 100 * time.Millisecond
)

// watchStalls looks how long this process did not get to run: a machine that is
// too busy for it is too busy for the nodes, and what they are late by then is no
// fault of theirs. The function returned ends it, and says how long in all.
func watchStalls() (stop func() time.Duration) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	var all time.Duration
	wg.Go(func() {
		t := time.NewTicker(stallTick)
		defer t.Stop()
		for last := time.Now(); ; {
			select {
			case <-ctx.Done():
				return
			case <-t.C:
			}
			now := time.Now()
			if late := now.Sub(last) - stallTick; late > stallLeast {
				all += late
			}
			last = now
		}
	})
	return func() time.Duration { cancel(); wg.Wait(); return all }
}
