package judge

import (
	"fmt"

	"github.com/keystead/keystead/internal/tests/nemesis/workload"
)

// Fencing checks the writes, in their order, to what a lock protects.
func Fencing(writes []workload.Write) error {
	holders := map[uint64]string{}
	var last workload.Write // of those that were accepted, the one with the greatest token
	for _, w := range writes {
		if h, seen := holders[w.Token]; seen && h != w.Holder {
			return fmt.Errorf("judge: token %d was granted to %s and to %s", w.Token, h, w.Holder)
		}
		holders[w.Token] = w.Holder
		switch {
		case w.Accepted && w.Token < last.Token:
			return fmt.Errorf("judge: at %d a write of %s under token %d was accepted after one of %s under %d", w.At, w.Holder, w.Token, last.Holder, last.Token)
		case !w.Accepted && w.At < w.Until:
			return fmt.Errorf("judge: at %d a write of %s under token %d was refused, %d ns before the end of its lease, because %s had written under %d",
				w.At, w.Holder, w.Token, w.Until-w.At, last.Holder, last.Token)
		case w.Accepted:
			last = w
		}
	}
	return nil
}
