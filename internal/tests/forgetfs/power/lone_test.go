package power

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

// ahead is a floor for epochs that no clock reaches while the tests run: so the epoch is
// only what the disk has kept.
func ahead() uint64 {
	since := time.Since(time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC))
	return (uint64(since/time.Second) + 365*24*3600) * 256
}

// The epoch of a node that runs alone, and so its fencing tokens and ids, never go back:
// neither in its first moments, when its data directory is new, nor later.
func TestLoneEpoch(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(*seed, 1))
	n := newLone(t)
	var epoch, token, id uint64
	for cycle := range *cycles {
		if cycle == 0 {
			n.start("--epoch-floor", strconv.FormatUint(ahead(), 10))
		} else {
			n.start()
		}
		c := n.await()
		// Some are cut off right after they were granted, some a while later.
		l, err := c.Lock("l").TryAcquire(t.Context(), "k")
		must(t, err)
		next, err := c.NextID(t.Context())
		must(t, err)
		if l.Token() <= token || next <= id {
			t.Fatalf("cycle %d: token %d after %d, id %d after %d", cycle, l.Token(), token, next, id)
		}
		token, id = l.Token(), next
		if r.IntN(2) == 0 {
			pause(time.Duration(r.IntN(300)) * time.Millisecond)
		}
		n.cut(cycle, r)
		c.Close()
		kept := epochIn(t, n.data(n.disk.Path))
		if kept < epoch || kept < ahead()-24*3600*256 {
			t.Fatalf("cycle %d: the disk has epoch %d after %d", cycle, kept, epoch)
		}
		epoch = kept
		// One more, which is cut off while it starts.
		n.start()
		pause(time.Duration(r.IntN(60)) * time.Millisecond)
		n.cut(cycle, r)
		if kept := epochIn(t, n.data(n.disk.Path)); kept < epoch {
			t.Fatalf("cycle %d: after a start that was cut off the disk has epoch %d after %d", cycle, kept, epoch)
		}
	}
	t.Logf("%d power cuts, the last token %d", 2**cycles, token)
}

// epochIn reads the epoch that a data directory keeps.
func epochIn(t *testing.T, dir string) uint64 {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, "epoch.json"))
	must(t, err)
	var f struct{ Epoch uint64 }
	must(t, json.Unmarshal(b, &f))
	return f.Epoch
}
