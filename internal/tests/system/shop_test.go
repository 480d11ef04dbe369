//go:build system

package system

import (
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/keystead/keystead/client"
	"github.com/keystead/keystead/examples/shop"
)

// The example shop sells through the death of a node: every order that was answered is one
// item, an order that is sent again is sold once, and nothing is sold that is not there.
func TestShopThroughAFailover(t *testing.T) {
	t.Parallel()
	const items, buyers = 3000, 8
	c := newCluster(t, 3, false, "--request-id-window", "10s")
	c.protected(c.nodes...)
	var addrs []string
	for _, n := range c.nodes {
		addrs = append(addrs, n.grpc)
	}
	kc, err := client.Config{Timeout: 15 * time.Second}.Dial(t.Context(), addrs...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(kc.Close)
	s, err := shop.New(kc, 1_000_000)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(s.Handler())
	t.Cleanup(server.Close)
	call := func(method, path, key string) (int, string) {
		r, err := http.NewRequestWithContext(t.Context(), method, server.URL+path, nil)
		if err != nil {
			t.Error(err)
			return 0, ""
		}
		if key != "" {
			r.Header.Set("Idempotency-Key", key)
		}
		a, err := server.Client().Do(r)
		if err != nil {
			t.Error(err)
			return 0, ""
		}
		defer a.Body.Close()
		text, err := io.ReadAll(a.Body)
		if err != nil {
			t.Error(err)
		}
		return a.StatusCode, strings.TrimSpace(string(text))
	}
	call("PUT", "/stock/lamp?items="+strconv.Itoa(items), "")
	eventually(t, "keys are taken: a window has passed since the start", func() bool {
		code, _ := call("POST", "/orders/lamp", "first")
		return code == http.StatusOK
	})
	var sold atomic.Int64
	sold.Add(1)
	halfway := make(chan struct{})
	var once sync.Once
	var all sync.WaitGroup
	for b := range buyers {
		all.Go(func() {
			for i := 0; ; i++ {
				key := ""
				if i%5 == 0 {
					key = "order-" + strconv.Itoa(b) + "-" + strconv.Itoa(i)
				}
				code, text := call("POST", "/orders/lamp", key)
				if code == http.StatusConflict {
					return
				}
				if code != http.StatusOK {
					t.Errorf("an order was answered %d %s", code, text)
					return
				}
				if sold.Add(1) == items/2 {
					once.Do(func() { close(halfway) })
				}
				if key == "" {
					continue
				}
				if again, left := call("POST", "/orders/lamp", key); again != http.StatusOK || left != text {
					t.Errorf("the order %s was answered with %s, and again with %d %s", key, text, again, left)
				}
			}
		})
	}
	<-halfway
	owner := c.nodes[0].owners("lamp")[0].Owner
	victim := c.nodes[slices.IndexFunc(c.nodes, func(n *testNode) bool { return n.id == owner })]
	victim.signal(t, syscall.SIGKILL)
	all.Wait()
	if _, left := call("GET", "/stock/lamp", ""); sold.Load() != items || left != "0" {
		t.Errorf("%d of %d were sold, %s are left", sold.Load(), items, left)
	}
}
