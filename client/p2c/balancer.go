package p2c

import (
	"encoding/json"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/balancer/endpointsharding"
	"google.golang.org/grpc/balancer/pickfirst"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/serviceconfig"
)

// Name is what a service config calls the balancer.
const Name = "keystead_p2c"

// Register makes the balancer known to gRPC. As for all balancers, that has to be
// done before the first connection is made, and by one goroutine: at the start of
// main, or in an init of the caller's. This package does not do it by itself,
// because importing it for the arithmetic alone should not change the process.
// It may be called again.
func Register() { balancer.Register(Builder()) }

// Builder makes the balancers, for callers that register it by other means.
func Builder() balancer.Builder { return builder{} }

type builder struct{}

// lbConfig carries a Config through gRPC.
type lbConfig struct {
	serviceconfig.LoadBalancingConfig
	Config
}

func (builder) Name() string { return Name }

// ParseConfig reads {"decay": "2s", "penalty": "1s", "probe": "10s"}, each of which
// may be left out. It fails with an *Invalid.
func (builder) ParseConfig(text json.RawMessage) (serviceconfig.LoadBalancingConfig, error) {
	c, err := parse(text)
	if err != nil {
		return nil, err
	}
	return &lbConfig{Config: c}, nil
}

func (builder) Build(cc balancer.ClientConn, opts balancer.BuildOptions) balancer.Balancer {
	b := &p2c{ClientConn: cc, born: time.Now(), known: resolver.NewEndpointMap[*Load]()}
	b.cfg, _ = Config{}.WithDefaults() // has no errors
	// One connection to each endpoint, kept by pick_first below.
	b.Balancer = endpointsharding.NewBalancer(b, opts, balancer.Get(pickfirst.Name).Build, endpointsharding.Options{})
	return b
}

// p2c is one balancer, of one ClientConn. What stands below it reports to it as its
// ClientConn, what stands above speaks to it as a Balancer.
type p2c struct {
	balancer.ClientConn
	balancer.Balancer
	born time.Time // times are counted from here

	mu    sync.Mutex // guards what follows
	cfg   Config
	known *resolver.EndpointMap[*Load] // of all endpoints, READY or not
}

// now returns the time as loads count it.
func (b *p2c) now() int64 { return int64(time.Since(b.born)) }

// UpdateClientConnState adopts what the resolver found. With other settings all loads
// are learnt anew.
func (b *p2c) UpdateClientConnState(s balancer.ClientConnState) error {
	if c, ok := s.BalancerConfig.(*lbConfig); ok {
		b.mu.Lock()
		if c.Config != b.cfg {
			b.cfg, b.known = c.Config, resolver.NewEndpointMap[*Load]()
		}
		b.mu.Unlock()
	}
	return b.Balancer.UpdateClientConnState(balancer.ClientConnState{
		ResolverState: pickfirst.EnableHealthListener(s.ResolverState), // health checks and outlier detection, if asked for
	})
}

// UpdateState gives gRPC a picker among the connections that are READY now. While none
// is, the picker of the balancer below stands.
func (b *p2c) UpdateState(s balancer.State) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := &picker{b: b}
	var loads []*Load
	now, known := b.now(), resolver.NewEndpointMap[*Load]()
	for _, child := range endpointsharding.ChildStatesFromPicker(s.Picker) {
		l, ok := b.known.Get(child.Endpoint)
		if !ok {
			l = NewLoad(b.cfg, now)
		}
		known.Set(child.Endpoint, l)
		if child.State.ConnectivityState == connectivity.Ready {
			loads = append(loads, l)
			p.backends = append(p.backends, child.State.Picker)
		}
	}
	b.known = known
	if len(loads) > 0 {
		p.loads, p.chooser = loads, NewChooser(loads)
		s = balancer.State{ConnectivityState: connectivity.Ready, Picker: p}
	}
	b.ClientConn.UpdateState(s)
}

// picker chooses among backends that were all READY when it was made; gRPC gets
// another when that changes.
type picker struct {
	b        *p2c
	backends []balancer.Picker // each knows one connection
	loads    []*Load           // of the same
	chooser  *Chooser
}

// Pick chooses a backend for a call.
func (p *picker) Pick(info balancer.PickInfo) (balancer.PickResult, error) {
	begin := p.b.now()
	i := p.chooser.Next(begin, rand.Uint64())
	result, err := p.backends[i].Pick(info)
	if err != nil {
		return result, err
	}
	l, done := p.loads[i], result.Done
	l.Begin(begin)
	result.Done = func(d balancer.DoneInfo) {
		l.End(begin, p.b.now(), judge(d))
		if done != nil {
			done(d)
		}
	}
	return result, nil
}
