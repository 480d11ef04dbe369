package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/keystead/keystead/owner"
	adminpb "github.com/keystead/keystead/proto/keystead/admin/v1"
	"github.com/keystead/keystead/ring/epoch/table"
)

// TestSplitsLosePart: a part is lost with its standby while its object is being made
// whole. The whole is put together of the others at once: adds of the lost part since the
// object was divided are missing, as is declared, and nothing else is.
func TestSplitsLosePart(t *testing.T) {
	const key = "sum-a" // that nobody else splits or merges
	playSplits(t, 5, churnPause, func(s *splitScene) {
		d := s.newDivider(40)
		defer d.close()
		part, i, k := s.losable(d, key)
		home := s.home(key)
		s.off(s.hosts[i], true) // at the same moment: it may take seconds until a process has ended
		s.off(s.hosts[k], true)
		s.Crash(i)
		s.Crash(k)
		s.watch.trouble(false)
		var order sync.WaitGroup
		order.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), splitOrder)
			defer cancel()
			_, _ = adminpb.NewAdminServiceClient(d.conns[home]).MergeObject(ctx, &adminpb.MergeObjectRequest{Kind: kindOf(key), Key: key})
		})
		s.until(stableTime, key+" is whole", func() bool {
			_, is := latest(s.Cluster).Split(wordOf(key), key, defaultName(key))
			return !is
		})
		order.Wait()
		h := s.history()
		if of := h.of[key]; !h.whole || !of.part || of.whole {
			t.Errorf("%s and %s died, which had %s; of %s is lost %+v: %v; the log is whole: %v", s.hosts[i].name, s.hosts[k].name, part, key, of, h.losses[key], h.whole)
		}
		s.start(i)
		s.start(k)
		s.watch.trouble(false)
	})
}

// losable has an object split into parts until one of them is owned, and stood by for, by
// two hosts that are neither its home nor stand by for that, and has been for a while, so
// that there are adds to lose: the two are returned, and the part for people.
func (s *splitScene) losable(d *divider, key string) (part string, i, k int) {
	s.t.Helper()
	rnd := rand.New(rand.NewPCG(s.seed, s.rnd.Uint64()))
	at := func(m table.Holder) int {
		return slices.IndexFunc(s.hosts, func(h *host) bool { return h.name == m.Node })
	}
	const long = 500 * time.Millisecond
	since := time.Now()
	s.until(stableTime, "a part of "+key+" is away from its home", func() bool {
		t := latest(s.Cluster)
		home := t.Rows[t.Find(owner.Hash(key))]
		if sp, ok := t.Split(wordOf(key), key, defaultName(key)); ok && sp.Phase == table.Open {
			for p := range sp.Parts {
				r := t.Rows[t.Find(sp.PartHash(p))]
				apart := func(h table.Holder) bool { return !h.None() && h != home.Owner && h != home.Standby }
				if !apart(r.Owner) || !apart(r.Standby) {
					continue
				}
				if is := fmt.Sprintf("part %d of split %d, %s, %s", p, sp.ID, r.Owner.Node, r.Standby.Node); is != part {
					part, i, k, since = is, at(r.Owner), at(r.Standby), time.Now()
				}
				return time.Since(since) > long
			}
			_ = d.merge(rnd, key)
		}
		_ = d.split(rnd, key, 5)
		return false
	})
	return part, i, k
}
