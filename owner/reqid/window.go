package reqid

import "math"

// Window returns how long the ids of an idle client, and keys, are kept, in nanoseconds.
func (t *Table) Window() int64 { return t.cfg.Window }

// SetWindow changes it. If it becomes longer, what was forgotten before may have been done
// within it: Judge counts that as unknown. It takes time by the number of keys.
func (t *Table) SetWindow(window int64) {
	if window == t.cfg.Window {
		return
	}
	//guard:window-grows
	if window > t.cfg.Window {
		t.idsGone.shorter, t.keysGone.shorter = t.idsGone.last, t.keysGone.last
	}
	old, newest := t.wheel.order, int64(math.MinInt64)
	each := func(f func(x uint32)) {
		for i := range old {
			for x := old[i].oldest; x != 0; {
				next := t.keys.At(x).inTable.newer
				f(x)
				x = next
			}
		}
	}
	each(func(x uint32) { newest = max(newest, t.keys.At(x).at) })
	t.cfg.Window, t.wheel = window, newWheel(window)
	if t.keys.Len() > 0 {
		t.wheel.first = t.wheel.bucketOf(newest) - buckets + 1
	}
	each(func(x uint32) { t.wheel.add(t, x) })
}

// gone says what was forgotten because its window was over, of request ids or of keys.
type gone struct {
	last    int64 // moment of the latest operation
	shorter int64 // … under a window that was shorter than this one; see SetWindow
}

var nothingGone = gone{math.MinInt64, math.MinInt64}

// Since returns the moment up to which operations under request ids may be unknown, if they
// may be up to this one because of what happened to the object.
func (t *Table) Since(since int64) int64 { return max(since, t.idsGone.shorter) }

// KeysSince is Since of operations under keys. Request ids that were forgotten put none in
// doubt: before there is an agreed window, there are no keys.
func (t *Table) KeysSince(since int64) int64 { return max(since, t.keysGone.shorter) }
