package feed

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	"github.com/keystead/keystead/owner"
	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
	"github.com/keystead/keystead/ring/epoch/serving"
	"github.com/keystead/keystead/ring/epoch/table"
)

// A record on an idle stream takes one round trip.
func TestLatency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newTarget(t, nil)
		s := newSender(t, newWires(t, g, 10*time.Millisecond), nil)
		soon(t, s, put(s, "first")) // with the hello
		for range 3 {
			time.Sleep(time.Second)
			began := time.Now()
			soon(t, s, put(s, "x"))
			if took := time.Since(began); took != 20*time.Millisecond {
				t.Errorf("took %v over a wire of 10 ms", took)
			}
		}
	})
}

// What comes while two batches are under way makes one batch.
func TestGroupCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newTarget(t, nil)
		s := newSender(t, newWires(t, g, 10*time.Millisecond), nil)
		soon(t, s, put(s, "first"))
		before := s.Stats().Batches
		var want []string
		for i := range 1000 {
			want = append(want, fmt.Sprint(i))
			put(s, want[i])
			if i < 2 {
				synctest.Wait() // it goes out
			}
		}
		soon(t, s, s.Last())
		if n := s.Stats().Batches - before; n != 3 {
			t.Errorf("%d batches", n)
		}
		if got := g.log()[1:]; !slices.Equal(got, want) {
			t.Errorf("installed %q", got)
		}
	})
}

// Batches that are full go out while up to eight are under way; and all of them
// are as large as they may be.
func TestWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newTarget(t, nil)
		g.shut()
		w := newWires(t, g, 0)
		w.lift(false)
		s := newSender(t, w, func(c *SenderConfig) { c.MaxBatch, c.CopyWindow = 1100, 5000 })
		for range 200 {
			put(s, strings.Repeat("x", 100))
		}
		w.lift(true)
		time.Sleep(time.Second)
		if st := s.Stats(); st.Batches != 8 || st.Unacked != 200 || st.UnackedLen != 200*104 {
			t.Errorf("%+v", st)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := s.Room(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("room for more: %v", err)
		}
		g.open()
		if err := s.Room(t.Context()); err != nil || s.Stats().UnackedLen >= 5000 {
			t.Errorf("%v %+v", err, s.Stats())
		}
		soon(t, s, s.Last())
		if st := s.Stats(); st.Batches != 20 || st.UnackedLen != 0 || st.Records != 200 || st.Bytes != 200*104 {
			t.Errorf("%+v", st)
		}
	})
}

// Nothing that is appended after a failure ever looks acknowledged.
func TestOverflow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newTarget(t, nil)
		s := newSender(t, newWires(t, g, 0), func(c *SenderConfig) { c.MaxUnacked = 1000 })
		soon(t, s, put(s, "before"))
		g.shut()
		waits := make(chan error)
		seq := put(s, strings.Repeat("x", 500))
		go func() { waits <- s.Wait(context.Background(), seq) }()
		synctest.Wait()
		if s.Err() != nil {
			t.Fatal(s.Err())
		}
		put(s, strings.Repeat("y", 500))
		if err := <-waits; !errors.Is(err, ErrOverflow) || !errors.Is(s.Err(), ErrOverflow) {
			t.Errorf("%v %v", err, s.Err())
		}
		<-s.Failed()
		g.open()
		time.Sleep(time.Second)
		later := put(s, "z")
		if later != 4 || s.Last() != 4 || s.LastOf(hashOf("z")) != 4 || s.Acked() != 1 {
			t.Errorf("%d, last %d, of z %d, acknowledged %d", later, s.Last(), s.LastOf(hashOf("z")), s.Acked())
		}
		if n := s.Begin([]serving.Range{{}}); n != 5 {
			t.Errorf("begin is %d", n)
		}
		if err := s.Wait(t.Context(), 1); err != nil {
			t.Errorf("what was acknowledged before: %v", err)
		}
		if err := s.Wait(t.Context(), later); !errors.Is(err, ErrOverflow) {
			t.Error(err)
		}
		if err := s.Room(t.Context()); !errors.Is(err, ErrOverflow) {
			t.Error(err)
		}
		if s.Stats().UnackedLen != 0 || s.Lag(1<<60) != 0 {
			t.Errorf("%+v is kept", s.Stats())
		}
	})
}

func TestTooLarge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newTarget(t, nil)
		s := newSender(t, newWires(t, g, 0), nil)
		put(s, "small")
		soon(t, s, put(s, strings.Repeat("x", MaxRecord)))
		put(s, strings.Repeat("x", MaxRecord+1))
		if !errors.Is(s.Err(), ErrTooLarge) || s.Acked() != 2 {
			t.Error(s.Err(), s.Acked())
		}
	})
}

// A record that the target does not take ends the stream; those before it in its
// batch were installed and are never acknowledged.
func TestNotTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newTarget(t, nil)
		no := func(r string) error {
			if r == "2" {
				return errors.New("the memory is full")
			}
			return nil
		}
		g.refuse.Store(&no)
		w := newWires(t, g, 0)
		w.lift(false)
		s := newSender(t, w, nil)
		for i := range 5 {
			put(s, fmt.Sprint(i))
		}
		w.lift(true)
		fails(t, s)
		var refused *Refused
		if err := s.Wait(t.Context(), 1); !errors.As(err, &refused) || refused.Reason != peerv1.FeedReason_FEED_REASON_NOT_TAKEN || !strings.Contains(refused.Message, "memory is full") {
			t.Error(err)
		}
		if got := g.log(); !slices.Equal(got, []string{"0", "1"}) || s.Acked() != 0 {
			t.Errorf("installed %q, acknowledged %d", got, s.Acked())
		}
	})
}

// A target that forgot what it acknowledged gets nothing more; one that forgot
// only what it did not acknowledge gets it again.
func TestForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newTarget(t, nil)
		s := newSender(t, newWires(t, g, 0), nil)
		g.shut()
		put(s, "a")
		put(s, "b")
		synctest.Wait()
		g.intake.Forget(n1)
		g.open()
		soon(t, s, 2)
		if got := g.log(); !slices.Equal(got, []string{"a", "a", "b"}) {
			t.Errorf("installed %q", got)
		}
		g.intake.Forget(n1)
		put(s, "c")
		<-s.Failed()
		if !errors.Is(s.Err(), ErrForgotten) || len(g.log()) != 3 || s.Acked() != 2 {
			t.Error(s.Err(), g.log(), s.Acked())
		}
	})
}

// Another incarnation of the target is another process, also when the process
// becomes it in the middle of a stream.
func TestOtherTarget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newTarget(t, nil)
		s := newSender(t, newWires(t, g, 0), nil)
		soon(t, s, put(s, "a"))
		g.self.Store(&table.Holder{Node: "n2", Incarnation: 4})
		put(s, "b")
		fails(t, s)
		again := newSender(t, newWires(t, g, 0), func(c *SenderConfig) { c.Session = 2 })
		fails(t, again)
		for _, s := range []*Sender{s, again} {
			var refused *Refused
			if err := s.Err(); !errors.As(err, &refused) || refused.Reason != peerv1.FeedReason_FEED_REASON_OTHER_TARGET {
				t.Error(err)
			}
		}
		if len(g.log()) != 1 {
			t.Error(g.log())
		}
	})
}

// A target that is behind is asked again, and the epoch is the one of when the
// batch was sent first.
func TestBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newTarget(t, nil)
		g.epoch.Store(4)
		s := newSender(t, newWires(t, g, 0), nil)
		seq := put(s, "a")
		time.Sleep(MaxBehind - time.Millisecond)
		if s.Stats().Reconnects != 0 {
			t.Error("did not wait")
		}
		time.Sleep(5 * time.Second)
		if s.Err() != nil || s.Acked() != 0 || s.Stats().Reconnects == 0 || len(g.log()) != 0 {
			t.Errorf("%v %+v %q", s.Err(), s.Stats(), g.log())
		}
		g.epoch.Store(5)
		soon(t, s, seq)
	})
}

func TestLag(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newTarget(t, nil)
		s := newSender(t, newWires(t, g, 0), nil)
		now := s.cfg.Now
		soon(t, s, put(s, "a"))
		time.Sleep(time.Second)
		if d := s.Lag(now()); d != 0 {
			t.Errorf("idle: %d", d)
		}
		g.shut()
		put(s, "b")
		time.Sleep(300 * time.Millisecond)
		put(s, "c")
		if d := time.Duration(s.Lag(now())); d != 300*time.Millisecond {
			t.Errorf("b has waited for %v", d)
		}
		g.open()
		soon(t, s, s.Last())
		if d := s.Lag(now()); d != 0 {
			t.Errorf("done: %d", d)
		}
	})
}

// A target that is reached and says nothing is dialled again.
func TestStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newTarget(t, nil)
		w := newWires(t, g, 0)
		s := newSender(t, w, nil)
		soon(t, s, put(s, "a"))
		time.Sleep(time.Hour) // nothing to say is no stall
		if s.Stats().Reconnects != 0 {
			t.Errorf("%+v", s.Stats())
		}
		w.mu.Lock()
		w.open[0].black.Store(true)
		w.black = true
		w.mu.Unlock()
		seq := put(s, "b")
		time.Sleep(stallTime + time.Second)
		if s.Stats().Reconnects != 1 {
			t.Errorf("%+v", s.Stats())
		}
		w.mu.Lock()
		w.black = false
		w.mu.Unlock()
		soon(t, s, seq) // the connection that is being tried comes to nothing
		if got := g.log(); !slices.Equal(got, []string{"a", "b"}) {
			t.Errorf("installed %q", got)
		}
	})
}

func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newTarget(t, nil)
		s := newSender(t, newWires(t, g, 0), nil)
		g.shut()
		seq := put(s, "a")
		waits := make(chan error, 100)
		for range cap(waits) {
			go func() { waits <- s.Wait(context.Background(), seq) }()
		}
		synctest.Wait()
		s.Close()
		for range cap(waits) {
			if err := <-waits; !errors.Is(err, ErrClosed) {
				t.Error(err)
			}
		}
		s.Close() // again
		s.mu.Lock()
		s.ackLocked(seq) // it was on its way
		s.mu.Unlock()
		if s.Acked() != 0 {
			t.Error("acknowledged after its waiters were told that it failed")
		}
		g.open()
		if later := put(s, "b"); s.Acked() >= later || s.LastOf(hashOf("b")) != later {
			t.Error("looks acknowledged")
		}
	})
}

// Close does not wait for a dial that looks at its context.
func TestCloseDialling(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSender(t, nil, func(c *SenderConfig) {
			c.Dial = func(ctx context.Context) (grpc.ClientConnInterface, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			}
		})
		time.Sleep(time.Minute)
		if s.Err() != nil || s.Stats().Reconnects < 10 {
			t.Errorf("%v %+v", s.Err(), s.Stats())
		}
		s.Close()
	})
}

// The context of Wait ends that wait alone.
func TestWaitGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newTarget(t, nil)
		s := newSender(t, newWires(t, g, 0), nil)
		g.shut()
		seq := put(s, "a")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := s.Wait(ctx, seq); !errors.Is(err, context.DeadlineExceeded) || s.Err() != nil {
			t.Error(err, s.Err())
		}
		g.open()
		soon(t, s, seq)
	})
}

// Begin stands in the order of the records, and many ranges are several records.
func TestBegin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newTarget(t, nil)
		s := newSender(t, newWires(t, g, 0), nil)
		put(s, "a")
		if n := s.Begin(nil); n != 1 {
			t.Errorf("nothing to begin with is %d", n)
		}
		var ranges []serving.Range
		for i := range uint64(maxRanges + 1) {
			ranges = append(ranges, serving.Range{After: 2 * i, UpTo: 2*i + 1})
		}
		if n := s.Begin(ranges); n != 3 {
			t.Errorf("begin is %d", n)
		}
		soon(t, s, put(s, "b"))
		if got := g.log(); !slices.Equal(got, []string{"a", "begin", "begin", "b"}) || !slices.Equal(g.ranges, ranges) {
			t.Errorf("installed %q, %d ranges", got, len(g.ranges))
		}
	})
}

// LastOf is never below an object's last record, and is that of another object
// only if their positions agree in the low bits.
func TestLastOf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSender(t, newWires(t, newTarget(t, nil), 0), nil)
		add := func(h uint64) uint64 { return s.Append(&owner.Record{Hash: h, Key: []byte("k")}, 0) }
		add(1)
		x := add(2)
		y := add(3)
		if s.LastOf(2) != x || s.LastOf(3) != y || s.LastOf(4) != 0 || s.LastOf(2+slots) != x {
			t.Error(s.LastOf(2), s.LastOf(3), s.LastOf(4))
		}
		if z := add(2 + 5*slots); s.LastOf(2) != z || s.Last() != z {
			t.Error(s.LastOf(2), s.Last())
		}
	})
}

// A steady stream needs no memory but what it has.
func TestAppendDoesNotAllocate(t *testing.T) {
	s := newSender(t, nil, func(c *SenderConfig) {
		c.Dial = func(ctx context.Context) (grpc.ClientConnInterface, error) { <-ctx.Done(); return nil, ctx.Err() }
	})
	r := &owner.Record{Key: make([]byte, 100)}
	for range 2000 {
		s.Append(r, 0)
	}
	s.mu.Lock()
	s.ackLocked(s.Last())
	s.mu.Unlock()
	n := testing.AllocsPerRun(1, func() { // twice
		for range 900 {
			s.Append(r, 0)
		}
	})
	if n > 5 { // of 900; what else runs in the process counts too
		t.Errorf("%v allocations", n)
	}
}

// A batch that is sent again names the epoch of when it was sent first.
func TestEpochOfFirstSend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked []uint64
		g := newTarget(t, func(c *IntakeConfig) {
			c.Await = func(ctx context.Context, epoch uint64) error {
				asked = append(asked, epoch)
				return nil
			}
		})
		w := newWires(t, g, time.Millisecond)
		var epoch atomic.Uint64
		epoch.Store(20)
		s := newSender(t, w, func(c *SenderConfig) { c.Epoch = epoch.Load })
		time.Sleep(time.Second)
		w.mu.Lock()
		w.open[0].black.Store(true)
		w.mu.Unlock()
		put(s, "a") // it is lost on its way
		time.Sleep(time.Second)
		epoch.Store(21)
		w.breakAll()
		soon(t, s, 1)
		soon(t, s, put(s, "b"))
		if !slices.Equal(asked, []uint64{20, 21}) {
			t.Errorf("epochs %d", asked)
		}
	})
}

// nonsense is a target that says what it is told to.
type nonsense struct {
	peerv1.UnimplementedStateServiceServer
	say []*peerv1.FeedResponse // after the hello, and after each batch
}

func (n *nonsense) Feed(st grpc.BidiStreamingServer[peerv1.FeedRequest, peerv1.FeedResponse]) error {
	for _, resp := range n.say {
		if _, err := st.Recv(); err != nil {
			return err
		}
		if err := st.Send(resp); err != nil {
			return err
		}
	}
	<-st.Context().Done()
	return nil
}

// A target that acknowledges what it cannot have does not make it acknowledged.
func TestNonsense(t *testing.T) {
	welcome := func(known bool, applied uint64) *peerv1.FeedResponse {
		return &peerv1.FeedResponse{Response: &peerv1.FeedResponse_Welcome{Welcome: &peerv1.FeedWelcome{Known: known, Applied: applied}}}
	}
	ack := func(applied uint64) *peerv1.FeedResponse {
		return &peerv1.FeedResponse{Response: &peerv1.FeedResponse_Ack{Ack: &peerv1.FeedAck{Applied: applied}}}
	}
	keeps := func(applied, kept uint64) *peerv1.FeedResponse {
		return &peerv1.FeedResponse{Response: &peerv1.FeedResponse_Ack{Ack: &peerv1.FeedAck{Applied: applied, Kept: kept}}}
	}
	for name, row := range map[string]struct {
		say   []*peerv1.FeedResponse
		acked uint64
	}{
		"ack for a welcome":             {[]*peerv1.FeedResponse{ack(0)}, 0},
		"nothing":                       {[]*peerv1.FeedResponse{{}}, 0},
		"has what was never sent":       {[]*peerv1.FeedResponse{welcome(true, 1)}, 0},
		"does not know what it has":     {[]*peerv1.FeedResponse{welcome(false, 1)}, 0},
		"a second welcome":              {[]*peerv1.FeedResponse{welcome(false, 0), welcome(true, 1)}, 0},
		"acks what was never sent":      {[]*peerv1.FeedResponse{welcome(false, 0), ack(1), ack(12)}, 1},
		"acks what was never appended":  {[]*peerv1.FeedResponse{welcome(false, 0), ack(1), ack(99)}, 1},
		"keeps what it does not have":   {[]*peerv1.FeedResponse{welcome(false, 0), keeps(1, 2)}, 1},
		"loses what it kept":            {[]*peerv1.FeedResponse{welcome(false, 0), keeps(1, 1), keeps(2, 0)}, 2},
		"takes an acknowledgement back": {[]*peerv1.FeedResponse{welcome(false, 0), ack(1), ack(0)}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := &target{l: bufconn.Listen(1 << 16)}
				server := grpc.NewServer()
				peerv1.RegisterStateServiceServer(server, &nonsense{say: row.say})
				done := make(chan struct{})
				go func() { defer close(done); _ = server.Serve(g.l) }()
				defer func() { server.Stop(); <-done }()
				s := newSender(t, newWires(t, g, 0), func(c *SenderConfig) { c.MaxBatch = 5 })
				for range 12 {
					put(s, "x") // each a batch
				}
				time.Sleep(time.Second)
				if !errors.Is(s.Err(), ErrNonsense) || s.Acked() != row.acked {
					t.Errorf("%v, acknowledged %d", s.Err(), s.Acked())
				}
			})
		})
	}
}

// Versions stands in the order of the records, too.
func TestVersions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newTarget(t, nil)
		s := newSender(t, newWires(t, g, 0), nil)
		put(s, "a")
		if n := s.Versions(1 << 40); n != 2 {
			t.Errorf("versions is %d", n)
		}
		soon(t, s, put(s, "b"))
		if got := g.log(); !slices.Equal(got, []string{"a", "versions 1099511627776", "b"}) {
			t.Errorf("installed %q", got)
		}
	})
}
