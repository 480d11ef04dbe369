package owner

import (
	"math"

	"github.com/keystead/keystead/owner/hold"
	"github.com/keystead/keystead/owner/reqid"
)

// GroupLevel is the level of the cluster from which on there are groups.
const GroupLevel = 7

// groupMachine is the kind of groups: what is held is to be there, by as many as may hold an object
// (hold.MaxHolders), each under a name of its own, and the metadata of a grant are what the member
// says of itself. Nobody keeps another out, so nobody waits, and members join in a grace period,
// too.
var groupMachine = kindOfHold("group", GroupLevel, &family{
	acquire: opJoin, release: opLeave, update: opUpdateMember,
	open:  true,
	never: "is %d: nobody ever joined under it",
})

// JoinGroup asks for a membership.
type JoinGroup struct {
	ID       string       // 1 to hold.MaxName bytes of UTF-8
	Metadata []byte       // at most hold.MaxMetadata bytes, which must not change afterwards
	TTL      int64        // ns
	After    uint64       // token of the last membership that the caller had under its id; 0 = none
	Session  hold.Session // that keeps it alive; zero = none
}

// JoinAnswer is the answer of a JoinGroup. In a replay, Joined, Token and Later are those of the first
// answer, and the rest is as it is now: a membership whose TTL is 0 is over.
type JoinAnswer struct {
	Joined bool
	Token  uint64 // of the membership; 0 if there is none
	TTL    int64  // ns left of it
	Later  uint64 // token of a membership of the id that is later than JoinGroup.After, if that is why it has not joined; else the group is full
	Meta
}

// MemberClaim is what a member shows to get a membership back that was lost: see
// Store.ReclaimMember.
type MemberClaim struct {
	ID       string // as in JoinGroup
	Metadata []byte // as it was updated last
	Session  hold.Session
	Left     int64 // ns that the member still counts on
}

// groupWords are what fields of a hold are called in requests about groups.
var groupWords = map[string]string{"holder": "id", "reclaim.holder": "reclaim.id"}

// JoinGroup makes the caller a member. Another membership of its id ends in the same step, unless the
// caller had it before that one, and says so: see JoinGroup.After.
func (s *Store) JoinGroup(now int64, ref Ref, id reqid.ID, j JoinGroup) (JoinAnswer, error) {
	if j.After > math.MaxInt64 {
		return JoinAnswer{}, invalid("after_token", "is %d: no token is above %d", j.After, uint64(math.MaxInt64))
	}
	a, _, err := s.acquireHold(now, KindGroup, ref, id, hold.Acquire{Name: j.ID, Weight: 1, Capacity: hold.MaxCapacity, TTL: j.TTL, Metadata: j.Metadata, Session: j.Session, Unique: true, After: j.After})
	if err != nil {
		return JoinAnswer{}, inWords(groupWords, err)
	}
	return JoinAnswer{a.Acquired, a.Token, a.TTL, a.later, a.Meta}, nil
}

// RenewMember prolongs a membership. While the row is in grace and nothing is known of it, the
// error is Recovering; see ReclaimMember.
func (s *Store) RenewMember(now int64, ref Ref, token uint64, ttl int64) (HeldAnswer, error) {
	return s.renewHold(now, KindGroup, ref, token, ttl, nil)
}

// ReclaimMember is a RenewMember by a member that shows its claim, in case that its membership was
// lost: see Store.reclaimHold. A later membership of its id stays.
func (s *Store) ReclaimMember(now int64, ref Ref, token uint64, ttl int64, c MemberClaim) (HeldAnswer, error) {
	a, err := s.reclaimHold(now, KindGroup, ref, token, ttl, HoldClaim{Holder: c.ID, Weight: 1, Capacity: hold.MaxCapacity, Metadata: c.Metadata, Session: c.Session, Left: c.Left, unique: true})
	return a, inWords(groupWords, err)
}

// UpdateMember replaces the metadata of a membership, unless it is over. They must not change
// afterwards.
func (s *Store) UpdateMember(now int64, ref Ref, id reqid.ID, token uint64, metadata []byte) (HeldAnswer, error) {
	return s.updateHold(now, KindGroup, ref, id, token, metadata)
}

// Leave ends a membership, by its member or by another.
func (s *Store) Leave(now int64, ref Ref, id reqid.ID, token uint64) (ReleaseAnswer, error) {
	return s.endHold(now, KindGroup, ref, id, token, false)
}

// VerifyMember reports whether a token is that of a member now.
func (s *Store) VerifyMember(now int64, ref Ref, token uint64) (HeldAnswer, error) {
	return s.verifyHold(now, KindGroup, ref, token)
}

// AwaitGroup reads the members, if they are news: see Store.awaitHold.
func (s *Store) AwaitGroup(now int64, ref Ref, seen Seen) (a HoldSight, changed <-chan struct{}, err error) {
	return s.awaitHold(now, KindGroup, ref, seen, hold.MaxHolders)
}
