package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/keystead/keystead/internal/cli/latency"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// echoes starts the two echoes; the tuned one stands in for the node as well,
// which would be measured by the same calls.
func echoes(t *testing.T) []Target {
	t.Helper()
	var targets []Target
	for _, name := range []string{Keystead, Echo, TunedEcho} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- ServeEcho(l, name != Echo) }()
		t.Cleanup(func() {
			_ = l.Close()
			<-done
		})
		targets = append(targets, Target{Name: name, Addr: l.Addr().String()})
	}
	return targets
}

func small(targets []Target) Config {
	return Config{
		Targets: targets, Workloads: Workloads, Concurrency: []int{3},
		Duration: 20 * time.Millisecond, Rounds: 2, Batch: 5, Keys: 10, Conns: 2,
	}
}

func TestRunMeasuresEveryTargetUnderEveryWorkload(t *testing.T) {
	cfg := small(echoes(t))
	last := 0
	cfg.Progress = func(done, total int, _ string) {
		if done < last || total != 3*len(Workloads)*2 {
			t.Errorf("progress %d of %d after %d", done, total, last)
		}
		last = done
	}
	results, err := Run(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if len(results) != 3*len(Workloads) || last != 3*len(Workloads)*2 {
		t.Fatalf("%d results, %d measurements", len(results), last)
	}
	for i, r := range results {
		if r.Workload != Workloads[i/3] || r.Target != cfg.Targets[i%3].Name || r.Concurrency != 3 {
			t.Errorf("result %d is of %s on %s", i, r.Workload, r.Target)
		}
		if r.ItemsPerSec <= 0 || r.P50 <= 0 || r.P99 < r.P50 || r.P999 < r.P99 || r.Errors != 0 {
			t.Errorf("%+v", r)
		}
		if hasRatio := r.PerEcho > 0 && r.PerTunedEcho > 0; hasRatio != (r.Target == Keystead) {
			t.Errorf("%s has ratios %v and %v", r.Target, r.PerEcho, r.PerTunedEcho)
		}
	}
}

func TestRunFailsWhenNobodyAnswers(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	_ = l.Close()
	cfg := small([]Target{{Name: Keystead, Addr: addr}})
	if _, err := Run(context.Background(), cfg); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("%v", err)
	}
}

func TestConfigIsChecked(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"targets":     func(c *Config) { c.Targets = nil },
		"workload":    func(c *Config) { c.Workloads = []string{"nonsense"} },
		"concurrency": func(c *Config) { c.Concurrency = []int{0} },
		"duration":    func(c *Config) { c.Duration = 1 },
		"long":        func(c *Config) { c.Duration = maxRun },
		"rounds":      func(c *Config) { c.Rounds = 0 },
		"batch":       func(c *Config) { c.Batch = 10_001 },
		"keys":        func(c *Config) { c.Keys = 0 },
		"conns":       func(c *Config) { c.Conns = 0 },
	} {
		cfg := small([]Target{{Name: Keystead, Addr: "127.0.0.1:1"}})
		change(&cfg)
		if _, err := Run(context.Background(), cfg); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// TestWaysAreCompared: with the way that each is compared with, and with the same
// without waiting for the standby, if that was measured.
func TestWaysAreCompared(t *testing.T) {
	rounds := map[string][]measurement{}
	for way, rates := range map[string][3]float64{
		OneNode: {100, 100, 100}, ManyNodes: {90, 200, 30}, ManyAckOwner: {100, 100, 60}, Gathered: {180, 100, 60},
		Across: {40, 50, 60},
	} {
		for _, rate := range rates {
			m := measurement{hist: new(latency.Histogram), rate: rate}
			m.hist.Record(time.Duration(float64(time.Second) / rate))
			rounds[way] = append(rounds[way], m)
		}
	}
	for way, want := range map[string]ClusterResult{
		OneNode:   {},
		ManyNodes: {Against: OneNode, Ratio: 0.9, P50Ratio: 1.1, PerAckOwner: 0.9},
		Gathered:  {Against: ManyNodes, Ratio: 2, P50Ratio: 0.5},
		Forwarded: {Against: Direct}, // which was not measured
		Across:    {Against: Forwarded},
	} {
		got := summarizeWay(way, 1, rounds)
		if got.Against != want.Against || math.Abs(got.Ratio-want.Ratio) > 1e-9 || math.Abs(got.PerAckOwner-want.PerAckOwner) > 1e-9 ||
			math.Abs(got.P50Ratio-want.P50Ratio) > 0.05 { // a histogram rounds
			t.Errorf("%s: %+v, want %+v", way, got, want)
		}
	}
}

// What a cluster is measured by is checked before anything is started, and an admission needs a key of each node.
func TestWorkloadsOfAClusterAreChecked(t *testing.T) {
	c := Cluster{Config: small(nil)}
	c.Workloads = []string{Across, "counter"}
	if err := c.Validate(); err == nil || !strings.Contains(err.Error(), `"counter": of a cluster, choose from check, across, across-hold`) {
		t.Error(err)
	}
	c.Workloads = []string{AcrossHold}
	if err := c.Validate(); err != nil || c.Measures("check") || !c.Measures(AcrossHold) {
		t.Error(err)
	}
	c.Nodes = []string{"a", "b"}
	if _, err := c.acrossWays(map[string]int{"k": 1}, []string{"k"}, nil); err == nil || !strings.Contains(err.Error(), "choose more") {
		t.Error(err)
	}
	c.Workloads = nil
	if !c.Measures("check") || c.Measures(Across) {
		t.Error("a cluster is measured by checks if nothing is named")
	}
}

func TestRatioIsTheMedianOfTheRounds(t *testing.T) {
	rates := func(v ...float64) (ms []measurement) {
		for _, r := range v {
			ms = append(ms, measurement{rate: r})
		}
		return ms
	}
	rounds := map[string][]measurement{
		Keystead: rates(90, 200, 30),
		Echo:     rates(100, 100, 100),
	}
	if got := ratio(rounds, Keystead, Echo); math.Abs(got-0.9) > 1e-9 {
		t.Errorf("ratio %v, want 0.9", got)
	}
	if got := ratio(rounds, Keystead, TunedEcho); got != 0 {
		t.Errorf("ratio to nothing %v", got)
	}
}

// Nodes that write to a disk are measured against the one that does not, by limits that do not refill meanwhile.
func TestDurabilitiesAreMeasuredBesideNone(t *testing.T) {
	targets := echoes(t)
	cfg := small([]Target{targets[0], {Name: Interval, Addr: targets[2].Addr}, {Name: Always, Addr: targets[1].Addr}})
	cfg.Workloads, cfg.SlowRefill = []string{"check", "counter"}, true
	results, err := Run(context.Background(), cfg)
	if err != nil || len(results) != 6 {
		t.Fatal(len(results), err)
	}
	for _, r := range results {
		if (r.PerNone > 0) != (r.Target != Keystead) || r.PerEcho != 0 || r.Errors != 0 {
			t.Errorf("%+v", r)
		}
	}
	for _, slow := range []bool{false, true} {
		w := newWorker(nil, "", []string{"k"}, &Config{SlowRefill: slow}, 0)
		if each := time.Duration(w.check().PeriodNs / int64(w.check().Limit)); (each > time.Second) != slow {
			t.Errorf("slow %v: a unit is back after %s", slow, each)
		}
	}
}

// Over HTTP, only workloads that have that form are measured, and against gRPC.
func TestHTTPIsMeasuredBesideGRPC(t *testing.T) {
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || r.URL.Path != "/v1/limit/check" || !json.Valid(body) {
			w.WriteHeader(http.StatusBadRequest)
		}
	}))
	defer web.Close()
	cfg := small(append(echoes(t), Target{Name: HTTP, Addr: web.Listener.Addr().String()}))
	cfg.Workloads = []string{"check", "id"}
	results, err := Run(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if len(results) != 4+3 {
		t.Fatalf("%d results", len(results))
	}
	for _, r := range results {
		if (r.PerGRPC > 0) != (r.Target == HTTP) || r.Errors != 0 {
			t.Errorf("%+v", r)
		}
	}
}

func TestAnswersOverHTTP(t *testing.T) {
	for text, ok := range map[string]bool{
		"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}":                true,
		"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{}":                false,
		"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n": false,
		"HTTP/1.1 200 OK\r\n\r\n{}":                                     false,
		"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n{}":                false,
	} {
		if err := readAnswer(bufio.NewReader(strings.NewReader(text))); (err == nil) != ok {
			t.Errorf("%q: %v", text, err)
		}
	}
}
