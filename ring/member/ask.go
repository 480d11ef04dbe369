package member

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Reconnect returns how often serf of a member tries to reach one that has failed: once a
// round, all members that are alive together try each of those as often as that.
func (p Profile) Reconnect() time.Duration {
	switch p {
	case Local:
		return 2 * time.Second
	case WAN:
		return 30 * time.Second
	}
	return 10 * time.Second
}

// Ask exchanges whole states with the processes at gossip addresses, all at once, and
// returns what gossip says then of all members, by name. Of a process that was asked it
// is what that said itself, after Ask was called. It is not debounced, so that it may be
// newer than Facts. It fails if one does not answer, which may take serf's timeout of
// connections, 10 to 30 s, whatever becomes of ctx meanwhile.
func (p *Pool) Ask(ctx context.Context, addrs []string) ([]Fact, error) {
	if !p.ready() {
		return nil, ErrStopped
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	failed := make([]error, len(addrs))
	var wg sync.WaitGroup
	for i, addr := range addrs {
		wg.Go(func() {
			// Not serf's Join: it would wait for those that the joiner makes.
			if n, err := p.serf.Memberlist().Join([]string{addr}); n == 0 {
				failed[i] = fmt.Errorf("%s does not answer: %w", addr, err)
			}
		})
	}
	wg.Wait()
	for _, err := range failed {
		if err != nil {
			return nil, err
		}
	}
	now := time.Now()
	var facts []Fact
	for _, m := range p.serf.Members() {
		f := newFact(p.cfg.Self.Cluster, m)
		if c, ok := p.claims.of(now, f.Name, f.Addr); ok && f.State == Alive {
			f.Conflict = c.addr
		}
		facts = append(facts, f)
	}
	slices.SortFunc(facts, func(a, b Fact) int { return cmp.Compare(a.Name, b.Name) })
	return facts, nil
}
