package system

import (
	"github.com/keystead/keystead/internal/cli"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// envoyExamples are the files of deploy/envoy and the commands that make them.
var envoyExamples = map[string][]string{
	"dynamic.yaml": {"bootstrap", "--nodes", "10.0.0.1:7400,10.0.0.2:7400,10.0.0.3:7400"},
	"static.yaml":  {"static", "--nodes", "10.0.0.1:7400,10.0.0.2:7400,10.0.0.3:7400", "--listener", "0.0.0.0:10000"},
	"app.yaml":     {"bootstrap", "--nodes", "10.0.0.1:7400,10.0.0.2:7400,10.0.0.3:7400", "--listener", "0.0.0.0:8080", "--app", "--key-header", "x-api-key"},
	"ratelimit.yaml": {"bootstrap", "--nodes", "10.0.0.1:7400,10.0.0.2:7400,10.0.0.3:7400", "--listener", "0.0.0.0:8080",
		"--rls", "web", "--rls-descriptor", "api_key=x-api-key,remote_address", "--rls-failure", "allow", "--upstream", "127.0.0.1:8000"},
}

// envoyCommand runs `keystead envoy` in this process.
func envoyCommand(t *testing.T, args ...string) result {
	t.Helper()
	var out, errs strings.Builder
	code := cli.Run(t.Context(), append([]string{"envoy"}, args...), cli.Process{In: strings.NewReader(""), Out: &out, Err: &errs})
	return result{code, out.String(), errs.String()}
}

// The examples are what the commands print. `go test ./internal/tests/system -run
// TestEnvoyExamples -update` writes them anew.
func TestEnvoyExamples(t *testing.T) {
	dir := filepath.Join("..", "..", "..", "deploy", "envoy")
	for name, args := range envoyExamples {
		want := printed(t, filepath.Join(dir, name), args...)
		// So does the command in its comment.
		_, made, _ := strings.Cut(want, "# Made by: keystead envoy ")
		made, _, _ = strings.Cut(made, "\n")
		if again := envoyCommand(t, strings.Fields(made)...); again.out != want {
			t.Errorf("%s: `keystead envoy %s` makes another file: %+v", name, made, again)
		}
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil || len(files) != len(envoyExamples) {
		t.Errorf("%q are not the %d files that are checked: %v", files, len(envoyExamples), err)
	}
}

// The Envoy of compose has what the command prints for its nodes.
func TestEnvoyOfCompose(t *testing.T) {
	printed(t, filepath.Join("..", "..", "..", "deploy", "compose", "envoy.yaml"), "bootstrap", "--nodes", "n1:7400,n2:7400,n3:7400")
}

// printed sees that a file is what `keystead envoy` prints, and returns it.
func printed(t *testing.T, path string, args ...string) string {
	t.Helper()
	got := envoyCommand(t, args...)
	if got.code != 0 || got.err != "" {
		t.Fatalf("%s: %+v", path, got)
	}
	if *update {
		if err := os.WriteFile(path, []byte(got.out), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got.out != string(want) {
		t.Errorf("%s: -update writes it anew; got\n%s", path, got.out)
	}
	return string(want)
}

// The command in the comment makes the same file.
func TestEnvoyMadeBy(t *testing.T) {
	args := []string{"static", "--nodes", "10.0.0.1:7400=it's a,10.0.0.2:7400", "--envoy-admin", "", "--rls", "a b"}
	first := envoyCommand(t, args...)
	_, made, _ := strings.Cut(first.out, "# Made by: keystead envoy ")
	made, _, _ = strings.Cut(made, "\n")
	if want := `static --envoy-admin '' --nodes '10.0.0.1:7400=it'\''s a,10.0.0.2:7400' --rls 'a b'`; made != want {
		t.Fatalf("made by %q, want %q", made, want)
	}
}

func TestEnvoyRefusals(t *testing.T) {
	const nodes, two = "--nodes", "10.0.0.1:7400,10.0.0.2:7400"
	for _, c := range []struct {
		says string
		args []string
	}{
		{"no nodes\n  hint: name them with --nodes, or", []string{"static"}},
		{"--nodes and --from exclude", []string{"static", nodes, two, "--from", "127.0.0.1:1"}},
		{"--from \"here\": write HOST:PORT", []string{"static", "--from", "here"}},
		{"--nodes: \"10.0.0.1\" has no port", []string{"static", nodes, "10.0.0.1"}},
		{"has an empty hash key", []string{"static", nodes, "10.0.0.1:7400="}},
		{"--nodes: 10.0.0.1:7400 is there twice", []string{"static", nodes, "10.0.0.1:7400,10.0.0.1:7400=b"}},
		{"have the hash key \"a\"", []string{"static", nodes, "10.0.0.1:7400=a,10.0.0.2:7400=a"}},
		{"--listener: \"localhost\" is no IP address", []string{"static", nodes, two, "--listener", "localhost:1"}},
		{"--envoy-admin: ", []string{"static", nodes, two, "--envoy-admin", "9901"}},
		{"--key-header: \"x-a-bin\" is a binary header", []string{"static", nodes, two, "--key-header", "x-a-bin"}},
		{"--rls-failure goes with --rls", []string{"static", nodes, two, "--rls-failure", "deny"}},
		{"--rls-failure \"shut\": choose allow or deny", []string{"static", nodes, two, "--rls", "web", "--rls-failure", "shut"}},
		{"--rls-timeout: 1h0m0s is out of bounds", []string{"static", nodes, two, "--rls", "web", "--rls-timeout", "1h"}},
		{"write KEY=HEADER or remote_address", []string{"static", nodes, two, "--rls", "web", "--rls-descriptor", "remote"}},
		{"names no header", []string{"static", nodes, two, "--rls", "web", "--rls-descriptor", "k="}},
		{"--upstream: without a rate limit", []string{"static", nodes, two, "--upstream", "127.0.0.1:8000"}},
		{"unknown flag: --app", []string{"static", nodes, two, "--app"}},
		{"--app goes with --listener", []string{"bootstrap", "--app"}},
		{"--key-header goes with --listener", []string{"bootstrap", "--key-header", "x-a"}},
		{"--upstream: requests go either", []string{"bootstrap", "--listener", "[::]:1", "--app", "--rls", "web", "--upstream", "b:1"}},
		{"--nodes: \"a\" has no port", []string{"bootstrap", nodes, "a"}},
		{"takes nothing but flags", []string{"bootstrap", "a:1"}},
		{"did you mean `keystead envoy static`?", []string{"statik"}},
	} {
		got := envoyCommand(t, c.args...)
		if got.code != exitUsage || got.out != "" || !strings.Contains(got.err, c.says) || !strings.Contains(got.err, "hint: ") && !strings.Contains(got.err, "write ") {
			t.Errorf("%q: %+v, want %q", c.args, got, c.says)
		}
	}
}

// A node that runs alone is the only one on its ring.
func TestEnvoyStaticFrom(t *testing.T) {
	t.Parallel()
	got := succeeds(t, "envoy", "static", "--from", shared)
	host, port, _ := strings.Cut(shared, ":")
	for _, want := range []string{
		"socket_address: {address: \"" + host + "\", port_value: " + port + "}",
		"envoy.lb: {hash_key: \"" + shared + "\"}",
		"minimum_ring_size: 256 #",
		"# Made by: keystead envoy static --from " + shared + "\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in\n%s", want, got)
		}
	}
	r := keystead(t, "envoy", "static", "--from", "127.0.0.1:1")
	if r.code != exitError || r.out != "" || !strings.Contains(r.err, "cannot reach a node at 127.0.0.1:1") || !strings.Contains(r.err, "--from") {
		t.Errorf("nobody there: %+v", r)
	}
}

// Settings of the environment reach the command and its comment.
func TestEnvoyEnvironment(t *testing.T) {
	t.Parallel()
	p := start(t, env("KEYSTEAD_KEY_HEADER=x-tenant", "KEYSTEAD_NODES=10.0.0.1:7400,10.0.0.2:7400"), "envoy", "static")
	p.ends(t, 0)
	want := []string{"# Made by: keystead envoy static --key-header x-tenant --nodes 10.0.0.1:7400,10.0.0.2:7400\n", "header_name: \"x-tenant\""}
	if slices.ContainsFunc(want, func(w string) bool { return !strings.Contains(p.out(), w) }) {
		t.Errorf("%q are not all in\n%s", want, p.out())
	}
}

// A node that listens on all addresses and runs alone does not know its own.
func TestEnvoyStaticFromEverywhere(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil, "server", "--id", "everywhere", "--grpc-addr", "0.0.0.0:0")
	_, port, err := net.SplitHostPort(n.grpc)
	if err != nil {
		t.Fatal(err)
	}
	r := keystead(t, "envoy", "static", "--from", "127.0.0.1:"+port)
	if r.code != exitError || r.out != "" || !strings.Contains(r.err, "is where one listens") || !strings.Contains(r.err, "--nodes") {
		t.Errorf("got %+v", r)
	}
}
