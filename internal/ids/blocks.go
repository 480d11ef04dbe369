package ids

import "time"

// Layout and bounds. The layout is that of fencing tokens: both get their epochs in the same
// way, and end with the same one.
const (
	// SeqBits is the width of the sequence: an id is epoch << SeqBits | sequence.
	SeqBits = 24
	// MaxEpoch is the greatest epoch of an id: 39 bits, so that ids stay below 2^63.
	MaxEpoch = 1<<39 - 1
	// MaxCount is how many ids a call may ask for. What is too short for a call at the
	// end of a block is left: 0.06% of it at most.
	MaxCount = 10_000

	// Order is how long a block may be used after it was asked for: the bound of the
	// rough order. A node that is cut off from its cluster goes on for so long, which
	// is enough for leaders to change and for most partitions to heal.
	Order = time.Minute
	// Fresh is how long a block is used as long as the next one can be had: a commit
	// in 10 s is nothing to a cluster, and ids are in the order of about 10 s then.
	Fresh = 10 * time.Second
	// Interval is the least time between two blocks of a process. A cluster of 128
	// nodes takes at most 128 epochs a second then, half of the 256 by which the wall
	// clock's epoch rises; so one that is built anew begins above them. It bounds a
	// process to 16.7 million ids a second.
	Interval = time.Second

	blockIDs = 1 << SeqBits
	// early is how much of a block is used when the next one is asked for: what is
	// left lasts for as long as a commit takes at a hundred million ids a second.
	early = blockIDs / 4 * 3
)

// block is an epoch of this process's own. The zero block is none.
type block struct {
	epoch uint64
	used  uint64 // sequence numbers handed out, or left. Invariant: <= blockIDs
	asked int64  // when it was asked for, ns
}

// holds reports whether n ids can be taken of it.
func (b *block) holds(now int64, n uint64) bool {
	return b.epoch != 0 && b.used+n <= blockIDs &&
		now-b.asked < int64(Order) //guard:id-order
}

// blocks are those of a process, as a state machine.
type blocks struct {
	current, spare block // Invariant: spare is none, or its epoch is the greater
	last           int64 // when the last block that came was asked for
	any            bool  // one has come
}

// next takes n ids, 1 to MaxCount. ok is false if there is no block for them.
func (b *blocks) next(now int64, n uint64) (first uint64, ok bool) {
	if b.spare.holds(now, n) && (!b.current.holds(now, n) || b.stale(now)) {
		b.current, b.spare = b.spare, block{}
	}
	if !b.current.holds(now, n) {
		return 0, false
	}
	first = b.current.epoch<<SeqBits | b.current.used
	b.current.used += n
	return first, true
}

// stale reports whether the current block should not be used if there is another.
func (b *blocks) stale(now int64) bool { return now-b.current.asked >= int64(Fresh) }

// wanting reports whether a block should be asked for.
func (b *blocks) wanting(now int64) bool {
	if b.spare.holds(now, MaxCount) || b.any && now-b.last < int64(Interval) {
		return false
	}
	return !b.current.holds(now, MaxCount) || b.current.used >= early || b.stale(now)
}

// came puts a block in that was asked for at a moment.
func (b *blocks) came(epoch uint64, asked int64) {
	if epoch <= max(b.current.epoch, b.spare.epoch) || epoch > MaxEpoch {
		panic("ids: an epoch that does not rise") // it may be somebody else's, too
	}
	b.spare, b.last, b.any = block{epoch: epoch, asked: asked}, asked, true
}

// pause returns how long there can be no other block.
func (b *blocks) pause(now int64) time.Duration {
	if !b.any {
		return 0
	}
	return max(0, Interval-time.Duration(now-b.last))
}
