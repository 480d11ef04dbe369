package handoff

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/reqid"
	"github.com/keystead/keystead/ring/epoch/table"
)

// crowdSize is how many callers wait for one lock.
const crowdSize = 50_000

// line returns the names of those that wait for a lock, as a process would tell another one.
func (p *process) line(key string) (names []string) {
	p.store.Export(p.w.now, func(h uint64) bool { return h == owner.Hash(key) },
		func(r *owner.Record, _ int64) bool {
			if s := r.Hold(); s != nil {
				for _, place := range s.Queue.All() {
					names = append(names, place.Request.Name)
				}
			}
			return true
		}, func() bool { return true })
	return names
}

// TestCrowdMovesOverAJoin: fifty thousand callers wait for one lock, and a node joins that is to own
// it. Their places are copied some at a time, all of them are told where the lock is, and all that
// come there have their places, in their order. The node that stood by had them, too.
func TestCrowdMovesOverAJoin(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		grown := newWorld(t) // where a key goes when there is a third node
		third := grown.cluster(3)[2]
		n := w.cluster(2)
		w.apply(table.Command{Adopt: &table.Adopt{Level: table.Level}})
		key, to := "", grown.agreed()
		for _, k := range w.keys(1000, ownedBy(n[0], n[1])) {
			if to.Rows[to.Find(owner.Hash(k))].Owner == third.self {
				key = k
			}
		}
		if key == "" {
			t.Fatal("no key goes to the third node")
		}
		lock := owner.Ref{Key: key, Name: "l"}
		held, _, err := n[0].store.Acquire(w.now(), lock, reqid.ID{}, owner.AcquireLock{Holder: "first", TTL: int64(time.Hour)})
		if err != nil {
			t.Fatal(err)
		}
		want, waits := make([]string, crowdSize), make([]*owner.Wait[owner.GrantAnswer], crowdSize)
		ask := func(p *process, i int) {
			_, waits[i], err = p.store.Acquire(w.now(), lock, reqid.ID{Client: reqid.Client{Hi: 1, Lo: uint64(i) + 1}, Sequence: 1}, owner.AcquireLock{Holder: want[i], TTL: int64(time.Hour), Wait: int64(10 * time.Hour)})
			if err != nil || waits[i] == nil {
				t.Fatalf("caller %d: %v", i, err)
			}
		}
		for i := range waits {
			want[i] = fmt.Sprint(i)
			if err := n[0].source.Room(t.Context(), owner.Hash(key)); err != nil {
				t.Fatal(err)
			}
			ask(n[0], i)
		}
		w.until("the standby has them", func() bool { return len(n[1].line(key)) == crowdSize })
		if have := n[1].line(key); !slices.Equal(have, want) {
			t.Error("the standby has them in another order")
		}
		n = append(n, w.start("n3", 1))
		w.towards(n...)
		w.awaitStable()
		w.until("all are told", func() bool { return n[0].store.Stats().Waiting == 0 })
		for i := range waits {
			if _, err := waits[i].Answer(); err == nil {
				t.Fatalf("caller %d was granted the lock", i)
			}
		}
		if have := n[2].line(key); !slices.Equal(have, want) {
			t.Fatalf("the new owner has %d places, or in another order", len(have))
		}
		for n2 := range waits {
			ask(n[2], crowdSize-1-n2)
		}
		token := held.Token
		for i, wait := range waits {
			if r, err := n[2].store.Release(w.now(), lock, reqid.ID{}, token); err != nil || !r.Released {
				t.Fatalf("holder %d: %+v %v", i, r, err)
			}
			<-wait.Done()
			a, err := wait.Answer()
			if err != nil || !a.Acquired {
				t.Fatalf("caller %d: %+v %v", i, a, err)
			}
			token = a.Token
			if i%1000 == 0 {
				pass(time.Millisecond) // the streams have a turn
			}
		}
	})
}
