package rpc

import (
	"runtime"
	"testing"
	"time"

	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
)

// TestForwardedCallsLeaveNothing: a stream between two nodes lives as long as anything is
// sent over it. What calls beside it with a deadline need is given back when they are
// answered, and not when the stream ends.
func TestForwardedCallsLeaveNothing(t *testing.T) {
	const calls, atOnce = 20_000, 500
	// leftover is what may stay of a call, in bytes of heap: the measure's own noise. A
	// context is more than 100.
	const leftover = 25
	g := grouped(t, 1, false, nil)
	stream, err := peerv1.NewForwardServiceClient(g.nodes["n1"].conn).Forward(bound(t))
	if err != nil {
		t.Fatal(err)
	}
	tag := uint64(0)
	send := func() {
		for range calls / atOnce {
			req := &peerv1.ForwardRequest{}
			for range atOnce {
				tag++
				// It is one that may wait, and is refused: it has no TTL.
				req.Calls = append(req.Calls, passed(t, tag, int64(time.Hour), lockAcquire.call(&lockpb.AcquireRequest{Key: "k", WaitNs: 1}, 0)))
			}
			if err := stream.Send(req); err != nil {
				t.Fatal(err)
			}
			for answers := 0; answers < atOnce; {
				resp, err := stream.Recv()
				if err != nil {
					t.Fatal(err)
				}
				answers += len(resp.Answers)
				if e := resp.Answers[0].GetError(); e.GetReason() != commonpb.Reason_REASON_INVALID {
					t.Fatal(resp.Answers[0])
				}
			}
		}
	}
	measure := func() (heap int64, goroutines int) {
		runtime.GC()
		runtime.GC() // what pools kept
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc), runtime.NumGoroutine()
	}
	send() // whatever grows once has grown
	heap, goroutines := measure()
	send()
	after, then := measure()
	if grown := after - heap; grown > calls*leftover {
		t.Errorf("%d calls left %d bytes on the heap, %d each", calls, grown, grown/calls)
	}
	if then > goroutines+50 {
		t.Errorf("%d calls left %d goroutines", calls, then-goroutines)
	}
}
