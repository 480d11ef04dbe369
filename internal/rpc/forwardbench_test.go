package rpc

import (
	"context"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
)

// BenchmarkForwarded measures checks at the owner and at another node, over sockets and
// with the processor time that they take in all: caller, both nodes.
func BenchmarkForwarded(b *testing.B) {
	const callers = 64
	g := grouped(b, 2, true, nil)
	g.called("c", 4)
	keys := g.keys("n2", 1000, nil)
	for _, through := range []string{"n2", "n1"} {
		b.Run(through, func(b *testing.B) {
			m := g.nodes[through]
			var next atomic.Int64
			var wg sync.WaitGroup
			before := processorTime(b)
			b.ReportAllocs()
			b.ResetTimer()
			for range callers {
				wg.Go(func() {
					for {
						n := next.Add(1)
						if n > int64(b.N) {
							return
						}
						if _, err := m.limits.Check(context.Background(), &limitpb.CheckRequest{Key: keys[n%1000], Limit: 1e6, PeriodNs: 1e9}); err != nil {
							b.Error(err)
						}
					}
				})
			}
			wg.Wait()
			b.ReportMetric(float64(processorTime(b)-before)/float64(b.N), "cpu-ns/op")
		})
	}
}

func processorTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
