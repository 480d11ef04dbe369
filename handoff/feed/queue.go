package feed

import (
	"encoding/binary"
	"slices"
	"sort"
)

// Bounds of the queue.
const (
	// liveFlight is how many batches may be unacknowledged for the next one to go
	// out before it is full: one is on its way while another one is installed.
	liveFlight = 2
	// fullFlight is the same for one that is full: what a copy needs.
	fullFlight = 8
	// maxFree is how many batches are kept to be used again: those of a live
	// stream, and some.
	maxFree = 4
)

// batch is some records in a row. Its fields are guarded by Sender.mu until it is
// sealed; from then on only wait changes.
type batch struct {
	first, count uint64
	buf          []byte
	began        int64         // when it was first seen to wait, by SenderConfig.Now; 0 = not yet
	wait         chan struct{} // closed when it is acknowledged; nil = nobody waits
	sealed       bool          // nothing is added any more
	full         bool          // as good as
	stamped      bool          // epoch and sum are there: it was sent once
	epoch        uint64
	sum          uint32
	sending      bool // gRPC may be reading buf
	urgent       bool // somebody waits until the target's disk has one of the records
	asks         bool // it is to do a round of all that was sent
}

func (b *batch) last() uint64 { return b.first + b.count - 1 }

// seen takes note of when somebody looked at it first: records come while their object's
// shard is locked, where no clock is read.
func (b *batch) seen(now int64) {
	if b.began == 0 {
		b.began = now
	}
}

// waited returns the channel to wait on.
func (b *batch) waited() chan struct{} {
	if b.wait == nil {
		b.wait = make(chan struct{})
	}
	return b.wait
}

// openLocked returns the batch that the next record goes into, with room for its
// prefix appended, and where that starts.
func (s *Sender) openLocked() (b *batch, start int) {
	if n := len(s.queue); n > 0 && !s.queue[n-1].sealed {
		b = s.queue[n-1]
	} else {
		b = s.newLocked()
	}
	start = len(b.buf)
	b.buf = append(b.buf, 0, 0, 0, 0)
	return b, start
}

// newLocked puts an empty batch at the end of the queue.
func (s *Sender) newLocked() *batch {
	b := &batch{}
	if n := len(s.free); n > 0 {
		b = s.free[n-1]
		s.free = s.free[:n-1]
	}
	*b = batch{first: s.last.Load() + 1, buf: b.buf[:0]}
	s.queue = append(s.queue, b)
	return b
}

// addLocked completes a record that was put into a batch from start on.
func (s *Sender) addLocked(b *batch, start int, mark uint32) {
	size := len(b.buf) - start - prefix
	if size > MaxRecord {
		s.failLocked(ErrTooLarge)
		return
	}
	binary.LittleEndian.PutUint32(b.buf[start:], uint32(size)|mark)
	s.bytes += prefix + size
	if s.bytes > s.cfg.MaxUnacked {
		s.failLocked(ErrOverflow)
		return
	}
	s.stats.Records++
	s.stats.Bytes += uint64(prefix + size)
	if len(b.buf) > s.cfg.MaxBatch && b.count > 0 { // it begins the next one
		next := s.newLocked()
		next.buf = append(next.buf, b.buf[start:]...)
		b.buf, b.sealed, b.full = b.buf[:start], true, true
		b = next
		s.nudge()
	}
	b.count++
	if b.full = b.count == maxRecords || len(b.buf) >= s.cfg.MaxBatch; b.full {
		b.sealed = true
	}
	if b.count == 1 || b.full {
		s.nudge()
	}
}

// nudge has the connection look whether there is something to send.
func (s *Sender) nudge() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// holdingLocked returns the batch of a record that is not acknowledged.
func (s *Sender) holdingLocked(seq uint64) *batch {
	i := sort.Search(len(s.queue), func(i int) bool { return s.queue[i].last() >= seq })
	if i == len(s.queue) {
		panic("feed: somebody waits for a record that was never appended")
	}
	return s.queue[i]
}

// nextLocked takes the next batch to be sent, nil if it is not its time.
func (s *Sender) nextLocked(now int64) *batch {
	if s.err != nil || s.sent == len(s.queue) || s.sent >= fullFlight || s.sent >= liveFlight && !s.queue[s.sent].full {
		return nil
	}
	b := s.queue[s.sent]
	b.sealed, b.sending = true, true
	b.seen(now)
	s.unkept.add(b.last(), now)
	if b.urgent {
		s.unkeptOf.add(b.last(), now)
	}
	s.sent++
	s.stats.Batches++
	return b
}

// ackLocked takes note that the target has installed everything up to applied. It
// returns false if that cannot be.
func (s *Sender) ackLocked(applied uint64) bool {
	if s.err != nil {
		return true // too late
	}
	was := s.acked.Load()
	if applied < was || applied > s.last.Load() {
		return false
	}
	s.acked.Store(applied)
	n := 0
	for ; n < len(s.queue) && s.queue[n].last() <= applied; n++ {
		s.retireLocked(s.queue[n])
	}
	s.queue = slices.Delete(s.queue, 0, n)
	s.sent = max(s.sent-n, 0)
	s.letLocked(&s.room, s.bytes < s.cfg.CopyWindow)
	s.letLocked(&s.crowd, s.bytes < s.cfg.CrowdWindow)
	s.progress = s.progress || applied > was
	return true
}

// letLocked lets callers go on that wait for room, if there is some.
func (s *Sender) letLocked(opens *chan struct{}, room bool) {
	if room && *opens != nil {
		close(*opens)
		*opens = nil
	}
}

// retireLocked lets go of a batch that is acknowledged.
func (s *Sender) retireLocked(b *batch) {
	s.bytes -= len(b.buf)
	if b.wait != nil {
		close(b.wait)
		b.wait = nil
	}
	if !b.sending && len(s.free) < maxFree && cap(b.buf) <= 2*s.cfg.MaxBatch {
		s.free = append(s.free, b)
	}
}

func (s *Sender) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failLocked(err)
}

// failLocked ends the stream for good. Nothing is acknowledged from now on, and
// nothing kept.
func (s *Sender) failLocked(err error) {
	if s.err != nil {
		return
	}
	s.err = err
	for _, b := range s.queue {
		if b.wait != nil {
			close(b.wait)
		}
	}
	s.queue, s.free, s.sent, s.bytes = nil, nil, 0, 0
	s.letLocked(&s.room, true)
	s.letLocked(&s.crowd, true)
	s.letLocked(&s.rises, true)
	s.unkept.clear()
	s.unkeptOf.clear()
	close(s.failed)
	s.cancel()
}
