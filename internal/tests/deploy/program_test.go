package deploy

import (
	"bufio"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
)

const top = "../../.."

// binary is the program.
var binary string

func TestMain(m *testing.M) {
	flag.Parse()
	code, err := runTests(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func runTests(m *testing.M) (int, error) {
	dir, err := os.MkdirTemp("", "keystead-deployment-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "keystead")
	build := exec.Command("go", "build", "-o", binary, "./cmd/keystead")
	build.Dir = top
	if out, err := build.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("building keystead: %w\n%s", err, out)
	}
	return m.Run(), goleak.Find(goleak.IgnoreAnyFunction("os/exec.(*Cmd).Wait"))
}

// environ returns the environment of a process of a deployment: its own variables, and
// those of the machine that are no settings.
func environ(vars map[string]string) []string {
	env := slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "KEYSTEAD_") || strings.HasPrefix(v, "GOMEMLIMIT=")
	})
	for _, k := range slices.Sorted(maps.Keys(vars)) {
		env = append(env, k+"="+vars[k])
	}
	return env
}

// resolve asks the program what it makes of settings; see [Program].
func resolve(args []string, env map[string]string) (map[string]string, error) {
	var out, wrong bytes.Buffer
	cmd := exec.Command(binary, append(slices.Clone(args), "--show-config")...)
	cmd.Env, cmd.Stdout, cmd.Stderr = environ(env), &out, &wrong
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, wrong.String())
	}
	settings := map[string]string{}
	for s := bufio.NewScanner(&out); s.Scan(); {
		line := s.Text()
		if strings.HasPrefix(line, "# ignored") {
			return nil, errors.New(line)
		}
		fields := strings.Fields(line)
		if len(fields) < 3 {
			return nil, fmt.Errorf("a line of --show-config: %q", line)
		}
		settings[fields[0]] = strings.Trim(fields[1], `"`)
	}
	return settings, nil
}

// remembered is resolve, which asks the program once for the same.
func remembered() func(args []string, env map[string]string) (map[string]string, error) {
	type answer struct {
		settings map[string]string
		err      error
	}
	var mu sync.Mutex
	known := map[string]answer{}
	return func(args []string, env map[string]string) (map[string]string, error) {
		key := fmt.Sprintf("%q %q", args, environ(env))
		mu.Lock()
		a, ok := known[key]
		mu.Unlock()
		if !ok {
			a.settings, a.err = resolve(args, env)
			mu.Lock()
			known[key] = a
			mu.Unlock()
		}
		return a.settings, a.err
	}
}
