package bootstrap

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ratelimit/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3" // packed in what is written, as the next ones
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/retry/host/previous_hosts/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/known/anypb"
)

// parse reads a configuration as strictly as Envoy does: one YAML document, no key
// twice, no unknown field, and what the API's own rules want of every message in it,
// also of those that are packed.
func parse(text []byte) (*bootstrapv3.Bootstrap, error) {
	d := yaml.NewDecoder(bytes.NewReader(text))
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, err
	}
	if err := d.Decode(new(any)); err != io.EOF {
		return nil, fmt.Errorf("more than one document: %w", err)
	}
	asJSON, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	b := &bootstrapv3.Bootstrap{}
	if err := protojson.Unmarshal(asJSON, b); err != nil {
		return nil, err
	}
	return b, validate(b)
}

// validate checks a message and those packed in it.
func validate(m proto.Message) error {
	v, ok := m.(interface {
		Validate() error
		ValidateAll() error
	})
	if !ok {
		return fmt.Errorf("%T has no rules of its own", m)
	}
	if err := v.Validate(); err != nil {
		return err
	}
	if err := v.ValidateAll(); err != nil {
		return err
	}
	return unpack(m.ProtoReflect(), func(packed proto.Message) error { return validate(packed) })
}

// unpack calls f with the messages that are packed in m. A field that Envoy will
// not know one day is an error.
func unpack(m protoreflect.Message, f func(proto.Message) error) (err error) {
	if packed, ok := m.Interface().(*anypb.Any); ok {
		inner, err := packed.UnmarshalNew()
		if err != nil {
			return err
		}
		return f(inner)
	}
	visit := func(v protoreflect.Value) bool {
		err = unpack(v.Message(), f)
		return err == nil
	}
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if o, ok := fd.Options().(*descriptorpb.FieldOptions); ok && o.GetDeprecated() {
			err = fmt.Errorf("%s is deprecated", fd.FullName())
			return false
		}
		switch {
		case fd.IsMap() && fd.MapValue().Message() != nil:
			v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool { return visit(v) })
		case fd.IsList() && fd.Message() != nil:
			for i := range v.List().Len() {
				if !visit(v.List().Get(i)) {
					break
				}
			}
		case !fd.IsMap() && fd.Message() != nil:
			visit(v)
		}
		return err == nil
	})
	return err
}

// written parses a configuration that has to be right.
func written(t *testing.T, text []byte, err error) *bootstrapv3.Bootstrap {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	b, err := parse(text)
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return b
}

// clusterNamed is a static cluster, nil if there is none.
func clusterNamed(b *bootstrapv3.Bootstrap, name string) *clusterv3.Cluster {
	for _, c := range b.GetStaticResources().GetClusters() {
		if c.Name == name {
			return c
		}
	}
	return nil
}

// as unpacks a message of a type that is known.
func as[M proto.Message](t *testing.T, packed *anypb.Any, m M) M {
	t.Helper()
	if err := packed.UnmarshalTo(m); err != nil {
		t.Fatal(err)
	}
	return m
}

// connections returns the HTTP connection manager of the one listener.
func connections(t *testing.T, b *bootstrapv3.Bootstrap) *hcmv3.HttpConnectionManager {
	t.Helper()
	ls := b.GetStaticResources().GetListeners()
	if len(ls) != 1 || len(ls[0].FilterChains) != 1 || len(ls[0].FilterChains[0].Filters) != 1 {
		t.Fatalf("not one listener with one filter: %v", ls)
	}
	return as(t, ls[0].FilterChains[0].Filters[0].GetTypedConfig(), &hcmv3.HttpConnectionManager{})
}

// routes returns those of the one virtual host.
func routes(t *testing.T, b *bootstrapv3.Bootstrap) []*routev3.Route {
	t.Helper()
	hosts := connections(t, b).GetRouteConfig().GetVirtualHosts()
	if len(hosts) != 1 {
		t.Fatalf("%d virtual hosts", len(hosts))
	}
	return hosts[0].Routes
}

// limitFilter returns the rate limit filter, nil if there is none. The last filter has to
// be the router.
func limitFilter(t *testing.T, b *bootstrapv3.Bootstrap) *ratelimitv3.RateLimit {
	t.Helper()
	fs := connections(t, b).HttpFilters
	if n := len(fs); n == 0 || fs[n-1].Name != "envoy.filters.http.router" {
		t.Fatalf("filters %v", fs)
	}
	if fs[0].Name != "envoy.filters.http.ratelimit" {
		return nil
	}
	return as(t, fs[0].GetTypedConfig(), &ratelimitv3.RateLimit{})
}

// speaksHTTP2 reports whether connections to a cluster's hosts are HTTP/2.
func speaksHTTP2(t *testing.T, c *clusterv3.Cluster) bool {
	t.Helper()
	o := as(t, c.TypedExtensionProtocolOptions["envoy.extensions.upstreams.http.v3.HttpProtocolOptions"], &httpv3.HttpProtocolOptions{})
	return o.GetExplicitHttpConfig().GetHttp2ProtocolOptions() != nil
}
