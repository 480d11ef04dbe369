package fallback

import (
	"hash/maphash"
	"strings"
	"sync"
)

// Bounds.
const (
	// MaxKeys is how many limits a Table knows something of: 20 MB with the longest keys.
	MaxKeys = 16_384

	shards = 16
	// looks is how many entries are looked at for one that can be forgotten.
	looks = 32
)

// Table decides checks without their owner. Its methods may be called from any goroutine;
// they are given the time, in ns, of which only differences matter.
type Table struct {
	seed   maphash.Seed
	shards [shards]shard
}

type shard struct {
	mu    sync.Mutex
	cells map[address]*cell // guarded by mu, and all in them
}

// address is where a limit is.
type address struct{ key, name string }

// New returns a Table that knows nothing.
func New() *Table {
	t := &Table{seed: maphash.MakeSeed()}
	for i := range t.shards {
		t.shards[i].cells = map[address]*cell{}
	}
	return t
}

func (t *Table) shard(key string) *shard { return &t.shards[maphash.String(t.seed, key)%shards] }

// Learn notes what the owner of a limit said, for checks with LastKnown.
func (t *Table) Learn(key, name string, k Known, now int64) {
	sh := t.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if c := sh.cellLocked(key, name, now); c != nil {
		c.learn(k)
	}
}

// Decide decides a check of a cost, 1 or more, by a valid Rule with a Source. With peek it
// spends nothing.
func (t *Table) Decide(key, name string, r *Rule, cost uint64, peek bool, now int64) (Answer, Why) {
	sh := t.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	c, why := sh.ruledLocked(key, name, r, now)
	if why != Decided {
		return Answer{}, why
	}
	return c.decide(r, cost, peek, now)
}

// ruledLocked returns the cell in which a rule decides a limit, if there is one or may be. The caller holds mu.
func (sh *shard) ruledLocked(key, name string, r *Rule, now int64) (*cell, Why) {
	c := sh.cells[address{key, name}]
	switch {
	case c != nil:
		return c, Decided
	case r.Source == LastKnown:
		return nil, Unknown
	}
	if c = sh.cellLocked(key, name, now); c == nil {
		return nil, Full
	}
	return c, Decided
}

// cellLocked finds or makes the cell of a limit, nil if there is no room. The caller holds mu.
func (sh *shard) cellLocked(key, name string, now int64) *cell {
	if c := sh.cells[address{key, name}]; c != nil {
		return c
	}
	if len(sh.cells) >= MaxKeys/shards && !sh.forgetLocked(now) {
		return nil
	}
	c := &cell{}
	sh.cells[address{strings.Clone(key), strings.Clone(name)}] = c // what it came in can go
	return c
}

// forgetLocked makes room for one, if it finds a cell that gives nothing when it is forgotten.
func (sh *shard) forgetLocked(now int64) bool {
	seen := 0
	for at, c := range sh.cells { // begins anywhere
		//guard:fallback-forgets-nothing-spent true
		if !c.counts(now) {
			delete(sh.cells, at)
			return true
		}
		if seen++; seen == looks {
			return false
		}
	}
	return false
}
