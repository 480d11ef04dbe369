package httpapi

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/keystead/keystead/internal/rpc"
	"github.com/keystead/keystead/owner"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// sole is the rule of a node that owns all keys.
type sole struct{}

func (sole) Admit(uint64, int64) (owner.Permit, error) { return owner.Permit{Epoch: 7}, nil }
func (sole) Confirm(owner.Permit, int64) error         { return nil }
func (sole) Terms() owner.Terms                        { return owner.Terms{} }
func (sole) Exhausted(epoch uint64) (uint64, error)    { return epoch + 1, nil }

// stopped is a clock that a test moves.
type stopped struct{ now atomic.Int64 }

func (c *stopped) Now() int64 { return c.now.Load() }

// house is a node's API with its two doors, over real sockets.
type house struct {
	t      testing.TB
	store  *owner.Store
	api    *rpc.Server
	web    *Server
	reg    *prometheus.Registry
	clock  *stopped
	client *http.Client
}

type houseOption func(*rpc.Config, *Config)

func newHouse(t testing.TB, options ...houseOption) *house {
	t.Helper()
	h := &house{t: t, reg: prometheus.NewRegistry(), clock: &stopped{}}
	h.clock.now.Store(int64(time.Hour))
	store, err := owner.New(owner.Config{Rule: sole{}}, h.clock.Now())
	if err != nil {
		t.Fatal(err)
	}
	h.store = store
	conf := rpc.Config{Store: store, Clock: h.clock, Node: "n1", Metrics: rpc.NewMetrics(h.reg)}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	web := Config{Listener: l, Metrics: h.reg}
	for _, o := range options {
		o(&conf, &web)
	}
	h.api = rpc.NewServer(conf)
	web.API = h.api
	if h.web, err = New(web); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- h.web.Serve() }()
	h.client = &http.Client{Transport: &http.Transport{DisableCompression: true}}
	t.Cleanup(func() {
		h.client.CloseIdleConnections()
		select {
		case <-h.web.stopped: // by the test
		default:
			h.web.Stop(func() { h.api.Stop(time.Second) })
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return h
}

// answer is what came back.
type answer struct {
	status int
	header http.Header
	body   string
}

// call sends a request; headers are "Name: value".
func (h *house) call(method, path, body string, headers ...string) answer {
	h.t.Helper()
	a, err := h.try(context.Background(), method, path, body, headers...)
	if err != nil {
		h.t.Fatal(err)
	}
	return a
}

func (h *house) try(ctx context.Context, method, path, body string, headers ...string) (answer, error) {
	var in io.Reader
	if body != "" {
		in = strings.NewReader(body)
	}
	r, err := http.NewRequestWithContext(ctx, method, "http://"+h.web.Addr()+path, in)
	if err != nil {
		return answer{}, err
	}
	for _, line := range headers {
		name, value, _ := strings.Cut(line, ": ")
		r.Header.Set(name, value)
	}
	resp, err := h.client.Do(r)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, string(b)}, err
}

// count returns the sum of a metric over its series with these labels, "name=value".
func (h *house) count(name string, labels ...string) (sum float64) {
	h.t.Helper()
	families, err := h.reg.Gather()
	if err != nil {
		h.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			var have []string
			for _, l := range m.GetLabel() {
				have = append(have, l.GetName()+"="+l.GetValue())
			}
			if all := strings.Join(have, " ") + " "; containsAll(all, labels) {
				sum += m.GetCounter().GetValue()
			}
		}
	}
	return sum
}

func containsAll(text string, parts []string) bool {
	for _, p := range parts {
		if !strings.Contains(text, p+" ") {
			return false
		}
	}
	return true
}

// String shows an answer as transcripts have it.
func (a answer) String() string {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%d", a.status)
	for _, name := range []string{"Content-Type", "Allow", "Retry-After"} {
		if v := a.header.Get(name); v != "" && v != jsonType {
			fmt.Fprintf(&b, " %s: %s", name, v)
		}
	}
	return b.String() + "\n" + a.body + "\n"
}
