package owner

import (
	"slices"

	"github.com/keystead/keystead/internal/heldset"
	"github.com/keystead/keystead/owner/hold"
	"github.com/keystead/keystead/owner/reqid"
)

// sessionStep is how many grants of a session are looked at, extended or released under one
// hold of a shard's lock: some tens of microseconds.
const sessionStep = 64

// Keeper does what is asked of sessions, one call at a time. It keeps its room for the next.
type Keeper struct {
	s     *Store
	of    hold.Session
	at    []heldAt // of the shard that is looked at
	found []sessionHold
	t     target // that is looked at; on a stack it would escape
}

// sessionHold is a grant that Find has found.
type sessionHold struct {
	sh *shard
	heldAt
	hash uint64
}

// Kept is a grant that was kept alive. It is told when copies have it, and when Confirm lets
// the permit out.
type Kept struct {
	Hash   uint64 // that names the grant: see package heldset
	Permit Permit
}

// SessionHold is a grant of a session.
type SessionHold struct {
	Key, Name string
	Kind      Kind
	Token     uint64
}

// NewKeeper returns a Keeper.
func (s *Store) NewKeeper() *Keeper { return &Keeper{s: s} }

// Find looks for all that a session holds here: grants that are in force, of keys that this
// process may act for. It returns their digest.
func (k *Keeper) Find(now int64, of hold.Session) (digest uint64, err error) {
	if err := of.Validate(); err != nil {
		return 0, err
	}
	k.of, k.found = of, k.found[:0]
	mask := k.s.sessions.of(of).mask
	for i := range k.s.shards {
		if mask&(1<<(i%64)) == 0 {
			continue
		}
		k.each(&k.s.shards[i], now, func(t *target, a heldAt) {
			h := sessionHold{t.sh, a, heldset.Hash(t.ref.Key, t.ref.Name, a.token)}
			k.found = append(k.found, h)
			digest ^= h.hash
		})
	}
	return digest, nil
}

// each calls f for what the session holds in a shard, locked.
func (k *Keeper) each(sh *shard, now int64, f func(t *target, a heldAt)) {
	sh.mu.Lock()
	k.at = append(k.at[:0], sh.sessions.sessions[k.of]...)
	sh.mu.Unlock()
	for some := range slices.Chunk(k.at, sessionStep) {
		sh.mu.Lock()
		for _, a := range some {
			var ok bool
			if k.t, ok = k.enter(sh, a, now); ok {
				f(&k.t, a)
			}
		}
		sh.mu.Unlock()
	}
	k.t = target{}
}

// enter finds a grant of the session that is in force, and lets an operation on it in.
func (k *Keeper) enter(sh *shard, a heldAt, now int64) (t target, ok bool) {
	if l, here := sh.sessions.holds[a]; !here || l.of != k.of {
		return t, false
	}
	sh.now = max(sh.now, now)
	e := sh.entryLocked(a.slot)
	text := e.text()
	ref := Ref{Key: view(text[:e.keyLen()]), Name: view(text[e.keyLen():])} // nobody keeps it
	t = target{sh: sh, e: e, slot: a.slot, kind: e.kind, hash: Hash(ref.Key), ref: ref, now: sh.now}
	var err error
	//guard:session-owned
	if t.permit, err = sh.store.cfg.Rule.Admit(t.hash, t.now); err != nil {
		return t, false
	}
	if t.permit.LostAt > t.now {
		sh.now = t.permit.LostAt
		t.now = sh.now
	}
	if sh.isCopyLocked(t.slot) && t.ownLocked(OwnGrace) != nil {
		return t, false
	}
	state := sh.heldLocked(a.slot)
	return t, state != nil && state.Find(a.token, t.now).Token != 0
}

// Check returns the error of a TTL that Extend does not take.
func (k *Keeper) Check(ttl int64) error { return k.s.checkSessionTTL(ttl) }

// Extend keeps alive what Find has found and named reports: to ttl from now, and no sooner
// than they would end. It appends what was kept to kept. all reports whether that is all that
// was found and named.
func (k *Keeper) Extend(now, ttl int64, named func(hash uint64) bool, kept []Kept) (_ []Kept, all bool, err error) {
	if err := k.Check(ttl); err != nil {
		return kept, false, err
	}
	all = true
	k.inSteps(func(h *sessionHold) {
		//guard:session-named true
		if !named(h.hash) {
			return
		}
		t, ok := k.enter(h.sh, h.heldAt, now)
		if ok {
			ok = t.extendLocked(h.token, k.of, ttl)
		}
		if all = all && ok; ok {
			kept = append(kept, Kept{h.hash, t.permit})
		}
	})
	return kept, all, nil
}

func (t *target) extendLocked(token uint64, of hold.Session, ttl int64) bool {
	tokens, err := t.sh.nextTokensLocked(t.sh.store.cfg.Rule, t.permit)
	if err != nil {
		return false
	}
	ok := t.sh.heldLocked(t.slot).Extend(token, of, ttl, t.now, tokens, &t.sh.holdFx).Renewed
	t.holdSteppedLocked(&reqid.ID{}, reqid.Outcome{}, 0)
	return ok
}

// inSteps calls f for what Find has found, some of a shard under one hold of its lock.
func (k *Keeper) inSteps(f func(h *sessionHold)) {
	var sh *shard
	n := 0
	for i := range k.found {
		h := &k.found[i]
		if sh != h.sh || n == sessionStep {
			if sh != nil {
				sh.mu.Unlock()
			}
			sh, n = h.sh, 0
			sh.mu.Lock()
		}
		n++
		f(h)
	}
	if sh != nil {
		sh.mu.Unlock()
	}
}

// Unnamed returns what Find has found and named does not report, at most a number of them.
func (k *Keeper) Unnamed(now int64, named func(hash uint64) bool, most int) (all []SessionHold) {
	k.inSteps(func(h *sessionHold) {
		if len(all) == most || named(h.hash) {
			return
		}
		if t, ok := k.enter(h.sh, h.heldAt, now); ok {
			ref := t.sh.targetLocked(t.slot).ref
			all = append(all, SessionHold{ref.Key, ref.Name, t.kind, h.token})
		}
	})
	return all
}

// End releases what Find has found, and appends the permits of that to kept.
func (k *Keeper) End(now int64, kept []Kept) []Kept {
	k.inSteps(func(h *sessionHold) {
		t, ok := k.enter(h.sh, h.heldAt, now)
		if !ok {
			return
		}
		if ended, err := t.endHoldLocked(h.token, &reqid.ID{}, 0, false); err == nil && ended {
			kept = append(kept, Kept{h.hash, t.permit})
		}
	})
	return kept
}
