package xds

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// wholeWire and deltaWire are the receiving ends of streams, with what arrives.
type wholeWire struct {
	discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer
	req *discoveryv3.DiscoveryRequest
}

func (w wholeWire) Recv() (*discoveryv3.DiscoveryRequest, error) { return w.req, nil }

type deltaWire struct {
	discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer
	req *discoveryv3.DeltaDiscoveryRequest
}

func (w deltaWire) Recv() (*discoveryv3.DeltaDiscoveryRequest, error) { return w.req, nil }

// alone is a session without a client.
func alone(t *testing.T, log *slog.Logger) *session {
	t.Helper()
	s, err := New(Config{Metrics: prometheus.NewRegistry(), Log: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	x, err := s.begin()
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// The library keeps the requests that it is given: they hold what was looked at, and
// nothing else that a client has sent.
func TestRequestsAreOurOwn(t *testing.T) {
	much := strings.Repeat("x", 200_000)
	node := &corev3.Node{Id: much, UserAgentName: "envoy", Cluster: much, Metadata: &structpb.Struct{Fields: map[string]*structpb.Value{"m": structpb.NewStringValue(much)}}}
	why := &statuspb.Status{Message: much}
	unknown := append([]byte{0xfa, 0x7f, 0xc0, 0x9a, 0x0c}, much...) // field 2047, of 200,000 bytes

	x := alone(t, nil)
	whole := &discoveryv3.DiscoveryRequest{Node: node, TypeUrl: resource.ClusterType, ResourceNames: []string{"a", "b"}, VersionInfo: "7-0", ResponseNonce: "3",
		ResourceLocators: []*discoveryv3.ResourceLocator{{Name: much}}}
	whole.ProtoReflect().SetUnknown(unknown)
	got, err := (&wholeStream{wholeWire{req: whole}, x}).Recv()
	kept := &corev3.Node{Id: much[:maxQuoted] + "…", UserAgentName: "envoy"}
	if want := (&discoveryv3.DiscoveryRequest{Node: kept, TypeUrl: resource.ClusterType, ResourceNames: []string{"a", "b"}, VersionInfo: "7-0", ResponseNonce: "3"}); err != nil || !proto.Equal(got, want) {
		t.Errorf("%v, %.2000v", err, got)
	}
	x.sending(resource.ClusterType, "8-0")
	got, err = (&wholeStream{wholeWire{req: &discoveryv3.DiscoveryRequest{TypeUrl: resource.ClusterType, ErrorDetail: why}}, x}).Recv()
	if want := (&discoveryv3.DiscoveryRequest{Node: kept, TypeUrl: resource.ClusterType, VersionInfo: "8-0"}); err != nil || !proto.Equal(got, want) {
		t.Errorf("refused: %v, %.2000v", err, got)
	}

	x = alone(t, nil)
	delta := &discoveryv3.DeltaDiscoveryRequest{Node: node, TypeUrl: resource.ClusterType, ResourceNamesSubscribe: []string{"a"}, ResourceNamesUnsubscribe: []string{"b"},
		InitialResourceVersions: map[string]string{"a": "1"}, ResponseNonce: "3", ErrorDetail: why, ResourceLocatorsSubscribe: []*discoveryv3.ResourceLocator{{Name: much}}}
	delta.ProtoReflect().SetUnknown(unknown)
	gotDelta, err := (&deltaStream{deltaWire{req: delta}, x}).Recv()
	if want := (&discoveryv3.DeltaDiscoveryRequest{Node: kept, TypeUrl: resource.ClusterType, ResourceNamesSubscribe: []string{"a"}, ResourceNamesUnsubscribe: []string{"b"},
		InitialResourceVersions: map[string]string{"a": "1"}, ResponseNonce: "3"}); err != nil || !proto.Equal(gotDelta, want) {
		t.Errorf("delta: %v, %.2000v", err, gotDelta)
	}
}

// What a stream names is bounded in bytes, of all types together, however it is said;
// what it gives up makes room.
func TestHeldIsBounded(t *testing.T) {
	names := func(n, size int, first string) (all []string) {
		for i := range n {
			all = append(all, fmt.Sprintf("%s%0*d", first, size-len(first), i))
		}
		return all
	}
	versions := map[string]string{}
	for _, n := range names(40, 500, "v") {
		versions[n] = n
	}
	type request = discoveryv3.DeltaDiscoveryRequest
	for name, steps := range map[string][]*request{
		"one type after the other": {
			{TypeUrl: "t1", ResourceNamesSubscribe: names(25, 500, "a")}, {TypeUrl: "t2", ResourceNamesSubscribe: names(25, 500, "a")}, {TypeUrl: "t3", ResourceNamesSubscribe: names(25, 500, "a")}},
		"more and more": {
			{TypeUrl: "t1", ResourceNamesSubscribe: names(50, 500, "a")}, {TypeUrl: "t1", ResourceNamesUnsubscribe: names(50, 500, "a")},
			{TypeUrl: "t1", ResourceNamesSubscribe: names(50, 500, "b")}, {TypeUrl: "t1", ResourceNamesSubscribe: names(20, 500, "c")}},
		"versions":       {{TypeUrl: "t1"}, {TypeUrl: "t1", InitialResourceVersions: versions}},
		"many a type":    {{TypeUrl: "t1", ResourceNamesSubscribe: names(256, 3, "")}, {TypeUrl: "t2", ResourceNamesSubscribe: names(256, 3, "")}},
		"a long one":     {{TypeUrl: "t1", ResourceNamesUnsubscribe: names(1, 513, "a")}},
		"a long version": {{TypeUrl: "t1", InitialResourceVersions: map[string]string{"a": strings.Repeat("v", 513)}}},
	} {
		x := alone(t, nil)
		for i, req := range steps {
			_, err := (&deltaStream{deltaWire{req: req}, x}).Recv()
			if last := i == len(steps)-1; (err != nil) != last {
				t.Errorf("%s, request %d: %v", name, i+1, err)
			}
			if err != nil && !errors.Is(x.outcome(nil), err) {
				t.Errorf("%s: the stream ends with %v", name, x.outcome(nil))
			}
		}
	}
}

// However often clients refuse, the log has a line a second, and the metric all.
func TestRefusalsInTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		x := alone(t, slog.New(slog.NewTextHandler(&log, nil)))
		refuse := func(times int) {
			t.Helper()
			for range times {
				if _, err := (&wholeStream{wholeWire{req: &discoveryv3.DiscoveryRequest{TypeUrl: resource.ClusterType, ErrorDetail: &statuspb.Status{Message: "no"}}}, x}).Recv(); err != nil {
					t.Fatal(err)
				}
			}
		}
		for i, st := range []struct {
			times, lines, left int
		}{{1000, 1, 0}, {1, 2, 999}, {1, 3, 0}} {
			refuse(st.times)
			if n := strings.Count(log.String(), "refuses what it was sent"); n != st.lines || !strings.HasSuffix(log.String(), fmt.Sprintf("left_out=%d\n", st.left)) {
				t.Errorf("step %d: %d lines, the last of %q", i+1, n, log.String())
			}
			time.Sleep(logEvery)
		}
		if n := testutil.ToFloat64(x.s.metrics.refused["cluster"]); n != 1002 {
			t.Errorf("%v were counted", n)
		}
	})
}
