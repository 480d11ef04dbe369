package disk

import (
	"encoding/binary"
	"encoding/json"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
)

// MaxBatch bounds a batch, in bytes: all that a shard has changed in a round goes into one, registers of 60 KB as well. One
// of more than half a memtable goes around it: a round is best committed in parts of about a MiB.
const MaxBatch = 1 << 30

// Head says what a store holds. It is committed with a batch, and so of the same moment.
type Head struct {
	// Cluster and UID name the cluster; both are empty for a node that runs alone.
	Cluster string `json:"cluster,omitempty"`
	UID     string `json:"uid,omitempty"`
	Node    string `json:"node"`
	// Incarnation is that of the process that wrote it; 0 for a node alone.
	Incarnation uint64 `json:"incarnation,omitempty"`
	// Epoch is the last one under which the process acted.
	Epoch uint64 `json:"epoch"`
	// Clean says that the process has ended in order: nothing came after this batch.
	Clean bool `json:"clean"`
	// Versions is the greatest version of an object that the process knew of.
	Versions uint64 `json:"versions,omitempty"`
	// Clock is the clock of the disk at the batch, ns.
	Clock int64 `json:"clock_ns"`
	// Round counts the rounds.
	Round uint64 `json:"round"`
	// Written is the time of day, in ns since 1970, for people.
	Written int64 `json:"written_unix_ns"`
	// Durability is the setting under which it was written.
	Durability string `json:"durability,omitempty"`
	// Unknown is how long ago the request ids begin that it has, in ns; 0 = it has all that count.
	Unknown int64 `json:"unknown_ns,omitempty"`
	// Lost is the epoch of a loss that answers name still, and LostLeft for how long, ns.
	Lost     uint64 `json:"lost_epoch,omitempty"`
	LostLeft int64  `json:"lost_left_ns,omitempty"`
	// LostSince is the time of day of the backup since which it was lost, in ns since 1970; 0 = it was lost
	// in another way.
	LostSince int64 `json:"lost_since_unix_ns,omitempty"`
	// Restored is the time of day of the backup that the store was made of, in ns since 1970: what was
	// decided since is lost. 0 = it was not, or its process has gone on since.
	Restored int64 `json:"restored_unix_ns,omitempty"`
	// Window is for how long request ids are kept, in ns, if a cluster has agreed on it; 0 = as the process is told.
	Window int64 `json:"id_window_ns,omitempty"`
	// Version is that of the program, for people.
	Version string `json:"version,omitempty"`
}

// Batch is what is committed at once: all of it or nothing is there after a crash. What comes later
// in a batch counts. It is for one goroutine, and for one Commit.
type Batch struct {
	s       *Store
	b       *pebble.Batch
	round   uint64
	entries uint32
	head    *Head
	key     []byte
	err     error
	used    bool
}

// NewBatch returns an empty batch.
func (s *Store) NewBatch() *Batch {
	b := &Batch{s: s}
	if s.reader {
		b.err = ErrReader
		return b
	}
	b.b = s.db.NewBatch()
	return b
}

// Put sets an object. The key has at most MaxKey bytes; key, name and value are copied.
func (b *Batch) Put(hash uint64, key, name, value []byte) {
	if len(key) > MaxKey {
		b.fault(fmt.Errorf("a key of %d bytes: a store takes at most %d", len(key), MaxKey))
	}
	if b.room(objectHead + len(key) + len(name) + len(value)) {
		b.key = appendObject(b.key[:0], hash, key, name)
		b.fault(b.b.Set(b.key, value, nil))
	}
}

// Delete removes an object, if there is one.
func (b *Batch) Delete(hash uint64, key, name []byte) {
	if len(key) <= MaxKey && b.room(objectHead+len(key)+len(name)) {
		b.key = appendObject(b.key[:0], hash, key, name)
		b.fault(b.b.Delete(b.key, nil))
	}
}

// Log appends an entry of a moment of the disk's clock.
func (b *Batch) Log(clock int64, entry []byte) {
	if !b.room(entryKey + 8 + len(entry)) {
		return
	}
	n := b.number()
	b.key = appendEntry(b.key[:0], entryPrefix, bucketOf(clock), b.round, n)
	op := b.b.SetDeferred(len(b.key), 8+len(entry))
	copy(op.Key, b.key)
	binary.BigEndian.PutUint64(op.Value, uint64(clock))
	copy(op.Value[8:], entry)
	b.fault(op.Finish())
}

// Void says that all entries before this one that are about objects of a stretch, as in DeleteRange, are void. The moment
// is not before theirs: it is dropped with them, or later.
func (b *Batch) Void(clock int64, after, upTo uint64) {
	if !b.room(entryKey + voidValue) {
		return
	}
	n := b.number()
	b.key = appendEntry(b.key[:0], voidPrefix, bucketOf(clock), b.round, n)
	v := binary.BigEndian.AppendUint64(nil, uint64(clock))
	v = binary.BigEndian.AppendUint64(v, after)
	b.fault(b.b.Set(b.key, binary.BigEndian.AppendUint64(v, upTo), nil))
}

// number gives the next entry its number in the order of all.
func (b *Batch) number() uint32 {
	if b.round == 0 {
		b.round = b.s.rounds.Add(1)
	}
	b.entries++
	return b.entries - 1
}

// DropLog removes the entries whose ten seconds had ended before the moment.
func (b *Batch) DropLog(before int64) {
	if b.room(64) {
		b.fault(b.b.DeleteRange(bucketKey(entryPrefix, 0), bucketKey(entryPrefix, bucketOf(before)), nil))
		b.fault(b.b.DeleteRange(bucketKey(voidPrefix, 0), bucketKey(voidPrefix, bucketOf(before)), nil))
	}
}

// DeleteRange removes the objects behind after, up to and including upTo, around the end of the
// space of hashes. All of them if the two are the same.
func (b *Batch) DeleteRange(after, upTo uint64) {
	if !b.room(64) {
		return
	}
	switch {
	case after == upTo:
		b.fault(b.b.DeleteRange(position(0), []byte{objectPrefix + 1}, nil))
	case after < upTo:
		b.fault(b.b.DeleteRange(behind(after), behind(upTo), nil))
	default:
		b.fault(b.b.DeleteRange(position(0), behind(upTo), nil))
		//guard:disk-range-wraps first[0] == objectPrefix -> false
		if first := behind(after); first[0] == objectPrefix {
			b.fault(b.b.DeleteRange(first, []byte{objectPrefix + 1}, nil))
		}
	}
}

// SetHead sets the head of the store.
func (b *Batch) SetHead(h Head) {
	j, err := json.Marshal(h)
	if b.fault(err); b.room(1 + len(j)) {
		b.head = &h
		b.fault(b.b.Set([]byte{headPrefix}, j, nil))
	}
}

// SetTenures sets which processes have had the disk.
func (b *Batch) SetTenures(list []Tenure) {
	j, err := json.Marshal(list)
	if b.fault(err); b.room(1 + len(j)) {
		b.fault(b.b.Set([]byte{tenuresPrefix}, j, nil))
	}
}

// Size is the size of the batch, in bytes.
func (b *Batch) Size() int {
	if b.b == nil {
		return 0
	}
	return b.b.Len()
}

// room reports whether the batch takes n bytes more. The first error is that of Commit.
func (b *Batch) room(n int) bool {
	if b.err == nil && b.b.Len()+n > b.s.maxBatch {
		b.err = fmt.Errorf("a batch of more than %d MiB", b.s.maxBatch>>20)
	}
	return b.err == nil
}

func (b *Batch) fault(err error) {
	if b.err == nil {
		b.err = err
	}
}
