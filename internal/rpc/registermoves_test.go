package rpc

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/value"
	registerpb "github.com/keystead/keystead/proto/keystead/register/v1"
)

// Many who read a long value while its row is handed over are answered in messages that the
// other node takes: a larger one would end the stream, and with it all calls on it.
func TestLongValuesOfAFrozenRow(t *testing.T) {
	inGroup(t, func(t *testing.T, g *group) {
		g.called("c", owner.RegisterLevel)
		key, n1, n2 := g.key("n2"), g.nodes["n1"], g.nodes["n2"]
		must(n2.registers.Put(bound(t), &registerpb.PutRequest{Key: key, Value: make([]byte, value.MaxValue)}))(t)
		n2.frozen.Store(true)
		var readers sync.WaitGroup
		for range 4 * maxReceive / value.MaxValue {
			readers.Go(func() {
				r, err := registerGet.serve(bound(t), n1.server, &registerpb.GetRequest{Key: key})
				if err != nil || len(r.Value) != value.MaxValue {
					t.Errorf("%d bytes, %v", len(r.GetValue()), err)
				}
			})
		}
		synctest.Wait()
		time.Sleep(100 * time.Millisecond)
		n2.frozen.Store(false)
		readers.Wait()
	})
}
