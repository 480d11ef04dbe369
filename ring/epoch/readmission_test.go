package epoch

import (
	"testing"
	"time"

	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
	"github.com/keystead/keystead/ring/epoch/table"
)

// TestRemovedComesBack: a process that was removed and does not know it asks a
// leader that does not know it either. It is not admitted before it follows the
// log, and gets no lease before it has applied its admission: in the table that
// it goes by, it still owns what others have by now. Found by simulation.
func TestRemovedComesBack(t *testing.T) {
	t.Parallel()
	g := form(t, newPool(), 1, nil)[0]
	ghost := &peerv1.RenewRequest{Node: "ghost", Incarnation: 7, HashKey: "ghost", GrpcAddr: "127.0.0.1:2", RaftAddr: "127.0.0.1:3", RaftId: "ghost/1"}
	ask := func() peerv1.Refusal {
		r, err := g.renew(t.Context(), ghost)
		if err != nil {
			t.Fatal(err)
		}
		return r.Refusal
	}
	is := func() bool { return g.Table().Holds(table.Holder{Node: "ghost", Incarnation: 7}) }
	ghost.Epoch = g.Table().Epoch - 1
	tick := time.NewTicker(5 * time.Millisecond) // in which a member would be admitted
	defer tick.Stop()
	for range 20 {
		<-tick.C
		if got := ask(); got != peerv1.Refusal_REFUSAL_NOT_MEMBER || is() {
			t.Fatalf("with an old table it is answered %v", got)
		}
	}
	eventually(t, "the process is admitted", func() bool { ghost.Epoch = g.Table().Epoch; ask(); return is() })
	m, _ := g.Table().Member("ghost")
	ghost.Epoch = m.Since - 1
	if got := ask(); got != peerv1.Refusal_REFUSAL_NOT_NOW {
		t.Errorf("before it has applied its admission it is answered %v", got)
	}
	ghost.Epoch = m.Since
	if got := ask(); got != peerv1.Refusal_REFUSAL_UNSPECIFIED {
		t.Errorf("when it has, it is answered %v", got)
	}
	// It falls silent, is removed, and asks once more: it must become another.
	eventually(t, "the process is removed", func() bool { return !is() })
	ghost.Epoch = g.Table().Epoch
	if got := ask(); got != peerv1.Refusal_REFUSAL_REMOVED {
		t.Errorf("after it was removed it is answered %v", got)
	}
}
