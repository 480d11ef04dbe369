package disk

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// Objects calls f with every object, in the order of their hashes; all of a key follow each other.
// What f gets is valid until it returns. It stops at the first error, and returns it.
func (s *Store) Objects(f func(hash uint64, key, name, value []byte) error) error {
	return s.scan([]byte{objectPrefix}, []byte{objectPrefix + 1}, func(k, v []byte) (error, error) {
		hash, key, name, ok := parseObject(k)
		if !ok {
			return nil, fmt.Errorf("%w: the key %x is not one of an object", ErrDamaged, k)
		}
		return f(hash, key, name, v), nil
	})
}

// Entries calls f with every entry of the moment since or later, in the order of their ten
// seconds, and then in that in which they were appended. Those that are void are among them.
func (s *Store) Entries(since int64, f func(clock int64, entry []byte) error) error {
	return s.entries(since, func(_ place, clock int64, entry []byte) error { return f(clock, entry) })
}

// place is where an entry stands among all that were appended.
type place struct {
	round uint64 // its batch
	n     uint32
}

func (p place) before(q place) bool { return p.round < q.round || p.round == q.round && p.n < q.n }

func placeOf(k []byte) place {
	return place{binary.BigEndian.Uint64(k[9:]), binary.BigEndian.Uint32(k[17:])}
}

func (s *Store) entries(since int64, f func(at place, clock int64, entry []byte) error) error {
	return s.scan(bucketKey(entryPrefix, bucketOf(since)), []byte{entryPrefix + 1}, func(k, v []byte) (error, error) {
		clock, ok := parseEntry(k, v)
		if !ok {
			return nil, fmt.Errorf("%w: the key %x is not one of an entry", ErrDamaged, k)
		}
		if clock < since {
			return nil, nil
		}
		return f(placeOf(k), clock, v[8:]), nil
	})
}

// voids returns which entries are void.
func (s *Store) voids() (*voids, error) {
	var all voids
	err := s.scan([]byte{voidPrefix}, []byte{voidPrefix + 1}, func(k, v []byte) (error, error) {
		if _, ok := parseEntry(k, v); !ok || len(v) != voidValue {
			return nil, fmt.Errorf("%w: the key %x is not one of a stretch", ErrDamaged, k)
		}
		all.add(binary.BigEndian.Uint64(v[8:]), binary.BigEndian.Uint64(v[16:]), placeOf(k))
		return nil, nil
	})
	all.prepare()
	return &all, err
}

func parseEntry(k, v []byte) (clock int64, ok bool) {
	if len(k) != entryKey || len(v) < 8 {
		return 0, false
	}
	clock = int64(binary.BigEndian.Uint64(v))
	return clock, bucketOf(clock) == binary.BigEndian.Uint64(k[1:])
}

// scan calls f with what lies between two keys of the engine. The first error of f
// is its caller's, the second is about the store.
func (s *Store) scan(from, to []byte, f func(k, v []byte) (theirs, ours error)) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	theirs := false
	err := s.protect(&theirs, func() error {
		it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: from, UpperBound: to})
		if err != nil {
			return err
		}
		defer func() { _ = it.Close() }()
		for ok := it.First(); ok; ok = it.Next() {
			if err := s.stopping(); err != nil {
				return err
			}
			v, err := it.ValueAndErr()
			if err != nil {
				return err
			}
			theirs = true
			err, ours := f(it.Key(), v)
			if err != nil {
				return err
			}
			if theirs = false; ours != nil {
				return ours
			}
		}
		return it.Error()
	})
	if theirs {
		return err
	}
	return s.judge(err)
}

// protect runs f, and takes a panic of the engine for damage; one of a caller's function goes on.
func (s *Store) protect(theirs *bool, f func() error) (err error) {
	defer func() {
		if *theirs {
			return
		}
		if r := recover(); r != nil {
			s.gate.stuck.Store(true)
			err = fmt.Errorf("%w: the engine has panicked: %v", ErrDamaged, r)
		}
	}()
	return f()
}

// stopping is nil as long as the store goes on.
func (s *Store) stopping() error {
	if s.gate.ending.Load() && s.Err() == nil {
		return ErrClosed
	}
	return s.Err()
}

// Report says what Verify has read.
type Report struct {
	Head      *Head         // nil: nobody has written to the store
	Objects   int64         // that are there
	Entries   int64         // of the log of request ids
	Bytes     int64         // of their keys and values
	Tables    int64         // tables on disk
	DiskBytes int64         // bytes on disk
	Took      time.Duration // for all of it
}

// Verify reads everything and checks what can be checked: the checksum of every block, the order of
// the tables, and that keys and values look like ours. The error is that of the first damage. progress,
// if there is one, is called now and then with bytes, about.
func (s *Store) Verify(ctx context.Context, progress func(done, all int64)) (r Report, err error) {
	begin := time.Now()
	if progress == nil {
		progress = func(int64, int64) {}
	}
	if err := s.enter(); err != nil {
		return r, err
	}
	defer s.leave()
	r.Head, err = s.readHead()
	if err != nil {
		return r, s.judge(err)
	}
	m := s.db.Metrics()
	r.DiskBytes = int64(m.DiskSpaceUsage())
	for _, l := range m.Levels {
		r.Tables += l.TablesCount
	}
	if err := s.guarded(func() error { return s.db.CheckLevels(&pebble.CheckLevelsStats{}) }); err != nil {
		return r, s.judge(err)
	}
	progress(r.DiskBytes/2, r.DiskBytes)
	_, verr := s.voids()
	_, serr := s.Streams()
	_, terr := s.Tenures()
	if err := errors.Join(verr, serr, terr); err != nil {
		return r, err
	}
	err = s.Objects(func(hash uint64, key, name, value []byte) error {
		if len(value) < 8 {
			return fmt.Errorf("%w: the value of an object at %x has %d bytes", ErrDamaged, hash, len(value))
		}
		r.Bytes += int64(objectHead + len(key) + len(name) + len(value))
		if r.Objects++; r.Objects%4096 == 0 {
			progress(r.DiskBytes/2+int64(float64(hash)/(1<<64)*float64(r.DiskBytes/2)), r.DiskBytes)
		}
		return ctx.Err()
	})
	if err != nil {
		return r, err
	}
	err = s.Entries(0, func(_ int64, entry []byte) error {
		r.Entries++
		r.Bytes += int64(entryKey + 8 + len(entry))
		return ctx.Err()
	})
	progress(r.DiskBytes, r.DiskBytes)
	r.Took = time.Since(begin)
	return r, err
}
