package handoff_test

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/keystead/keystead/handoff/feed"
	"github.com/keystead/keystead/handoff/record"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/lock"
	"github.com/keystead/keystead/owner/reqid"
	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
	"github.com/keystead/keystead/ring/epoch/serving"
	"github.com/keystead/keystead/ring/epoch/table"
)

// day is the longest TTL and wait, ns.
const day = int64(lock.MaxTTL)

// TestLargestQueue has as many wait for a lock as may, each with the longest
// holder, metadata and request id, on an object with more request ids than fit one
// record. All of it gets to a copy, in records below the bound.
func TestLargestQueue(t *testing.T) {
	target := storeWith(t, nil)
	sender := sendTo(t, target)
	largest := 0
	emit := func(r *owner.Record, now int64) bool {
		size := sender.AppendSize(r, now) - 4 // of its length
		largest = max(largest, size)
		if n := len(r.Places); size > n*record.MaxPlace+record.MaxRest {
			t.Fatalf("a record of %d waiters has %d bytes", n, size)
		}
		return true
	}
	last := false
	source := storeWith(t, sinkFunc(func(r *owner.Record) {
		if last { // each has all of the queue
			emit(r, r.At)
		}
	}))
	ref := owner.Ref{Key: strings.Repeat("k", owner.MaxKey), Name: strings.Repeat("n", owner.MaxName)}
	op := lock.Acquire{Holder: strings.Repeat("h", lock.MaxHolder), Metadata: []byte(strings.Repeat("m", lock.MaxMetadata)), TTL: day, Wait: day}
	id := func(i int) reqid.ID {
		return reqid.ID{Client: reqid.Client{Hi: math.MaxUint64, Lo: uint64(i)}, Sequence: math.MaxUint64, Settled: math.MaxUint64}
	}
	for i := range owner.MaxQueue + 1 {
		last = i == owner.MaxQueue
		a, w, err := source.Acquire(1, ref, id(i), op)
		if err != nil || a.Acquired != (i == 0) || (w == nil) != (i == 0) {
			t.Fatalf("%d: %+v %v", i, a, err)
		}
	}
	op.Wait = 0
	for i := range owner.MaxKept + 10 { // answered at once
		last = i == owner.MaxKept
		if _, _, err := source.Acquire(1, ref, id(10_000+i), op); err != nil {
			t.Fatal(err)
		}
	}
	acked(t, sender)
	if whole := source.Export(func() int64 { return day - 1 }, func(uint64) bool { return true }, emit, func() bool { return true }); !whole {
		t.Fatal("the export ended early")
	}
	acked(t, sender)
	if largest > feed.MaxRecord || largest < feed.MaxRecord*4/5 {
		t.Errorf("the largest record has %d bytes of %d", largest, feed.MaxRecord)
	}
	a, err := target.Inspect(day, ref, owner.MaxQueue)
	if err != nil || a.Waiting != owner.MaxQueue {
		t.Errorf("%d wait at the copy: %v", a.Waiting, err)
	}
}

type sinkFunc func(*owner.Record)

func (f sinkFunc) Changed(r *owner.Record) { f(r) }

func storeWith(t *testing.T, sink owner.Sink) *owner.Store {
	s, err := owner.New(owner.Config{Rule: free{}, Sink: sink, MaxWaitersPerLock: owner.MaxQueue,
		RequestIDs: reqid.Config{Window: 2 * day, ClientsPerObject: 10_000}}, 0)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// sendTo is a stream to a store.
func sendTo(t *testing.T, to *owner.Store) *feed.Sender {
	n1, n2 := holderOf("n1"), holderOf("n2")
	log := slog.New(slog.DiscardHandler)
	intake := feed.NewIntake(feed.IntakeConfig{
		Self:  func() table.Holder { return n2 },
		Await: func(context.Context, uint64) error { return nil },
		Begin: func(table.Holder, []serving.Range) error { return nil },
		Install: func(_ table.Holder, b []byte) error {
			var r owner.Record
			if err := record.Decode(b, day, &r); err != nil {
				return err
			}
			return to.Install(day, &r, func(uint64) bool { return true })
		},
		Log: log,
	})
	l := bufconn.Listen(1 << 20)
	server := grpc.NewServer(grpc.MaxRecvMsgSize(4 << 20)) // as a node has it
	peerv1.RegisterStateServiceServer(server, intake)
	served := make(chan struct{})
	go func() { defer close(served); _ = server.Serve(l) }()
	sender := feed.NewSender(feed.SenderConfig{
		Source: n1, Target: n2, Session: 1, Encode: record.Append, Epoch: func() uint64 { return 1 }, Log: log,
		Now: func() int64 { return time.Now().UnixNano() },
		Dial: func(context.Context) (grpc.ClientConnInterface, error) {
			return grpc.NewClient("passthrough:///n2", grpc.WithTransportCredentials(insecure.NewCredentials()),
				grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
		},
	})
	t.Cleanup(func() { sender.Close(); server.Stop(); <-served })
	return sender
}

// acked waits until the target has everything.
func acked(t *testing.T, s *feed.Sender) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := s.Wait(ctx, s.Last()); err != nil {
		t.Fatal(fmt.Errorf("record %d: %w", s.Last(), err))
	}
}
