package system

import (
	"fmt"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/keystead/keystead/client"
	adminpb "github.com/keystead/keystead/proto/keystead/admin/v1"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	"github.com/keystead/keystead/ring/epoch/table"
)

// Who asks about a split object is told so, as long as it is split.
func TestAnswersOfParts(t *testing.T) {
	t.Parallel()
	dev := start(t, nil, "dev", "--nodes", "2", "--grpc-addr", "127.0.0.1:0", "--admin-addr", "", "--hot-split", "off")
	eventually(t, "the cluster is ready", func() bool {
		select {
		case <-dev.done:
			t.Fatalf("it ended: %s%s", dev.out(), dev.err())
		default:
		}
		return strings.Contains(dev.out(), "Ctrl-C")
	})
	addr := regexp.MustCompile(`(?m)^  n1 +(\S+) `).FindStringSubmatch(dev.out())
	if addr == nil {
		t.Fatal(dev.out())
	}
	with := func(args ...string) string { return succeeds(t, append(args, "--addr", addr[1])...) }
	check, add, get := []string{"limit", "check", "k", "--limit", "10/1h"}, []string{"counter", "add", "k"}, []string{"counter", "get", "k"}
	json := func(args []string) map[string]any { return object(t, with(append(args, "--json")...)) }
	whole := func(when string) {
		t.Helper()
		if got := with(check...); strings.Contains(got, "parts") {
			t.Errorf("%s: %s", when, got)
		}
		for _, args := range [][]string{check, add, get} {
			if v := json(args); v["parts"] != nil {
				t.Errorf("%s: %v", when, v)
			}
		}
	}
	whole("before")
	for _, kind := range []string{"limit", "counter"} {
		with("hot", "split", "k", "--kind", kind)
	}
	if got := with(check...); !strings.HasSuffix(got, "  (by one of 2 parts)\n") {
		t.Error(got)
	}
	for _, args := range [][]string{check, add, get} {
		if v := json(args); number(t, v["parts"]) != 2 {
			t.Errorf("%v", v)
		}
	}
	// A peek is of all parts, also for more than one of them has room for: 8 of 10 are left, or
	// one less for each part, which rounds.
	peek := object(t, with("limit", "peek", "k", "--limit", "10/1h", "--cost", "6", "--json"))
	if left := number(t, peek["remaining"]); left < 6 || left > 8 || number(t, peek["parts"]) != 2 {
		t.Errorf("a peek: %v", peek)
	}
	if got := with(get...); got != "2\n" { // one add before, one since: it stays a number
		t.Error(got)
	}
	if got := with("hot", "--parts"); strings.Count(got, "2 parts by hand\n") != 2 {
		t.Error(got)
	}
	for _, kind := range []string{"limit", "counter"} {
		with("hot", "merge", "k", "--kind", kind)
	}
	whole("after")
	splitByTheGoClient(t, addr[1])
	splitAll(t, addr[1])
	refuses(t, exitError, "100 objects are split, and no more may be (UNAVAILABLE)\n  hint: make one whole with `keystead hot merge`", "hot", "split", "k", "--kind", "limit", "--addr", addr[1])
	with("hot", "merge", "full-7")
	with("hot", "split", "k", "--kind", "limit")
}

// splitByTheGoClient has the Go client split a counter and make it whole again.
func splitByTheGoClient(t *testing.T, addr string) {
	t.Helper()
	c, err := client.Dial(t.Context(), addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	hits, o := c.Counter("hits"), client.Object{Kind: client.KindCounter, Key: "page", Name: "hits"}
	if s, err := c.Admin().Split(t.Context(), o, 2); err != nil || len(s.Owners) != 2 || s.Owners[0] == s.Owners[1] || !s.Manual {
		t.Errorf("%+v, %v", s, err)
	}
	if v, err := hits.Add(t.Context(), "page", 3); err != nil || v.Parts != 2 {
		t.Errorf("%+v, %v", v, err)
	}
	if err := c.Admin().Merge(t.Context(), o); err != nil {
		t.Error(err)
	}
	if v, err := hits.Get(t.Context(), "page"); err != nil || v.Parts != 0 || v.Value != 3 {
		t.Errorf("%+v, %v", v, err)
	}
}

// splitAll splits as many objects as may be, some at a time, so that each is in the way
// of others.
func splitAll(t *testing.T, addr string) {
	t.Helper()
	c := adminpb.NewAdminServiceClient(connTo(t, addr))
	const atOnce = 20
	for from := 0; from < table.MaxSplits; from += atOnce {
		var all sync.WaitGroup
		for i := range atOnce {
			all.Go(func() {
				if _, err := c.SplitObject(t.Context(), &adminpb.SplitObjectRequest{Kind: commonpb.Kind_KIND_COUNTER, Key: fmt.Sprint("full-", from+i)}); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
	}
}

// A node alone has nobody to split for, and says so for good.
func TestHotSplitAlone(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil, "server", "--id", "solo")
	for _, verb := range []string{"split", "merge"} {
		refuses(t, exitUsage, "this node runs alone: there is nobody to serve parts (INVALID)", "hot", verb, "k", "--kind", "limit", "--addr", n.grpc)
	}
}
