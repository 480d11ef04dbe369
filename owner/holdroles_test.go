package owner

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/keystead/keystead/owner/hold"
	"github.com/keystead/keystead/owner/lock"
	"github.com/keystead/keystead/owner/reqid"
)

// holdRoles are two stores, one the owner of an object that is held and one its copy.
type holdRoles struct {
	*rapid.T
	kind   Kind
	ref    Ref
	rule   *levelRule
	owner  *Store
	copy   *copies
	now    int64
	seq    uint64
	tokens []uint64
	asked  []asked
}

type asked struct {
	w  *Wait[GrantAnswer]
	id reqid.ID
	op hold.Acquire
}

// TestHoldsOverRoles: whatever callers do and however they leave, the copy has what the owner has,
// and both count what they have; also when they change their roles, when a whole comes over what is
// there, and when the cluster learns of the new form of locks meanwhile.
func TestHoldsOverRoles(t *testing.T) {
	for _, kind := range []Kind{KindSemaphore, KindLock} {
		t.Run(kind.String(), func(t *testing.T) {
			rapid.Check(t, func(rt *rapid.T) {
				r := &holdRoles{T: rt, kind: kind, ref: Ref{Key: "k", Name: "n"}}
				r.rule = &levelRule{testRule: testRule{epoch: 100}, level: rapid.SampledFrom([]uint32{LockLevel - 1, LockLevel}).Draw(rt, "level")}
				r.copy = &copies{t: t, partial: rapid.Bool().Draw(rt, "partial")}
				r.owner = newStore(t, func(c *Config) { c.Sink, c.Rule, c.Shards = r.copy, r.rule, 1 })
				r.copy.to = newStore(t, func(c *Config) { c.Rule, c.Shards = ownsNothing, 1 })
				r.copy.to.levels = r.rule
				for range rapid.IntRange(5, 80).Draw(rt, "steps") {
					r.now += rapid.SampledFrom([]int64{0, 0, second / 3, second, 3 * second}).Draw(rt, "pass")
					r.step(t)
					r.compare()
				}
			})
		})
	}
}

func (r *holdRoles) step(t *testing.T) {
	s, now, token := r.owner, r.now, uint64(1)
	if len(r.tokens) > 0 {
		token = rapid.SampledFrom(r.tokens).Draw(r.T, "token")
	}
	switch op := rapid.SampledFrom([]string{"acquire", "acquire", "acquire", "acquire", "renew", "release", "release", "revoke", "update", "downgrade",
		"capacity", "level", "wake", "leave", "leave", "retry", "sweep", "whole", "roles"}).Draw(r.T, "op"); op {
	case "acquire":
		r.acquire()
	case "renew":
		must(s.renewHold(now, r.kind, r.ref, token, 5*second, nil))
	case "release", "revoke":
		must(s.endHold(now, r.kind, r.ref, noID, token, op == "revoke"))
	case "update":
		must(r.owner.updateHold(now, r.kind, r.ref, noID, token, r.metadata()))
	case "downgrade":
		if r.rule.level >= LockLevel {
			must(s.downgradeHold(now, r.kind, r.ref, token, 1))
		}
	case "capacity":
		if r.kind == KindSemaphore {
			must(s.setCapacity(now, r.kind, r.ref, noID, rapid.SampledFrom([]uint32{0, 2, 6}).Draw(r.T, "capacity")))
		}
	case "level":
		r.rule.level = LockLevel
	case "wake":
		s.Wake(now)
	case "leave", "retry":
		if len(r.asked) > 0 {
			r.comeOrGo(rapid.SampledFrom(r.asked).Draw(r.T, "who"), op == "retry")
		}
	case "sweep":
		s.Sweep(now)
	case "whole":
		(&copyTo{store: r.copy.to}).take(s, now)
	case "roles":
		r.change(t)
	}
}

// take installs all that a store has.
func (c *copyTo) take(from *Store, now int64) {
	from.Export(func() int64 { return now }, always, func(r *Record, now int64) bool { return c.emit(r.Clone(), now) }, func() bool { return true })
}

func (r *holdRoles) metadata() []byte {
	return make([]byte, rapid.SampledFrom([]int{0, 0, 3, 1000}).Draw(r.T, "metadata"))
}

func (r *holdRoles) acquire() {
	r.seq++
	op := hold.Acquire{Name: fmt.Sprint(r.seq), TTL: 10 * second, Metadata: r.metadata(), Wait: rapid.SampledFrom([]int64{0, 2 * second, 2 * second, 20 * second}).Draw(r.T, "wait")}
	all := r.rule.level >= LockLevel
	if r.kind == KindLock {
		op.Capacity, op.Weight = lock.All, lock.Weight(all && rapid.Bool().Draw(r.T, "shared"))
	} else {
		op.Capacity, op.Weight = rapid.SampledFrom([]uint32{0, 4, 6}).Draw(r.T, "of"), rapid.Uint32Range(1, 3).Draw(r.T, "n")
	}
	if all {
		op.Delay = rapid.SampledFrom([]int64{0, second}).Draw(r.T, "delay")
	}
	who := id(r.seq)
	if rapid.IntRange(0, 4).Draw(r.T, "who") == 0 {
		who = noID
	}
	r.ask(who, op)
}

func (r *holdRoles) ask(id reqid.ID, op hold.Acquire) {
	switch a, w, _ := r.owner.acquireHold(r.now, r.kind, r.ref, id, op); {
	case w != nil:
		r.asked = append(r.asked, asked{w, id, op})
	case a.Acquired && a.TTL > 0:
		r.tokens = append(r.tokens, a.Token)
	}
}

// comeOrGo has a caller that waited ask again, or leave in one way or the other.
func (r *holdRoles) comeOrGo(x asked, again bool) {
	switch {
	case again && x.id.Given():
		x.id.Age += int64(r.seq)
		x.op.Wait = rapid.SampledFrom([]int64{0, second, 20 * second}).Draw(r.T, "wait")
		r.ask(x.id, x.op)
	case rapid.Bool().Draw(r.T, "for good"):
		x.w.GiveUp(r.now)
	default:
		x.w.Detach(r.now)
	}
}

// change has the copy become the owner, and the owner its copy.
func (r *holdRoles) change(t *testing.T) {
	was, is := r.owner, r.copy.to
	was.cfg.Rule, was.cfg.Sink, was.partial = ownsNothing, nil, nil
	was.Dismiss(always)
	r.rule.epoch++
	r.owner, r.copy = is, &copies{t: t, to: was, partial: r.copy.partial}
	is.cfg.Rule, is.cfg.Sink, is.partial = r.rule, r.copy, r.copy
	is.Own(r.now, always, OwnGrace)
}

func (r *holdRoles) compare() {
	for _, x := range r.asked {
		if a, err := x.w.Answer(); !x.w.away() && x.w.finished() && err == nil && a.Acquired {
			r.tokens = append(r.tokens, a.Token)
		}
	}
	if have, want := r.describe(r.copy.to), r.describe(r.owner); have != want {
		r.Fatalf("the copy is\n%s\nand the owner has\n%s", have, want)
	}
	for _, s := range []*Store{r.owner, r.copy.to} {
		sh, text, waiting := &s.shards[0], 0, int64(0)
		if state := sh.heldLocked(sh.findLocked(s.addressTag(r.ref), r.ref)); state != nil {
			text = state.Bytes()
			if err := state.Valid(); err != nil {
				r.Fatal(err)
			}
		}
		for _, w := range sh.waits {
			text += w.text
			if w.counts {
				waiting++
			}
		}
		if text != sh.text || waiting != s.Stats().Waiting {
			r.Fatalf("%d bytes and %d callers are counted, and there are %d and %d", sh.text, s.Stats().Waiting, text, waiting)
		}
	}
}

// describe returns what a store has of the object, with those who can come back to their places.
func (r *holdRoles) describe(s *Store) (text string) {
	s.Export(func() int64 { return r.now }, always, func(x *Record, _ int64) bool {
		if state := x.Hold(); state != nil && !state.Over(r.now) {
			text = state.Describe(r.now)
		}
		return true
	}, func() bool { return true })
	return text
}

// TestDismissGivesRoomBack: the room of places that nobody can come back to is not counted any more.
func TestDismissGivesRoomBack(t *testing.T) {
	ref := Ref{Key: "k", Name: "n"}
	s := newStore(t, func(c *Config) { c.Shards = 1 })
	for range 14 {
		op := hold.Acquire{Name: "w", TTL: 10 * second, Wait: 20 * second, Capacity: lock.All, Weight: lock.All}
		if _, _, err := s.acquireHold(0, KindLock, ref, noID, op); err != nil {
			t.Fatal(err)
		}
	}
	s.cfg.Rule = ownsNothing
	s.Dismiss(always)
	sh := &s.shards[0]
	if has := sh.heldLocked(sh.findLocked(s.addressTag(ref), ref)).Bytes(); sh.text != has {
		t.Errorf("%d bytes are counted, and the lock has %d", sh.text, has)
	}
}
