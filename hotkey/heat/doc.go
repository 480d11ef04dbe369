// Package heat finds the keys that get a large part of a node's operations, in memory
// that does not grow and in the time of a cache line.
//
// # The sketch
//
// A [Sketch] counts touches by tag, a hash of 32 bits. It is a table of sets of five
// places. A tag belongs to one set; one that has no place there takes the place with
// the smallest count and goes on from that count, which is remembered as what it may
// owe to others (Space-Saving, in each set for itself). Counts decay: every [Tick] a
// tenth of each is forgotten, so that they speak of the last ten seconds or so, and a
// constant rate of r a second counts 9 r to 10 r.
//
// For every tag, with its true decayed count T, at any moment:
//
//   - one that has a place, with count C and debt D: C - D - 1 < T < C + 1, where the 1
//     stands for what rounding down loses in all;
//   - one that has none: T < the smallest count of its set + 1;
//   - the smallest count of a set is at most a fifth of the decayed sum of all its
//     touches. So a tag that gets more than a fifth of what its set gets has a place, and
//     one that has kept its place since its first touch is counted as exactly as decay
//     allows.
//
// Sets are small, so one key that is touched a million times a second leaves four
// places for its neighbours: it takes none of theirs.
//
// Two tags of 32 bits that are equal are one to the sketch. Callers that choose keys must
// not know how tags are made of them.
//
// # The watch
//
// A [Watch] decides from polls of the sketches which keys are hot. A key gets hot when
// it surely has at least [Policy.Floor] operations a second, and [Policy.Factor] times as
// many as the others have on average; it stays hot for [Policy.Stay] at least and until
// it has been below half of that for as long. Compared with the others, not with all:
// the one busy key of an idle node is far above them, and never above ten times itself.
//
// # Time
//
// Nothing here reads a clock, locks or allocates on a touch: a sketch belongs to the
// goroutine that locks it. Moments are in nanoseconds of one clock that does not go back.
package heat
