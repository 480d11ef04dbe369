package system

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"

	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
)

// served is a keystead that serves.
type served struct {
	*process
	grpc, admin string
	id          string
}

// startNode runs "dev" or "server" on free ports and waits until it serves. Its
// flags may name other ports.
func startNode(t *testing.T, prepare func(*exec.Cmd), command string, args ...string) *served {
	t.Helper()
	args = append([]string{command, "--log-format", "json", "--log-level", "info"}, args...)
	for _, f := range []string{"--grpc-addr", "--admin-addr"} {
		if !slices.Contains(args, f) {
			args = append(args, f, "127.0.0.1:0")
		}
	}
	n := &served{process: start(t, prepare, args...)}
	eventually(t, "it serves", func() bool {
		select {
		case <-n.done:
			t.Fatalf("%q ended: %s", args, n.err())
		default:
		}
		for _, text := range strings.SplitAfter(n.err(), "\n") {
			var line struct{ Msg, ID, GRPC, Admin string }
			if json.Unmarshal([]byte(text), &line) == nil && line.Msg == "serving" {
				n.grpc, n.admin, n.id = line.GRPC, line.Admin, line.ID
				return true
			}
		}
		return false
	})
	return n
}

// stop stops the node, which has to exit with 0.
func (n *served) stop(t *testing.T) {
	t.Helper()
	n.signal(t, syscall.SIGTERM)
	n.ends(t, 0)
}

// get fetches a page of the admin server.
func (n *served) get(t *testing.T, path string) (int, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+n.admin+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func (n *served) epoch(t *testing.T) uint64 {
	t.Helper()
	var status struct{ Epoch uint64 }
	if _, text := n.get(t, "/status"); json.Unmarshal([]byte(text), &status) != nil || status.Epoch == 0 {
		t.Fatalf("status %s", text)
	}
	return status.Epoch
}

var suggestion = regexp.MustCompile(`(?m)^  (keystead (?:limit|counter|lock) .*)$`)

// "dev" prints what to try, and it works as it stands.
func TestDev(t *testing.T) {
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(s.String(), func(t *testing.T) {
			t.Parallel()
			p := start(t, nil, "dev", "--grpc-addr", "127.0.0.1:0", "--admin-addr", "127.0.0.1:0")
			eventually(t, "it says what to try", func() bool { return strings.HasSuffix(p.out(), "Everything is forgotten when it stops (Ctrl-C).\n") })
			text := p.out()
			addr := regexp.MustCompile(`^A Keystead node serves on (127\.0\.0\.1:[1-9][0-9]*)\. Try`).FindStringSubmatch(text)
			admin := regexp.MustCompile(`\nLook at it in a browser: http://(127\.0\.0\.1:[1-9][0-9]*)/ `).FindStringSubmatch(text)
			if addr == nil || admin == nil {
				t.Fatalf("it prints %q", text)
			}
			commands := suggestion.FindAllStringSubmatch(text, -1)
			if len(commands) != 3 {
				t.Fatalf("it prints %q", text)
			}
			for i, want := range []string{"allowed  19 of 20 left", "1\n", "token "} {
				sh := exec.Command("sh", "-c", commands[i][1])
				sh.Env = cleanEnv()
				if out, err := sh.CombinedOutput(); err != nil || !strings.HasPrefix(string(out), want) {
					t.Errorf("%s: %v\n%s", commands[i][1], err, out)
				}
			}
			if code, body := (&served{admin: admin[1]}).get(t, "/readyz"); code != 200 || body != "ready\n" {
				t.Errorf("/readyz: %d %s", code, body)
			}
			p.signal(t, s)
			p.ends(t, 0)
			if p.err() != "" {
				t.Errorf("it warns of %s", p.err())
			}
		})
	}
}

// A flag is stronger than the environment, and that is stronger than the file.
func TestServerPrecedence(t *testing.T) {
	file := write(t, filepath.Join(t.TempDir(), "keystead.yaml"), "id: from-file\nmax:\n  memory: 64MiB\nlog-level: info\n")
	for _, tc := range []struct {
		want string
		env  []string
		args []string
	}{
		{want: "from-file", args: []string{"--config", file}},
		{want: "from-file", env: []string{"KEYSTEAD_CONFIG=" + file}},
		{want: "from-env", env: []string{"KEYSTEAD_ID=from-env"}, args: []string{"--config", file}},
		{want: "from-flag", env: []string{"KEYSTEAD_ID=from-env"}, args: []string{"--config", file, "--id", "from-flag"}},
	} {
		t.Run(tc.want, func(t *testing.T) {
			t.Parallel()
			n := startNode(t, env(tc.env...), "server", tc.args...)
			if n.id != tc.want {
				t.Errorf("the id is %q", n.id)
			}
			n.stop(t)
			if !strings.Contains(n.err(), `"msg":"stopping"`) || n.out() != "" {
				t.Errorf("it prints %q and logs %s", n.out(), n.err())
			}
		})
	}
}

func TestSettingsOfClients(t *testing.T) {
	file := write(t, filepath.Join(t.TempDir(), "keystead.yaml"), "addr: "+shared+"\njson: true\nid: a-setting-of-another-command\n")
	p := start(t, func(cmd *exec.Cmd) { cmd.Env = cleanEnv("KEYSTEAD_CONFIG="+file, "KEYSTEAD_MAX_MEMORY=1GiB") }, "counter", "add", "settings")
	p.ends(t, 0)
	if v := object(t, p.out()); v["value"] != "1" {
		t.Errorf("got %v", v)
	}
}

func TestServerMisuse(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string { return write(t, filepath.Join(dir, name), text) }
	blocked := file("blocked", "a file, not a directory")
	for _, tc := range []struct {
		says string
		code int
		env  []string
		args []string
	}{
		{says: "unknown setting `grpc-adr` in environment variable KEYSTEAD_GRPC_ADR; did you mean KEYSTEAD_GRPC_ADDR?", env: []string{"KEYSTEAD_GRPC_ADR=x"}},
		{says: ".yaml:2; did you mean `admin-addr`?", args: []string{"--config", file("typo.yaml", "id: n\nadmn-addr: x\n")}},
		{says: "did you mean --grpc-addr?", args: []string{"--grpc-adr", "x"}},
		{says: "no such file", args: []string{"--config", filepath.Join(dir, "none.yaml")}},
		{says: "this is not YAML", args: []string{"--config", file("not.yaml", "a: [\n")}},
		{says: "`max-memory` cannot be \"lots\"", env: []string{"KEYSTEAD_MAX_MEMORY=lots"}},
		{says: "`stop-grace` cannot be \"5\"", args: []string{"--config", file("grace.yaml", "stop-grace: 5\n")}},
		{says: "not a size like 512MiB", args: []string{"--max-memory", "12XB"}},
		{says: `node id "a b": use 1 to 64 letters`, args: []string{"--id", "a b"}},
		{says: `node id "": `, args: []string{"--id", ""}},
		{says: "--log-level", args: []string{"--log-level", "loud"}},
		{says: "--log-format", args: []string{"--log-format", "xml"}},
		{says: "takes nothing but flags", args: []string{"n1"}},
		{says: "a stop grace period of -1s: choose 0 or more", args: []string{"--stop-grace", "-1s"}},
		{says: "--drain-timeout -1s: choose 0 or more", args: []string{"--drain-timeout", "-1s"}},
		{says: "at most -1 connections: choose 1 or more", args: []string{"--max-conns", "-1"}},
		{says: "the greatest possible epoch is 549755813887", args: []string{"--epoch-floor", "549755813888"}},
		{says: "--max-objects: must be at least 1", args: []string{"--max-objects", "-1"}},
		{says: "--max-memory: must be at least 1 MiB", args: []string{"--max-memory", "1KiB"}},
		{says: "--max-waiters: must be at least 1", args: []string{"--max-waiters", "-1"}},
		{says: "--max-waiters-per-lock: must be from 1 to 65536", args: []string{"--max-waiters-per-lock", "-1"}},
		{says: "--max-waiters-per-lock: must be from 1 to 65536", args: []string{"--max-waiters-per-lock", "65537"}},
		{says: `"much" is not a size`, args: []string{"--copy-rate", "much"}},
		{says: `--xds-listener "localhost:1": `, args: []string{"--xds-listener", "localhost:1"}},
		{says: `--xds-key-header "X-Key": `, args: []string{"--xds-key-header", "X-Key"}},
		{says: `--app-addr "10.0.0.1" is not HOST:PORT: write HOST:PORT as other machines`, args: []string{"--app-addr", "10.0.0.1"}},
		{says: `--app-addr 0.0.0.0:80 is where one listens, not where others find it`, args: []string{"--app-addr", "0.0.0.0:80"}},
		{says: `--app-addr [fe80::1%eth0]:80 has a zone, which means something on one machine only`, args: []string{"--app-addr", "[fe80::1%eth0]:80"}},
		{says: "--max-lock-ttl: must be from ", args: []string{"--max-lock-ttl", "25h"}},
		{says: "--request-id-window: must be at least 1s", args: []string{"--request-id-window", "1ms"}},
		{says: "--request-id-clients and --request-ids-per-client: ", args: []string{"--request-ids-per-client", "-1"}},
		{says: "check --grpc-addr", code: 1, args: []string{"--grpc-addr", "nonsense"}},
		{says: "check --admin-addr", code: 1, args: []string{"--admin-addr", "127.0.0.1:99999"}},
		{says: "address already in use: another process has the port; choose another with --grpc-addr", code: 1, args: []string{"--grpc-addr", shared}},
		{says: "choose another with --admin-addr", code: 1, args: []string{"--admin-addr", shared}},
		{says: "making the data directory: ", code: 1, args: []string{"--data-dir", blocked}},
	} {
		t.Run(tc.says, func(t *testing.T) {
			t.Parallel()
			args := append([]string{"server"}, tc.args...)
			for _, f := range []string{"--grpc-addr", "--admin-addr"} {
				if !slices.Contains(args, f) {
					args = append(args, f, "127.0.0.1:0")
				}
			}
			want := 2
			if tc.code != 0 {
				want = tc.code
			}
			p := start(t, env(tc.env...), args...)
			p.ends(t, want)
			if !strings.HasPrefix(p.err(), "keystead: ") || !strings.Contains(p.err(), tc.says) || p.out() != "" {
				t.Errorf("it prints %q and says %s", p.out(), p.err())
			}
		})
	}
}

func TestServerDataDir(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "made", "by", "the", "node")
	args := []string{"--id", "n1", "--data-dir", dir}
	lastEpoch, lastToken := uint64(0), uint64(0)
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL, syscall.SIGINT} {
		n := startNode(t, nil, "server", args...)
		refuses(t, 1, "data directory "+dir+" is in use by another keystead process", append([]string{"server", "--grpc-addr", "127.0.0.1:0", "--admin-addr", ""}, args...)...)
		epoch, token := n.epoch(t), token(t, "restarts", "--addr", n.grpc)
		if epoch <= lastEpoch || token <= lastToken {
			t.Errorf("epoch %d after %d, token %d after %d", epoch, lastEpoch, token, lastToken)
		}
		lastEpoch, lastToken = epoch, token
		n.signal(t, s)
		n.ends(t, map[bool]int{true: -1, false: 0}[s == syscall.SIGKILL])
	}
	// An epoch far ahead of the clock stays ahead, as after the clock was set back.
	write(t, filepath.Join(dir, "epoch.json"), `{"version":1,"epoch":400000000000}`)
	n := startNode(t, nil, "server", args...)
	if got := n.epoch(t); got != 400000000001 {
		t.Errorf("epoch %d", got)
	}
	n.stop(t)
	write(t, filepath.Join(dir, "epoch.json"), `{"version":1,"epo`)
	refuses(t, 1, "epoch.json does not hold an epoch of version 1: restore it, or move it away and start with --epoch-floor above",
		append([]string{"server", "--grpc-addr", "127.0.0.1:0", "--admin-addr", ""}, args...)...)
	if err := os.Remove(filepath.Join(dir, "epoch.json")); err != nil {
		t.Fatal(err)
	}
	n = startNode(t, nil, "server", append(args, "--epoch-floor", "400000000002")...)
	if got := n.epoch(t); got != 400000000002 {
		t.Errorf("epoch %d", got)
	}
	n.stop(t)
}

// A node whose disk hangs while it starts ends on a signal: at once on the second one.
func TestServerEndsBeforeItHasStarted(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := syscall.Mkfifo(filepath.Join(dir, "epoch.json"), 0o600); err != nil {
		t.Fatal(err)
	}
	n := start(t, nil, "server", "--id", "n1", "--data-dir", dir, "--grpc-addr", "127.0.0.1:0", "--admin-addr", "")
	eventually(t, "it takes an order", func() bool { // it may not catch signals yet, or have ended by the first one
		select {
		case <-n.done:
			return true
		default:
		}
		if _, err := os.Stat(filepath.Join(dir, "LOCK")); err != nil {
			return false
		}
		n.signal(t, syscall.SIGTERM)
		return strings.Contains(n.err(), "before the node has started")
	})
	eventually(t, "it ends", func() bool {
		_ = n.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-n.done:
			return true
		default:
			return false
		}
	})
	if n.ends(t, 143); !strings.Contains(n.err(), "does the disk of --data-dir hang?") {
		t.Error(n.err())
	}
}

// A stop does not wait for those that wait for a lock, nor for the holder. They
// may wait for the node.
func TestServerStopsWithWaiters(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil, "server", "--id", "n1", "--stop-grace", "1h")
	at := env("KEYSTEAD_ADDR=" + n.grpc)
	holder := watch(t, at, "lock", "k", "--ttl", "1s", "--", "sh", "-c", "echo begin; sleep 600")
	hasty := start(t, at, "lock", "k", "--wait", "8s", "--timeout", "1s", "--", "true")
	patient := start(t, at, "lock", "k", "--", "echo", "granted")
	eventually(t, "two wait", func() bool {
		_, text := n.get(t, "/metrics")
		return strings.Contains(text, "\nkeystead_lock_waiters 2\n")
	})
	n.stop(t)
	hasty.ends(t, 1)
	if !strings.Contains(hasty.err(), "cannot reach a node") && !strings.Contains(hasty.err(), "stopping") {
		t.Errorf("the waiter says %q", hasty.err())
	}
	holder.allDead(t)
	holder.ends(t, 76)
	// Who waits longer finds the node when it is back, though it remembers nothing.
	again := startNode(t, nil, "server", "--id", "n1", "--grpc-addr", n.grpc)
	patient.ends(t, 0)
	again.stop(t)
}

// Tools such as grpcurl find the services by reflection.
func TestReflection(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	conn, err := grpc.NewClient("passthrough:///"+shared, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	stream, err := reflectionpb.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
	if err != nil {
		t.Fatal(err)
	}
	ask := func(req *reflectionpb.ServerReflectionRequest) *reflectionpb.ServerReflectionResponse {
		t.Helper()
		if err := stream.Send(req); err != nil {
			t.Fatal(err)
		}
		resp, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}
	list := ask(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}})
	var names []string
	for _, s := range list.GetListServicesResponse().GetService() {
		names = append(names, s.Name)
	}
	for _, want := range []string{
		limitpb.LimitService_ServiceDesc.ServiceName, counterpb.CounterService_ServiceDesc.ServiceName, lockpb.LockService_ServiceDesc.ServiceName,
		"grpc.health.v1.Health",
	} {
		if !slices.Contains(names, want) {
			t.Errorf("%s is not among %v", want, names)
		}
		file := ask(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: want}})
		if len(file.GetFileDescriptorResponse().GetFileDescriptorProto()) == 0 {
			t.Errorf("%s is not described: %v", want, file)
		}
	}
	if err := stream.CloseSend(); err != nil {
		t.Error(err)
	}
}

// A node that is frozen is given up on, in the time that was set.
func TestTimeout(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil, "dev")
	n.signal(t, syscall.SIGSTOP)
	began := time.Now()
	refuses(t, 1, "no answer from "+n.grpc+" within 300ms\n  hint: allow more with --timeout", "counter", "get", "k", "--addr", n.grpc, "--timeout", "300ms")
	if took := time.Since(began); took < 300*time.Millisecond {
		t.Errorf("it took %s", took)
	}
}

// The settings are shown with where they come from, and nothing is started.
func TestShowConfig(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "keystead.yaml")
	write(t, file, "max-objects: 7\nmax-calls: 9\n")
	p := start(t, env("KEYSTEAD_MAX_CALLS=8"), "server", "--show-config", "--config", file, "--id", "shown")
	p.ends(t, 0)
	for _, want := range []string{
		`(?m)^id +shown +flag --id$`,
		`(?m)^max-calls +8 +environment variable KEYSTEAD_MAX_CALLS$`,
		`(?m)^max-objects +7 +.*keystead\.yaml:1$`,
		`(?m)^max-conns +10000 +default$`,
	} {
		if !regexp.MustCompile(want).MatchString(p.out()) {
			t.Errorf("no %s in\n%s", want, p.out())
		}
	}
}
