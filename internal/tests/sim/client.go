package sim

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	pb "github.com/keystead/keystead/proto/keystead/v1"
)

// What a client does.
const (
	callTime  = 2 * time.Second // for one attempt
	attempts  = 3               // of one request
	thinkTime = 40 * time.Millisecond
	lockTime  = time.Second // TTL of grants; clocks of nodes may run fast by maxDrift
)

// Client is a machine beside the cluster that takes locks and counts, through
// whatever node it comes to, and writes into a Ledger what it is told.
type Client struct {
	c      *Cluster
	ledger *Ledger
	rnd    *rand.Rand
	id     []byte
	seq    uint64
	conns  []*grpc.ClientConn // by host
	keys   int
}

// NewClient returns the client of a number, which calls about so many keys, the
// same for all clients.
func NewClient(c *Cluster, l *Ledger, number, keys int) (*Client, error) {
	k := &Client{c: c, ledger: l, rnd: rand.New(rand.NewPCG(c.cfg.Seed, uint64(number))), keys: keys, id: make([]byte, 16)}
	binary.BigEndian.PutUint64(k.id, k.rnd.Uint64())
	binary.BigEndian.PutUint64(k.id[8:], uint64(number))
	for i := range c.hosts {
		conn, err := c.Dial(fmt.Sprintf("10.0.9.%d", number), i)
		if err != nil {
			return nil, err
		}
		k.conns = append(k.conns, conn)
	}
	return k, nil
}

// Run calls until the context ends.
func (k *Client) Run(ctx context.Context) {
	for ctx.Err() == nil {
		key := fmt.Sprintf("key-%d", k.rnd.IntN(k.keys))
		if k.rnd.IntN(2) == 0 {
			k.lock(ctx, key)
		} else {
			k.add(ctx, key)
		}
		time.Sleep(time.Duration(k.rnd.Int64N(int64(thinkTime))))
	}
}

// Close ends its connections.
func (k *Client) Close() {
	for _, c := range k.conns {
		_ = c.Close()
	}
}

// attempt calls until there is an answer, with the same request id, at a node
// drawn anew each time. Answers of an attempt after the first count from the
// first one's start.
func (k *Client) attempt(ctx context.Context, call func(context.Context, *grpc.ClientConn, *pb.RequestId) error) bool {
	k.seq++
	began := time.Now()
	for n := range attempts {
		if ctx.Err() != nil {
			return false
		}
		id := &pb.RequestId{Client: k.id, Sequence: k.seq, Settled: k.seq}
		if n > 0 {
			id.AgeNs = int64(max(time.Since(began), 1))
		}
		try, cancel := context.WithTimeout(ctx, callTime)
		err := call(try, k.conns[k.rnd.IntN(len(k.conns))], id)
		cancel()
		if err == nil {
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		k.ledger.Failed(status.Code(err).String())
		time.Sleep(time.Duration(k.rnd.Int64N(int64(thinkTime))))
	}
	return false
}

func (k *Client) lock(ctx context.Context, key string) {
	name := fmt.Sprintf("%x", k.id[8:])
	began := time.Now()
	var got *pb.AcquireResponse
	done := k.attempt(ctx, func(ctx context.Context, conn *grpc.ClientConn, id *pb.RequestId) (err error) {
		got, err = pb.NewLockServiceClient(conn).Acquire(ctx, &pb.AcquireRequest{
			Key: key, Name: "l", Holder: name, TtlNs: int64(lockTime), WaitNs: k.rnd.Int64N(int64(200 * time.Millisecond)), RequestId: id,
		})
		return err
	})
	if !done || !got.Acquired {
		return
	}
	if got.Replay == nil {
		k.ledger.Granted(key, began, lockTime-lockTime/50, got.Token, got.Epoch, got.Owner)
	}
	time.Sleep(time.Duration(k.rnd.Int64N(int64(thinkTime))))
	k.ledger.Returning(key, got.Token)
	k.attempt(ctx, func(ctx context.Context, conn *grpc.ClientConn, id *pb.RequestId) error {
		_, err := pb.NewLockServiceClient(conn).Release(ctx, &pb.ReleaseRequest{Key: key, Name: "l", Token: got.Token, RequestId: id})
		return err
	})
}

func (k *Client) add(ctx context.Context, key string) {
	began := time.Now()
	var got *pb.AddResponse
	done := k.attempt(ctx, func(ctx context.Context, conn *grpc.ClientConn, id *pb.RequestId) (err error) {
		got, err = pb.NewCounterServiceClient(conn).Add(ctx, &pb.AddRequest{Key: key, Name: "c", Delta: 1, RequestId: id})
		return err
	})
	if done && got.Applied && got.Replay == nil {
		k.ledger.Added(key, began, got.Value, got.Epoch, got.Owner)
	}
}
