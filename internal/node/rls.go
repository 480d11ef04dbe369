package node

import (
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"github.com/keystead/keystead/envoy/rls"
	"github.com/keystead/keystead/internal/rpc"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
)

// startRLS starts Envoy's rate limit service, if it is configured.
func (n *Node) startRLS(reg prometheus.Registerer) (err error) {
	conf := n.cfg.RLS
	if conf.Path == "" {
		return nil
	}
	conf.Log, conf.Metrics, conf.MaxHold = n.cfg.Log, reg, time.Duration(n.cfg.Store.MaxLockTTL)
	if conf.MaxHold == 0 && n.cluster != nil {
		conf.MaxHold = DefaultLockTTL
	}
	if n.rls, err = rls.New(conf); err != nil {
		return err
	}
	n.stops = append(n.stops, n.rls.Close)
	return nil
}

// moreServices returns those beside the API.
func (n *Node) moreServices() []*grpc.ServiceDesc {
	more := []*grpc.ServiceDesc{&discoveryv3.AggregatedDiscoveryService_ServiceDesc}
	if n.rls != nil {
		more = append(more, &rls.ServiceDesc)
	}
	return more
}

// register adds the services beside the API to the server.
func (n *Node) register(r grpc.ServiceRegistrar, limits limitpb.LimitServiceServer, admissions rpc.Admissions) {
	n.xds.server.Register(r)
	if n.rls != nil {
		n.rls.Register(r, limits, admissions)
	}
}
