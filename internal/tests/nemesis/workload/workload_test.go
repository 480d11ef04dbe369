package workload

import (
	"errors"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func refusal(code codes.Code, domain, reason string) error {
	st, err := status.New(code, "no").WithDetails(&errdetails.ErrorInfo{Domain: domain, Reason: reason})
	if err != nil {
		panic(err)
	}
	return st.Err()
}

// An attempt did nothing only if that is certain: everything else may have acted.
func TestFateOfAnAttempt(t *testing.T) {
	for what, tc := range map[string]struct {
		err  error
		sent bool
		want fate
		odd  bool
	}{
		"the node does not serve":    {err: refusal(codes.Unavailable, "keystead", "UNAVAILABLE"), sent: true, want: nothing},
		"another node owns it":       {err: refusal(codes.FailedPrecondition, "keystead", "NOT_OWNER"), sent: true, want: nothing},
		"what it was is lost":        {err: refusal(codes.Unavailable, "keystead", "RECOVERING"), sent: true, want: nothing},
		"the node does not know":     {err: refusal(codes.Unknown, "keystead", "OUTCOME_UNKNOWN"), sent: true, want: lost},
		"a grant was given back":     {err: refusal(codes.DeadlineExceeded, "keystead", "GAVE_UP"), sent: true, want: lost},
		"its id was forgotten":       {err: refusal(codes.FailedPrecondition, "keystead", "REQUEST_TOO_OLD"), sent: true, want: over},
		"a field is wrong":           {err: refusal(codes.InvalidArgument, "keystead", "INVALID"), sent: true, want: over, odd: true},
		"another one's word":         {err: refusal(codes.Unavailable, "elsewhere", "UNAVAILABLE"), sent: true, want: lost},
		"the connection broke":       {err: status.Error(codes.Unavailable, "EOF"), sent: true, want: lost},
		"there was no connection":    {err: status.Error(codes.Unavailable, "refused"), want: nothing},
		"the deadline passed":        {err: status.Error(codes.DeadlineExceeded, ""), sent: true, want: lost},
		"… before it was sent":       {err: status.Error(codes.DeadlineExceeded, ""), want: nothing},
		"something that is no gRPC":  {err: errors.New("no"), sent: true, want: lost},
		"an internal error, unnamed": {err: status.Error(codes.Internal, ""), sent: true, want: lost},
	} {
		if got, odd := judge(tc.err, tc.sent); got != tc.want || (odd != "") != tc.odd {
			t.Errorf("%s: %d, %q", what, got, odd)
		}
	}
}

func TestRegister(t *testing.T) {
	now := int64(0)
	r := &Register{now: func() int64 { now++; return now }}
	for _, w := range []struct {
		token    uint64
		accepted bool
	}{{5, true}, {5, true}, {7, true}, {5, false}, {7, true}, {6, false}, {8, true}} {
		if got := r.Write(1, "a", w.token, 9); got != w.accepted {
			t.Errorf("token %d: %t", w.token, got)
		}
	}
	all := r.Writes()
	if len(all) != 7 || all[3] != (Write{Client: 1, Holder: "a", Token: 5, At: 4, Until: 9}) {
		t.Errorf("%+v", all)
	}
}

func TestPauses(t *testing.T) {
	r := &Record{Until: 100, Served: map[string][]Span{
		"a": {{0, 5}, {10, 12}, {50, 60}, {90, 95}},
		"b": nil,
	}}
	pause := func(from, until int64) Pause { return r.Pauses(from, until)[0] }
	if p := pause(0, 100); p != (Pause{Key: "b", From: 0, For: 100}) {
		t.Errorf("%+v", p)
	}
	delete(r.Served, "b")
	for _, tc := range []struct {
		from, until int64
		want        Pause
	}{
		{0, 100, Pause{Key: "a", From: 12, For: 48}},
		{0, 30, Pause{Key: "a", From: 12, For: 18}},
		{55, 100, Pause{Key: "a", From: 55, For: 40}}, // what began before does not count
		{70, 80, Pause{Key: "a", From: 70, For: 10}},
	} {
		if p := pause(tc.from, tc.until); p != tc.want {
			t.Errorf("%d to %d: %+v", tc.from, tc.until, p)
		}
	}
	for from, want := range map[int64]time.Duration{0: 5, 13: 47, 60: 0, 96: 4} {
		if got := r.After(from)["a"]; got != want {
			t.Errorf("after %d: %d", from, got)
		}
	}
}

func TestSettings(t *testing.T) {
	for _, cfg := range []Config{{Clients: 0, Keys: 1}, {Clients: MaxClients + 1, Keys: 1}, {Clients: 1}, {Clients: 1, Keys: MaxKeys + 1}} {
		if w, err := Start(cfg); err == nil {
			w.Stop()
			t.Errorf("%+v is taken", cfg)
		}
	}
}
