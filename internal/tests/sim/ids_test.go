package sim

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/keystead/keystead/internal/ids"
	idpb "github.com/keystead/keystead/proto/keystead/id/v1"
)

// given is a run of ids that somebody received.
type given struct {
	first, count uint64
	sent, got    time.Time
}

// askForIDs asks nodes for ids until the context ends.
func (s *scene) askForIDs(ctx context.Context, number uint64) (all []given, failed int) {
	rnd := rand.New(rand.NewPCG(s.seed, number))
	var conns []*grpc.ClientConn
	for i := range s.hosts {
		c, err := s.Dial("10.0.8.1", i)
		if err != nil {
			s.t.Error(err)
			return nil, 0
		}
		defer c.Close()
		conns = append(conns, c)
	}
	for ctx.Err() == nil {
		g := given{sent: time.Now()}
		try, cancel := context.WithTimeout(ctx, callTime)
		r, err := idpb.NewIdServiceClient(conns[rnd.IntN(len(conns))]).Next(try, &idpb.NextRequest{Count: 1 + rnd.Uint32N(ids.MaxCount)})
		cancel()
		if err == nil {
			g.first, g.count, g.got = r.First, uint64(r.Count), time.Now()
			all = append(all, g)
		} else {
			failed++
		}
		s.sleep(time.Duration(rnd.Int64N(int64(200 * time.Millisecond))))
	}
	return all, failed
}

// judgeIDs sees that no id came twice, and that they are in their rough order.
// Clocks of hosts run fast or slow.
func (s *scene) judgeIDs(all []given) {
	slices.SortFunc(all, func(a, b given) int { return cmp.Compare(a.first, b.first) })
	for i := 1; i < len(all); i++ {
		if all[i].first < all[i-1].first+all[i-1].count {
			s.t.Errorf("the ids from %x on, %d of them, and those from %x on", all[i-1].first, all[i-1].count, all[i].first)
		}
	}
	const order = ids.Order * 102 / 100
	late := slices.Clone(all)
	slices.SortFunc(late, func(a, b given) int { return a.got.Compare(b.got) })
	slices.SortFunc(all, func(a, b given) int { return a.sent.Compare(b.sent) })
	var greatest uint64 // of those received long before
	next, far := 0, 0
	for _, g := range all {
		for ; next < len(late) && g.sent.Sub(late[next].got) > order; next++ {
			greatest = max(greatest, late[next].first)
		}
		if g.first <= greatest {
			s.t.Errorf("%x was given more than %s after %x", g.first, order, greatest)
		}
		if greatest > 0 {
			far++
		}
	}
	if far == 0 {
		s.t.Errorf("of %d runs none came more than %s after another", len(all), order)
	}
}

// TestIDsUnderFaults: nodes hand out ids while leaders die and sleep, nodes are cut off, lose
// their disks and clocks jump, and all restart.
func TestIDsUnderFaults(t *testing.T) {
	t.Parallel()
	play(t, setting{nodes: 3}, func(s *scene) {
		ctx, cancel := context.WithCancel(s.t.Context())
		var mu sync.Mutex
		var all []given
		var failed int
		var running sync.WaitGroup
		for i := range 4 {
			running.Go(func() {
				a, f := s.askForIDs(ctx, uint64(i))
				mu.Lock()
				all, failed = append(all, a...), failed+f
				mu.Unlock()
			})
		}
		defer running.Wait()
		defer cancel()
		calm := func() {
			s.restore()
			s.until(stableTime, "three vote", s.vote(3))
		}
		restart := func(i int) {
			if err := s.Start(i); err != nil {
				s.t.Error(err)
			}
		}
		s.sleep(15 * time.Second)
		i := s.leader()
		s.Crash(i)
		s.sleep(s.between(0, 10*time.Second))
		restart(i)
		calm()
		i = s.follower()
		s.Partition([]int{i})
		s.sleep(s.between(ids.Order/2, 3*ids.Order/2)) // it goes on, and then not
		calm()
		i = s.leader()
		s.Pause(i)
		s.sleep(s.between(ttl, 10*ttl))
		s.Resume(i)
		calm()
		i = s.follower()
		s.Crash(i)
		s.Wipe(i)
		restart(i)
		calm()
		s.JumpWall(s.leader(), -time.Hour)
		for i := range s.hosts {
			s.Crash(i)
		}
		for i := range s.hosts {
			restart(i)
		}
		s.restore()
		s.sleep(15 * time.Second)
		cancel()
		running.Wait()
		s.judgeIDs(all)
		s.t.Logf("%d runs of ids, %d calls failed", len(all), failed)
		if len(all) < 1000 {
			s.t.Errorf("only %d runs of ids", len(all))
		}
	})
}

// TestIDsAfterAllIsLost: a cluster that is made anew goes on above the old one.
func TestIDsAfterAllIsLost(t *testing.T) {
	t.Parallel()
	play(t, setting{nodes: 3}, func(s *scene) {
		take := func(d time.Duration) []given {
			ctx, cancel := context.WithTimeout(s.t.Context(), d)
			defer cancel()
			all, _ := s.askForIDs(ctx, 1)
			return all
		}
		before := take(5 * time.Second)
		for i := range s.hosts {
			s.Crash(i)
			s.Wipe(i)
		}
		s.restore()
		greatest := uint64(0)
		for _, g := range before {
			greatest = max(greatest, g.first+g.count-1)
		}
		after := take(5 * time.Second)
		for _, g := range after {
			if g.first <= greatest {
				s.t.Errorf("%x was given after %x", g.first, greatest)
			}
		}
		if len(before) < 20 || len(after) < 20 {
			s.t.Errorf("%d runs before, %d after", len(before), len(after))
		}
	})
}
