// Package reqid remembers which operations were done, so that a retry returns
// the first result and never acts twice.
//
// An operation is named by the client that sent it and the client's sequence
// number, within the object that it acted on: ids live with their object and
// would move with it. The table of a shard remembers, for each object,
//
//	object → its clients, most recently seen last; its idempotency keys
//	client → its last operation, those before it in the order in which they took
//	         effect, and a floor
//
// # Guarantee
//
// Judge says New for an id only if the operation cannot have been done before,
// as far as this can be known:
//
//   - a client that sends `settled` is exact: below its floor everything is
//     TooOld, at and above it everything that was done is remembered, while the
//     client is active on the object (RIFL's first-incomplete number: Lee et
//     al., SOSP 2015);
//   - what was forgotten for want of room is covered by its time: a retry that
//     says it was first sent before the last such eviction is TooOld;
//   - what was forgotten after Window is covered by age: a retry as old as half
//     of Window is TooOld. The other half is room for a slow network.
//
// TooOld may be wrong in the harmless direction only: the operation is not done.
//
// # Idempotency keys
//
// An operation may be named by a key instead, a text that its caller chose. A key has no
// sequence, so nothing says when it is finished, and no age, so nothing tells its retry
// from a first attempt. So it is kept for all of Window, by the clock of the owner, and
// never evicted in it: where there is no room for one (Keys, OwnKeys), the operation is refused.
// Judge says New for a key only if none that was used in the last Window can have been
// forgotten, and Unsure otherwise:
//
//	what happened                              | who knows the keys          | an unknown key is
//	-------------------------------------------+-----------------------------+------------------
//	nothing; the sweep is late                 | the owner, for Window       | New
//	the owner died, its standby was synced     | the standby, by records     | New
//	join, drain: the row moved                 | the next owner, by its copy | New
//	the owner took records back (flip failed)  | the owner                   | New
//	hot object divided, or made whole          | the part of the key's hash, | New
//	                                           | the whole                   |
//	… and a part's row was lost                | nobody                      | Unsure: a mark
//	… and parts remember more than travel      | the latest keys only        | Unsure: a mark
//	orderly stop and start, state file         | the next process            | New
//	row lost (owner and standby died)          | nobody                      | Unsure from the
//	                                           |                             | loss, for Window
//	… and its grace is over, or it has moved   | the owner, since            | Unsure until Window
//	before Window has passed                   |                             | after it knew of it
//	… and Window has passed, as the table says | the owner, and all later    | New
//	process started without state              | nobody                      | Unsure since then
//	not all members know keys (level)          | nobody                      | refused by the store
//	the answer was lost, repeated, or late     | the owner                   | (known: Replay)
//	first attempt, late by more than Window    | nobody                      | New: it acts twice
//
// The last line is what callers must not do: send a key again after Window. What is unknown
// of all objects is the since of Judge; what is unknown of one is its mark.
//
// # Non-guarantee
//
// A first attempt (age 0) that the network holds back until after its own retry
// was done and then evicted for want of room looks new. Clients that send
// `settled` are not evicted for want of room in practice: they keep no more than
// they have in flight.
package reqid
