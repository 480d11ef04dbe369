package feed

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/keystead/keystead/owner"
	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
	"github.com/keystead/keystead/ring/epoch/serving"
	"github.com/keystead/keystead/ring/epoch/table"
)

// BenchmarkAppendWait has 64 callers append a record of 100 bytes each and wait
// for it, over TCP on the loopback; one operation is one record.
func BenchmarkAppendWait(b *testing.B) {
	s, installed := benchSender(b)
	const callers = 64
	left := atomic.Int64{}
	left.Store(int64(b.N))
	var wg sync.WaitGroup
	b.ReportAllocs()
	b.ResetTimer()
	for n := range uint64(callers) {
		wg.Go(func() {
			r := &owner.Record{Hash: n, Key: make([]byte, 100)}
			for left.Add(-1) >= 0 {
				if err := s.Wait(context.Background(), s.Append(r, 0)); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	st := s.Stats()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "records/s")
	b.ReportMetric(float64(st.Records)/float64(st.Batches), "records/batch")
	if installed.Load() != st.Records {
		b.Errorf("%d installed, %d appended", installed.Load(), st.Records)
	}
}

// BenchmarkCopy appends records as fast as Room lets it.
func BenchmarkCopy(b *testing.B) {
	s, _ := benchSender(b)
	r := &owner.Record{Key: make([]byte, 100)}
	b.SetBytes(prefix + 100)
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		if r.Hash = uint64(i); i%100 == 0 {
			if err := s.Room(context.Background()); err != nil {
				b.Fatal(err)
			}
		}
		s.Append(r, 0)
	}
	if err := s.Wait(context.Background(), s.Last()); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkAppend is what an operation pays under the lock of its shard.
func BenchmarkAppend(b *testing.B) {
	s, _ := benchSender(b)
	r := &owner.Record{Key: make([]byte, 100)}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if i%10_000 == 0 {
			b.StopTimer()
			if err := s.Wait(context.Background(), s.Last()); err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
		}
		s.Append(r, 0)
	}
}

func benchSender(b *testing.B) (*Sender, *atomic.Uint64) {
	b.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	installed := &atomic.Uint64{}
	server := grpc.NewServer(grpc.MaxRecvMsgSize(4 << 20))
	peerv1.RegisterStateServiceServer(server, NewIntake(IntakeConfig{
		Self:    func() table.Holder { return n2 },
		Await:   func(context.Context, uint64) error { return nil },
		Begin:   func(table.Holder, []serving.Range) error { return nil },
		Install: func(table.Holder, []byte) error { installed.Add(1); return nil },
		Log:     quiet,
	}))
	go func() { _ = server.Serve(l) }()
	b.Cleanup(server.Stop)
	start := time.Now()
	s := NewSender(SenderConfig{
		Source: n1, Target: n2,
		Encode: func(dst []byte, r *owner.Record, _ int64) []byte { return append(dst, r.Key...) },
		Dial: func(context.Context) (grpc.ClientConnInterface, error) {
			return grpc.NewClient("passthrough:///"+l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
		},
		Epoch: func() uint64 { return 1 },
		Now:   func() int64 { return int64(time.Since(start)) },
		Log:   quiet,
	})
	b.Cleanup(s.Close)
	return s, installed
}
