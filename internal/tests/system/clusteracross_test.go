package system

import (
	"context"
	"crypto/rand"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	admissionpb "github.com/keystead/keystead/proto/keystead/admission/v1"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
)

// A node is killed that coordinates admissions of several keys, and owns one of them. Callers ask again through others: the
// owners of all keys charge the same, and as much as callers were told.
func TestClusterAcrossKilled(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, false)
	_, others := c.leader()
	var demands []*admissionpb.Demand
	for _, of := range c.keys(1) {
		demands = append(demands, &admissionpb.Demand{Key: of[0], Name: "used", Counter: &admissionpb.CounterDemand{Max: 1e12}})
	}
	var told atomic.Int64
	over := make(chan struct{})
	var wg sync.WaitGroup
	for caller := range 8 {
		wg.Go(func() {
			client := make([]byte, 16)
			_, _ = rand.Read(client)
			for n := uint64(1); ; n++ {
				select {
				case <-over:
					return
				default:
				}
				q := &admissionpb.AdmitRequest{Demands: demands, RequestId: &commonpb.RequestId{Client: client, Sequence: n, Settled: n}}
				first, try := time.Now(), caller
				var err error
				answered := poll(func() bool {
					var a *admissionpb.AdmitResponse
					ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
					defer cancel()
					if a, err = admissionpb.NewAdmissionServiceClient(c.nodes[try%3].conn).Admit(ctx, q); err != nil {
						try++
						q.RequestId.AgeNs = int64(time.Since(first))
						return false
					}
					if a.Admitted {
						told.Add(1)
					} else if !refusedByMark(a) {
						t.Error(a)
					}
					return true
				})
				if !answered {
					t.Error("nobody says what became of a request:", err)
					return
				}
			}
		})
	}
	eventually(t, "many are admitted", func() bool { return told.Load() > 50 })
	others[0].kill()
	before := told.Load()
	eventually(t, "it goes on", func() bool { return told.Load() > before+50 })
	close(over)
	wg.Wait()
	eventually(t, "all keys are charged as callers were told", func() bool {
		for _, d := range demands {
			r, err := counterpb.NewCounterServiceClient(others[1].conn).Get(t.Context(), &counterpb.GetRequest{Key: d.Key, Name: "used"})
			if err != nil || r.Value != told.Load() {
				t.Log(d.Key, r.GetValue(), "of", told.Load(), err)
				return false
			}
		}
		return true
	})
	t.Log(fmt.Sprint(told.Load()), "were admitted")
}

// refusedByMark reports whether a refusal is none of the demands: an owner was asked about the request before it came.
func refusedByMark(a *admissionpb.AdmitResponse) bool {
	for _, d := range a.Demands {
		if d.Refused {
			return false
		}
	}
	return true
}
