package serving

import (
	"math/rand/v2"
	"testing"

	"github.com/keystead/keystead/ring/epoch/table"
)

// follower compares a rule with the history of tables, position by position.
type follower struct {
	t       *testing.T
	r       *rand.Rand
	rule    *Rule
	self    table.Holder
	history []*table.Table
	learned int // index of the table that the rule goes by
	until   int64
	now     int64
	clean   uint64
	lost    []uint64 // epochs of tables by which something was lost that is not discarded yet
	at      []*position
	tidied  bool // rows were joined, and their stamps with them

	yes, frozen, gone, kept int
}

// position is what the follower knows of one.
type position struct {
	h      uint64
	mine   bool
	holds  bool
	gained uint64 // epoch of the table since which the process may hold it
	freeze *table.Command
	closed bool
	permit int // index of the table that it was let in by; -1 = none
	seen   uint64
}

// could reports whether a command would take effect.
func could(t *table.Table, c table.Command) bool {
	_, err := t.Apply(c)
	return err == nil
}

// learn gives the rule a later table, maybe not the next.
func (f *follower) learn() {
	if f.learned == len(f.history)-1 {
		return
	}
	from := f.learned
	f.learned = min(from+1+f.r.IntN(3), len(f.history)-1)
	f.changed(f.rule.Learn(f.history[f.learned]), from, f.self)
}

// become makes the process another one.
func (f *follower) become() {
	f.self.Incarnation += 1 << 32
	f.until = 0
	f.changed(f.rule.Become(f.self), f.learned, table.Holder{})
}

// changed checks what the rule says was lost since a table. was is the process
// then, if it is still that one.
func (f *follower) changed(lost []Range, from int, was table.Holder) {
	tab := f.history[f.learned]
	tidied := false
	for i := from + 1; i <= f.learned; i++ {
		tidied = tidied || len(f.history[i].Rows) < len(f.history[i-1].Rows)
	}
	f.tidied = f.tidied || tidied
	for _, p := range f.at {
		m, _, _ := tab.Owner(p.h)
		mine := m.Holder() == f.self
		holds := tab.MayHold(tab.Find(p.h), f.self)
		kept := p.holds && holds && was == f.self && !f.spoilt(p, from)
		should, is := p.holds && !kept, held(lost, p.h)
		if should && !is || is && !should && !(tidied && p.holds) {
			f.t.Fatalf("%d: lost is %v, and should be %v", p.h, is, should)
		}
		if holds && (is || !p.holds) {
			p.gained = tab.Epoch
		}
		p.holds = holds
		p.mine = mine
		if p.freeze != nil && !(mine && again(tab, *p.freeze)) {
			p.freeze, p.closed = nil, false
		}
	}
	if len(lost) > 0 {
		f.lost = append(f.lost, tab.Epoch)
	}
}

// again reports whether a flip could be proposed again, by the present ring.
func again(t *table.Table, c table.Command) bool {
	f := *c.Flip
	f.WantSince = t.WantSince
	return could(t, table.Command{Flip: &f})
}

// spoilt reports whether a row came to the process since a table without its state.
func (f *follower) spoilt(p *position, from int) bool {
	then, now := f.history[from], f.history[f.learned]
	was, is := then.Rows[then.Find(p.h)], now.Rows[now.Find(p.h)]
	m, _ := now.Member(f.self.Node)
	stayed := was.Owner == f.self && !p.closed && m.Since <= then.Epoch
	return is.Owner == f.self && is.Lost > then.Epoch && !stayed
}

// discard cleans some of what was lost, or finds that nothing is left to clean.
func (f *follower) discard() {
	if len(f.lost) > 1 {
		f.clean, f.lost = f.lost[0], f.lost[1:]
	} else {
		f.clean, f.lost = f.history[f.learned].Epoch, nil
	}
	f.rule.Cleaned(f.clean)
}

// freeze freezes rows on their way to somebody, and some that are not.
func (f *follower) freeze() {
	tab := f.history[f.learned]
	if tab.Transition == nil {
		return
	}
	to := tab.Members[f.r.IntN(len(tab.Members))].Holder()
	var ends []uint64
	for range 20 {
		h := f.r.Uint64()
		if f.r.IntN(2) == 0 {
			h = f.at[f.r.IntN(len(f.at))].h
		}
		ends = append(ends, tab.Rows[tab.Find(h)].End)
	}
	froze := f.hand(to, ends, f.r.IntN(2) == 0)
	for _, e := range ends {
		unclean := f.rule.now.Load().rows[tab.Find(e)].gained > f.clean
		if froze[e] != (could(tab, flip(tab, f.self, to, e)) && !unclean) {
			f.t.Fatalf("the row that ends at %d was frozen: %v", e, froze[e])
		}
	}
}

// hand freezes rows on their way to somebody, and closes them, or not.
func (f *follower) hand(to table.Holder, ends []uint64, toEnd bool) (froze map[uint64]bool) {
	tab := f.history[f.learned]
	froze = map[uint64]bool{}
	for _, e := range f.rule.Freeze(tab.Transition.ID, to, ends) {
		froze[e] = true
	}
	for _, p := range f.at {
		if e := tab.Rows[tab.Find(p.h)].End; froze[e] && p.freeze == nil {
			c := flip(tab, f.self, to, e)
			p.freeze = &c
		}
	}
	if !toEnd {
		return froze
	}
	f.rule.Close(to)
	for _, p := range f.at {
		p.closed = p.closed || p.freeze != nil && p.freeze.Flip.To == to
	}
	return froze
}

// mayFlip reports whether the process itself would have proposed this flip: it goes
// by the last table, and has closed the rows.
func (f *follower) mayFlip(c *table.Flip) bool {
	if c.From != f.self {
		return true
	}
	return f.learned == len(f.history)-1 && len(f.hand(c.To, c.Ends, true)) == len(c.Ends)
}

// check asks the rule about every position.
func (f *follower) check() {
	tab := f.history[f.learned]
	for _, p := range f.at {
		want := Yes
		switch {
		case !p.mine:
			want = NotOwner
		case p.freeze != nil || p.gained > f.clean:
			want = Frozen
		case f.now >= f.until:
			want = NoLease
		}
		since, seen, got := f.rule.May(p.h, f.now)
		unclean := f.tidied && got == Frozen && want != NotOwner // its neighbour's stamps may be later
		if got != want && !unclean || seen != tab.Epoch || got == Yes && since != tab.Rows[tab.Find(p.h)].Since {
			f.t.Fatalf("epoch %d: May(%d) is %d, and should be %d", tab.Epoch, p.h, got, want)
		}
		f.checkStill(p)
		if got == Yes {
			f.yes++
			if p.permit < 0 || f.r.IntN(4) == 0 {
				p.permit, p.seen = f.learned, seen
			}
		}
		if got == Frozen {
			f.frozen++
		}
	}
}

// checkStill asks whether the answer to what was let in may go out.
func (f *follower) checkStill(p *position) {
	if p.permit < 0 {
		return
	}
	same, joined := true, false
	row := func(i int) table.Row { return f.history[i].Rows[f.history[i].Find(p.h)] }
	for i := p.permit + 1; i <= f.learned; i++ {
		joined = joined || len(f.history[i].Rows) < len(f.history[i-1].Rows)
		same = same && row(i).Owner == row(p.permit).Owner && (joined || row(i).Held == row(p.permit).Held)
	}
	want := same && p.mine && !p.closed && f.now < f.until
	got := f.rule.Still(p.h, p.seen, f.now)
	if got != want && !(joined && !got) {
		f.t.Fatalf("epoch %d: Still(%d), let in at epoch %d, is %v, and should be %v", f.history[f.learned].Epoch, p.h, p.seen, got, want)
	}
	switch {
	case !same:
		f.gone++
		p.permit = -1
	case got && f.learned > p.permit:
		f.kept++
	}
}

// TestRuleFollowsTheTables lets a rule learn random tables, some of them in one
// step, with freezes, discards, lapses and new incarnations in between.
func TestRuleFollowsTheTables(t *testing.T) {
	var yes, frozen, gone, kept int
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 5))
		f := &follower{t: t, r: r, self: n1, history: []*table.Table{ring(t, 1+r.IntN(3))}, learned: 0}
		f.rule = New(n1)
		for range 40 {
			f.at = append(f.at, &position{h: r.Uint64(), permit: -1})
		}
		for _, i := range []int{0, 1, len(f.history[0].Rows) - 1} {
			e := f.history[0].Rows[i].End
			f.at = append(f.at, &position{h: e, permit: -1}, &position{h: e + 1, permit: -1})
		}
		f.rule.Learn(f.history[0])
		f.changed(nil, 0, f.self)
		for range 120 {
			f.step()
			f.check()
		}
		yes, frozen, gone, kept = yes+f.yes, frozen+f.frozen, gone+f.gone, kept+f.kept
	}
	if yes < 10_000 || frozen < 5000 || gone < 1000 || kept < 5000 {
		t.Errorf("the histories are too quiet: %d let in, %d frozen, %d answers held back, %d let out", yes, frozen, gone, kept)
	}
	t.Logf("%d let in, %d frozen, %d answers held back, %d let out", yes, frozen, gone, kept)
}

func (f *follower) step() {
	last := f.history[len(f.history)-1]
	f.now += f.r.Int64N(20)
	switch f.r.IntN(8) {
	case 0, 1, 2:
		c := random(f.r, last)
		if c.Admit != nil && c.Admit.Member.Node == f.self.Node {
			c.Admit.Member.Incarnation = f.self.Incarnation // nobody else is admitted under its name
		}
		if c.Flip != nil && !f.mayFlip(c.Flip) {
			return
		}
		if next, err := last.Apply(c); err == nil {
			f.history = append(f.history, next)
		}
	case 3, 4:
		f.learn()
		if !f.history[f.learned].Holds(f.self) && f.learned == len(f.history)-1 && f.r.IntN(2) == 0 {
			f.become()
		}
	case 5:
		f.discard()
	case 6:
		f.until = f.now + f.r.Int64N(300)
		f.rule.Extend(f.until)
	default:
		f.freeze()
	}
}
