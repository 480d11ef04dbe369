package config

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// settings is a command with a flag of every type that the program uses.
type settings struct {
	*pflag.FlagSet
	addr, token, config string
	ttl                 time.Duration
	points              int
	bytes               uint64
	ratio               float64
	forward             bool
	peers               []string
	weights             []int
}

func newSettings() *settings {
	s := &settings{FlagSet: pflag.NewFlagSet("server", pflag.ContinueOnError)}
	s.StringVar(&s.addr, "grpc-addr", "default:1", "")
	s.StringVar(&s.token, "grpc-token", "", "")
	s.StringVar(&s.config, "config", "", "")
	s.DurationVar(&s.ttl, "lease-ttl", time.Second, "")
	s.IntVar(&s.points, "points", 256, "")
	s.Uint64Var(&s.bytes, "max-bytes", 1, "")
	s.Float64Var(&s.ratio, "hot-ratio", 10, "")
	s.BoolVar(&s.forward, "forward", true, "")
	s.StringSliceVar(&s.peers, "peers", []string{"self"}, "")
	s.IntSliceVar(&s.weights, "weights", nil, "")
	s.Bool("help", false, "")
	MarkSecret(s.FlagSet, "grpc-token")
	return s
}

// load parses args, writes yaml to keystead.yaml where it is not empty, and loads.
func (s *settings) load(t testing.TB, args, environ []string, yaml string) (Sources, error) {
	t.Helper()
	if yaml != "" {
		t.Chdir(t.TempDir())
		if err := os.WriteFile("keystead.yaml", []byte(yaml), 0o600); err != nil {
			t.Fatal(err)
		}
		environ = append(environ, "KEYSTEAD_CONFIG=keystead.yaml")
	}
	if err := s.Parse(args); err != nil {
		t.Fatal(err)
	}
	return Load(s.FlagSet, Input{Environ: environ, Program: []string{"addr", "grpc-addr", "key", "client-name"}})
}

// TestPrecedence has one row for every set of places that give a value.
func TestPrecedence(t *testing.T) {
	for _, tc := range []struct {
		name            string
		flag, env, file bool
		want            string
		source          Source
	}{
		{name: "nothing", want: "default:1"},
		{name: "file over default", file: true, want: "file:1", source: Source{File, "keystead.yaml", 2}},
		{name: "environment over default", env: true, want: "env:1", source: Source{Environment, "KEYSTEAD_GRPC_ADDR", 0}},
		{name: "flag over default", flag: true, want: "flag:1", source: Source{CommandLine, "grpc-addr", 0}},
		{name: "environment over file", env: true, file: true, want: "env:1", source: Source{Environment, "KEYSTEAD_GRPC_ADDR", 0}},
		{name: "flag over file", flag: true, file: true, want: "flag:1", source: Source{CommandLine, "grpc-addr", 0}},
		{name: "flag over environment", flag: true, env: true, want: "flag:1", source: Source{CommandLine, "grpc-addr", 0}},
		{name: "flag over both", flag: true, env: true, file: true, want: "flag:1", source: Source{CommandLine, "grpc-addr", 0}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var args, environ []string
			var yaml string
			if tc.flag {
				args = []string{"--grpc-addr=flag:1"}
			}
			if tc.env {
				environ = []string{"KEYSTEAD_GRPC_ADDR=env:1"}
			}
			if tc.file {
				yaml = "# a file\ngrpc-addr: file:1\n"
			}
			s := newSettings()
			got, err := s.load(t, args, environ, yaml)
			if err != nil {
				t.Fatal(err)
			}
			if source, ok := got.Of("grpc-addr"); s.addr != tc.want || source != tc.source || !ok {
				t.Errorf("got %q from %v (%v), want %q from %v", s.addr, source, ok, tc.want, tc.source)
			}
			if changed := s.Changed("grpc-addr"); changed != (tc.flag || tc.env || tc.file) {
				t.Errorf("Changed = %v", changed)
			}
		})
	}
}

// A flag on the command line wins even when it repeats the default, and a list
// there is not added to.
func TestCommandLineAlwaysWins(t *testing.T) {
	s := newSettings()
	_, err := s.load(t, []string{"--points=256", "--peers=a", "--peers=b", "--forward"},
		[]string{"KEYSTEAD_POINTS=1", "KEYSTEAD_PEERS=c"}, "forward: false\npeers: [d]\n")
	if err != nil {
		t.Fatal(err)
	}
	if s.points != 256 || strings.Join(s.peers, " ") != "a b" || !s.forward {
		t.Errorf("points %d, peers %v, forward %v", s.points, s.peers, s.forward)
	}
}

func TestValues(t *testing.T) {
	for _, tc := range []struct {
		name string
		env  string
		yaml string
		get  func(*settings) any
		want any
	}{
		{name: "duration", env: "KEYSTEAD_LEASE_TTL=1m30s", get: func(s *settings) any { return s.ttl }, want: 90 * time.Second},
		{name: "duration in the file", yaml: "lease_ttl: 250ms", get: func(s *settings) any { return s.ttl }, want: 250 * time.Millisecond},
		{name: "int", env: "KEYSTEAD_POINTS=64", get: func(s *settings) any { return s.points }, want: 64},
		{name: "int in the file", yaml: "points: 0x40", get: func(s *settings) any { return s.points }, want: 64},
		{name: "uint64 in the file", yaml: "max-bytes: 18446744073709551615", get: func(s *settings) any { return s.bytes }, want: uint64(1<<64 - 1)},
		{name: "float in the file", yaml: "hot-ratio: 2.5", get: func(s *settings) any { return s.ratio }, want: 2.5},
		{name: "bool", env: "KEYSTEAD_FORWARD=0", get: func(s *settings) any { return s.forward }, want: false},
		{name: "bool in the file", yaml: "forward: false", get: func(s *settings) any { return s.forward }, want: false},
		{name: "list", env: "KEYSTEAD_PEERS=a:1, b:2", get: func(s *settings) any { return strings.Join(s.peers, "|") }, want: "a:1|b:2"},
		{name: "quoted list", env: `KEYSTEAD_PEERS="a,b",c`, get: func(s *settings) any { return strings.Join(s.peers, "|") }, want: "a,b|c"},
		{name: "list in the file", yaml: "peers: [a:1, 'b,c']", get: func(s *settings) any { return strings.Join(s.peers, "|") }, want: "a:1|b,c"},
		{name: "block list", yaml: "peers:\n  - a\n  - b", get: func(s *settings) any { return strings.Join(s.peers, "|") }, want: "a|b"},
		{name: "empty list", yaml: "peers: []", get: func(s *settings) any { return len(s.peers) }, want: 0},
		{name: "scalar for a list", yaml: "peers: a,b", get: func(s *settings) any { return strings.Join(s.peers, "|") }, want: "a|b"},
		{name: "list of numbers", yaml: "weights: [1, 2]", get: func(s *settings) any { return s.weights[0]*10 + s.weights[1] }, want: 12},
		{name: "text as written", yaml: "grpc-addr: 1.10", get: func(s *settings) any { return s.addr }, want: "1.10"},
		{name: "a date as written", yaml: "grpc-addr: 2024-01-01", get: func(s *settings) any { return s.addr }, want: "2024-01-01"},
		{name: "nested", yaml: "grpc:\n  addr: x", get: func(s *settings) any { return s.addr }, want: "x"},
		{name: "empty text", yaml: "grpc-addr: ''", get: func(s *settings) any { return s.addr }, want: ""},
		{name: "null", yaml: "grpc-addr:\nlease: ~", get: func(s *settings) any { return s.addr }, want: "default:1"},
		{name: "empty variable", env: "KEYSTEAD_GRPC_ADDR=", get: func(s *settings) any { return s.addr }, want: "default:1"},
		{name: "only comments", yaml: "# nothing\n", get: func(s *settings) any { return s.addr }, want: "default:1"},
		{name: "empty document", yaml: "---\n", get: func(s *settings) any { return s.addr }, want: "default:1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newSettings()
			if _, err := s.load(t, nil, []string{tc.env}, tc.yaml); err != nil {
				t.Fatal(err)
			}
			if got := tc.get(s); got != tc.want {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}

func TestErrors(t *testing.T) {
	for _, tc := range []struct {
		name string
		env  string
		yaml string
		want string
	}{
		{name: "unknown in the file", yaml: "\ngrpc-adr: x",
			want: "unknown setting `grpc-adr` in keystead.yaml:2; did you mean `grpc-addr`?"},
		{name: "unknown in a group", yaml: "grpc: {adrd: x}",
			want: "unknown setting `grpc-adrd` in keystead.yaml:1; did you mean `grpc-addr`?"},
		{name: "unknown group", yaml: "grcp: {addr: x}",
			want: "unknown setting `grcp` in keystead.yaml:1; --help lists the settings"},
		{name: "dotted", yaml: "grpc.addr: x",
			want: "unknown setting `grpc.addr` in keystead.yaml:1; did you mean `grpc-addr`?"},
		{name: "unknown and null", yaml: "pears:",
			want: "unknown setting `pears` in keystead.yaml:1; did you mean `peers`?"},
		{name: "unknown variable", env: "KEYSTEAD_LEASE_TLT=5s",
			want: "unknown setting `lease-tlt` in environment variable KEYSTEAD_LEASE_TLT; did you mean KEYSTEAD_LEASE_TTL?"},
		{name: "nearly another command's", env: "KEYSTEAD_ADDER=x",
			want: "unknown setting `adder` in environment variable KEYSTEAD_ADDER; did you mean KEYSTEAD_ADDR?"},
		{name: "lower case variable", env: "KEYSTEAD_points=5",
			want: "unknown setting `points` in environment variable KEYSTEAD_points; did you mean KEYSTEAD_POINTS?"},
		{name: "far from everything", yaml: "colour: red",
			want: "unknown setting `colour` in keystead.yaml:1; --help lists the settings"},
		{name: "help is no setting", env: "KEYSTEAD_HELP=true",
			want: "unknown setting `help` in environment variable KEYSTEAD_HELP; --help lists the settings"},
		{name: "bad duration", yaml: "lease-ttl: 10",
			want: "`lease-ttl` cannot be \"10\" in keystead.yaml:1; missing unit; write 10s for seconds, or like 300ms and 1h30m"},
		{name: "bad int", env: "KEYSTEAD_POINTS=many",
			want: "`points` cannot be \"many\" in environment variable KEYSTEAD_POINTS; write a whole number"},
		{name: "bad bool", yaml: "forward: yes",
			want: "`forward` cannot be \"yes\" in keystead.yaml:1; write true or false"},
		{name: "bad element", yaml: "weights: [1, x]",
			want: "`weights` is not valid in keystead.yaml:1; write whole numbers, with commas"},
		{name: "bad quotes", env: `KEYSTEAD_PEERS=a"b`,
			want: "`peers` cannot be \"a\\\"b\" (parse error on line 1, column 2: bare \" in non-quoted-field) in environment variable KEYSTEAD_PEERS"},
		{name: "two lines", env: "KEYSTEAD_PEERS=a\nb",
			want: "`peers` cannot be \"a\\nb\" (the values stand on more than one line) in environment variable KEYSTEAD_PEERS"},
		{name: "duplicate key", yaml: "points: 1\n\npoints: 2",
			want: "`points` is set a second time in keystead.yaml:3; the first is on line 1"},
		{name: "duplicate in two spellings", yaml: "grpc-addr: x\ngrpc_addr: y",
			want: "`grpc-addr` is set a second time in keystead.yaml:2; the first is on line 1"},
		{name: "duplicate, nested", yaml: "grpc-addr: x\ngrpc:\n  addr: y",
			want: "`grpc-addr` is set a second time in keystead.yaml:3; the first is on line 1"},
		{name: "list for one value", yaml: "points: [1]",
			want: "`points` takes one int, found a list in keystead.yaml:1"},
		{name: "map for a list", yaml: "peers: {a: b}",
			want: "`peers` takes one stringSlice, found a map in keystead.yaml:1"},
		{name: "map in a list", yaml: "peers:\n- a: b",
			want: "`peers` is a list of plain values, found a map in keystead.yaml:2"},
		{name: "value for a group", yaml: "grpc: x",
			want: "`grpc` is a group of settings, found a plain value in keystead.yaml:1"},
		{name: "not a map", yaml: "- points",
			want: "keystead.yaml:1: expected settings, found a list; write one `name: value` a line"},
		{name: "not a map but text", yaml: "points=5",
			want: "keystead.yaml:1: expected settings, found a plain value; write one `name: value` a line"},
		{name: "not YAML", yaml: "a: b\nc: [",
			want: "keystead.yaml:2: this is not YAML: did not find expected node content"},
		{name: "alias", yaml: "grpc-addr: &a x\ngrpc-token: *a",
			want: "`grpc-token` takes one string, found an alias, which is not supported in keystead.yaml:2"},
		{name: "merge key", yaml: "<<: {points: 1}",
			want: "keystead.yaml:1: a key must be the name of a setting, found a merge key, which is not supported; write one `name: value` a line"},
		{name: "second document", yaml: "points: 1\n---\npoints: 2",
			want: "keystead.yaml:2: a second document starts here; remove the `---`"},
		{name: "too large", yaml: strings.Repeat("#", MaxFileSize+1),
			want: "keystead.yaml: the file is too large; the limit is 1048576 bytes; is this the right file?"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := newSettings().load(t, nil, []string{tc.env}, tc.yaml)
			if err == nil || err.Error() != tc.want {
				t.Fatalf("got  %v\nwant %s", err, tc.want)
			}
			var typed *Error
			if !errors.As(err, &typed) || typed.Source == (Source{}) || typed.Problem == "" {
				t.Errorf("not a complete *Error: %#v", err)
			}
		})
	}
}

func TestFileErrors(t *testing.T) {
	dir := t.TempDir()
	for _, tc := range []struct {
		name string
		path string
		want string
		is   error
	}{
		{name: "missing", path: filepath.Join(dir, "no.yaml"), want: "no such file", is: fs.ErrNotExist},
		{name: "a directory", path: dir, want: "cannot read the file: is a directory"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := newSettings().load(t, []string{"--config", tc.path}, nil, "")
			if err == nil || !strings.Contains(err.Error(), tc.want) || (tc.is != nil && !errors.Is(err, tc.is)) {
				t.Fatalf("got %v, want %q", err, tc.want)
			}
		})
	}
	t.Run("named and unnamed", func(t *testing.T) {
		missing := "KEYSTEAD_CONFIG=" + filepath.Join(dir, "no.yaml")
		if _, err := newSettings().load(t, nil, []string{missing}, ""); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("a missing KEYSTEAD_CONFIG: %v", err)
		}
		if _, err := newSettings().load(t, []string{"--config="}, []string{missing}, ""); err != nil {
			t.Errorf("--config= asks for no file: %v", err)
		}
	})
	t.Run("exactly the limit", func(t *testing.T) {
		yaml := "points: 7\n"
		s := newSettings()
		if _, err := s.load(t, nil, nil, yaml+strings.Repeat("#", MaxFileSize-len(yaml))); err != nil || s.points != 7 {
			t.Errorf("points %d, %v", s.points, err)
		}
	})
}

func TestManyErrors(t *testing.T) {
	_, err := newSettings().load(t, nil, []string{"KEYSTEAD_POINST=1"}, "pionts: 1\nlease-ttl: x\n")
	want := []string{
		"unknown setting `pionts` in keystead.yaml:1; did you mean `points`?",
		"unknown setting `poinst` in environment variable KEYSTEAD_POINST; did you mean KEYSTEAD_POINTS?",
		"`lease-ttl` cannot be \"x\" in keystead.yaml:2; write a time with its unit, like 300ms, 10s or 1h30m",
	}
	if err == nil || err.Error() != strings.Join(want, "\n") {
		t.Errorf("got %v", err)
	}
	_, err = newSettings().load(t, nil, nil, strings.Repeat("wrong: 1\n", 1000))
	if n := strings.Count(err.Error(), "\n") + 1; n != maxErrors {
		t.Errorf("%d errors, want %d", n, maxErrors)
	}
	_, err = newSettings().load(t, nil, nil, strings.Repeat("w", 5000)+": 1\n")
	if err == nil || len(err.Error()) > 300 {
		t.Errorf("a long name is repeated at length: %v", err)
	}
}

// TestIgnored lists the names that are nobody's mistake.
func TestIgnored(t *testing.T) {
	for _, tc := range []struct{ name, variable, why string }{
		{"another command", "KEYSTEAD_ADDR=x:1", "a setting of another command"},
		{"fencing token", "KEYSTEAD_FENCING_TOKEN=7", "set by `keystead lock`"},
		{"lock", "KEYSTEAD_LOCK_NAME=x", "set by `keystead lock`"},
		{"help for the shell", "KEYSTEAD_ACTIVE_HELP=0", "steers shell completion"},
		{"completion", "KEYSTEAD_COMPLETION_DESCRIPTIONS=0", "steers shell completion"},
		{"service host", "KEYSTEAD_SERVICE_HOST=10.0.0.1", "set by Kubernetes for a Service called keystead"},
		{"service port", "KEYSTEAD_SERVICE_PORT=7480", "set by Kubernetes for a Service called keystead"},
		{"named service port", "KEYSTEAD_SERVICE_PORT_GRPC_WEB=7480", "set by Kubernetes for a Service called keystead"},
		{"port", "KEYSTEAD_PORT=tcp://10.0.0.1:7480", "set by Kubernetes for a Service called keystead"},
		{"tcp", "KEYSTEAD_PORT_7480_TCP=tcp://10.0.0.1:7480", "set by Kubernetes for a Service called keystead"},
		{"tcp address", "KEYSTEAD_PORT_7480_TCP_ADDR=10.0.0.1", "set by Kubernetes for a Service called keystead"},
		{"tcp port", "KEYSTEAD_PORT_7480_TCP_PORT=7480", "set by Kubernetes for a Service called keystead"},
		{"udp protocol", "KEYSTEAD_PORT_7946_UDP_PROTO=udp", "set by Kubernetes for a Service called keystead"},
		{"other service's host", "KEYSTEAD_ADMIN_SERVICE_HOST=10.0.0.1", "set by Kubernetes for a Service called keystead-…"},
		{"other service's port", "KEYSTEAD_ADMIN_PORT=tcp://10.0.0.1:7481", "set by Kubernetes for a Service called keystead-…"},
		{"other service's tcp", "KEYSTEAD_ADMIN_PORT_7481_TCP_ADDR=10.0.0.1", "set by Kubernetes for a Service called keystead-…"},
		{"empty", "KEYSTEAD_POINTS=", "empty"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := newSettings().load(t, nil, []string{tc.variable, "KEYSTEADFAST=1", "HOME=/", "KEYSTEAD=1"}, "")
			if err != nil {
				t.Fatal(err)
			}
			name, _, _ := strings.Cut(tc.variable, "=")
			want := Ignored{Source: Source{Kind: Environment, Name: name}, Why: tc.why}
			if len(got.Ignored) != 1 || got.Ignored[0] != want {
				t.Errorf("got %v, want %v", got.Ignored, want)
			}
		})
	}
	for _, variable := range []string{"KEYSTEAD_ADMIN_PORT=7481", "KEYSTEAD_PORTS=1", "KEYSTEAD_SERVICE=x", "KEYSTEAD_=x", "KEYSTEAD_FENCING=1"} {
		if _, err := newSettings().load(t, nil, []string{variable}, ""); err == nil {
			t.Errorf("%s is nobody's, and was accepted", variable)
		}
	}
}

// The file may serve several commands too; another command's settings are shown.
func TestFileForSeveralCommands(t *testing.T) {
	s := newSettings()
	got, err := s.load(t, nil, nil, "addr: x:1\nclient:\n  name: y\npoints: 5\n")
	if err != nil || s.points != 5 || len(got.Ignored) != 2 || got.Ignored[1].Source.Line != 3 {
		t.Errorf("points %d, ignored %v, %v", s.points, got.Ignored, err)
	}
}

func TestPrint(t *testing.T) {
	s := newSettings()
	got, err := s.load(t, []string{"--points=7"}, []string{"KEYSTEAD_GRPC_TOKEN=sesame", "KEYSTEAD_PORT=tcp://10.0.0.1:1"}, "peers: [a, b]\n")
	if err != nil {
		t.Fatal(err)
	}
	if s.token != "sesame" {
		t.Errorf("token %q", s.token)
	}
	var text strings.Builder
	if err := got.Print(&text); err != nil {
		t.Fatal(err)
	}
	const want = `forward     true       default
grpc-addr   default:1  default
grpc-token  (hidden)   environment variable KEYSTEAD_GRPC_TOKEN
hot-ratio   10         default
lease-ttl   1s         default
max-bytes   1          default
peers       [a,b]      keystead.yaml:1
points      7          flag --points
weights     []         default
# ignored: environment variable KEYSTEAD_PORT (set by Kubernetes for a Service called keystead)
`
	if text.String() != want {
		t.Errorf("got:\n%s\nwant:\n%s", text.String(), want)
	}
}

func TestSecretsStayOutOfErrors(t *testing.T) {
	s := newSettings()
	MarkSecret(s.FlagSet, "points")
	_, err := s.load(t, nil, []string{"KEYSTEAD_POINTS=sesame"}, "")
	if err == nil || strings.Contains(err.Error(), "sesame") {
		t.Errorf("got %v", err)
	}
}

// With cobra: persistent flags of the root are settings of a command, and what
// the environment sets satisfies a required flag.
func TestCobra(t *testing.T) {
	var addr, key string
	root := &cobra.Command{Use: "keystead", SilenceErrors: true, SilenceUsage: true}
	root.PersistentFlags().String("config", "", "")
	root.PersistentFlags().StringVar(&addr, "addr", "", "")
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		_, err := Load(cmd.Flags(), Input{
			Environ: []string{"KEYSTEAD_ADDR=x:1", "KEYSTEAD_KEY=k", "KEYSTEAD_POINTS=4"},
			Program: Program(cmd.Root()),
		})
		return err
	}
	add := &cobra.Command{Use: "add", RunE: func(*cobra.Command, []string) error { return nil }}
	add.Flags().StringVar(&key, "key", "", "")
	if err := add.MarkFlagRequired("key"); err != nil {
		t.Fatal(err)
	}
	server := &cobra.Command{Use: "server"}
	server.Flags().Int("points", 0, "")
	root.AddCommand(add, server)
	root.SetArgs([]string{"add"})
	if err := root.Execute(); err != nil || addr != "x:1" || key != "k" {
		t.Errorf("addr %q, key %q, %v", addr, key, err)
	}
	if got := strings.Join(Program(root), " "); !strings.Contains(got, "addr") || !strings.Contains(got, "key") ||
		!strings.Contains(got, "points") || strings.Contains(got, "config") {
		t.Errorf("Program: %s", got)
	}
}
