package httpapi

import (
	"fmt"
	"net/http"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
)

// route is a method of the API under its path.
type route struct {
	path   string // /v1/limit/check
	method string // /keystead.limit.v1.LimitService/Check
	desc   protoreflect.MethodDescriptor
	reads  bool  // it has no side effects: GET does as well
	most   int64 // bytes of a body

	request  protoreflect.MessageType
	asked    *shape
	answered *shape
	key      *field // idempotency_key of the request; nil if it has none
}

// idempotencyKey is the field of requests that the header Idempotency-Key is.
const idempotencyKey = "idempotency_key"

// routesOf returns the routes of the methods of an API, by path, and those that are
// streams and so are not offered.
func routesOf(api API) (routes map[string]*route, streams map[string]protoreflect.MethodDescriptor, err error) {
	routes, streams = map[string]*route{}, map[string]protoreflect.MethodDescriptor{}
	all := shapes{}
	services := map[protoreflect.FullName]bool{}
	for _, method := range api.Methods() {
		d, err := descriptorOf(method)
		if err != nil {
			return nil, nil, err
		}
		r, err := newRoute(all, method, d, int64(api.MaxRequest(method)))
		if err != nil {
			return nil, nil, err
		}
		if other := routes[r.path]; other != nil {
			return nil, nil, fmt.Errorf("%s and %s have the same path, %s", method, other.method, r.path)
		}
		routes[r.path] = r
		services[d.Parent().FullName()] = true
	}
	for name := range services {
		d, err := protoregistry.GlobalFiles.FindDescriptorByName(name)
		if err != nil {
			return nil, nil, err
		}
		methods := d.(protoreflect.ServiceDescriptor).Methods()
		for i := range methods.Len() {
			if m := methods.Get(i); m.IsStreamingClient() || m.IsStreamingServer() {
				streams[pathOf(m)] = m
			}
		}
	}
	return routes, streams, nil
}

func descriptorOf(method string) (protoreflect.MethodDescriptor, error) {
	name := protoreflect.FullName(strings.Replace(strings.TrimPrefix(method, "/"), "/", ".", 1))
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", method, err)
	}
	m, ok := d.(protoreflect.MethodDescriptor)
	if !ok {
		return nil, fmt.Errorf("%s is not a method", method)
	}
	return m, nil
}

func newRoute(all shapes, method string, d protoreflect.MethodDescriptor, bound int64) (*route, error) {
	request, err := protoregistry.GlobalTypes.FindMessageByName(d.Input().FullName())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", method, err)
	}
	r := &route{
		path: pathOf(d), method: method, desc: d, most: bodyFactor * bound,
		request: request, asked: all.of(d.Input()), answered: all.of(d.Output()),
	}
	if r.asked.hasText() {
		r.most = textFactor * bound
	}
	r.key = r.asked.byName[idempotencyKey]
	options, _ := d.Options().(*descriptorpb.MethodOptions)
	r.reads = options.GetIdempotencyLevel() == descriptorpb.MethodOptions_NO_SIDE_EFFECTS
	return r, nil
}

// pathOf returns the path of a method: the version of its package, the noun of its
// service, its name.
func pathOf(d protoreflect.MethodDescriptor) string {
	service := d.Parent()
	pkg := string(service.ParentFile().Package())
	noun := strings.TrimSuffix(string(service.Name()), "Service")
	return "/" + pkg[strings.LastIndexByte(pkg, '.')+1:] + "/" + kebab(noun) + "/" + kebab(string(d.Name()))
}

// setKey puts the header Idempotency-Key into a request.
func (r *route) setKey(m protoreflect.Message, keys []string) error {
	switch {
	case r.key == nil && r.reads:
		return nil // to read twice is to read once
	case r.key == nil:
		return &problem{Status: http.StatusBadRequest, Reason: "INVALID", Detail: r.path + " does not know the header " + idempotencyHeader,
			Hint: "leave it out; what is done twice by this call is done twice"}
	}
	key := keys[0]
	if n := len(key); n >= 2 && key[0] == '"' && key[n-1] == '"' {
		key = key[1 : n-1] // as the draft on Idempotency-Key writes it
	}
	if key == "" || len(keys) > 1 {
		return &problem{Status: http.StatusBadRequest, Reason: "INVALID", Field: idempotencyKey,
			Detail: "the header " + idempotencyHeader + " is empty, or stands there more than once", Hint: "send one key of 1 to 64 bytes, or leave it out"}
	}
	if have := m.Get(r.key.desc).String(); have != "" && have != key {
		return &problem{Status: http.StatusBadRequest, Reason: "INVALID", Field: idempotencyKey,
			Detail: idempotencyKey + ": the header " + idempotencyHeader + " has another one", Hint: "send one of them"}
	}
	v, err := r.key.parse(key)
	if err == nil {
		m.Set(r.key.desc, v)
	}
	return err
}

// newRequest returns an empty request.
func (r *route) newRequest() proto.Message { return r.request.New().Interface() }
