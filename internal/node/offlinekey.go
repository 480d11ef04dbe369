package node

import (
	"context"
	"encoding/binary"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/test/bufconn"

	"github.com/keystead/keystead/handoff/disk"
	"github.com/keystead/keystead/internal/rpc"
	"github.com/keystead/keystead/owner"
)

// OfflineAddr is the address of the node that ServeKey serves as. Nothing listens there.
const OfflineAddr = "127.0.0.1:1"

// ServeKey serves the API in memory, over the objects that the store has of one key, at the moment
// of its last round. No process but this one reaches it, through dial. n is how many there are.
func (x *OfflineStore) ServeKey(key string) (dial func(ctx context.Context, _ string) (net.Conn, error), stop func(), n int, err error) {
	s, err := disk.Open(x.Dir, disk.Options{Reader: true})
	if err != nil {
		return nil, nil, 0, err
	}
	defer s.Close()
	rule := &standalone{dates: &dates{clock: stopped(x.Head.Clock).Now, wall: func() time.Time { return time.Unix(0, x.Head.Written) }}}
	if err := rule.set(max(x.Head.Epoch, 1)); err != nil {
		return nil, nil, 0, err
	}
	store, err := owner.New(owner.Config{Rule: rule, Shards: 1}, 0)
	if err != nil {
		return nil, nil, 0, err
	}
	var r owner.Record
	want := owner.Hash(key)
	err = s.Objects(func(hash uint64, k, name, value []byte) error {
		if hash != want || string(k) != key {
			return nil
		}
		if err := decodeObject(hash, k, name, value, &r); err != nil {
			return err
		}
		n++
		return store.Install(int64(binary.BigEndian.Uint64(value)), &r, func(uint64) bool { return true })
	})
	if err != nil {
		return nil, nil, n, err
	}
	reg := prometheus.NewRegistry()
	server := rpc.NewServer(rpc.Config{Store: store, Clock: stopped(x.Head.Clock), Metrics: rpc.NewMetrics(reg), Node: x.Head.Node, GRPCAddr: OfflineAddr})
	l := bufconn.Listen(1 << 20)
	go func() { _ = server.Serve(l) }()
	return func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }, func() { server.Stop(0) }, n, nil
}

// stopped is a clock that stands.
type stopped int64

func (s stopped) Now() int64 { return int64(s) }
