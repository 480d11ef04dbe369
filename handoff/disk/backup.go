package disk

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/keystead/keystead/handoff/disk/statefile"
)

// A backup is a file in the form of a state file: the head, and then what the engine had, each
// item as a record, in the order of keys. All is of one moment, that of the head.
//
//	"keystead backup 1\n" | head (JSON) | length of the key (varint) | key of the engine | value …
//
// Beside those of keys.go there is one key more: 'p', policies of the node. A value that does not fit
// a record goes on in records of the same key behind it.

// Errors of a backup.
var (
	ErrBackupDamaged = errors.New("the backup is damaged, or no backup")
	ErrBackupNewer   = errors.New("the backup is of a newer Keystead")
)

var backupForm = statefile.Form{Word: "keystead backup ", Damaged: ErrBackupDamaged, Newer: ErrBackupNewer}

const (
	policyPrefix = 'p'
	// readAtOnce is how many bytes a backup reads at a time: then others get their turn.
	readAtOnce = 256 << 10
)

// Backup writes all that the snapshot has, as ReadBackup and Restore read it, and the policies. It
// needs 3 MiB of memory.
func (p *Snapshot) Backup(to io.Writer, policies []byte) error {
	if p.head == nil {
		return errors.New("nothing was written to the disk yet")
	}
	w, err := backupForm.NewWriter(to, p.head)
	if err != nil {
		return err
	}
	put := func(k, v []byte) error {
		for {
			p.buf = append(binary.AppendUvarint(p.buf[:0], uint64(len(k))), k...)
			//guard:backup-in-pieces min(len(v), statefile.MaxRecord-len(p.buf)) -> len(v)
			n := min(len(v), statefile.MaxRecord-len(p.buf))
			p.buf = append(p.buf, v[:n]...)
			if v = v[n:]; len(v) == 0 {
				return w.Put(p.buf)
			}
			if err := w.Put(p.buf); err != nil {
				return err
			}
		}
	}
	if len(policies) > 0 {
		if err := put([]byte{policyPrefix}, policies); err != nil {
			return err
		}
	}
	for more := true; more; {
		if more, err = p.Read(readAtOnce, put); err != nil {
			return err
		}
	}
	return w.End()
}

// Backup is what ReadBackup reads into. What the functions get is valid until they return.
type Backup struct {
	Head     Head // is there before the rest
	Policies func(b []byte) error
	Object   func(hash uint64, key, name, value []byte) error
	Entry    func(clock int64, entry []byte) error
	item     func(k, v []byte) error
}

// ReadBackup reads a backup through. All that was read counts only if the error is nil: it is
// ErrBackupDamaged or ErrBackupNewer, that of the file, or of a function.
func ReadBackup(from io.Reader, b *Backup) error {
	var key, value []byte // of the item that may go on
	err := backupForm.Read(from, &b.Head, func(record []byte) error {
		n, at := binary.Uvarint(record)
		if at <= 0 || n == 0 || n > uint64(len(record)-at) {
			return fmt.Errorf("%w: a key is longer than its record", ErrBackupDamaged)
		}
		k, v := record[at:at+int(n)], record[at+int(n):]
		if bytes.Equal(k, key) {
			value = append(value, v...)
			return nil
		}
		err := b.one(key, value)
		key, value = append(key[:0], k...), append(value[:0], v...)
		return err
	})
	if err != nil {
		return err
	}
	return b.one(key, value)
}

// one takes an item in; one without a key is none.
func (b *Backup) one(k, v []byte) error {
	if len(k) == 0 {
		return nil
	}
	unknown := unknownItem(k[0])
	switch k[0] {
	case policyPrefix:
		if b.Policies == nil {
			return nil
		}
		return b.Policies(v)
	case objectPrefix:
		hash, key, name, ok := parseObject(k)
		if !ok {
			return unknown
		}
		if b.Object != nil {
			if err := b.Object(hash, key, name, v); err != nil {
				return err
			}
		}
	case entryPrefix:
		clock, ok := parseEntry(k, v)
		if !ok {
			return unknown
		}
		if b.Entry != nil {
			if err := b.Entry(clock, v[8:]); err != nil {
				return err
			}
		}
	case roundsPrefix:
		if len(k) != 1 || len(v) != 8 {
			return unknown
		}
	case voidPrefix:
		if _, ok := parseEntry(k, v); !ok || len(v) != voidValue {
			return unknown
		}
	case streamPrefix, tenuresPrefix: // no process has had the store that is made of it
		return nil
	default:
		return unknown
	}
	if b.item != nil {
		return b.item(k, v)
	}
	return nil
}

// unknownItem is the kind of an item that is none.
type unknownItem byte

func (u unknownItem) Error() string {
	return fmt.Sprintf("%v: it has something of a kind %q that this program does not know", ErrBackupDamaged, byte(u))
}

func (unknownItem) Unwrap() error { return ErrBackupDamaged }

// RestoreBackup makes a store in a directory that is empty or missing, of a backup. head changes its
// head. The store counts when it returns nil: until then it has no head.
func RestoreBackup(from io.Reader, dir string, o Options, head func(Head) Head, policies func([]byte) error) (err error) {
	s, err := Open(dir, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if _, used := s.Head(); used {
		return fmt.Errorf("%s has a store already", dir)
	}
	batch := s.NewBatch()
	b := &Backup{Policies: policies, item: func(k, v []byte) error {
		batch.fault(batch.b.Set(k, v, nil))
		if batch.Size() < maxCommit {
			return batch.err
		}
		err := s.Commit(batch, false)
		batch = s.NewBatch()
		return err
	}}
	if err := ReadBackup(from, b); err != nil {
		return err
	}
	batch.SetHead(head(b.Head))
	return s.Commit(batch, true)
}

// ElapsedVersions is how far the versions of a shard may have risen in a time: no shard makes more
// than a change each nanosecond.
func ElapsedVersions(d time.Duration) uint64 { return uint64(max(d, 0)) }

// snapshotPatience bounds how long a snapshot waits for a round.
const snapshotPatience = 10 * time.Second

type snapshotAsked struct {
	p   *Snapshot
	err error
}
