package system

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A command that is run once, as a shell script or cron has it: the first one runs it, all others
// get what it printed and its exit code.
func TestOnceRuns(t *testing.T) {
	dir := t.TempDir()
	script := func(then string) []string {
		return []string{"--", "sh", "-c", "echo run >>" + dir + "/runs; echo receipt; " + then}
	}
	once := func(args ...string) []string { return append([]string{"once"}, args...) }
	for range 2 {
		if got := succeeds(t, append(once("first"), script("true")...)...); got != "receipt\n" {
			t.Errorf("printed %q", got)
		}
	}
	for _, code := range []int{4, 4, 75, 75, 255, 255} { // 75 says that nothing was done
		r := keystead(t, append(once(fmt.Sprint("fails with ", code)), script(fmt.Sprint("exit ", code))...)...)
		if r.code != code || r.out != "receipt\n" {
			t.Errorf("exit code %d, %q %q", r.code, r.out, r.err)
		}
	}
	runs, err := os.ReadFile(filepath.Join(dir, "runs"))
	if err != nil || strings.Count(string(runs), "run") != 5 {
		t.Errorf("%v; run as %q", err, runs)
	}
	refuses(t, 1, "OTHER_FINGERPRINT", once("first", "--", "true")...)
	if got := succeeds(t, once("first", "--fingerprint", strings.Repeat("long", 20), "--name", "other", "--", "echo", "x")...); got != "x\n" {
		t.Errorf("printed %q", got)
	}
	v := object(t, succeeds(t, once("show", "first", "--json")...))
	hasFields(t, v, "state", "token", "attempt", "holder", "fingerprint", "age", "ttl", "exit", "output", "epoch")
	if v["state"] != "done" || v["output"] != "receipt\n" || fmt.Sprint(v["exit"]) != "0" {
		t.Errorf("%v", v)
	}
	if got := succeeds(t, "key", "first"); !strings.Contains(got, "done, ") {
		t.Error(got)
	}
	succeeds(t, once("forget", "first")...)
	refuses(t, 3, "", once("forget", "first")...)
	if r := keystead(t, once("show", "first")...); r.code != 3 || r.out != "nobody has run it\n" {
		t.Errorf("%+v", r)
	}
	killed := once("killed", "--ttl", "300ms", "--fingerprint", "f", "--", "sh", "-c", "test -e "+dir+"/killed || { touch "+dir+"/killed; kill -9 $$; }; echo again")
	refuses(t, 137, "", killed...)
	if r := keystead(t, killed...); r.code != 0 || r.out != "again\n" || !strings.Contains(r.err, "attempt 2") {
		t.Errorf("%+v", r)
	}
	refuses(t, 2, "COMMAND is missing", once("first")...)
	refuses(t, 2, "--keep", once("first", "--keep", "1ms", "--", "true")...)
}
