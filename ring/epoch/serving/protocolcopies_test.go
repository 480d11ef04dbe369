package serving

import (
	"fmt"
	"slices"

	"github.com/keystead/keystead/ring/epoch/table"
)

// inspect compares what a process has with what was told, where it may act.
func (p *process) inspect() {
	t := p.table()
	for _, h := range p.w.at {
		row := t.Rows[t.Find(h)]
		told := p.w.acked[h]
		_, _, v := p.rule.May(h, 0)
		if void := p.w.void[h]; v == Yes && p.data[h] != 0 && p.data[h] <= void.value && t.Epoch >= void.epoch {
			p.w.broken = fmt.Sprintf("epoch %d: %v has %d of %d again, and all up to %d was given up: %+v", t.Epoch, p.self, p.data[h], h, void.value, row)
		}
		if v == Yes && p.data[h] < told.value && row.Lost <= told.epoch {
			p.w.broken = fmt.Sprintf("epoch %d: %v has %d of %d, and %d was told at epoch %d: %+v", t.Epoch, p.self, p.data[h], h, told.value, told.epoch, row)
		}
	}
}

// write lets an operation in and carries it out.
func (p *process) write(h uint64) {
	_, seen, v := p.rule.May(h, 0)
	if v != Yes {
		return
	}
	p.w.value++
	p.data[h] = p.w.value
	feeds, _ := p.route(h)
	for _, l := range feeds {
		l.append(item{h: h, value: p.w.value})
	}
	p.pending = append(p.pending, permit{h, seen, p.w.value, p.rounds})
}

// answer tells the outcomes of operations, if all have them who are to have them.
func (p *process) answer() {
	p.pending = slices.DeleteFunc(p.pending, func(o permit) bool {
		_, waits := p.route(o.h)
		told := !slices.ContainsFunc(waits, func(l *wire) bool { return l.has(p.w) < l.last[o.h] }) && p.onDisk(o)
		may := p.rule.Still(o.h, o.seen, 0)
		if told && may {
			p.w.did["answer"]++
			p.w.acked[o.h] = answer{max(o.value, p.w.acked[o.h].value), p.w.last().Epoch}
		}
		return told || !may
	})
}

// route returns where records about a position go, and whose word answers wait for.
func (p *process) route(h uint64) (feeds, waits []*wire) {
	t := p.table()
	i := t.Find(h)
	r := &t.Rows[i]
	if r.Owner != p.self {
		return nil, nil
	}
	if r.Synced {
		l := p.link(r.Standby)
		feeds, waits = append(feeds, l), append(waits, l)
	}
	if l := p.syncs[r.End]; l != nil && p.w.careless != "alone" && !slices.Contains(waits, l) {
		waits = append(waits, l)
	}
	for _, l := range p.links {
		if !slices.Contains(feeds, l) && slices.ContainsFunc(l.jobs, func(j *job) bool { return covers(j.ranges, segment(t, i)) }) {
			feeds = append(feeds, l)
		}
	}
	return feeds, waits
}

func (p *process) link(to table.Holder) *wire {
	if p.links[to] == nil {
		p.links[to] = &wire{to: to, last: map[uint64]int{}}
	}
	return p.links[to]
}

func (l *wire) append(i item) {
	l.queue = append(l.queue, i)
	l.last[i.h] = len(l.queue)
}

// some is one of the links.
func (p *process) some() *wire {
	to := make([]table.Holder, 0, len(p.links))
	for h := range p.links {
		to = append(to, h)
	}
	if len(to) == 0 {
		return nil
	}
	slices.SortFunc(to, func(a, b table.Holder) int {
		if a.Node < b.Node || a.Node == b.Node && a.Incarnation < b.Incarnation {
			return -1
		}
		return 1
	})
	return p.links[to[p.w.r.IntN(len(to))]]
}

// stream sends a batch, or has one arrive.
func (p *process) stream() {
	l := p.some()
	if l == nil || l.failed {
		return
	}
	if l.sent < len(l.queue) && p.w.r.IntN(2) == 0 {
		l.sent = min(l.sent+1+p.w.r.IntN(20), len(l.queue))
		l.batches = append(l.batches, batch{l.sent, p.table().Epoch})
	}
	to := p.w.all[slices.IndexFunc(p.w.all, func(q *process) bool { return q.self.Node == l.to.Node })]
	if p.w.r.IntN(100) == 0 || to.self != l.to || to.dead {
		l.failed = true
		return
	}
	if len(l.batches) == 0 || to.table().Epoch < l.batches[0].epoch {
		return
	}
	for _, i := range l.queue[l.acked:l.batches[0].upTo] {
		if i.begin != nil && !to.rule.Clean(to.table().Epoch) {
			return
		}
		for h := range to.data {
			if held(i.begin, h) && to.rule.Accepts(h, p.self) {
				delete(to.data, h)
			}
		}
		if i.begin == nil && to.rule.Accepts(i.h, p.self) {
			to.data[i.h] = i.value
		}
		l.acked++
	}
	l.batches = l.batches[1:]
}

// copy begins a copy of rows that ought to be somewhere.
func (p *process) copy() {
	t := p.table()
	if !p.rule.Clean(t.Epoch) {
		return // what is here of rows that have just come is not theirs
	}
	missing := map[table.Holder][]Range{}
	var order []table.Holder
	for i := range t.Rows {
		r := &t.Rows[i]
		wanted, to := t.Wants(r.End)
		if wanted != p.self {
			to = wanted
		}
		if r.Owner != p.self || to.None() || to == p.self || to == r.Standby || wanted != p.self && t.Transition == nil {
			continue
		}
		if l := p.links[to]; l != nil && slices.ContainsFunc(l.jobs, func(j *job) bool { return covers(j.ranges, segment(t, i)) }) {
			continue
		}
		if missing[to] == nil {
			order = append(order, to)
		}
		missing[to] = append(missing[to], segment(t, i))
	}
	for _, to := range order {
		l := p.link(to)
		// A command that counts on the copy may take effect while the target has
		// forgotten it and has not got it again.
		deciding := l.busy || slices.ContainsFunc(p.flips, func(o *handing) bool { return o.f.To == to })
		if l.failed || deciding {
			continue
		}
		l.append(item{begin: missing[to]})
		for _, h := range p.w.at {
			if v, is := p.data[h]; is && held(missing[to], h) {
				l.append(item{h: h, value: v})
			}
		}
		l.jobs = append(l.jobs, &job{missing[to], len(l.queue)})
		p.w.did["copy"]++
	}
}

// has reports whether a process has all of an own row, over a link that works.
func (p *process) has(i int, to table.Holder) bool {
	t, l := p.table(), p.links[to]
	if l == nil || l.failed {
		return false
	}
	r := &t.Rows[i]
	return r.Synced && r.Standby == to || slices.ContainsFunc(l.jobs, func(j *job) bool { return l.has(p.w) >= j.mark && covers(j.ranges, segment(t, i)) })
}

// protect makes a process the standby of rows that it has caught up with.
func (p *process) protect() {
	l := p.some()
	switch {
	case l == nil:
		return
	case l.sync != nil:
		if l.sync() {
			l.sync = nil
		}
		return
	case l.busy || l.failed:
		return
	}
	t := p.table()
	c := syncing(t, p.self, l.to, func(end uint64) bool {
		i := t.Find(end)
		wanted, standby := t.Wants(end)
		return p.has(i, l.to) && (wanted == p.self && standby == l.to || wanted == l.to && t.Rows[i].Standby.None())
	})
	if len(c.Sync.Rows) == 0 {
		return
	}
	c.Sync.Kept = p.w.disks
	l.busy = true
	for _, r := range c.Sync.Rows {
		p.syncs[r.End] = l
	}
	decided := func(error) {
		l.busy = false
		for _, r := range c.Sync.Rows {
			if p.syncs[r.End] == l {
				delete(p.syncs, r.End)
			}
		}
	}
	mark := len(l.queue)
	l.sync = func() bool {
		switch {
		case l.has(p.w) >= mark || p.w.careless == "early":
			p.w.propose(p, c, decided)
		case l.failed:
			decided(nil)
		default:
			return false
		}
		return true
	}
}

// tend takes a standby out whose link has failed, or that is slow, and drops a
// link that has failed and that nobody needs.
func (p *process) tend() {
	l := p.some()
	if l == nil || l.busy || !l.failed && p.w.r.IntN(30) > 0 {
		return
	}
	var ends []uint64
	for _, r := range p.table().Rows {
		if r.Owner == p.self && r.Standby == l.to {
			ends = append(ends, r.End)
		}
	}
	switch {
	case len(ends) > 0:
		l.busy = true
		p.w.propose(p, unsync(p.self, l.to, ends...), func(error) { l.busy = false })
	case l.failed:
		delete(p.links, l.to)
	}
}

// handOver begins a handover, or takes one a step on.
func (p *process) handOver() {
	t := p.table()
	if len(p.flips) == 0 && t.Transition != nil {
		ends := map[table.Holder][]uint64{}
		for i, r := range t.Rows {
			if to, _ := t.Wants(r.End); r.Owner == p.self && to != p.self && p.has(i, to) {
				ends[to] = append(ends[to], r.End)
			}
		}
		for _, m := range t.Members {
			to := m.Holder()
			if froze := p.rule.Freeze(t.Transition.ID, to, ends[to]); len(froze) > 0 {
				p.flips = append(p.flips, &handing{f: table.Flip{Transition: t.Transition.ID, From: p.self, To: to, Ends: froze}})
			}
		}
	}
	for _, o := range slices.Clone(p.flips) {
		if !o.busy {
			p.flush(o)
		}
	}
}

// flush notes what has to be acknowledged, or proposes the flip when it is.
func (p *process) flush(o *handing) {
	t, whole := p.table(), true
	over := func() { p.flips = slices.DeleteFunc(p.flips, func(h *handing) bool { return h == o }) }
	if t.Transition == nil || t.Transition.ID != o.f.Transition || !t.Holds(o.f.To) {
		over()
		return
	}
	if o.marks == nil {
		o.marks = map[*wire]int{}
		o.f.WantSince, o.f.Standby = t.WantSince, p.self
		for _, end := range o.f.Ends {
			i := t.Find(end)
			whole = whole && t.Rows[i].Owner == p.self && p.has(i, o.f.To)
			_, waits := p.route(end)
			for _, l := range waits {
				o.marks[l] = len(l.queue)
			}
		}
		if !whole {
			p.rule.Thaw(o.f.To)
			over()
			return
		}
		l := p.links[o.f.To]
		o.marks[l] = len(l.queue)
	}
	for l := range o.marks {
		if l.to == o.f.To && l.failed {
			p.rule.Thaw(o.f.To)
			over()
			return
		}
	}
	for l, mark := range o.marks {
		needed := l.to == o.f.To || slices.ContainsFunc(o.f.Ends, func(end uint64) bool { _, w := p.route(end); return slices.Contains(w, l) })
		if l.has(p.w) < mark && needed {
			return
		}
	}
	p.rule.Close(o.f.To)
	o.busy, o.marks = true, nil
	f := o.f
	f.Kept = p.w.disks
	p.w.propose(p, table.Command{Flip: &f}, func(refused error) {
		if o.busy = false; refused == nil {
			over()
		}
	})
}
