package cli

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/keystead/keystead/client"
	"github.com/keystead/keystead/client/keysteadtest"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
)

// TestSharedLockCommands: two share a lock, nobody has it alone beside them, one that has it alone
// shares it, and a grant is verified and revoked by its token.
func TestSharedLockCommands(t *testing.T) {
	addr := keysteadtest.Start(t).Addr()
	run := func(args ...string) (code int, out, errs string) {
		t.Helper()
		var o, e strings.Builder
		cmd := newLock(Process{Out: &o, Err: &e})
		cmd.SetArgs(append(args[:1:1], append([]string{"--addr", addr}, args[1:]...)...))
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		switch err := cmd.ExecuteContext(t.Context()).(type) {
		case nil:
		case exitCode:
			code = int(err)
		default:
			code, errs = 2, err.Error()
		}
		return code, strings.TrimSpace(o.String()), errs + e.String()
	}
	acquired := func(args ...string) string {
		t.Helper()
		code, token, errs := run(append([]string{"acquire"}, args...)...)
		if code != 0 {
			t.Fatal(errs)
		}
		return token
	}
	a := acquired("k", "--shared", "--holder", "a")
	b := acquired("k", "--shared", "--holder", "b", "--try")
	if code, _, _ := run("acquire", "k", "--try"); code != exitNotAcquired {
		t.Errorf("alone, beside two that share it: %d", code)
	}
	_, out, _ := run("inspect", "k", "--json")
	type holder struct {
		Token  string `json:"token"`
		Shared bool   `json:"shared"`
	}
	var v struct {
		Holder  holder   `json:"holder"`
		Holders []holder `json:"holders"`
	}
	if err := json.Unmarshal([]byte(out), &v); err != nil || v.Holder.Token != a || len(v.Holders) != 2 || v.Holders[1].Token != b || !v.Holders[1].Shared {
		t.Errorf("%s: %v", out, err)
	}
	if _, out, _ := run("inspect", "k"); strings.Count(out, "shared by") != 2 {
		t.Errorf("%s", out)
	}
	if code, out, _ := run("revoke", "k", "--token", a); code != 0 || out != "revoked" {
		t.Errorf("revoke: %d %s", code, out)
	}
	if code, _, errs := run("verify", "k", "--token", a); code != exitLockLost || !strings.Contains(errs, "b has held it") {
		t.Errorf("verify: %d %s", code, errs)
	}
	run("release", "k", "--token", b)
	w := acquired("k", "--delay", "1m")
	if code, out, _ := run("downgrade", "k", "--token", w); code != 0 || out != "shared" {
		t.Errorf("downgrade: %d %s", code, out)
	}
	acquired("k", "--shared", "--try")
	if code, out, _ := run("verify", "k", "--token", w); code != 0 || out != "held" {
		t.Errorf("verify: %d %s", code, out)
	}
	// So many at once is a semaphore.
	if code, out, errs := run("n", "-n", "2", "--", "echo", "ran"); code != 0 {
		t.Errorf("-n 2: %d %s %s", code, out, errs)
	}
	if code, _, errs := run("n", "-n", "2", "--shared", "--", "true"); code != 2 || !strings.Contains(errs, "--shared") {
		t.Errorf("-n with --shared: %d %s", code, errs)
	}
	if code, _, _ := run("n", "-n", "0", "--", "true"); code != 2 {
		t.Errorf("-n 0: %d", code)
	}
}

// TestInspectOfALostHolder: a lock that nobody gets yet is not shown as free.
func TestInspectOfALostHolder(t *testing.T) {
	addr := keysteadtest.Start(t).Addr()
	run := func(args ...string) string {
		t.Helper()
		var o strings.Builder
		cmd := newLock(Process{Out: &o, Err: &o})
		cmd.SetArgs(append(args[:1:1], append([]string{"--addr", addr}, args[1:]...)...))
		if err := cmd.ExecuteContext(t.Context()); err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(o.String())
	}
	token := run("acquire", "k", "--delay", "1m", "--holder", "a")
	run("revoke", "k", "--token", token)
	var v struct {
		Held   bool
		Holder struct {
			Holder, Token string
			TTL, Delay    float64
		}
		Holders []any
	}
	out := run("inspect", "k", "--json")
	if err := json.Unmarshal([]byte(out), &v); err != nil || !v.Held || v.Holder.Token != token || v.Holder.TTL != 0 || v.Holder.Delay <= 0 || v.Holder.Delay > 60 {
		t.Errorf("%s: %v", out, err)
	}
	if out := run("inspect", "k"); !strings.Contains(out, "it was lost") {
		t.Error(out)
	}
}

// TestInspectShowsSessions, of locks and of permits.
func TestInspectShowsSessions(t *testing.T) {
	const want = "0a0b/3"
	var out strings.Builder
	h := &lockpb.Holder{Id: "a", Token: 7, TtlNs: 1e9, Session: &commonpb.Session{Client: []byte{10, 11}, Generation: 3}}
	printHolder(&out, h, "")
	if got := lockHolderJSON(h); got.Session != want || !strings.Contains(out.String(), "unless renewed, session "+want+"\n") {
		t.Errorf("%+v, %s", got, out.String())
	}
	s := client.SemaphoreState{Capacity: 1, Held: 1, Holding: 1, Holders: []client.PermitHolder{{Holder: client.Holder{ID: "a", TTL: 1e9, Session: want}, Permits: 1}}}
	for json, has := range map[bool]string{false: ", session " + want + "\n", true: `"session":"` + want + `"`} {
		var f lockFlags
		f.json = json
		out.Reset()
		if err := f.showPermits(Process{Out: &out}, &s); err != nil || !strings.Contains(strings.ReplaceAll(out.String(), ": ", ":"), has) {
			t.Errorf("%s: %v", out.String(), err)
		}
	}
}
