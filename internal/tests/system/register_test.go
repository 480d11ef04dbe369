package system

import (
	"encoding/base64"
	"strconv"
	"strings"
	"testing"
)

// A register as a shell script uses it: the value and nothing else on standard output, and exit
// codes to branch on.
func TestRegisterText(t *testing.T) {
	version := func(args ...string) uint64 {
		t.Helper()
		v, err := strconv.ParseUint(strings.TrimSpace(succeeds(t, append([]string{"register"}, args...)...)), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	refused := func(says string, args ...string) {
		t.Helper()
		if r := keystead(t, append([]string{"register"}, args...)...); r.code != 3 || r.out != "" || !strings.Contains(r.err, says) {
			t.Errorf("%q: %+v", args, r)
		}
	}
	refused("", "get", "reg")
	first := version("put", "reg", "open", "--if-absent")
	refused("another version; the register has version "+strconv.FormatUint(first, 10), "put", "reg", "closed", "--if-absent")
	if got := succeeds(t, "register", "get", "reg"); got != "open" {
		t.Errorf("%q", got)
	}
	second := version("put", "reg", "--if-version", strconv.FormatUint(first, 10)) // standard input is empty
	if r := keystead(t, "register", "get", "reg"); r.code != 0 || r.out != "" || second <= first {
		t.Errorf("an empty value: %+v, version %d after %d", r, second, first)
	}
	version("put", "reg", "a", "--fence", "7", "--name", "other")
	refused("an older fencing token", "put", "reg", "b", "--fence", "6", "--name", "other")
	third := version("delete", "reg")
	refused("there is no register", "delete", "reg")
	if v := version("put", "reg", "again"); third <= second || v <= third {
		t.Errorf("versions %d, %d, %d", second, third, v)
	}

	token := strings.TrimSpace(succeeds(t, "lock", "acquire", "reg", "--ttl", "1m"))
	version("put", "reg", "mine", "--while-held", token)
	refused("the lock is not held", "put", "reg", "x", "--while-held", token, "--lock", "none")
	succeeds(t, "lock", "release", "reg", "--token", token)
	refused("the lock is not held", "put", "reg", "late", "--while-held", token)

	refuses(t, 2, "do not go together", "register", "put", "reg", "x", "--if-absent", "--if-version", "7")
	refuses(t, 2, "--while-held is 0", "register", "put", "reg", "x", "--while-held", "0")
	refuses(t, 2, "--fence is 0", "register", "put", "reg", "x", "--fence", "0")
	refuses(t, 2, "--while-held is about", "register", "put", "reg", "x", "--lock", "other")
	refuses(t, 2, "61440", "register", "put", "reg", strings.Repeat("x", 61441))
}

func TestRegisterJSON(t *testing.T) {
	succeeds(t, "register", "put", "regjson", "höt", "--fence", "9")
	v := object(t, succeeds(t, "register", "get", "regjson", "--json"))
	hasFields(t, v, "exists", "value", "value_text", "version", "fence", "epoch")
	if v["exists"] != true || v["value_text"] != "höt" || v["value"] != base64.StdEncoding.EncodeToString([]byte("höt")) || v["fence"] != "9" {
		t.Errorf("%v", v)
	}
	r := keystead(t, "register", "put", "regjson", "x", "--if-absent", "--json")
	v = object(t, r.out)
	hasFields(t, v, "exists", "value", "value_text", "version", "applied", "refused", "epoch")
	if r.code != 3 || v["applied"] != false || v["refused"] != "another version" || v["value_text"] != "höt" {
		t.Errorf("%+v", r)
	}
	v = object(t, succeeds(t, "register", "delete", "regjson", "--json"))
	if v["applied"] != true || v["exists"] != false || v["value"] != "" {
		t.Errorf("%v", v)
	}
	if r := keystead(t, "register", "get", "regjson", "--json"); r.code != 3 || object(t, r.out)["exists"] != false {
		t.Errorf("%+v", r)
	}
	if got := succeeds(t, "key", "regjson"); !strings.Contains(got, "removed, fence 9") {
		t.Errorf("%s", got)
	}
}

// A watch prints what there is, and what it becomes.
func TestRegisterWatch(t *testing.T) {
	first := strings.TrimSpace(succeeds(t, "register", "put", "watched", "a b"))
	if got := succeeds(t, "register", "watch", "watched", "--once"); got != first+"  \"a b\"\n" {
		t.Errorf("%q", got)
	}
	w := start(t, nil, "register", "watch", "watched", "--after", first, "--json", "--once")
	second := strings.TrimSpace(succeeds(t, "register", "put", "watched", "c"))
	code := w.wait()
	if v := object(t, w.out()); code != 0 || v["value_text"] != "c" || v["version"] != second || v["exists"] != true {
		t.Errorf("%d: %s", code, w.out())
	}
	if r := keystead(t, "register", "watch", "watched", "--after", second, "--once", "--timeout", "50ms"); r.code != 3 || r.out != "" || r.err != "" {
		t.Errorf("nothing new in 50 ms: %+v", r)
	}
	if r := keystead(t, "register", "watch", "watched", "--timeout", "1s"); r.code != 0 || r.out != second+"  \"c\"\n" {
		t.Errorf("for 1 s: %+v", r)
	}
	succeeds(t, "register", "delete", "watched")
	if got := succeeds(t, "register", "watch", "watched", "--after", second, "--once"); !strings.HasSuffix(got, "  removed\n") {
		t.Errorf("%q", got)
	}
}
