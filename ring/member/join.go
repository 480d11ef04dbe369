package member

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"time"
)

// Joining.
const (
	joinQuiet  = 2 * time.Second        // that nobody answers is no news before this: nodes start together
	joinFirst  = 200 * time.Millisecond // pause after the first try that did not help
	joinMost   = 5 * time.Second        // and the longest one; it doubles in between
	joinSpread = 0.5                    // a pause is longer or shorter by up to this part

	// strayEvery is how often a pool that is not alone looks for members at
	// addresses that nobody alive has: another part of it, after a cut so long
	// that both parts have forgotten each other.
	strayEvery   = time.Minute
	strayTargets = 3  // addresses that are tried then
	joinTargets  = 16 // addresses that are tried while alone
	maxFormer    = 16 // addresses of former members that are remembered
	joinResolve  = 5 * time.Second
)

// around is what the last look says of the pool, for the joiner.
type around struct {
	alive  map[string]bool // gossip addresses of the members that are alive
	former []string        // of ours that were, newest last
	ours   int             // others of our cluster that are alive
	// named says that others take another process for this one, or did lately.
	// Most of the time that is the predecessor of this process, at an address that
	// it has no more. They take this one in when they have found the old one to
	// have failed and then hear of this one once more; they do not say when.
	named bool
}

// joiner joins the pool, and again when this node is alone, or when the members
// take it for its own predecessor at another address.
type joiner struct {
	p     *Pool
	pause time.Duration // after the next try that does not help
	next  time.Time     // not before this
	began time.Time
	well  bool // there was no reason to join, as of the last call of once
	// What was logged last, so that it is logged once.
	alone, warned bool
}

func (p *Pool) join() {
	j := &joiner{p: p, pause: joinFirst, alone: true, began: time.Now()}
	for {
		wait := j.once()
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-p.turned:
			timer.Stop()
		case <-p.halt.Done():
			timer.Stop()
			return
		}
	}
}

// once tries if there is a reason to and it is time, and returns how long to wait.
func (j *joiner) once() time.Duration {
	a := j.p.around.Load()
	j.report(a.ours == 0)
	// One that has not heard of its cluster yet may have joined others that have
	// not either.
	well := a.ours > 0 && !a.named && j.p.known.Load()
	now := time.Now()
	switch {
	case well && !j.well:
		j.next = now.Add(spread(strayEvery))
	case !well && j.well:
		j.next = now.Add(spread(j.pause))
	}
	j.well = well
	if now.Before(j.next) {
		return j.next.Sub(now)
	}
	most := joinTargets
	if well {
		most = strayTargets
	}
	j.try(j.targets(a, most), well)
	if well {
		j.pause = joinFirst
		j.next = time.Now().Add(spread(strayEvery))
	} else {
		j.next = time.Now().Add(spread(j.pause))
		j.pause = min(2*j.pause, joinMost)
	}
	return time.Until(j.next)
}

func spread(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (1 - joinSpread + 2*joinSpread*rand.Float64()))
}

// targets are addresses to join, in random order: those of the configuration and
// of former members, less those that are in the pool. A node that is taken for
// its predecessor goes to a member as well, to hand over its state.
func (j *joiner) targets(a *around, most int) []string {
	var found []string
	add := func(addr string) {
		if addr != j.p.addr && !a.alive[addr] && !slices.Contains(found, addr) {
			found = append(found, addr)
		}
	}
	for _, addr := range j.p.cfg.Join {
		for _, resolved := range j.resolve(addr) {
			add(resolved)
		}
	}
	for _, addr := range a.former {
		add(addr)
	}
	rand.Shuffle(len(found), func(x, y int) { found[x], found[y] = found[y], found[x] })
	if a.named {
		others := slices.DeleteFunc(slices.Collect(maps.Keys(a.alive)), func(addr string) bool { return addr == j.p.addr })
		if len(others) > 0 {
			found = append([]string{others[rand.IntN(len(others))]}, found...)
		}
	}
	return found[:min(len(found), most)]
}

// resolve returns all addresses of host:port. The pool does it instead of
// memberlist, which cannot be interrupted at it.
func (j *joiner) resolve(addr string) []string {
	host, port, err := net.SplitHostPort(addr)
	if err != nil || net.ParseIP(host) != nil {
		return []string{addr}
	}
	ctx, cancel := context.WithTimeout(j.p.halt, joinResolve)
	defer cancel()
	ips, err := net.DefaultResolver.LookupIP(ctx, "ip", host)
	if err != nil {
		j.p.log.Debug("a host to join cannot be found", "host", host, "error", err)
		return nil
	}
	var all []string
	for _, ip := range ips {
		all = append(all, net.JoinHostPort(ip.String(), port))
	}
	return all
}

// try joins the targets, or the first of them that answers if one is enough. Nodes
// that start together, and would each join but one other, fall into parts that
// know nothing of each other; and word of mouth does not reach everybody.
func (j *joiner) try(targets []string, one bool) {
	var last error
	joined := false
	for _, t := range targets {
		if j.p.halt.Err() != nil || !j.p.ready() {
			return
		}
		j.p.tries.Add(1)
		n, err := j.p.serf.Join([]string{t}, true)
		if n > 0 {
			joined = true
			j.p.pollSoon()
			if one {
				return
			}
			continue
		}
		if last = errors.Unwrap(err); last == nil { // out of memberlist's list, which takes several lines
			last = err
		}
	}
	if !joined && last != nil && j.alone && !j.warned && time.Since(j.began) > joinQuiet && j.p.halt.Err() == nil {
		j.warned = true
		j.p.log.Warn("cannot join the pool yet; trying on", "join", j.p.cfg.Join, "error", last)
	}
}

// report logs when the node comes out of being alone, or into it.
func (j *joiner) report(alone bool) {
	if alone == j.alone {
		return
	}
	j.alone, j.warned, j.pause = alone, false, joinFirst
	if alone {
		j.p.log.Warn("no other node of the cluster is in the pool any more")
		return
	}
	j.p.log.Info("joined the pool")
}
