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
	"github.com/keystead/keystead/owner/hold"
	"github.com/keystead/keystead/owner/reqid"
	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
	"github.com/keystead/keystead/ring/epoch/serving"
	"github.com/keystead/keystead/ring/epoch/table"
)

// day is the longest TTL and wait, ns.
const day = int64(hold.MaxTTL)

// TestLargestQueue has as many wait for a lock as fill some records, each with the longest
// holder, metadata and request id, on an object with more request ids than fit one
// record. All of it gets to a copy, in records below the bound.
func TestLargestQueue(t *testing.T) {
	target := storeWith(t, nil)
	sender := sendTo(t, target)
	const waiting = 3*owner.MaxPart + 1
	largest := 0
	live, queued := 0, 0 // bytes of changes, and those while the queue was filled
	emit := func(r *owner.Record, now int64) bool {
		size := sender.AppendSize(r, now) - 4 // of its length
		if r.IDs == nil {
			live += size
		}
		largest = max(largest, size)
		n := len(r.Members)
		if size > n*record.MaxMember+record.MaxRest {
			t.Fatalf("a record of %d waiters has %d bytes", n, size)
		}
		return true
	}
	source := storeWith(t, partial{sinkFunc(func(r *owner.Record) { emit(r, r.At) })})
	ref := owner.Ref{Key: strings.Repeat("k", owner.MaxKey), Name: strings.Repeat("n", owner.MaxName)}
	op := owner.AcquireLock{Holder: strings.Repeat("h", hold.MaxName), Metadata: []byte(strings.Repeat("m", hold.MaxMetadata)), TTL: day, Wait: day}
	id := func(i int) reqid.ID {
		return reqid.ID{Client: reqid.Client{Hi: math.MaxUint64, Lo: uint64(i)}, Sequence: reqid.KeySequence - 1, Settled: reqid.KeySequence - 1}
	}
	for i := range waiting + 1 {
		a, w, err := source.Acquire(1, ref, id(i), op)
		if err != nil || a.Acquired != (i == 0) || (w == nil) != (i == 0) {
			t.Fatalf("%d: %+v %v", i, a, err)
		}
		if i%owner.MaxPart == 0 {
			acked(t, sender)
		}
	}
	if queued = live; queued > (waiting+1)*(record.MaxMember+len(ref.Key)+len(ref.Name)+2*hold.MaxMetadata) {
		t.Errorf("%d bytes for a queue of %d", queued, waiting)
	}
	op.Wait = 0
	for i := range owner.MaxKept + 10 { // answered at once
		if _, _, err := source.Acquire(1, ref, id(10_000+i), op); err != nil {
			t.Fatal(err)
		}
	}
	acked(t, sender)
	if whole := source.Export(func() int64 { return day - 1 }, func(uint64) bool { return true }, emit, func() bool { return sender.Room(t.Context()) == nil }); !whole {
		t.Fatal("the export ended early")
	}
	acked(t, sender)
	if largest > feed.MaxRecord || largest < feed.MaxRecord*4/5 {
		t.Errorf("the largest record has %d bytes of %d", largest, feed.MaxRecord)
	}
	a, err := target.Inspect(day, ref, 1)
	if err != nil || a.Waiting != waiting {
		t.Errorf("%d wait at the copy: %v", a.Waiting, err)
	}
}

// byPlace is a sink that gets changes of locks place by place.
type partial struct{ owner.Sink }

func (partial) Partial() bool { return true }

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
	return sendOver(t, to, bufconn.Listen(1<<20))
}

// wireListener is one that can be connected to.
type wireListener interface {
	net.Listener
	DialContext(ctx context.Context) (net.Conn, error)
}

// loopback is a real wire.
type loopback struct{ net.Listener }

func (l loopback) DialContext(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "tcp", l.Addr().String())
}

func sendOver(t *testing.T, to *owner.Store, l wireListener) *feed.Sender {
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

// TestCrowdAtOneLock: as many callers as may come to one lock at once, each with a
// kilobyte of metadata, and the holder renews all the while. What goes to the standby,
// over a real wire, is as much as each of them says, once: it keeps up.
func TestCrowdAtOneLock(t *testing.T) {
	const callers, renewals, each = 1024, 4, record.MaxMember + 512
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	target := storeWith(t, nil)
	sender := sendOver(t, target, loopback{l})
	source := storeWith(t, partial{sinkFunc(func(r *owner.Record) { sender.Append(r, r.At) })})
	ref := owner.Ref{Key: "crowd", Name: "lock"}
	op := owner.AcquireLock{Holder: "worker", Metadata: []byte(strings.Repeat("m", hold.MaxMetadata)), TTL: day, Wait: day}
	var token uint64
	for i := range callers + 1 {
		a, _, err := source.Acquire(1, ref, reqid.ID{Client: reqid.Client{Lo: uint64(i)}, Sequence: 1}, op)
		if err != nil {
			t.Fatal(err)
		}
		token = max(token, a.Token)
		for range renewals {
			if r, err := source.Renew(1, ref, token, day); err != nil || !r.Renewed {
				t.Fatal(r, err)
			}
		}
		if err := sender.Err(); err != nil {
			t.Fatalf("after %d callers and %d bytes: %v", i+1, sender.Stats().Bytes, err)
		}
	}
	acked(t, sender)
	bytes := sender.Stats().Bytes
	t.Logf("%d bytes for %d callers", bytes, callers)
	if most := uint64(callers * (each + renewals*(hold.MaxMetadata+256))); bytes > most {
		t.Errorf("%d bytes for %d callers, more than %d", bytes, callers, most)
	}
	if a, err := target.Inspect(day, ref, 1); err != nil || a.Waiting != callers {
		t.Errorf("%d wait at the copy: %v", a.Waiting, err)
	}
}
