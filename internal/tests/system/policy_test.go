package system

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/keystead/keystead/client"
)

const policyExample = `policies:
  per-user:
    about: one person with a browser
    limit: 100/1h
    burst: 200
  login: {limit: 2/1h, algorithm: fixed-window}
`

// The commands, on a node that runs alone and comes back.
func TestPolicyCommands(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	good, bad := filepath.Join(dir, "good.yaml"), filepath.Join(dir, "bad.yaml")
	write(t, good, policyExample)
	write(t, bad, "policies:\n  a: {limits: 5/1m}\n")

	if text := succeeds(t, "policy", "check", good); text != "login: fixed-window, 2 in 1h\nper-user: token-bucket, 100 in 1h, burst 200\n2 policies: all is well\n" {
		t.Error(text)
	}
	report := object(t, succeeds(t, "policy", "check", good, "--json"))
	hasFields(t, report, "ok", "policies")
	hasFields(t, report["policies"].([]any)[1], "name", "about", "algorithm", "limit", "period", "capacity", "line")
	refuses(t, 1, bad+":2: the policy `a` has no field `limits`\n  hint: is `limit` meant?", "policy", "check", bad)
	r := keystead(t, "policy", "check", bad, "--json")
	if report := object(t, r.out); r.code != 1 || report["ok"] != false || len(report["problems"].([]any)) != 1 {
		t.Errorf("%+v", r)
	}
	refuses(t, 1, "no such file", "policy", "check", filepath.Join(dir, "none"))
	if text := succeeds(t, "policy", "explain", "login", "--file", good); !strings.Contains(text, "in any time shorter than 1h    at most 3\n") {
		t.Error(text)
	}
	refuses(t, 1, `there is no policy "nobody"`, "policy", "explain", "nobody", "--file", good)

	data := filepath.Join(dir, "data")
	n := startNode(t, nil, "server", "--id", "solo", "--data-dir", data)
	with := func(args ...string) []string { return append(args, "--addr", n.grpc) }
	if text := succeeds(t, with("policy", "show", "--version")...); text != "0\n" {
		t.Error(text)
	}
	if text := succeeds(t, with("policy", "explain")...); text != "there are no policies\n" {
		t.Error(text)
	}
	refuses(t, 1, `there is no policy "login": there are none at all; nothing happened (POLICY_UNKNOWN)`, with("limit", "check", "alice", "--policy", "login")...)
	if text := succeeds(t, with("policy", "apply", good, "--dry-run")...); text != "added    login, per-user\nversion 0 would be replaced\n" {
		t.Error(text)
	}
	version := object(t, succeeds(t, with("policy", "apply", good, "--json")...))
	hasFields(t, version, "version", "added", "changed", "removed")
	if text := succeeds(t, with("policy", "apply", good)...); !strings.HasSuffix(text, "is in force already\n") {
		t.Error(text)
	}
	if text := succeeds(t, with("policy", "show")...); text != policyExample {
		t.Error(text)
	}
	hasFields(t, object(t, succeeds(t, with("policy", "show", "--json")...)), "version", "text")
	write(t, good, "policies: {plan: {limit: 10/month, algorithm: calendar-window, time_zone: Asia/Tokyo, first_day: 3, carry_over: 2}, turns: {limit: 1/1m, burst: 9, algorithm: leaky-bucket, max_delay: 1m}}")
	report = object(t, succeeds(t, "policy", "check", good, "--json"))
	hasFields(t, report["policies"].([]any)[0], "name", "algorithm", "limit", "capacity", "calendar", "time_zone", "first_day", "carry_over", "line")
	hasFields(t, report["policies"].([]any)[1], "name", "algorithm", "limit", "period", "capacity", "max_delay", "line")
	succeeds(t, with("policy", "apply", good)...)
	if text := succeeds(t, with("limit", "check", "alice", "--policy", "plan")...); !strings.Contains(text, "allowed  9 of 10 left") || !strings.Contains(text, "-02T15:00:00Z") {
		t.Error(text)
	}
	for i, want := range []string{"allowed  8 of 9 left", "allowed  in ", "denied "} {
		if text := succeeds(t, with("limit", "check", "alice", "--policy", "turns", "--max-delay", "24h")...); !strings.HasPrefix(text, want) {
			t.Error(i, text)
		}
	}
	refuses(t, 2, `"plan" is no leaky bucket, so it has no turns to wait for`, with("limit", "wait", "alice", "--policy", "plan")...)
	write(t, good, policyExample)
	version = object(t, succeeds(t, with("policy", "apply", good, "--json")...))
	write(t, good, strings.Replace(policyExample, "2/1h", "3/1h", 1))
	refuses(t, exitDenied, "the policies have version ", with("policy", "apply", good, "--expect", "3")...)
	for range 2 {
		if r := keystead(t, with("limit", "check", "alice", "--policy", "login", "--exit-code")...); r.code != 0 {
			t.Errorf("%+v", r)
		}
	}
	if v := object(t, succeeds(t, with("limit", "check", "alice", "--policy", "login", "--json")...)); v["allowed"] != false || v["policy_version"] != version["version"] {
		t.Error(v)
	}
	refuses(t, 2, "--policy and --limit exclude each other", with("limit", "check", "alice", "--policy", "login", "--limit", "1/s")...)
	if text := succeeds(t, with("policy", "apply", good)...); !strings.HasPrefix(text, "changed  login\n") {
		t.Error(text)
	}
	n.stop(t)
	n = startNode(t, nil, "server", "--id", "solo", "--data-dir", data)
	if text := succeeds(t, with("policy", "show")...); text != strings.Replace(policyExample, "2/1h", "3/1h", 1) {
		t.Error(text)
	}
	if v := object(t, succeeds(t, with("limit", "check", "alice", "--policy", "login", "--json")...)); v["allowed"] != true || fmt.Sprint(v["remaining"]) != "0" {
		t.Error(v) // what was spent by the policy of before is spent
	}
	n.stop(t)
}

const admissionExample = `admissions:
  chat:
    about: a request of the gateway
    key: org:{org}
    fields: [org, user, tier]
    demands:
    - {name: "user:{user}/rpm", when: {tier: gold}, limit: 600/1h}
    - {name: "user:{user}/rpm", limit: 2/1h}
    - {name: tpm, limit: 1000/1h, cost: tokens}
    - {name: running, slots: 1}
`

// An admission policy says key and demands of a request by its fields: explained by hand, and applied.
func TestAdmissionPolicyCommands(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "p.yaml")
	write(t, file, admissionExample)
	if text := succeeds(t, "policy", "check", file); text != "chat: key org:{org}, fields org, user, tier\n  user:{user}/rpm: token-bucket, 600 in 1h, when tier is gold\n  user:{user}/rpm: token-bucket, 2 in 1h\n  tpm: token-bucket, 1000 in 1h, by tokens\n  running: 1, slots\n1 policy: all is well\n" {
		t.Error(text)
	}
	report := object(t, succeeds(t, "policy", "check", file, "--json"))
	hasFields(t, report, "ok", "policies", "admissions")
	hasFields(t, report["admissions"].([]any)[0], "name", "about", "key", "fields", "amounts", "demands", "line")
	explain := []string{"policy", "explain", "chat", "--file", file, "--field", "org=7", "--field", "user=a/b", "--amount", "tokens=5"}
	if text := succeeds(t, explain...); !strings.HasPrefix(text, "Key org:7\n  user:a%2fb/rpm: 1 of token-bucket, 2 in 1h\n    in any time shorter than 1h at most 3, and once 2 more after a loss\n") || !strings.Contains(text, "  tpm: 5 of ") {
		t.Error(text)
	}
	x := object(t, succeeds(t, append(explain, "--json")...))
	hasFields(t, x, "key", "demands")
	hasFields(t, x["demands"].([]any)[0], "name", "of", "cost", "limit", "line")
	refuses(t, 1, "fields.user: is missing or empty", "policy", "explain", "chat", "--file", file, "--field", "org=7", "--amount", "tokens=5")
	refuses(t, 2, "--field and --amount go with the name of one admission policy", "policy", "explain", "--file", file, "--field", "org=7")

	if text := succeeds(t, "settle", "org:7", "-", "tpm=3"); text != "nothing to settle: a fallback admitted it\n" {
		t.Error(text)
	}
	hasFields(t, object(t, succeeds(t, "settle", "org:7", "-", "--json")), "late", "costs", "epoch")

	n := startNode(t, nil, "server", "--id", "solo", "--data-dir", filepath.Join(t.TempDir(), "data"))
	with := func(args ...string) []string { return append(args, "--addr", n.grpc) }
	succeeds(t, with("policy", "apply", file)...)
	if text := succeeds(t, with("policy", "explain")...); !strings.HasPrefix(text, "chat: key org:{org}") {
		t.Error(text)
	}
	admit := func(more ...string) []string {
		return with(append([]string{"admit", "--policy", "chat", "--field", "org=7", "--field", "user=u"}, more...)...)
	}
	held := strings.Fields(succeeds(t, admit("--amount", "tokens=400", "--hold", "1m")...))
	if len(held) != 2 || held[0] != "org:7" {
		t.Fatal(held)
	}
	refuses(t, exitDenied, "refused  running has 0 of 1 left", admit("--amount", "tokens=400", "--hold", "1m")...)
	if text := succeeds(t, with("settle", held[0], held[1], "tpm=30")...); !strings.HasPrefix(text, "settled  user:u/rpm: 1  tpm: 30") {
		t.Error(text)
	}
	if text := succeeds(t, with("limit", "peek", "org:7", "--name", "tpm", "--limit", "1000/1h")...); !strings.HasPrefix(text, "allowed  970 of 1000") {
		t.Error(text)
	}
	a := object(t, succeeds(t, admit("--amount", "tokens=1", "--hold", "1m", "--json")...))
	hasFields(t, a, "admitted", "key", "hold", "retry_after", "demands", "epoch", "policy_version")
	refuses(t, 1, `there is no admission policy "none"`, with("admit", "--policy", "none")...)
	refuses(t, 2, "--policy and --limit exclude each other", admit("--limit", "a=1/s")...)
	refuses(t, 2, "--policy says the key", admit("k")...)
	refuses(t, 2, `(the demand "running")`, admit("--amount", "tokens=1")...)
	if text := succeeds(t, with("admit", "k", "--limit", "a=1/1h", "--peek")...); text != "would be admitted\n" {
		t.Error(text)
	}
	refuses(t, 2, "--limit a=1/1h:2: cost is 2, but at most 1 can ever be available", with("admit", "k", "--limit", "a=1/1h:2")...)
	refuses(t, exitDenied, "never was, or is forgotten", with("admission", "extend", held[0], held[1])...)
	refuses(t, 2, "--field and --amount go with --policy", with("admit", "k", "--field", "a=b")...)
	n.stop(t)
}

// exitDenied is the exit code of what was refused.
const exitDenied = 3

// oncall are operators who apply policies at the same time. The burst of a policy is the number of
// the attempt.
type oncall struct {
	t                           *testing.T
	attempts                    atomic.Int64
	applied, conflicts, unknown atomic.Int64
	mu                          sync.Mutex
	bursts                      map[uint64]int64 // guarded by mu: by version, of what is known to have been applied
}

func (o *oncall) work(ctx context.Context, kc *client.Client) {
	for ctx.Err() == nil {
		try, cancel := context.WithTimeout(ctx, callTime)
		p, err := kc.Admin().Policies(try)
		if err == nil {
			burst := 1_000_000 + o.attempts.Add(1)
			var c client.PolicyChange
			c, err = kc.Admin().ApplyPolicies(try, fmt.Sprintf("policies: {p: {limit: 1000000/1h, burst: %d}}", burst), p.Version, false)
			switch {
			case err == nil:
				o.applied.Add(1)
				o.mu.Lock()
				if was, twice := o.bursts[c.Version]; twice {
					o.t.Errorf("version %d is that of the attempts %d and %d", c.Version, was, burst)
				}
				o.bursts[c.Version] = burst
				o.mu.Unlock()
			case errors.Is(err, client.ErrPolicyConflict):
				o.conflicts.Add(1)
			default:
				o.unknown.Add(1)
			}
		}
		cancel()
	}
}

// checking are callers of one policy.
type checking struct {
	t      *testing.T
	checks atomic.Int64
	mu     sync.Mutex
	bursts map[uint64]uint64 // guarded by mu: by version, as answers told
}

func (l *checking) work(ctx context.Context, kc *client.Client, key string) {
	last, after := uint64(0), 0
	for ctx.Err() == nil {
		try, cancel := context.WithTimeout(ctx, 20*time.Second)
		d, err := kc.Policy("p").Check(try, key)
		cancel()
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			l.t.Errorf("%s: %v", key, err)
			return
		}
		l.checks.Add(1)
		if d.PolicyVersion < last {
			l.t.Errorf("%s was decided by version %d after %d (%d checks)", key, d.PolicyVersion, last, after)
		}
		last, after = d.PolicyVersion, after+1
		l.mu.Lock()
		if was, is := l.bursts[last]; is && was != d.Capacity {
			l.t.Errorf("version %d has the bursts %d and %d", last, was, d.Capacity)
		}
		l.bursts[last] = d.Capacity
		l.mu.Unlock()
	}
}

// Policies are applied by two operators under load, while the leader is killed, a node joins
// and the killed one comes back: of one key the version never falls, one version is one
// text, nobody is told that the policy is not there, and in the end all nodes have the same.
func TestClusterPolicies(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, true)
	var addrs []string
	for _, n := range c.nodes {
		addrs = append(addrs, n.grpc)
	}
	use := func() *client.Client {
		kc, err := client.Dial(t.Context(), addrs...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(kc.Close)
		return kc
	}
	file := filepath.Join(t.TempDir(), "p.yaml")
	if err := os.WriteFile(file, []byte("policies: {p: {limit: 1000000/1h}}"), 0o600); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all nodes know policies", func() bool {
		return keystead(t, "policy", "apply", file, "--addr", c.nodes[1].grpc).code == 0
	})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	operators := &oncall{t: t, bursts: map[uint64]int64{}}
	callers := &checking{t: t, bursts: map[uint64]uint64{}}
	var work sync.WaitGroup
	for range 2 {
		kc := use()
		work.Go(func() { operators.work(ctx, kc) })
	}
	for _, keys := range c.keys(2) {
		for _, key := range keys {
			kc := use()
			work.Go(func() { callers.work(ctx, kc, key) })
		}
	}
	progress := func(what string) {
		applied, checks := operators.applied.Load(), callers.checks.Load()
		eventually(t, what, func() bool { return operators.applied.Load() >= applied+10 && callers.checks.Load() >= checks+200 })
	}
	progress("policies are applied under load")
	dead, left := c.leader()
	dead.kill()
	progress("policies are applied without the leader")
	n4 := newTestNode(t, "n4", filepath.Join(t.TempDir(), "n4"), "--cluster-id", "c", "--max-lock-ttl", "1s", "--join", left[0].gossip)
	n4.run()
	dead.flags = []string{"--cluster-id", "c", "--max-lock-ttl", "1s", "--join", c.addrs(dead)}
	dead.run()
	c.ready(append(append([]*testNode{}, c.nodes...), n4)...)
	progress("policies are applied by four nodes")
	cancel()
	work.Wait()
	want := keystead(t, "policy", "show", "--json", "--addr", left[0].grpc).out
	for _, n := range append(append([]*testNode{}, c.nodes...), n4) {
		eventually(t, n.id+" has the policies of all", func() bool {
			return keystead(t, "policy", "show", "--json", "--addr", n.grpc).out == want
		})
	}
	for version, burst := range callers.bursts {
		if was, is := operators.bursts[version]; is && uint64(was) != burst {
			t.Errorf("version %d was applied with burst %d, and has %d", version, was, burst)
		}
	}
	t.Logf("%d applied, %d conflicts, %d not known; %d checks by %d versions",
		operators.applied.Load(), operators.conflicts.Load(), operators.unknown.Load(), callers.checks.Load(), len(callers.bursts))
}
