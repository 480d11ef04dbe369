// Package chunk lets a node decide rate limits of keys that it does not own: it takes
// chunks of tokens from the owner and spends them itself.
//
// # Guarantee
//
// A token is spent only after the owner has charged it, within Lease of when it
// was asked for, and once. The owner is asked with a burst that is smaller by Slack,
// and all nodes together hold no more than that (Cap). So, as long as all checks of a
// token bucket are made in this way, no more than
//
//	burst + limit · t / period
//
// tokens are spent in any time t: of those spent in a window, what was not charged in
// it was held when it began, and is at most Slack.
//
// Cap is that of the nodes which a table counts, and there may be several tables within
// a Lease. Nodes that go by two of them hold Slack at most. By more of them they may hold
// more, if their number grows in several steps within a Lease to more than 2.7 times what
// it was: the sum of 1 - 1/growth of the steps has to be at most 1.
//
// A bucket has one chunk at a node, whatever parameters callers state: one that states others
// than the one before loses what is left of it. What other nodes took by the old ones they
// may spend for a Lease.
//
// What is not spent in time is lost. A chunk is an eighth of what the node spent in
// a Lease, or what its callers wait for, so that what is lost is at most a quarter of
// what it spends, and what callers that left had waited for.
//
// A caller may take tokens and give them back (Take, GiveBack). They count as held until it says that they are spent,
// so that a node never has more than Cap, and go back for as long as they would have been there. They are spent as of
// when they were taken.
//
// For each bucket one call to the owner is under way at most. Callers wait for it
// in the order in which they came, each until its own context ends. A refusal is
// remembered until it could be otherwise, for Rest at least and Lease at most: until
// then the owner is not asked for as much again. Callers are told how long it takes in
// all, as the owner said.
//
// # Picture
//
//	Spend ─▶ chunk left? ─ yes ─▶ allowed
//	           no │
//	        refused lately? ─ yes ─▶ denied
//	           no │
//	        wait in line ─▶ one call: Check(cost = chunk) ─▶ owner
//
// # Non-guarantee
//
// A refusal may come too early: by Slack, by what was lost, and by Rest. What remains is
// known as of the last call to the owner.
package chunk
