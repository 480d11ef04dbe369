package rpc

import (
	"net/url"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
)

// A caller that does not read the details of a status finds reason and hint in trailers,
// of unary calls and of streams; an answer has none.
func TestPlainTrailers(t *testing.T) {
	bubble(t, nil, func(t *testing.T, h *house) {
		for what, req := range map[string]*limitpb.CheckRequest{
			"INVALID": {Key: "k", Limit: 1, PeriodNs: 1e9, Cost: 1, Refund: 1},
			"":        {Key: "k", Limit: 1, PeriodNs: 1e9},
		} {
			var md metadata.MD
			_, err := h.limits.Check(bound(t), req, grpc.Trailer(&md))
			checkPlain(in(t, what), md, what, err)
		}
		s := stream(t, h, bound(t), h.conn)
		if err := s.Send(&limitpb.StreamCheckRequest{Checks: make([]*limitpb.CheckRequest, MaxBatchItems+1)}); err != nil {
			t.Fatal(err)
		}
		_, err := s.Recv()
		checkPlain(in(t, "stream"), s.Trailer(), "TOO_LARGE", err)
	})
}

func checkPlain(t testing.TB, md metadata.MD, reason string, err error) {
	t.Helper()
	if reason == "" {
		if err != nil || len(md.Get(reasonTrailer)) != 0 {
			t.Errorf("an answer: %v, %v", md, err)
		}
		return
	}
	if err == nil || len(md.Get(reasonTrailer)) != 1 || md.Get(reasonTrailer)[0] != reason {
		t.Errorf("%v, %v: want %s", md, err, reason)
		return
	}
	if hint, bad := url.PathUnescape(md.Get(hintTrailer)[0]); bad != nil || hint == "" {
		t.Errorf("hint %q: %v", hint, bad)
	}
}
