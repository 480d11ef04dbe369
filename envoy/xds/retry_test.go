package xds

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
)

// retry repeats calls that are UNAVAILABLE, for as long as their deadline allows.
func retry(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn,
	invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	const first, longest = 50 * time.Millisecond, time.Second
	for wait := first; ; wait = min(2*wait, longest) {
		err := invoke(ctx, method, req, reply, cc, opts...)
		if status.Code(err) != codes.Unavailable {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(wait/2 + rand.N(wait/2)):
		}
	}
}

const page = "../../docs/xds.md"

// block returns the code on the page that is of a language and has some text in it.
func block(t *testing.T, language, with string) string {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, after := range strings.Split(string(text), "\n```"+language+"\n")[1:] {
		if code, _, _ := strings.Cut(after, "\n```"); strings.Contains(code, with) {
			return code
		}
	}
	t.Fatalf("%s has no %s with %q", page, language, with)
	return ""
}

// The retry on the page is the one that is tested.
func TestDocumentedRetry(t *testing.T) {
	source, err := os.ReadFile("retry_test.go")
	if err != nil {
		t.Fatal(err)
	}
	if code := block(t, "go", "func retry("); !strings.Contains(string(source), code) {
		t.Errorf("%s has another retry:\n%s", page, code)
	}
}

// Clients that do not say a locality, if an empty one, take nothing in grpc-js.
func TestDocumentedBootstrap(t *testing.T) {
	var b struct {
		Node struct{ Locality *struct{} }
	}
	if err := json.Unmarshal([]byte(block(t, "json", "xds_servers")), &b); err != nil || b.Node.Locality == nil {
		t.Errorf("the bootstrap has no locality: %v", err)
	}
}

// limits is a node whose keys have no owner for the time of a failover.
type limits struct {
	limitpb.UnimplementedLimitServiceServer
	over time.Time
}

func (l limits) Check(context.Context, *limitpb.CheckRequest) (*limitpb.CheckResponse, error) {
	if time.Now().Before(l.over) {
		return nil, status.Error(codes.Unavailable, "the owner is being replaced")
	}
	return &limitpb.CheckResponse{Allowed: true}, nil
}

// Both ways on the page outlast a failover of 3 s.
func TestRetriesOutlastFailover(t *testing.T) {
	for name, option := range map[string]grpc.DialOption{
		"interceptor":    grpc.WithUnaryInterceptor(retry),
		"service config": grpc.WithDefaultServiceConfig(block(t, "json", "retryPolicy")),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := bufconn.Listen(1 << 16)
				g := grpc.NewServer()
				limitpb.RegisterLimitServiceServer(g, limits{over: time.Now().Add(3 * time.Second)})
				go func() { _ = g.Serve(l) }()
				defer g.Stop()
				conn, err := grpc.NewClient("passthrough:///node", option, grpc.WithTransportCredentials(insecure.NewCredentials()),
					grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
				defer cancel()
				if a, err := limitpb.NewLimitServiceClient(conn).Check(ctx, &limitpb.CheckRequest{Key: "k"}); err != nil || !a.Allowed {
					t.Errorf("%v %v", a, err)
				}
			})
		})
	}
}
