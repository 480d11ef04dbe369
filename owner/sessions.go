package owner

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/hold"
	"github.com/keystead/keystead/owner/reqid"
)

// A session is a name that grants have (hold.Session). What each session holds is found by an
// index in each shard, which is made of the holders as they come, and forgotten with them. It
// is in no record, so it cannot contradict them, and a row that moves takes its part along.
//
//	session ─▶ mask of shards        one for the store: counts and bounds
//	    shard: session ─▶ (cell, token) …
//	               cell ─▶ the holder itself: its lease, and whether it is over

// SessionLevel is the level of the cluster from which on there are sessions.
const SessionLevel = 7

const (
	// MaxSessions is how many sessions a node knows.
	MaxSessions = 1_000_000
	// MinSessionTTL is longer than a failover: the lease of a node, its removal and a flip. Where
	// no TTL is as long, it is the longest that there is.
	MinSessionTTL = int64(10_000_000_000)
	// MaxSessionHolds is how many grants of one session a node keeps, with the copies of
	// others'. A caller that waits already is granted all the same.
	MaxSessionHolds = 4096

	// listedSize is about what a grant takes in the index, in bytes.
	listedSize = 160
	// sessionStripes are the parts of the counts that are locked apart.
	sessionStripes = 64
)

var (
	errSessions = &failure.Error{Reason: failure.StoreFull, RetryAfter: retrySoon, Field: "session",
		Message: "the node knows as many sessions as it may; nothing happened",
		Hint:    "add a node, or acquire without a session"}
	errSessionHolds = &failure.Error{Reason: failure.StoreFull, RetryAfter: retrySoon, Field: "session",
		Message: "the session holds as much at this node as it may; nothing happened",
		Hint:    "begin another session, or release what is not needed"}
)

// heldAt is where a grant is in its shard.
type heldAt struct {
	slot  uint32
	token uint64
}

// sessionPlace is a grant that has a session: which, and where it stands among the session's.
type sessionPlace struct {
	of hold.Session
	at int
}

// sessionIndex has the grants of a shard that have a session.
// Invariant: for each (a, l) of holds, sessions[l.of][l.at] == a.
type sessionIndex struct {
	holds    map[heldAt]sessionPlace
	sessions map[hold.Session][]heldAt
}

// Bytes returns about what the index takes.
func (x *sessionIndex) Bytes() int { return len(x.holds) * listedSize }

// listLocked notes that a grant has a session.
func (sh *shard) listLocked(a heldAt, of hold.Session) {
	x := &sh.sessions
	if _, ok := x.holds[a]; ok {
		return
	}
	if x.holds == nil {
		x.holds, x.sessions = map[heldAt]sessionPlace{}, map[hold.Session][]heldAt{}
	}
	x.holds[a] = sessionPlace{of, len(x.sessions[of])}
	x.sessions[of] = append(x.sessions[of], a)
	sh.store.sessions.add(of, sh.number)
}

// unlistLocked notes that a grant is gone, if it had a session.
func (sh *shard) unlistLocked(a heldAt) {
	x := &sh.sessions
	l, ok := x.holds[a]
	if !ok {
		return
	}
	delete(x.holds, a)
	all := x.sessions[l.of]
	last := all[len(all)-1]
	if all = all[:len(all)-1]; last != a {
		all[l.at] = last
		x.holds[last] = sessionPlace{l.of, l.at}
	}
	if x.sessions[l.of] = all; len(all) == 0 {
		delete(x.sessions, l.of)
	}
	sh.store.sessions.remove(l.of)
}

// holdersLocked is called when these holders of an object have come, changed or gone.
func (sh *shard) holdersLocked(slot uint32, state *hold.State, tokens []uint64) {
	for _, token := range tokens {
		sh.holderLocked(slot, state, token)
	}
}

func (sh *shard) holderLocked(slot uint32, state *hold.State, token uint64) {
	switch h := state.Holder(token); {
	case h != nil && h.Session.Given():
		//guard:session-listed
		sh.listLocked(heldAt{slot, token}, h.Session)
	case len(sh.sessions.holds) > 0:
		//guard:session-unlisted
		sh.unlistLocked(heldAt{slot, token})
	}
}

// listAllLocked lists the grants of an object whose state came from elsewhere.
func (sh *shard) listAllLocked(slot uint32) {
	state := sh.heldLocked(slot)
	if state == nil {
		return
	}
	for i := range state.Holders {
		if h := &state.Holders[i]; h.Session.Given() {
			//guard:session-listed-at-installation
			sh.listLocked(heldAt{slot, h.Token}, h.Session)
		}
	}
}

// unlistAllLocked takes those of an object out whose state is about to be replaced or dropped.
func (sh *shard) unlistAllLocked(slot uint32) {
	if len(sh.sessions.holds) == 0 {
		return
	}
	if state := sh.heldLocked(slot); state != nil {
		for i := range state.Holders {
			//guard:session-unlisted-with-its-object
			sh.unlistLocked(heldAt{slot, state.Holders[i].Token})
		}
	}
}

// heldLocked returns the state of an object that is held, nil if it is absent or of another
// family.
func (sh *shard) heldLocked(slot uint32) *hold.State {
	if slot == 0 {
		return nil
	}
	if e := sh.entryLocked(slot); e.kind.family() != nil && e.rest != 0 {
		return sh.holds.At(e.rest)
	}
	return nil
}

// sessionCounts are the sessions of a store, with how much each holds.
type sessionCounts struct {
	sessions atomic.Int64
	holds    atomic.Int64
	stripes  [sessionStripes]struct {
		mu sync.Mutex
		of map[hold.Session]sessionCount // guarded by mu
	}
}

type sessionCount struct {
	holds int
	mask  uint64 // of the shards in which it has been, by number modulo 64
}

func (c *sessionCounts) stripe(of hold.Session) (mu *sync.Mutex, m *map[hold.Session]sessionCount) {
	s := &c.stripes[(of.Client.Lo^of.Generation)%sessionStripes]
	return &s.mu, &s.of
}

func (c *sessionCounts) add(of hold.Session, shard int) {
	mu, m := c.stripe(of)
	mu.Lock()
	defer mu.Unlock()
	if *m == nil {
		*m = map[hold.Session]sessionCount{}
	}
	n := (*m)[of]
	if n.holds++; n.holds == 1 {
		c.sessions.Add(1)
	}
	n.mask |= 1 << (shard % 64)
	(*m)[of] = n
	c.holds.Add(1)
}

func (c *sessionCounts) remove(of hold.Session) {
	mu, m := c.stripe(of)
	mu.Lock()
	defer mu.Unlock()
	n := (*m)[of]
	c.holds.Add(-1)
	if n.holds--; n.holds > 0 {
		(*m)[of] = n
		return
	}
	delete(*m, of)
	c.sessions.Add(-1)
}

// of returns what is counted of a session.
func (c *sessionCounts) of(of hold.Session) sessionCount {
	mu, m := c.stripe(of)
	mu.Lock()
	defer mu.Unlock()
	return (*m)[of]
}

// sessionLocked returns the error of an Acquire under a session that may not be done, nil if
// it may or has none.
func (t *target) sessionLocked(of hold.Session, ttl int64, id *reqid.ID) error {
	s := t.sh.store
	if !of.Given() {
		return nil
	}
	if err := s.uses(SessionLevel); err != nil {
		return err
	}
	switch {
	//guard:session-no-key
	case id.Keyed():
		return invalid("idempotency_key", "goes with no session: it is for another process to go on with the grant, and a session is one process's")
	//guard:session-client
	case id.Given() && id.Client != of.Client:
		return invalid("session.client", "is not that of request_id")
	}
	return s.checkSessionTTL(ttl)
}

// checkSessionTTL returns the error of a TTL that a grant of a session may not have.
func (s *Store) checkSessionTTL(ttl int64) error {
	most := s.maxLockTTL()
	//guard:session-outlives-failover
	if least := min(MinSessionTTL, most); ttl < least || ttl > most {
		return invalid("ttl_ns", "is %s; under a session it is from %s to %s: an owner is replaced in that time", time.Duration(ttl), time.Duration(least), time.Duration(most))
	}
	return nil
}

// sessionRoom returns the error of a grant that its session has no room for, nil if it has or
// there is no session.
func (s *Store) sessionRoom(of hold.Session) error {
	if !of.Given() {
		return nil
	}
	switch n := s.sessions.of(of); {
	//guard:session-holds
	case n.holds >= MaxSessionHolds:
		return errSessionHolds
	//guard:session-bound
	case n.holds == 0 && s.sessions.sessions.Load() >= MaxSessions:
		return errSessions
	}
	return nil
}
