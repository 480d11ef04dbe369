//go:build system

package system

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// shopTime bounds one run of an example, which installs and generates what it needs first.
const shopTime = 2 * time.Minute

// TestShopInPython has examples/shop-python sell while a node dies.
func TestShopInPython(t *testing.T) {
	t.Parallel()
	sellsThroughAKill(t, "shop-python")
}

// TestShopOnNode has examples/shop-typescript do the same, once it is type-checked.
func TestShopOnNode(t *testing.T) {
	t.Parallel()
	sellsThroughAKill(t, "shop-typescript")
}

// foreignShop is an example in another language, as a user runs it.
type foreignShop struct {
	t   *testing.T
	run string // the script
	env []string
	at  string // all nodes, as gRPC names them
}

func (s foreignShop) command(args ...string) *exec.Cmd {
	ctx, cancel := context.WithTimeout(s.t.Context(), shopTime)
	s.t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, s.run, append([]string{"--target", s.at, "--lease", "1"}, args...)...)
	cmd.Env = append(cleanEnv(), s.env...)
	cmd.WaitDelay = time.Second
	return cmd
}

// says runs the shop, and returns what it prints.
func (s foreignShop) says(args ...string) string {
	s.t.Helper()
	cmd := s.command(args...)
	var failed bytes.Buffer
	cmd.Stderr = &failed
	out, err := cmd.Output()
	if err != nil {
		s.t.Fatalf("%s %q: %v\n%s%s", filepath.Base(filepath.Dir(s.run)), args, err, out, failed.Bytes())
	}
	return strings.TrimSpace(string(out))
}

// sellsThroughAKill sells 200 of a thing in 300 orders, and kills the thing's owner when
// some are sold. Every order has one answer, also in a process of its own afterwards.
func sellsThroughAKill(t *testing.T, name string) {
	t.Helper()
	const items, orders, before = 200, 300, 30
	c := newCluster(t, 3, false)
	run, err := filepath.Abs(filepath.Join("..", "..", "..", "examples", name, "run"))
	if err != nil {
		t.Fatal(err)
	}
	var addrs []string
	for _, n := range c.nodes {
		addrs = append(addrs, n.grpc)
	}
	s := foreignShop{t: t, run: run, at: "ipv4:" + strings.Join(addrs, ","), env: []string{"SHOP_DIR=" + t.TempDir()}}
	eventually(t, "all nodes to be known to know idempotency keys", func() bool {
		return keystead(t, "counter", "add", "first", "--addr", c.nodes[0].grpc, "--idempotency-key", "first").code == 0
	})
	for range 2 { // a second supply changes nothing
		if got := s.says("supply", "lamp", strconv.Itoa(items)); got != strconv.Itoa(items) {
			t.Fatalf("supply: %s", got)
		}
	}
	first := nightOf(t, s.says("nightly", "2026-03-01"))
	answers := s.rush(c, orders, before)
	left := make(map[string]bool)
	for _, answer := range answers {
		left[answer] = true
	}
	want := map[string]bool{"sold out": true}
	for i := range items {
		want[fmt.Sprintf("sold, %d left", i)] = true
	}
	if len(answers) != orders || !maps.Equal(left, want) { // each number once, if so many orders were sold
		t.Errorf("%d orders have an answer, and %d different ones, want %d and %d", len(answers), len(left), orders, len(want))
	}
	sold := 0
	for _, answer := range answers {
		if answer != "sold out" {
			sold++
		}
	}
	if got := s.says("left", "lamp"); sold != items || got != "0" {
		t.Errorf("%d of %d are sold, %s are left", sold, items, got)
	}
	// A process that knows nothing of the first one sends an order of before the kill again.
	if got := s.says("order", "lamp", "rush-0"); got != "rush-0: "+answers["rush-0"] {
		t.Errorf("order rush-0 is answered %q, and was %q", got, answers["rush-0"])
	}
	if got := s.says("nightly", "2026-03-01"); got != "2026-03-01: not here" {
		t.Errorf("a second time in one night: %s", got)
	}
	if next := nightOf(t, s.says("nightly", "2026-03-02")); next <= first {
		t.Errorf("the next night has the token %d after %d", next, first)
	}
	s.limits()
}

// rush has many orders sent at a time, and kills the owner of the stock when some have
// their answer. It returns the answers by order.
func (s foreignShop) rush(c *testCluster, orders, before int) map[string]string {
	s.t.Helper()
	owners := c.nodes[0].owners("lamp")
	if len(owners) != 1 {
		s.t.Fatal("who owns lamp is not known")
	}
	path := filepath.Join(s.t.TempDir(), "out")
	out, err := os.Create(path)
	if err != nil {
		s.t.Fatal(err)
	}
	defer out.Close()
	cmd := s.command("rush", "lamp", strconv.Itoa(orders))
	var failed bytes.Buffer
	cmd.Stdout, cmd.Stderr = out, &failed
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	printed := func() string {
		b, err := os.ReadFile(path)
		if err != nil {
			s.t.Fatal(err)
		}
		return string(b)
	}
	enough := poll(func() bool { return strings.Count(printed(), "\n") >= before })
	for _, n := range c.nodes {
		if n.id == owners[0].Owner {
			n.kill()
		}
	}
	had := strings.Count(printed(), "\n")
	if err := cmd.Wait(); err != nil || !enough {
		s.t.Fatalf("%v; it printed\n%s%s", err, printed(), failed.Bytes())
	}
	if had >= orders {
		s.t.Errorf("all %d orders had their answer before the node was killed", had)
	}
	answers := make(map[string]string)
	for line := range strings.Lines(printed()) {
		order, answer, _ := strings.Cut(strings.TrimSpace(line), ": ")
		answers[order] = answer
	}
	return answers
}

// nightOf returns the token under which the nightly job ran.
func nightOf(t *testing.T, said string) uint64 {
	t.Helper()
	found := regexp.MustCompile(`: runs under token (\d+)$`).FindStringSubmatch(said)
	if found == nil {
		t.Fatalf("the job did not run: %s", said)
	}
	token, err := strconv.ParseUint(found[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// limits has a tenant send more requests than it may.
func (s foreignShop) limits() {
	s.t.Helper()
	for range 2 {
		s.says("--tenant", "small", "--per-minute", "2", "left", "lamp")
	}
	if out, err := s.command("--tenant", "small", "--per-minute", "2", "left", "lamp").CombinedOutput(); err == nil || !strings.Contains(string(out), "too many requests") {
		s.t.Errorf("a third request in a minute: %v\n%s", err, out)
	}
	s.says("--tenant", "other", "--per-minute", "2", "left", "lamp")
}
