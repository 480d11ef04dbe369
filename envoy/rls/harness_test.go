package rls_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	commonpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typepb "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/keystead/keystead/envoy/rls"
	"github.com/keystead/keystead/internal/node"
)

func TestMain(m *testing.M) {
	// A probe of memberlist that is under way when it stops ends by itself, a second later.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/hashicorp/memberlist.(*Memberlist).probeNode"))
}

// patience is how long a test waits for what has to come.
const patience = 20 * time.Second

func write(t testing.TB, path, text string) {
	t.Helper()
	// As editors and Kubernetes do: no reader sees a part of it.
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// service is a node with a rate limit service, and a client of it.
type service struct {
	rlspb.RateLimitServiceClient
	node *node.Node
	file string
}

// serve starts a node on free ports whose configuration is text.
func serve(t testing.TB, text string, change func(*node.Config)) *service {
	t.Helper()
	s := &service{file: filepath.Join(t.TempDir(), "limits.yaml")}
	write(t, s.file, text)
	cfg := node.Config{ID: "n1", GRPCAddr: "127.0.0.1:0", AdminAddr: "127.0.0.1:0", RLS: rls.Config{Path: s.file, Poll: 5 * time.Millisecond}}
	if change != nil {
		change(&cfg)
	}
	n, err := node.Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Stop)
	s.node, s.RateLimitServiceClient = n, rlspb.NewRateLimitServiceClient(dial(t, n))
	return s
}

func dial(t testing.TB, n *node.Node) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+n.GRPCAddr(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// ask asks for descriptors written as key=value,key=value, with hits of their own
// after a blank and + or -, and a limit of their own after a blank and @, like
// @10/MINUTE.
func (s *service) ask(t testing.TB, domain string, hits uint32, descriptors ...string) (*rlspb.RateLimitResponse, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	return s.ShouldRateLimit(ctx, request(t, domain, hits, descriptors...))
}

func request(t testing.TB, domain string, hits uint32, descriptors ...string) *rlspb.RateLimitRequest {
	t.Helper()
	req := &rlspb.RateLimitRequest{Domain: domain, HitsAddend: hits}
	for _, text := range descriptors {
		d := &commonpb.RateLimitDescriptor{}
		entries, options, _ := strings.Cut(text, " ")
		for _, e := range strings.Split(entries, ",") {
			key, value, _ := strings.Cut(e, "=")
			d.Entries = append(d.Entries, &commonpb.RateLimitDescriptor_Entry{Key: key, Value: value})
		}
		for _, o := range strings.Fields(options) {
			if rate, ok := strings.CutPrefix(o, "@"); ok {
				number, unit, _ := strings.Cut(rate, "/")
				d.Limit = &commonpb.RateLimitDescriptor_RateLimitOverride{
					RequestsPerUnit: uint32(whole(t, number)), Unit: typepb.RateLimitUnit(typepb.RateLimitUnit_value[unit]),
				}
				continue
			}
			d.IsNegativeHits = o[0] == '-'
			d.HitsAddend = wrapperspb.UInt64(whole(t, o[1:]))
		}
		req.Descriptors = append(req.Descriptors, d)
	}
	return req
}

func whole(t testing.TB, text string) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// show is a response as the tables have it: the overall code, and for each
// descriptor its code, what is left, and the limit with its name.
func show(r *rlspb.RateLimitResponse) string {
	word := map[rlspb.RateLimitResponse_Code]string{rlspb.RateLimitResponse_OK: "ok", rlspb.RateLimitResponse_OVER_LIMIT: "over"}
	text := word[r.OverallCode] + ":"
	for i, s := range r.Statuses {
		if i > 0 {
			text += ","
		}
		text += " " + word[s.Code]
		if l := s.CurrentLimit; l != nil {
			text += fmt.Sprintf(" %d of %d/%s", s.LimitRemaining, l.RequestsPerUnit, strings.ToLower(l.Unit.String()))
			if l.Name != "" {
				text += " " + l.Name
			}
		} else if s.LimitRemaining != 0 {
			text += fmt.Sprintf(" %d", s.LimitRemaining)
		}
	}
	return text
}

// metrics returns what the node's admin port says at /metrics.
func (s *service) metrics(t testing.TB) string {
	t.Helper()
	return s.get(t, "/metrics")
}

func (s *service) get(t testing.TB, path string) string {
	t.Helper()
	resp, err := http.Get("http://" + s.node.AdminAddr() + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	http.DefaultClient.CloseIdleConnections()
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// eventually waits until cond holds.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("in %s, not: %s", patience, what)
		}
	}
}
