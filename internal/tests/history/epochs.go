package history

import (
	"cmp"
	"fmt"
	"slices"
)

// Epochs reports what is wrong with the epochs of the answers about one object: an answer
// to a call that was made after another answer names no earlier epoch. Replays, and
// answers of parts of split objects, which are owned by others, do not count.
func Epochs(calls []Call) error {
	var byEnd []Call
	for _, c := range calls {
		if o, ok := c.Output.(output); ok && c.Epoch > 0 && !o.replay().Replayed && Parts(c.Output) == 0 {
			byEnd = append(byEnd, c)
		}
	}
	byStart := slices.Clone(byEnd)
	slices.SortStableFunc(byEnd, func(a, b Call) int { return cmp.Compare(a.End, b.End) })
	slices.SortStableFunc(byStart, func(a, b Call) int { return cmp.Compare(a.Start, b.Start) })
	var last Call // of those that had ended, the one with the highest epoch
	next := 0
	for _, c := range byStart {
		for ; next < len(byEnd) && byEnd[next].End < c.Start; next++ {
			if byEnd[next].Epoch > last.Epoch {
				last = byEnd[next]
			}
		}
		if c.Epoch < last.Epoch {
			return fmt.Errorf("history: %s answered about %s under the epoch %d, asked at %d, when %s had answered under %d at %d",
				c.Owner, c.Object, c.Epoch, c.Start, last.Owner, last.Epoch, last.End)
		}
	}
	return nil
}
