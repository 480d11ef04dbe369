package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc"

	"github.com/keystead/keystead/internal/tests/kinds"
)

// What a client does.
const (
	callTime   = 2 * time.Second // for one attempt
	insistTime = 20 * time.Second
	probeTime  = time.Second
	thinkTime  = 40 * time.Millisecond
	lockTime   = time.Second // the longest TTL of grants
	// probes is how many operations there are, for one that only reads.
	probes = 8
)

// Client is a machine beside the cluster that works on objects of all kinds, through
// whatever node it comes to. A Judge is told what it was told.
type Client struct {
	w       *kinds.Worker
	rnd     *rand.Rand
	objects kinds.Objects
	each    []kinds.Object
}

// NewClient returns the client of a number, which works on so many objects of each kind,
// the same for all clients.
func NewClient(c *Cluster, j *Judge, number, objects int) (*Client, error) {
	k := &Client{rnd: rand.New(rand.NewPCG(c.cfg.Seed, uint64(number))), objects: kinds.NewObjects(objects, "")}
	k.each = k.objects.Each()
	var failed error
	k.w = kinds.NewWorker(kinds.Config{
		Recording: j.recording, Log: j, Nodes: func() int { return len(c.hosts) },
		Connect: func() ([]*grpc.ClientConn, error) {
			var conns []*grpc.ClientConn
			for i := range c.hosts {
				conn, err := c.Dial(fmt.Sprintf("10.0.9.%d", number), i)
				if failed = err; err != nil {
					return nil, err
				}
				conns = append(conns, conn)
			}
			return conns, nil
		},
		Attempt: callTime, Insist: insistTime, LongestTTL: lockTime, SessionTTL: lockTime, Drift: j.drift, Roam: true, Abandon: true,
	}, number, k.rnd.Uint64())
	return k, failed
}

// Run works until the context ends.
func (k *Client) Run(ctx context.Context) {
	for ctx.Err() == nil {
		if k.rnd.IntN(probes) == 0 {
			k.w.Probe(ctx, k.each[k.rnd.IntN(len(k.each))], probeTime)
		} else {
			k.w.Work(ctx, k.objects)
		}
		k.w.Rest(ctx, thinkTime)
	}
}

// Add adds 1 to a counter.
func (k *Client) Add(ctx context.Context, key string) {
	kinds.Add(ctx, k.w, kinds.Object{Kind: &kinds.Counter, Key: key})
}

// Delete deletes a counter.
func (k *Client) Delete(ctx context.Context, key string) {
	kinds.Delete(ctx, k.w, kinds.Object{Kind: &kinds.Counter, Key: key})
}

// Close ends its connections.
func (k *Client) Close() { k.w.Close() }
