package node

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/keystead/keystead/handoff/disk"
	"github.com/keystead/keystead/handoff/disk/statefile"
	"github.com/keystead/keystead/handoff/record"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/ring/epoch"
)

// Errors of a data directory that is read while no node runs on it.
var (
	// ErrInUse is the error of one that a node runs on.
	ErrInUse = errors.New("is in use by a running node: stop that first, or ask it while it runs (`keystead key`, `keystead objects`, `keystead status`)")
	// ErrNoDisk is the error of one without a store.
	ErrNoDisk = errors.New("has no store on disk")

	// Those of a store.
	ErrDiskDamaged, ErrDiskNewer, ErrDiskInUse = disk.ErrDamaged, disk.ErrNewer, disk.ErrInUse
)

// Offline is what a data directory has on disk, for reading. Nothing in it changes.
type Offline struct {
	Dir    string         // of all its stores
	Stores []OfflineStore // in the order of their numbers
	// Unused says why a node that starts here would not go on from the store that counts; "" = it would.
	Unused string
	// OfCluster says that it is of a node of a cluster: an older store than the one that counts must not be used there, for
	// the cluster would take it for that one.
	OfCluster bool
	release   func() error
}

// OfflineStore is one of the stores of a data directory. Each but the one that counts is of no use:
// the next start removes it.
type OfflineStore struct {
	Number int
	Dir    string
	Counts bool      // a node would go on from it
	Whole  bool      // it has a head: it had taken all that its process held
	Head   disk.Head // if it is whole
	// Had are the processes that have had the disk, in order, of a node of a cluster.
	Had []disk.Tenure
	Err error // why it cannot be opened; nothing above this one counts, and no node starts
}

// OpenOffline looks at a data directory, and keeps nodes from starting there until Close. The error
// is ErrInUse, ErrNoDisk, or that of the file system.
func OpenOffline(dir string) (*Offline, error) {
	if info, err := os.Stat(dir); err != nil {
		return nil, fmt.Errorf("the data directory cannot be read: %w", err)
	} else if !info.IsDir() {
		return nil, fmt.Errorf("%s is no directory: name the --data-dir of a node", dir)
	}
	release, err := shareDir(dir)
	if err != nil {
		return nil, err
	}
	_, noLog := os.Stat(filepath.Join(dir, epoch.Directory))
	o := &Offline{Dir: filepath.Join(dir, diskDirectory), OfCluster: noLog == nil, release: release}
	if err := cmp.Or(neverHalfRestored(dir), o.find(dir)); err != nil {
		return nil, errors.Join(err, release())
	}
	return o, nil
}

// Close lets nodes start again.
func (o *Offline) Close() error { return o.release() }

func (o *Offline) find(dir string) error {
	numbers, err := disk.Stores(vfs.Default, o.Dir)
	if err != nil {
		return fmt.Errorf("the data directory cannot be read: %w", err)
	}
	if len(numbers) == 0 {
		return noDisk(dir)
	}
	for _, n := range numbers {
		o.Stores = append(o.Stores, o.look(n))
	}
	for i, s := range slices.Backward(o.Stores) {
		if s.Err != nil {
			break // no node starts here
		}
		if s.Whole {
			o.Stores[i].Counts = true
			break
		}
	}
	if s := o.Counting(); s != nil {
		o.Unused, err = unused(dir, s.Head)
	}
	return err
}

func (o *Offline) look(number int) OfflineStore {
	x := OfflineStore{Number: number, Dir: disk.StoreDir(o.Dir, number)}
	s, err := disk.Open(x.Dir, disk.Options{Reader: true})
	if err != nil {
		x.Err = err
		return x
	}
	defer s.Close()
	x.Head, x.Whole = s.Head()
	x.Had, x.Err = s.Tenures()
	return x
}

// noDisk says what a data directory without a store is.
func noDisk(dir string) error {
	if _, err := os.Stat(filepath.Join(dir, epoch.Directory)); err == nil {
		return fmt.Errorf("%s %w: it is of a node of a cluster that has kept none: its state is with its standby, and in a state file after an orderly stop of all", dir, ErrNoDisk)
	}
	if _, found, err := statefile.Peek(dir); found && err == nil {
		return fmt.Errorf("%s %w: its node has kept its state in the file %q at an orderly stop, and goes on from that", dir, ErrNoDisk, statefile.Name)
	}
	if _, err := os.Stat(epochPath(dir)); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s %w, and no node has served there: name the --data-dir of one", dir, ErrNoDisk)
	}
	return fmt.Errorf("%s %w: its node ran with --durability none", dir, ErrNoDisk)
}

// unused says why a node that starts in dir would not go on from its store: see Node.resume.
func unused(dir string, h disk.Head) (string, error) {
	served, err := readEpochFile(epochPath(dir))
	if err != nil {
		return "", err
	}
	file, found, err := statefile.Peek(dir)
	switch {
	case err != nil:
		return "", err
	case found && h.Cluster != "" && file.Epoch < h.Epoch:
		return "", nil // it is put aside: see cluster.laterOf
	case found:
		return fmt.Sprintf("the file %q is of a later process, which has stopped in order: a node goes on from that", statefile.Name), nil
	case h.Cluster == "" && !served.Disk && h.Epoch < served.Epoch:
		return fmt.Sprintf("a process has served since, in epoch %d, that did not keep a store: a node begins anew", served.Epoch), nil
	}
	return "", nil
}

// Counting returns the store that counts, nil if none does.
func (o *Offline) Counting() *OfflineStore {
	for i := range o.Stores {
		if o.Stores[i].Counts {
			return &o.Stores[i]
		}
	}
	return nil
}

// Lossless reports whether a whole store has all that its process had answered.
func (x *OfflineStore) Lossless() bool {
	s, err := disk.ParseSettings(x.Head.Durability, 0)
	return x.Head.Clean || err == nil && s.Whole()
}

// Items is what a store is read into.
type Items struct {
	// Object gets each object, with its size in bytes. All of a key follow each other.
	Object func(r *owner.Record, size int) error
	// Entry gets each entry of the log of request ids. nil = they are left out.
	Entry func(r *owner.Record, size int) error
}

// Read decodes all that a store has. The error is disk.ErrDamaged if something is not what a node writes.
func (x *OfflineStore) Read(ctx context.Context, to Items) error {
	s, err := disk.Open(x.Dir, disk.Options{Reader: true})
	if err != nil {
		return err
	}
	defer s.Close()
	return readStore(ctx, s, to)
}

// Verify reads all of a store: checksums, the order of its tables, and each object and entry. progress
// is called with the part that is done.
func (x *OfflineStore) Verify(ctx context.Context, progress func(part float64)) (disk.Report, error) {
	s, err := disk.Open(x.Dir, disk.Options{Reader: true})
	if err != nil {
		return disk.Report{}, err
	}
	defer s.Close()
	began := time.Now()
	r, err := s.Verify(ctx, func(done, all int64) { progress(float64(done) / float64(max(all, 1)) * checksumsPart) })
	if err != nil {
		return r, err
	}
	done := int64(0)
	count := func(*owner.Record, int) error {
		if done++; done%1024 == 0 {
			progress(checksumsPart + (1-checksumsPart)*float64(done)/float64(r.Objects+r.Entries))
		}
		return nil
	}
	err = readStore(ctx, s, Items{Object: count, Entry: count})
	r.Took = time.Since(began)
	return r, err
}

// checksumsPart is about what part of the time of a verification checksums take.
const checksumsPart = 0.7

func readStore(ctx context.Context, s *disk.Store, to Items) error {
	var r owner.Record
	err := s.Objects(func(hash uint64, key, name, value []byte) error {
		if err := decodeObject(hash, key, name, value, &r); err != nil {
			return err
		}
		if err := to.Object(&r, len(key)+len(name)+len(value)); err != nil {
			return err
		}
		return ctx.Err()
	})
	if err != nil || to.Entry == nil {
		return err
	}
	return s.Entries(0, func(clock int64, entry []byte) error {
		if err := decodeEntry(clock, entry, &r); err != nil {
			return err
		}
		if err := to.Entry(&r, len(entry)); err != nil {
			return err
		}
		return ctx.Err()
	})
}

// decodeObject reads an object of a store, and checks what can be checked.
func decodeObject(hash uint64, key, name, value []byte, r *owner.Record) error {
	damaged := func(what any) error {
		return fmt.Errorf("%w: the object %q of the key %q: %v", disk.ErrDamaged, name, key, what)
	}
	if len(value) < 8 {
		return damaged("it is too short")
	}
	now := int64(binary.BigEndian.Uint64(value))
	if err := record.Decode(value[8:], now, r); err != nil {
		return damaged(err)
	}
	switch {
	//guard:offline-decodes string(r.Key) != string(key) || string(r.Name) != string(name) -> false
	case string(r.Key) != string(key) || string(r.Name) != string(name):
		return damaged(fmt.Sprintf("it says that it is %q of %q", r.Name, r.Key))
	case owner.Hash(string(key)) != hash:
		return damaged("it is kept in the place of another key")
	}
	if err := r.Validate(now); err != nil {
		return damaged(err)
	}
	return nil
}

// decodeEntry reads an entry of the log of request ids.
func decodeEntry(clock int64, entry []byte, r *owner.Record) error {
	if len(entry) < 8 {
		return fmt.Errorf("%w: an entry about request ids is too short", disk.ErrDamaged)
	}
	if err := record.DecodeIDs(entry[8:], int64(binary.BigEndian.Uint64(entry)), r); err != nil {
		return fmt.Errorf("%w: an entry about request ids, of %d on the disk's clock: %w", disk.ErrDamaged, clock, err)
	}
	return nil
}
