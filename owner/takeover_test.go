package owner

import (
	"fmt"
	"testing"

	"github.com/keystead/keystead/owner/counter"
	"github.com/keystead/keystead/owner/reqid"
)

// TestIDsAfterTakeover: a process that took over the rows of one that died, or that was
// alone until another one joined, has more of its own than its share, and memory left. What
// clients know goes on with request ids.
func TestIDsAfterTakeover(t *testing.T) {
	for what, c := range map[string]struct {
		percent int64 // of the memory, in own objects before
		after   func(hash uint64) bool
	}{
		"one of three died":   {33, func(hash uint64) bool { return hash%4 != 1 }}, // half of what it stood by for
		"the other one joins": {36, func(uint64) bool { return true }},
	} {
		t.Run(what, func(t *testing.T) {
			s, r := sharedStore(t, "memory")
			var keys []string
			for i := 0; s.ownBytes() < s.cfg.MaxBytes*c.percent/100; i++ {
				key := fmt.Sprint("own", i)
				if !s.owners.Owns(Hash(key)) {
					continue
				}
				if _, err := s.Add(0, Ref{Key: key, Name: "n"}, noID, counter.AddOp{Delta: 1}); err != nil {
					t.Fatal(err)
				}
				keys = append(keys, key)
			}
			if err := copyIn(s, len(keys)); err != nil {
				t.Fatal(err)
			}
			r.own = c.after
			round(s)
			refused, before := 0, s.Stats().Bytes
			for i, key := range keys[:1000] {
				id := reqid.ID{Client: reqid.Client{Hi: uint64(i), Lo: 1}, Sequence: 1, Settled: 1}
				if _, err := s.Add(1, Ref{Key: key, Name: "n"}, id, counter.AddOp{Delta: 1}); err != nil {
					refused++
				}
			}
			if refused > 0 {
				t.Errorf("%d of 1000 operations with ids on what is there were refused at %d of %d bytes", refused, before, s.cfg.MaxBytes)
			}
		})
	}
}
