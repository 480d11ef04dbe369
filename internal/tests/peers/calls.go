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
	bare, echo []*grpc.ClientConn
}

func dial(ctx context.Context, s *servers) (c *clients, err error) {
	c = &clients{servers: s}
	for range conns {
		e, err := clientv3.New(clientv3.Config{Endpoints: []string{s.etcd}, DialTimeout: patience, Logger: zap.NewNop()})
		if err != nil {
			return nil, err
		}
		c.etcd = append(c.etcd, e)
		for _, to := range []struct {
			addr  string
			conns *[]*grpc.ClientConn
		}{{s.node, &c.bare}, {s.echo, &c.echo}} {
			conn, err := grpc.NewClient("passthrough:///"+to.addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
				grpc.WithDefaultCallOptions(grpc.ForceCodecV2(vtcodec.New())))
			if err != nil {
				return nil, err
			}
			*to.conns = append(*to.conns, conn)
		}
	}
	var err1, err2 error
	c.one, err1 = client.Config{Timeout: patience}.Dial(ctx, s.node)
	c.three, err2 = client.Config{Timeout: patience}.Dial(ctx, s.three...)
	return c, errors.Join(err1, err2)
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

func puts(of which) opener {
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
