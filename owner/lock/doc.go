// Package lock is what a lock is in the numbers of package hold, and the form in which records
// had locks before those had holders.
//
// # Guarantee
//
//   - A lock has All there is. An exclusive grant has all of it, a shared one has One: so at
//     any moment either one holds it exclusively, or only such hold it as share it.
//   - A token of an exclusive grant is greater than those of all grants before it, and these
//     were over when it was granted. What package hold promises of grants, their ends, the
//     queue and claims holds.
//   - A lock goes to the head of the queue first: one that wants it exclusively waits until those
//     who share it have ended, and nobody passes it meanwhile, not to share it either.
//   - The bytes of the old form never change, and are read for ever.
//
// # The old form
//
// Records had one grant, exclusive and without a delay, in the state of the lock, and the queue
// as members. It is written until all members of a cluster read the form of package hold, and
// for as long nothing is shared. A reader tells them apart by the third number of the state: in
// the old form that is the token of the grant, 0 if there is none, and only with a grant is
// something behind it; in the other it is the capacity, never 0, and the end.
//
// # Non-guarantees
//
// Locks are not re-entrant: a holder that acquires again is a caller like any other. A lock
// decides who may act; only the fencing token, checked by what the lock protects, stops a
// holder that acts late. Two that share a lock and both want it alone would wait for each
// other for ever, so a shared grant never becomes an exclusive one; an exclusive one becomes
// a shared one in place (Downgrade).
package lock
