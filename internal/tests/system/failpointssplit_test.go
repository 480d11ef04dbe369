//go:build points

package system

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	adminpb "github.com/keystead/keystead/proto/keystead/admin/v1"
	clusterpb "github.com/keystead/keystead/proto/keystead/cluster/v1"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
)

// The limit of a trial: so many at once, and hardly any more in the time that a trial
// takes, so that tokens that come back by a mistake are seen.
const (
	trialBurst = 300
	trialRate  = 2 // a second
)

// trial is a cluster, with clients that add to a counter and check a limit of the same key
// all the time, while both are split and merged: the home of both is one node.
type trial struct {
	*testCluster
	leads, home, other *testNode
	key                string

	stop   context.CancelFunc
	done   sync.WaitGroup // clients
	orders sync.WaitGroup

	mu       sync.Mutex
	adds     []*once     // guarded by mu: acknowledged
	admitted []admission // guarded by mu
}

// admission is a check that was allowed, at some moment between these.
type admission struct{ sent, told time.Time }

// newTrial starts a cluster and the clients. The home does not lead, and the third node is
// its standby.
func newTrial(t *testing.T) *trial {
	t.Helper()
	s := &trial{testCluster: pointedCluster(t, false, append([]string{"--hot-split", "off"}, shortLease...)...)}
	s.leads, s.home, s.other = s.roles()
	s.key = s.keysAt(s.home, s.other, 1)[0]
	ctx, stop := context.WithCancel(t.Context())
	s.stop = stop
	for i := range 4 {
		s.done.Go(func() { s.addAll(ctx, i) })
	}
	for i := range 2 {
		s.done.Go(func() { s.checkAll(ctx, i) })
	}
	t.Cleanup(func() { stop(); s.done.Wait(); s.orders.Wait() })
	s.admits(trialBurst / 5)
	return s
}

// live returns the nodes whose processes run.
func (s *trial) live() []*testNode {
	return slices.DeleteFunc(slices.Clone(s.nodes), func(n *testNode) bool { return !n.runs() })
}

// addAll is a client that adds 1 again and again. Some of the adds are those of clients of
// their own, of which an object remembers 1,024.
func (s *trial) addAll(ctx context.Context, turn int) {
	for me := *newOnce(); ctx.Err() == nil; me.before++ {
		o := me
		if o.first = time.Now(); me.before%8 == 0 {
			o = *newOnce()
		}
		s.addOne(&o, turn+int(me.before))
		<-time.After(20 * time.Millisecond) // the machine has others to serve
	}
}

// addOne repeats an add until it is acknowledged, by one node after the other.
func (s *trial) addOne(o *once, turn int) {
	for last := error(nil); ; {
		live := s.live()
		_, err := o.add(live[turn%len(live)], s.key, 1, 700*time.Millisecond)
		switch {
		case err == nil:
			s.mu.Lock()
			s.adds = append(s.adds, o)
			s.mu.Unlock()
			return
		case s.t.Context().Err() != nil:
			s.t.Logf("an add was not done in %s: %v", time.Since(o.first), last)
			return // the test has failed
		case time.Since(o.first) > patience:
			s.t.Errorf("an add was not done: %v", err)
			return
		}
		last = err
		turn++
		<-time.After(10 * time.Millisecond)
	}
}

// check asks the limit for one token.
func (s *trial) check(n *testNode) (allowed bool, err error) {
	ctx, cancel := context.WithTimeout(s.t.Context(), 700*time.Millisecond)
	defer cancel()
	a := admission{sent: time.Now()}
	r, err := limitpb.NewLimitServiceClient(n.conn).Check(ctx, &limitpb.CheckRequest{Key: s.key, Limit: trialRate, PeriodNs: int64(time.Second), Burst: trialBurst})
	if err != nil || !r.Allowed {
		return false, err
	}
	a.told = time.Now()
	s.mu.Lock()
	s.admitted = append(s.admitted, a)
	s.mu.Unlock()
	return true, nil
}

// checkAll checks again and again, by one node after the other.
func (s *trial) checkAll(ctx context.Context, turn int) {
	for ; ctx.Err() == nil; turn++ {
		live := s.live()
		_, _ = s.check(live[turn%len(live)])
		<-time.After(20 * time.Millisecond)
	}
}

// admits waits until so many checks were allowed in all.
func (s *trial) admits(n int) {
	s.t.Helper()
	eventually(s.t, fmt.Sprintf("%d checks are allowed", n), func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.admitted) >= n
	})
}

// acknowledged returns how many adds are.
func (s *trial) acknowledged() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.adds)
}

// addsMore waits until so many more adds are acknowledged.
func (s *trial) addsMore(n int) {
	s.t.Helper()
	was := s.acknowledged()
	eventually(s.t, fmt.Sprintf("%d more adds are done", n), func() bool { return s.acknowledged() >= was+n })
}

// The objects of a trial, by kind, with their names.
var trialNames = map[string]string{kindCounter: "n", kindLimit: "limit"}

var trialKinds = map[string]commonpb.Kind{kindCounter: commonpb.Kind_KIND_COUNTER, kindLimit: commonpb.Kind_KIND_LIMIT}

// order has an object split, or merged, by a call to the leader.
func (s *trial) order(split bool, kind string) (err error) {
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	c := adminpb.NewAdminServiceClient(s.leads.conn)
	if split {
		_, err = c.SplitObject(ctx, &adminpb.SplitObjectRequest{Kind: trialKinds[kind], Key: s.key, Name: trialNames[kind], Parts: 3})
	} else {
		_, err = c.MergeObject(ctx, &adminpb.MergeObjectRequest{Kind: trialKinds[kind], Key: s.key, Name: trialNames[kind]})
	}
	return err
}

// begin orders that of both objects; what the answers are does not matter.
func (s *trial) begin(split bool) {
	for kind := range trialNames {
		s.orders.Go(func() { _ = s.order(split, kind) })
	}
}

// apart returns the phases of the splits that the leader knows, by kind.
func (s *trial) apart() map[string]string {
	s.t.Helper()
	r := answered(s.leads, "the splits", func(ctx context.Context) (*clusterpb.ListHotResponse, error) {
		return clusterpb.NewClusterServiceClient(s.leads.conn).ListHot(ctx, &clusterpb.ListHotRequest{MaxKeys: 1})
	})
	phases := map[string]string{}
	for _, sp := range r.Splits {
		phases[enumWord(sp.Kind, "KIND_")] = enumWord(sp.Phase, "SPLIT_PHASE_")
	}
	return phases
}

// enumWord returns a value of an enum without its prefix, in lower case.
func enumWord(e fmt.Stringer, prefix string) string {
	return strings.ToLower(strings.TrimPrefix(e.String(), prefix))
}

// bothAre waits until both objects are in a phase, "" if they are to be whole.
func (s *trial) bothAre(phase string) {
	s.t.Helper()
	eventually(s.t, "both are "+phase, func() bool {
		is := s.apart()
		return is[kindCounter] == phase && is[kindLimit] == phase
	})
}

// movesOn waits until none of the objects is in a phase any more.
func (s *trial) movesOn(phase string) {
	s.t.Helper()
	eventually(s.t, "none is "+phase, func() bool {
		is := s.apart()
		return is[kindCounter] != phase && is[kindLimit] != phase
	})
}

// moved waits until another node than the home of before owns the key.
func (s *trial) moved() {
	s.t.Helper()
	eventually(s.t, "the key is another node's", func() bool {
		o := s.leads.owners(s.key)
		return len(o) == 1 && o[0].Owner != "" && o[0].Owner != s.home.id
	})
}

// ends merges what is split, splits and merges both once more, ends the load, and checks
// that everything was done once, and that nothing is left of any split.
func (s *trial) ends() {
	s.t.Helper()
	live := s.live()
	if s.protected(live...); len(live) == len(s.nodes) {
		s.ready(live...)
	}
	s.orders.Wait()
	for kind, phase := range s.apart() {
		if phase != "open" {
			s.t.Errorf("the %s is %s", kind, phase)
		} else if err := s.order(false, kind); err != nil {
			s.t.Errorf("the %s is not merged: %v", kind, err)
		}
	}
	s.addsMore(20)
	for _, split := range []bool{true, false} {
		for kind := range trialNames {
			if err := s.order(split, kind); err != nil {
				s.t.Errorf("again, %s, split %v: %v", kind, split, err)
			}
		}
		s.addsMore(20)
	}
	s.stop()
	s.done.Wait()
	s.onceEach(live)
	s.withinBound(live)
	s.protected(live...)
	s.nothingLeft(live)
}

// onceEach checks that each acknowledged add counts, once, and that none of them is done
// again when it is sent again.
func (s *trial) onceEach(live []*testNode) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	want := int64(len(s.adds))
	for _, n := range live {
		if got := n.value(s.key); got != want {
			s.t.Errorf("%s: it is %d after %d adds", n.id, got, want)
		}
	}
	again := 0
	for i, o := range s.adds {
		n := live[i%len(live)]
		if o.before > 0 { // it is settled, and forgotten
			_, _ = o.add(n, s.key, 1, callTime)
		} else if r := o.added(n, s.key, 1); r.Replay == nil {
			again++
		}
	}
	if got := live[0].value(s.key); again > 0 || got != want {
		s.t.Errorf("%d of the adds were done again: it is %d after %d", again, got, want)
	}
}

// withinBound spends what is left of the limit, and checks that in no time more was
// admitted than may be.
func (s *trial) withinBound(live []*testNode) {
	s.t.Helper()
	for refused, i := 0, 0; refused < 3*len(live); i++ {
		ok, err := s.check(live[i%len(live)])
		if err != nil {
			s.t.Fatal(err)
		}
		if refused++; ok {
			refused = 0
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.admitted
	slices.SortFunc(all, func(a, b admission) int { return a.told.Compare(b.told) })
	for i := range all {
		n := 0
		for _, a := range all { // of those that were sent since then, in the order in which they were told
			if a.sent.Before(all[i].sent) {
				continue
			}
			n++
			if most := trialBurst + trialRate*a.told.Sub(all[i].sent).Seconds(); float64(n) > most {
				s.t.Fatalf("%d were admitted in %s, and may be %.1f", n, a.told.Sub(all[i].sent), most)
			}
		}
	}
	took := all[len(all)-1].told.Sub(all[0].sent)
	s.t.Logf("%d adds; %d admitted in %s, of %.0f", len(s.adds), len(all), took.Round(time.Millisecond), trialBurst+trialRate*took.Seconds())
}

// nothingLeft checks that no node knows of a split or a part any more: each of the two
// objects is held by its owner and by its standby, and no others are.
func (s *trial) nothingLeft(live []*testNode) {
	s.t.Helper()
	var seen hotJSON
	if err := json.Unmarshal([]byte(succeeds(s.t, "hot", "--parts", "--json", "--addr", s.leads.grpc)), &seen); err != nil {
		s.t.Fatal(err)
	}
	for _, k := range seen.Keys {
		if k.Split != nil || k.Key != s.key {
			s.t.Errorf("it shows %+v", k)
		}
	}
	want := map[string]float64{
		`keystead_splits{phase="opening"}`: 0, `keystead_splits{phase="open"}`: 0, `keystead_splits{phase="closing"}`: 0, `keystead_split_parts`: 0,
		`keystead_objects{kind="counter"}`: 2, `keystead_objects{kind="limit"}`: 2,
	}
	sums := map[string]float64{}
	if !poll(func() bool {
		clear(sums)
		for _, n := range live {
			_, text, err := n.get("/metrics")
			if err != nil {
				return false
			}
			for line := range strings.Lines(text) {
				name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
				if _, ok := want[name]; ok {
					v, _ := strconv.ParseFloat(value, 64)
					sums[name] += v
				}
			}
		}
		return maps.Equal(sums, want)
	}) {
		s.t.Errorf("of the splits is left: %v", sums)
	}
}

// splitPoints are the points at which a home is held up, with the phase in which it is.
var splitPoints = map[string]string{"homePlant": "opening", "homePlanted": "opening", "homeReaped": "closing", "homeUnited": "closing"}

// reach brings both objects to a point at their home, with terms that hold it there.
func (s *trial) reach(point, terms string) {
	s.t.Helper()
	if splitPoints[point] == "closing" {
		s.begin(true)
		s.bothAre("open")
		s.orders.Wait()
		s.admits(trialBurst * 2 / 5)
	}
	s.home.arm(point, terms)
	s.begin(splitPoints[point] == "opening")
	s.home.reached(point)
}

// The home of a counter and a limit dies at a step of dividing them, or of putting them
// together:
//
//	A  comes to the step, and dies
//	L  removes A: B, the next home, does what was under way, from the beginning
func TestPointsSplitHomeDies(t *testing.T) {
	t.Parallel()
	for point, phase := range splitPoints {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			s := newTrial(t)
			s.reach(point, held)
			s.bothAre(phase)
			s.home.kill()
			s.movesOn(phase)
			s.ends()
		})
	}
}

// The home is stopped there for longer than its lease, and goes on:
//
//	A  comes to the step, and stops
//	L  removes A: B, the next home, does what was under way
//	A  goes on from where it was
func TestPointsSplitHomeStops(t *testing.T) {
	t.Parallel()
	for point, phase := range splitPoints {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			s := newTrial(t)
			s.reach(point, `1*sleep("1s")`)
			s.home.signal(t, syscall.SIGSTOP)
			s.moved()
			s.movesOn(phase)
			s.addsMore(50)
			s.home.signal(t, syscall.SIGCONT)
			s.ends()
		})
	}
}

// The home loses its lease there, and is admitted anew before it goes on:
//
//	A  comes to the step, and stays there for 8 s; its renewals do not leave for 2 s
//	L  removes A: B, the next home, does what was under way
//	L  admits A as it is now, which owns the key again
//	A  goes on with the step
func TestPointsSplitHomeSleeps(t *testing.T) {
	t.Parallel()
	for point, phase := range splitPoints {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			s := newTrial(t)
			s.reach(point, `1*sleep("8s")`)
			awake := time.After(8 * time.Second)
			s.home.arm("epochRenewSend", `1*sleep("2s")`)
			s.moved()
			s.movesOn(phase)
			s.ready(s.nodes...)
			select {
			case <-awake:
				t.Fatal("the home was not held up for long enough")
			default:
			}
			<-awake
			s.ends()
		})
	}
}

// The owner of a part, which is the home's standby, too, dies while the home is at a step:
//
//	A  comes to the step
//	B  dies; A goes on
//	L  removes B: others own its parts
func TestPointsSplitPartDies(t *testing.T) {
	t.Parallel()
	for point, phase := range splitPoints {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			s := newTrial(t)
			s.reach(point, `1*sleep("500ms")`)
			s.other.kill()
			s.movesOn(phase)
			s.ends()
		})
	}
}

// The home opens a split, and does not hear that it is open:
//
//	A  has planted the parts, and has them served
//	A  goes by the table of before for 9 s: by that, the parts are not served in time
//	C  adds to the parts of others, and has the object merged: it is closing
//	A  gives up, and says that the object is whole: that is not so, and is refused
//	A  learns the tables, and puts the object together
func TestPointsSplitOpenUnheard(t *testing.T) {
	t.Parallel()
	s := newTrial(t)
	s.reach("homePlanted", `1*sleep("500ms")`)
	s.home.arm("epochLearn", `1*sleep("9s")`)
	late := time.After(9 * time.Second)
	s.bothAre("open")
	for i := range 30 {
		s.done.Go(func() { s.addOne(newOnce(), i) })
	}
	s.addsMore(10) // those of the home's own part wait
	s.begin(false)
	s.bothAre("closing")
	s.leads.arm("epochProposeReceived", "print")
	eventually(t, "the home has given both up", func() bool { return s.leads.hit("epochProposeReceived") >= 3 })
	select {
	case <-late:
		t.Fatal("the home was not held up for long enough")
	default:
	}
	s.bothAre("")
	s.ends()
}

// The home of a split that is closing is another node for a while, and comes back. What
// it has read of the parts meanwhile is of a split that is over:
//
//	A  has read all parts, and stays there for 12 s
//	A  is drained: B puts the object together, and serves it
//	A  is there again, and owns the key. The object is split again, and merged
//	A  puts the object together, and does not serve it yet
//	A  goes on with what it has read of the first split: that is refused
func TestPointsSplitHomeReturns(t *testing.T) {
	t.Parallel()
	s := newTrial(t)
	s.reach("homeReaped", `1*sleep("12s")`)
	awake := time.Now().Add(12 * time.Second)
	s.home.disarm("homeReaped")
	s.home.drain(s.leads)
	s.home.drained(s.leads)
	s.bothAre("")
	s.addsMore(50)
	if r := keystead(t, "undrain", s.home.id, "--addr", s.leads.grpc); r.code != 0 {
		t.Fatalf("undrain: %d %s%s", r.code, r.out, r.err)
	}
	s.ready(s.nodes...)
	s.begin(true)
	s.bothAre("open")
	s.addsMore(20)
	left := time.Until(awake)
	if left < 100*time.Millisecond {
		t.Fatal("the home was not held up for long enough")
	}
	s.home.arm("homeUnited", fmt.Sprintf(`1*sleep("%dms")`, (left+time.Second).Milliseconds()))
	s.begin(false)
	s.home.reached("homeUnited")
	s.bothAre("")
	s.ends()
}
