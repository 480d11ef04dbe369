package epoch

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
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
	n1, _ := g.Table().Member("n1")
	ghost.Epoch = n1.Since - 1                   // from before the last change of members
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

// asked has a leader look at a candidate as if it had just asked, and plan.
func asked(t *testing.T, g *Group, look func(k *keeper, m table.Member)) {
	t.Helper()
	done := make(chan struct{})
	if err := g.post(t.Context(), func(k *keeper) {
		defer close(done)
		look(k, table.Member{Node: "n9", Incarnation: 9, HashKey: "n9", RaftID: "n9/9", RaftAddr: "127.0.0.1:9", GRPCAddr: "127.0.0.1:99", Level: table.Level})
	}); err != nil {
		t.Fatal(err)
	}
	<-done
}

// TestAdmittedWhileEpochsAreRaised: nodes raise the epoch all the time. A candidate need
// not know the last of them, but every change of members.
func TestAdmittedWhileEpochsAreRaised(t *testing.T) {
	t.Parallel()
	g := form(t, newPool(), 1, nil)[0]
	was := g.Table().Epoch
	for range 5 {
		eventually(t, "a raise", func() bool {
			_, err := g.Propose(t.Context(), table.Command{Raise: &table.Raise{Above: g.Table().Epoch}})
			return err == nil
		})
	}
	asked(t, g, func(k *keeper, m table.Member) {
		defer delete(k.candidates, m.Node)
		due := func(epoch uint64) bool {
			k.candidates[m.Node] = candidate{member: m, at: k.now, epoch: epoch}
			_, ok := k.admissible(g.Table())
			return ok
		}
		k.membersAt = was // of a leader that has led for long
		if !due(was) {
			t.Error("it knows all members, and is not admitted")
		}
		if due(was - 1) {
			t.Error("it does not know of the last change of members, and is admitted")
		}
		if k.membersAt -= 2 * maxBehind; due(g.Table().Epoch - maxBehind - 1) {
			t.Error("it is far behind, and is admitted")
		}
	})
}

// TestCannotBeAdmitted: it is said once for each reason, and does not hold up others that
// wait; nor does a process that cannot be put in the place of another one.
func TestCannotBeAdmitted(t *testing.T) {
	t.Parallel()
	var said lines
	g := form(t, newPool(), 1, func(c *Config) { c.Log = slog.New(slog.NewTextHandler(&said, nil)) })[0]
	asked(t, g, func(k *keeper, m table.Member) {
		defer func() { k.candidates = map[string]candidate{} }()
		now := g.Table()
		for range 3 {
			twin := m
			twin.Node, twin.HashKey = "n8", "n1"
			k.candidates["n8"] = candidate{member: twin, at: k.now, epoch: now.Epoch}
			old := m
			old.Node, old.HashKey, old.Incarnation = "n1", "n1", g.Self().Incarnation
			k.candidates["n1"] = candidate{member: old, resume: old.Incarnation, at: k.now, epoch: now.Epoch}
			k.candidates["n9"] = candidate{member: m, at: k.now, epoch: now.Epoch}
			if _, ok := k.resumable(now); ok {
				t.Error("a Resume is proposed that will be refused")
			}
			if c, ok := k.admissible(now); !ok || c.Admit.Member.Node != "n9" {
				t.Errorf("%v, %v", c, ok)
			}
		}
	})
	if n := said.count("cannot be admitted"); n != 2 {
		t.Errorf("said %d times of two nodes", n)
	}
}

// lines collects what is logged.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer // guarded by mu
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lines) count(what string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), what)
}
