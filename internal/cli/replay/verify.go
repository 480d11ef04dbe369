package replay

import (
	"context"
	"slices"
	"strings"
	"sync"
)

// verification compares counters with the log.
type verification struct {
	mu         sync.Mutex // guards what follows
	done       bool       // every key was looked at
	equal      int64
	unequal    int64
	mismatches []Mismatch
}

// maxMismatches is how many mismatches are listed.
const maxMismatches = 20

// verify reads the counter of every key.
func (r *run) verify(ctx context.Context, v *verification) error {
	r.phase.Store(true)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	chunks := make(chan []*keyStat)
	var wg sync.WaitGroup
	for _, w := range r.workers {
		wg.Go(func() {
			for keys := range chunks {
				err := w.read(ctx, keys, func(i int, o *outcome) { r.compare(v, keys[i], o) })
				if err != nil {
					cancel(err)
					return
				}
			}
		})
	}
	for keys := range slices.Chunk(r.table.all(), r.cfg.Batch) {
		select {
		case chunks <- keys:
		case <-ctx.Done():
		}
	}
	close(chunks)
	wg.Wait()
	v.done = ctx.Err() == nil
	v.sort()
	return context.Cause(ctx)
}

func (v *verification) sort() {
	slices.SortFunc(v.mismatches, func(a, b Mismatch) int { return strings.Compare(a.Key, b.Key) })
}

// compare compares one counter with the log. A key whose counter could not be
// read, now or at first, does not match.
func (r *run) compare(v *verification, s *keyStat, o *outcome) {
	if o.reason != "" {
		r.table.fail(s.key, o)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	got := o.value - s.base
	if o.reason == "" && !s.noBase && got == s.seen {
		v.equal++
		r.verified.Store(v.equal)
		return
	}
	v.unequal++
	if len(v.mismatches) < maxMismatches {
		v.mismatches = append(v.mismatches, Mismatch{Key: s.key, Log: s.seen, Counter: got, Unread: o.reason != "" || s.noBase})
	}
}
