package rls

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A file that is being written does not count in part, nor is it called broken: what
// is new has to be there at two looks in a row.
func TestHalfWrittenFile(t *testing.T) {
	const whole = "domain: d\ndescriptors:\n- {key: a, rate_limit: {unit: day, requests_per_unit: 1}}\n- {key: b, rate_limit: {unit: day, requests_per_unit: 2}}\n"
	half, torn := whole[:strings.Index(whole, "- {key: b")], whole[:len(whole)-9]
	synctest.Test(t, func(t *testing.T) {
		s := newService(t, "domain: d\ndescriptors: [{key: c, rate_limit: {unit: day, requests_per_unit: 3}}]\n", nil)
		put := func(text string) {
			t.Helper()
			if err := os.WriteFile(s.cfg.Path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		// look lets the service look once, and says which limits are in force.
		look := func() string {
			time.Sleep(DefaultPoll)
			synctest.Wait()
			var paths []string
			for _, l := range s.now.Load().rules.limits {
				paths = append(paths, l.Path)
			}
			if s.Status().Broken != nil {
				paths = append(paths, "broken")
			}
			return strings.Join(paths, " ")
		}
		for i, st := range []struct{ text, want string }{
			{half, "c"}, {torn, "c"}, {whole, "c"}, {whole, "a b"}, // the first look at the whole is not enough
			{torn, "a b"}, {torn, "a b broken"}, {half, "a b broken"}, {half, "a"},
			{whole, "a"}, {half, "a"}, {whole, "a"}, {half, "a"}, // never twice the same
		} {
			put(st.text)
			if got := look(); got != st.want {
				t.Errorf("look %d: in force is %q, want %q", i+1, got, st.want)
			}
		}
		if n := s.counted(t, "keystead_rls_config_loads_total", "loaded"); n != 2 {
			t.Errorf("%v files were taken", n)
		}
	})
}

// A directory that has more names than are looked at is wrong, not cut.
func TestCrowdedDirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	put := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("limits.yaml", "domain: d\n")
	for i := range maxNames - 1 {
		put(strings.Repeat("x", 1+i%200)+string(rune('a'+i/200)), "")
	}
	if rules, err := Load([]string{dir}, LoadOptions{}); err != nil || len(rules.Files()) != 1 {
		t.Fatalf("%d names: %v", maxNames, err)
	}
	put("zz.yaml", "domain: e\n")
	_, err := Load([]string{dir}, LoadOptions{})
	if err == nil || !strings.Contains(err.Error(), dir+": the directory has more than 4096 names\n  hint: ") {
		t.Errorf("%d names: %v", maxNames+1, err)
	}
}
