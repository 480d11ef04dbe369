package system

import (
	"context"
	"encoding/json"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/keystead/keystead/client"
)

// TestServerDies: a node that is killed while clients add has what it acknowledged under always when it is
// back, and what it acknowledged a second before under interval, whose loss is declared.
func TestServerDies(t *testing.T) {
	for _, durability := range []string{"always", "interval"} {
		t.Run(durability, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			args := []string{"--id", "a", "--data-dir", dir, "--durability", durability}
			n := startNode(t, nil, "server", args...)
			for range 3 {
				acked, old := dieUnderLoad(t, n)
				n = startNode(t, nil, "server", args...)
				for i := range acked {
					key := "k" + strconv.Itoa(i)
					want := acked[i].Load()
					if durability == "interval" {
						want = old[i]
					}
					var is struct {
						Value int64 `json:"value,string"`
					}
					if err := json.Unmarshal([]byte(succeeds(t, "counter", "get", key, "--json", "--addr", n.grpc)), &is); err != nil || is.Value < want {
						t.Errorf("%s is %d, and %d were acknowledged (%v)", key, is.Value, want, err)
					}
				}
				answer := succeeds(t, "counter", "get", "k0", "--json", "--addr", n.grpc)
				if lost := strings.Contains(answer, `"lost_epoch":`); lost != (durability == "interval") {
					t.Errorf("a loss is declared: %s", answer)
				}
			}
			n.stop(t)
		})
	}
}

// dieUnderLoad kills a node while some clients add to counters. It returns what was acknowledged of each,
// and what had been more than the interval before the end.
func dieUnderLoad(t *testing.T, n *served) (acked []atomic.Int64, old []int64) {
	t.Helper()
	const clients = 8
	acked, old = make([]atomic.Int64, clients), make([]int64, clients)
	c, err := client.Dial(t.Context(), n.grpc)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	for i := range clients {
		key := "k" + strconv.Itoa(i)
		wg.Go(func() {
			for {
				v, err := c.Counter("").Add(ctx, key, 1)
				if err != nil {
					return
				}
				acked[i].Store(v.Value)
			}
		})
	}
	eventually(t, "all have added", func() bool {
		for i := range acked {
			if acked[i].Load() < 10 {
				return false
			}
		}
		return true
	})
	for i := range acked {
		old[i] = acked[i].Load()
	}
	<-time.After(1100 * time.Millisecond) // the interval, and what starts and ends it
	n.signal(t, syscall.SIGKILL)
	n.ends(t, -1)
	cancel()
	wg.Wait()
	return acked, old
}
