package system

import (
	"path/filepath"
	"strings"
	"testing"
)

const rlsExample = `domain: web
descriptors:
- key: remote_address
  rate_limit:
    unit: minute
    requests_per_unit: 60
    keystead: {algorithm: token_bucket, burst: 90}
- key: free
  rate_limit: {unlimited: true}
`

func TestRLSValidate(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	good, bad := filepath.Join(dir, "good.yaml"), filepath.Join(dir, "bad.yaml")
	write(t, good, rlsExample)
	write(t, bad, "domain: web\ndescriptors:\n- key: a\n  rate_limit: {unit: min, requests_per_unit: 60}\n")

	text := succeeds(t, "rls", "validate", good)
	for _, want := range []string{"DOMAIN", "remote_address", "60/minute", "token_bucket", "burst 90", "good.yaml:5", "unlimited", "2 limits in 1 domains of 1 files: all is well"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	report := object(t, succeeds(t, "rls", "validate", good, "--json"))
	hasFields(t, report, "ok", "files", "domains", "limits")
	limits := report["limits"].([]any)
	hasFields(t, limits[0], "domain", "descriptor", "limit", "algorithm", "burst", "all_or_nothing", "over_limit", "on_failure", "shadow_mode", "quota_mode", "file", "line")
	hasFields(t, limits[1], "domain", "descriptor", "limit", "all_or_nothing", "shadow_mode", "quota_mode", "file", "line")

	refuses(t, 1, bad+`:4: the unit "min" is unknown`+"\n  hint: choose second, minute", "rls", "validate", bad)
	refuses(t, 1, `bad.yaml:1: the domain "web" comes a second time`, "rls", "validate", good, bad)
	refuses(t, 1, "no such file or directory", "rls", "validate", filepath.Join(dir, "none"))
	refuses(t, 2, "takes files or directories", "rls", "validate")
	r := keystead(t, "rls", "validate", bad, "--json")
	if report := object(t, r.out); r.code != 1 || report["ok"] != false || len(report["problems"].([]any)) != 1 {
		t.Errorf("%+v", r)
	}
}

func TestRLSMatch(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "limits.yaml")
	write(t, file, rlsExample)
	text := succeeds(t, "rls", "match", file, "web", "remote_address=10.0.0.1")
	want := "60/minute  remote_address (" + file + ":5)\n  burst 90\ncounted by token_bucket as key 3:web14:remote_address8:10.0.0.1, name envoy.rls/token_bucket/60s\n"
	if text != want {
		t.Errorf("%q, want %q", text, want)
	}
	for args, want := range map[string]string{"free=1": "unlimited  free (" + file + ":9)\n", "other=1": "no limit\n", "free=1 free=1": "no limit\n"} {
		if text := succeeds(t, append([]string{"rls", "match", file, "web"}, strings.Fields(args)...)...); text != want {
			t.Errorf("%s: %q", args, text)
		}
	}
	report := object(t, succeeds(t, "rls", "match", file, "web", "remote_address=10.0.0.1", "--json"))
	hasFields(t, report, "limited", "limit", "key", "name")
	refuses(t, 1, "there is no domain \"wob\"\n  hint: there are web", "rls", "match", file, "wob", "a=b")
	refuses(t, 2, "write KEY=VALUE", "rls", "match", file, "web", "a")
	refuses(t, 2, "takes a file or directory, a domain", "rls", "match", file, "web")
}

// A server reads its configuration, says what it has in force, and refuses to start
// with a broken one.
func TestRLSServer(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "limits.yaml")
	write(t, file, rlsExample)
	n := startNode(t, nil, "dev", "--rls-config", file, "--rls-headers", "x-ratelimit")
	text := succeeds(t, "rls", "status", "--admin-addr", n.admin)
	if !strings.HasPrefix(text, file+": 2 limits in 1 domains of 1 files, read 2") {
		t.Errorf("%q", text)
	}
	write(t, file, "domain: web\ndescriptors: [{key: a, rate_limits: {}}]\n")
	eventually(t, "the node says that the file is broken", func() bool { return keystead(t, "rls", "status", "--admin-addr", n.admin).code == 3 })
	r := keystead(t, "rls", "status", "--admin-addr", n.admin)
	if !strings.Contains(r.out, "what was read before is in force:\n"+file+`:2: a descriptor has no "rate_limits"`) {
		t.Errorf("%+v", r)
	}
	if r := keystead(t, "rls", "status", "--admin-addr", n.admin, "--json"); r.code != 3 {
		t.Errorf("%+v", r)
	} else {
		hasFields(t, object(t, r.out), "path", "files", "domains", "limits", "read", "broken")
	}

	refuses(t, 2, `--rls-config: `+file+`:2: a descriptor has no "rate_limits"`, "dev", "--grpc-addr", "127.0.0.1:0", "--admin-addr", "", "--rls-config", file)
	refuses(t, 2, `headers "all" of the rate limit service: choose none, x-ratelimit, ratelimit or ietf`, "dev", "--rls-headers", "all")
	without := startNode(t, nil, "dev")
	refuses(t, 1, "has no rate limit service\n  hint: start it with --rls-config", "rls", "status", "--admin-addr", without.admin)
	refuses(t, 1, "asking the node at 127.0.0.1:1", "rls", "status", "--admin-addr", "127.0.0.1:1")
}
