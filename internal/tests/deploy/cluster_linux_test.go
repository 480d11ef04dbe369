package deploy

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	rlcommon "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// patience is how long a test waits for what has to come: a cluster of founders takes
// founderWait, and what a slow machine adds.
const patience = 60 * time.Second

// process is a node of a deployment that runs, at an address of its own: the whole of
// 127.0.0.0/8 is this machine's, so each has the very ports that its file says.
type process struct {
	name, addr string
	cmd        *exec.Cmd
	done       chan struct{} // closed when it has ended
	mu         sync.Mutex
	log        bytes.Buffer // guarded by mu
}

// Write implements io.Writer: it takes what the process says.
func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.Write(b)
}

func (p *process) said() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.String()
}

// network gives the nodes of a deployment addresses of loopback, 127.run.test.host.
type network struct{ test, host int64 }

// Which addresses these tests have, and how many networks of them.
var (
	thisRun  = 1 + rand.IntN(250)
	networks atomic.Int64
)

func newNetwork() *network { return &network{test: networks.Add(1)} }

// addr returns an address that nobody has had before.
func (n *network) addr() string {
	n.host++
	return fmt.Sprintf("127.%d.%d.%d", thisRun, n.test, n.host)
}

// run starts a node's process; replace are the names and addresses of its settings that
// stand for others here.
func run(t *testing.T, name, addr string, n *Node, replace ...string) *process {
	t.Helper()
	p := &process{name: name, addr: addr, done: make(chan struct{})}
	here := strings.NewReplacer(append([]string{"0.0.0.0", addr, n.Volume, filepath.Join(t.TempDir(), "v")}, replace...)...)
	env := map[string]string{}
	for k, v := range n.Env {
		env[k] = here.Replace(v)
	}
	// Each machine has a loopback of its own; here it is the node's address.
	env["KEYSTEAD_ADMIN_ADDR"] = addr + ":7480"
	var args []string
	for _, a := range n.Args {
		args = append(args, here.Replace(a))
	}
	p.cmd = exec.Command(binary, args...)
	p.cmd.Env, p.cmd.Stdout, p.cmd.Stderr = environ(env), p, p
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.done)
		_ = p.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // it has ended, mostly
		<-p.done
		if t.Failed() {
			t.Logf("%s said:\n%s", name, p.said())
		}
	})
	return p
}

// get fetches a page: of the metrics address, and the status where operators come.
func (p *process) get(path string) (int, string) {
	port := ":7481"
	if path == "/status" {
		port = ":7480"
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.addr+port+path, nil)
	if err != nil {
		return 0, err.Error()
	}
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := c.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b)
}

// status is what a node's page of that name says of its cluster.
type status struct {
	Incarnation     string
	Ready           bool
	Members         []string
	Voters          []string
	RowsToMove      int `json:"rows_to_move"`
	RowsUnprotected int `json:"rows_unprotected"`
}

func (p *process) status() status {
	var s struct{ Cluster status }
	if _, text := p.get("/status"); json.Unmarshal([]byte(text), &s) != nil {
		return status{}
	}
	return s.Cluster
}

func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	deadline, tick := time.After(patience), time.NewTicker(20*time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("in %s, not: %s", patience, what)
		}
	}
}

// ready waits until these are the members of one cluster, all of them ready, and three
// vote.
func ready(t *testing.T, ps ...*process) {
	t.Helper()
	var names []string
	for _, p := range ps {
		names = append(names, p.name)
	}
	eventually(t, fmt.Sprint(names, " are one cluster"), func() bool {
		return !slices.ContainsFunc(ps, func(p *process) bool {
			s := p.status()
			return !s.Ready || !slices.Equal(s.Members, names) || len(s.Voters) != 3 || s.RowsToMove > 0 || s.RowsUnprotected > 0
		})
	})
}

// stops ends a process with SIGTERM, and wants 0 from it within the time that its file
// gives it.
func (p *process) stops(t *testing.T, within time.Duration) {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case <-p.done:
		if code := p.cmd.ProcessState.ExitCode(); code != 0 {
			t.Errorf("%s ended with %d", p.name, code)
		}
	case <-time.After(within):
		t.Errorf("%s has not ended within %s of SIGTERM", p.name, within)
	}
}

// keystead runs a command of the program to its end, and wants 0.
func keystead(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.Command(binary, args...)
	cmd.Env = environ(nil)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("keystead %q: %v\n%s", args, err, out)
	}
	return string(out)
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(top, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func theImage(t *testing.T) *Image {
	t.Helper()
	m, err := ReadImage(readFile(t, dockerfile))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestUnit: the command of the unit runs with the file of variables, and SIGTERM ends
// it with 0.
func TestUnit(t *testing.T) {
	t.Parallel()
	program, n, err := UnitNode(readFile(t, unitFile), readFile(t, unitEnvFile))
	if err != nil {
		t.Fatal(err)
	}
	if program != theImage(t).Entrypoint[0] {
		t.Errorf("it runs %s", program)
	}
	w := newNetwork()
	var nodes []*process
	a, b, c := w.addr(), w.addr(), w.addr()
	for i, addr := range []string{a, b, c} {
		own := maps.Clone(n.Env)
		for k, v := range own {
			if strings.HasSuffix(k, "_ADDR") { // its own addresses differ on each machine
				own[k] = strings.NewReplacer("10.0.0.1", addr, "127.0.0.1", addr).Replace(v)
			}
		}
		own["KEYSTEAD_ID"] = "n" + strconv.Itoa(i+1)
		mine := *n
		mine.Env = own
		nodes = append(nodes, run(t, own["KEYSTEAD_ID"], addr, &mine, "10.0.0.1", a, "10.0.0.2", b, "10.0.0.3", c))
	}
	ready(t, nodes...)
	for _, p := range nodes {
		p.stops(t, n.Patience)
	}
}

// TestCompose runs the nodes of compose with the arguments and variables that it gives
// them. They become one cluster; each metric of deploy/ is one that they show; and
// SIGTERM drains one and ends all with 0.
func TestCompose(t *testing.T) {
	t.Parallel()
	nodes, err := Compose(readFile(t, composeFile), theImage(t))
	if err != nil {
		t.Fatal(err)
	}
	w := newNetwork()
	addrs, replace := map[string]string{}, []string{}
	names := slices.Sorted(maps.Keys(nodes))
	for _, name := range names {
		addrs[name] = w.addr()
		replace = append(replace, name+":", addrs[name]+":")
	}
	var ps []*process
	for _, name := range names {
		withRLS := *nodes[name] // whose metrics are watched, too
		withRLS.Env = maps.Clone(withRLS.Env)
		withRLS.Env["KEYSTEAD_RLS_CONFIG"] = rlsFile(t)
		ps = append(ps, run(t, name, addrs[name], &withRLS, replace...))
	}
	ready(t, ps...)
	askRLS(t, ps[0].addr+":7400")
	for _, p := range ps {
		// What the image asks for its health, at the node's own address.
		keystead(t, "status", "--timeout", "2s", "--addr", p.addr+":7400")
	}
	keystead(t, "status", "--wait", patience.String(), "--members", "3", "--addr", ps[0].addr+":7400")
	keystead(t, "counter", "add", "kept", "41", "--addr", ps[0].addr+":7400")
	label := regexp.MustCompile(`([a-zA-Z_]+)="`)
	shown, labels := map[string]bool{}, map[string]map[string]bool{}
	for _, p := range append([]*process{alone(t, nodes["n1"], w.addr())}, ps...) {
		_, text := p.get("/metrics")
		for _, m := range regexp.MustCompile(`(?m)^([a-z_]+)(?:\{(.*)\})? `).FindAllStringSubmatch(text, -1) {
			shown[m[1]] = true
			if labels[m[1]] == nil {
				labels[m[1]] = map[string]bool{}
			}
			for _, l := range label.FindAllStringSubmatch(m[2], -1) {
				labels[m[1]][l[1]] = true
			}
		}
	}
	for _, f := range Check(os.DirFS(top), Program{Resolve: resolve, Metrics: shown, Labels: labels}) {
		t.Error(f)
	}
	ps[0].stops(t, nodes["n1"].Patience)
	if !strings.Contains(ps[0].said(), "drained: this node owns nothing") {
		t.Error("n1 was not drained")
	}
	if got := keystead(t, "counter", "get", "kept", "--addr", ps[1].addr+":7400"); strings.TrimSpace(got) != "41" {
		t.Errorf("after n1 has stopped the counter is %q", got)
	}
	for _, p := range ps[1:] {
		p.stops(t, nodes[p.name].Patience)
	}
}

// alone runs a node as one of a deployment that is no part of a cluster: it shows what one that
// keeps a store on disk shows.
func alone(t *testing.T, n *Node, addr string) *process {
	t.Helper()
	lone := *n
	lone.Env = maps.Clone(n.Env)
	maps.DeleteFunc(lone.Env, func(k, _ string) bool {
		return k == "KEYSTEAD_CLUSTER_ID" || k == "KEYSTEAD_FOUNDERS" || k == "KEYSTEAD_JOIN"
	})
	p := run(t, "alone", addr, &lone)
	keystead(t, "status", "--wait", patience.String(), "--addr", addr+":7400")
	return p
}

// rlsFile is a configuration of the rate limit service with one limit.
func rlsFile(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "shop.yaml")
	text := "domain: shop\ndescriptors:\n- key: tenant\n  rate_limit: {unit: minute, requests_per_unit: 5}\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// askRLS asks a node's rate limit service once, so that it shows what it counts.
func askRLS(t *testing.T, addr string) {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err = rlspb.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, &rlspb.RateLimitRequest{Domain: "shop", Descriptors: []*rlcommon.RateLimitDescriptor{
		{Entries: []*rlcommon.RateLimitDescriptor_Entry{{Key: "tenant", Value: "a"}}},
	}}, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
}
