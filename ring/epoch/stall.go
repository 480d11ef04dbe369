package epoch

import (
	"context"
	"io"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
)

// A disk may hang: a write neither fails nor returns. Raft's leader writes its own
// log first and waits for it, while its heartbeats go on: it commits nothing, and
// nobody else is elected. So each node watches the writes of its own log, and a
// leader whose write takes longer than stallBound steps aside: it grants no leases,
// proposes nothing, and neither sends nor takes in what belongs to raft, until the
// write returns. The others elect one of them. Where they could not, because too few
// of them are there or their disks hang or are slow as well, the leader stays: leases
// need no disk, and what needs no change of the table is served.

// stallBound returns how long a write of the log may take before the node counts as
// stalled: half of the TTL of leases. A disk that is slow for a moment costs no
// election, and a dead node is removed within two TTLs of the death.
func stallBound(ttl time.Duration) time.Duration { return ttl / 2 }

// disk knows which writes of a server's storage are under way.
type disk struct {
	now func() int64

	mu    sync.Mutex
	begun map[uint64]int64 // guarded by mu: by number, when a write under way began
	last  uint64           // guarded by mu: number
	err   error            // guarded by mu: of the last write, nil if it succeeded
	fails int64            // guarded by mu: writes that failed

	lastErr  error // guarded by mu: of the last write that failed
	failedAt int64 // guarded by mu: when that was
}

// begin notes that a write begins, and returns what notes how it ended, and passes that
// on.
func (d *disk) begin() (end func(error) error) {
	at := d.now()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.last++
	n := d.last
	d.begun[n] = at
	return func(err error) error {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.begun, n)
		d.err = err //guard:log-write-fails
		if err != nil {
			d.fails++
			d.lastErr, d.failedAt = err, d.now()
		}
		return err
	}
}

// failures returns how many writes have failed, and why the last one did, nil if it did not.
func (d *disk) failures() (n int64, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.fails, d.err
}

// underWay returns how long the oldest of the writes under way takes by now; 0 = there
// is none.
func (d *disk) underWay() time.Duration {
	now := d.now()
	d.mu.Lock()
	defer d.mu.Unlock()
	oldest := now
	for _, at := range d.begun {
		oldest = min(oldest, at)
	}
	return time.Duration(now - oldest)
}

// watched is a storage all writes of which are noted.
func (s *Storage) watched(now func() int64) (*Storage, *disk) {
	d := &disk{now: now, begun: map[uint64]int64{}}
	w := *s
	w.Logs, w.Stable, w.Snapshots = watchedLogs{s.Logs, d}, watchedStable{s.Stable, d}, watchedSnapshots{s.Snapshots, d}
	return &w, d
}

// watchedLogs notes the writes of a log.
type watchedLogs struct {
	raft.LogStore
	disk *disk
}

// StoreLog implements raft.LogStore.
func (l watchedLogs) StoreLog(e *raft.Log) error {
	return l.disk.begin()(l.LogStore.StoreLog(e))
}

// StoreLogs implements raft.LogStore.
func (l watchedLogs) StoreLogs(es []*raft.Log) error {
	return l.disk.begin()(l.LogStore.StoreLogs(es))
}

// DeleteRange implements raft.LogStore.
func (l watchedLogs) DeleteRange(from, to uint64) error {
	return l.disk.begin()(l.LogStore.DeleteRange(from, to))
}

// watchedStable notes the writes of votes.
type watchedStable struct {
	raft.StableStore
	disk *disk
}

// Set implements raft.StableStore.
func (s watchedStable) Set(key, val []byte) error {
	return s.disk.begin()(s.StableStore.Set(key, val))
}

// SetUint64 implements raft.StableStore.
func (s watchedStable) SetUint64(key []byte, val uint64) error {
	return s.disk.begin()(s.StableStore.SetUint64(key, val))
}

// watchedSnapshots notes the writes of snapshots, one by one: a large one may take
// its time.
type watchedSnapshots struct {
	raft.SnapshotStore
	disk *disk
}

// Create implements raft.SnapshotStore.
func (s watchedSnapshots) Create(v raft.SnapshotVersion, index, term uint64, c raft.Configuration, at uint64, t raft.Transport) (raft.SnapshotSink, error) {
	end := s.disk.begin()
	sink, err := s.SnapshotStore.Create(v, index, term, c, at, t)
	if end(err) != nil {
		return nil, err
	}
	return watchedSink{sink, s.disk}, nil
}

type watchedSink struct {
	raft.SnapshotSink
	disk *disk
}

var _ io.Writer = watchedSink{}

// Write implements io.Writer.
func (s watchedSink) Write(b []byte) (int, error) {
	end := s.disk.begin()
	n, err := s.SnapshotSink.Write(b)
	return n, end(err)
}

// Close implements io.Closer.
func (s watchedSink) Close() error {
	return s.disk.begin()(s.SnapshotSink.Close())
}

// Stalled returns how long a write to this node's log has been under way, if that is too
// long; 0 = it is not.
func (g *Group) Stalled() time.Duration { return time.Duration(g.stalled.Load()) }

// Stalls counts how often a write to the log took too long.
func (g *Group) Stalls() int64 { return g.stalls.Load() }

// checkDisk looks at the writes of this node's log, and steps aside or comes back.
func (k *keeper) checkDisk() {
	k.sayFailures()
	took, was := k.g.disk.underWay(), k.g.stalled.Load()
	if took <= stallBound(k.cfg.TTL) {
		if k.g.stalled.Store(0); was != 0 {
			k.cfg.Log.Warn("the disk writes again", "after at least", time.Duration(was))
		}
		k.stepAside(false)
		return
	}
	if k.g.stalled.Store(int64(took)); was == 0 {
		k.g.stalls.Add(1)
		k.cfg.Log.Error("the disk hangs: a write to the log does not return; a leader steps aside if another node can be elected", "for", took)
	}
	term := k.g.leads()
	if term == 0 || k.asksOthers || k.now < k.asksAt {
		return
	}
	k.asksOthers = true
	patience := k.cfg.TTL / 4
	k.asksAt = k.now + int64(patience)
	k.g.running.Go(func() {
		ctx, cancel := context.WithTimeout(k.g.halt, patience)
		defer cancel()
		can := k.g.couldElect(ctx)
		k.post(func(k *keeper) {
			k.asksOthers = false
			k.stepAside(can && k.g.stalled.Load() != 0)
		})
	})
}

// failAgain is how often a disk that goes on failing is logged.
const failAgain = time.Minute

// sayFailures logs that the log cannot be written, and that it can be again. Raft itself
// says so in a line among many.
func (k *keeper) sayFailures() {
	_, err := k.g.disk.failures()
	switch {
	case err == nil && k.failedAt != 0:
		k.failedAt = 0
		k.cfg.Log.Warn("the log can be written again")
	case err != nil && (k.failedAt == 0 || k.now-k.failedAt >= int64(failAgain)):
		k.failedAt = k.now
		k.cfg.Log.Error("the log of the cluster cannot be written: this node agrees to nothing; make room on its disk, or repair it",
			"directory", k.cfg.Storage.Dir(), "error", err)
	}
}

// recent returns how many writes have failed, and why the last one of those did that failed
// within a time, nil if none has. Where room is short, small writes succeed among others
// that fail.
func (d *disk) recent(within time.Duration) (n int64, err error) {
	now := d.now()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err == nil && now-d.failedAt >= int64(within) {
		return d.fails, nil
	}
	return d.fails, d.lastErr
}

// WriteFailures returns how many writes to this node's log have failed, and why one did in
// the last minute, nil if none has.
func (g *Group) WriteFailures() (n int64, err error) { return g.disk.recent(failAgain) }

// LogDir returns the directory of the log, "" if it is in memory.
func (g *Group) LogDir() string { return g.cfg.Storage.Dir() }

// stepAside keeps this node from taking part in raft, or lets it.
func (k *keeper) stepAside(aside bool) {
	if k.g.withdrawn.Swap(aside) == aside {
		return
	}
	//guard:stall-aside
	k.g.wire.shut(kindRaft, aside)
	k.g.trans.CloseStreams() // what it keeps open is closed
	if aside {
		k.cfg.Log.Error("this leader steps aside until its disk writes again")
	}
}

// voteTime is how long a write may take on a disk to which votes are to be written in
// time: a voter writes three times before it answers, and a candidate waits for answers
// for one election timeout at least.
const voteTime = election / 3

// tryKey is what is written to see how long that takes.
var tryKey = []byte("keystead.try")

// couldVote writes something to the disk, and reports whether that took so short a time
// that this node could vote. A disk that hangs shows it only to a writer: a follower
// may have had nothing to write for hours.
func (g *Group) couldVote(ctx context.Context) bool {
	if g.trying.Swap(true) {
		return false // the last try has not come to its end
	}
	began, wrote := g.disk.now(), make(chan bool, 1)
	g.running.Go(func() {
		defer g.trying.Store(false)
		err := g.cfg.Storage.Stable.Set(tryKey, []byte{1})
		wrote <- err == nil && time.Duration(g.disk.now()-began) <= voteTime
	})
	select {
	case ok := <-wrote:
		return ok
	case <-ctx.Done():
		return false
	}
}

// couldElect reports whether the other voters could elect one of them: those that
// answer, and whose disks write in time, are a majority.
func (g *Group) couldElect(ctx context.Context) bool {
	f := g.raft.GetConfiguration()
	if f.Error() != nil {
		return false
	}
	voters, able := 0, 0
	answers := make(chan bool, len(f.Configuration().Servers))
	for _, s := range f.Configuration().Servers {
		if s.Suffrage != raft.Voter {
			continue
		}
		voters++
		if s.ID == g.self {
			answers <- false
			continue
		}
		g.running.Go(func() {
			//guard:stall-others-write true -> false
			r := g.askServer(ctx, s, &peerv1.ProveRequest{Write: true})
			answers <- r != nil && !r.Stalled
		})
	}
	for range voters {
		if <-answers {
			able++
		}
	}
	//guard:stall-stays true
	return able > voters/2
}
