package epoch

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
	"github.com/keystead/keystead/ring/epoch/serving"
	"github.com/keystead/keystead/ring/epoch/table"
)

// store stands for the disk of a node.
type store struct {
	mu           sync.Mutex
	durability   table.Durability // guarded by mu, as all that follows
	broken       bool             // it takes nothing
	part         bool             // it has not all that the process holds
	had, stopped []uint64
	epoch        uint64 // of the rule that ran on it last
	asked        int    // how often it was to be enlisted
}

func (d *store) enlist(incarnation uint64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked++
	if d.broken {
		return errors.New("broken")
	}
	d.had = append(d.had, incarnation)
	return nil
}

func (d *store) report(full bool) *peerv1.DiskReport {
	d.mu.Lock()
	defer d.mu.Unlock()
	r := &peerv1.DiskReport{Durability: uint32(d.durability), Whole: !d.part}
	if full {
		r.Incarnations, r.Stopped, r.Epoch = slices.Clone(d.had), slices.Clone(d.stopped), d.epoch
	}
	return r
}

// set changes something of the disk.
func (d *store) set(change func(*store)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change(d)
}

// use gives a process a disk.
func (d *store) use(c *Config, incarnation uint64) {
	c.Rule = serving.New(table.Holder{Node: c.Node, Incarnation: incarnation})
	c.Rule.Clock(c.Clock.Now)
	d.mu.Lock()
	defer d.mu.Unlock()
	c.Rule.OnDisk(d.had, d.epoch, len(d.had) > 0)
	rule := c.Rule
	c.Disk = d.report
	c.Enlist = func(incarnation uint64) error {
		if err := d.enlist(incarnation); err != nil {
			return err
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		rule.OnDisk(d.had, 0, false)
		return nil
	}
}

// durables are nodes with disks.
type durables struct {
	t      *testing.T
	p      *pool
	groups []*Group
	disks  map[string]*store
	change func(*Config)
	back   []*Group // that were started again
	epoch  uint64   // in which all were stopped; a busy machine may lose rows before disks count
}

// formDurable is form, with disks that count.
func formDurable(t *testing.T, n int, d table.Durability, change func(*Config)) *durables {
	t.Helper()
	c := &durables{t: t, p: newPool(), disks: map[string]*store{}, change: change}
	c.groups = form(t, c.p, n, func(cfg *Config) {
		cfg.TTL = 3 * time.Second
		if change != nil {
			change(cfg)
		}
		c.disks[cfg.Node] = &store{durability: d}
		c.disks[cfg.Node].use(cfg, cfg.Incarnation)
	})
	voters(t, n, c.groups...)
	leader, _ := leading(t, c.groups...)
	eventually(t, "disks count", func() bool {
		_, _ = leader.apply(table.Command{ID: draw(), Adopt: &table.Adopt{Level: table.DiskLevel, Durable: d}})
		return leader.Table().Durable == d
	})
	for _, g := range c.groups {
		if n > 1 {
			protect(t, leader, g.Self())
		}
	}
	for _, g := range c.groups {
		until(t, g, "standbys", func(tab *table.Table) bool { return tab.Epoch >= leader.Table().Epoch })
	}
	return c
}

// began notes when all are stopped.
func (c *durables) began() {
	c.back = nil
	for _, g := range c.groups {
		c.epoch = max(c.epoch, g.Table().Epoch)
	}
}

// steady reports whether those that were started again have held their leases since.
func (c *durables) steady() bool {
	return !slices.ContainsFunc(c.back, func(g *Group) bool { return g.Self().Incarnation != g.cfg.Incarnation })
}

// kill ends all processes, as a power cut does.
func (c *durables) kill() {
	c.began()
	for _, g := range c.groups {
		g.Kill()
		c.disks[g.cfg.Node].set(func(d *store) { d.epoch = g.rule.CleanEpoch() })
	}
}

// stop stops all processes in order.
func (c *durables) stop() {
	c.began()
	stopAll(c.t, c.groups)
	for _, g := range c.groups {
		c.disks[g.cfg.Node].set(func(d *store) { d.epoch, d.stopped = g.rule.CleanEpoch(), append(d.stopped, g.Self().Incarnation) })
	}
}

// start starts the next process of a node.
func (c *durables) start(i int) *Group {
	c.t.Helper()
	was := c.groups[i]
	c.groups[i] = again(c.t, c.p, was, false, func(cfg *Config) {
		cfg.TTL = 3 * time.Second
		if c.change != nil {
			c.change(cfg)
		}
		c.disks[cfg.Node].use(cfg, was.Self().Incarnation+1)
	})
	c.back = append(c.back, c.groups[i])
	return c.groups[i]
}

// again is a condition of tables of which those are members that were started again.
func (c *durables) again(ok func(*table.Table) bool) func(*table.Table) bool {
	return func(t *table.Table) bool {
		return !slices.ContainsFunc(c.back, func(g *Group) bool { return !t.Holds(g.Self()) }) && ok(t)
	}
}

// warm is a table without cold rows, in which all that were started again share the ring.
func (c *durables) warm() func(*table.Table) bool {
	return c.again(func(t *table.Table) bool { return t.Cold() == 0 && stableWith(len(c.back))(t) })
}

// lost counts the rows of which something was lost since all were stopped.
func (c *durables) lost(t *table.Table) (n int) {
	for _, r := range t.Rows {
		if r.Lost > c.epoch {
			n++
		}
	}
	return n
}

// gone counts the rows of which all was.
func (c *durables) gone(t *table.Table) (n int) {
	for _, r := range t.Rows {
		if r.Gone > c.epoch {
			n++
		}
	}
	return n
}

// TestColdStart: all nodes are killed and started. They have what their disks have.
func TestColdStart(t *testing.T) {
	t.Parallel()
	for name, d := range map[string]table.Durability{"always": table.Always, "entire": table.Entire} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := formDurable(t, 3, d, nil)
			c.kill()
			for i := range c.groups {
				c.start(i)
			}
			tab := until(t, c.groups[0], "all rows have owners", c.warm())
			if n := c.gone(tab); n > 0 {
				t.Errorf("%d of %d rows are lost", n, len(tab.Rows))
			}
			if n := c.lost(tab); n > 0 && d == table.Entire || n == 0 && d != table.Entire {
				t.Errorf("of %d of %d rows something is lost", n, len(tab.Rows))
			}
			for _, g := range c.groups {
				until(t, g, "all rows have owners", c.warm())
			}
			eventually(t, "all rows are acted for", func() bool {
				return !slices.ContainsFunc(tab.Rows, func(r table.Row) bool {
					return !slices.ContainsFunc(c.groups, func(g *Group) bool { return acts(g, r.End) })
				})
			})
		})
	}
}

// TestColdStartNotAll: one of three does not come back. The others wait for a moment, and go on:
// each row was on two disks.
func TestColdStartNotAll(t *testing.T) {
	t.Parallel()
	c := formDurable(t, 3, table.Always, func(c *Config) { c.ResumeWait = 4 * time.Second })
	c.kill()
	c.start(0)
	c.start(1)
	tab := until(t, c.groups[0], "all rows have owners", c.warm())
	if n := c.gone(tab); n > 0 {
		t.Errorf("%d of %d rows are lost", n, len(tab.Rows))
	}
	c.start(2)
	if tab = until(t, c.groups[0], "it joins", stableWith(3)); c.gone(tab) > 0 {
		t.Errorf("%d of %d rows are lost", c.gone(tab), len(tab.Rows))
	}
}

// TestColdStartEmptied: the disk of one node was emptied. Its rows go on from their standbys', and
// what it stood by for from their owners'.
func TestColdStartEmptied(t *testing.T) {
	t.Parallel()
	c := formDurable(t, 3, table.Always, func(c *Config) { c.ResumeWait = 3 * time.Second })
	emptied := c.groups[1].Self()
	c.kill()
	c.disks["n2"].set(func(d *store) { d.had, d.epoch = nil, 0 })
	for i := range c.groups {
		c.start(i)
	}
	var froms []table.Holder
	before := c.groups[0].Table()
	tab := until(t, c.groups[0], "all rows have owners", c.again(func(tab *table.Table) bool {
		for i := range before.Rows {
			if r, now := &before.Rows[i], tab.Find(before.Rows[i].End); r.Cold() && tab.Rows[now].Owner == c.groups[1].Self() && before.Epoch+1 == tab.Epoch && before.Transition == nil {
				froms = append(froms, r.Was)
			}
		}
		before = tab
		return c.warm()(tab)
	}))
	if n := c.gone(tab); n > 0 || slices.Contains(froms, emptied) {
		t.Errorf("%d of %d rows are lost; the emptied disk counted for %v", n, len(tab.Rows), froms)
	}
}

// TestColdStartNobody: no process comes back that has the rows of one node. Where no answer waits for
// disks, they are given up in the end, and by no leader where one does.
func TestColdStartNobody(t *testing.T) {
	t.Parallel()
	for name, d := range map[string]table.Durability{"interval": table.Interval, "always": table.Always} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := formDurable(t, 3, d, func(c *Config) { c.ResumeWait, c.RecoverWait = time.Second, 4*time.Second })
			c.kill()
			for _, n := range []string{"n1", "n2"} {
				c.disks[n].set(func(d *store) { d.had, d.epoch = nil, 0 })
			}
			one, two := c.groups[0].Self(), c.groups[1].Self()
			for i := range 2 {
				c.start(i)
			}
			if d == table.Interval {
				tab := until(t, c.groups[0], "all rows have owners", c.warm())
				if n := c.gone(tab); n != len(tab.Rows) {
					t.Errorf("%d of %d rows are lost", n, len(tab.Rows))
				}
				return
			}
			until(t, c.groups[0], "they share a ring", c.again(func(tab *table.Table) bool { return tab.Cold() > 0 && stableWith(2)(tab) }))
			began := time.Now()
			eventually(t, "a while passes", func() bool { return time.Since(began) > 5*time.Second })
			tab := c.groups[0].Table()
			if c.gone(tab) > 0 || tab.Cold() != len(tab.Rows) {
				t.Fatalf("%d of %d rows are lost, %d wait", c.gone(tab), len(tab.Rows), tab.Cold())
			}
			c.start(2)
			tab = until(t, c.groups[0], "what the third has goes on", c.again(func(tab *table.Table) bool {
				return !slices.ContainsFunc(tab.Rows, func(r table.Row) bool {
					return r.Cold() && (r.Was.Node == "n3" || r.Stood.Node == "n3")
				})
			}))
			if tab.Cold() == 0 {
				t.Fatal("no row was n1's and n2's alone, and the test shows nothing")
			}
			eventually(t, "an operator gives up the rest", func() bool {
				_, _ = c.groups[1].Propose(t.Context(), table.Command{Forgo: &table.Forgo{Holders: []table.Holder{one, two}, Reason: "test"}})
				return c.groups[1].Table().Cold() == 0
			})
			tab = until(t, c.groups[0], "all rows have owners", c.warm())
			if n := c.gone(tab); n == 0 || n == len(tab.Rows) {
				t.Errorf("%d of %d rows are lost", n, len(tab.Rows))
			}
		})
	}
}

// TestColdStartInOrder: all nodes were stopped in order. Two of them are enough, at once: each disk
// has all.
func TestColdStartInOrder(t *testing.T) {
	t.Parallel()
	const forever = time.Hour
	c := formDurable(t, 3, table.Interval, func(c *Config) { c.ResumeWait = forever })
	was := slices.Clone(c.groups)
	c.stop()
	change := c.change
	c.change = func(cfg *Config) { change(cfg); cfg.Resume = was[0].Self().Incarnation } // it has a state file as well, of whatever time
	c.start(0)
	c.change = change
	c.start(1)
	began := time.Now()
	early := false
	tab := until(t, c.groups[0], "all rows have owners", func(tab *table.Table) bool {
		early = early || tab.Holds(c.groups[0].Self()) && (tab.Holds(was[1].Self()) || tab.Holds(was[2].Self()))
		return early || c.again(func(tab *table.Table) bool { return len(tab.Members) == 2 && tab.Cold() == 0 })(tab)
	})
	if early {
		t.Fatal("the first one is back before all are known to be dead: rows were given to others that are")
	}
	if time.Since(began) >= forever {
		t.Error("it took as long as for disks that were not stopped in order")
	}
	if c.lost(tab) > 0 && c.steady() {
		t.Errorf("of %d of %d rows something is lost", c.lost(tab), len(tab.Rows))
	}
}

// TestColdStartTwice: all are stopped in order, started, and killed before they have gone far. That the
// disk was stopped in order once does not say that nothing is lost.
func TestColdStartTwice(t *testing.T) {
	t.Parallel()
	c := formDurable(t, 3, table.Interval, nil)
	c.stop()
	for i := range c.groups {
		c.start(i)
	}
	tab := until(t, c.groups[0], "all rows have owners", c.warm())
	if c.lost(tab) > 0 && c.steady() {
		t.Errorf("of %d of %d rows something is lost", c.lost(tab), len(tab.Rows))
	}
	voters(t, 3, c.groups...)
	c.kill()
	for i := range c.groups {
		c.start(i)
	}
	tab = until(t, c.groups[0], "all rows have owners", c.warm())
	if c.lost(tab) != len(tab.Rows) || c.gone(tab) > 0 {
		t.Errorf("of %d of %d rows something is lost, all of %d", c.lost(tab), len(tab.Rows), c.gone(tab))
	}
}

// TestEnlistFirst: a process asks for nothing before its disk knows it, at its start and when it
// goes on as another one.
func TestEnlistFirst(t *testing.T) {
	t.Parallel()
	d := &store{durability: table.Interval, broken: true}
	g := join(t, newPool(), "n1", func(c *Config) { d.use(c, c.Incarnation) })
	eventually(t, "the disk fails", func() bool {
		asked := 0
		d.set(func(d *store) { asked = d.asked })
		return asked > 2
	})
	if n := len(g.Table().Members); n > 0 {
		t.Fatalf("%d members", n)
	}
	first := g.Self()
	d.set(func(d *store) { d.broken = false })
	until(t, g, "it is admitted", func(tab *table.Table) bool { return tab.Holds(first) })
	d.set(func(d *store) { d.broken = true })
	if err := g.post(t.Context(), func(k *keeper) { k.removed(k.g.Table()) }); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is another one", func() bool { return g.Self() != first })
	until(t, g, "it is removed", without(first))
	began := time.Now()
	eventually(t, "a while passes", func() bool { return time.Since(began) > g.cfg.TTL })
	if n := len(g.Table().Members); n > 0 {
		t.Fatalf("%d members", n)
	}
	d.set(func(d *store) { d.broken = false })
	until(t, g, "it is admitted again", func(tab *table.Table) bool { return tab.Holds(g.Self()) })
	d.set(func(d *store) {
		if !slices.Equal(d.had, []uint64{first.Incarnation, g.Self().Incarnation}) {
			t.Errorf("the disk knows %x", d.had)
		}
	})
}

// TestLeaderAgreesOnDisks: the leader commits what disks promise when all members have whole
// ones. From then on a node without a disk is not admitted.
func TestLeaderAgreesOnDisks(t *testing.T) {
	t.Parallel()
	p := newPool()
	disks := map[string]*store{}
	groups := form(t, p, 2, func(c *Config) {
		disks[c.Node] = &store{durability: table.Interval, part: c.Node == "n2"}
		disks[c.Node].use(c, c.Incarnation)
	})
	until(t, groups[0], "the level is used", func(tab *table.Table) bool { return tab.Uses(table.DiskLevel) })
	began := time.Now()
	eventually(t, "a while passes", func() bool { return time.Since(began) > DefaultAdoptAfter+time.Second })
	if groups[0].Table().Durable != table.Undurable {
		t.Fatal("a disk counts that is not whole")
	}
	disks["n2"].set(func(d *store) { d.part, d.durability = false, table.Always })
	until(t, groups[0], "disks count", func(tab *table.Table) bool { return tab.Durable == table.Always })
	without := join(t, p, "n3", nil)
	leader, _ := leading(t, groups...)
	eventually(t, "it is turned away", func() bool {
		why := make(chan string, 1)
		return leader.post(t.Context(), func(k *keeper) { why <- k.turnedAway["n3"] }) == nil && <-why != ""
	})
	if leader.Table().Holds(without.Self()) {
		t.Error("it was admitted")
	}
	broken := &store{durability: table.Interval, part: true}
	third := join(t, p, "n4", func(c *Config) { broken.use(c, c.Incarnation) })
	flips(t, third)
	is := func(tab *table.Table) table.Phase { m, _ := tab.Member("n4"); return m.Phase }
	until(t, leader, "it is admitted", func(tab *table.Table) bool { return is(tab) != 0 })
	began = time.Now()
	eventually(t, "a while passes", func() bool { return time.Since(began) > third.cfg.TTL })
	if p := is(leader.Table()); p != table.Joining {
		t.Fatalf("one whose disk is not whole is %s", p)
	}
	broken.set(func(d *store) { d.part = false })
	until(t, leader, "it is given rows", func(tab *table.Table) bool { return is(tab) == table.Active })
}

// TestLessIsAgreedFirst: where all answers wait for disks, a node of which some do not is admitted when that is
// promised no more.
func TestLessIsAgreedFirst(t *testing.T) {
	t.Parallel()
	c := formDurable(t, 1, table.Entire, nil)
	less := &store{durability: table.Interval}
	n2 := join(t, c.p, "n2", func(c *Config) { less.use(c, c.Incarnation) })
	flips(t, n2)
	until(t, c.groups[0], "it is a member", func(tab *table.Table) bool { return tab.Holds(n2.Self()) })
	if d := c.groups[0].Table().Durable; d != table.Always {
		t.Errorf("it is a member, and agreed is %d", d)
	}
}

// TestReleasedByDisk: a member is over when its node asks on a disk with which this very process
// has stopped in order.
func TestReleasedByDisk(t *testing.T) {
	t.Parallel()
	c := formDurable(t, 1, table.Always, func(c *Config) { c.TTL = 20 * time.Second })
	self := c.groups[0].Self()
	for by, want := range map[uint64]bool{self.Incarnation - 1: false, self.Incarnation: true} {
		over := make(chan bool, 1)
		if err := c.groups[0].post(t.Context(), func(k *keeper) {
			k.stoppedInOrder(&peerv1.RenewRequest{Node: "n1", Disk: &peerv1.DiskReport{Stopped: []uint64{by}}})
			over <- slices.Contains(k.grants.Expired(k.now), self)
			k.grants.Members(k.now, nil)
			k.grants.Members(k.now, []table.Holder{self})
		}); err != nil {
			t.Fatal(err)
		}
		if got := <-over; got != want {
			t.Errorf("over is %v, when %x has stopped in order", got, by)
		}
	}
}
