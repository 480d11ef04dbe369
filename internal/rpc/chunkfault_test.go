package rpc

import (
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
)

// TestAnywhereNonsenseIsItsCallers: a caller that states a limit which cannot be is told
// so. Those beside it who ask for the same key, and state a good one, are answered, and
// the node goes on with the chunk that it has for them.
func TestAnywhereNonsenseIsItsCallers(t *testing.T) {
	for what, change := range map[string]func(*limitpb.CheckRequest){
		"no period": func(r *limitpb.CheckRequest) { r.PeriodNs = 0 },
		"no limit":  func(r *limitpb.CheckRequest) { r.Limit = 0 },
		"too dear":  func(r *limitpb.CheckRequest) { r.Cost = 1 << 20 },
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := grouped(t, 2, false, nil)
				key, at := g.key("n1"), g.nodes["n2"].limits
				stop := make(chan struct{})
				stopped := make(chan int)
				go func() {
					sent := 0
					for {
						select {
						case <-stop:
							stopped <- sent
							return
						default:
						}
						bad := anywhereCheck(key, 1)
						change(bad)
						if _, err := at.Check(bound(t), bad); status.Code(err) != codes.InvalidArgument {
							t.Errorf("%s: %v", what, err)
						}
						sent++
						time.Sleep(100 * time.Microsecond)
					}
				}()
				failed := 0
				results := make(chan error)
				const good = 3000
				for range good {
					go func() {
						_, err := at.Check(bound(t), anywhereCheck(key, 1))
						results <- err
					}()
					time.Sleep(100 * time.Microsecond)
				}
				for range good {
					if err := <-results; err != nil {
						if failed++; failed == 1 {
							t.Error(err)
						}
					}
				}
				close(stop)
				if sent := <-stopped; failed > 0 || sent < 100 {
					t.Errorf("%d of %d good checks failed beside %d bad ones", failed, good, sent)
				}
			})
		})
	}
}
