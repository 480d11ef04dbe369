package rpc

import (
	"context"
	"time"

	"google.golang.org/grpc"

	"github.com/keystead/keystead/internal/failure"
	clusterpb "github.com/keystead/keystead/proto/keystead/cluster/v1"
)

// MaxWatches is how many watches a node has at most. One that does not read
// holds up to two messages, 1 MB each with 128 nodes and 20 KB with three.
const MaxWatches = 4096

var errWatches = &failure.Error{Reason: failure.Overloaded, RetryAfter: time.Second,
	Message: "as many watch the table as this node allows",
	Hint:    "watch another node, or ask with GetTable from time to time"}

// Watch sends the table, and then the newest one whenever the watcher has taken
// the one before: a reader that is slow misses epochs, and nothing is queued for it.
func (c *cluster) Watch(_ *clusterpb.WatchRequest, stream grpc.ServerStreamingServer[clusterpb.WatchResponse]) error {
	defer c.watches.Add(-1)
	if c.watches.Add(1) > MaxWatches {
		return c.s.refuse(errWatches)
	}
	if c.s.stopped.Load() {
		return c.s.refuse(errStopping)
	}
	ctx, cancel := context.WithCancel(stream.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-c.s.stopping:
			cancel()
		case <-ctx.Done():
		}
	}()
	defer func() { cancel(); <-done }()

	sent := c.c.Table()
	if err := stream.Send(&clusterpb.WatchResponse{Snapshot: c.last.snapshot(sent)}); err != nil {
		return err
	}
	for {
		next, err := c.c.Await(ctx, sent.Epoch)
		switch {
		case err == nil:
		case stream.Context().Err() != nil:
			return Status(gaveUp(stream.Context()))
		case c.s.stopped.Load():
			return c.s.refuse(errStopping)
		default:
			return c.s.refuse(err)
		}
		if now := c.c.Table(); now.Epoch > next.Epoch {
			next = now
		}
		if err := stream.Send(c.last.step(sent, next)); err != nil {
			return err
		}
		sent = next
	}
}
