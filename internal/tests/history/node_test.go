package history

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/keystead/keystead/internal/clock"
	"github.com/keystead/keystead/internal/node"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// checkFor is how long the check of one object may take.
const checkFor = time.Minute

// aged is the system's clock, set forward once: a node that has just started
// refuses retries, because it cannot know what went before.
type aged struct{ by atomic.Int64 }

func (a *aged) Now() int64 { return clock.System().Now() + a.by.Load() }

// crowd is a number of clients of one node, and what they were told.
type crowd struct {
	t     *testing.T
	addr  string
	clock *aged
	rec   *Recorder

	given   sync.Map // object → *atomic.Int64: requests given up without an answer
	retried atomic.Int64
	replays atomic.Int64
	lost    atomic.Int64
}

// mayLose is how many requests on one object may stay without an answer. More
// make the check slow, not better.
const mayLose = 4

func newCrowd(t *testing.T) *crowd {
	t.Helper()
	a := &aged{}
	n, err := node.Start(node.Config{ID: "history", GRPCAddr: "127.0.0.1:0", Clock: a, StopGrace: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Stop)
	a.by.Store(int64(time.Minute))
	return &crowd{t: t, addr: n.GRPCAddr(), clock: a, rec: NewRecorder(a.Now)}
}

// member is one client process.
type member struct {
	*crowd
	n    int
	rng  *rand.Rand
	id   []byte
	seq  uint64
	conn *grpc.ClientConn

	versions map[string]uint64 // of counters, as last seen
}

// run lets members do what work says, `times` times each, and checks it.
func (c *crowd) run(m Model, members, times int, work func(m *member)) {
	c.t.Helper()
	var wg sync.WaitGroup
	for n := range members {
		wg.Go(func() {
			x := &member{crowd: c, n: n, rng: rand.New(rand.NewPCG(uint64(n), rand.Uint64())),
				id: binary.BigEndian.AppendUint64(make([]byte, 8), uint64(n+1)), versions: map[string]uint64{}}
			x.dial()
			defer func() { _ = x.conn.Close() }()
			for range times {
				work(x)
			}
		})
	}
	wg.Wait()
	calls := c.rec.Calls()
	c.t.Logf("%d calls, %d of them retries, %d replayed, %d without an answer", len(calls), c.retried.Load(), c.replays.Load(), c.lost.Load())
	if c.replays.Load() == 0 || c.lost.Load() == 0 {
		c.t.Error("nothing was replayed, or nothing was lost: this tests too little")
	}
	began := time.Now()
	if err := Check(m, calls, checkFor); err != nil {
		c.t.Error(err)
	}
	c.t.Logf("checked in %v", time.Since(began))
	c.spoil(m, calls)
}

// spoil changes one answer after the other to what cannot have been, and sees to
// it that the check notices. To prove that no order explains a history may take
// very long; what cannot be proven soon counts as noticed.
func (c *crowd) spoil(m Model, calls []Call) {
	c.t.Helper()
	for range 4 {
		i := rand.IntN(len(calls))
		for calls[i].Output == nil || calls[i].Output.(output).replay().Replayed {
			i = rand.IntN(len(calls))
		}
		spoiled := slices.Clone(calls)
		switch o := calls[i].Output.(type) {
		case CounterOutput:
			o.Value += 1000
			spoiled[i].Output = o
		case BucketOutput:
			o.Remaining += 1000
			spoiled[i].Output = o
		case LockOutput:
			if calls[i].Input.(LockInput).Op == LockRelease {
				continue // that it was over already may well be true
			}
			o.OK, o.Token, o.Holder, o.HolderToken = false, 0, "nobody", 1<<62
			spoiled[i].Output = o
		}
		if Check(m, spoiled, 200*time.Millisecond) == nil {
			c.t.Errorf("accepted when the answer of %+v was %+v", calls[i], spoiled[i].Output)
		}
	}
}

func (m *member) dial() {
	conn, err := grpc.NewClient(m.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		panic(err)
	}
	m.conn = conn
}

// request sends a request until it is answered or given up, often losing the
// answer on purpose. ok says that there is an answer.
func request[O output](m *member, object string, in any, send func(ctx context.Context, id *commonpb.RequestId) (O, error)) (out O, ok bool) {
	m.seq++
	first := m.clock.Now()
	const attempts = 4
	for attempt := range attempts {
		id := &commonpb.RequestId{Client: m.id, Sequence: m.seq, Settled: m.seq}
		if attempt > 0 {
			id.AgeNs = m.clock.Now() - first
			m.retried.Add(1)
		}
		p := m.rec.Begin(m.n, object, fmt.Sprint(m.n, "/", m.seq), in)
		ctx, end := m.context(attempt == attempts-1)
		out, err := send(ctx, id)
		end()
		if err == nil {
			p.Answer(out)
			if out.replay().Replayed {
				m.replays.Add(1)
			}
			return out, true
		}
		m.lost.Add(1)
		if nothing(m.t, err) {
			p.Nothing()
		} else if m.giveUp(object) {
			return out, false
		}
	}
	m.t.Errorf("%s: no answer to the last attempt of %+v", object, in)
	return out, false
}

// context returns that of an attempt. Unless it is the last one, it may be cancelled
// at a random moment, or its connection may break.
func (m *member) context(last bool) (ctx context.Context, end func()) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	if last {
		return ctx, cancel
	}
	soon := time.Duration(m.rng.IntN(800)) * time.Microsecond
	switch m.rng.IntN(30) {
	case 0:
		conn := m.conn
		cut := time.AfterFunc(soon, func() { _ = conn.Close() })
		return ctx, func() {
			cancel()
			if !cut.Stop() { // it is cut, or will be in a moment
				_ = conn.Close()
				m.dial()
			}
		}
	case 1, 2, 3, 4, 5, 6, 7, 8, 9, 10:
		cut := time.AfterFunc(soon, cancel)
		return ctx, func() { cut.Stop(); cancel() }
	}
	return ctx, cancel
}

// giveUp reports whether a request whose answer was lost is not sent again.
func (m *member) giveUp(object string) bool {
	if m.rng.IntN(4) > 0 {
		return false
	}
	n, _ := m.given.LoadOrStore(object, new(atomic.Int64))
	return n.(*atomic.Int64).Add(1) <= mayLose
}

// nothing reports whether an error shows that the attempt did nothing and never
// will.
func nothing(t *testing.T, err error) bool {
	for _, d := range status.Convert(err).Details() {
		info, ok := d.(*errdetails.ErrorInfo)
		if !ok {
			continue
		}
		switch info.Reason {
		case "SUPERSEDED", "UNAVAILABLE", "TOO_MANY_WAITERS", "OVERLOADED":
			return true
		case "GAVE_UP": // it may have been granted a lock and given it back
			return false
		}
		t.Errorf("unexpected: %v", err)
		return false
	}
	return false
}

func replayed(r *commonpb.Replay) Replay {
	return Replay{Replayed: r != nil, Age: r.GetAgeNs()}
}

func TestCountersOfANode(t *testing.T) {
	newCrowd(t).run(Counter(), 10, 150, func(m *member) {
		key := fmt.Sprint("key ", m.rng.IntN(4))
		c := counterpb.NewCounterServiceClient
		switch m.rng.IntN(8) {
		case 0, 1:
			p := m.rec.Begin(m.n, key, "", CounterInput{Op: CounterGet})
			r, err := c(m.conn).Get(context.Background(), &counterpb.GetRequest{Key: key})
			if err != nil {
				m.t.Error(err)
				return
			}
			p.Answer(CounterOutput{Value: r.Value, Version: r.Version})
			m.versions[key] = r.Version
		case 2:
			m.compareAndSet(key)
		case 3:
			request(m, key, CounterInput{Op: CounterReset}, func(ctx context.Context, id *commonpb.RequestId) (CounterOutput, error) {
				r, err := c(m.conn).Reset(ctx, &counterpb.ResetRequest{Key: key, RequestId: id})
				return CounterOutput{Value: r.GetPrevious(), Version: r.GetVersion(), Current: r.GetCurrent(), Replay: replayed(r.GetReplay())}, err
			})
		default:
			m.add(key)
		}
	})
}

func (m *member) compareAndSet(key string) {
	in := CounterInput{Op: CounterCompareAndSet, Value: m.rng.Int64N(10), Version: m.versions[key]}
	out, ok := request(m, key, in, func(ctx context.Context, id *commonpb.RequestId) (CounterOutput, error) {
		r, err := counterpb.NewCounterServiceClient(m.conn).CompareAndSet(ctx, &counterpb.CompareAndSetRequest{Key: key, Value: in.Value, Version: in.Version, RequestId: id})
		return CounterOutput{Applied: r.GetApplied(), Value: r.GetValue(), Version: r.GetVersion(), Current: r.GetCurrent(), Replay: replayed(r.GetReplay())}, err
	})
	if ok {
		m.versions[key] = out.Version
	}
}

func (m *member) add(key string) {
	in := CounterInput{Op: CounterAdd, Delta: m.rng.Int64N(9) - 4}
	if m.rng.IntN(2) == 0 {
		in.Max, in.HasMax = 6, true
	}
	if m.rng.IntN(2) == 0 {
		in.Min, in.HasMin = -6, true
	}
	out, ok := request(m, key, in, func(ctx context.Context, id *commonpb.RequestId) (CounterOutput, error) {
		req := &counterpb.AddRequest{Key: key, Delta: in.Delta, RequestId: id}
		if in.HasMax {
			req.Max = &in.Max
		}
		if in.HasMin {
			req.Min = &in.Min
		}
		r, err := counterpb.NewCounterServiceClient(m.conn).Add(ctx, req)
		return CounterOutput{Applied: r.GetApplied(), Value: r.GetValue(), Version: r.GetVersion(), Current: r.GetCurrent(), Replay: replayed(r.GetReplay())}, err
	})
	if ok {
		m.versions[key] = out.Version
	}
}

func TestBucketsOfANode(t *testing.T) {
	// 1,300 a second do not divide a second: nothing may be rounded.
	p := BucketParams{Limit: 1300, Period: int64(time.Second), Burst: 20}
	newCrowd(t).run(Bucket(p), 8, 150, func(m *member) {
		key := fmt.Sprint("key ", m.rng.IntN(4))
		in := BucketInput{Cost: 1 + m.rng.Uint64N(8), Peek: m.rng.IntN(8) == 0}
		ask := func(ctx context.Context, id *commonpb.RequestId) (BucketOutput, error) {
			r, err := limitpb.NewLimitServiceClient(m.conn).Check(ctx, &limitpb.CheckRequest{
				Key: key, Limit: p.Limit, PeriodNs: p.Period, Burst: p.Burst, Cost: in.Cost, Peek: in.Peek, RequestId: id})
			return bucketOutput(r), err
		}
		if m.rng.IntN(8) == 0 {
			back := BucketRefund{1 + m.rng.Uint64N(8)}
			request(m, key, back, func(ctx context.Context, id *commonpb.RequestId) (BucketOutput, error) {
				r, err := limitpb.NewLimitServiceClient(m.conn).Check(ctx, &limitpb.CheckRequest{
					Key: key, Limit: p.Limit, PeriodNs: p.Period, Burst: p.Burst, Refund: back.Tokens, RequestId: id})
				return bucketOutput(r), err
			})
			return
		}
		if !in.Peek {
			request(m, key, in, ask)
			return
		}
		pending := m.rec.Begin(m.n, key, "", in)
		if out, err := ask(context.Background(), nil); err == nil {
			pending.Answer(out)
		} else {
			m.t.Error(err)
		}
	})
}

func bucketOutput(r *limitpb.CheckResponse) BucketOutput {
	return BucketOutput{Allowed: r.GetAllowed(), Remaining: r.GetRemaining(), RetryAfter: r.GetRetryAfterNs(),
		ResetAfter: r.GetResetAfterNs(), Replay: replayed(r.GetReplay())}
}

func TestLocksOfANode(t *testing.T) {
	newCrowd(t).run(Lock(), 8, 60, func(m *member) {
		key := fmt.Sprint("key ", m.rng.IntN(3))
		if m.rng.IntN(6) == 0 {
			m.inspect(key)
			return
		}
		token, ok := m.acquire(key)
		if !ok || m.rng.IntN(5) == 0 {
			return // its TTL ends it
		}
		if m.rng.IntN(4) == 0 {
			m.renew(key, token)
		}
		in := LockInput{Op: LockRelease, Token: token}
		request(m, key, in, func(ctx context.Context, id *commonpb.RequestId) (LockOutput, error) {
			r, err := lockpb.NewLockServiceClient(m.conn).Release(ctx, &lockpb.ReleaseRequest{Key: key, Token: token, RequestId: id})
			return LockOutput{OK: r.GetReleased(), Replay: replayed(r.GetReplay())}, err
		})
	})
}

func lockOutput(h *lockpb.Holder) LockOutput {
	return LockOutput{Holder: h.GetId(), HolderToken: h.GetToken(), HolderTTL: h.GetTtlNs()}
}

func (m *member) inspect(key string) {
	p := m.rec.Begin(m.n, key, "", LockInput{Op: LockInspect})
	r, err := lockpb.NewLockServiceClient(m.conn).Inspect(context.Background(), &lockpb.InspectRequest{Key: key})
	if err != nil {
		m.t.Error(err)
		return
	}
	p.Answer(lockOutput(r.Holder))
}

func (m *member) acquire(key string) (token uint64, ok bool) {
	in := LockInput{Op: LockAcquire, Holder: fmt.Sprint(m.n, "/", m.seq+1), TTL: int64(10+m.rng.IntN(20)) * int64(time.Millisecond)}
	if m.rng.IntN(3) > 0 {
		in.Wait = 1 + m.rng.Int64N(int64(40*time.Millisecond))
	}
	out, ok := request(m, key, in, func(ctx context.Context, id *commonpb.RequestId) (LockOutput, error) {
		r, err := lockpb.NewLockServiceClient(m.conn).Acquire(ctx, &lockpb.AcquireRequest{
			Key: key, Holder: in.Holder, TtlNs: in.TTL, WaitNs: in.Wait, RequestId: id})
		out := lockOutput(r.GetHolder())
		out.OK, out.Token, out.Waited, out.TTL, out.Replay = r.GetAcquired(), r.GetToken(), r.GetWaitedNs(), r.GetTtlNs(), replayed(r.GetReplay())
		return out, err
	})
	return out.Token, ok && out.OK && out.TTL > 0
}

func (m *member) renew(key string, token uint64) {
	in := LockInput{Op: LockRenew, Token: token, TTL: int64(10+m.rng.IntN(20)) * int64(time.Millisecond)}
	p := m.rec.Begin(m.n, key, "", in)
	r, err := lockpb.NewLockServiceClient(m.conn).Renew(context.Background(), &lockpb.RenewRequest{Key: key, Token: token, TtlNs: in.TTL})
	if err != nil {
		m.t.Error(err)
		return
	}
	out := lockOutput(r.Holder)
	out.OK, out.TTL = r.Renewed, r.TtlNs
	p.Answer(out)
}
