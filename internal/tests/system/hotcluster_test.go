package system

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	clusterpb "github.com/keystead/keystead/proto/keystead/cluster/v1"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
)

// Any node tells of all; one that does not answer is named, and the others are shown.
func TestHotThreeNodes(t *testing.T) {
	t.Parallel()
	// The lease keeps the node that is killed a member as long as the rest takes.
	dev := start(t, nil, "dev", "--nodes", "3", "--grpc-addr", "127.0.0.1:0", "--admin-addr", "", "--hot-floor", "20", "--lease-ttl", "10s")
	eventually(t, "the cluster is ready", func() bool {
		select {
		case <-dev.done:
			t.Fatalf("it ended: %s%s", dev.out(), dev.err())
		default:
		}
		return strings.Contains(dev.out(), "Ctrl-C")
	})
	nodes := regexp.MustCompile(`(?m)^  (n\d) +(\S+) .* (\d+)$`).FindAllStringSubmatch(dev.out(), -1)
	if len(nodes) != 3 {
		t.Fatal(dev.out())
	}
	keys := map[string]string{} // the busy ones, by owner
	conn := connTo(t, nodes[0][2])
	for i := 0; len(keys) < 3; i++ {
		key := "busy" + strconv.Itoa(i)
		r, err := clusterpb.NewClusterServiceClient(conn).GetOwners(t.Context(), &clusterpb.GetOwnersRequest{Keys: []string{key}})
		if err != nil {
			t.Fatal(err)
		}
		if owner := r.Owners[0].Owner; keys[owner] == "" {
			keys[owner] = key
			adds(t, conn, key, 1000*(1+len(keys)))
		}
	}
	idle := &counterpb.BatchAddRequest{}
	for i := range 300 {
		idle.Adds = append(idle.Adds, &counterpb.AddRequest{Key: "idle" + strconv.Itoa(i), Name: "n", Delta: 1})
	}
	if _, err := counterpb.NewCounterServiceClient(conn).BatchAdd(t.Context(), idle); err != nil {
		t.Fatal(err)
	}
	hot := func(addr string) (seen []string) {
		for _, k := range hotOf(t, "--addr", addr).Keys {
			if k.Hot {
				seen = append(seen, k.Owner+" "+k.Key)
			}
		}
		slices.Sort(seen)
		return seen
	}
	var want []string
	for owner, key := range keys {
		want = append(want, owner+" "+key)
	}
	slices.Sort(want)
	for _, n := range nodes {
		eventually(t, n[1]+" tells what is hot anywhere", func() bool { return slices.Equal(hot(n[2]), want) })
	}
	var v hotJSON
	eventually(t, "each object is one of its owner, and none of who holds its copy", func() bool {
		v = hotOf(t, "--addr", nodes[1][2])
		objects := uint64(0)
		for _, n := range v.Nodes {
			objects += n.Objects
		}
		return objects > 220 && objects < 400 // by the rows; there are 303, and as many copies
	})
	if !slices.IsSortedFunc(v.Keys, func(a, b hotKeyJSON) int { return int(b.Rate - a.Rate) }) || len(v.Nodes) != 3 || v.Nodes[2].ID != "n3" || v.Nodes[2].Addr != nodes[2][2] {
		t.Errorf("%+v", v)
	}
	pid, _ := strconv.Atoi(nodes[2][3])
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	text := ""
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("at last:\n%s", text)
		}
	})
	eventually(t, "n3 is named", func() bool {
		text = succeeds(t, "hot", "--addr", nodes[0][2])
		return strings.Contains(text, "\nNothing of n3: cannot reach a node at "+nodes[2][2]) && strings.HasPrefix(text, "2 nodes, ") &&
			strings.Contains(text, keys["n1"]) && strings.Contains(text, keys["n2"]) && !strings.Contains(text, keys["n3"])
	})
}
