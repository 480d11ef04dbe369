package epoch

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/keystead/keystead/internal/durably"
)

// Storage keeps the log of a raft server, its votes, its snapshots and, in one
// place with the votes, its identity.
type Storage struct {
	Logs      raft.LogStore
	Stable    raft.StableStore
	Snapshots raft.SnapshotStore
	close     func() error
	dir       string // where it lies; "" = in memory
}

// Dir returns the directory in which the storage lies, "" if it is in memory.
func (s *Storage) Dir() string { return s.dir }

// keptSnapshots are kept on disk: the newest, and one in case it is torn.
const keptSnapshots = 2

// openWait bounds the wait for another process to let go of the log.
const openWait = time.Second

// Directory is what OpenStorage makes below its directory.
const Directory = "raft"

// OpenStorage opens or makes the storage in a directory. Every entry is on disk
// (fsync) before it counts, and so are the names of the files that have it: neither bbolt
// nor the store of snapshots syncs the directories in which it makes them. The name of the
// directory itself is the caller's.
func OpenStorage(dir string) (*Storage, error) {
	dir = filepath.Join(dir, Directory)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("making the directory of the log: %w", err)
	}
	db, err := raftboltdb.New(raftboltdb.Options{
		Path:        filepath.Join(dir, "log.db"),
		BoltOptions: &bbolt.Options{Timeout: openWait, NoFreelistSync: true, FreelistType: bbolt.FreelistMapType},
	})
	if err != nil {
		return nil, cannotOpen(dir, err)
	}
	snaps, err := raft.NewFileSnapshotStoreWithLogger(dir, keptSnapshots, quiet{})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("opening the snapshots in %s: %w", dir, err), db.Close())
	}
	if err := errors.Join(durably.Names(dir), durably.Names(filepath.Dir(dir))); err != nil {
		return nil, errors.Join(fmt.Errorf("keeping the names of the log in %s: %w", dir, err), db.Close())
	}
	return &Storage{Logs: db, Stable: db, Snapshots: namedSnapshots{snaps, dir}, close: db.Close, dir: dir}, nil
}

// cannotOpen says what to do about a log that cannot be opened.
func cannotOpen(dir string, err error) error {
	switch {
	case errors.Is(err, bolterrors.ErrTimeout):
		return fmt.Errorf("opening the log in %s: %w: another process has it open", dir, err)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("opening the log in %s: %w: give the user of this process the right to write there, or choose another --data-dir", dir, err)
	case damaged(err):
		return fmt.Errorf("opening the log in %s: %w: it is damaged, and this node cannot go on from it; if other nodes have the cluster, move the data directory away and start with --join: the node joins anew, and is sent what it needs", dir, err)
	}
	return fmt.Errorf("opening the log in %s: %w: see --data-dir", dir, err)
}

// damaged reports whether a file is no database, or a torn one. For one that is cut short,
// bbolt has no error that could be compared.
func damaged(err error) bool {
	for _, known := range []error{bolterrors.ErrInvalid, bolterrors.ErrChecksum, bolterrors.ErrVersionMismatch} {
		if errors.Is(err, known) {
			return true
		}
	}
	return strings.Contains(err.Error(), "file size too small")
}

// Close closes the storage of a group that was not started.
func (s *Storage) Close() error { return s.close() }

// Empty says that nothing has been written to the log yet.
func (s *Storage) Empty() (bool, error) {
	exists, err := raft.HasExistingState(s.Logs, s.Stable, s.Snapshots)
	return !exists, err
}

// Names under which the storage keeps its identity.
var (
	idKey      = []byte("keystead.raft-id")
	clusterKey = []byte("keystead.cluster")
	uidKey     = []byte("keystead.uid")
)

// Identity reads the identity of the storage, and draws it if it is new.
func (s *Storage) Identity(cluster, node string) (raft.ServerID, error) {
	id, err := s.get(idKey)
	if err != nil {
		return "", err
	}
	if id == "" {
		id = node + "/" + draw()
		if err := errors.Join(s.Stable.Set(clusterKey, []byte(cluster)), s.Stable.Set(idKey, []byte(id))); err != nil {
			return "", fmt.Errorf("keeping the identity: %w", err)
		}
		return raft.ServerID(id), nil
	}
	was, err := s.get(clusterKey)
	if err != nil {
		return "", err
	}
	if was != cluster {
		return "", fmt.Errorf("the data directory belongs to the cluster %q, not to %q: use that --cluster-id, or another --data-dir", was, cluster)
	}
	if owner := nodeOf(raft.ServerID(id)); owner != node {
		return "", fmt.Errorf("the data directory belongs to the node %q, not to %q: use that --id, or another --data-dir", owner, node)
	}
	return raft.ServerID(id), s.checkComplete()
}

// UID returns the cluster that the storage belongs to, as it was drawn when the cluster
// was made; "" = it belongs to none yet. What was drawn and has no log is the number of no
// cluster: the node died before it made it.
func (s *Storage) UID() (string, error) {
	if empty, err := s.Empty(); empty || //guard:drawn-and-crashed
		err != nil {
		return "", err
	}
	return s.get(uidKey)
}

func (s *Storage) setUID(uid string) error {
	if err := s.Stable.Set(uidKey, []byte(uid)); err != nil {
		return fmt.Errorf("keeping whose the log is: %w", err)
	}
	return nil
}

// checkComplete looks for a log whose beginning is neither there nor in a snapshot.
func (s *Storage) checkComplete() error {
	first, err := s.Logs.FirstIndex()
	if err != nil {
		return fmt.Errorf("reading the log: %w", err)
	}
	snaps, err := s.Snapshots.List()
	if err != nil {
		return fmt.Errorf("reading the snapshots: %w", err)
	}
	if first > 1 && len(snaps) == 0 {
		return fmt.Errorf("the log begins at entry %d and there is no snapshot of what came before: restore the snapshots, or move the data directory away and let the node join anew", first)
	}
	return nil
}

func (s *Storage) get(key []byte) (string, error) {
	b, err := s.Stable.Get(key)
	if err != nil && !strings.Contains(err.Error(), "not found") { // both stores say so, neither exports it alike
		return "", fmt.Errorf("reading the identity: %w", err)
	}
	return string(b), nil
}

// draw returns 64 random bits as text.
func draw() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// nodeOf returns the node that a raft server runs on: its identity begins with it.
func nodeOf(id raft.ServerID) string {
	if i := strings.LastIndexByte(string(id), '/'); i >= 0 {
		return string(id[:i])
	}
	return string(id)
}
