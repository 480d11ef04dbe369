package cli

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	clusterpb "github.com/keystead/keystead/proto/keystead/cluster/v1"
)

// statusServer answers GetStatus with its name.
type statusServer struct {
	clusterpb.UnimplementedClusterServiceServer
	id string
}

func (s statusServer) GetStatus(context.Context, *clusterpb.GetStatusRequest) (*clusterpb.GetStatusResponse, error) {
	return &clusterpb.GetStatusResponse{Id: s.id}, nil
}

// serveStatus serves at an address and returns it, and what ends it.
func serveStatus(t *testing.T, addr, id string) (string, func()) {
	t.Helper()
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	clusterpb.RegisterClusterServiceServer(s, statusServer{id: id})
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	return l.Addr().String(), s.Stop
}

// answers returns the id that the node says which is asked.
func answers(t *testing.T, r *remote) string {
	t.Helper()
	var id string
	err := r.call(t.Context(), func(ctx context.Context) error {
		st, err := clusterpb.NewClusterServiceClient(r.nodes).GetStatus(ctx, &clusterpb.GetStatusRequest{})
		id = st.GetId()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func dialed(t *testing.T, addr string) *remote {
	t.Helper()
	r := &remote{addr: addr, timeout: 5 * time.Second}
	if _, err := r.dial(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.nodes.Close() })
	return r
}

// silence is an address that takes connections and says nothing.
func silence(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l.Addr().String()
}

// A command goes on with the next address when the node that it asked is gone, and an
// address that says nothing does not use up its time.
func TestSeveralAddresses(t *testing.T) {
	a, stop := serveStatus(t, "127.0.0.1:0", "a")
	b, _ := serveStatus(t, "127.0.0.1:0", "b")
	r := dialed(t, "127.0.0.1:1, "+silence(t)+","+a+","+b)
	if got := answers(t, r); got != "a" || r.at() != a {
		t.Errorf("%q at %s answers first, want a at %s", got, r.at(), a)
	}
	stop()
	if got := answers(t, r); got != "b" || r.at() != b {
		t.Errorf("with a gone %q at %s answers, want b at %s", got, r.at(), b)
	}
}

// Every address of a name is tried, and the name is looked up again when none answers.
func TestNameOfSeveral(t *testing.T) {
	a, stop := serveStatus(t, "127.0.0.1:0", "a")
	_, port, _ := net.SplitHostPort(a)
	r := dialed(t, "nodes.test:"+port)
	hosts := []string{"127.0.0.2", "127.0.0.1"}
	r.nodes.lookup = func(_ context.Context, host string) ([]string, error) {
		if host != "nodes.test" {
			return nil, errors.New("no such host")
		}
		return hosts, nil
	}
	if got := answers(t, r); got != "a" {
		t.Errorf("%q answers, want a", got)
	}
	stop()
	serveStatus(t, "127.0.0.3:"+port, "b")
	hosts = []string{"127.0.0.2", "127.0.0.3"}
	if got := answers(t, r); got != "b" {
		t.Errorf("%q answers after the name has other addresses, want b", got)
	}
}

// When nobody answers, every address is named, with what is wrong there.
func TestNoAddressAnswers(t *testing.T) {
	silent := silence(t)
	for list, want := range map[string][]string{
		"127.0.0.1:1,127.0.0.1:2":       {"cannot reach a node: ", "127.0.0.1:1: dial tcp", "; 127.0.0.1:2: dial tcp", "connection refused"},
		"127.0.0.1:1,missing.invalid:1": {"127.0.0.1:1: dial tcp", "missing.invalid:1: dial tcp: lookup"},
		"127.0.0.1:1," + silent:         {"127.0.0.1:1: ", silent + ": "},
	} {
		r := dialed(t, list)
		r.timeout = time.Second
		err := r.call(t.Context(), func(ctx context.Context) error {
			_, err := clusterpb.NewClusterServiceClient(r.nodes).GetStatus(ctx, &clusterpb.GetStatusRequest{})
			return err
		})
		var h hinted
		if !errors.As(err, &h) || !strings.Contains(h.hint, "--addr or KEYSTEAD_ADDR") {
			t.Errorf("%s: %v", list, err)
			continue
		}
		for _, part := range want {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %q does not say %q", list, err, part)
			}
		}
	}
}

func TestAddressLists(t *testing.T) {
	for list, want := range map[string]int{"a:1": 1, "a:1,b:2": 2, " a:1 , b:2,a:1": 2, "[::1]:7400,n1.example:7400": 2} {
		if addrs, err := splitAddrs(list); err != nil || len(addrs) != want {
			t.Errorf("%q: %q, %v", list, addrs, err)
		}
	}
	for _, list := range []string{"", ",", "a:1,", "a:1,b", "a:1,b:0", "a:1,b:70000", strings.Repeat("a:1,", 3) + "a"} {
		if addrs, err := splitAddrs(list); !isUsage(err) {
			t.Errorf("%q: %q, %v", list, addrs, err)
		}
	}
	var many []string
	for i := range maxAddrs + 1 {
		many = append(many, net.JoinHostPort("127.0.0.1", string(rune('1'+i/10))+string(rune('0'+i%10))))
	}
	if _, err := splitAddrs(strings.Join(many, ",")); !isUsage(err) {
		t.Errorf("%d addresses: %v", len(many), err)
	}
}
