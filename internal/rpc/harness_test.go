package rpc

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/keystead/keystead/internal/clock"
	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/internal/vtcodec"
	"github.com/keystead/keystead/owner"
	admissionpb "github.com/keystead/keystead/proto/keystead/admission/v1"
	barrierpb "github.com/keystead/keystead/proto/keystead/barrier/v1"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
	electionpb "github.com/keystead/keystead/proto/keystead/election/v1"
	grouppb "github.com/keystead/keystead/proto/keystead/group/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
	oncepb "github.com/keystead/keystead/proto/keystead/once/v1"
	registerpb "github.com/keystead/keystead/proto/keystead/register/v1"
	semaphorepb "github.com/keystead/keystead/proto/keystead/semaphore/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testEpoch = 7

// rule is a serving rule that a test can turn off, either half of it.
type rule struct {
	noAdmit, noConfirm atomic.Bool
	known              atomic.Bool  // nothing that was done before is unknown
	confirms           atomic.Int64 // how often Confirm was asked
}

func (r *rule) Admit(uint64, int64) (owner.Permit, error) {
	if r.noAdmit.Load() {
		return owner.Permit{}, &failure.Error{Reason: failure.Unavailable, Message: "no right to act", Hint: "wait", RetryAfter: time.Second}
	}
	p := owner.Permit{Epoch: testEpoch}
	if r.known.Load() {
		p.Since = math.MinInt64
	}
	return p, nil
}

func (r *rule) Confirm(p owner.Permit, _ int64) error {
	r.confirms.Add(1)
	if p.Epoch != testEpoch {
		return errors.New("a permit that was never given")
	}
	if r.noConfirm.Load() {
		return &failure.Error{Reason: failure.OutcomeUnknown, Message: "the right to act ended meanwhile"}
	}
	return nil
}

func (r *rule) Terms() owner.Terms                     { return owner.Terms{} }
func (r *rule) Exhausted(epoch uint64) (uint64, error) { return epoch + 1, nil }

// sink calls a function at every change, if one is set.
type sink struct {
	f     atomic.Pointer[func(*owner.Record)]
	parts atomic.Bool // it is told of the members that have changed, as a standby in order is
}

func (s *sink) Partial() bool { return s.parts.Load() }

func (s *sink) on(f func(*owner.Record)) { s.f.Store(&f) }

func (s *sink) Changed(r *owner.Record) {
	if f := s.f.Load(); f != nil {
		(*f)(r)
	}
}

// house is a server with everything that it stands on, and clients of it.
type house struct {
	t        testing.TB
	rule     *rule
	sink     *sink
	store    *owner.Store
	clock    *clock.Process
	server   *Server
	maxCalls int64 // 0 = the default
	dial     func(context.Context, string) (net.Conn, error)

	limits     limitpb.LimitServiceClient
	counters   counterpb.CounterServiceClient
	locks      lockpb.LockServiceClient
	registers  registerpb.RegisterServiceClient
	permits    semaphorepb.SemaphoreServiceClient
	onces      oncepb.OnceServiceClient
	elections  electionpb.ElectionServiceClient
	barriers   barrierpb.BarrierServiceClient
	groups     grouppb.GroupServiceClient
	admissions admissionpb.AdmissionServiceClient
	conn       *grpc.ClientConn
}

// build starts a server over an in-memory connection, with the two drivers that
// a node gives to its store. It works inside a bubble and outside.
func build(t *testing.T, change func(*owner.Config)) *house {
	t.Helper()
	h := newHouse(t, change)
	h.listen()
	return h
}

// listen runs the server over an in-memory connection.
func (h *house) listen() {
	l := bufconn.Listen(1 << 20)
	h.dial = func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }
	h.run(l)
}

func newHouse(t testing.TB, change func(*owner.Config)) *house {
	t.Helper()
	h := &house{t: t, rule: &rule{}, sink: &sink{}, clock: clock.NewProcess()}
	cfg := owner.Config{Rule: h.rule, Sink: h.sink, Shards: 4}
	if change != nil {
		change(&cfg)
	}
	var err error
	if h.store, err = owner.New(cfg, h.clock.Now()); err != nil {
		t.Fatal(err)
	}
	return h
}

func (h *house) run(l net.Listener) {
	h.server = NewServer(Config{Store: h.store, Clock: h.clock, Metrics: NewMetrics(prometheus.NewRegistry()), MaxCalls: h.maxCalls})
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = h.server.Serve(l) })
	wg.Go(func() { h.drive(ctx) })
	h.t.Cleanup(func() {
		h.server.Stop(0)
		cancel()
		wg.Wait()
	})
	h.conn = h.connect()
	h.limits, h.counters, h.locks = limitpb.NewLimitServiceClient(h.conn), counterpb.NewCounterServiceClient(h.conn), lockpb.NewLockServiceClient(h.conn)
	h.registers = registerpb.NewRegisterServiceClient(h.conn)
	h.permits = semaphorepb.NewSemaphoreServiceClient(h.conn)
	h.onces = oncepb.NewOnceServiceClient(h.conn)
	h.elections = electionpb.NewElectionServiceClient(h.conn)
	h.barriers = barrierpb.NewBarrierServiceClient(h.conn)
	h.groups = grouppb.NewGroupServiceClient(h.conn)
	h.admissions = admissionpb.NewAdmissionServiceClient(h.conn)
}

// bare is a server without a listener, for calling handlers directly.
func bare(h *house) *Server {
	return &Server{
		cfg:      Config{Store: h.store, Clock: h.clock, Metrics: NewMetrics(prometheus.NewRegistry())},
		stopping: make(chan struct{}),
		sent:     sentOperations(),
	}
}

// drive lets time pass for the store as internal/node does.
func (h *house) drive(ctx context.Context) {
	sweep := time.NewTicker(50 * time.Millisecond)
	defer sweep.Stop()
	for {
		sleep := time.Hour
		if at, ok := h.store.NextWake(); ok {
			sleep = max(time.Duration(at-h.clock.Now()), 0)
		}
		timer := time.NewTimer(sleep)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-sweep.C:
			h.store.Sweep(h.clock.Now())
		case <-h.store.WakeChanged():
		case <-timer.C:
			h.store.Wake(h.clock.Now())
		}
		timer.Stop()
	}
}

// connect opens one more connection.
func (h *house) connect() *grpc.ClientConn {
	h.t.Helper()
	conn, err := grpc.NewClient("passthrough:///keystead", grpc.WithContextDialer(h.dial),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithStaticStreamWindowSize(64<<10), grpc.WithStaticConnWindowSize(1<<20),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(vtcodec.New()), grpc.MaxCallRecvMsgSize(16<<20)))
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// connectStandard opens a connection that uses grpc's own codec.
func (h *house) connectStandard() *grpc.ClientConn {
	h.t.Helper()
	conn, err := grpc.NewClient("passthrough:///keystead", grpc.WithContextDialer(h.dial),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// bound is a context for a call that must not hang.
func bound(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// acquire asks for the lock "k".
func acquire(holder string, ttl, wait time.Duration) *lockpb.AcquireRequest {
	return &lockpb.AcquireRequest{Key: "k", Holder: holder, TtlNs: int64(ttl), WaitNs: int64(wait)}
}

// pending is a call that has not come back yet.
type pending struct {
	cancel context.CancelFunc
	done   chan struct{} // closed when the rest is set
	resp   *lockpb.AcquireResponse
	err    error
	at     time.Time
}

// await starts a call that has to wait. It returns when the call stands in the
// queue.
func (h *house) await(req *lockpb.AcquireRequest) *pending {
	ctx, cancel := context.WithCancel(context.Background())
	return h.awaitCtx(ctx, cancel, req)
}

func (h *house) awaitCtx(ctx context.Context, cancel context.CancelFunc, req *lockpb.AcquireRequest) *pending {
	h.t.Helper()
	h.t.Cleanup(cancel)
	p := &pending{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.resp, p.err = h.locks.Acquire(ctx, req)
		p.at = time.Now()
	}()
	synctest.Wait()
	if p.over() {
		h.t.Fatalf("the call of %s did not wait: %v, %v", req.Holder, p.resp, p.err)
	}
	return p
}

func (p *pending) over() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// granted waits for the call and fails unless it was granted the lock.
func (p *pending) granted(t *testing.T) *lockpb.AcquireResponse {
	t.Helper()
	<-p.done
	if p.err != nil || !p.resp.Acquired {
		t.Fatalf("not granted: %v, %v", p.resp, p.err)
	}
	return p.resp
}

// refusal is what an error must look like.
type refusal struct {
	code  codes.Code
	why   commonpb.Reason
	field string
	hint  bool
	retry time.Duration
}

// check compares an error from the wire with what it must look like.
func (f refusal) check(t testing.TB, err error) {
	t.Helper()
	st := status.Convert(err)
	if st.Code() != f.code {
		t.Errorf("got %v, want code %v", err, f.code)
		return
	}
	if st.Message() == "" {
		t.Error("the error has no message")
	}
	var info *errdetails.ErrorInfo
	var field string
	var retry time.Duration
	for _, d := range st.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			info = d
		case *errdetails.BadRequest:
			field = d.FieldViolations[0].Field
			if d.FieldViolations[0].Description == "" {
				t.Error("the field violation says nothing")
			}
		case *errdetails.RetryInfo:
			retry = d.RetryDelay.AsDuration()
		default:
			t.Errorf("unexpected detail %T", d)
		}
	}
	if info == nil || info.Domain != Domain || info.Reason != f.why.String()[len("REASON_"):] {
		t.Errorf("%v has ErrorInfo %v, want reason %v", err, info, f.why)
		return
	}
	if field != f.field || retry != f.retry || (info.Metadata["hint"] != "") != f.hint {
		t.Errorf("%v has field %q, retry %v, hint %q; want %+v", err, field, retry, info.Metadata["hint"], f)
	}
}

// checkItem compares the error of an item with what it must look like.
func (f refusal) checkItem(t testing.TB, e *commonpb.Error) {
	t.Helper()
	if e == nil || codes.Code(e.Code) != f.code || e.Reason != f.why || e.Field != f.field ||
		e.RetryAfterNs != int64(f.retry) || (e.Hint != "") != f.hint || e.Message == "" {
		t.Errorf("got %v, want %+v", e, f)
	}
}

func badField(name string) refusal {
	return refusal{code: codes.InvalidArgument, why: commonpb.Reason_REASON_INVALID, field: name}
}

// requestN is a request id of client n.
func requestN(n, seq uint64) *commonpb.RequestId {
	client := binary.BigEndian.AppendUint64(make([]byte, 8, 16), n)
	return &commonpb.RequestId{Client: client, Sequence: seq}
}

func again(id *commonpb.RequestId, age time.Duration) *commonpb.RequestId {
	return &commonpb.RequestId{Client: id.Client, Sequence: id.Sequence, Settled: id.Settled, AgeNs: int64(age)}
}

// must unpacks the answer of a call that may not fail: must(call())(t).
func must[R any](r R, err error) func(testing.TB) R {
	return func(t testing.TB) R {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
}

// row is a test within a bubble, where there are no subtests: what it reports
// begins with its name.
type row struct {
	testing.TB
	name string
}

func in(t testing.TB, name string) row { return row{t, name} }

func (r row) Error(args ...any) {
	r.Helper()
	r.TB.Error(append([]any{r.name + ":"}, args...)...)
}

func (r row) Errorf(format string, args ...any) {
	r.Helper()
	r.TB.Errorf("%s: "+format, append([]any{r.name}, args...)...)
}

func (r row) Fatal(args ...any) {
	r.Helper()
	r.TB.Fatal(append([]any{r.name + ":"}, args...)...)
}

// bubble runs a test of a whole server in a bubble, where time moves only when
// everything waits.
func bubble(t *testing.T, change func(*owner.Config), f func(t *testing.T, h *house)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t, build(t, change)) })
}
