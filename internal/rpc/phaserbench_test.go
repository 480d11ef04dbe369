package rpc

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/gather"
	barrierpb "github.com/keystead/keystead/proto/keystead/barrier/v1"
)

// BenchmarkPhaser: 10,000 parties of one phaser, over gRPC on loopback: arrivals a second by 64 callers,
// and the time from the last arrival until all parties have heard, each by a call of its own.
func BenchmarkPhaser(b *testing.B) {
	const parties, callers, conns = gather.MaxParties, 64, 4
	g := grouped(b, 1, true, nil)
	g.called("c", owner.BarrierLevel)
	n := g.nodes["n1"]
	n.sink.parts.Store(true)
	clients := make([]barrierpb.BarrierServiceClient, conns)
	for i := range clients {
		clients[i] = barrierpb.NewBarrierServiceClient(n.connect())
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	each := func(n int, f func(c barrierpb.BarrierServiceClient, party string) error) {
		b.Helper()
		next := make(chan int)
		var all sync.WaitGroup
		for i := range callers {
			all.Go(func() {
				for p := range next {
					if err := f(clients[i%conns], fmt.Sprint(p)); err != nil {
						b.Error(err)
					}
				}
			})
		}
		for p := range n {
			next <- p
		}
		close(next)
		all.Wait()
	}
	each(parties, func(c barrierpb.BarrierServiceClient, p string) error {
		_, err := c.Register(ctx, &barrierpb.RegisterRequest{Key: "k", Party: p, TtlNs: gather.MaxTTL})
		return err
	})
	var arriving, releasing time.Duration
	failed := make(chan error, parties)
	for b.Loop() {
		phase := must(clients[0].Inspect(ctx, &barrierpb.InspectRequest{Key: "k"}))(b).Phase
		var waiting sync.WaitGroup
		for i := range parties {
			waiting.Go(func() {
				r, err := clients[i%conns].Await(ctx, &barrierpb.AwaitRequest{Key: "k", Phase: phase, WaitNs: int64(time.Hour)}, grpc.WaitForReady(true))
				if err == nil && r.Verdict != passedPhase {
					err = fmt.Errorf("%v", r)
				}
				if err != nil {
					failed <- err
				}
			})
		}
		for tick := time.NewTicker(time.Millisecond); n.store.Stats().Waiting < parties; {
			select {
			case <-tick.C:
			case err := <-failed:
				b.Fatal(err)
			}
		}
		began := time.Now()
		each(parties-1, func(c barrierpb.BarrierServiceClient, p string) error {
			_, err := c.Arrive(ctx, &barrierpb.ArriveRequest{Key: "k", Party: p, Phase: phase})
			return err
		})
		arriving += time.Since(began)
		began = time.Now()
		if r := must(clients[0].Arrive(ctx, &barrierpb.ArriveRequest{Key: "k", Party: fmt.Sprint(parties - 1), Phase: phase}))(b); !r.Last {
			b.Fatal(r)
		}
		if waiting.Wait(); len(failed) > 0 {
			b.Fatal(<-failed)
		}
		releasing += time.Since(began)
	}
	b.ReportMetric(float64(parties-1)*float64(b.N)/arriving.Seconds(), "arrivals/s")
	b.ReportMetric(float64(releasing.Microseconds())/1000/float64(b.N), "ms/release")
}
