package node

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner"
)

// TestSoleTakesEpochs: those that are taken are nobody else's, in this process or
// any that comes after it, also when others raise the epoch meanwhile.
func TestSoleTakesEpochs(t *testing.T) {
	t.Parallel()
	dir, seen, last := t.TempDir(), map[uint64]bool{}, uint64(0)
	for range 3 { // processes
		s, err := newStandalone(dir, 0, epochBase) // the clock stands still
		if err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		var wg sync.WaitGroup
		greatest := last
		for range 4 {
			wg.Go(func() {
				for range 10 {
					e, err := s.claim()
					if err != nil {
						t.Error(err)
					}
					mu.Lock()
					if seen[e] || e <= last || e > kept(t, dir) {
						t.Errorf("epoch %d was taken, of %d before and %d in the file", e, last, kept(t, dir))
					}
					seen[e], greatest = true, max(greatest, e)
					mu.Unlock()
					if _, err := s.Exhausted(s.epoch.Load()); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		last = greatest
	}
}

// TestSoleCannotKeepWhatItTook: an epoch that is not written down is not handed out.
func TestSoleCannotKeepWhatItTook(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, err := newStandalone(dir, 0, epochBase)
	if err != nil {
		t.Fatal(err)
	}
	was := s.epoch.Load()
	if err := os.Mkdir(filepath.Join(dir, "epoch.json.tmp"), 0o700); err != nil {
		t.Fatal(err)
	}
	n := &Node{rule: s}
	if e, err := n.claimStandalone(t.Context()); !errors.As(err, new(*failure.Error)) || e != 0 || s.epoch.Load() != was {
		t.Errorf("epoch %d, %v", e, err)
	}
	s.path = ""
	if err := s.set(owner.MaxEpoch); err != nil {
		t.Fatal(err)
	}
	if e, err := n.claimStandalone(t.Context()); !errors.Is(err, errIDsUsedUp) {
		t.Errorf("epoch %d, %v", e, err)
	}
}

// TestTakeEpochWithoutCluster: a node that nobody has admitted says why it has none.
func TestTakeEpochWithoutCluster(t *testing.T) {
	t.Parallel()
	n, err := Start(Config{ID: "n1", GRPCAddr: "127.0.0.1:0",
		Cluster: ClusterConfig{ID: "c", Join: []string{"127.0.0.1:1"}, RaftAddr: "127.0.0.1:0", GossipAddr: "127.0.0.1:0", Profile: "local"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Kill)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	var e *failure.Error
	if epoch, err := n.cluster.claimEpoch(ctx); !errors.As(err, &e) || e.Reason != failure.Unavailable || e.Hint == "" || e.RetryAfter == 0 {
		t.Errorf("epoch %d, %+v", epoch, err)
	}
}
