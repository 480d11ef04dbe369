package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/keystead/keystead/owner"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
)

// Items are done one by one, in order, and fail alone.
func TestBatchItems(t *testing.T) {
	bubble(t, nil, func(t *testing.T, h *house) {
		ctx := bound(t)
		twice := requestN(1, 1)
		adds := must(h.counters.BatchAdd(ctx, &counterpb.BatchAddRequest{Adds: []*counterpb.AddRequest{
			{Key: "k", Delta: 1},
			{Key: ""},
			{Key: "k", Delta: 2, RequestId: twice},
			{Key: "k", Delta: 2, RequestId: twice},
			{Key: "k", Delta: 3, RequestId: twice},
			{Key: "k", Delta: 4, IdleTtlNs: 1},
			{},
			{Key: "k", Delta: 5},
		}}))(t).Results
		for i, want := range []any{
			int64(1),
			badField("key"),
			int64(3),
			int64(3),
			refusal{code: codes.InvalidArgument, why: commonpb.Reason_REASON_REQUEST_ID_REUSED, field: "request_id", hint: true},
			badField("idle_ttl_ns"),
			badField("key"),
			int64(8),
		} {
			if f, fails := want.(refusal); fails {
				f.checkItem(in(t, fmt.Sprint("add ", i)), adds[i].Error)
			} else if adds[i].Error != nil || adds[i].Response.Value != want {
				t.Errorf("add %d: %v", i, adds[i])
			}
		}
		if adds[2].Response.Replay != nil || adds[3].Response.Replay == nil {
			t.Errorf("one id in one batch: %v, then %v", adds[2], adds[3])
		}
		if st := h.store.Stats(); st.Objects[owner.KindCounter] != 1 {
			t.Errorf("%d counters", st.Objects[owner.KindCounter])
		}

		gets := must(h.counters.BatchGet(ctx, &counterpb.BatchGetRequest{Gets: []*counterpb.GetRequest{{Key: "k"}, {Name: "x"}, {Key: "l"}}}))(t).Results
		if gets[0].Response.Value != 8 || gets[2].Response.Value != 0 || gets[2].Error != nil {
			t.Errorf("gets: %v", gets)
		}
		badField("key").checkItem(in(t, "get"), gets[1].Error)

		one := func(limit uint64) *limitpb.CheckRequest {
			return &limitpb.CheckRequest{Key: "k", Limit: limit, PeriodNs: int64(time.Second)}
		}
		checks := must(h.limits.BatchCheck(ctx, &limitpb.BatchCheckRequest{Checks: []*limitpb.CheckRequest{one(2), one(0), one(2), one(2)}}))(t).Results
		badField("limit").checkItem(in(t, "check"), checks[1].Error)
		if !checks[0].Response.Allowed || !checks[2].Response.Allowed || checks[3].Response.Allowed {
			t.Errorf("checks: %v", checks)
		}
	})
}

func TestEmptyBatches(t *testing.T) {
	bubble(t, nil, func(t *testing.T, h *house) {
		ctx := bound(t)
		a := must(h.counters.BatchAdd(ctx, &counterpb.BatchAddRequest{}))(t)
		g := must(h.counters.BatchGet(ctx, &counterpb.BatchGetRequest{}))(t)
		c := must(h.limits.BatchCheck(ctx, &limitpb.BatchCheckRequest{}))(t)
		if len(a.Results)+len(g.Results)+len(c.Results) != 0 {
			t.Errorf("results of nothing: %v, %v, %v", a, g, c)
		}
	})
}

// The caller's deadline passes, or it cancels, in the middle of a batch: what
// comes later is not done and says so.
func TestCallerLeavesMidBatch(t *testing.T) {
	for what, c := range map[string]struct {
		cause error
		code  codes.Code
	}{
		"deadline": {context.DeadlineExceeded, codes.DeadlineExceeded},
		"cancel":   {context.Canceled, codes.Canceled},
	} {
		t.Run(what, func(t *testing.T) {
			const n, done = 3 * ctxEvery, ctxEvery
			h := newHouse(t, nil)
			s := bare(h)
			ctx := &leaver{Context: context.Background(), cause: c.cause}
			changes := 0
			h.sink.on(func(*owner.Record) {
				if changes++; changes == 10 {
					ctx.left = true
				}
			})
			req := &counterpb.BatchAddRequest{}
			for range n {
				req.Adds = append(req.Adds, &counterpb.AddRequest{Key: "k", Delta: 1})
			}
			r := must((&counters{s: s}).BatchAdd(ctx, req))(t)
			for i, item := range r.Results {
				if i < done {
					if item.Error != nil || item.Response.Value != int64(i+1) {
						t.Fatalf("item %d: %v", i, item)
					}
					continue
				}
				refusal{code: c.code, why: commonpb.Reason_REASON_GAVE_UP}.checkItem(in(t, fmt.Sprint("item ", i)), item.Error)
			}
			if changes != done {
				t.Errorf("%d adds were done, want %d", changes, done)
			}
		})
	}
}

// leaver is a context that ends when told to.
type leaver struct {
	context.Context
	left  bool
	cause error
}

func (l *leaver) Err() error {
	if l.left {
		return l.cause
	}
	return nil
}

func stream(t *testing.T, h *house, ctx context.Context, conn *grpc.ClientConn) grpc.BidiStreamingClient[limitpb.StreamCheckRequest, limitpb.StreamCheckResponse] {
	t.Helper()
	return must(limitpb.NewLimitServiceClient(conn).StreamCheck(ctx))(t)
}

// Requests are sent without waiting for answers, which come in order.
func TestStreamCheck(t *testing.T) {
	bubble(t, nil, func(t *testing.T, h *house) {
		const messages, checks = 200, 5
		s := stream(t, h, bound(t), h.conn)
		go func() {
			for i := range messages {
				req := &limitpb.StreamCheckRequest{Tag: uint64(1000 + i)}
				for j := range checks {
					req.Checks = append(req.Checks, &limitpb.CheckRequest{Key: "k", Limit: messages * checks, PeriodNs: int64(time.Hour)})
					if j == 3 {
						req.Checks[j].Key = ""
					}
				}
				if s.Send(req) != nil {
					return
				}
			}
			_ = s.CloseSend()
		}()
		left := uint64(messages * checks)
		for i := range messages {
			r := must(s.Recv())(t)
			if r.Tag != uint64(1000+i) || len(r.Results) != checks {
				t.Fatalf("message %d: %v", i, r)
			}
			for j, item := range r.Results {
				if j == 3 {
					badField("key").checkItem(t, item.Error)
					continue
				}
				if left--; item.Response.Remaining != left {
					t.Fatalf("message %d, check %d: %v, want %d remaining", i, j, item, left)
				}
			}
		}
		if _, err := s.Recv(); !errors.Is(err, io.EOF) {
			t.Errorf("after the last answer: %v", err)
		}
	})
}

func TestStreamCheckTooLarge(t *testing.T) {
	want := refusal{code: codes.ResourceExhausted, why: commonpb.Reason_REASON_TOO_LARGE, hint: true}
	bubble(t, nil, func(t *testing.T, h *house) {
		for what, checks := range map[string][]*limitpb.CheckRequest{
			"items": make([]*limitpb.CheckRequest, MaxBatchItems+1),
			"bytes": {{Key: strings.Repeat("k", MaxBatch+1)}},
		} {
			s := stream(t, h, bound(t), h.conn)
			_ = s.Send(&limitpb.StreamCheckRequest{Checks: checks})
			r, err := s.Recv()
			want.check(in(t, what), err)
			if r != nil {
				t.Errorf("%s: %v", what, r)
			}
		}
	})
}

func TestStreamCheckEndsWithItsCaller(t *testing.T) {
	bubble(t, nil, func(t *testing.T, h *house) {
		ctx, cancel := context.WithCancel(context.Background())
		s := stream(t, h, ctx, h.conn)
		cancel()
		if _, err := s.Recv(); status.Code(err) != codes.Canceled {
			t.Errorf("after a cancel: %v", err)
		}
	})
}

// A stream says when the serving rule no longer stands behind its answers.
func TestStreamCheckConfirms(t *testing.T) {
	bubble(t, nil, func(t *testing.T, h *house) {
		s := stream(t, h, bound(t), h.conn)
		ask := func() *limitpb.CheckResult {
			err := s.Send(&limitpb.StreamCheckRequest{Checks: []*limitpb.CheckRequest{{Key: "k", Limit: 5, PeriodNs: int64(time.Second)}}})
			if err != nil {
				t.Fatal(err)
			}
			return must(s.Recv())(t).Results[0]
		}
		if r := ask(); r.Error != nil {
			t.Error(r)
		}
		h.rule.noConfirm.Store(true)
		refusal{code: codes.Unknown, why: commonpb.Reason_REASON_OUTCOME_UNKNOWN}.checkItem(t, ask().Error)
		h.rule.noAdmit.Store(true)
		refusal{code: codes.Unavailable, why: commonpb.Reason_REASON_UNAVAILABLE, hint: true, retry: time.Second}.checkItem(t, ask().Error)
	})
}

// Callers that send and never read are stopped by flow control, and hold up
// nobody else: neither on other connections nor on their own.
func TestSlowReaders(t *testing.T) {
	bubble(t, nil, func(t *testing.T, h *house) {
		const streams, enough = 70, 4 << 20 // more streams than grpc has workers
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		slow := h.connect()
		sent := make([]int, streams) // bytes
		for i := range streams {
			s := stream(t, h, ctx, slow)
			go func() {
				req := &limitpb.StreamCheckRequest{}
				for range 500 {
					req.Checks = append(req.Checks, &limitpb.CheckRequest{Key: "flood", Limit: 5, PeriodNs: int64(time.Second)})
				}
				for sent[i] < enough && s.Send(req) == nil {
					sent[i] += req.SizeVT()
				}
			}()
		}
		synctest.Wait() // until each of them is stuck
		for i := range sent {
			if sent[i] == enough {
				t.Fatalf("stream %d sent %d bytes without reading answers", i, sent[i])
			}
		}
		for what, conn := range map[string]*grpc.ClientConn{"another connection": h.conn, "the same connection": slow} {
			began := time.Now()
			c := counterpb.NewCounterServiceClient(conn)
			for range 200 {
				must(c.Add(bound(t), &counterpb.AddRequest{Key: "k", Delta: 1}))(in(t, what))
			}
			if took := time.Since(began); took != 0 {
				t.Errorf("over %s calls took %v longer than nothing", what, took)
			}
		}
	})
}
