package reqid

import "math/bits"

const (
	// spokes is how finely the window is cut at most: a key is forgotten by as much later than
	// its window is over as a bucket is wide, a thirty-second part of the window or less.
	spokes = 64
	// buckets are those of a window that begins and ends within one, and some more.
	buckets = 2 * spokes
)

// wheel has the keys of a table by when they were used, in buckets that are a part of the
// window wide. Keys come in no order: copies tell of old ones. To put one in takes the same
// time whatever there is, and no key keeps a much older one from being found.
type wheel struct {
	shift uint8 // a bucket is 1<<shift ns wide
	first int64 // number of the oldest bucket; those before it have no keys
	order [buckets]order
}

func newWheel(window int64) wheel { return wheel{shift: uint8(bits.Len64(uint64(window / spokes)))} }

// bucketOf returns the number of the bucket that a moment falls into.
func (w *wheel) bucketOf(at int64) int64 { return at >> w.shift }

// add puts a key where it belongs. If the wheel has not turned that far yet, it is put into
// the last bucket, until again.
func (w *wheel) add(t *Table, x uint32) {
	k := t.keys.At(x)
	n := w.bucketOf(k.at)
	if t.keys.Len() == 1 { // it is the first one
		w.first = n - buckets + 1
	}
	n = min(max(n, w.first), w.first+buckets-1)
	k.bucket = uint16(n & (buckets - 1))
	add(&w.order[k.bucket], &t.keys, x, keyInTable)
}

func (w *wheel) remove(t *Table, x uint32) {
	remove(&w.order[t.keys.At(x).bucket], &t.keys, x, keyInTable)
}

// oldest returns a key of the oldest bucket that has one and begins before a moment; 0 if
// there is none.
func (w *wheel) oldest(t *Table, before int64) uint32 {
	if t.keys.Len() == 0 {
		return 0
	}
	for last := w.bucketOf(before); ; w.first++ {
		x := w.order[w.first&(buckets-1)].oldest
		if x != 0 || w.first >= last {
			return x
		}
	}
}

// again puts the oldest key, whose window is not over, where it belongs now. It reports
// whether that is another bucket.
func (w *wheel) again(t *Table, x uint32) bool {
	if w.bucketOf(t.keys.At(x).at) <= w.first {
		return false
	}
	w.remove(t, x)
	w.add(t, x)
	return true
}
