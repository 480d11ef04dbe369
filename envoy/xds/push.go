package xds

import (
	"context"
	"slices"
	"sync"

	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/log"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
)

// order is that in which clients are told of what has changed, as the xDS protocol
// recommends: clusters before the endpoints that they name, and both before the routes
// that lead there.
//
//guard:xds-order types.Cluster -> types.Endpoint
//guard:xds-order types.Endpoint -> types.Cluster
var order = []types.ResponseType{types.Cluster, types.Endpoint, types.Listener, types.Route}

// urls are the types in that order.
var urls = []string{resource.ClusterType, resource.EndpointType, resource.ListenerType, resource.RouteType}

// orderly is the library's cache, which tells of all types at once, in any order. It
// is given one type after the other here, while nobody else asks.
//
// The library's own way ("ADS mode") is no help: it begins with endpoints, and answers
// no client that does not name all that there is, while gRPC clients name what they need.
type orderly struct {
	mu        sync.Mutex // guards what follows, and the order of what is told
	inner     cache.SnapshotCache
	published map[string]*cache.Snapshot // by kind of client; without one, sessions that ask wait
	asking    []*asking
}

func newOrderly(log log.Logger) *orderly {
	return &orderly{inner: cache.NewSnapshotCache(false, byClient{}, log), published: map[string]*cache.Snapshot{}}
}

// asking is a watch that was asked for before there was anything to say. The cache
// would answer it when it has the first type, with nothing of the others.
type asking struct {
	kind, url string
	start     func() (cancel func(), err error)
	cancel    func() // once it has started
}

// publish tells clients of a kind of a snapshot.
func (o *orderly) publish(kind string, next *cache.Snapshot) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	last := o.published[kind]
	if last == nil {
		return o.beginLocked(kind, next)
	}
	step := &cache.Snapshot{Resources: last.Resources}
	for _, t := range order {
		if next.Resources[t].Version == last.Resources[t].Version {
			continue
		}
		step = &cache.Snapshot{Resources: step.Resources} // those that were given away do not change
		step.Resources[t] = next.Resources[t]
		if err := o.setLocked(kind, step); err != nil {
			return err
		}
	}
	return nil
}

// setLocked gives a snapshot to the cache. That hands over to the streams' goroutines,
// which have room for it.
func (o *orderly) setLocked(kind string, s *cache.Snapshot) error {
	if err := o.inner.SetSnapshot(context.Background(), kind, s); err != nil {
		return err
	}
	o.published[kind] = s
	return nil
}

// beginLocked publishes the first snapshot for a kind, and answers the sessions that wait.
func (o *orderly) beginLocked(kind string, first *cache.Snapshot) error {
	if err := o.setLocked(kind, first); err != nil {
		return err
	}
	var others []*asking
	all := o.asking
	slices.SortStableFunc(all, func(a, b *asking) int { return slices.Index(urls, a.url) - slices.Index(urls, b.url) })
	for _, a := range all {
		if a.kind != kind {
			others = append(others, a)
			continue
		}
		var err error
		if a.cancel, err = a.start(); err != nil {
			return err
		}
	}
	o.asking = others
	return nil
}

// watch starts a watch, at once or when there is something to say.
func (o *orderly) watch(kind, url string, start func() (func(), error)) (func(), error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	//guard:xds-first true
	if o.published[kind] != nil {
		return start()
	}
	a := &asking{kind: kind, url: url, start: start}
	o.asking = append(o.asking, a)
	return func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.asking = slices.DeleteFunc(o.asking, func(other *asking) bool { return other == a })
		if a.cancel != nil {
			a.cancel()
		}
	}, nil
}

// CreateWatch implements cache.ConfigWatcher.
func (o *orderly) CreateWatch(req *cache.Request, sub cache.Subscription, to chan cache.Response) (func(), error) {
	return o.watch(byClient{}.ID(req.GetNode()), req.GetTypeUrl(), func() (func(), error) { return o.inner.CreateWatch(req, sub, to) })
}

// CreateDeltaWatch implements cache.ConfigWatcher. A name that nobody has is answered:
// the client is to take it for gone, instead of waiting for its own time to end.
func (o *orderly) CreateDeltaWatch(req *cache.DeltaRequest, sub cache.Subscription, to chan cache.DeltaResponse) (func(), error) {
	has := sub.ReturnedResources()
	for _, name := range req.GetResourceNamesSubscribe() {
		//guard:xds-unknown
		if _, known := has[name]; !known && name != "*" {
			has[name] = "" // the library takes it for told of before, and tells what became of it
		}
	}
	return o.watch(byClient{}.ID(req.GetNode()), req.GetTypeUrl(), func() (func(), error) { return o.inner.CreateDeltaWatch(req, sub, to) })
}
