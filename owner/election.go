package owner

import (
	"errors"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/hold"
	"github.com/keystead/keystead/owner/reqid"
)

// ElectionLevel is the level of the cluster from which on there are elections.
const ElectionLevel = 7

// electionMachine is the kind of elections: what is held is to lead, by one at a time, and the
// metadata of a grant are what the leader says.
var electionMachine = kindOfHold("election", ElectionLevel, &family{
	acquire: opCampaign, release: opResign, revoke: opRevokeLeader, update: opProclaim,
	queue:  MaxPart - 1, // a record of the whole has its leader as well
	single: true,        // of two claims the later term has it: see hold.Reclaim.Alone
	lost:   "what is kept of the key was lost, and somebody may still lead: nobody is elected until the longest lease of before is over; nothing happened",
	never:  "is %d: nobody ever led under it",
})

// Campaign asks to lead.
type Campaign struct {
	Candidate string // 1 to hold.MaxName bytes of UTF-8
	Value     []byte // at most hold.MaxMetadata bytes, which must not change afterwards
	TTL       int64  // ns
	Wait      int64  // ns in line at most
	Delay     int64  // ns for which nobody is elected after an unclean end
	Session   hold.Session
}

// LeaderClaim is what a leader shows to get a term back that was lost: see Store.ReclaimLeader.
type LeaderClaim struct {
	Candidate string // as in Campaign
	Value     []byte // as it was proclaimed last
	Delay     int64  // as in Campaign
	Session   hold.Session
	Left      int64 // ns that the leader still counts on
}

// electionWords are what fields of a hold are called in requests about elections.
var electionWords = map[string]string{"holder": "candidate", "metadata": "value", "reclaim.holder": "reclaim.candidate", "reclaim.metadata": "reclaim.value"}

// inWords returns an error with the field that it names as a kind calls it.
func inWords(words map[string]string, err error) error {
	var e *failure.Error
	if !errors.As(err, &e) || words[e.Field] == "" {
		return err
	}
	in := *e
	in.Field = words[e.Field]
	return &in
}

// Campaign has a candidate lead, or gives it a place in line. If it returns a Wait, the Wait gets
// the answer.
func (s *Store) Campaign(now int64, ref Ref, id reqid.ID, c Campaign) (GrantAnswer, *Wait[GrantAnswer], error) {
	a, w, err := s.acquireHold(now, KindElection, ref, id, hold.Acquire{Name: c.Candidate, Weight: 1, Capacity: 1, TTL: c.TTL, Wait: c.Wait, Delay: c.Delay, Metadata: c.Value, Session: c.Session})
	return a, w, inWords(electionWords, err)
}

// RenewLeader prolongs a term. While the row is in grace and nothing is known of the term, the
// error is Recovering; see ReclaimLeader.
func (s *Store) RenewLeader(now int64, ref Ref, token uint64, ttl int64) (HeldAnswer, error) {
	return s.renewHold(now, KindElection, ref, token, ttl, nil)
}

// ReclaimLeader is a RenewLeader by a leader that shows its claim, in case that its term was lost:
// see Store.reclaimHold.
func (s *Store) ReclaimLeader(now int64, ref Ref, token uint64, ttl int64, c LeaderClaim) (HeldAnswer, error) {
	a, err := s.reclaimHold(now, KindElection, ref, token, ttl, HoldClaim{Holder: c.Candidate, Weight: 1, Capacity: 1, Delay: c.Delay, Metadata: c.Value, Session: c.Session, Left: c.Left})
	return a, inWords(electionWords, err)
}

// Proclaim replaces the value of a term, unless it is over. It must not change afterwards.
func (s *Store) Proclaim(now int64, ref Ref, id reqid.ID, token uint64, value []byte) (HeldAnswer, error) {
	a, err := s.updateHold(now, KindElection, ref, id, token, value)
	return a, inWords(electionWords, err)
}

// Resign ends a term, and the next in line leads.
func (s *Store) Resign(now int64, ref Ref, id reqid.ID, token uint64) (ReleaseAnswer, error) {
	return s.endHold(now, KindElection, ref, id, token, false)
}

// RevokeLeader ends a term that is another's. Its delay runs.
func (s *Store) RevokeLeader(now int64, ref Ref, id reqid.ID, token uint64) (ReleaseAnswer, error) {
	return s.endHold(now, KindElection, ref, id, token, true)
}

// VerifyLeader reports whether a token leads now.
func (s *Store) VerifyLeader(now int64, ref Ref, token uint64) (HeldAnswer, error) {
	return s.verifyHold(now, KindElection, ref, token)
}

// InspectElection returns the leader and the first waiters, at most limit.
func (s *Store) InspectElection(now int64, ref Ref, limit int) (HoldAnswer, error) {
	return s.inspectHold(now, KindElection, ref, limit)
}

// AwaitElection reads who leads: see Store.awaitHold.
func (s *Store) AwaitElection(now int64, ref Ref, seen Seen) (a HoldSight, changed <-chan struct{}, err error) {
	return s.awaitHold(now, KindElection, ref, seen, 1)
}
