package p2c

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/keystead/keystead/internal/cli/latency"
)

// town is a simulation: clients that call servers in simulated time, in an open
// loop, so that a slow answer keeps nobody from calling. All that is random comes
// from the seed.
type town struct {
	seed    uint64
	servers []server
	clients int           // each with a picker of its own; 0 = 1
	rate    float64       // calls a second, of all clients together; the gaps are exponential
	lasts   time.Duration // of calls that begin
	policy  func(loads []*Load, rnd *rand.Rand) func(now int64) int
	phase   time.Duration // of the counts in report.phases; 0 = lasts
}

// server answers one call after the other with each of its workers.
type server struct {
	workers int
	takes   func(now time.Duration) time.Duration // mean time of the work, which is exponential
	fails   func(now time.Duration) bool          // at once
	joins   time.Duration                         // unknown to clients before
}

// report is what the clients saw.
type report struct {
	all    latency.Histogram // of calls that were answered
	failed int
	calls  []int         // by server
	phases []map[int]int // calls by server, in each phase
	queue  []int         // longest one of each server
}

func (r *report) share(server int) float64 {
	n := 0
	for _, c := range r.calls {
		n += c
	}
	return float64(r.calls[server]) / float64(n)
}

func (r *report) String() string {
	return fmt.Sprintf("p50 %s, p99 %s, failed %d, calls %v, queues %v", r.all.Quantile(0.5), r.all.Quantile(0.99), r.failed, r.calls, r.queue)
}

type event struct {
	at int64
	do func()
}

type events []event

func (e events) Len() int           { return len(e) }
func (e events) Less(i, j int) bool { return e[i].at < e[j].at }
func (e events) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)        { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

// run is the whole simulation.
type run struct {
	town
	rnd    *rand.Rand
	now    int64
	events events
	busy   []int      // workers, by server
	queues [][]func() // what waits for a worker
	report report
}

// caller is one client.
type caller struct {
	loads []*Load
	next  func(now int64) int
	known int // servers when next was made
}

func (w town) run(t testing.TB) *report {
	r := &run{town: w, rnd: rand.New(rand.NewPCG(w.seed, 1)), busy: make([]int, len(w.servers)), queues: make([][]func(), len(w.servers))}
	r.report.calls, r.report.queue = make([]int, len(w.servers)), make([]int, len(w.servers))
	cfg := withDefaults(t, Config{})
	callers := make([]*caller, max(w.clients, 1))
	for i := range callers {
		callers[i] = &caller{}
	}
	gap := func() int64 { return int64(r.rnd.ExpFloat64() / w.rate * float64(time.Second)) }
	var arrive func()
	arrive = func() {
		if r.now >= int64(w.lasts) {
			return
		}
		r.call(callers[r.rnd.IntN(len(callers))], cfg)
		r.after(gap(), arrive)
	}
	r.after(gap(), arrive)
	for len(r.events) > 0 {
		e := heap.Pop(&r.events).(event)
		r.now = e.at
		e.do()
	}
	return &r.report
}

func (r *run) after(d int64, do func()) { heap.Push(&r.events, event{r.now + d, do}) }

// call is one call by a client, which first learns of servers that have joined.
func (r *run) call(c *caller, cfg Config) {
	for len(c.loads) < len(r.servers) && int64(r.servers[len(c.loads)].joins) <= r.now {
		c.loads = append(c.loads, NewLoad(cfg, r.now))
	}
	if c.known != len(c.loads) {
		c.known, c.next = len(c.loads), r.policy(c.loads, r.rnd)
	}
	begin, i := r.now, c.next(r.now)
	l, s := c.loads[i], &r.servers[i]
	l.Begin(begin)
	r.count(i)
	end := func(o Outcome) {
		l.End(begin, r.now, o)
		if o == Failed {
			r.report.failed++
		} else {
			r.report.all.Record(time.Duration(r.now - begin))
		}
	}
	if s.fails != nil && s.fails(time.Duration(r.now)) {
		r.after(int64(20*time.Microsecond), func() { end(Failed) })
		return
	}
	work := func() {
		took := int64(r.rnd.ExpFloat64() * float64(s.takes(time.Duration(r.now))))
		r.after(took, func() {
			end(Answered)
			if q := r.queues[i]; len(q) > 0 {
				r.queues[i] = q[1:]
				q[0]()
			} else {
				r.busy[i]--
			}
		})
	}
	if r.busy[i] < s.workers {
		r.busy[i]++
		work()
		return
	}
	r.queues[i] = append(r.queues[i], work)
	r.report.queue[i] = max(r.report.queue[i], len(r.queues[i]))
}

func (r *run) count(server int) {
	r.report.calls[server]++
	phase := 0
	if r.phase > 0 {
		phase = int(r.now / int64(r.phase))
	}
	for len(r.report.phases) <= phase {
		r.report.phases = append(r.report.phases, map[int]int{})
	}
	r.report.phases[phase][server]++
}

// The policies.

func twoChoices(loads []*Load, rnd *rand.Rand) func(int64) int {
	c := NewChooser(loads)
	return func(now int64) int { return c.Next(now, rnd.Uint64()) }
}

func roundRobin(loads []*Load, rnd *rand.Rand) func(int64) int {
	turn := rnd.IntN(len(loads))
	return func(int64) int { turn++; return turn % len(loads) }
}

func atRandom(loads []*Load, rnd *rand.Rand) func(int64) int {
	return func(int64) int { return rnd.IntN(len(loads)) }
}

// quick is a server that takes 2 ms; the last of some takes factor times as long.
func quick(n int, factor time.Duration) []server {
	out := make([]server, n)
	for i := range out {
		takes := 2 * time.Millisecond
		if i == n-1 {
			takes *= factor
		}
		out[i] = server{workers: 8, takes: func(time.Duration) time.Duration { return takes }}
	}
	return out
}

// One server of some is 10 times slower. The rate keeps it below saturation even
// if it gets as many calls as the others.
func TestSimulatedSlow(t *testing.T) {
	for _, x := range []struct {
		servers, clients int
		rate             float64 // of each server's part
		seed             uint64
	}{
		{servers: 4, clients: 1, rate: 100, seed: 1},
		{servers: 4, clients: 4, rate: 200, seed: 2},
		{servers: 16, clients: 1, rate: 40, seed: 3},
		{servers: 16, clients: 2, rate: 60, seed: 4},
	} {
		w := town{seed: x.seed, servers: quick(x.servers, 10), clients: x.clients, rate: x.rate * float64(x.servers), lasts: 10 * time.Second}
		w.policy = twoChoices
		p := w.run(t)
		t.Logf("%+v: two choices: %s", x, p)
		for name, policy := range map[string]func([]*Load, *rand.Rand) func(int64) int{"round robin": roundRobin, "random": atRandom} {
			w.policy = policy
			other := w.run(t)
			t.Logf("%+v: %s: %s", x, name, other)
			if ratio := float64(p.all.Quantile(0.99)) / float64(other.all.Quantile(0.99)); ratio > 0.5 {
				t.Errorf("%+v: p99 is %.2f of that of %s", x, ratio, name)
			}
		}
		if share := p.share(x.servers - 1); share > 0.25/float64(x.servers) {
			t.Errorf("%+v: the slow one got %.4f of the calls", x, share)
		}
	}
}

// All are alike: two choices do no harm.
func TestSimulatedAlike(t *testing.T) {
	for _, n := range []int{4, 16} {
		w := town{seed: 7, servers: quick(n, 1), rate: 3000 * float64(n), lasts: 4 * time.Second / time.Duration(n), policy: twoChoices}
		p := w.run(t)
		w.policy = atRandom
		r := w.run(t)
		t.Logf("%d servers: two choices %s; at random %s", n, p, r)
		if p.all.Quantile(0.99) > r.all.Quantile(0.99)*11/10 {
			t.Errorf("%d servers: p99 %s, at random %s", n, p.all.Quantile(0.99), r.all.Quantile(0.99))
		}
		for i := range n {
			if s := p.share(i) * float64(n); s < 0.65 || s > 1.35 {
				t.Errorf("%d servers: %d has %.2f of its part", n, i, s)
			}
		}
	}
}

// One server fails everything at once, from the start or after it was good. It
// gets a few calls, and probes.
func TestSimulatedInstantFailure(t *testing.T) {
	for _, n := range []int{2, 4, 16} {
		for name, from := range map[string]time.Duration{"always": 0, "later": 10 * time.Second} {
			w := town{seed: 11, servers: quick(n, 1), rate: 40 * float64(n), lasts: 40 * time.Second, policy: twoChoices}
			w.servers[0].fails = func(now time.Duration) bool { return now >= from }
			p := w.run(t)
			t.Logf("%d servers, %s: %s", n, name, p)
			if p.failed > 20 || p.failed < 3 {
				t.Errorf("%d servers, %s: %d calls failed", n, name, p.failed)
			}
		}
	}
}

// Most servers fail: as long as one does not, it is found.
func TestSimulatedMostFail(t *testing.T) {
	w := town{seed: 13, servers: quick(4, 1), rate: 400, lasts: 30 * time.Second, policy: twoChoices}
	for i := range 3 {
		w.servers[i].fails = func(time.Duration) bool { return true }
	}
	if p := w.run(t); p.failed > 60 {
		t.Error(p)
	}
}

// A server is slow, or fails, for 30 s, and gets its part again after it has come
// back: soon after the next probe.
func TestSimulatedComesBack(t *testing.T) {
	for _, n := range []int{4, 16} {
		for name, hurt := range map[string]func(*server){
			"slow": func(s *server) {
				s.takes = func(now time.Duration) time.Duration {
					if now < 30*time.Second {
						return 100 * time.Millisecond
					}
					return 2 * time.Millisecond
				}
			},
			"failing": func(s *server) { s.fails = func(now time.Duration) bool { return now < 30*time.Second } },
		} {
			w := town{seed: 17, servers: quick(n, 1), rate: 20 * float64(n), lasts: 120 * time.Second, phase: 10 * time.Second, policy: twoChoices}
			hurt(&w.servers[0])
			p := w.run(t)
			part := func(phase int) float64 { return float64(p.phases[phase][0]) / 200 }
			var parts []string
			for i := range p.phases {
				parts = append(parts, fmt.Sprintf("%.2f", part(i)))
			}
			t.Logf("%d servers, %s: part of its share in each 10 s: %v", n, name, parts)
			if part(1) > 0.1 || part(2) > 0.1 {
				t.Errorf("%d servers, %s: before it came back", n, name)
			}
			// A failing one was probed at 10, 30 and 70 s at the latest.
			if got := (part(9) + part(10) + part(11)) / 3; got < 0.7 {
				t.Errorf("%d servers, %s: %.2f of its part after it came back", n, name, got)
			}
		}
	}
}

// A server joins, of which many busy clients know nothing: none of them sends it
// more than one call before the first answer, and its queue stays short.
func TestSimulatedColdStart(t *testing.T) {
	const clients = 20
	w := town{seed: 19, servers: quick(5, 1), clients: clients, rate: 1000, lasts: 30 * time.Second, phase: 10 * time.Second, policy: twoChoices}
	w.servers[4].joins = 10 * time.Second
	// Slow to start: its first calls take 50 times as long.
	w.servers[4].takes = func(now time.Duration) time.Duration {
		if now < 10500*time.Millisecond {
			return 100 * time.Millisecond
		}
		return 2 * time.Millisecond
	}
	p := w.run(t)
	t.Logf("%s, in each 10 s %v", p, p.phases)
	if p.queue[4] > clients {
		t.Errorf("%d calls waited for the one that had joined, of %d clients", p.queue[4], clients)
	}
	// The next probes find that it is quick now.
	if part := float64(p.phases[2][4]) / 2000; part < 0.7 || part > 1.1 {
		t.Errorf("after 10 s it got %.2f of its part", part)
	}
	// All are new at once, and 500 calls come together: none gets all of them.
	loads := []*Load{NewLoad(withDefaults(t, Config{}), 0), NewLoad(withDefaults(t, Config{}), 0), NewLoad(withDefaults(t, Config{}), 0), NewLoad(withDefaults(t, Config{}), 0)}
	rnd := rand.New(rand.NewPCG(1, 1))
	next := twoChoices(loads, rnd)
	for range 500 {
		loads[next(0)].Begin(0)
	}
	for i, l := range loads {
		if l.InFlight() < 115 || l.InFlight() > 135 {
			t.Errorf("%d of 500 at once go to %d of 4", l.InFlight(), i)
		}
	}
}
