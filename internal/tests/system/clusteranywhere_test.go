//go:build system

package system

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
)

// TestClusterAnywhere: nodes spend chunks of one limit while one of them is killed,
// and then the owner. No more is allowed than the owner alone would have allowed.
func TestClusterAnywhere(t *testing.T) {
	t.Parallel()
	const burst, rate = 240, 60 // a second: callers ask for more, also on a busy machine
	c := newCluster(t, 3, false)
	const key = "tenant-42"
	// The owner of the key is one of the nodes; holder is another, but not the one that
	// was told to make the cluster: it has no disk, and would make a second one.
	owner := func() (at, holder *testNode) {
		eventually(t, "somebody owns the key, and every row has its standby", func() bool {
			if st, _, err := c.nodes[0].status(); err != nil || st.RowsUnprotected > 0 || st.Changing {
				return false // what its owner has would be lost, and declared so
			}
			owners := c.nodes[0].owners(key)
			at, holder = nil, nil
			for i, n := range c.nodes {
				if len(owners) == 1 && owners[0].Owner == n.id {
					at = n
				} else if i > 0 {
					holder = n
				}
			}
			return at != nil
		})
		return at, holder
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var mu sync.Mutex
	var allowed, denied, failed, early int
	var began, ended time.Time
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for ctx.Err() == nil {
				n := c.nodes[rand.IntN(len(c.nodes))]
				try, over := context.WithTimeout(ctx, 2*time.Second)
				sent := time.Now()
				r, err := limitpb.NewLimitServiceClient(n.conn).Check(try, &limitpb.CheckRequest{Key: key, Limit: rate, PeriodNs: 1e9, Burst: burst, Anywhere: true})
				over()
				mu.Lock()
				switch {
				case err != nil:
					failed++
				case !r.Allowed:
					denied++
				default:
					if allowed++; began.IsZero() || sent.Before(began) {
						began = sent
					}
					ended = time.Now()
				}
				if err == nil && r.Slack != burst/4 {
					early++
				}
				mu.Unlock()
				<-time.After(time.Millisecond)
			}
		})
	}
	<-time.After(2 * time.Second)
	_, holder := owner()
	holder.kill()
	<-time.After(time.Second)
	holder.run()
	c.ready(c.nodes...)
	at, _ := owner()
	at.kill()
	<-time.After(4 * time.Second)
	stop()
	wg.Wait()
	most := burst + int(rate*ended.Sub(began).Seconds()) + 1
	t.Logf("%d allowed of %d, %d denied, %d failed in %s", allowed, most, denied, failed, ended.Sub(began))
	if allowed > most || allowed < burst/2 || denied == 0 || early > 0 {
		t.Errorf("%d allowed, at most %d by the limit; %d denied, %d with another slack", allowed, most, denied, early)
	}
}
