package system

import (
	"encoding/json"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/keystead/keystead/ring"
)

func TestClusterCommandsAlone(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil, "server", "--id", "solo")
	addr := []string{"--addr", n.grpc}
	with := func(args ...string) []string { return append(args, addr...) }

	status := object(t, succeeds(t, with("status", "--json", "--exit-code", "--members", "1")...))
	hasFields(t, status, "cluster", "id", "healthy", "problems", "warnings", "epoch", "leader", "voters", "rows", "rows_to_move", "rows_unowned", "rows_cold", "awaited",
		"rows_unprotected", "rows_in_grace", "rows_in_grace_in_part", "recovering", "phase", "rows_owned", "rows_standby", "changing", "serving", "incarnation", "lease_left", "uptime", "version", "level", "level_known", "policy_version", "grpc_addr", "raft_addr", "gossip_addr", "copies", "members")
	if status["healthy"] != true || status["id"] != "solo" || status["serving"] != true || status["epoch"] != strconv.FormatUint(n.epoch(t), 10) {
		t.Errorf("%v", status)
	}
	if text := succeeds(t, with("status")...); !strings.Contains(text, "none: solo runs alone\nHealth   healthy\n") {
		t.Error(text)
	}
	if r := keystead(t, with("status", "--exit-code", "--members", "2")...); r.code != exitUnhealthy || !strings.Contains(r.out, "1 active members, not 2") {
		t.Errorf("%d %s", r.code, r.out)
	}
	refuses(t, exitError, "not healthy after 300ms: 1 active members, not 2\n  hint: start further nodes", with("status", "--wait", "300ms", "--members", "2")...)
	refuses(t, exitError, `no row waits for the disk of "solo"`, with("recover", "--without", "solo", "--yes")...)
	if text := succeeds(t, with("members")...); !regexp.MustCompile(`^ID .*\nsolo  active  -       -     100\.0%  `).MatchString(text) {
		t.Error(text)
	}
	if text := succeeds(t, with("ring")...); !strings.Contains(text, "1 node, 256 points") || !strings.Contains(text, "AAAAAAA") || strings.Contains(text, "\x1b") {
		t.Error(text)
	}
	r := object(t, succeeds(t, with("ring", "--json")...))
	hasFields(t, r, "cluster", "epoch", "digest", "size", "balance", "rows", "transition", "rows_to_move", "rows_unowned", "nodes", "moves")
	hasFields(t, r["nodes"].([]any)[0], "id", "hash_key", "grpc_addr", "wanted_share", "owned_share")

	var owners []ownedJSON
	if err := json.Unmarshal([]byte(succeeds(t, with("owner", "foo", "bar", "--json")...)), &owners); err != nil {
		t.Fatal(err)
	}
	since := strconv.FormatUint(n.epoch(t)-1, 10) // the ring was made before the change that made it ended
	want := []ownedJSON{{ownerJSON{"foo", "3728699739546630719", "solo", ""}, n.grpc, since}, {ownerJSON{"bar", "5234164152756840025", "solo", ""}, n.grpc, since}}
	if !reflect.DeepEqual(owners, want) {
		t.Errorf("%+v, want %+v", owners, want)
	}
	if text := succeeds(t, with("owner", "foo")...); !strings.HasPrefix(text, "KEY  HASH                 OWNER  STANDBY  ADDR ") {
		t.Error(text)
	}
	n.stop(t)
}

func TestClusterCommandsMisuse(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		code int
		says string
		args []string
	}{
		{exitError, "cannot reach a node at 127.0.0.1:1", []string{"status", "--addr", "127.0.0.1:1"}},
		{exitError, "not healthy after 100ms: cannot reach a node", []string{"status", "--addr", "127.0.0.1:1", "--wait", "100ms"}},
		{exitError, "cannot reach a node at 127.0.0.1:1", []string{"members", "--addr", "127.0.0.1:1"}},
		{exitError, "cannot reach a node at 127.0.0.1:1", []string{"ring", "--addr", "127.0.0.1:1"}},
		{exitError, "cannot reach a node at 127.0.0.1:1", []string{"ring", "--watch", "--addr", "127.0.0.1:1"}},
		{exitError, "hint: start one with `keystead dev`", []string{"owner", "foo", "--addr", "127.0.0.1:1"}},
		{exitUsage, "--wait -1s", []string{"status", "--wait", "-1s"}},
		{exitUsage, "--members -1", []string{"status", "--members", "-1"}},
		{exitUsage, "write HOST:PORT", []string{"status", "--addr", "here", "--wait", "1s"}},
		{exitUsage, "leaves no time at all", []string{"ring", "--watch", "--timeout", "0s"}},
		{exitUsage, "takes nothing but flags", []string{"members", "n1"}},
		{exitUsage, "takes the id of a node", []string{"drain"}},
		{exitUsage, "takes the id of a node", []string{"undrain", "n1", "n2"}},
		{exitUsage, "leaves no time at all", []string{"drain", "n1", "--timeout", "0s"}},
		{exitUsage, "node: is missing", []string{"drain", ""}},
		{exitUsage, "name the node whose disk is gone", []string{"recover"}},
		{exitUsage, "behind the @ comes the incarnation of a process", []string{"recover", "--without", "n1@x"}},
		{exitUsage, "behind the @ comes the incarnation of a process", []string{"recover", "--without", "n1@0"}},
		{exitError, "cannot reach a node at 127.0.0.1:1", []string{"recover", "--without", "n1", "--addr", "127.0.0.1:1"}},
		{exitError, "cannot reach a node at 127.0.0.1:1", []string{"drain", "n1", "--wait", "--addr", "127.0.0.1:1"}},
		{exitUsage, "--nodes and --addr exclude each other\n  hint: leave --nodes out", []string{"owner", "foo", "--nodes", "a,b", "--addr", "127.0.0.1:1"}},
		{exitUsage, "--ring-size goes with --nodes", []string{"owner", "foo", "--ring-size", "12"}},
		{exitUsage, "keys[1]: has 0 bytes", []string{"owner", "foo", ""}},
	} {
		t.Run(strings.Join(tc.args, " "), func(t *testing.T) {
			t.Parallel()
			refuses(t, tc.code, tc.says, tc.args...)
		})
	}
}

// More keys than one question takes.
func TestOwnerManyKeys(t *testing.T) {
	t.Parallel()
	keys := make([]string, 2*ownerBatch+1)
	for i := range keys {
		keys[i] = "key-" + strconv.Itoa(i)
	}
	var owners []ownedJSON
	if err := json.Unmarshal([]byte(succeeds(t, append([]string{"owner", "--json"}, keys...)...)), &owners); err != nil || len(owners) != len(keys) {
		t.Fatal(err, len(owners))
	}
	for i, o := range owners {
		if o.Key != keys[i] || o.Hash != strconv.FormatUint(ring.Hash(keys[i]), 10) {
			t.Fatalf("%d: %+v", i, o)
		}
	}
}

// A script may start a node and wait for it; a watch goes on when the node is
// back.
func TestWaitAndWatch(t *testing.T) {
	t.Parallel()
	addr := newPort(t)
	wait := start(t, nil, "status", "--wait", patience.String(), "--members", "1", "--addr", addr)
	n := startNode(t, nil, "server", "--id", "solo", "--grpc-addr", addr)
	wait.ends(t, 0)
	if !strings.Contains(wait.out(), "Health   healthy") {
		t.Error(wait.out())
	}
	watch := start(t, nil, "ring", "--watch", "--addr", addr)
	lines := start(t, nil, "ring", "--watch", "--json", "--addr", addr)
	eventually(t, "it tells the ring", func() bool {
		return regexp.MustCompile(`^epoch \d+; solo 100.0%\n$`).MatchString(watch.out()) && strings.HasSuffix(lines.out(), "}\n")
	})
	n.stop(t)
	eventually(t, "it says that the node is gone", func() bool { return strings.HasPrefix(watch.err(), "keystead: ") })
	startNode(t, nil, "server", "--id", "other", "--grpc-addr", addr)
	eventually(t, "it goes on", func() bool {
		return regexp.MustCompile(`\nepoch \d+; other is admitted, solo is removed, 256 rows solo → other; other 100.0%\n$`).MatchString(watch.out())
	})
	watch.signal(t, syscall.SIGINT)
	watch.ends(t, 0)
	lines.signal(t, syscall.SIGTERM)
	lines.ends(t, 0)
	for _, line := range strings.SplitAfter(strings.TrimSuffix(lines.out(), "\n"), "\n") {
		object(t, strings.TrimSuffix(line, "\n")+"\n")
	}
}

func TestClusterCommandsThreeNodes(t *testing.T) {
	t.Parallel()
	dev := start(t, nil, "dev", "--nodes", "3", "--grpc-addr", "127.0.0.1:0", "--admin-addr", "")
	eventually(t, "the cluster is ready", func() bool {
		select {
		case <-dev.done:
			t.Fatalf("it ended: %s%s", dev.out(), dev.err())
		default:
		}
		return strings.Contains(dev.out(), "Ctrl-C")
	})
	nodes := regexp.MustCompile(`(?m)^  (n\d) +(\S+) .* (\d+)$`).FindAllStringSubmatch(dev.out(), -1)
	if len(nodes) != 3 {
		t.Fatal(dev.out())
	}
	var answers []string
	var members []memberJSON
	for _, n := range nodes {
		status := object(t, succeeds(t, "status", "--wait", patience.String(), "--members", "3", "--json", "--addr", n[2]))
		if status["healthy"] != true || status["id"] != n[1] || len(status["voters"].([]any)) != 3 {
			t.Errorf("%v", status)
		}
		answers = append(answers, succeeds(t, "owner", "a", "b", "c", "d", "e", "f", "--json", "--addr", n[2]))
		if err := json.Unmarshal([]byte(succeeds(t, "members", "--json", "--addr", n[2])), &members); err != nil || len(members) != 3 {
			t.Fatal(err, members)
		}
	}
	if len(slices.Compact(answers)) != 1 {
		t.Errorf("the nodes disagree: %q", answers)
	}
	var keys []string
	for _, m := range members {
		keys = append(keys, m.HashKey)
	}
	want, err := ring.New(keys)
	if err != nil {
		t.Fatal(err)
	}
	if r := object(t, succeeds(t, "ring", "--json", "--addr", nodes[0][2])); r["digest"] != strconv.FormatUint(want.Digest(), 10) {
		t.Errorf("%v, want %d", r, want.Digest())
	}
	watch := start(t, nil, "ring", "--watch", "--addr", nodes[0][2])
	eventually(t, "it watches", func() bool { return strings.HasSuffix(watch.out(), "\n") })
	pid, _ := strconv.Atoi(nodes[2][3])
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "its rows go to the others", func() bool {
		return regexp.MustCompile(`n3 is removed, \d+ rows n3 → n1, \d+ rows n3 → n2; n1`).MatchString(watch.out())
	})
	r := keystead(t, "status", "--exit-code", "--addr", nodes[0][2])
	if r.code != exitUnhealthy || !strings.Contains(r.out, "one more death stops the cluster: of 3 voters, n3 is gone") {
		t.Errorf("%d %s", r.code, r.out)
	}
	watch.signal(t, syscall.SIGTERM)
	watch.ends(t, 0)
	dev.signal(t, syscall.SIGTERM)
	dev.ends(t, 0)
}
