package disk

import (
	"encoding/binary"
	"fmt"
)

// Stream is how far a stream of records between two processes was when a round began. Of two disks that a row names, these
// numbers tell which has more.
type Stream struct {
	Of          uint64 // the incarnation that had the disk; a Keeper sets it
	Node        string // at the other end
	Incarnation uint64 // its incarnation
	Out         bool   // the process that had the disk was its source
	Session     uint64
	Number      uint64 // of the last record that was sent, or taken in
	PeerRounds  uint64 // rounds that the process at the other end has on its disk, by its word; 0 = it has not said
}

// maxStreams bounds the streams in a store. A process has at most one in each direction with each of 127 peers; the rest are
// of those before it, or of peers that are gone.
const maxStreams = 1024

const (
	streamKey   = 1 + 8 + 1 + 8
	streamValue = 8 + 8 + 8
)

func appendStream(b []byte, s *Stream) []byte {
	b = append(b, streamPrefix)
	b = binary.BigEndian.AppendUint64(b, s.Of)
	out := byte(0)
	if s.Out {
		out = 1
	}
	b = binary.BigEndian.AppendUint64(append(b, out), s.Incarnation)
	return append(b, s.Node...)
}

func parseStream(k, v []byte) (s Stream, ok bool) {
	if len(k) < streamKey || len(v) != streamValue || k[9] > 1 {
		return s, false
	}
	return Stream{Of: binary.BigEndian.Uint64(k[1:]), Out: k[9] == 1, Incarnation: binary.BigEndian.Uint64(k[10:]), Node: string(k[streamKey:]),
		Session: binary.BigEndian.Uint64(v), Number: binary.BigEndian.Uint64(v[8:]), PeerRounds: binary.BigEndian.Uint64(v[16:])}, true
}

// SetStream sets how far a stream was.
func (b *Batch) SetStream(s Stream) {
	if b.room(streamKey + len(s.Node) + streamValue) {
		b.key = appendStream(b.key[:0], &s)
		v := binary.BigEndian.AppendUint64(nil, s.Session)
		v = binary.BigEndian.AppendUint64(v, s.Number)
		b.fault(b.b.Set(b.key, binary.BigEndian.AppendUint64(v, s.PeerRounds), nil))
	}
}

// dropStream removes a stream.
func (b *Batch) dropStream(s Stream) {
	if b.room(streamKey + len(s.Node)) {
		b.key = appendStream(b.key[:0], &s)
		b.fault(b.b.Delete(b.key, nil))
	}
}

// Streams returns those in the store, in the order of those that had the disk.
func (s *Store) Streams() (all []Stream, err error) {
	err = s.scan([]byte{streamPrefix}, []byte{streamPrefix + 1}, func(k, v []byte) (error, error) {
		one, ok := parseStream(k, v)
		if !ok {
			return nil, fmt.Errorf("%w: the key %x is not one of a stream", ErrDamaged, k)
		}
		all = append(all, one)
		return nil, nil
	})
	return all, err
}

// FoundStreams returns the streams as they were on disk when it was opened: of all that have had it and are on the list.
func (k *Keeper) FoundStreams() []Stream { return k.found }

// streamID names a stream.
type streamID struct {
	of, incarnation uint64
	node            string
	out             bool
}

func (s *Stream) id() streamID { return streamID{s.Of, s.Incarnation, s.Node, s.Out} }

// streamAt is a stream that the store has, or is to have.
type streamAt struct {
	session, number, rounds uint64
	written                 bool
}

func (id streamID) stream(at streamAt) Stream {
	return Stream{Of: id.of, Node: id.node, Incarnation: id.incarnation, Out: id.out, Session: at.session, Number: at.number, PeerRounds: at.rounds}
}

// putStreams puts those that have changed into a batch. Those of the ones before stay as long as these are on the list: a row may wait for
// their disks. So do those that have ended, until they are too many.
func (k *Keeper) putStreams(b *Batch, now []Stream, list []Tenure) {
	if len(now) == 0 && len(k.streams) == 0 {
		return
	}
	if k.mine {
		of := list[len(list)-1].Incarnation
		for i := range now {
			s := &now[i]
			s.Of = of
			//guard:disk-stream-changes was.number == s.Number -> true
			if was, ok := k.streams[s.id()]; ok && was.session == s.Session && was.number == s.Number {
				continue
			}
			k.streams[s.id()] = streamAt{session: s.Session, number: s.Number, rounds: max(s.PeerRounds, k.streams[s.id()].rounds)}
		}
	}
	if len(k.streams) > maxStreams || k.dropping {
		k.dropStreams(b, now, list)
	}
	for id, at := range k.streams {
		if !at.written {
			b.SetStream(id.stream(at))
			at.written = true
			k.streams[id] = at
		}
	}
}

// dropStreams drops those of processes that are off the list, and, if there are too many, those that have ended.
func (k *Keeper) dropStreams(b *Batch, now []Stream, list []Tenure) {
	k.dropping = false
	had := map[uint64]bool{}
	for _, t := range list {
		had[t.Incarnation] = true
	}
	goes := map[streamID]bool{}
	for i := range now {
		goes[now[i].id()] = true
	}
	many := len(k.streams) > maxStreams
	for id, at := range k.streams {
		//guard:disk-streams-stay had[id.of] -> false
		if had[id.of] && (!many || goes[id]) {
			continue
		}
		b.dropStream(id.stream(at))
		delete(k.streams, id)
	}
}

// rewriteStreams has the streams written to a store that is begun anew.
func (k *Keeper) rewriteStreams() {
	for id, at := range k.streams {
		at.written = false
		k.streams[id] = at
	}
}
