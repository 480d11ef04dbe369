package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/metadata"

	"github.com/keystead/keystead/client"
	pb "github.com/keystead/keystead/proto/keystead/v1"
)

// kills is how many processes TestFailover kills: go test ./cmd/keystead -run
// TestFailover -kills 20 -v prints the figures.
var kills = flag.Int("kills", 2, "processes that TestFailover kills, followers and leaders in turn")

// fleet is a cluster of processes.
type fleet struct {
	t     *testing.T
	nodes []*devNode
	runs  map[string]*process
	disks string // "" = none
}

// launch starts a cluster of n processes and waits until all of it is well.
func launch(t *testing.T, n int, disks string) *fleet {
	t.Helper()
	var f nodeFlags
	cmd := &cobra.Command{}
	f.flags(cmd)
	f.GRPCAddr, f.AdminAddr = "127.0.0.1:0", "127.0.0.1:0"
	_ = cmd.Flags().Lookup("log-level").Value.Set("info")
	nodes, err := placeDevNodes(&f, n)
	if err != nil {
		t.Fatal(err)
	}
	x := &fleet{t: t, nodes: nodes, runs: map[string]*process{}, disks: disks}
	for i := range nodes {
		x.start(i, i == 0)
	}
	t.Cleanup(func() {
		for id, p := range x.runs {
			_ = p.cmd.Process.Signal(syscall.SIGCONT)
			_ = p.cmd.Process.Kill()
			<-p.done
			if t.Failed() {
				t.Logf("%s said:\n%s", id, p.err())
			}
		}
	})
	x.well(0, n)
	return x
}

// start starts a node, which makes the cluster or joins it.
func (x *fleet) start(i int, bootstrap bool) {
	x.t.Helper()
	var f nodeFlags
	cmd := &cobra.Command{}
	f.flags(cmd)
	_ = cmd.Flags().Lookup("log-level").Value.Set("info")
	join := ""
	if !bootstrap {
		join = x.nodes[(i+1)%len(x.nodes)].gossip
		for j := range x.nodes {
			if j != i {
				join += "," + x.nodes[j].gossip
			}
		}
	}
	n := x.nodes[i]
	p, err := spawn(x.t.TempDir(), nil, n.args(cmd, join, x.disks)...)
	if err != nil {
		x.t.Fatal(err)
	}
	x.runs[n.id] = p
}

// well waits until n members are active and nothing is wrong, as node i sees it.
func (x *fleet) well(i, n int) {
	x.t.Helper()
	out, err := exec.Command(binary, "status", "--addr", x.nodes[i].grpc, "--wait", "25s", "--members", fmt.Sprint(n)).CombinedOutput()
	if err != nil {
		x.t.Fatalf("%v: %s", err, out)
	}
}

func (x *fleet) signal(id string, s syscall.Signal) {
	x.t.Helper()
	if err := x.runs[id].cmd.Process.Signal(s); err != nil {
		x.t.Fatal(err)
	}
}

// status is what /status of a node says of its cluster; nil if it says nothing.
func (x *fleet) status(i int) map[string]any {
	c := http.Client{Timeout: time.Second}
	resp, err := c.Get("http://" + x.nodes[i].admin + "/status")
	if err != nil {
		return nil
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	var s struct{ Cluster map[string]any }
	_ = json.Unmarshal(b, &s)
	return s.Cluster
}

// client connects to all nodes but those named.
func (x *fleet) client(but ...string) *client.Client {
	x.t.Helper()
	var addrs []string
	for _, n := range x.nodes {
		if !slices.Contains(but, n.id) {
			addrs = append(addrs, n.grpc)
		}
	}
	c, err := client.Config{Timeout: 20 * time.Second}.Dial(x.t.Context(), addrs...)
	if err != nil {
		x.t.Fatal(err)
	}
	x.t.Cleanup(c.Close)
	return c
}

// keyOf is a key that a node owns.
func (x *fleet) keyOf(c *client.Client, id string) string {
	x.t.Helper()
	for i := range 10_000 {
		if k := fmt.Sprint("key", i); c.Owner(k).Node == id {
			return k
		}
	}
	x.t.Fatalf("%s owns nothing", id)
	return ""
}

func (x *fleet) index(id string) int {
	return slices.IndexFunc(x.nodes, func(n *devNode) bool { return n.id == id })
}

// TestFailover kills processes and waits for the next owner of a key of theirs.
func TestFailover(t *testing.T) {
	t.Parallel()
	x := launch(t, 3, "")
	took := map[string][]time.Duration{}
	for k := range *kills {
		i := (k / 2) % 3 // somebody who is there, to ask
		leader, _ := x.status(i)["leader"].(string)
		what, victim := "leader", leader
		if k%2 == 0 {
			what, victim = "follower", x.nodes[(x.index(leader)+1)%3].id
		}
		c := x.client(victim)
		key := x.keyOf(c, victim)
		l, err := c.Lock(t.Context(), key, client.LockOptions{Name: "tokens", TTL: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		before := l.Token()
		began := time.Now()
		x.signal(victim, syscall.SIGKILL)
		v, err := c.Add(t.Context(), client.Add{Key: key, Delta: 1})
		if err != nil {
			t.Fatalf("after the death of %s, the %s: %v", victim, what, err)
		}
		took[what] = append(took[what], time.Since(began))
		if v.Owner == victim {
			t.Errorf("%s answers and is dead", victim)
		}
		<-x.runs[victim].done
		if l, err = c.Lock(t.Context(), key, client.LockOptions{Name: "tokens", TTL: time.Second}); err != nil || l.Token() <= before {
			t.Errorf("token %d after %d, %v", l.Token(), before, err)
		}
		if err := l.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		x.start(x.index(victim), false)
		x.well((x.index(victim)+1)%3, 3)
	}
	for what, d := range took {
		slices.Sort(d)
		t.Logf("%d × %s: p50 %s, p99 %s, most %s", len(d), what, d[len(d)/2].Round(time.Millisecond), d[len(d)*99/100].Round(time.Millisecond), d[len(d)-1].Round(time.Millisecond))
		if most := d[len(d)-1]; most > 15*time.Second {
			t.Errorf("a %s was replaced only after %s", what, most)
		}
	}
}

// TestSIGTERM: others take over at once, and it ends well.
func TestSIGTERM(t *testing.T) {
	t.Parallel()
	x := launch(t, 3, "")
	c := x.client("n3")
	key := x.keyOf(c, "n3")
	x.signal("n3", syscall.SIGTERM)
	began := time.Now()
	for {
		v, err := c.Add(t.Context(), client.Add{Key: key, Delta: 1})
		if err != nil {
			t.Fatal(err)
		}
		if v.Owner != "n3" {
			break
		}
	}
	t.Logf("its key had another owner after %s", time.Since(began))
	if code := x.runs["n3"].wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if members, _ := x.status(0)["members"].([]any); len(members) != 2 {
		t.Errorf("members %v", members)
	}
}

// TestStoppedOwner: a process that was stopped past its lease answers nothing for
// what others own now, and joins anew.
func TestStoppedOwner(t *testing.T) {
	t.Parallel()
	x := launch(t, 3, "")
	c := x.client("n2")
	key := x.keyOf(c, "n2")
	was, _ := x.status(1)["incarnation"].(string)
	l, err := c.Lock(t.Context(), key, client.LockOptions{TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	x.signal("n2", syscall.SIGSTOP)
	stopped := time.Now()
	// Calls that lie in its sockets when it wakes.
	r := remote{addr: x.nodes[1].grpc, timeout: 20 * time.Second}
	conn, err := r.dial()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx := metadata.AppendToOutgoingContext(t.Context(), "x-keystead-no-forward", "1")
	answers := make(chan string, 20)
	for i := range cap(answers) {
		go func() {
			a, err := pb.NewLockServiceClient(conn).Acquire(ctx, &pb.AcquireRequest{Key: key, Name: fmt.Sprint(i), Holder: "late", TtlNs: 1e9})
			if err == nil {
				answers <- fmt.Sprintf("%s granted %d", a.Owner, a.Token)
				return
			}
			answers <- ""
		}()
	}
	next, err := c.Lock(t.Context(), key, client.LockOptions{TTL: time.Minute})
	if err != nil || next.Token() <= l.Token() || next.Meta().Owner == "n2" {
		t.Fatalf("the next owner: %v, token after %d", err, l.Token())
	}
	if took := time.Since(stopped); took > 12*time.Second {
		t.Errorf("a stopped owner was waited for, for %s", took)
	}
	woke := time.Now()
	x.signal("n2", syscall.SIGCONT)
	for range cap(answers) {
		if a := <-answers; strings.HasPrefix(a, "n2 granted") {
			t.Errorf("the stopped one woke and %s, when %s had granted %d", a, next.Meta().Owner, next.Token())
		}
	}
	t.Logf("the calls in its sockets were answered after %s", time.Since(woke))
	x.well(0, 3)
	t.Logf("it was back after %s", time.Since(woke))
	if is, _ := x.status(1)["incarnation"].(string); is == was || is == "" {
		t.Errorf("incarnation %q after %q", is, was)
	}
}

// TestDisks: a node comes back under its identity, one whose disk was wiped as
// somebody else, and all of them after all have stopped; tokens rise throughout.
func TestDisks(t *testing.T) {
	t.Parallel()
	x := launch(t, 3, t.TempDir())
	token := func() uint64 {
		t.Helper()
		c := x.client()
		l, err := c.Lock(t.Context(), "k", client.LockOptions{TTL: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Unlock(t.Context())
		return l.Token()
	}
	servers := func() (n int) {
		voters, _ := x.status(0)["voters"].([]any)
		return len(voters)
	}
	first := token()
	x.signal("n3", syscall.SIGKILL)
	<-x.runs["n3"].done
	x.start(2, false)
	x.well(0, 3)
	x.signal("n3", syscall.SIGKILL)
	<-x.runs["n3"].done
	wipe(t, filepath.Join(x.disks, "n3"))
	x.start(2, false)
	x.well(0, 3)
	// The old identity is out, and the new one votes.
	eventually(t, "three voters", func() bool { return servers() == 3 })
	second := token()
	for _, id := range []string{"n3", "n2", "n1"} {
		x.signal(id, syscall.SIGTERM)
	}
	for id, p := range x.runs {
		if code := p.wait(); code != 0 {
			t.Errorf("%s: exit code %d", id, code)
		}
	}
	for i := range x.nodes {
		x.start(i, i == 0) // --bootstrap again: there is a log
	}
	x.well(0, 3)
	if third := token(); second <= first || third <= second {
		t.Errorf("tokens %d, %d, %d", first, second, third)
	}
}

func wipe(t *testing.T, dir string) {
	t.Helper()
	if out, err := exec.Command("rm", "-r", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}
