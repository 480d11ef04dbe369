// Package gossip is a network in memory for memberlist: packets and streams
// between addresses like 10.0.0.1:7946, which can be lost, delayed, doubled and
// cut, one way at a time. It is made for testing/synctest bubbles, where hours of
// gossip pass in a second, and works outside of them as well.
//
// A sender never waits for a receiver. What goes to an address where nobody is,
// or that cannot take any more, is dropped: memberlist's own MockTransport blocks
// there. A stream through a cut stands still, as TCP does, and goes on when the
// cut is healed; a connection cannot be opened through a cut in either direction,
// and to an address where nobody is it is refused.
//
// A bubble ends only when all goroutines in it have, and its time stands still
// when its first function has returned. So let a minute pass after the last pool
// was stopped: a probe that memberlist has under way cannot be broken off. Shut
// down every Transport that was made, also one that nobody uses: streams that
// were opened to it wait there.
//
// The dice of each direction between two addresses are drawn from the seed, so
// that the n-th packet from A to B has the same fate in each run. What memberlist
// draws itself is not seeded.
package gossip
