package rpc

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// Names of health beside those of the services.
const (
	// livenessName is SERVING while the process runs, for probes that restart it.
	livenessName = "liveness"
	// rlsName is what Envoy's own rate limit service is called in health checks.
	rlsName    = "ratelimit"
	rlsService = "envoy.service.ratelimit.v3.RateLimitService"
)

// healthEvery is how often a Watch looks whether the node is ready.
const healthEvery = 250 * time.Millisecond

// health answers grpc.health.v1. The server as a whole (""), and each of its services by
// name, are SERVING while /readyz is 200, and NOT_SERVING otherwise: before the node is
// admitted, without a lease, drained, stopping.
type health struct {
	healthpb.UnimplementedHealthServer
	s     *Server
	names map[string]bool
}

// newHealth knows the services that are registered by now.
func newHealth(s *Server) *health {
	h := &health{s: s, names: map[string]bool{"": true, livenessName: true}}
	for name := range s.grpc.GetServiceInfo() {
		h.names[name] = true
	}
	h.names[rlsName] = h.names[rlsService]
	return h
}

func (h *health) status(name string) healthpb.HealthCheckResponse_ServingStatus {
	switch {
	case !h.names[name]:
		return healthpb.HealthCheckResponse_SERVICE_UNKNOWN
	case name == livenessName:
		return healthpb.HealthCheckResponse_SERVING
	case h.s.stopped.Load(), h.s.cfg.Ready != nil && h.s.cfg.Ready() != nil:
		return healthpb.HealthCheckResponse_NOT_SERVING
	}
	return healthpb.HealthCheckResponse_SERVING
}

// Check answers at once.
func (h *health) Check(_ context.Context, req *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	if !h.names[req.Service] {
		return nil, status.Errorf(codes.NotFound, "there is no service %q: ask for the server (\"\"), for %q, or for a service by its full name", req.Service, livenessName)
	}
	return &healthpb.HealthCheckResponse{Status: h.status(req.Service)}, nil
}

// List answers for all names.
func (h *health) List(context.Context, *healthpb.HealthListRequest) (*healthpb.HealthListResponse, error) {
	resp := &healthpb.HealthListResponse{Statuses: map[string]*healthpb.HealthCheckResponse{}}
	for name, there := range h.names {
		if there {
			resp.Statuses[name] = &healthpb.HealthCheckResponse{Status: h.status(name)}
		}
	}
	return resp, nil
}

// Watch answers at once and at each change, until the server stops.
func (h *health) Watch(req *healthpb.HealthCheckRequest, stream grpc.ServerStreamingServer[healthpb.HealthCheckResponse]) error {
	tick := time.NewTicker(healthEvery)
	defer tick.Stop()
	last := healthpb.HealthCheckResponse_UNKNOWN
	for {
		if now := h.status(req.Service); now != last {
			if err := stream.Send(&healthpb.HealthCheckResponse{Status: now}); err != nil {
				return err
			}
			last = now
		}
		select {
		case <-stream.Context().Done():
			return status.FromContextError(stream.Context().Err()).Err()
		case <-h.s.stopping:
			if req.Service != livenessName && h.names[req.Service] && last != healthpb.HealthCheckResponse_NOT_SERVING {
				_ = stream.Send(&healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_NOT_SERVING}) // the caller has left
			}
			return Status(errStopping)
		case <-tick.C:
		}
	}
}
