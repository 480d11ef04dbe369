package sim

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/keystead/keystead/internal/node"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	"github.com/keystead/keystead/ring/epoch/table"
)

// Load of the hot key in TestSplitsByThemselves, in operations a second, and what a part
// is worth.
const (
	warmRate = 100
	hotRate  = 320
	coolRate = 4
	worth    = 40
)

// staysWhole is for how long it has to be whole: longer than between the merge and the
// split of one that gets another number of parts.
const staysWhole = 5 * time.Second

// TestSplitsByThemselves: a counter gets hot and is split, gets hotter and into more
// parts, cools down and is whole again. Nothing is lost on the way.
func TestSplitsByThemselves(t *testing.T) {
	t.Parallel()
	tune := func(_ int, cfg *node.Config) {
		cfg.Hot.Floor, cfg.Hot.Stay = worth, int64(2*time.Second)
		cfg.Hot.Split, cfg.Hot.PerPart = true, worth
	}
	play(t, setting{nodes: 4, config: func(c *Config) { c.Tune = tune }}, func(s *scene) {
		l := newSplitLoad(s)
		const key = "sum-a"
		parts := func() int {
			if sp, ok := latest(s.Cluster).Split("counter", key, "counter"); ok && sp.Phase == table.Open {
				return len(sp.Parts)
			}
			return 0
		}
		phase := func(number int, rate int, f func()) {
			quit := make(chan struct{})
			l.quit = quit
			k, err := l.newCaller(number)
			if err != nil {
				s.t.Fatal(err)
			}
			defer k.close()
			const workers = 8
			every := workers * time.Second / time.Duration(rate)
			for i := range workers {
				rnd := rand.New(rand.NewPCG(s.seed, uint64(number*100+i)))
				l.running.Go(func() {
					for !k.over() {
						if rnd.IntN(8) == 0 {
							l.get(k, rnd, key)
						} else {
							l.add(k, rnd, key, nil)
						}
						s.sleep(every/2 + time.Duration(rnd.Int64N(int64(every))))
					}
				})
			}
			f()
			close(quit)
			l.running.Wait()
		}
		warm := 0
		phase(1, warmRate, func() {
			took := s.until(30*time.Second, "it is split", func() bool { return parts() > 0 })
			warm = parts()
			s.t.Logf("split into %d after %s", warm, took)
		})
		phase(2, hotRate, func() {
			took := s.until(40*time.Second, "it has more parts", func() bool { return parts() > warm })
			s.t.Logf("split into %d after %s", parts(), took)
			s.sleep(2 * time.Second)
		})
		phase(3, coolRate, func() {
			since := time.Now()
			took := s.until(60*time.Second, "it is whole, and stays so", func() bool {
				if len(latest(s.Cluster).Splits) > 0 {
					since = time.Now()
				}
				return time.Since(since) > staysWhole
			})
			s.t.Logf("whole after %s", took-staysWhole)
		})
		for _, f := range slices.Concat(l.sums[key].judge(false), l.faultTexts()) {
			s.t.Error(f)
		}
		end := &splitScene{scene: s, load: l, watch: newSplitWatch(s.Cluster)}
		end.judgeSums("in the end")
		if n := len(latest(s.Cluster).Splits); n != 0 {
			s.t.Errorf("%d splits, when the key is cool", n)
		}
		s.until(splitForget, "nothing is left of parts", func() bool { return end.held("counter") <= 2 })
	})
}

// TestSplitsRefuseLittle: a limit that is split into three and asked for half of what it
// allows refuses little, when it has settled: asked by all nodes alike, and by one only.
func TestSplitsRefuseLittle(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		name   string
		limits bucket
		one    bool          // all calls come to one node
		settle time.Duration // after the split
		most   float64       // refused of all, in percent
	}{
		{"alike", bucket{key: "big", rate: 120, burst: 120}, false, 3 * time.Second, 1},
		{"small burst", bucket{key: "small", rate: 60, burst: 20}, false, 3 * time.Second, 3},
		{"one node", bucket{key: "tight", rate: 120, burst: 120}, true, 15 * time.Second, 5},
	} {
		t.Run(x.name, func(t *testing.T) {
			play(t, setting{nodes: 3}, func(s *scene) {
				all, refused := s.refusals(x.limits, x.one, x.settle)
				percent := 100 * float64(refused) / float64(all)
				s.t.Logf("%d of %d refused: %.1f%%", refused, all, percent)
				if all < 200 || percent > x.most {
					s.t.Errorf("%d of %d refused, %.1f%%; more than %g%%", refused, all, percent, x.most)
				}
			})
		})
	}
}

// refusals splits a limit, asks for half of what it allows, evenly over time but for
// chance, and counts after a while.
func (s *scene) refusals(b bucket, one bool, settle time.Duration) (all, refused int) {
	l := newSplitLoad(s)
	sp := &splitScene{scene: s, load: l, watch: newSplitWatch(s.Cluster)}
	d := sp.newDivider(1)
	defer d.close()
	s.until(stableTime, b.key+" is split", func() bool { return d.split(s.rnd, b.key, 3) == nil })
	k, err := l.newCaller(1)
	if err != nil {
		s.t.Fatal(err)
	}
	defer k.close()
	conns := k.conns // of those that it asks
	if one {
		conns = conns[1:2]
	}
	const workers = 4
	every := 2 * workers * time.Second / time.Duration(b.rate)
	var counting sync.WaitGroup
	log := l.checks[b.key]
	for i := range workers {
		rnd := rand.New(rand.NewPCG(s.seed, uint64(900+i)))
		counting.Go(func() {
			for !k.over() {
				s.ask(l, k, conns, rnd, b, log, !one && rnd.IntN(2) == 0)
				s.sleep(time.Duration(rnd.Int64N(int64(2 * every))))
			}
		})
	}
	s.sleep(settle)
	before, refusedBefore, _ := log.figures()
	s.sleep(15 * time.Second)
	after, refusedAfter, divided := log.figures()
	close(l.quit)
	counting.Wait()
	if f := log.judge(b); f != "" {
		s.t.Error(f)
	}
	if divided == 0 {
		s.t.Errorf("no check was decided by a part")
	}
	return after - before, refusedAfter - refusedBefore
}

// ask does one check that is not repeated.
func (s *scene) ask(l *splitLoad, k *splitCaller, conns []*grpc.ClientConn, rnd *rand.Rand, b bucket, log *checkLog, named bool) {
	began := time.Now()
	same := l.same(b.key, "check", began)
	call := func(ctx context.Context, conn *grpc.ClientConn, id *commonpb.RequestId) error {
		got, err := l.spend(ctx, conn, b, id)
		if err == nil && same(got.Allowed, got.Replay, got.Owner) {
			log.took(began, got.Allowed, got.Parts)
		}
		return err
	}
	if named {
		if err := k.known(rnd, l.failed, call); err != nil {
			s.t.Error(err)
		}
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), splitCall)
	defer cancel()
	if err := call(ctx, conns[rnd.IntN(len(conns))], nil); err != nil {
		s.t.Error(err)
	}
}
