package serving

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/keystead/keystead/ring/epoch/table"
)

// TestNothingIsLost runs processes that follow the tables, keep copies and hand
// rows over, one random step at a time: tables are learnt late or several in one
// step, links fail, processes die or are removed, commands come late and twice.
// What was acknowledged is there whenever somebody acts for the row, or its loss
// was declared since.
func TestNothingIsLost(t *testing.T) {
	sum := map[string]int{}
	for seed := range uint64(12) {
		if broken := run(t, seed, "", sum); broken != "" {
			t.Fatalf("seed %d: %s", seed, broken)
		}
	}
	for _, what := range []string{"answer", "copy", "sync", "unsync", "flip", "end", "remove", "drain", "skip", "late", "promoted"} {
		if sum[what] < 10 {
			t.Errorf("the histories are too quiet: %v", sum)
			break
		}
	}
	t.Log(sum)
}

// TestCarelessProcessesLoseSomething leaves out what the processes take care of,
// one at a time: each is needed, and TestNothingIsLost would see it.
func TestCarelessProcessesLoseSomething(t *testing.T) {
	for _, c := range []struct {
		careless string
		from     uint64 // seed that shows it
	}{{"missed", 66}, {"early", 50}, {"alone", 0}} {
		t.Run(c.careless, func(t *testing.T) {
			for seed := c.from; seed < c.from+100; seed++ {
				if broken := run(t, seed, c.careless, map[string]int{}); broken != "" {
					t.Logf("seed %d: %s", seed, broken)
					return
				}
			}
			t.Error("nothing was lost")
		})
	}
}

// run makes a world and lets it run until something is lost, and returns what.
func run(t *testing.T, seed uint64, careless string, did map[string]int) (broken string) {
	w := &world{r: rand.New(rand.NewPCG(seed, 11)), acked: map[uint64]answer{}, did: did, careless: careless}
	w.history = []*table.Table{ring(t, 3)}
	for range 30 {
		w.at = append(w.at, w.r.Uint64())
	}
	for i := range 4 {
		self := holder(fmt.Sprintf("n%d", i+1), 1)
		p := &process{w: w, self: self, rule: New(self), learned: -1}
		p.forget()
		w.all = append(w.all, p)
		p.learn(0)
	}
	for range 4000 {
		if w.step(); w.broken != "" {
			break
		}
	}
	return w.broken
}

// world is the log, and the processes that follow it.
type world struct {
	r       *rand.Rand
	history []*table.Table
	all     []*process
	at      []uint64
	value   int
	acked   map[uint64]answer
	flight  []proposal

	disks bool              // they count, and all answers wait for them
	void  map[uint64]answer // what was given up, and by which commit

	careless string // what its processes do not mind: see the places
	broken   string // what was lost
	did      map[string]int
}

// answer is what was told last about a position, and the epoch of the log then.
type answer struct {
	value int
	epoch uint64
}

// proposal is a command on its way to the log. done is called in the process that
// proposed it, when it goes by a table that shows what became of it.
type proposal struct {
	by   *process
	self table.Holder
	c    table.Command
	done func(refused error)
}

func (w *world) last() *table.Table { return w.history[len(w.history)-1] }

func (w *world) commit(c table.Command) error {
	next, err := w.last().Apply(c)
	if err != nil {
		return err
	}
	w.did[c.Kind()]++
	if c.Remove != nil {
		for i := range next.Rows {
			if next.Rows[i].Held == next.Epoch && next.Rows[i].Lost != next.Epoch {
				w.did["promoted"]++
			}
		}
	}
	w.history = append(w.history, next)
	return nil
}

func (w *world) propose(p *process, c table.Command, done func(error)) {
	one := proposal{p, p.self, c, done}
	w.flight = append(w.flight, one)
	if w.r.IntN(3) == 0 { // it was proposed again, as its outcome was unknown
		one.done = nil
		w.flight = append(w.flight, one)
	}
}

// decide takes one of the commands on their way, not always the first.
func (w *world) decide() {
	if len(w.flight) == 0 {
		return
	}
	i := w.r.IntN(len(w.flight))
	one := w.flight[i]
	if one.done == nil && w.r.IntN(3) > 0 {
		return // it comes later still
	}
	w.flight = slices.Delete(w.flight, i, i+1)
	err := w.commit(one.c)
	if one.done == nil {
		w.did["late"]++
	} else if one.by.self == one.self {
		one.by.results = append(one.by.results, result{w.last().Epoch, func() { one.done(err) }})
	}
}

func (w *world) step() {
	p := w.all[w.r.IntN(len(w.all))]
	if w.disks && w.power(p) {
		return
	}
	switch w.r.IntN(40) {
	case 0, 1, 2, 3:
		w.decide()
	case 4:
		w.govern(p)
	default:
		p.step()
	}
}

// govern does what the leader and the operator do.
func (w *world) govern(p *process) {
	t := w.last()
	m, is := t.Member(p.self.Node)
	switch k := w.r.IntN(12); {
	case w.disks && k < 2:
		w.recover()
	case is && k == 0 && w.r.IntN(2) == 0: // its lease is over: whether it runs or not
		p.rule.Extend(0)
		p.lapsed = true
		_ = w.commit(remove(m.Holder()))
	case is && k == 1 && w.r.IntN(3) == 0: // a new process, with nothing
		p.rule.Extend(0)
		_ = w.commit(remove(m.Holder()))
		p.self.Incarnation += 1000
		p.rule, p.learned = New(p.self), -1
		p.forget()
		p.learn(len(w.history) - 1)
	case !is && p.learned == len(w.history)-1 && !p.dead:
		c := admit(p.self.Node, p.self.Incarnation)
		c.Admit.Member.Level = table.DiskLevel
		_ = w.commit(c)
	case is && k == 2:
		_ = w.commit(drain(m.Holder(), m.Phase > table.Active))
	case k < 6 && t.Transition == nil && t.Compactable():
		_ = w.commit(table.Command{Compact: &table.Compact{}})
	case t.Transition == nil && slices.ContainsFunc(t.Members, func(m table.Member) bool { return m.Phase == table.Joining || m.Phase == table.Leaving }):
		_ = w.commit(towards(t))
	case t.Transition != nil:
		_ = w.commit(end(t))
	}
}

// process follows the log, and has copies.
type process struct {
	w       *world
	self    table.Holder
	rule    *Rule
	learned int
	lapsed  bool
	data    map[uint64]int
	todo    []lost
	links   map[table.Holder]*wire
	syncs   map[uint64]*wire // by end of row: proposed and not decided
	flips   []*handing
	pending []permit
	results []result

	dead     bool
	admitted bool // it goes by a table that names it, or has
	disk     *plate
	rounds   int // of the disk, by this process
}

type lost struct {
	epoch  uint64
	ranges []Range
}

// permit is an operation that was let in and not answered.
type permit struct {
	h, seen uint64
	value   int
	rounds  int // of the disk, before it was let in
}

type result struct {
	epoch uint64
	done  func()
}

// wire is a stream to one process.
type wire struct {
	to      table.Holder
	queue   []item
	batches []batch // on their way
	sent    int
	acked   int
	kept    int // of acked: is on the target's disk
	last    map[uint64]int
	jobs    []*job
	busy    bool
	failed  bool
	sync    func() bool // to be called until it returns true
}

type item struct {
	begin []Range // or a record
	h     uint64
	value int
}

type batch struct {
	upTo  int
	epoch uint64
}

type job struct {
	ranges []Range
	mark   int // caught up when this is acknowledged
}

// handing is a handover of rows.
type handing struct {
	f     table.Flip
	marks map[*wire]int // to be acknowledged; nil = not flushed
	busy  bool
}

func (p *process) forget() {
	p.data, p.todo, p.results, p.pending, p.flips, p.lapsed, p.admitted = map[uint64]int{}, nil, nil, nil, nil, false, false
	p.links, p.syncs = map[table.Holder]*wire{}, map[uint64]*wire{}
}

func (p *process) table() *table.Table { return p.w.history[p.learned] }

func (p *process) step() {
	switch p.w.r.IntN(16) {
	case 0, 9:
		p.follow()
		p.inspect()
	case 1:
		p.clean()
		p.inspect()
	case 2, 3:
		p.write(p.w.at[p.w.r.IntN(len(p.w.at))])
	case 4:
		p.answer()
	case 5:
		p.copy()
	case 6:
		p.protect()
	case 7:
		p.tend()
	case 8:
		p.handOver()
	default:
		p.stream()
	}
}

// follow learns the next table or a later one, and takes notice of results.
func (p *process) follow() {
	if last := len(p.w.history) - 1; p.learned < last {
		next := p.learned + 1
		if p.w.r.IntN(4) == 0 {
			next = min(next+p.w.r.IntN(4), last)
		}
		p.learn(next)
	}
	t := p.table()
	m, is := t.Member(p.self.Node)
	p.admitted = p.admitted || t.Holds(p.self)
	removed := p.learned == len(p.w.history)-1 && !t.Holds(p.self) && (p.lapsed || is)
	if p.w.disks { // the next process of a node asks while the one before is a member; and the leader may tell it first
		removed = p.admitted && !p.w.last().Holds(p.self) && (p.learned == len(p.w.history)-1 || p.w.r.IntN(4) == 0)
	}
	switch {
	case removed:
		p.self.Incarnation += 1000
		p.w.did["became"]++
		lost := p.rule.Become(p.self)
		data, todo := p.data, p.todo
		p.forget()
		p.data, p.todo = data, todo
		p.discard(lost, t.Epoch)
		p.enlist()
	case is && m.Holder() == p.self && !p.lapsed:
		p.rule.Extend(1)
	}
	for i := 0; i < len(p.results); i++ {
		if r := p.results[i]; r.epoch <= t.Epoch {
			p.results = slices.Delete(p.results, i, i+1)
			r.done()
			return
		}
	}
}

func (p *process) learn(i int) {
	t := p.w.history[i]
	for _, l := range p.links {
		// In a table that was missed the target may have had to discard its copy. If
		// the ring is the same it had not; and a Sync that counts on this copy may
		// take effect yet.
		if i != p.learned+1 && (t.WantSince != p.table().WantSince || p.w.careless == "missed") {
			l.jobs = nil
		}
		l.jobs = slices.DeleteFunc(l.jobs, func(j *job) bool {
			var ranges []Range
			for k := range t.Rows {
				if seg := segment(t, k); t.Rows[k].Owner == p.self && covers(j.ranges, seg) && t.MayHold(k, l.to) {
					ranges = append(ranges, seg)
				}
			}
			j.ranges = ranges
			return len(ranges) == 0
		})
	}
	if i > p.learned+1 && p.learned >= 0 {
		p.w.did["skip"]++
	}
	p.learned = i
	p.discard(p.rule.Learn(t), t.Epoch)
}

func (p *process) discard(ranges []Range, epoch uint64) {
	if len(ranges) > 0 || len(p.todo) > 0 {
		p.todo = append(p.todo, lost{epoch, ranges})
		return
	}
	p.rule.Cleaned(epoch)
}

func (p *process) clean() {
	if len(p.todo) == 0 {
		return
	}
	one := p.todo[0]
	p.todo = p.todo[1:]
	for h := range p.data {
		if held(one.ranges, h) {
			delete(p.data, h)
		}
	}
	p.rule.Cleaned(one.epoch)
}

func segment(t *table.Table, i int) Range {
	after, upTo := t.Segment(i)
	return Range{after, upTo}
}

func covers(ranges []Range, seg Range) bool {
	return slices.ContainsFunc(ranges, func(r Range) bool {
		return r.Holds(seg.UpTo) && (r.After == r.UpTo || seg.After != seg.UpTo && seg.UpTo-seg.After <= seg.UpTo-r.After)
	})
}
