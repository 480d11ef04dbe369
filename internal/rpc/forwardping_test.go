package rpc

import (
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/net/http2"

	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
)

// overheard is a connection whose frames, as they are written, go to a reader as well.
type overheard struct {
	net.Conn
	copy io.Writer
}

func (o overheard) Write(b []byte) (int, error) {
	n, err := o.Conn.Write(b)
	_, _ = o.copy.Write(b[:n])
	return n, err
}

// Nothing but calls goes to the owner: a ping in each round trip would cost a write and a
// wake-up at both ends.
func TestForwardedCallsSendNoPings(t *testing.T) {
	var pings, messages atomic.Int64
	var reading sync.WaitGroup
	g := grouped(t, 2, false, func(c *Config) {
		dial := c.Dial
		c.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
			conn, err := dial(ctx, addr)
			if err != nil {
				return nil, err
			}
			r, w := io.Pipe()
			reading.Go(func() { countFrames(r, &pings, &messages) })
			t.Cleanup(func() { _ = w.Close(); reading.Wait() })
			return overheard{conn, w}, nil
		}
	})
	g.called("c", 4)
	const calls = 50
	for _, key := range g.keys("n2", calls, nil) {
		if _, err := g.nodes["n1"].limits.Check(t.Context(), &limitpb.CheckRequest{Key: key, Limit: 1e6, PeriodNs: 1e9}); err != nil {
			t.Fatal(err)
		}
	}
	if messages.Load() < calls || pings.Load() > 0 {
		t.Errorf("%d calls were sent in %d messages, with %d pings", calls, messages.Load(), pings.Load())
	}
}

// countFrames reads what a client writes until that ends.
func countFrames(r *io.PipeReader, pings, messages *atomic.Int64) {
	defer func() { _, _ = io.Copy(io.Discard, r) }()
	if _, err := io.ReadFull(r, make([]byte, len(http2.ClientPreface))); err != nil {
		return
	}
	for frames := http2.NewFramer(nil, r); ; {
		f, err := frames.ReadFrame()
		if err != nil {
			return
		}
		switch f := f.(type) {
		case *http2.PingFrame:
			if !f.IsAck() {
				pings.Add(1)
			}
		case *http2.DataFrame:
			messages.Add(1)
		}
	}
}
