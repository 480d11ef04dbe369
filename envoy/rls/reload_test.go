package rls_test

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	reflectpb "google.golang.org/grpc/reflection/grpc_reflection_v1"

	"github.com/keystead/keystead/envoy/rls"
	"github.com/keystead/keystead/internal/node"
)

func (s *service) describe(t *testing.T, symbol string) string {
	t.Helper()
	stream, err := reflectpb.NewServerReflectionClient(dial(t, s.node)).ServerReflectionInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&reflectpb.ServerReflectionRequest{MessageRequest: &reflectpb.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: symbol}}); err != nil {
		t.Fatal(err)
	}
	r, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	var all []byte
	for _, f := range r.GetFileDescriptorResponse().GetFileDescriptorProto() {
		all = append(all, f...)
	}
	return string(all)
}

func (s *service) status(t testing.TB) rls.Status {
	t.Helper()
	var st struct{ RLS *rls.Status }
	if err := json.Unmarshal([]byte(s.get(t, "/status")), &st); err != nil || st.RLS == nil {
		t.Fatal(err)
	}
	return *st.RLS
}

func oneLimit(requests string) string {
	return "domain: d\ndescriptors: [{key: a, rate_limit: {unit: hour, requests_per_unit: " + requests + "}}]\n"
}

// locked is a log that may be read while it is written.
type locked struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *locked) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// A changed file counts without a restart and gives back nothing that was spent;
// a broken one changes nothing, and says so.
func TestReload(t *testing.T) {
	t.Parallel()
	var log locked
	s := serve(t, oneLimit("10"), func(c *node.Config) { c.Log = slog.New(slog.NewTextHandler(&log, nil)) })
	ask := func() string {
		r, err := s.ask(t, "d", 1, "a=1")
		if err != nil {
			t.Fatal(err)
		}
		return show(r)
	}
	if got := ask(); got != "ok: ok 9 of 10/hour" {
		t.Fatal(got)
	}
	write(t, s.file, oneLimit("100"))
	eventually(t, "the new limit counts", func() bool { return s.status(t).Broken == nil && strings.Contains(ask(), "of 100/hour") })

	write(t, s.file, oneLimit("many"))
	eventually(t, "the node says that the file is broken", func() bool { return s.status(t).Broken != nil })
	st := s.status(t)
	if p := st.Broken[0]; p.File != s.file || p.Line != 2 || !strings.Contains(p.Message, "requests_per_unit") || st.Limits != 1 {
		t.Errorf("%+v", st)
	}
	if got := ask(); !strings.Contains(got, "of 100/hour") {
		t.Errorf("with a broken file: %s", got)
	}
	metrics := s.metrics(t)
	for _, want := range []string{"keystead_rls_config_broken 1\n", `keystead_rls_config_loads_total{outcome="loaded"} 1`, `keystead_rls_config_loads_total{outcome="refused"} 1`} {
		if !strings.Contains(metrics, want) {
			t.Errorf("no %s in\n%s", want, lines(metrics, "keystead_rls_config"))
		}
	}
	if !strings.Contains(log.String(), "level=ERROR") || !strings.Contains(log.String(), "requests_per_unit") {
		t.Errorf("the log does not say it:\n%s", log.String())
	}

	write(t, s.file, oneLimit("50"))
	eventually(t, "the file that is whole again counts", func() bool { return s.status(t).Broken == nil && strings.Contains(ask(), "of 50/hour") })

	if err := os.Remove(s.file); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the node says that the file is gone", func() bool { return s.status(t).Broken != nil })
	if got := ask(); !strings.Contains(got, "of 50/hour") {
		t.Errorf("without the file: %s", got)
	}
}

// A file that is written again with the same length within the resolution of the
// file system's times is noticed, too.
func TestReloadSameSize(t *testing.T) {
	t.Parallel()
	s := serve(t, oneLimit("11"), nil)
	soon := time.Now().Add(time.Hour).Truncate(time.Second) // always so young that a write may not show
	for _, limit := range []string{"12", "13", "14"} {
		if err := os.WriteFile(s.file, []byte(oneLimit(limit)), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(s.file, soon, soon); err != nil {
			t.Fatal(err)
		}
		eventually(t, "a limit of "+limit, func() bool {
			r, err := s.ask(t, "d", 1, "a=1 +0")
			return err == nil && strings.Contains(show(r), "of "+limit)
		})
	}
}

// Files of a directory come and go, also as Kubernetes exchanges them: by a link to
// another directory.
func TestReloadDirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first, second, mount := filepath.Join(dir, "..1"), filepath.Join(dir, "..2"), filepath.Join(dir, "mount")
	for _, d := range []string{first, second, mount} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(first, "d.yaml"), oneLimit("10"))
	write(t, filepath.Join(second, "d.yaml"), oneLimit("20"))
	link := func(target, name string) {
		if err := os.Symlink(target, name+".new"); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(name+".new", name); err != nil {
			t.Fatal(err)
		}
	}
	link(first, filepath.Join(mount, "..data"))
	link(filepath.Join("..data", "d.yaml"), filepath.Join(mount, "d.yaml"))
	write(t, filepath.Join(mount, "notes.txt"), "not read")

	s := serve(t, "unused", func(c *node.Config) { c.RLS.Path = mount })
	limitIs := func(want string) func() bool {
		return func() bool {
			r, err := s.ask(t, "d", 1, "a=1 +0")
			return err == nil && strings.Contains(show(r), "of "+want+"/hour")
		}
	}
	if !limitIs("10")() {
		t.Fatal("the first configuration does not count")
	}
	link(second, filepath.Join(mount, "..data"))
	eventually(t, "the configuration behind the link counts", limitIs("20"))

	write(t, filepath.Join(mount, "e.yaml"), strings.Replace(oneLimit("5"), "domain: d", "domain: e", 1))
	eventually(t, "a second file counts", func() bool { return s.status(t).Domains == 2 })
	write(t, filepath.Join(mount, "f.yaml"), oneLimit("5"))
	eventually(t, "a domain that comes twice is refused", func() bool { return s.status(t).Broken != nil })
	if p := s.status(t).Broken[0]; !strings.HasSuffix(p.File, "f.yaml") || !strings.Contains(p.Message, "second time") {
		t.Errorf("%+v", p)
	}
}

// A node does not start with a broken configuration, or a wrong setting.
func TestStartRefuses(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "broken.yaml")
	write(t, file, "domain: d\ndescriptors: [{kee: a}]\n")
	for _, tc := range []struct {
		conf rls.Config
		says string
	}{
		{rls.Config{Path: file}, `broken.yaml:2: a descriptor has no "kee"`},
		{rls.Config{Path: file + ".not"}, "no such file or directory"},
		{rls.Config{Path: file, Headers: "all"}, `headers "all"`},
		{rls.Config{Path: t.TempDir()}, "no files that end in .yaml or .yml"},
	} {
		n, err := node.Start(node.Config{ID: "n1", GRPCAddr: "127.0.0.1:0", RLS: tc.conf})
		if err == nil || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v", tc.says, err)
		}
		if n != nil {
			n.Stop()
		}
	}
}
