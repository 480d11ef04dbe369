package system

import (
	"encoding/json"
	"github.com/keystead/keystead/internal/cli"
	"reflect"
	"strings"
	"testing"
)

func TestOwnerOffline(t *testing.T) {
	var out, errs strings.Builder
	do := func(args ...string) int {
		out.Reset()
		errs.Reset()
		return cli.Run(t.Context(), append([]string{"owner"}, args...), cli.Process{In: strings.NewReader(""), Out: &out, Err: &errs})
	}
	// The ring of Envoy's own test: six hosts with two points each.
	hosts := "127.0.0.1:90,127.0.0.1:91,127.0.0.1:92,127.0.0.1:93,127.0.0.1:94,127.0.0.1:95"
	if code := do("foo", "bar", "--nodes", hosts, "--ring-size", "12", "--json"); code != 0 {
		t.Fatal(code, errs.String())
	}
	var got []ownerJSON
	if err := json.Unmarshal([]byte(out.String()), &got); err != nil {
		t.Fatal(err)
	}
	want := []ownerJSON{
		{"foo", "3728699739546630719", "127.0.0.1:93", "127.0.0.1:91"},
		{"bar", "5234164152756840025", "127.0.0.1:91", "127.0.0.1:93"},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	if code := do("foo", "--nodes", "only"); code != 0 || !strings.Contains(out.String(), "3728699739546630719  only   -") {
		t.Errorf("%d: %s", code, out.String())
	}
	for name, args := range map[string][]string{
		"no key":  {"--nodes", "a,b"},
		"addr":    {"foo", "--nodes", "a,b", "--addr", "127.0.0.1:7400"},
		"timeout": {"foo", "--nodes", "a,b", "--timeout", "1s"},
		"online":  {"foo", "--ring-size", "12"},
		"twice":   {"foo", "--nodes", "a,a"},
		"size":    {"foo", "--nodes", "a", "--ring-size", "99999999"},
	} {
		if code := do(args...); code != exitUsage || !strings.HasPrefix(errs.String(), "keystead: ") {
			t.Errorf("%s: %d %s", name, code, errs.String())
		}
	}
}
