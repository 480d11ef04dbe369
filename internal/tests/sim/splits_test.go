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
	"github.com/keystead/keystead/ring/epoch/table"
)

// splitScene is a scene in which objects are split.
type splitScene struct {
	*scene
	load  *splitLoad
	watch *splitWatch
}

// playSplits runs a scenario with clients of objects that are split, some of them also
// split and merged all the time, with up to pause in between, and then sees that nothing was lost, that no split is
// stuck, and that nothing is left of them when they are merged.
func playSplits(t *testing.T, nodes int, pause time.Duration, act func(*splitScene)) {
	t.Parallel()
	play(t, setting{nodes: nodes, config: func(c *Config) { c.Snapshots = wholeLogs }}, func(base *scene) {
		s := &splitScene{scene: base, load: newSplitLoad(base), watch: newSplitWatch(base.Cluster)}
		ctx, cancel := context.WithCancel(context.Background())
		var watching sync.WaitGroup
		watching.Go(func() { s.watch.run(ctx, base) })
		defer watching.Wait()
		defer cancel()
		s.load.start()
		quit := make(chan struct{})
		var churning sync.WaitGroup
		var dividers []*divider
		first := s.newDivider(1)
		for i, key := range splitKeys() {
			s.until(stableTime, key+" is split", func() bool { return first.split(s.rnd, key, 2+i%3) == nil })
		}
		dividers = append(dividers, first)
		for i, keys := range [][]string{{"sum-c", "small", casCounter}, {"sum-b", "tight", casCounter}} {
			d := s.newDivider(2 + i)
			dividers = append(dividers, d)
			rnd := rand.New(rand.NewPCG(s.seed, uint64(7000+i)))
			churning.Go(func() { d.churn(rnd, quit, pause, keys) })
		}
		defer func() {
			for _, d := range dividers {
				d.close()
			}
		}()
		stop := sync.OnceFunc(func() {
			close(quit)
			churning.Wait()
			s.load.stop()
		})
		defer stop()
		s.sleep(time.Second / 2)
		act(s)
		took := s.restore()
		s.watch.trouble(false)
		s.sleep(time.Second)
		stop()
		s.t.Logf("all was well %s after the faults; all callers had their outcomes at %s", took, stamp(time.Now()))
		s.judge(first)
		s.t.Logf("%s; log whole %v; errors %v; orders %v %v %v", s.watch.summary(), s.history().whole, s.load.errs, first.errs, dividers[1].errs, dividers[2].errs)
	})
}

// judge merges all, and looks at what there was.
func (s *splitScene) judge(d *divider) {
	s.t.Helper()
	s.until(splitStuck, "no split is opening or closing", func() bool {
		return !slices.ContainsFunc(latest(s.Cluster).Splits, func(sp table.Split) bool { return sp.Phase != table.Open })
	})
	s.judgeSums("split")
	for _, key := range splitKeys() {
		s.until(stableTime, key+" is merged", func() bool {
			_, is := latest(s.Cluster).Split(wordOf(key), key, defaultName(key))
			return !is || d.merge(s.rnd, key) == nil
		})
	}
	s.judgeSums("merged")
	h := s.history()
	s.watch.mu.Lock()
	for _, f := range append(s.watch.faults, h.fault...) {
		s.t.Error(f)
	}
	s.watch.mu.Unlock()
	for key, log := range s.load.sums {
		lost := s.lossOf(h, key)
		for i, f := range log.judge(lost.part || lost.whole) {
			if i < maxFaults {
				s.t.Errorf("counter %s, of which was lost %v: %s", key, h.losses[key], f)
			}
		}
	}
	for _, b := range buckets {
		all, refused, divided := s.load.checks[b.key].figures()
		s.t.Logf("limit %s: %d checks, %d refused, %d by parts; lost %v", b.key, all, refused, divided, h.losses[b.key])
		if f := s.load.checks[b.key].judge(b); f != "" && (!s.lossOf(h, b.key).whole || b.key == keptLimit) {
			s.t.Errorf("limit, of which was lost %v: %s", h.losses[b.key], f)
		}
	}
	for _, f := range s.load.faults {
		if !s.lossOf(h, f.key).unsure {
			s.t.Error(f.text)
		} else {
			s.t.Logf("after losses %v: %s", h.losses[f.key], f.text)
		}
	}
	s.judgeLeft(d)
}

// judgeLeft sees that nothing is left of parts, when no object is split any more. An order
// to split one may have been on its way until now: it is merged then, and the time that
// leftovers have begins anew.
func (s *splitScene) judgeLeft(d *divider) {
	s.t.Helper()
	few := func() bool {
		return s.held("counter") <= int64(2*len(s.load.sums)) && s.held("limit") <= int64(2*len(buckets))
	}
	latestOver := time.Now().Add(stableTime)
	for over := time.Now().Add(splitForget); !few() && time.Now().Before(over) && time.Now().Before(latestOver); {
		for _, sp := range latest(s.Cluster).Splits { // by a home that places parts anew
			s.t.Logf("%s: split again since epoch %d, %s: %s %s", stamp(time.Now()), sp.ID, sp.Phase, sp.Key, sp.Reason)
			_ = d.merge(s.rnd, sp.Key)
			over = time.Now().Add(splitForget)
		}
		s.sleep(pollEvery)
	}
	if !few() {
		for _, h := range s.hosts {
			s.t.Logf("%s holds %v", h.name, h.node.Status().Objects)
		}
		s.t.Errorf("%d counters and %d limits are held %s after the merges: something is left of parts; at %s, splits %+v\n%s", s.held("counter"), s.held("limit"), splitForget,
			stamp(time.Now()), latest(s.Cluster).Splits, s.holdings())
	}
}

// judgeSums reads all counters, when nobody adds.
func (s *splitScene) judgeSums(when string) {
	s.t.Helper()
	k, err := s.load.newCaller(99)
	if err != nil {
		s.t.Fatal(err)
	}
	defer k.close()
	values := map[string]int64{}
	for key := range s.load.sums {
		s.until(stableTime, "reading "+key, func() bool {
			r := s.load.get(k, s.rnd, key)
			if r != nil {
				values[key] = r.Value
			}
			return r != nil
		})
	}
	h := s.history()
	for key, got := range values {
		want, open := s.load.sums[key].total()
		lost := s.lossOf(h, key)
		told := fmt.Sprintf("counter %s, %s: %d in the end, and %d were added, and perhaps %d; divided at %d; lost %v", key, when, got, want, open, h.base[key], h.losses[key])
		switch {
		case got > want+open && !lost.ids, got < want && !lost.part && !lost.whole, got < h.base[key]:
			s.t.Error(told)
		case got != want:
			s.t.Log(told)
		}
	}
}

// churnPause is how long an object stays as it is, at most, while faults are on.
const churnPause = 400 * time.Millisecond

// TestSplits: nothing is broken, and objects are split and merged all the time.
func TestSplits(t *testing.T) {
	playSplits(t, 3, 30*time.Millisecond, func(s *splitScene) { s.sleep(5 * time.Second / slower) })
}

// splitFault is something that befalls a cluster with splits.
type splitFault struct {
	name string
	do   func(s *splitScene)
}

// victim draws an object.
func (s *splitScene) victim() string { keys := splitKeys(); return keys[s.rnd.IntN(len(keys))] }

// die kills a host, one way or the other, and starts it again after a while.
func (s *splitScene) die(i int) {
	if s.rnd.IntN(2) == 0 {
		s.Kill(i)
	} else {
		s.Crash(i)
	}
	s.watch.trouble(false)
	s.sleep(s.between(0, 3*ttl))
	s.start(i)
}

func (s *splitScene) start(i int) {
	if err := s.Start(i); err != nil {
		s.t.Fatal(err)
	}
}

func (s *splitScene) sleepy(i int) {
	s.watch.trouble(true)
	s.Pause(i)
	s.sleep(s.between(ttl/2, 3*ttl))
	s.Resume(i)
	s.watch.trouble(false)
}

// apart cuts a home off from an owner of parts: both ways, or one.
func (s *splitScene) apart() {
	key := s.victim()
	home, part := s.home(key), s.partOwner(key)
	s.watch.trouble(true)
	way := s.rnd.IntN(3)
	s.Cut(home, part, way != 1)
	s.Cut(part, home, way != 0)
	s.sleep(s.between(time.Second, 3*ttl))
	s.Heal()
	s.watch.trouble(false)
}

// slowLinks makes all links slow, and some lose things.
func (s *splitScene) slowLinks() {
	s.watch.trouble(true)
	s.Net.SetFaults("", "", Faults{Min: time.Millisecond, Max: s.between(10*time.Millisecond, 60*time.Millisecond), Loss: 0.02, Reset: 0.001})
	s.Gossip.SetLoss(0.1)
	s.sleep(s.between(3*time.Second, 6*time.Second))
	s.Heal()
	s.watch.trouble(false)
}

// laggard makes one node learn of all things late.
func (s *splitScene) laggard() {
	s.watch.trouble(true)
	i, f := s.home(s.victim()), Faults{Min: 5 * time.Millisecond, Max: s.between(20*time.Millisecond, 150*time.Millisecond)}
	for k, h := range s.hosts {
		if k != i {
			s.Net.SetFaults(s.hosts[i].addr, h.addr, f)
			s.Net.SetFaults(h.addr, s.hosts[i].addr, f)
		}
	}
	s.sleep(s.between(3*time.Second, 6*time.Second))
	s.Heal()
	s.watch.trouble(false)
}

// drain has a node give all away; then it stops, and comes back.
func (s *splitScene) drain(i int) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if _, err := s.hosts[i].node.Drain(ctx); err != nil {
		s.t.Logf("drain of %s: %v", s.hosts[i].name, err)
	}
	s.sleep(s.between(0, time.Second))
	s.Stop(i)
	s.watch.trouble(false)
	s.sleep(s.between(0, 3*time.Second))
	s.start(i)
}

// join has a host that was gone for long come as a new one.
func (s *splitScene) join() {
	i := s.follower()
	s.Crash(i)
	s.watch.trouble(false)
	s.Wipe(i)
	s.until(stableTime, "it is out", func() bool { _, in := latest(s.Cluster).Member(s.hosts[i].name); return !in })
	s.sleep(s.between(0, 3*time.Second))
	s.start(i)
}

// passingBy kills the home of an object while it is opening or closing.
func (s *splitScene) passingBy(phase table.SplitPhase) {
	s.Net.SetFaults("", "", Faults{Min: time.Millisecond, Max: 12 * time.Millisecond})
	d := s.newDivider(20 + int(phase))
	defer d.close()
	key := "sum-a"
	if s.rnd.IntN(2) == 0 {
		key = "big"
	}
	rnd := rand.New(rand.NewPCG(s.seed, s.rnd.Uint64()))
	var order sync.WaitGroup
	if phase == table.Opening {
		s.until(stableTime, key+" is whole", func() bool { return d.merge(rnd, key) == nil })
		order.Go(func() { _ = d.split(rnd, key, 2+rnd.IntN(3)) })
	} else {
		order.Go(func() { _ = d.merge(rnd, key) })
	}
	over := time.Now().Add(3 * time.Second)
	for time.Now().Before(over) {
		if sp, ok := latest(s.Cluster).Split(wordOf(key), key, defaultName(key)); ok && sp.Phase == phase {
			s.sleep(s.between(0, 80*time.Millisecond))
			break
		}
		s.sleep(time.Millisecond)
	}
	i := s.home(key)
	s.Crash(i)
	s.watch.trouble(false)
	s.sleep(s.between(0, 2*ttl))
	s.start(i)
	s.Heal()
	s.watch.trouble(false)
	order.Wait()
	s.until(stableTime, key+" is split again", func() bool { return d.split(rnd, key, 2+rnd.IntN(3)) == nil })
}

// mergedAndDead kills the home of an object as soon as it is merged, when its standby
// learns of all things late: the whole object has to be there.
func (s *splitScene) mergedAndDead() {
	const key = "sum-a"
	d := s.newDivider(30)
	defer d.close()
	rnd := rand.New(rand.NewPCG(s.seed, s.rnd.Uint64()))
	i, t := s.home(key), latest(s.Cluster)
	standby := slices.IndexFunc(s.hosts, func(h *host) bool { return h.name == t.Rows[t.Find(owner.Hash(key))].Standby.Node })
	if standby >= 0 {
		s.Net.SetFaults(s.hosts[i].addr, s.hosts[standby].addr, Faults{Min: 60 * time.Millisecond, Max: 100 * time.Millisecond})
	}
	var order sync.WaitGroup
	order.Go(func() { _ = d.merge(rnd, key) })
	for over := time.Now().Add(3 * time.Second); time.Now().Before(over); s.sleep(time.Millisecond / 2) {
		if _, is := latest(s.Cluster).Split(wordOf(key), key, defaultName(key)); !is {
			break
		}
	}
	s.Crash(i)
	s.Heal()
	s.watch.trouble(false)
	s.sleep(s.between(0, 2*ttl))
	s.start(i)
	order.Wait()
	s.until(stableTime, key+" is split again", func() bool { return d.split(rnd, key, 2+rnd.IntN(3)) == nil })
}

var splitFaults = []splitFault{
	{"home dies", func(s *splitScene) { s.die(s.home(s.victim())) }},
	{"owner of a part dies", func(s *splitScene) { s.die(s.partOwner(s.victim())) }},
	{"leader dies", func(s *splitScene) { s.die(s.leader()) }},
	{"home pauses", func(s *splitScene) { s.sleepy(s.home(s.victim())) }},
	{"owner of a part pauses", func(s *splitScene) { s.sleepy(s.partOwner(s.victim())) }},
	{"cut off", (*splitScene).apart},
	{"slow links", (*splitScene).slowLinks},
	{"laggard", (*splitScene).laggard},
	{"home drains", func(s *splitScene) { s.drain(s.home(s.victim())) }},
	{"owner of a part drains", func(s *splitScene) { s.drain(s.partOwner(s.victim())) }},
	{"join", (*splitScene).join},
	{"home dies opening", func(s *splitScene) { s.passingBy(table.Opening) }},
	{"home dies merged", (*splitScene).mergedAndDead},
	{"home dies closing", func(s *splitScene) { s.passingBy(table.Closing) }},
}

// TestSplitsUnderFaults: each fault by itself.
func TestSplitsUnderFaults(t *testing.T) {
	t.Parallel()
	for _, f := range splitFaults {
		t.Run(f.name, func(t *testing.T) {
			playSplits(t, 3, churnPause, func(s *splitScene) {
				f.do(s)
				s.sleep(time.Second)
			})
		})
	}
}

// TestSplitsMixed: faults that the seed draws, one after the other.
func TestSplitsMixed(t *testing.T) {
	playSplits(t, 4, churnPause, func(s *splitScene) {
		told := ""
		for range 5 / min(slower, 2) {
			f := splitFaults[s.rnd.IntN(len(splitFaults))]
			told += fmt.Sprintf("%s %s; ", stamp(time.Now()), f.name)
			f.do(s)
			s.sleep(s.between(0, time.Second))
			s.calm()
		}
		s.t.Log(told)
	})
}

// calm waits until the next fault does not come on top of the last one.
func (s *splitScene) calm() {
	s.t.Helper()
	s.restore()
	s.until(stableTime, "three vote", s.vote(3))
}

// TestSplitsAllCrash: the state of all objects and parts is lost, and the splits in the
// table are not. They are served, and can be united.
func TestSplitsAllCrash(t *testing.T) {
	playSplits(t, 3, churnPause, func(s *splitScene) {
		s.watch.trouble(true)
		for i := range s.hosts {
			s.Crash(i)
		}
		s.sleep(s.between(0, 3*time.Second))
		for _, i := range s.rnd.Perm(3) {
			s.start(i)
			s.sleep(s.between(0, time.Second))
		}
		s.restore()
		s.watch.trouble(false)
		s.sleep(2 * time.Second)
	})
}

// TestSplitsChaos: faults of all kinds on top of each other. State may be lost; when all
// is well again, no split is stuck and nothing is left of parts.
func TestSplitsChaos(t *testing.T) {
	playSplits(t, 4, churnPause, func(s *splitScene) {
		s.watch.trouble(true)
		for over := time.Now().Add(10 * time.Second / slower); time.Now().Before(over); {
			s.chaos()
			s.sleep(s.between(time.Millisecond, 2*time.Second))
		}
		s.restore()
	})
}
