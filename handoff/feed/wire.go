package feed

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
	"github.com/keystead/keystead/ring/epoch/serving"
)

// Version is that of what is said on a stream.
const Version = 1

// Bounds of what is sent, in bytes if nothing else is said.
const (
	// MaxRecord is the largest record. The longest queue that a lock may have is
	// below it.
	MaxRecord = 2 << 20
	// maxRecords is the largest number of records of a batch. The smallest ones
	// that are worth anything have some ten bytes.
	maxRecords = 1 << 16
	// maxRanges is the largest number of ranges of a control record.
	maxRanges = 4096
	// prefix is what stands before each record: its length.
	prefix = 4
	// rangeSize is that of a range in a control record.
	rangeSize = 16
	// control marks control records in the prefix.
	control = 1 << 31
)

// First bytes of control records.
const (
	kindBegin    = 1 // ranges follow
	kindVersions = 2 // a version follows, in 8 bytes; from level 5 of the cluster on
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// checksum returns that of a batch.
func checksum(session, first, count, epoch uint64, records []byte) uint32 {
	var head [32]byte
	for i, v := range [...]uint64{session, first, count, epoch} {
		binary.LittleEndian.PutUint64(head[8*i:], v)
	}
	return crc32.Update(crc32.Checksum(head[:], castagnoli), castagnoli, records)
}

// Why a batch is not what the source meant.
var (
	errChecksum = errors.New("the checksum is wrong")
	errLengths  = errors.New("the lengths of the records are wrong")
	errControl  = errors.New("a control record is unknown or damaged")
	errNumbers  = errors.New("the records are numbered wrongly")
)

// check reports whether a batch is whole.
func check(b *peerv1.FeedBatch) error {
	//guard:feed-checksum
	if b.Checksum != checksum(b.Session, b.First, uint64(b.Count), b.Epoch, b.Records) {
		return errChecksum
	}
	if b.Count == 0 || b.Count > maxRecords || b.First == 0 || b.First+uint64(b.Count) < b.First {
		return errNumbers
	}
	rest := b.Records
	for range b.Count {
		record, isControl, more, ok := cut(rest)
		if !ok {
			return errLengths
		}
		if isControl {
			if _, err := decodeControl(record); err != nil {
				return err
			}
		}
		rest = more
	}
	if len(rest) > 0 {
		return errLengths
	}
	return nil
}

// cut takes the first record off a batch.
func cut(b []byte) (record []byte, isControl bool, rest []byte, ok bool) {
	if len(b) < prefix {
		return nil, false, nil, false
	}
	n := binary.LittleEndian.Uint32(b)
	b = b[prefix:]
	size := int(n &^ control)
	if size > MaxRecord || size > len(b) {
		return nil, false, nil, false
	}
	return b[:size:size], n&control != 0, b[size:], true
}

// appendBegin appends the content of a control record.
func appendBegin(dst []byte, ranges []serving.Range) []byte {
	dst = append(dst, kindBegin)
	for _, r := range ranges {
		dst = binary.LittleEndian.AppendUint64(dst, r.After)
		dst = binary.LittleEndian.AppendUint64(dst, r.UpTo)
	}
	return dst
}

// appendVersions appends the content of a control record.
func appendVersions(dst []byte, last uint64) []byte {
	return binary.LittleEndian.AppendUint64(append(dst, kindVersions), last)
}

// instruction is what a control record says: one of its fields.
type instruction struct {
	begin    []serving.Range
	versions uint64
}

func decodeControl(b []byte) (is instruction, err error) {
	switch {
	case len(b) == 1+8 && b[0] == kindVersions:
		return instruction{versions: binary.LittleEndian.Uint64(b[1:])}, nil
	case len(b) < 1+rangeSize || b[0] != kindBegin || (len(b)-1)%rangeSize != 0 || (len(b)-1)/rangeSize > maxRanges:
		return is, errControl
	}
	is.begin = make([]serving.Range, 0, (len(b)-1)/rangeSize)
	for b = b[1:]; len(b) > 0; b = b[rangeSize:] {
		is.begin = append(is.begin, serving.Range{After: binary.LittleEndian.Uint64(b), UpTo: binary.LittleEndian.Uint64(b[8:])})
	}
	return is, nil
}

// Refused is the failure of a stream that the target ended.
type Refused struct {
	Reason  peerv1.FeedReason
	Message string // of the target, for people
}

func (r *Refused) Error() string {
	return fmt.Sprintf("feed: the target refused: %v: %s", r.Reason, r.Message)
}

// passing reports whether the source may say hello again.
func (r *Refused) passing() bool {
	return r.Reason == peerv1.FeedReason_FEED_REASON_SUPERSEDED || r.Reason == peerv1.FeedReason_FEED_REASON_BEHIND
}

func refuse(reason peerv1.FeedReason, format string, args ...any) *Refused {
	return &Refused{Reason: reason, Message: fmt.Sprintf(format, args...)}
}
