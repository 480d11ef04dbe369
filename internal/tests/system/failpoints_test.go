//go:build points

package system

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/keystead/keystead/internal/tests/points"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
	"github.com/keystead/keystead/ring"
)

// The tests in failpoints*_test.go run clusters whose processes are held up, killed
// or told a lie at a step of the protocol; package points has the steps. Their
// comments tell what happens in which order:
//
//	S, T  the source and the target of a flip
//	A, B  the owner of a row and its standby
//	L     the leader
//	C     a client

// pointed is the program with fail points, built when the first test asks for it.
var pointed = sync.OnceValues(func() (string, error) {
	out := filepath.Join(filepath.Dir(binary), "keystead-points")
	return out, points.Build(context.Background(), filepath.Join("..", "..", ".."), out)
})

// shortLease has a dead owner replaced after a second.
var shortLease = []string{"--lease-ttl", "1s", "--lease-margin", "25ms"}

// held is for how long a step is held up that ends with the process.
const held = `sleep("60s")`

// withPoints gives a node that does not run yet fail points, with terms that hold
// from its start.
func (n *testNode) withPoints(terms ...string) {
	n.t.Helper()
	path, err := pointed()
	if err != nil {
		n.t.Fatal(err)
	}
	n.points = newPort(n.t)
	n.prepare = func(cmd *exec.Cmd) {
		cmd.Path = path
		cmd.Env = append(cmd.Env, "GOFAIL_HTTP="+n.points, "GOFAIL_FAILPOINTS="+strings.Join(terms, ";"))
	}
}

// pointedCluster starts a cluster of three nodes with fail points, and waits until
// all of it is ready and each row has its standby.
func pointedCluster(t *testing.T, disks bool, flags ...string) *testCluster {
	t.Helper()
	c := layOut(t, 3, disks, append([]string{"--max-lock-ttl", "2h"}, flags...)...)
	for _, n := range c.nodes {
		n.withPoints()
		n.run()
	}
	c.ready(c.nodes...)
	c.protected(c.nodes...)
	return c
}

// point speaks to the runtime of the node's fail points.
func (n *testNode) point(method, path, body string) (int, string) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, "http://"+n.points+"/"+path, strings.NewReader(body))
	if err != nil {
		n.t.Fatal(err)
	}
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		n.t.Fatalf("%s: fail point %s: %v", n.id, path, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		n.t.Fatal(err)
	}
	return resp.StatusCode, string(bytes.TrimSpace(b))
}

// arm sets what a fail point does.
func (n *testNode) arm(name, terms string) {
	n.t.Helper()
	if code, text := n.point(http.MethodPut, name, terms); code != http.StatusNoContent {
		n.t.Fatalf("%s: fail point %s=%s: %d %s", n.id, name, terms, code, text)
	}
}

// disarm lets who comes to a fail point pass.
func (n *testNode) disarm(name string) {
	n.t.Helper()
	if code, text := n.point(http.MethodDelete, name, ""); code != http.StatusNoContent {
		n.t.Fatalf("%s: fail point %s: %d %s", n.id, name, code, text)
	}
}

// hit says how often a fail point that is armed did something.
func (n *testNode) hit(name string) int {
	n.t.Helper()
	_, text := n.point(http.MethodGet, name+"/count", "")
	count, err := strconv.Atoi(text)
	if err != nil {
		n.t.Fatalf("%s: fail point %s: %s", n.id, name, text)
	}
	return count
}

// reached waits until somebody has come to a fail point that is armed.
func (n *testNode) reached(name string) {
	n.t.Helper()
	eventually(n.t, fmt.Sprintf("%s comes to %s", n.id, name), func() bool { return n.hit(name) > 0 })
}

// once is an operation with a request id, which may be sent again, to any node.
type once struct {
	client [16]byte
	before uint64    // operations that the client has finished before
	first  time.Time // when it was sent first
	keyed  bool      // it goes under an idempotency key
}

func newOnce() *once {
	o := &once{first: time.Now()}
	_, _ = rand.Read(o.client[:])
	return o
}

// newOnceBy is newOnce of an operation that goes under an idempotency key, if it is keyed.
func newOnceBy(keyed bool) *once {
	o := newOnce()
	o.keyed = keyed
	return o
}

// namings are the ways in which a node is told what a retry is a retry of.
var namings = map[string]bool{"by id": false, "by key": true}

// key returns its idempotency key, "" if it has none.
func (o *once) key() string {
	if !o.keyed {
		return ""
	}
	return hex.EncodeToString(o.client[:])
}

// id returns its request id, nil if it has none.
func (o *once) id() *commonpb.RequestId {
	if o.keyed {
		return nil
	}
	return &commonpb.RequestId{Client: o.client[:], Sequence: o.before + 1, Settled: o.before + 1, AgeNs: int64(time.Since(o.first))}
}

// add adds to a counter, by one call that may last so long.
func (o *once) add(n *testNode, key string, delta int64, within time.Duration) (*counterpb.AddResponse, error) {
	ctx, cancel := context.WithTimeout(n.t.Context(), within)
	defer cancel()
	return counterpb.NewCounterServiceClient(n.conn).Add(ctx, &counterpb.AddRequest{Key: key, Name: "n", Delta: delta, RequestId: o.id(), IdempotencyKey: o.key()})
}

// added adds to a counter, by as many calls as it takes.
func (o *once) added(n *testNode, key string, delta int64) *counterpb.AddResponse {
	n.t.Helper()
	return answered(n, "an add to "+key, func(ctx context.Context) (*counterpb.AddResponse, error) {
		return counterpb.NewCounterServiceClient(n.conn).Add(ctx, &counterpb.AddRequest{Key: key, Name: "n", Delta: delta, RequestId: o.id(), IdempotencyKey: o.key()})
	})
}

// answered sends a call to a node again and again until it has an answer.
func answered[R any](n *testNode, what string, call func(context.Context) (R, error)) (r R) {
	n.t.Helper()
	var err error
	if !poll(func() bool {
		ctx, cancel := context.WithTimeout(n.t.Context(), callTime)
		defer cancel()
		r, err = call(ctx)
		return err == nil
	}) {
		n.t.Fatalf("%s at %s: %v", what, n.id, err)
	}
	return r
}

// value returns that of a counter, as its owner knows it.
func (n *testNode) value(key string) int64 {
	n.t.Helper()
	return answered(n, "the counter of "+key, func(ctx context.Context) (*counterpb.GetResponse, error) {
		return counterpb.NewCounterServiceClient(n.conn).Get(ctx, &counterpb.GetRequest{Key: key, Name: "n"})
	}).Value
}

// roles returns the leader, another node, and the third.
func (c *testCluster) roles() (leads, one, other *testNode) {
	c.t.Helper()
	leads, others := c.leader()
	return leads, others[0], others[1]
}

// keysAt are some keys that one node owns and another stands by for, at least one.
func (c *testCluster) keysAt(owner, standby *testNode, most int) (keys []string) {
	c.t.Helper()
	all := c.keys(30)[owner.id]
	for i, o := range owner.owners(all...) {
		if o.Owner == owner.id && o.Standby == standby.id && len(keys) < most {
			keys = append(keys, all[i])
		}
	}
	if len(keys) == 0 {
		c.t.Fatalf("%s stands by for no key of %s", standby.id, owner.id)
	}
	return keys
}

// joiner is a fourth node, which does not run yet, and some keys that the ring
// takes from each of the others for it.
func (c *testCluster) joiner(most int) (n4 *testNode, from map[string][]string) {
	c.t.Helper()
	disk := ""
	if c.nodes[0].disk != "" {
		disk = filepath.Join(filepath.Dir(c.nodes[0].disk), "n4")
	}
	n4 = newTestNode(c.t, "n4", disk, append([]string{"--cluster-id", "c", "--join", c.addrs(nil)}, c.nodes[2].flags[2:len(c.nodes[2].flags)-2]...)...)
	hashKeys := []string{n4.grpc}
	for _, n := range c.nodes {
		hashKeys = append(hashKeys, n.grpc)
	}
	next, err := ring.New(hashKeys)
	if err != nil {
		c.t.Fatal(err)
	}
	from = map[string][]string{}
	for owner, keys := range c.keys(90) { // n4 may take as little as a seventh
		for _, k := range keys {
			if next.Owner(ring.Hash(k)) == n4.grpc && len(from[owner]) < most {
				from[owner] = append(from[owner], k)
			}
		}
	}
	for _, n := range c.nodes {
		if len(from[n.id]) == 0 {
			c.t.Fatalf("n4 gets nothing from %s", n.id)
		}
	}
	return n4, from
}

// awaitOwned waits until all rows, but for a few perhaps, have an owner that answers.
func (c *testCluster) awaitOwned(at *testNode) {
	c.t.Helper()
	for _, key := range c.someKeys() {
		at.mustAcquire(key)
	}
}

// stays checks through a node, which may not answer at first, that all of it is
// still there.
func (k *kept) stays(n *testNode) {
	n.t.Helper()
	var wrong [3]int
	var err error
	if !poll(func() bool { wrong, err = k.countWrong(n.t, n); return err == nil }) {
		n.t.Fatal(err)
	}
	if wrong != [3]int{} {
		n.t.Errorf("of %d each, %d counters are wrong, %d limits were refilled, %d locks lost", k.n, wrong[0], wrong[1], wrong[2])
	}
}

// count adds 1 to counters, once; holds checks what they are.
func count(n *testNode, keys []string) {
	n.t.Helper()
	for _, k := range keys {
		newOnce().added(n, k, 1)
	}
}

func holds(n *testNode, keys []string, want int64) {
	n.t.Helper()
	for _, k := range keys {
		if got := n.value(k); got != want {
			n.t.Errorf("%s at %s is %d, want %d", k, n.id, got, want)
		}
	}
}
