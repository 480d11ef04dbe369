package handoff

import (
	"testing"
	"time"

	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/ring/epoch/table"
)

// die has nobody reach a process any more, nor it anybody.
func (w *world) die(p *process) {
	w.mu.Lock()
	delete(w.nodes, p.self)
	others := make([]*process, 0, len(w.nodes))
	for _, q := range w.nodes {
		others = append(others, q)
	}
	w.mu.Unlock()
	for _, q := range others {
		q.to(p.self).cut()
		p.to(q.self).cut()
	}
}

// live brings it back: it was cut off, and learns what it missed.
func (w *world) live(p *process) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.nodes[p.self] = p
	p.learn(w.table)
}

// standby waits until a row of an owner has a standby.
func (w *world) standby(key string, h table.Holder) {
	w.t.Helper()
	w.until(h.Node+" stands by for "+key, func() bool {
		t := w.agreed()
		r := &t.Rows[t.Find(owner.Hash(key))]
		return r.Standby == h && r.Synced
	})
}

// TestSpareStandby: a standby that is lost is replaced at once, as long as it is still
// a member, by the one that will be the standby when it is not. It gets its rows back
// when it is there again.
func TestSpareStandby(t *testing.T) {
	for _, dies := range []bool{true, false} {
		bubble(t, func(t *testing.T, w *world) {
			n := w.cluster(3)
			w.apply(table.Command{Adopt: &table.Adopt{Level: 3}})
			keys := w.keys(5, ownedBy(n[0], n[1]))
			n[0].put(keys, 7)
			w.die(n[1])
			began := time.Now()
			a := n[0].add(keys[0])
			w.standby(keys[0], n[2].self)
			if took := time.Since(began); took > 2*time.Second {
				t.Errorf("after %s", took)
			}
			a.told(t, "it has a standby")
			if is := n[2].holds(); is[keys[0]] != 8 || is[keys[4]] != 7 {
				t.Errorf("the standby has %v", is)
			}
			if dies {
				w.apply(table.Command{Remove: &table.Remove{Members: []table.Holder{n[1].self, n[0].self}, Reason: "died"}})
				if now := w.agreed(); now.Rows[now.Find(owner.Hash(keys[0]))].Lost > 0 {
					t.Error("the row is lost, although it had a standby")
				}
				return
			}
			w.live(n[1])
			for _, k := range keys {
				w.standby(k, n[1].self)
			}
			w.settle()
			pass(time.Second)
			w.alike()
			if is := n[2].holds(); is[keys[0]] != 0 {
				t.Errorf("who stands by no more still has %v", is)
			}
		})
	}
}
