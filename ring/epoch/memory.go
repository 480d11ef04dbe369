package epoch

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/hashicorp/raft"
)

// MemoryStorage keeps everything in memory. A server that starts with an
// empty one is new.
func MemoryStorage() *Storage {
	s := raft.NewInmemStore()
	return &Storage{Logs: s, Stable: s, Snapshots: &memorySnapshots{}, close: func() error { return nil }}
}

// memorySnapshots keeps as many snapshots as a disk. Unlike raft's own store in memory it
// shows none that is not whole: a leader would send it.
type memorySnapshots struct {
	mu   sync.Mutex
	kept []*memorySnapshot // guarded by mu; newest first, whole, and never written to again
}

// memorySnapshot is one that is kept, or that is being written.
type memorySnapshot struct {
	in   *memorySnapshots
	meta raft.SnapshotMeta
	data bytes.Buffer
}

// Create implements raft.SnapshotStore.
func (s *memorySnapshots) Create(version raft.SnapshotVersion, index, term uint64, conf raft.Configuration, confIndex uint64, _ raft.Transport) (raft.SnapshotSink, error) {
	return &memorySnapshot{in: s, meta: raft.SnapshotMeta{
		Version: version, ID: fmt.Sprintf("%d-%d", term, index), Index: index, Term: term, Configuration: conf, ConfigurationIndex: confIndex,
	}}, nil
}

// List implements raft.SnapshotStore.
func (s *memorySnapshots) List() ([]*raft.SnapshotMeta, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []*raft.SnapshotMeta
	for _, k := range s.kept {
		meta := k.meta
		all = append(all, &meta)
	}
	return all, nil
}

// Open implements raft.SnapshotStore.
func (s *memorySnapshots) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range s.kept {
		if k.meta.ID == id {
			meta := k.meta
			return &meta, io.NopCloser(bytes.NewReader(k.data.Bytes())), nil
		}
	}
	return nil, nil, errors.New("newer snapshots than " + id + " are kept")
}

// Write implements raft.SnapshotSink.
func (s *memorySnapshot) Write(b []byte) (int, error) { return s.data.Write(b) }

// Close implements raft.SnapshotSink: the snapshot is whole.
func (s *memorySnapshot) Close() error {
	s.in.mu.Lock()
	defer s.in.mu.Unlock()
	s.meta.Size = int64(s.data.Len())
	s.in.kept = append(s.in.kept, s)
	slices.SortStableFunc(s.in.kept, func(a, b *memorySnapshot) int {
		return cmp.Or(cmp.Compare(b.meta.Term, a.meta.Term), cmp.Compare(b.meta.Index, a.meta.Index))
	})
	s.in.kept = s.in.kept[:min(len(s.in.kept), keptSnapshots)]
	return nil
}

// ID implements raft.SnapshotSink.
func (s *memorySnapshot) ID() string { return s.meta.ID }

// Cancel implements raft.SnapshotSink.
func (*memorySnapshot) Cancel() error { return nil }
