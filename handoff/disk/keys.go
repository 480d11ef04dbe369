package disk

import (
	"encoding/binary"
	"math"
)

// Keys of the engine, by their first byte.
const (
	headPrefix   = 'h' // the head, JSON
	entryPrefix  = 'i' // entries: bucket of the clock 8, batch 8, number 4
	roundsPrefix = 'n' // the number of the last batch that had entries
	objectPrefix = 'o' // objects: hash 8, length of the key 2, key, name

	// Of a node in a cluster.
	streamPrefix  = 's' // streams: incarnation that had the disk 8, out 1, incarnation of the peer 8, node
	tenuresPrefix = 't' // which processes have had the disk, JSON
	voidPrefix    = 'v' // stretches in which all was discarded: as entries, from whose numbers theirs are
)

// Bucket is the span of the clock, in ns, that entries are dropped by.
const Bucket = 10_000_000_000

// MaxKey bounds a key, in bytes.
const MaxKey = math.MaxUint16

const (
	objectHead = 1 + 8 + 2
	entryKey   = 1 + 8 + 8 + 4
	voidValue  = 8 + 8 + 8 // clock, after, up to
)

func appendObject(b []byte, hash uint64, key, name []byte) []byte {
	b = append(b, objectPrefix)
	b = binary.BigEndian.AppendUint64(b, hash)
	b = binary.BigEndian.AppendUint16(b, uint16(len(key)))
	return append(append(b, key...), name...)
}

// parseObject takes a key of the engine apart.
func parseObject(k []byte) (hash uint64, key, name []byte, ok bool) {
	if len(k) < objectHead || k[0] != objectPrefix {
		return 0, nil, nil, false
	}
	hash, n := binary.BigEndian.Uint64(k[1:]), int(binary.BigEndian.Uint16(k[9:]))
	if k = k[objectHead:]; len(k) < n {
		return 0, nil, nil, false
	}
	return hash, k[:n:n], k[n:], true
}

// position is the first key of the engine for objects of a hash.
func position(hash uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte{objectPrefix}, hash)
}

// behind is the first key of the engine behind the objects of a hash.
func behind(hash uint64) []byte {
	if hash == math.MaxUint64 {
		return []byte{objectPrefix + 1}
	}
	return position(hash + 1)
}

func bucketOf(clock int64) uint64 { return uint64(max(clock, 0)) / Bucket }

func bucketKey(prefix byte, bucket uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte{prefix}, bucket)
}

// appendEntry appends the key of an entry, or of another item that stands among them.
func appendEntry(b []byte, prefix byte, bucket, round uint64, n uint32) []byte {
	b = append(b, prefix)
	b = binary.BigEndian.AppendUint64(b, bucket)
	b = binary.BigEndian.AppendUint64(b, round)
	return binary.BigEndian.AppendUint32(b, n)
}
