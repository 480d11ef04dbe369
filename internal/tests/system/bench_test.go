package system

import (
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/keystead/keystead/internal/cli/bench"
)

func TestBench(t *testing.T) {
	names := slices.Concat(bench.Workloads, bench.EnvoyWorkloads)
	all := strings.Join(names, ",")
	report := object(t, succeeds(t, "bench", "--workload", all, "--concurrency", "2", "--duration", "50ms", "--rounds", "1", "--json"))
	hasFields(t, report, "version", "go", "cpus", "batch", "results")
	seen := map[string]bool{}
	for _, v := range report["results"].([]any) {
		r := v.(map[string]any)
		fields := []string{"workload", "concurrency", "target", "items_per_second", "p50_us", "p99_us", "p999_us", "errors"}
		name := r["workload"].(string) + " on " + r["target"].(string)
		if r["target"] == bench.Keystead {
			fields = append(fields, "per_echo", "per_tuned_echo")
		}
		hasFields(t, r, fields...)
		for _, field := range fields[3:] {
			if field == "errors" {
				continue
			}
			if number(t, r[field]) <= 0 {
				t.Errorf("%s: %s is %v", name, field, r[field])
			}
		}
		if number(t, r["errors"]) != 0 || number(t, r["concurrency"]) != 2 {
			t.Errorf("%s: %v", name, r)
		}
		seen[name] = true
	}
	if want := 3 * len(names); len(seen) != want {
		t.Errorf("%d results, want %d: %v", len(seen), want, seen)
	}
}

func TestBenchOverHTTP(t *testing.T) {
	t.Parallel()
	report := object(t, succeeds(t, "bench", "--addr", "", "--http", "--echo=false", "--workload", "check", "--concurrency", "2", "--duration", "50ms", "--rounds", "1", "--json"))
	results := report["results"].([]any)
	if len(results) != 2 {
		t.Fatal(results)
	}
	web := results[1].(map[string]any)
	if web["target"] != bench.HTTP || number(t, web["per_grpc"]) <= 0 || number(t, web["errors"]) != 0 {
		t.Errorf("%v", web)
	}
	refuses(t, 2, "leave out --addr", "bench", "--http", "--addr", shared)
}

// Admissions across owners are measured beside forwarded checks of the same cluster.
func TestBenchAcross(t *testing.T) {
	t.Parallel()
	report := object(t, succeeds(t, "bench", "--nodes", "3", "--workload", "across,across-hold", "--concurrency", "2", "--duration", "50ms", "--rounds", "1", "--keys", "100", "--json"))
	hasFields(t, report, "version", "go", "cpus", "nodes", "results")
	results := report["results"].([]any)
	if len(results) != 3 {
		t.Fatal(results)
	}
	for i, name := range []string{bench.Forwarded, bench.Across, bench.AcrossHold} {
		r := results[i].(map[string]any)
		if r["what"] != name || number(t, r["errors"]) != 0 || number(t, r["checks_per_second"]) <= 0 {
			t.Errorf("%v", r)
		}
		if i > 0 && (r["against"] != bench.Forwarded || number(t, r["ratio"]) <= 0 || number(t, r["p50_ratio"]) <= 0) {
			t.Errorf("%v", r)
		}
	}
}

func TestBenchOfARunningNode(t *testing.T) {
	t.Parallel()
	text := succeeds(t, "bench", "--addr", shared, "--echo=false", "--workload", "counter", "--concurrency", "1,2", "--duration", "20ms", "--rounds", "2",
		"--keys", "10", "--request-ids")
	lines := strings.Split(strings.TrimSpace(text), "\n")
	if len(lines) != 3 || !strings.HasPrefix(strings.TrimSpace(lines[0]), "workload") {
		t.Errorf("it prints:\n%s", text)
	}
	total := int64(0)
	for i := range 10 {
		total += counted(t, "client-00000000"+string(rune('0'+i)), "--name", "bench")
	}
	if total == 0 {
		t.Error("the node that was named counted nothing")
	}
}

func TestBenchMisuse(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		says string
		code int
		args []string
	}{
		{"choose from check, batch, stream, counter, lock", 2, []string{"--workload", "chek"}},
		{"10ms is the least", 2, []string{"--duration", "1ms"}},
		{"at least one round", 2, []string{"--rounds", "0"}},
		{"a concurrency of 0", 2, []string{"--concurrency", "0"}},
		{"a batch of 0", 2, []string{"--batch", "0"}},
		{"0 keys", 2, []string{"--keys", "0"}},
		{"0 connections", 2, []string{"--conns", "0"}},
		{"2h0m0s is the most", 2, []string{"--duration", "10h"}},
		{"takes nothing but flags", 2, []string{"check"}},
		{"choose --nodes, too", 2, []string{"--acks"}},
		{`workload "across" is of a cluster: choose --nodes, too`, 2, []string{"--workload", "check,across"}},
		{`workload "lock": of a cluster, choose from check, across, across-hold`, 2, []string{"--nodes", "3", "--workload", "lock"}},
		{"add check to --workload", 2, []string{"--nodes", "3", "--acks", "--workload", "across"}},
		{"cannot reach a node at 127.0.0.1:1: ", 1, []string{"--addr", "127.0.0.1:1", "--echo=false", "--workload", "check", "--concurrency", "1"}},
		{`there is no server "nope"`, 2, []string{"serve", "nope"}},
	} {
		refuses(t, tc.code, tc.says, append([]string{"bench"}, tc.args...)...)
	}
}

// The servers that bench starts end with it, also when it is killed.
func TestBenchKilled(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil, "dev")
	// They inherit its standard error, a pipe that ends with the last of them.
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := r.SetReadDeadline(time.Now().Add(2 * patience)); err != nil {
		t.Fatal(err)
	}
	p := start(t, func(cmd *exec.Cmd) { cmd.Stderr = w }, "bench", "--addr", n.grpc, "--workload", "check", "--concurrency", "1", "--duration", "20ms", "--rounds", "100000")
	_ = w.Close()
	eventually(t, "it measures", func() bool {
		_, text := n.get(t, "/metrics")
		return !strings.Contains(text, "\nkeystead_operations_total{op=\"check\",outcome=\"allowed\"} 0\n")
	})
	p.signal(t, syscall.SIGKILL)
	if rest, err := io.ReadAll(r); err != nil {
		t.Errorf("after %q: %v", rest, err)
	}
}
