package disk

import (
	"errors"
	"sync"

	"github.com/cockroachdb/pebble/v2"
)

// ErrExpired is the error of a snapshot that was closed while it was read.
var ErrExpired = errors.New("the snapshot of the disk's store was given up: its reader was too slow")

// Snapshot is what a store was at one moment. What it has stays on disk until Close, also
// what was changed or deleted since: do not keep it for long. The end of the store ends it.
type Snapshot struct {
	s    *Store
	head *Head

	mu   sync.Mutex // guards what follows
	snap *pebble.Snapshot
	next []byte // where to read on
	buf  []byte
}

// Snapshot returns what the store is now. It costs nothing but what it keeps.
func (s *Store) Snapshot() (*Snapshot, error) {
	if err := s.enter(); err != nil {
		return nil, err
	}
	defer s.leave()
	p := &Snapshot{s: s, snap: s.db.NewSnapshot(), head: s.head.Load(), next: []byte{headPrefix + 1}}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.snapshots == nil {
		s.snapshots = map[*Snapshot]struct{}{}
	}
	s.snapshots[p] = struct{}{}
	return p, nil
}

// Close gives the snapshot up. It may be called more than once, and while it is read.
func (p *Snapshot) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.snap != nil {
		_ = p.snap.Close()
		p.snap = nil
	}
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	delete(p.s.snapshots, p)
}

// closeSnapshots ends those that are read. No call uses the engine any more.
func (s *Store) closeSnapshots() {
	s.mu.Lock()
	var open []*Snapshot
	for p := range s.snapshots {
		open = append(open, p)
	}
	s.mu.Unlock()
	for _, p := range open {
		p.Close()
	}
}

// Read calls f with what follows what was read before, until that has so many bytes. more is
// false at the end. What f gets is valid until it returns; f must not call the snapshot.
func (p *Snapshot) Read(bytes int, f func(k, v []byte) error) (more bool, err error) {
	if err := p.s.enter(); err != nil {
		return false, err
	}
	defer p.s.leave()
	p.mu.Lock()
	defer p.mu.Unlock()
	//guard:disk-snapshot-expires
	if p.snap == nil {
		return false, ErrExpired
	}
	theirs := false
	err = p.s.protect(&theirs, func() error {
		it, err := p.snap.NewIter(&pebble.IterOptions{LowerBound: p.next})
		if err != nil {
			return err
		}
		defer func() { _ = it.Close() }()
		for ok := it.First(); ok; ok = it.Next() {
			if more = bytes <= 0; more {
				p.next = append(p.next[:0], it.Key()...)
				return nil
			}
			v, err := it.ValueAndErr()
			if err != nil {
				return err
			}
			theirs = true
			if err := f(it.Key(), v); err != nil {
				return err
			}
			theirs = false
			bytes -= len(it.Key()) + len(v)
		}
		return it.Error()
	})
	if theirs {
		return false, err
	}
	return more, p.s.judge(err)
}
