package rls

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
)

// Checker decides checks: the limit service of a node, which passes each on to
// the owner of its key. Results come one for each check, in order.
type Checker interface {
	BatchCheck(ctx context.Context, req *limitpb.BatchCheckRequest) (*limitpb.BatchCheckResponse, error)
}

// Headers says which headers go to the client with an answer.
type Headers string

// The choices.
const (
	NoHeaders  Headers = "none"
	XRateLimit Headers = "x-ratelimit" // X-RateLimit-Limit, -Remaining and -Reset, as Envoy's own filters name them
	RateLimit  Headers = "ratelimit"   // RateLimit-Limit, -Remaining and -Reset, as upstream names them by default
	IETF       Headers = "ietf"        // RateLimit-Policy and RateLimit of the IETF draft, with several limits
)

// DefaultPoll is how often the files are looked at: as quick as upstream feels,
// at the cost of a stat for each file.
const DefaultPoll = time.Second

// Config says what a Service is.
type Config struct {
	// Path is the configuration: a YAML file, or a directory of them. Required.
	Path string
	// MergeDomains lets several files add to one domain. Default: no, as upstream.
	MergeDomains bool
	// Headers go to the client. Default: none, as upstream.
	Headers Headers
	// Metadata puts the request, and the metadata of its descriptors that are not over
	// their limit, into the dynamic metadata of answers. Default: no, as upstream.
	Metadata bool
	// Shadow lets all requests through, and counts what would have been refused.
	Shadow bool
	// MaxHold is the longest hold of a slot that the nodes allow. Default: 24 h.
	MaxHold time.Duration
	// Poll is how often the files are looked at. Default: DefaultPoll.
	Poll time.Duration
	// Log is where the service says what it has read. Default: nowhere.
	Log *slog.Logger
	// Metrics is where it registers what it counts. Required.
	Metrics prometheus.Registerer
}

func (c Config) withDefaults() Config {
	if c.Headers == "" {
		c.Headers = NoHeaders
	}
	if c.Poll == 0 {
		c.Poll = DefaultPoll
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

// Validate says what in c makes no sense, whatever is in the files.
func (c Config) Validate() error {
	switch c.Headers {
	case "", NoHeaders, XRateLimit, RateLimit, IETF:
	default:
		return fmt.Errorf("headers %q of the rate limit service: choose %s, %s, %s or %s", c.Headers, NoHeaders, XRateLimit, RateLimit, IETF)
	}
	if c.Poll < 0 {
		return fmt.Errorf("looking at the files of the rate limit service every %s: choose more than 0", c.Poll)
	}
	return nil
}

// Service answers ShouldRateLimit.
type Service struct {
	cfg      Config
	metrics  *metrics
	checker  Checker  // set by Register
	admitter Admitter // the same
	now      atomic.Pointer[loaded]
	ctx      context.Context // ends with Close
	stop     context.CancelFunc
	closed   sync.Once
	done     sync.WaitGroup
	deferred chan struct{} // room for questions that may go on after their calls
	refunds  chan struct{} // room for what is being given back
}

// New reads the configuration and looks at it from then on, until Close. The
// error is Problems if the files are broken.
func New(cfg Config) (*Service, error) {
	cfg = cfg.withDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Service{cfg: cfg, deferred: make(chan struct{}, maxDeferred), refunds: make(chan struct{}, maxRefunds)}
	first := s.read()
	if first.broken != nil {
		return nil, fmt.Errorf("the configuration of the rate limit service: %w", first.broken)
	}
	s.now.Store(first)
	s.metrics = newMetrics(cfg.Metrics, s)
	s.bind(first.rules)
	cfg.Log.Info("rate limit service", "path", cfg.Path, "files", len(first.rules.files), "domains", len(first.rules.domains), "limits", len(first.rules.limits))
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.done.Go(func() { s.watch(s.ctx) })
	return s, nil
}

// Close stops looking at the files, and waits for what calls have left behind: at
// most maxRefundTime, or a lease if an owner's standby is gone. Calls that are under
// way go on; they ask nobody in haste any more, and give nothing back.
func (s *Service) Close() {
	s.stop()
	s.done.Wait()
	s.closed.Do(func() {
		for range maxDeferred {
			s.deferred <- struct{}{} // and nobody else gets room
		}
		for range maxRefunds {
			s.refunds <- struct{}{}
		}
	})
}

// ServiceDesc is that of rls.proto, with a handler that reads requests and writes
// answers without reflection. It needs a server whose codec asks messages for
// UnmarshalVT and MarshalToSizedBufferVT.
var ServiceDesc = grpc.ServiceDesc{
	ServiceName: rlspb.RateLimitService_ServiceDesc.ServiceName,
	HandlerType: (*any)(nil),
	Methods:     []grpc.MethodDesc{{MethodName: "ShouldRateLimit", Handler: handle}},
	Metadata:    rlspb.RateLimitService_ServiceDesc.Metadata,
}

// Register adds the service to a server, and decides by c and a from then on. Call it
// once, before the server serves.
func (s *Service) Register(r grpc.ServiceRegistrar, c Checker, a Admitter) {
	s.checker, s.admitter = c, a
	r.RegisterService(&ServiceDesc, s)
}

func handle(srv any, ctx context.Context, dec func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
	in := new(request)
	if err := dec(in); err != nil {
		return nil, err
	}
	do := func(ctx context.Context, req any) (any, error) { return srv.(*Service).answer(ctx, req.(*request)) }
	if interceptor == nil {
		return do(ctx, in)
	}
	return interceptor(ctx, in, &grpc.UnaryServerInfo{Server: srv, FullMethod: rlspb.RateLimitService_ShouldRateLimit_FullMethodName}, do)
}

// maxDescriptors bounds the descriptors of a request. Envoy sends as many as a
// route has actions, a few.
const maxDescriptors = 256

// maxEntries bounds the entries of a descriptor: several times as many as a
// configuration can tell apart.
const maxEntries = 64

// answer answers a request.
func (s *Service) answer(ctx context.Context, req *request) (any, error) {
	switch {
	case req.size > maxRequest:
		return nil, invalid("", fmt.Sprintf("the request has %d bytes; at most %d are allowed", req.size, maxRequest), "send fewer or shorter descriptors")
	case req.domain == "":
		return nil, invalid("domain", "the domain is empty", "set `domain` in Envoy's rate limit filter")
	case len(req.descriptors) == 0:
		return nil, invalid("descriptors", "there are no descriptors", "")
	case len(req.descriptors) > maxDescriptors:
		return nil, invalid("descriptors", fmt.Sprintf("there are %d descriptors; at most %d are allowed", len(req.descriptors), maxDescriptors), "")
	}
	for i := range req.descriptors {
		if n := len(req.descriptors[i].entries); n > maxEntries {
			return nil, invalid("descriptors.entries", fmt.Sprintf("a descriptor has %d entries; at most %d are allowed", n, maxEntries), "send several descriptors instead")
		}
	}
	c := call{s: s, req: req, ctx: ctx, items: make([]item, len(req.descriptors))}
	if err := c.find(s.now.Load().rules); err != nil {
		return nil, err
	}
	if err := c.decide(); err != nil {
		return nil, err
	}
	return c.write()
}

// find finds the limit of each descriptor, and the objects to ask.
func (c *call) find(rules *Rules) error {
	domain := rules.domains[c.req.domain]
	if domain == nil {
		c.s.metrics.unknown.Add(float64(len(c.items)))
		return nil
	}
	key := make([]byte, 0, keySpace)
	var replaced []string
	for i := range c.items {
		it, d := &c.items[i], &c.req.descriptors[i]
		if n := len(d.entries); n > 0 {
			it.tag = d.entries[n-1].value
		}
		it.hits, it.negative, it.stated = uint64(max(c.req.hits, 1)), d.negative, c.req.hits > 0 || d.hasHits
		if d.hasHits {
			it.hits = d.hits
		}
		key = appendPart(key[:0], asItIs, c.req.domain)
		if d.override != nil {
			var err error
			if it.limit, err = overriding(c.req.domain, d); err != nil {
				return err
			}
			for _, e := range d.entries {
				key = appendPart(appendPart(key, asItIs, e.key), asItIs, e.value)
			}
			it.series = c.s.metrics.of(c.req.domain, it.limit.Path)
		} else if it.limit, key = domain.find(d.entries, key); it.limit != nil {
			it.series = it.limit.series
			if it.limit.dynamic {
				it.series = c.s.metrics.of(c.req.domain, domain.label(d.entries, it.limit.Detailed))
			}
		}
		if it.limit == nil {
			continue
		}
		replaced = append(replaced, it.limit.Replaces...)
		if it.unlimited = it.limit.Unlimited; !it.unlimited {
			it.key = fit(key)
		}
	}
	for i := range c.items {
		if it := &c.items[i]; it.limit != nil && it.limit.Name != "" && !it.unlimited && slices.Contains(replaced, it.limit.Name) {
			it.limit = nil
		}
	}
	return nil
}

// keySpace is room for most keys, in bytes.
const keySpace = 128

// overriding returns the limit that comes with a descriptor. Its path in the metrics is
// made of the keys alone: the values are the request's.
func overriding(domain string, d *descriptor) (*Limit, error) {
	o := d.override
	period, known := periods[o.unit]
	switch {
	case !known:
		return nil, invalid("descriptors.limit.unit", fmt.Sprintf("the unit %d of a limit is unknown", o.unit), "use SECOND, MINUTE, HOUR, DAY, WEEK, MONTH or YEAR")
	case int64(o.multiplier) > int64(longest/period):
		return nil, invalid("descriptors.limit.unit_multiplier", fmt.Sprintf("%d times the unit is longer than %d days", o.multiplier, longest/(24*time.Hour)), "")
	}
	l := &Limit{Domain: domain, RequestsPerUnit: o.requests, Unit: o.unit, SpendRest: true}
	var path strings.Builder
	for i, e := range d.entries {
		if i > 0 {
			path.WriteByte('.')
		}
		path.WriteString(e.key)
	}
	l.Path = path.String()
	l.seal(o.multiplier)
	return l, nil
}

// longest is the longest period of Keystead's API.
const longest = 366 * 24 * time.Hour

// bind resolves the metrics of limits for which they do not depend on requests.
func (s *Service) bind(r *Rules) {
	for _, l := range r.limits {
		if !l.dynamic {
			l.series = s.metrics.of(l.Domain, l.Path)
		}
	}
}

// Status is what a service says of its configuration.
type Status struct {
	Path    string    `json:"path"`
	Files   int       `json:"files"`
	Domains int       `json:"domains"`
	Limits  int       `json:"limits"`
	Read    time.Time `json:"read"` // when what is in force was read
	// Broken is what is wrong with the files as they are now; those from before are
	// in force. nil = nothing.
	Broken Problems `json:"broken,omitempty"`
}

// Status returns the present status.
func (s *Service) Status() Status {
	n := s.now.Load()
	return Status{Path: s.cfg.Path, Files: len(n.rules.files), Domains: len(n.rules.domains), Limits: len(n.rules.limits), Read: n.at, Broken: n.broken}
}

// asProblems returns the problems in an error of Load.
func asProblems(err error) Problems {
	var p Problems
	if err != nil && !errors.As(err, &p) {
		p = Problems{{Message: err.Error()}}
	}
	return p
}
