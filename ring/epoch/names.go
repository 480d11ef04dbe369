package epoch

import (
	"path/filepath"

	"github.com/hashicorp/raft"

	"github.com/keystead/keystead/internal/durably"
)

// namedSnapshots are the snapshots of a directory, which raft's own store makes: that syncs
// their files and the name of each snapshot, but not the names of the files in it. What raft
// then removes from its log would be nowhere after a power cut.
type namedSnapshots struct {
	raft.SnapshotStore
	dir string
}

// Create implements raft.SnapshotStore.
func (s namedSnapshots) Create(v raft.SnapshotVersion, index, term uint64, c raft.Configuration, at uint64, t raft.Transport) (raft.SnapshotSink, error) {
	sink, err := s.SnapshotStore.Create(v, index, term, c, at, t)
	if err != nil {
		return nil, err
	}
	return namedSink{sink, filepath.Join(s.dir, "snapshots", sink.ID())}, nil
}

// namedSink is a snapshot that is being written.
type namedSink struct {
	raft.SnapshotSink
	dir string
}

// Close implements raft.SnapshotSink.
func (s namedSink) Close() error {
	if err := s.SnapshotSink.Close(); err != nil {
		return err
	}
	return durably.Names(s.dir)
}
