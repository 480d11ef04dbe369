package ring

import (
	"encoding/binary"

	"github.com/cespare/xxhash/v2"
)

// MaxParts is how many parts a hot object may be split into.
const MaxParts = 64

// PartOf returns the part of a split object that an operation with a request id goes to,
// of so many. Clients and nodes compute it alike.
func PartOf(clientHi, clientLo, sequence uint64, parts int) int {
	var b [24]byte
	binary.BigEndian.PutUint64(b[:], clientHi)
	binary.BigEndian.PutUint64(b[8:], clientLo)
	binary.BigEndian.PutUint64(b[16:], sequence)
	return int(xxhash.Sum64(b[:]) % uint64(parts))
}
