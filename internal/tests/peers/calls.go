package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/keystead/keystead/client"
	"github.com/keystead/keystead/internal/vtcodec"
	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
	oncepb "github.com/keystead/keystead/proto/keystead/once/v1"
	semaphorepb "github.com/keystead/keystead/proto/keystead/semaphore/v1"
)

const (
	conns   = 4 // to each server, where callers share them
	ttl     = 10 * time.Second
	maxWait = time.Minute // in a queue
	keys    = 10_000      // that are written
)

// value is what is written: 100 bytes.
var value = strings.Repeat("0123456789", 10)

// clients are what all callers share.
type clients struct {
	servers    *servers
	etcd       []*clientv3.Client
	one, three *client.Client
	watching   *client.Client // of the lone node
	bare, echo []*grpc.ClientConn
	bareThree  []*grpc.ClientConn // one for each of three nodes, and the first again
}

func dial(ctx context.Context, s *servers) (c *clients, err error) {
	c = &clients{servers: s}
	for i := range conns {
		e, err := clientv3.New(clientv3.Config{Endpoints: []string{s.etcd}, DialTimeout: patience, Logger: zap.NewNop()})
		if err != nil {
			return nil, err
		}
		c.etcd = append(c.etcd, e)
		for _, to := range []struct {
			addr  string
			conns *[]*grpc.ClientConn
		}{{s.node, &c.bare}, {s.echo, &c.echo}, {s.three[i%len(s.three)], &c.bareThree}} {
			conn, err := grpc.NewClient("passthrough:///"+to.addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
				grpc.WithDefaultCallOptions(grpc.ForceCodecV2(vtcodec.New())))
			if err != nil {
				return nil, err
			}
			*to.conns = append(*to.conns, conn)
		}
	}
	var err1, err2, err3 error
	c.one, err1 = client.Config{Timeout: patience}.Dial(ctx, s.node)
	c.three, err2 = client.Config{Timeout: patience}.Dial(ctx, s.three...)
	c.watching, err3 = client.Config{Timeout: patience, Connections: conns}.Dial(ctx, s.node)
	return c, errors.Join(err1, err2, err3)
}

// keysOf returns what chooses the keys that a caller writes.
func keysOf(i int) func() string {
	rng := rand.New(rand.NewPCG(uint64(i), 2379))
	return func() string { return "key-" + strconv.Itoa(rng.IntN(keys)) }
}

// each is a key for each caller; shared is one for all.
func each(i int) string { return "lock-" + strconv.Itoa(i) }
func shared(int) string { return "handover" }
func nothing()          {}

func etcdLocks(key func(int) string) opener {
	return func(ctx context.Context, c *clients, i int) (cycle, func(), error) {
		s, err := concurrency.NewSession(c.etcd[i%conns], concurrency.WithTTL(int(ttl/time.Second)))
		if err != nil {
			return nil, nil, err
		}
		m := concurrency.NewMutex(s, "/"+key(i))
		return func(ctx context.Context) error {
			if err := m.Lock(ctx); err != nil {
				return err
			}
			return m.Unlock(ctx)
		}, func() { _ = s.Close() }, nil
	}
}

func etcdPut(_ context.Context, c *clients, i int) (cycle, func(), error) {
	next := keysOf(i)
	return func(ctx context.Context) error {
		_, err := c.etcd[i%conns].Put(ctx, next(), value)
		return err
	}, nothing, nil
}

// which chooses a client of Keystead: that of the lone node, or of three.
type which func(*clients) *client.Client

func one(c *clients) *client.Client   { return c.one }
func three(c *clients) *client.Client { return c.three }

func locks(of which, key func(int) string) opener {
	return func(_ context.Context, c *clients, i int) (cycle, func(), error) {
		l := of(c).Lock("bench")
		return func(ctx context.Context) error {
			held, err := l.Acquire(ctx, key(i), client.TTL(ttl))
			if err != nil {
				return err
			}
			return held.Release(ctx)
		}, nothing, nil
	}
}

// tries does not wait, so that the client puts the calls of several callers in a message.
func tries(of which) opener {
	return func(_ context.Context, c *clients, i int) (cycle, func(), error) {
		l := of(c).Lock("bench")
		return func(ctx context.Context) error {
			held, err := l.TryAcquire(ctx, each(i), client.TTL(ttl))
			if err != nil {
				return err
			}
			return held.Release(ctx)
		}, nothing, nil
	}
}

// batchedLocks acquires and releases as many locks as a batch has, by the API itself: all are
// asked for, then all are released.
func batchedLocks(of func(*clients) []*grpc.ClientConn) opener {
	return func(_ context.Context, c *clients, i int) (cycle, func(), error) {
		node := lockpb.NewLockServiceClient(of(c)[i%conns])
		get := &lockpb.BatchAcquireRequest{}
		for j := range batchOf {
			get.Acquires = append(get.Acquires, &lockpb.AcquireRequest{Key: fmt.Sprintf("lock-%d-%d", i, j), Name: "batch", Holder: "caller-" + strconv.Itoa(i), TtlNs: int64(ttl)})
		}
		return func(ctx context.Context) error {
			r, err := node.BatchAcquire(ctx, get)
			if err != nil {
				return err
			}
			back := &lockpb.BatchReleaseRequest{Releases: make([]*lockpb.ReleaseRequest, 0, batchOf)}
			for j, x := range r.Results {
				if !x.Response.GetAcquired() {
					return fmt.Errorf("lock %s: held by %q, %s", get.Acquires[j].Key, x.Response.GetHolder().GetId(), x.Error.GetMessage())
				}
				back.Releases = append(back.Releases, &lockpb.ReleaseRequest{Key: get.Acquires[j].Key, Name: "batch", Token: x.Response.Token})
			}
			b, err := node.BatchRelease(ctx, back)
			if err != nil {
				return err
			}
			for j, x := range b.Results {
				if !x.Response.GetReleased() {
					return fmt.Errorf("lock %s was not released: %s", get.Acquires[j].Key, x.Error.GetMessage())
				}
			}
			if len(b.Results) != batchOf {
				return fmt.Errorf("%d locks of %d", len(b.Results), batchOf)
			}
			return nil
		}, nothing, nil
	}
}

// bareOnces begins and completes work of a key of its own each time, with a result of 100 bytes.
func bareOnces(_ context.Context, c *clients, i int) (cycle, func(), error) {
	node, n := oncepb.NewOnceServiceClient(c.bare[i%conns]), 0
	result, run := []byte(value), time.Now().UnixNano()
	return func(ctx context.Context) error {
		n++
		key := fmt.Sprintf("once-%d-%d-%d", i, run, n)
		r, err := node.Begin(ctx, &oncepb.BeginRequest{Key: key, Name: "bare", Fingerprint: "bench", TtlNs: int64(ttl)})
		if err != nil {
			return err
		}
		if r.Outcome != oncepb.Outcome_OUTCOME_FIRST {
			return fmt.Errorf("once %s: %s", key, r.Outcome)
		}
		_, err = node.Complete(ctx, &oncepb.CompleteRequest{Key: key, Name: "bare", Token: r.Token, Result: result, KeepNs: int64(time.Second)})
		return err
	}, nothing, nil
}

func putsOf(of which) opener {
	return func(_ context.Context, c *clients, i int) (cycle, func(), error) {
		r, next := of(c).Register("bench"), keysOf(i)
		return func(ctx context.Context) error {
			_, err := r.Put(ctx, next(), []byte(value))
			return err
		}, nothing, nil
	}
}

// bareLocks calls the API itself. wait is how long it waits in the queue.
func bareLocks(key func(int) string, wait time.Duration) opener {
	return func(_ context.Context, c *clients, i int) (cycle, func(), error) {
		node, holder := lockpb.NewLockServiceClient(c.bare[i%conns]), "caller-"+strconv.Itoa(i)
		return func(ctx context.Context) error {
			r, err := node.Acquire(ctx, &lockpb.AcquireRequest{Key: key(i), Name: "bare", Holder: holder, TtlNs: int64(ttl), WaitNs: int64(wait)})
			if err != nil {
				return err
			}
			if !r.Acquired {
				return fmt.Errorf("lock %s is held by %s", key(i), r.GetHolder().GetId())
			}
			_, err = node.Release(ctx, &lockpb.ReleaseRequest{Key: key(i), Name: "bare", Token: r.Token})
			return err
		}, nothing, nil
	}
}

func bareSemaphores(_ context.Context, c *clients, i int) (cycle, func(), error) {
	node, key, holder := semaphorepb.NewSemaphoreServiceClient(c.bare[i%conns]), "semaphore-"+strconv.Itoa(i), "caller-"+strconv.Itoa(i)
	return func(ctx context.Context) error {
		r, err := node.Acquire(ctx, &semaphorepb.AcquireRequest{Key: key, Name: "bare", Holder: holder, Permits: 1, Capacity: 10, TtlNs: int64(ttl)})
		if err != nil {
			return err
		}
		if !r.Acquired {
			return fmt.Errorf("semaphore %s: %d of %d permits are held", key, r.Held, r.Capacity)
		}
		_, err = node.Release(ctx, &semaphorepb.ReleaseRequest{Key: key, Name: "bare", Token: r.Token})
		return err
	}, nothing, nil
}

// echoCall is one round trip to a bare gRPC server with the options of a node.
func echoCall(_ context.Context, c *clients, i int) (cycle, func(), error) {
	node := lockpb.NewLockServiceClient(c.echo[i%conns])
	return func(ctx context.Context) error {
		_, err := node.Acquire(ctx, &lockpb.AcquireRequest{Key: "handover", Name: "bare", Holder: "caller", TtlNs: int64(ttl)})
		return err
	}, nothing, nil
}
