package bench

import (
	"context"
	"errors"
	"fmt"

	commonpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/durationpb"
)

// EnvoyConfig is the configuration of the rate limit service that EnvoyWorkloads
// need.
const EnvoyConfig = `domain: bench
descriptors:
- key: route
  descriptors:
  - key: client
    rate_limit: {unit: second, requests_per_unit: 1000000}
`

// startRLS calls with so many descriptors, of two entries each, as a route of Envoy
// with so many actions does.
func startRLS(descriptors int) func(context.Context, *worker) (cycle, error) {
	return func(_ context.Context, w *worker) (cycle, error) {
		c := rlspb.NewRateLimitServiceClient(w.conn)
		routes := []string{"checkout", "search", "login", "static"}
		return func(ctx context.Context) error {
			req := &rlspb.RateLimitRequest{Domain: "bench", Descriptors: make([]*commonpb.RateLimitDescriptor, descriptors)}
			for i := range req.Descriptors {
				req.Descriptors[i] = &commonpb.RateLimitDescriptor{Entries: []*commonpb.RateLimitDescriptor_Entry{
					{Key: "route", Value: routes[i%len(routes)]}, {Key: "client", Value: w.key()},
				}}
			}
			r, err := c.ShouldRateLimit(ctx, req)
			switch {
			case err != nil:
				return err
			case len(r.Statuses) != descriptors:
				return fmt.Errorf("%d statuses for %d descriptors", len(r.Statuses), descriptors)
			case r.Statuses[0].CurrentLimit == nil:
				return errors.New("the node has no limit for the descriptors of this workload; start it with that configuration, or leave out --addr")
			}
			return nil
		}, nil
	}
}

// several returns the count of items of a cycle with so many.
func several(n int) func(*Config) int { return func(*Config) int { return n } }

type echoRLS struct {
	rlspb.UnimplementedRateLimitServiceServer
}

func (echoRLS) ShouldRateLimit(_ context.Context, req *rlspb.RateLimitRequest) (*rlspb.RateLimitResponse, error) {
	r := &rlspb.RateLimitResponse{OverallCode: rlspb.RateLimitResponse_OK, Statuses: make([]*rlspb.RateLimitResponse_DescriptorStatus, len(req.Descriptors))}
	for i := range r.Statuses {
		r.Statuses[i] = &rlspb.RateLimitResponse_DescriptorStatus{
			Code:               rlspb.RateLimitResponse_OK,
			CurrentLimit:       &rlspb.RateLimitResponse_RateLimit{RequestsPerUnit: 1_000_000, Unit: rlspb.RateLimitResponse_RateLimit_SECOND},
			LimitRemaining:     999_999,
			DurationUntilReset: &durationpb.Duration{Nanos: 900_000_000},
		}
	}
	return r, nil
}
