package kinds

import (
	"fmt"
	"slices"
	"sync"
)

// Write is a write under a lock to what the lock protects. Times are ns.
type Write struct {
	Client int    `json:"client"`
	Holder string `json:"holder"` // of the grant: each has one of its own
	Token  uint64 `json:"token"`
	At     int64  `json:"at"`
	// Until is when the client's lease ends, as docs/guarantees.md has it count.
	Until    int64 `json:"until"`
	Accepted bool  `json:"accepted"`
}

// Guarded stands for what a lock protects: it remembers the greatest token that
// it has seen, and refuses writes with smaller ones.
type Guarded struct {
	now func() int64

	mu      sync.Mutex
	highest uint64  // guarded by mu
	writes  []Write // guarded by mu
}

// Write writes, and reports whether that was accepted.
func (r *Guarded) Write(client int, holder string, token uint64, until int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := Write{Client: client, Holder: holder, Token: token, At: r.now(), Until: until, Accepted: token >= r.highest}
	r.highest = max(r.highest, token)
	r.writes = append(r.writes, w)
	return w.Accepted
}

// Writes returns them in their order.
func (r *Guarded) Writes() []Write {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.writes)
}

// Fencing checks the writes, in their order, to what a lock protects. It holds whatever was
// lost: tokens rise, and the next grant waits for the end of the one before it.
func Fencing(writes []Write) error {
	holders := map[uint64]string{}
	var last Write // of those that were accepted, the one with the greatest token
	for _, w := range writes {
		if h, seen := holders[w.Token]; seen && h != w.Holder {
			return fmt.Errorf("kinds: token %d was granted to %s and to %s", w.Token, h, w.Holder)
		}
		holders[w.Token] = w.Holder
		switch {
		case w.Accepted && w.Token < last.Token:
			return fmt.Errorf("kinds: at %d a write of %s under token %d was accepted after one of %s under %d", w.At, w.Holder, w.Token, last.Holder, last.Token)
		case !w.Accepted && w.At < w.Until:
			return fmt.Errorf("kinds: at %d a write of %s under token %d was refused, %d ns before the end of its lease, because %s had written under %d",
				w.At, w.Holder, w.Token, w.Until-w.At, last.Holder, last.Token)
		case w.Accepted:
			last = w
		}
	}
	return nil
}
