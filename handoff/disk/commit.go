package disk

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
)

// errUsed is the error of a batch that is committed for the second time.
var errUsed = errors.New("the batch was committed before")

// errOther is the error of a batch of another store.
var errOther = errors.New("the batch is one of another store")

// Commit takes a batch in. With sync it returns when this one and all before it
// are on disk; without, a crash may take the last ones that were not synced, in
// order. If it fails, the batch may be on disk or not, and the store takes nothing
// any more, but for a batch that is too large.
func (s *Store) Commit(b *Batch, sync bool) error {
	switch {
	case b.err != nil:
		return b.err
	case b.used:
		return errUsed
	case b.s != s:
		return errOther
	}
	if err := s.enter(); err != nil {
		return err
	}
	b.used = true
	done := make(chan error, 1)
	go func() {
		defer s.leave()
		defer func() {
			if r := recover(); r != nil {
				s.gate.stuck.Store(true)
				s.gate.fail(fmt.Errorf("the engine has panicked: %v", r))
				done <- s.Err()
			}
		}()
		done <- s.commit(b, sync)
	}()
	select {
	case err := <-done:
		if failed := s.Err(); failed != nil {
			return failed
		}
		return err
	case <-s.gate.failed:
		return s.Err()
	}
}

func (s *Store) commit(b *Batch, sync bool) error {
	if err := s.place(b, sync); err != nil {
		s.gate.fail(err)
		return err
	}
	s.given.Add(int64(b.b.Len()))
	if sync {
		if err := b.b.SyncWait(); err != nil {
			s.gate.fail(err)
			return err
		}
	}
	return b.b.Close()
}

// place gives the batch its place behind those before it.
func (s *Store) place(b *Batch, sync bool) error {
	s.order.Lock()
	defer s.order.Unlock()
	s.await()
	if err := s.Err(); err != nil {
		return err
	}
	//guard:disk-rounds b.round != 0 -> false
	if b.round != 0 {
		n := binary.BigEndian.AppendUint64(nil, s.rounds.Load())
		if err := b.b.Set([]byte{roundsPrefix}, n, nil); err != nil {
			return err
		}
	}
	//guard:disk-empty-syncs b.b.Empty() -> false
	if b.b.Empty() {
		if !sync {
			return nil
		}
		if err := b.b.LogData([]byte{0}, nil); err != nil { // so that what is before it is synced
			return err
		}
	}
	var err error
	if sync {
		err = s.db.ApplyNoSyncWait(b.b, pebble.Sync)
	} else {
		err = s.db.Apply(b.b, pebble.NoSync)
	}
	if err == nil && b.head != nil {
		s.head.Store(b.head)
	}
	return err
}

// await waits while the first level is so crowded that reading would suffer. The engine would wait,
// too, but for ever if it cannot read what it has to merge.
func (s *Store) await() {
	for s.crowded.Swap(false) && s.db.Metrics().Levels[0].Sublevels >= stallSublevels {
		select {
		case <-s.compacted:
			s.crowded.Store(true)
		case <-s.gate.failed:
			return
		}
	}
}

// readHead returns the head that was committed last, nil if there is none.
func (s *Store) readHead() (*Head, error) {
	b, err := s.get(headPrefix)
	if b == nil || err != nil {
		return nil, err
	}
	h := &Head{}
	if err := json.Unmarshal(b, h); err != nil {
		return nil, fmt.Errorf("%w: its head: %w", ErrDamaged, err)
	}
	return h, nil
}

// Tenures returns which processes have had the disk, in order, as it is in the store; nobody if its node ran alone.
func (s *Store) Tenures() (list []Tenure, err error) {
	if err := s.enter(); err != nil {
		return nil, err
	}
	defer s.leave()
	b, err := s.get(tenuresPrefix)
	if b == nil || err != nil {
		return nil, s.judge(err)
	}
	if err := json.Unmarshal(b, &list); err != nil {
		return nil, fmt.Errorf("%w: the list of those that have had it: %w", ErrDamaged, err)
	}
	return list, nil
}

func (s *Store) readRounds() (uint64, error) {
	b, err := s.get(roundsPrefix)
	if b == nil || err != nil {
		return 0, err
	}
	if len(b) != 8 {
		return 0, fmt.Errorf("%w: the number of its last batch has %d bytes", ErrDamaged, len(b))
	}
	return binary.BigEndian.Uint64(b), nil
}

// get returns a copy of a value of the engine; nil if there is none.
func (s *Store) get(prefix byte) ([]byte, error) {
	v, c, err := s.db.Get([]byte{prefix})
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	b := append([]byte{}, v...)
	return b, c.Close()
}
