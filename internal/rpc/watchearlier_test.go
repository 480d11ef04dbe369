package rpc

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/value"
	registerpb "github.com/keystead/keystead/proto/keystead/register/v1"
)

// An owner that has an earlier state than a watcher, as one has that took over without the last
// changes (--ack-owner), says nothing of the watcher's: no heartbeat calls that the latest.
func TestEarlierStateIsNoHeartbeat(t *testing.T) {
	inGroup(t, func(t *testing.T, g *group) {
		g.called("c", owner.RegisterLevel)
		m, at, key, ctx := g.nodes["n1"], g.nodes["n2"], g.key("n2"), bound(t)
		put := must(m.registers.Put(ctx, &registerpb.PutRequest{Key: key, Value: []byte("latest")}))(t)
		w := watch(t, m, key, 0)
		nextChange(t, w)
		synctest.Wait()

		now := at.server.cfg.Clock.Now()
		earlier := owner.Record{Hash: owner.Hash(key), Key: []byte(key), At: now}
		earlier.Name = []byte("register")
		earlier.SetRegister(value.State{Exists: true, Version: put.Version - 1, Value: []byte("earlier")})
		if err := at.store.Install(now, &earlier, func(uint64) bool { return true }); err != nil {
			t.Fatal(err)
		}

		said := make(chan any, 100)
		go func() {
			for r, err := w.Recv(); err == nil; r, err = w.Recv() {
				said <- r
			}
		}()
		time.Sleep(watchStale) // what was asked before
		for len(said) > 0 {
			<-said
		}
		time.Sleep(5 * watchStale)
		if n := len(said); n > 0 {
			t.Errorf("%d messages, such as %v", n, <-said)
		}
	})
}
