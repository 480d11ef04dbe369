package node

import (
	"sync"
	"time"

	"github.com/keystead/keystead/internal/rpc"
	"github.com/keystead/keystead/ring/epoch/table"
)

// awaited are the processes whose disks rows wait for, and since when this node has known.
type awaited struct {
	mu    sync.Mutex // guards what follows
	since map[table.Holder]time.Time
}

// learn takes a table in.
func (a *awaited) learn(t *table.Table, now time.Time) {
	cold := t.ColdRows()
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(cold) == 0 {
		a.since = nil
		return
	}
	next := map[table.Holder]time.Time{}
	for _, c := range cold {
		for _, h := range [...]table.Holder{c.Was, c.Stood} {
			if h.None() {
				continue
			}
			if next[h] = now; !a.since[h].IsZero() {
				next[h] = a.since[h]
			}
		}
	}
	a.since = next
}

// list returns them.
func (a *awaited) list(now time.Time) []rpc.Awaited {
	a.mu.Lock()
	defer a.mu.Unlock()
	var all []rpc.Awaited
	for h, since := range a.since {
		all = append(all, rpc.Awaited{Holder: h, For: now.Sub(since)})
	}
	return all
}
