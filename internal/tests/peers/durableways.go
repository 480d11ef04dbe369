package main

import (
	"bufio"
	"context"
	"fmt"
	"strconv"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/keystead/keystead/client"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
)

const (
	added = "an add, or a put of 8 bytes"
	// addsOf is how many adds are in a batch.
	addsOf = 100

	etcdThree   = "etcd, three members"
	redisAlways = "redis, always"
	redisEvery  = "redis, everysec"
	inBatches   = ", 100 in a batch"
	byClient    = ", Go client"
)

// Durabilities of Keystead.
const (
	none     = "none"
	interval = "interval"
	always   = "always"
)

// alone and ofThree are names of nodes that run alone, and of clusters.
func alone(durability string) string   { return "keystead, " + durability + ", one node" }
func ofThree(durability string) string { return "keystead, " + durability + ", three nodes" }

// comparedOnDisk returns what is compared, if it was measured: the first one ÷ the other.
func comparedOnDisk() (all [][2]string) {
	add := func(of, to string) { all = append(all, [2]string{of, to}) }
	for _, durability := range []string{always, none} { // none is what always could be at most
		for _, form := range []string{"", byClient, inBatches} {
			add(alone(durability)+form, etcd)
		}
		add(alone(durability), redisAlways)
		add(alone(durability)+byClient, redisAlways)
		add(alone(durability)+inBatches, redisAlways+inBatches)
	}
	for _, durability := range []string{interval, always} {
		add(alone(durability), alone(none))
		for _, form := range []string{byClient, inBatches} {
			add(alone(durability)+form, alone(none)+form)
			add(ofThree(durability)+form, ofThree(none)+form)
		}
	}
	add(alone(interval), redisEvery)
	add(alone(interval)+inBatches, redisEvery+inBatches)
	add(ofThree(always)+byClient, etcdThree)
	add(ofThree(always)+inBatches, etcdThree)
	return all
}

// ways returns all that is measured: some callers at once, each of which writes one of 10,000 keys
// at a time, chosen by chance, and waits for the answer.
func (l *lab) ways(counts []int) (all []way) {
	for _, n := range counts {
		add := func(w way) {
			w.What, w.Callers = added, n
			all = append(all, w)
		}
		add(way{System: etcd, items: 1, open: etcdAdds(l.etcd.clients), synced: l.etcd.synced, pids: l.etcd.pids})
		add(way{System: etcdThree, items: 1, open: etcdAdds(l.etcdThree.clients), synced: l.etcdThree.synced, pids: l.etcdThree.pids})
		// Redis writes each reply, and its log before it syncs that.
		add(way{System: redisAlways, items: 1, open: redisAdds(l.redis, 1), synced: l.redisWrites, replies: 1, pids: l.pids[l.redis]})
		add(way{System: redisAlways + inBatches, items: addsOf, open: redisAdds(l.redis, addsOf), synced: l.redisWrites, replies: 1, pids: l.pids[l.redis]})
		add(way{System: redisEvery, items: 1, open: redisAdds(l.redisEvery, 1), pids: l.pids[l.redisEvery]})
		add(way{System: redisEvery + inBatches, items: addsOf, open: redisAdds(l.redisEvery, addsOf), pids: l.pids[l.redisEvery]})
		for _, x := range l.alone {
			add(way{System: alone(x.durability), items: 1, open: bareAdds(x.bare, 1), synced: x.synced, pids: x.pids})
			add(way{System: alone(x.durability) + inBatches, items: addsOf, open: bareAdds(x.bare, addsOf), synced: x.synced, pids: x.pids})
			add(way{System: alone(x.durability) + byClient, items: 1, open: clientAdds(x.client), synced: x.synced, pids: x.pids})
		}
		for _, x := range l.three {
			add(way{System: ofThree(x.durability) + byClient, items: 1, open: clientAdds(x.client), synced: x.synced, pids: x.pids})
			add(way{System: ofThree(x.durability) + inBatches, items: addsOf, open: bareAdds(x.bare, addsOf), synced: x.synced, pids: x.pids})
		}
	}
	return all
}

func etcdAdds(members []*clientv3.Client) opener {
	return func(_ context.Context, _ *clients, i int) (cycle, func(), error) {
		next := keysOf(i)
		return func(ctx context.Context) error {
			_, err := members[i%len(members)].Put(ctx, next(), value[:8])
			return err
		}, nothing, nil
	}
}

func redisAdds(addr string, batch int) opener {
	return func(_ context.Context, _ *clients, i int) (cycle, func(), error) {
		c, err := dialRedis(addr)
		if err != nil {
			return nil, nil, err
		}
		c.w = bufio.NewWriterSize(c.conn, 64*addsOf) // a batch is one write
		next := keysOf(i)
		return func(context.Context) error {
			for range batch {
				c.send("INCRBY", next(), "1")
			}
			if err := c.w.Flush(); err != nil {
				return err
			}
			for range batch {
				if _, err := c.reply(); err != nil {
					return err
				}
			}
			return nil
		}, func() { _ = c.conn.Close() }, nil
	}
}

// bareAdds calls the API itself, without request ids.
func bareAdds(conns []*grpc.ClientConn, batch int) opener {
	return func(_ context.Context, _ *clients, i int) (cycle, func(), error) {
		node, next := counterpb.NewCounterServiceClient(conns[i%len(conns)]), keysOf(i)
		request := func() *counterpb.AddRequest { return &counterpb.AddRequest{Key: next(), Name: "bench", Delta: 1} }
		if batch == 1 {
			return func(ctx context.Context) error {
				_, err := node.Add(ctx, request())
				return err
			}, nothing, nil
		}
		return func(ctx context.Context) error {
			q := &counterpb.BatchAddRequest{Adds: make([]*counterpb.AddRequest, batch)}
			for j := range q.Adds {
				q.Adds[j] = request()
			}
			r, err := node.BatchAdd(ctx, q)
			if err != nil {
				return err
			}
			for j, x := range r.Results {
				if x.Error != nil {
					return fmt.Errorf("add %d of %s: %s", j, strconv.Quote(q.Adds[j].Key), x.Error.Message)
				}
			}
			if len(r.Results) != batch {
				return fmt.Errorf("%d adds of %d", len(r.Results), batch)
			}
			return nil
		}, nothing, nil
	}
}

// clientAdds calls by the Go client, which gathers the adds of its callers, and gives each a
// request id.
func clientAdds(c *client.Client) opener {
	return func(_ context.Context, _ *clients, i int) (cycle, func(), error) {
		counter, next := c.Counter("bench"), keysOf(i)
		return func(ctx context.Context) error {
			_, err := counter.Add(ctx, next(), 1)
			return err
		}, nothing, nil
	}
}
