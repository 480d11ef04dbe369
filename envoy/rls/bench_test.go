package rls

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	commonpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"

	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
)

// BenchmarkAnswer is the service's own work on a call, from bytes to bytes: what
// the owners do is left out. `keystead bench --workload rls,rls4` has all of it.
func BenchmarkAnswer(b *testing.B) {
	path := filepath.Join(b.TempDir(), "limits.yaml")
	text := "domain: bench\ndescriptors:\n- key: route\n  descriptors:\n  - key: client\n    rate_limit: {unit: second, requests_per_unit: 1000000}\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		b.Fatal(err)
	}
	s, err := New(Config{Path: path, Metrics: prometheus.NewRegistry()})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	for _, n := range []int{1, 4} {
		b.Run(fmt.Sprintf("descriptors=%d", n), func(b *testing.B) {
			req, results := &rlspb.RateLimitRequest{Domain: "bench"}, make([]*limitpb.CheckResult, n)
			for i := range n {
				results[i] = &limitpb.CheckResult{Response: &limitpb.CheckResponse{Allowed: true, Capacity: 1_000_000, Remaining: 999_999, ResetAfterNs: 1e9}}
				req.Descriptors = append(req.Descriptors, &commonpb.RateLimitDescriptor{Entries: []*commonpb.RateLimitDescriptor_Entry{
					{Key: "route", Value: fmt.Sprintf("checkout%d", i)}, {Key: "client", Value: "client-000000001"}}})
			}
			data, err := proto.Marshal(req)
			if err != nil {
				b.Fatal(err)
			}
			resp := &limitpb.BatchCheckResponse{Results: results}
			s.checker = answers{resp}
			out := make([]byte, 1024)
			b.ReportAllocs()
			for b.Loop() {
				var r request
				if err := r.UnmarshalVT(data); err != nil {
					b.Fatal(err)
				}
				a, err := s.answer(b.Context(), &r)
				if err != nil {
					b.Fatal(err)
				}
				if _, err := a.(*answer).MarshalToSizedBufferVT(out); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

type answers struct{ resp *limitpb.BatchCheckResponse }

func (a answers) BatchCheck(context.Context, *limitpb.BatchCheckRequest) (*limitpb.BatchCheckResponse, error) {
	return a.resp, nil
}
