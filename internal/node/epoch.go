package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/keystead/keystead/handoff/disk"
	"github.com/keystead/keystead/internal/durably"
	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner"
)

// epochBase is the moment at which epochs start: 2024-01-01 UTC.
var epochBase = time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)

// epochsPerSecond is how fast the epoch of a new cluster rises: a node that
// lost everything starts above what it had, unless it rose faster than this.
const epochsPerSecond = 256

// wallEpoch returns the epoch that belongs to a moment.
func wallEpoch(t time.Time) uint64 {
	d := t.Sub(epochBase)
	if d < 0 {
		return 0
	}
	return uint64(d) / uint64(time.Second/epochsPerSecond)
}

// standalone is the serving rule of a standalone node: it owns every key, under an epoch
// that is higher than any that it has served under.
type standalone struct {
	node  string        // whose epoch it is
	start int64         // by the clock of the store: request ids from before are unknown
	path  string        // of the file that keeps the epoch; "" = nowhere
	epoch atomic.Uint64 // Invariant: never above what the file holds
	mu    sync.Mutex    // guards the file: one raise at a time

	begins uint64 // the epoch that the process begins with

	policies standalonePolicies

	lost      uint64 // epoch in which the state of the last process was lost; 0 = it was not
	lostUntil int64  // until then answers name the loss, by the clock of the store

	*dates // nil = it knows no time of day

	keeper *disk.Keeper // nil = what is decided is in memory alone
}

// epochFile is what the file of the epoch holds.
type epochFile struct {
	Version int    `json:"version"`
	Epoch   uint64 `json:"epoch"`
	// Node is the node that has served; "" in files of before it was kept.
	Node string `json:"node,omitempty"`
	// Disk says that the process which wrote this kept a store on disk. A program that does not know
	// of stores leaves it out.
	Disk bool `json:"disk,omitempty"`
}

const epochFileVersion = 1

// choose returns the last epoch that dir knows of, and the one to serve under:
// above that, at least floor, and at least that of the wall clock. It is to be set
// before it is used.
func (s *standalone) choose(dir string, floor uint64, wall time.Time) (last, next uint64, err error) {
	if err := checkFloor(floor, wall, dir != ""); err != nil {
		return 0, 0, err
	}
	next = max(wallEpoch(wall), floor, 1)
	if dir != "" {
		s.path = epochPath(dir)
		if last, err = readEpoch(s.path); err != nil {
			return 0, 0, err
		}
		//guard:sole-epoch last+1 -> last
		next = max(next, last+1)
	}
	if next > owner.MaxEpoch {
		return 0, 0, fmt.Errorf("epoch %d is above the greatest possible, %d: check the system clock, --epoch-floor and %s", next, uint64(owner.MaxEpoch), s.path)
	}
	return last, next, nil
}

// checkFloor refuses a floor ahead of the clock where nothing keeps the epoch: the next
// start would begin at the floor again.
func checkFloor(floor uint64, wall time.Time, kept bool) error {
	if now := wallEpoch(wall); !kept && floor > now {
		return fmt.Errorf("--epoch-floor %d is ahead of the clock, which stands at %d, and nothing keeps the epoch: the next start would begin at the floor again, and give the same fencing tokens and ids; set --data-dir too, or leave the floor out if the clock is right", floor, now)
	}
	return nil
}

// epochPath returns the file of the epoch in a data directory.
func epochPath(dir string) string { return filepath.Join(dir, "epoch.json") }

func readEpoch(path string) (uint64, error) {
	f, err := readEpochFile(path)
	return f.Epoch, err
}

// readEpochFile reads the file of the epoch; without one it returns an empty one.
func readEpochFile(path string) (f epochFile, err error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return f, nil
	}
	if err != nil {
		return f, err
	}
	err = json.Unmarshal(b, &f)
	if err == nil && f.Version == epochFileVersion && f.Epoch != 0 && f.Epoch <= owner.MaxEpoch {
		return f, nil
	}
	why := ""
	if f.Version > epochFileVersion {
		why = fmt.Sprintf("it is of version %d, of a newer Keystead: start that, or ", f.Version)
	}
	return epochFile{}, fmt.Errorf("%s does not hold an epoch of version %d: %srestore it, or move it away and start with --epoch-floor above every epoch that this node has served under", path, epochFileVersion, why)
}

// set makes epoch the current one, if it is higher.
func (s *standalone) set(epoch uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if epoch <= s.epoch.Load() {
		return nil
	}
	return s.setLocked(epoch)
}

func (s *standalone) setLocked(epoch uint64) error {
	//guard:sole-epoch-kept
	if s.path != "" {
		b, err := json.Marshal(epochFile{epochFileVersion, epoch, s.node, s.keeper != nil})
		if err != nil {
			return err
		}
		if err := durably.Replace(s.path, append(b, '\n')); err != nil {
			return fmt.Errorf("keeping the epoch: %w", err)
		}
	}
	s.epoch.Store(epoch)
	return nil
}

// Admit implements owner.Rule: a lone node owns every key.
func (s *standalone) Admit(hash uint64, now int64) (owner.Permit, error) {
	//guard:disk-admits
	if s.keeper != nil {
		if err := s.keeper.Admit(); err != nil {
			return owner.Permit{}, err
		}
	}
	p := owner.Permit{Hash: hash, Epoch: s.epoch.Load(), Since: s.start}
	if s.lost != 0 && now < s.lostUntil {
		p.NamedLoss = s.lost
	}
	return p, nil
}

// Confirm implements owner.Rule: no other node can take the keys of a standalone node.
func (s *standalone) Confirm(owner.Permit, int64) error { return nil }

// Terms implements owner.Rule: a standalone node has agreed on nothing.
func (s *standalone) Terms() owner.Terms { return owner.Terms{} }

// Exhausted implements owner.Rule. It writes to disk under a shard's lock, once
// in 16 million grants of that shard.
func (s *standalone) Exhausted(epoch uint64) (uint64, error) {
	if epoch >= owner.MaxEpoch {
		return 0, &failure.Error{Reason: failure.Unavailable, RetryAfter: time.Hour,
			Message: fmt.Sprintf("all fencing tokens up to epoch %d are used up", uint64(owner.MaxEpoch)),
			Hint:    "start a new data directory, and tell what the locks protect to forget the tokens it has seen"}
	}
	if err := s.set(epoch + 1); err != nil {
		return 0, &failure.Error{Reason: failure.Unavailable, Message: err.Error(), RetryAfter: time.Second}
	}
	return s.epoch.Load(), nil
}
