// Package member runs a serf agent in every node and turns gossip into facts:
// who is in the pool, what each says of itself, and whether it seems to be
// there. It knows serf and nothing of raft, gRPC or the table.
//
// # Picture
//
//	serf events ──► drain ──► kick ──► owner ──► snapshot ──► Facts, Changed
//	                  │                  ▲
//	                  └─► Events     serf.Members, each second and at each kick
//
// Serf's events only say that it is time to look: what is shown comes from the
// list of members, so that an event that was reordered or merged does no harm.
// The drain never waits, because serf holds its own lock while it hands an event
// over. One goroutine, the owner, looks, debounces and publishes; readers get
// immutable snapshots. A third goroutine joins, and joins again when it is alone.
//
// # Guarantee
//
// A change of a member is shown when it has been stable for Settle, and at the
// latest after ten times that if it never is. A member that flaps faster is not
// shown to change, and holds back facts about others by Settle at most. A burst
// becomes few changes. Word of leaving, of being gone, and of oneself is shown
// at once.
//
// # Not a guarantee
//
// Serf is a hint, raft is the truth. A fact may be old, wrong or missing: a
// member that is Failed may live behind a cut, and one that is Alive may have
// died seconds ago. Nothing is owned or lost because of a fact. A user event may
// come twice, late or never; Fresh asks the others whether one is news. Queries are
// answered by a goroutine of their own, so that an answer may take its time.
//
// # Names
//
// The serf name is the node's id. Two processes with one name are shown in
// Fact.Conflict and logged; neither is shut down. Serf can hold a vote and stop
// the agent of the minority, but a node that was restarted at another address
// would lose it against its own ghost. Which incarnation may act is for raft.
//
// A node that is restarted at another address is turned away until the others
// find its old one to have failed; it notices, and calls on them every few seconds
// until they take it in. With the lan profile that is 6 to 13 s in all, of which
// most is the failure detector's.
//
// # No snapshot file
//
// Serf's own file of former members is not used: the addresses to join come from
// the configuration, and from what this process has seen.
package member
