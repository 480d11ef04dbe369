package handoff

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/keystead/keystead/handoff/feed"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/counter"
	"github.com/keystead/keystead/owner/reqid"
	"github.com/keystead/keystead/ring/epoch/serving"
	"github.com/keystead/keystead/ring/epoch/table"
)

// everySecond is the interval of the disks here.
const everySecond = time.Second

// fakeDisk is a disk that does rounds: what the process had when one began is on it when that
// ends, and nothing else.
type fakeDisk struct {
	p      *process
	always bool          // all kinds
	every  time.Duration // its interval
	takes  atomic.Int64  // how long a round takes
	urged  chan struct{}
	over   chan struct{}
	epoch  atomic.Uint64 // of the last round
	fails  atomic.Bool   // waits for it end without an answer

	mu    sync.Mutex
	has   map[string]int64 // guarded by mu: as of the last round
	goes  chan struct{}    // guarded by mu; closed = rounds end
	ended chan struct{}    // guarded by mu: closed when a round ends
	begun uint64           // guarded by mu: rounds
	done  uint64           // guarded by mu: the last one that ended
}

// keeping has processes that start have disks, whose rounds take so long.
func (w *world) keeping(always bool, takes time.Duration) {
	w.disks = func(p *process) *fakeDisk {
		d := &fakeDisk{p: p, always: always, every: everySecond, urged: make(chan struct{}, 1), over: make(chan struct{}), goes: make(chan struct{}), ended: make(chan struct{})}
		d.takes.Store(int64(takes))
		close(d.goes)
		return d
	}
}

func (d *fakeDisk) run() {
	tick := time.NewTicker(d.every / 2)
	defer tick.Stop()
	for {
		select {
		case <-d.over:
			return
		case <-tick.C:
		case <-d.urged:
		}
		synced := d.p.target.Intake.Note()
		d.p.mu.Lock()
		epoch := d.p.known.Epoch
		if d.p.dirty {
			epoch = 0
		}
		d.p.mu.Unlock()
		d.mu.Lock()
		d.begun++
		n := d.begun
		d.mu.Unlock()
		has := d.p.holds()
		time.Sleep(time.Duration(d.takes.Load()))
		select {
		case <-d.rounds():
		case <-d.over:
			return
		}
		d.mu.Lock()
		d.has, d.done = has, n
		close(d.ended)
		d.ended = make(chan struct{})
		d.mu.Unlock()
		d.epoch.Store(max(d.epoch.Load(), epoch))
		synced()
	}
}

func (d *fakeDisk) rounds() chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.goes
}

// hang keeps rounds from ending, until work.
func (d *fakeDisk) hang() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.goes = make(chan struct{})
}

func (d *fakeDisk) work() {
	d.mu.Lock()
	defer d.mu.Unlock()
	close(d.goes)
}

// content returns what is on it.
func (d *fakeDisk) content() map[string]int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(d.has)
}

func (d *fakeDisk) Durable(hash uint64) bool { return d.covers(d.p.holds(), hash) }

// covers reports whether what the process had at a position is on it.
func (d *fakeDisk) covers(had map[string]int64, hash uint64) bool {
	if !d.always {
		return true
	}
	has := d.content()
	for key, value := range had {
		if is, there := has[key]; owner.Hash(key) == hash && (is < value || !there) {
			return false
		}
	}
	return true
}

func (d *fakeDisk) Await(ctx context.Context, hash uint64) bool {
	had := d.p.holds()
	last := uint64(0)
	for {
		d.mu.Lock()
		ended, done := d.ended, d.done
		if last == 0 {
			last = d.begun + 1 // what is not there any more is not put on it
		}
		d.mu.Unlock()
		if done >= last || d.covers(had, hash) {
			return true
		}
		if d.fails.Load() {
			return false
		}
		d.Urge()
		select {
		case <-ended:
		case <-ctx.Done():
			return false
		case <-d.over:
			return false
		}
	}
}

func (d *fakeDisk) Always(owner.Kind) bool  { return d.always }
func (d *fakeDisk) Interval() time.Duration { return d.every }
func (d *fakeDisk) HeadEpoch() uint64       { return d.epoch.Load() }

func (d *fakeDisk) Urge() {
	select {
	case d.urged <- struct{}{}:
	default:
	}
}

// change has the table be another one, as no command makes it here.
func (w *world) change(f func(t *table.Table)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	next := *w.table
	next.Rows = append([]table.Row{}, next.Rows...)
	next.Epoch++
	f(&next)
	w.table = &next
	for _, p := range w.nodes {
		if !p.deaf {
			p.learn(&next)
		}
	}
}

// agree has disks count from now on.
func (w *world) agree(d table.Durability) {
	w.change(func(t *table.Table) { t.Durable, t.Level = d, max(t.Level, table.DiskLevel) })
}

// durableCluster starts processes with disks that are quick, and count.
func (w *world) durableCluster(n int, always bool, d table.Durability) []*process {
	w.t.Helper()
	w.keeping(always, time.Millisecond)
	all := w.cluster(n)
	pass(everySecond) // what they have is on disk
	w.agree(d)
	pass(everySecond)
	return all
}

// TestAnswersWaitForDisks: under always an answer is told when it is on the disks of the owner and
// of the standby, soon after they have done a round of it, not when the next one comes by itself.
func TestAnswersWaitForDisks(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n := w.durableCluster(2, true, table.Always)
		key := w.keys(1, ownedBy(n[0], n[1]))[0]
		for _, slow := range []*process{n[0], n[1]} {
			slow.disk.takes.Store(int64(20 * time.Millisecond))
			a := n[0].add(key)
			pass(15 * time.Millisecond)
			a.pending(t, "a disk does not have it")
			pass(6 * time.Millisecond)
			a.checkAnswered(t, "all have it")
			slow.disk.takes.Store(int64(time.Millisecond))
			pass(everySecond)
		}
		value := n[0].holds()[key]
		for _, p := range n {
			if got := p.disk.content()[key]; got != value {
				t.Errorf("the disk of %s has %d, not %d", p.self.Node, got, value)
			}
		}
		none := table.Behind{}
		n[0].to(n[1].self).stall()
		n[0].put([]string{key}, 1)
		if got := n[0].source.Behind(owner.Hash(key)); got != (table.Behind{n[1].self, table.DiskOf(n[1].self), table.OwnDisk}) {
			t.Errorf("%v are behind", got)
		}
		n[0].to(n[1].self).flow()
		for _, of := range []table.Holder{n[1].self, table.DiskOf(n[1].self), table.OwnDisk} {
			if !n[0].source.AwaitOf(t.Context(), owner.Hash(key), of) {
				t.Errorf("%v has given up", of)
			}
			if got := n[0].source.Behind(owner.Hash(key)); got.Has(of) {
				t.Errorf("%v is waited for still", of)
			}
		}
		if got := n[0].source.Behind(owner.Hash(key)); got != none || !n[0].source.Replicated(owner.Hash(key)) {
			t.Errorf("%v are behind", got)
		}
	})
}

// TestDisksThatDoNotCount: before that is agreed on, an answer waits for the node's own disk, as
// its settings say, and for no other.
func TestDisksThatDoNotCount(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.keeping(true, time.Millisecond)
		n := w.cluster(2)
		key := w.keys(1, ownedBy(n[0], n[1]))[0]
		n[1].disk.hang()
		pass(2 * slowDisk)
		a := n[0].add(key)
		a.pending(t, "its own disk does not have it")
		pass(5 * time.Millisecond)
		a.checkAnswered(t, "its own disk has it")
		w.drain(n[0], n[1])
		w.until("the rows have moved", func() bool { return len(w.agreed().Moves()) == 0 })
		n[1].disk.work()

		// One that fails keeps nothing back as long as that is so.
		key = w.keys(1, func(_ *table.Table, r *table.Row) bool { return r.Owner == n[1].self })[0]
		n[1].disk.hang()
		n[1].disk.fails.Store(true)
		n[1].add(key).checkAnswered(t, "its disk does not count")
		w.agree(table.Always)
		pass(time.Millisecond)
		b := n[1].add(key)
		synctest.Wait()
		select {
		case <-b.done:
			if b.err == nil {
				t.Error("an answer is told that is not on disk")
			}
		default:
		}
		n[1].disk.fails.Store(false)
		n[1].disk.work()
	})
}

// TestIntervalWaitsForDisks: under interval answers wait for no disk that keeps up; they wait when
// it does not, and then the standby is taken out.
func TestIntervalWaitsForDisks(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n := w.durableCluster(2, false, table.Interval)
		keys := w.keys(2, ownedBy(n[0], n[1]))
		w.set("unsync", held)
		n[1].disk.hang()
		n[0].add(keys[0]).checkAnswered(t, "disks have a second")
		pass(everySecond - pollEvery)
		n[0].add(keys[0]).checkAnswered(t, "disks have a second")
		if n[1].disk.content()[keys[0]] == n[0].holds()[keys[0]] {
			t.Error("the disk has it")
		}
		pass(2 * pollEvery)
		a := n[0].add(keys[0])
		a.pending(t, "the disk is behind")
		n[0].add(keys[1]).pending(t, "the disk is behind")
		if p := n[0].source.Progress().Standbys; w.count("unsync") > 0 || len(p) != 1 || p[0].DiskLag < everySecond || p[0].DiskLag > everySecond+2*pollEvery {
			t.Errorf("the standby is taken out at once, or it is not told for how long its disk is behind: %+v", p)
		}
		n[1].disk.work()
		pass(everySecond)
		a.checkAnswered(t, "the disk keeps up")
		if w.count("unsync") > 0 {
			t.Error("the standby is taken out")
		}

		n[1].disk.hang()
		n[0].put(keys, 1)
		pass(everySecond + slowDisk + 2*pollEvery)
		if w.count("unsync") == 0 {
			t.Error("the standby is not taken out")
		}
		b := n[0].add(keys[0])
		b.pending(t, "the standby is not out")
		w.release("unsync")
		b.checkAnswered(t, "the standby is out")
		n[1].disk.work()
		w.awaitStable()
		w.alike()
	})
}

// TestOtherIntervals: a standby whose disk has a longer interval than the owner's does rounds as the owner's answers
// need them: none waits, and it stays the standby.
func TestOtherIntervals(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.keeping(false, time.Millisecond)
		same := w.disks
		w.disks = func(p *process) *fakeDisk {
			d := same(p)
			if p.self.Node == "n2" {
				d.every = 10 * everySecond
			}
			return d
		}
		n := w.cluster(2)
		pass(10 * everySecond)
		w.agree(table.Interval)
		pass(10 * everySecond)
		key := w.keys(1, ownedBy(n[0], n[1]))[0]
		out := w.count("unsync")
		n[1].disk.mu.Lock()
		before := n[1].disk.done
		n[1].disk.mu.Unlock()
		for range 300 {
			n[0].add(key).checkAnswered(t, "the disk would keep up")
			pass(100 * time.Millisecond)
		}
		if w.count("unsync") > out {
			t.Error("the standby is taken out")
		}
		n[1].disk.mu.Lock()
		defer n[1].disk.mu.Unlock()
		if n := n[1].disk.done - before; n > 60 {
			t.Errorf("%d rounds in 30 s", n)
		}
	})
}

// TestDiskFails: a standby whose disk fails is taken out; the owner goes on without it, and it is
// no standby again before its disk works and has all.
func TestDiskFails(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n := w.durableCluster(2, true, table.Always)
		key := w.keys(1, ownedBy(n[0], n[1]))[0]
		n[1].disk.hang()
		a := n[0].add(key)
		pass(slowDisk - 2*pollEvery)
		a.pending(t, "the disk of the standby does not have it")
		pass(4 * pollEvery)
		a.checkAnswered(t, "the standby is out")
		syncs := w.count("sync")
		for range 20 {
			b := n[0].add(key)
			pass(500 * time.Millisecond)
			b.checkAnswered(t, "there is no standby")
		}
		if w.count("sync") > syncs {
			t.Error("a process is put in whose disk does not work")
		}
		n[1].disk.work()
		w.awaitStable()
		w.alike()
	})
}

// TestSyncWaitsForDisk: a process is put in as a standby when its disk has all, and the Sync says
// so. While that is undecided, answers wait for the disks of both.
func TestSyncWaitsForDisk(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n := w.durableCluster(2, true, table.Always)
		n = append(n, w.start("n3", 1))
		n[2].disk.hang()
		var syncs atomic.Int64
		w.watch(func(c table.Command) {
			if c.Sync == nil {
				return
			}
			if !c.Sync.Kept {
				t.Error("a Sync does not say that the disk has all")
			}
			if c.Sync.Standby == n[2].self {
				syncs.Add(1)
			}
		})
		w.set("sync", held)
		n[0].put(w.keys(50, ownedBy(n[0], n[1])), 1)
		w.towards(n...)
		key := w.keys(1, staying(n[0], n[2]))[0]
		pass(slowDisk / 2)
		a := n[0].add(key)
		pass(20 * time.Millisecond)
		a.checkAnswered(t, "the process is not about to be put in: its disk does not have the copy")
		if syncs.Load() > 0 {
			t.Error("a Sync is proposed")
		}
		n[2].disk.work()
		row := func() uint64 { return w.agreed().Rows[w.agreed().Find(owner.Hash(key))].End }
		w.until("the Sync is proposed", func() bool { return n[0].source.waiting(row()) && syncs.Load() > 0 })
		for _, p := range []*process{n[1], n[2]} {
			pass(everySecond)
			p.disk.hang()
			a := n[0].add(key)
			pass(20 * time.Millisecond)
			a.pending(t, "the disk of "+p.self.Node+" does not have it")
			p.disk.work()
			pass(20 * time.Millisecond)
			a.checkAnswered(t, "both have it")
		}
		if lacks := n[2].disk.content()[key] != n[0].holds()[key]; lacks {
			t.Error("the disk of the next standby does not have it")
		}
		w.release("sync")
		w.awaitStable()
		w.alike()
	})
}

// TestFlipWaitsForDisk: rows are not frozen before the target's disk has the copy; frozen, they
// wait for what was decided since; and if that takes long, they are served again.
func TestFlipWaitsForDisk(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n := w.durableCluster(2, true, table.Always)
		n = append(n, w.start("n3", 1))
		w.watch(func(c table.Command) {
			if c.Flip == nil {
				return
			}
			if !c.Flip.Kept {
				t.Error("a Flip does not say that the disk has all")
			}
			disk := w.nodes[c.Flip.To].disk.content()
			for key, value := range w.nodes[c.Flip.From].holds() {
				r := &w.table.Rows[w.table.Find(owner.Hash(key))]
				if slices.Contains(c.Flip.Ends, r.End) && disk[key] != value {
					t.Errorf("%s is %d on the disk of the target, not %d", key, disk[key], value)
				}
			}
		})
		n[2].disk.hang()
		n[0].put(w.keys(50, ownedBy(n[0], n[1])), 1)
		w.drain(n[0], n[1], n[2])
		moves := w.keys(2, func(t *table.Table, r *table.Row) bool {
			wanted, _ := t.Wants(r.End)
			return r.Owner == n[0].self && wanted == n[2].self
		})
		key := moves[0]
		n[0].put(moves, 1)
		for range 10 {
			pass(100 * time.Millisecond)
			n[0].may(key, serving.Yes, "the target's disk does not have the copy")
		}
		w.set("flip", held)
		n[2].disk.takes.Store(int64(300 * time.Millisecond))
		n[2].disk.work()
		w.until("the row is frozen", func() bool {
			if _, _, v := n[0].rule.May(owner.Hash(key), w.now()); v != serving.Yes {
				return true
			}
			n[0].put(moves[1:], 1)
			return false
		})
		w.until("the Flip is proposed", func() bool { return w.count("flip") > 0 })
		w.release("flip")
		w.until("the rows have moved", func() bool { return len(w.agreed().Moves()) == 0 })
	})
}

// TestFlipGivesUpADisk: the target's disk hangs while rows are frozen. They are served again, and
// handed over when it works.
func TestFlipGivesUpADisk(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n := w.durableCluster(2, true, table.Always)
		key := w.keys(1, ownedBy(n[0], n[1]))[0]
		w.set("unsync", held)
		n[1].disk.hang()
		n[0].put([]string{key}, 1)
		w.drain(n[0], n[1])
		pass(slowDisk / 2)
		n[0].may(key, serving.Frozen, "the row is handed over")
		pass(slowDisk/2 + 3*pollEvery)
		n[0].may(key, serving.Yes, "the target's disk does not keep up")
		if w.count("flip") > 0 {
			t.Error("the Flip is proposed")
		}
		n[1].disk.work()
		w.release("unsync")
		w.until("the row has moved", func() bool { return len(w.agreed().Moves()) == 0 })
		if got := n[1].holds()[key]; got != 1 {
			t.Errorf("the new owner has %d", got)
		}
	})
}

// TestDiskOfFormerOwner: a process that has handed a row over stands by for it. The new owner tells nothing
// that the disk of that process does not have, although it has sent no record of it.
func TestDiskOfFormerOwner(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n := w.durableCluster(2, true, table.Always)
		n = append(n, w.start("n3", 1))
		key := w.keys(1, ownedBy(n[0], n[1]))[0]
		w.set("sync", held)
		n[0].disk.hang()
		a := n[0].add(key)
		w.drain(n[0], n[1], n[2])
		next := func() table.Holder { return w.agreed().Rows[w.agreed().Find(owner.Hash(key))].Owner }
		w.until("the row has moved", func() bool { return next() != n[0].self })
		to := w.node(next())
		if a.told() {
			t.Error("the former owner has told what its disk does not have")
		}
		read := to.ask(func(now int64) (owner.Meta, error) {
			a, err := to.store.Get(now, ref(key))
			if a.Value != 1 {
				t.Errorf("the new owner has %d", a.Value)
			}
			return a.Meta, err
		})
		pass(slowDisk / 4)
		read.pending(t, "the disk of the standby, which was the owner, does not have it")
		n[0].disk.work()
		pass(20 * time.Millisecond)
		read.checkAnswered(t, "it does")
	})
}

// TestDiskOfFormerOwnerUnderInterval: there nobody waits for what the former owner has decided
// last, as it is younger than the interval.
func TestDiskOfFormerOwnerUnderInterval(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n := w.durableCluster(2, false, table.Interval)
		key := w.keys(1, ownedBy(n[0], n[1]))[0]
		w.set("unsync", held)
		w.set("sync", held)
		n[0].disk.hang()
		w.drain(n[0], n[1])
		w.until("the row has moved", func() bool { return w.agreed().Rows[w.agreed().Find(owner.Hash(key))].Owner == n[1].self })
		n[1].add(key).checkAnswered(t, "the disk is not behind")
		n[0].disk.work()
		w.release("unsync")
		w.release("sync")
	})
}

// told reports whether an answer was told and confirmed.
func (a *answer) told() bool {
	synctest.Wait()
	select {
	case <-a.done:
		return a.err == nil
	default:
		return false
	}
}

// TestOwnDiskOfLostRow: what is on a disk from before a row was lost does not count, nor does what
// was put there by a round that began before.
func TestOwnDiskOfLostRow(t *testing.T) {
	for d, waits := range map[table.Durability]bool{table.Always: true, table.Interval: false} {
		bubble(t, func(t *testing.T, w *world) {
			n := w.durableCluster(2, true, d)
			key := w.keys(1, ownedBy(n[0], n[1]))[0]
			n[0].soil() // so that rounds are of no epoch
			i := w.agreed().Find(owner.Hash(key))
			w.change(func(t *table.Table) { t.Rows[i].Gone = t.Epoch })
			a := n[0].add(key)
			pass(20 * time.Millisecond)
			if waits {
				a.pending(t, "the disk is of before the loss")
				n[0].clean()
				pass(2 * pollEvery)
			}
			a.checkAnswered(t, "the disk is of after the loss")
			if waits {
				n[0].soil()
				w.change(func(t *table.Table) { t.Rows[i].Gone = t.Epoch })
				a := n[0].add(key)
				pass(everySecond + slowDisk + 2*pollEvery)
				select {
				case <-a.done:
					if a.err == nil {
						t.Error("it is told")
					}
				default:
					t.Error("it waits for ever")
				}
			}
		})
	}
}

// TestDrainToSlowDisk: a drain ends although the disk of the target is slow, and although much is
// done meanwhile.
func TestDrainToSlowDisk(t *testing.T) {
	for always, d := range map[bool]table.Durability{true: table.Always, false: table.Interval} {
		bubble(t, func(t *testing.T, w *world) {
			n := w.durableCluster(3, always, d)
			keys := w.keys(50, ownedBy(n[0], n[1]))
			n[0].put(keys, 1)
			n[1].disk.takes.Store(int64(400 * time.Millisecond))
			stop := make(chan struct{})
			var working sync.WaitGroup
			working.Go(func() {
				for i := 0; ; i++ {
					select {
					case <-stop:
						return
					case <-time.After(5 * time.Millisecond):
						for _, p := range n {
							_, _ = p.store.Add(w.now(), ref(keys[i%50]), reqid.ID{}, counter.AddOp{Delta: 1})
						}
					}
				}
			})
			w.drain(n[0], n[1], n[2])
			w.until("the rows have moved", func() bool { return len(w.agreed().Moves()) == 0 })
			close(stop)
			working.Wait()
			w.awaitStable()
			w.alike()
		})
	}
}

// TestToldIsOnDisk: whatever happens to disks and rows, the disk of each process that the table
// names for a row has all that was told of it under always.
func TestToldIsOnDisk(t *testing.T) {
	for seed := range uint64(8) {
		bubble(t, func(t *testing.T, w *world) {
			rnd := rand.New(rand.NewPCG(seed, 7))
			n := w.durableCluster(3, true, table.Always)
			var mu sync.Mutex
			told := map[string]int64{}
			check := func(what string) {
				mu.Lock()
				defer mu.Unlock()
				agreed := w.agreed()
				for key, value := range told {
					r := &agreed.Rows[agreed.Find(owner.Hash(key))]
					for _, h := range []table.Holder{r.Owner, r.Standby} {
						if p := w.node(h); p != nil && p.disk.content()[key] < value {
							t.Fatalf("seed %d, %s: %s was told to be %d, and is %d on the disk of %s", seed, what, key, value, p.disk.content()[key], h.Node)
						}
					}
				}
			}
			keys := w.keys(40, func(*table.Table, *table.Row) bool { return true })
			stop := make(chan struct{})
			var working sync.WaitGroup
			answers := 0
			for range 8 {
				of := rand.New(rand.NewPCG(seed, rnd.Uint64()))
				working.Go(func() {
					for {
						select {
						case <-stop:
							return
						case <-time.After(time.Duration(of.IntN(8)) * time.Millisecond):
						}
						key := keys[of.IntN(len(keys))]
						p := w.node(w.agreed().Rows[w.agreed().Find(owner.Hash(key))].Owner)
						a, err := p.store.Add(w.now(), ref(key), reqid.ID{}, counter.AddOp{Delta: 1})
						if err != nil || !p.source.Replicated(a.Permit.Hash) && !p.source.Await(a.Permit.Hash) || p.store.Confirm(a.Permit, w.now()) != nil {
							continue
						}
						mu.Lock()
						told[key] = max(told[key], a.Value)
						answers++
						mu.Unlock()
						check("an answer")
					}
				})
			}
			for i := range 40 {
				pass(time.Duration(rnd.IntN(400)) * time.Millisecond)
				p := n[rnd.IntN(len(n))]
				switch rnd.IntN(4) {
				case 0:
					p.disk.takes.Store(rnd.Int64N(int64(300 * time.Millisecond)))
				case 1:
					p.disk.hang()
					pass(time.Duration(rnd.IntN(1500)) * time.Millisecond)
					p.disk.work()
				case 2:
					p.disk.takes.Store(int64(time.Millisecond))
				case 3:
					wire := p.to(n[rnd.IntN(len(n))].self)
					wire.stall()
					pass(time.Duration(rnd.IntN(500)) * time.Millisecond)
					wire.flow()
				}
				switch i {
				case 5, 20:
					w.awaitStable()
					n = append(n, w.start(fmt.Sprint("m", i), 1))
					w.towards(n...)
				case 12, 30: // those after it have all in the end
					w.awaitStable()
					w.drain(n[0], n[1:]...)
					n = n[1:]
				}
				check("a look")
			}
			for _, p := range n {
				p.disk.takes.Store(int64(time.Millisecond))
			}
			w.awaitStable()
			close(stop)
			working.Wait()
			check("the end")
			w.alike()
			if answers < 500 {
				t.Errorf("seed %d: only %d answers were told", seed, answers)
			}
		})
	}
}

func (w *world) node(h table.Holder) *process {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.nodes[h]
}

// TestCopySparesDisks: what a copy sends is written to the target's disk. It goes no faster than
// that, so that answers which the same disk is to have do not wait for the copy.
func TestCopySparesDisks(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n := w.durableCluster(2, false, table.Interval)
		n = append(n, w.start("n3", 1))
		n[0].put(w.keys(8000, ownedBy(n[0], n[1])), 1)
		n[0].source.pace.rate = 40 << 10
		n[2].disk.hang()
		w.towards(n...)
		pass(2500 * time.Millisecond)
		sent := n[0].source.Progress().Totals.Objects
		if sent == 0 || sent > 1500 {
			t.Errorf("%d objects were sent to a process whose disk hangs", sent)
		}
		n[2].disk.work()
		w.awaitStable()
		w.alike()
	})
}

// TestStreams: how far a stream is, is known at both ends.
func TestStreams(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n := w.cluster(2)
		of := func(all []feed.Stream, peer *process) (s feed.Stream) {
			for _, s = range all {
				if s.Peer == peer.self {
					return s
				}
			}
			t.Fatalf("none with %s in %v", peer.self.Node, all)
			return s
		}
		n[0].put(w.keys(5, ownedBy(n[0], n[1])), 1)
		pass(pollEvery)
		out, in := of(n[0].source.Streams(), n[1]), of(n[1].target.Intake.Streams(), n[0])
		if out.Session != in.Session || out.Number != in.Number || out.Session == 0 {
			t.Errorf("out %v, in %v", out, in)
		}
		n[0].to(n[1].self).stall()
		n[0].put(w.keys(5, ownedBy(n[0], n[1])), 1)
		synctest.Wait()
		if later, same := of(n[0].source.Streams(), n[1]), of(n[1].target.Intake.Streams(), n[0]); later.Number != out.Number+5 || same != in {
			t.Errorf("then out %v, in %v", later, same)
		}
	})
}
