package serving

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/keystead/keystead/ring/epoch/table"
)

// TestNothingIsLostOnDisks is TestNothingIsLost where every answer waits for disks: processes
// die at any moment, also all of them, and are started again on what their disks have.
func TestNothingIsLostOnDisks(t *testing.T) {
	sum := map[string]int{}
	for seed := range uint64(12) {
		if broken := runDisks(t, seed, sum); broken != "" {
			t.Fatalf("seed %d: %s", seed, broken)
		}
	}
	for _, what := range []string{"answer", "copy", "sync", "flip", "remove", "promoted", "died", "became", "cold", "recover", "forgo", "owner's", "standby's", "missed"} {
		if sum[what] < 5 {
			t.Errorf("the histories are too quiet: %v", sum)
			break
		}
	}
	t.Log(sum)
}

// runDisks makes a world of disks and lets it run until something is lost, and returns what.
func runDisks(t *testing.T, seed uint64, did map[string]int) (broken string) {
	w := &world{r: rand.New(rand.NewPCG(seed, 12)), acked: map[uint64]answer{}, void: map[uint64]answer{}, did: did, disks: true}
	tab := grow(t, &table.Table{}, table.Command{Init: &table.Init{Cluster: "test", Epoch: 100}})
	for i := range 3 {
		c := admit(fmt.Sprintf("n%d", i+1), 1)
		c.Admit.Member.Level = table.DiskLevel
		tab = grow(t, tab, c)
	}
	tab = grow(t, tab, towards(tab))
	tab = grow(t, tab, end(tab), table.Command{Adopt: &table.Adopt{Level: table.DiskLevel, Durable: table.Entire}})
	w.history = []*table.Table{tab}
	for range 12 {
		w.at = append(w.at, w.r.Uint64())
	}
	for i := range 3 {
		self := holder(fmt.Sprintf("n%d", i+1), 1)
		p := &process{w: w, self: self, rule: New(self), learned: -1, disk: &plate{}}
		p.forget()
		p.enlist()
		w.all = append(w.all, p)
		p.learn(0)
	}
	for range 12_000 {
		if w.step(); w.broken != "" {
			break
		}
	}
	return w.broken
}

// plate is a disk.
type plate struct {
	had   []uint64
	data  map[uint64]int
	epoch uint64
}

// enlist has the disk know the incarnation of a process.
func (p *process) enlist() {
	if p.disk != nil {
		p.disk.had = append(p.disk.had, p.self.Incarnation)
		p.rule.OnDisk(p.disk.had, 0, false)
	}
}

// has returns how much of what was sent those have whom answers wait for.
func (l *wire) has(w *world) int {
	if w.disks {
		return l.kept
	}
	return l.acked
}

// onDisk reports whether the own disk has what an answer tells.
func (p *process) onDisk(o permit) bool {
	t := p.table()
	return p.disk == nil || p.rounds > o.rounds && p.disk.epoch >= t.Rows[t.Find(o.h)].Gone
}

// power does what becomes of a process and its disk, and reports whether that was all.
func (w *world) power(p *process) bool {
	switch k := w.r.IntN(1000); {
	case p.dead && k < 100:
		p.start()
	case p.dead:
	case k == 0 && w.r.IntN(2) == 0: // a power cut
		for _, q := range w.all {
			q.die()
		}
	case k == 1:
		p.die()
	case k == 2 && w.last().Holds(p.self): // its lease is over, and it runs
		p.rule.Extend(0)
		p.lapsed = true
	case k < 120:
		p.round()
	default:
		return false
	}
	return true
}

func (p *process) die() {
	if !p.dead {
		p.w.did["died"]++
		p.dead = true
		p.rule.Extend(0)
	}
}

// start starts the next process of a node, on what its disk has. It learns tables from some time on.
func (p *process) start() {
	p.dead = false
	p.self.Incarnation += 1000
	p.rule, p.rounds = New(p.self), 0
	p.forget()
	p.data = maps.Clone(p.disk.data)
	if p.data == nil {
		p.data = map[uint64]int{}
	}
	p.disk.had = append(p.disk.had, p.self.Incarnation)
	p.rule.OnDisk(p.disk.had, p.disk.epoch, true)
	last := len(p.w.history) - 1
	p.learned = -1
	p.learn(max(0, last-p.w.r.IntN(12)))
}

// round writes what the memory has.
func (p *process) round() {
	p.disk.data, p.disk.epoch = maps.Clone(p.data), p.rule.CleanEpoch()
	p.rounds++
	for _, q := range p.w.all {
		if l := q.links[p.self]; l != nil {
			l.kept = l.acked
		}
	}
}

// recover does what the leader does about the dead, and about rows that wait.
func (w *world) recover() {
	t := w.last()
	var dead []table.Holder
	for _, p := range w.all {
		if m, is := t.Member(p.self.Node); is && (p.dead || p.lapsed || m.Holder() != p.self) && m.Incarnation <= p.self.Incarnation {
			dead = append(dead, m.Holder())
		}
	}
	if len(dead) > 0 {
		if w.commit(table.Command{Remove: &table.Remove{Members: dead}}) == nil && w.last().Cold() > 0 {
			w.did["cold"]++
		}
		return
	}
	groups := t.ColdRows()
	if len(groups) == 0 {
		return
	}
	g := groups[w.r.IntN(len(groups))]
	of, who := g.Was, "owner's"
	if !g.Stood.None() && w.r.IntN(2) == 0 {
		of, who = g.Stood, "standby's"
	}
	i := slices.IndexFunc(w.all, func(p *process) bool { return p.self.Node == of.Node })
	p := w.all[i]
	m, _ := t.Member(of.Node)
	if !p.dead && t.Holds(p.self) && p.table().Epoch >= m.Since && slices.Contains(p.disk.had, of.Incarnation) {
		if p.learned != len(w.history)-1 {
			w.did["missed"]++
		}
		if w.commit(table.Command{Recover: &table.Recover{To: p.self, Of: of, Rows: g.Rows, Whole: true}}) == nil {
			w.did[who]++
		}
		return
	}
	if w.r.IntN(10) == 0 && len(t.Members) > 0 { // the operator gives up what one has
		before := w.last()
		if w.commit(table.Command{Forgo: &table.Forgo{Holders: []table.Holder{g.Was, g.Stood}[:1+w.r.IntN(2)]}}) == nil {
			for _, h := range w.at {
				if is, was := w.last().Find(h), before.Find(h); w.last().Rows[is].Gone > before.Rows[was].Gone {
					w.void[h] = answer{w.value, w.last().Epoch}
				}
			}
		}
	}
}
