package system

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
)

// adds puts operations on a counter, in batches, by way of any node.
func adds(t *testing.T, conn *grpc.ClientConn, key string, times int) {
	t.Helper()
	const batch = 1000
	for ; times > 0; times -= batch {
		req := &counterpb.BatchAddRequest{}
		for range min(times, batch) {
			req.Adds = append(req.Adds, &counterpb.AddRequest{Key: key, Name: "n", Delta: 1})
		}
		r, err := counterpb.NewCounterServiceClient(conn).BatchAdd(t.Context(), req)
		if err != nil || len(r.Results) != len(req.Adds) || r.Results[0].GetError() != nil {
			t.Errorf("adding to %q: %v, %v", key, err, r.GetResults()[:min(len(r.GetResults()), 1)])
			return
		}
	}
}

func connTo(t *testing.T, addr string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// hotOf runs `keystead hot --json`.
func hotOf(t *testing.T, args ...string) (v hotJSON) {
	t.Helper()
	if err := json.Unmarshal([]byte(succeeds(t, append([]string{"hot", "--json"}, args...)...)), &v); err != nil {
		t.Fatal(err)
	}
	return v
}

func TestHot(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil, "server", "--id", "solo", "--hot-floor", "100")
	addr := []string{"--addr", n.grpc}
	with := func(args ...string) []string { return append(args, addr...) }
	if text := succeeds(t, with("hot")...); text != "1 node, 0.0 operations a second, 0 keys hot: from 100 a second and 10 times the average of the others\n" {
		t.Error(text)
	}
	watch := start(t, nil, with("hot", "--watch")...)
	lines := start(t, nil, with("hot", "--watch", "--json", "--top", "1")...)
	conn, ctx := connTo(t, n.grpc), t.Context()
	locks := lockpb.NewLockServiceClient(conn)
	if r, err := locks.Acquire(ctx, &lockpb.AcquireRequest{Key: "door", Holder: "a", TtlNs: 60e9}); err != nil || !r.Acquired {
		t.Fatal(r, err)
	}
	waits, leave := context.WithCancel(ctx)
	left := make(chan struct{})
	go func() {
		defer close(left)
		_, _ = locks.Acquire(waits, &lockpb.AcquireRequest{Key: "door", Holder: "b", TtlNs: 60e9, WaitNs: 60e9})
	}()
	defer func() { leave(); <-left }()
	adds(t, conn, "\x1b[2Jtenant", 5000)
	for i := range 30 {
		adds(t, conn, fmt.Sprint("other", i), 5)
	}
	eventually(t, "all is seen", func() bool { return len(hotOf(t, with("--top", "128")...).Keys) == 32 })
	if n := len(hotOf(t, addr...).Keys); n != defaultTop {
		t.Errorf("%d keys", n)
	}

	raw := object(t, succeeds(t, with("hot", "--json", "--top", "1")...))
	hasFields(t, raw, "nodes", "keys")
	hasFields(t, raw["nodes"].([]any)[0], "id", "addr", "error", "epoch", "rate", "objects", "hot", "left_out", "floor", "factor")
	hasFields(t, raw["keys"].([]any)[0], "key", "name", "kind", "owner", "rate", "sure", "share", "hot", "hot_for", "waiting", "split")
	v := hotOf(t, with("--top", "128")...)
	if k := v.Keys[0]; len(v.Keys) != 32 || k.Key != "\x1b[2Jtenant" || k.Name != "n" || k.Kind != "counter" || k.Owner != "solo" || !k.Hot || k.Share < 0.9 || k.Rate < k.Sure || k.Sure < 100 {
		t.Errorf("%d keys, the first is %+v", len(v.Keys), k)
	}
	if m := v.Nodes[0]; len(v.Nodes) != 1 || m.ID != "solo" || m.Addr != n.grpc || m.Error != "" || m.Objects != 32 || m.Hot != 1 || m.Floor != 100 || m.Factor != 10 || len(m.Epoch) < 11 { // of the clock, as its answers have it
		t.Errorf("%+v", m)
	}
	text := succeeds(t, with("hot", "--top", "128")...)
	for _, want := range []string{
		`^1 node, \d+ operations a second, 1 key hot: from 100 a second and 10 times the average of the others\n\nKEY +NAME  KIND     OWNER  +RATE +SHARE  QUEUE  STATE\n`,
		`\n\\x1b\[2Jtenant +n     counter  solo +\d+ +9\d\.\d% +hot \d+s\n`, `\ndoor +lock  lock     solo +0\.\d +0\.0%  +1\n`,
	} {
		if !regexp.MustCompile(want).MatchString(text) {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
	eventually(t, "the watches show it", func() bool {
		return strings.Contains(watch.out(), `\x1b[2Jtenant`) && strings.Contains(lines.out(), `"hot":true`)
	})
	for _, p := range []*process{watch, lines} {
		p.signal(t, syscall.SIGINT)
		p.ends(t, 0)
	}
	for _, line := range strings.SplitAfter(strings.TrimSuffix(lines.out(), "\n"), "\n") {
		object(t, strings.TrimSuffix(line, "\n")+"\n")
	}
	if strings.Contains(watch.out(), "\x1b") {
		t.Errorf("what a caller wrote goes to the terminal: %q", watch.out())
	}
}

func TestHotMisuse(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		code int
		says string
		args []string
	}{
		{exitUsage, "--top 0: choose 1 to 128", []string{"hot", "--top", "0"}},
		{exitUsage, "--top 129: choose 1 to 128", []string{"hot", "--top", "129"}},
		{exitUsage, "unknown command \"key\" for `keystead hot`", []string{"hot", "key"}},
		{exitUsage, "did you mean `keystead hot split`", []string{"hot", "splt", "key"}},
		{exitUsage, "write HOST:PORT", []string{"hot", "--addr", "here"}},
		{exitError, "cannot reach a node at 127.0.0.1:1", []string{"hot", "--addr", "127.0.0.1:1"}},
		{exitError, "cannot reach a node at 127.0.0.1:1", []string{"hot", "--watch", "--addr", "127.0.0.1:1"}},
		{exitUsage, "--hot-floor 0.5: choose 1 to 1,000,000,000 operations a second", []string{"server", "--hot-floor", "0.5"}},
		{exitUsage, "--hot-factor -1: choose 1 to 1,000,000", []string{"dev", "--hot-factor", "-1"}},
	} {
		t.Run(strings.Join(tc.args, " "), func(t *testing.T) {
			t.Parallel()
			refuses(t, tc.code, tc.says, tc.args...)
		})
	}
}

// A watch says once that its node is gone, and goes on when it is back.
func TestHotWatchGoesOn(t *testing.T) {
	t.Parallel()
	addr := newPort(t)
	n := startNode(t, nil, "server", "--id", "solo", "--grpc-addr", addr)
	watch := start(t, nil, "hot", "--watch", "--addr", addr)
	eventually(t, "it shows something", func() bool { return strings.HasPrefix(watch.out(), "1 node, ") })
	n.stop(t)
	eventually(t, "it says that the node is gone", func() bool { return strings.HasPrefix(watch.err(), "keystead: cannot reach a node at "+addr) })
	startNode(t, nil, "server", "--id", "solo", "--grpc-addr", addr, "--hot-factor", "7")
	eventually(t, "it goes on", func() bool { return strings.Contains(watch.out(), " and 7 times ") })
	if n := strings.Count(watch.err(), "keystead: "); n != 1 {
		t.Errorf("it says %d times: %s", n, watch.err())
	}
	watch.signal(t, syscall.SIGTERM)
	watch.ends(t, 0)
}
