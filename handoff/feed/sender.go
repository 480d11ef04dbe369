package feed

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/ring/epoch/serving"
	"github.com/keystead/keystead/ring/epoch/table"
)

// Defaults of SenderConfig, in bytes, with their reasons.
const (
	DefaultMaxUnacked = 16 << 20  // at a million changes of a hundred bytes in a second, 0.16 s of them
	DefaultCopyWindow = 512 << 10 // keeps half of a gigabit link busy over 8 ms; what changes meanwhile waits behind it
	DefaultMaxBatch   = 256 << 10 // 2 ms of such a link
	// DefaultCrowdWindow is a quarter of MaxUnacked: what does not wait for it has the rest.
	DefaultCrowdWindow = 4 << 20
)

// Why a sender fails, beside *Refused.
var (
	// ErrOverflow says that too much was appended that the target has not
	// acknowledged.
	ErrOverflow = errors.New("feed: the target does not keep up")
	// ErrTooLarge says that a record is larger than MaxRecord.
	ErrTooLarge = errors.New("feed: a record is too large")
	// ErrForgotten says that the target has forgotten what it acknowledged.
	ErrForgotten = errors.New("feed: the target has forgotten the session")
	// ErrNonsense says that the target answers what cannot be.
	ErrNonsense = errors.New("feed: the target does not follow the protocol")
	// ErrClosed says that the sender was closed.
	ErrClosed = errors.New("feed: the sender is closed")
)

// SenderConfig is what a Sender needs.
type SenderConfig struct {
	Source, Target table.Holder
	// Session is greater than that of every earlier sender of the source, whatever
	// their targets. Default: Now, which is that only if the clock is finer than the
	// time between two senders.
	Session uint64
	// Encode appends a record to dst. It is called under the locks of the shard
	// and of the sender, and must not use the sender.
	Encode func(dst []byte, r *owner.Record, now int64) []byte
	// Dial returns a connection to the target. The sender closes it if it is an
	// io.Closer.
	Dial func(ctx context.Context) (grpc.ClientConnInterface, error)
	// Epoch is that of the table by which the source goes.
	Epoch func() uint64
	// Always reports whether answers about objects of a kind wait until what they tell is on the
	// target's disk. nil = none do.
	Always func(kind owner.Kind) bool
	// Now is a monotonic clock, in nanoseconds.
	Now func() int64

	// MaxUnacked bounds the bytes that are kept until they are acknowledged; the
	// sender fails with ErrOverflow when there are more. Default 16 MiB.
	MaxUnacked int
	// CopyWindow is how many unacknowledged bytes Room lets through. Default
	// 512 KiB.
	CopyWindow int
	// CrowdWindow is how many unacknowledged bytes CrowdRoom lets through. Default 4 MiB.
	CrowdWindow int
	// MaxBatch bounds the bytes of a batch that has more than one record. Default
	// 256 KiB.
	MaxBatch int
	Log      *slog.Logger
}

func (c SenderConfig) withDefaults() SenderConfig {
	c.MaxUnacked = cmp.Or(c.MaxUnacked, DefaultMaxUnacked)
	c.CopyWindow = cmp.Or(c.CopyWindow, DefaultCopyWindow)
	c.CrowdWindow = cmp.Or(c.CrowdWindow, DefaultCrowdWindow)
	c.MaxBatch = cmp.Or(c.MaxBatch, DefaultMaxBatch)
	if c.Session == 0 {
		c.Session = uint64(max(c.Now(), 1))
	}
	return c
}

// slots is how many numbers LastOf keeps: with a hundred changes of other objects
// under way, one in 300 objects is held up by another one.
const slots = 1 << 15

// Sender is the source's end of the stream to one target process. Its methods may
// be called by any number of goroutines.
type Sender struct {
	cfg    SenderConfig
	last   atomic.Uint64        // written under mu
	acked  atomic.Uint64        // written under mu. Invariant: acked <= last
	lastOf [slots]atomic.Uint64 // by the low bits of the hash; written under mu
	kept   atomic.Uint64        // written under mu. Invariant: kept <= acked
	always keptOf               // written under mu
	rounds atomic.Uint64        // of the target's disk, by its word; written under mu
	past   chan struct{}        // closed from the start
	failed chan struct{}        // closed when err is there
	wake   chan struct{}        // capacity 1: there may be something to send
	rnd    *rand.Rand           // of the goroutine that connects
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu       sync.Mutex
	queue    []*batch      // guarded by mu: not acknowledged, in order
	sent     int           // guarded by mu: of the queue, over the present connection
	bytes    int           // guarded by mu: in the queue
	free     []*batch      // guarded by mu: to be used again
	room     chan struct{} // guarded by mu: closed when bytes is below the window of copies; nil = nobody waits
	crowd    chan struct{} // guarded by mu: … below that of crowds
	err      error         // guarded by mu: why the sender failed
	watch    *time.Timer   // guarded by mu: breaks the present connection if nothing moves; nil = there is none
	progress bool          // guarded by mu: the present connection acknowledged something
	rises    chan struct{} // guarded by mu: closed when kept rises; nil = nobody waits
	unkept   marks         // guarded by mu: of what was sent and is not kept
	unkeptOf marks         // guarded by mu: … of what is urgent
	stats    Stats         // guarded by mu, but for what Stats counts when asked
}

// Stats are figures of a sender, since it was made.
type Stats struct {
	Records    uint64 // appended, control records included, before the sender failed
	Bytes      uint64 // of these
	Batches    uint64 // sent, repetitions included
	Unacked    uint64 // records appended and not acknowledged
	UnackedLen int    // bytes of these that are kept
	Reconnects uint64 // times that it had to connect again
}

// NewSender returns a sender that begins to connect to its target.
func NewSender(cfg SenderConfig) *Sender {
	cfg = cfg.withDefaults()
	s := &Sender{
		cfg: cfg, past: make(chan struct{}), failed: make(chan struct{}), wake: make(chan struct{}, 1),
		rnd: rand.New(rand.NewPCG(cfg.Session, cfg.Source.Incarnation)),
	}
	if cfg.Always != nil {
		s.always.of = make([]atomic.Uint64, alwaysSlots)
	}
	close(s.past)
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.wg.Go(s.run)
	return s
}

// Close ends the stream and waits for the sender's goroutines. It fails the sender
// with ErrClosed if it has not failed before.
func (s *Sender) Close() {
	s.fail(ErrClosed)
	s.wg.Wait()
}

// Append sends a record, encoded as of now, and returns its number. It never
// blocks, and does not keep the record. A sender that has failed still gives a
// number, which is never acknowledged.
func (s *Sender) Append(r *owner.Record, now int64) uint64 {
	seq, _ := s.append(r, now)
	return seq
}

// AppendSize does as Append does, and returns how many bytes that takes; 0 if the
// sender has failed.
func (s *Sender) AppendSize(r *owner.Record, now int64) int {
	_, size := s.append(r, now)
	return size
}

func (s *Sender) append(r *owner.Record, now int64) (seq uint64, size int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		b, start := s.openLocked()
		b.buf = s.cfg.Encode(b.buf, r, now)
		size = len(b.buf) - start
		s.addLocked(b, start, 0)
	}
	seq = s.last.Add(1)
	//guard:feed-last-of
	s.lastOf[r.Hash%slots].Store(seq)
	if s.cfg.Always != nil && s.awaited(r) {
		//guard:feed-last-always
		s.always.of[r.Hash%alwaysSlots].Store(seq)
		s.urgentLocked(seq)
	}
	return seq, size
}

// Begin has the target forget what it holds of some ranges, before all that is
// appended later, and returns the number of that; Last if there are none.
func (s *Sender) Begin(ranges []serving.Range) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(ranges) > 0 {
		n := min(len(ranges), maxRanges)
		s.controlLocked(func(b []byte) []byte { return appendBegin(b, ranges[:n]) })
		ranges = ranges[n:]
	}
	return s.last.Load()
}

// Versions has versions of objects at the target rise above this one, and returns the number
// of that, which is urgent: it ends a copy. Members of a cluster know it from level 5 on.
func (s *Sender) Versions(last uint64) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.controlLocked(func(b []byte) []byte { return appendVersions(b, last) })
	s.urgentLocked(s.last.Load())
	return s.last.Load()
}

// Ask has the target's disk do a round of all that was sent until now, without a record of which answers wait for that.
func (s *Sender) Ask() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.controlLocked(func(b []byte) []byte { return appendVersions(b, 0) })
	if n := len(s.queue); n > 0 {
		s.queue[n-1].asks = true
	}
}

// controlLocked appends a control record, of which the content is appended by a function.
func (s *Sender) controlLocked(content func([]byte) []byte) {
	if s.err == nil {
		b, start := s.openLocked()
		b.buf = content(b.buf)
		s.addLocked(b, start, control)
	}
	s.last.Add(1)
}

// Last returns the number of the record appended last; 0 = none.
func (s *Sender) Last() uint64 { return s.last.Load() }

// LastOf is at least the number of the record appended last about an object at
// this position, and at most Last; 0 = none.
func (s *Sender) LastOf(hash uint64) uint64 { return s.lastOf[hash%slots].Load() }

// Acked returns the number up to which all records are installed at the target.
func (s *Sender) Acked() uint64 { return s.acked.Load() }

// Done returns a channel that is closed when everything up to seq is acknowledged,
// or when the sender has failed; Acked tells which. seq is at most Last.
func (s *Sender) Done(seq uint64) <-chan struct{} {
	if s.acked.Load() >= seq {
		return s.past
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.acked.Load() >= seq || s.err != nil {
		return s.past
	}
	return s.holdingLocked(seq).waited()
}

// Wait returns nil when everything up to seq is acknowledged. The error is the
// context's, or the failure of the sender. seq is at most Last.
func (s *Sender) Wait(ctx context.Context, seq uint64) error {
	if s.acked.Load() >= seq {
		return nil
	}
	select {
	case <-s.Done(seq):
	case <-ctx.Done():
		return ctx.Err()
	}
	if s.acked.Load() >= seq {
		return nil
	}
	return s.Err()
}

// Room returns nil when less than CopyWindow bytes are unacknowledged. The error
// is the context's, or the failure of the sender.
func (s *Sender) Room(ctx context.Context) error {
	return s.below(ctx, s.cfg.CopyWindow, &s.room)
}

// CrowdRoom returns nil when less than CrowdWindow bytes are unacknowledged. It is for
// operations that are answered without an acknowledgement, so that nothing else
// holds them back. The error is the context's, or the failure of the sender.
func (s *Sender) CrowdRoom(ctx context.Context) error {
	return s.below(ctx, s.cfg.CrowdWindow, &s.crowd)
}

// Unacked returns how many bytes are kept because they are not acknowledged.
func (s *Sender) Unacked() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bytes
}

// below waits until less than so many bytes are unacknowledged. opens is the channel that
// is closed then, guarded by mu.
func (s *Sender) below(ctx context.Context, window int, opens *chan struct{}) error {
	for {
		s.mu.Lock()
		if s.err != nil || s.bytes < window {
			err := s.err
			s.mu.Unlock()
			return err
		}
		if *opens == nil {
			*opens = make(chan struct{})
		}
		room := *opens
		s.mu.Unlock()
		select {
		case <-room:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Lag returns for how long, in nanoseconds, the oldest unacknowledged record has been
// waiting, since it was sent or somebody asked; 0 = there is none, or the sender has
// failed.
func (s *Sender) Lag(now int64) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queue) == 0 {
		return 0
	}
	s.queue[0].seen(now)
	return max(now-s.queue[0].began, 0)
}

// Failed returns a channel that is closed when the stream cannot go on.
func (s *Sender) Failed() <-chan struct{} { return s.failed }

// Err is why the stream cannot go on: one of the errors of this package or a
// *Refused; nil if it can.
func (s *Sender) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Stats returns the present figures.
func (s *Sender) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.stats
	st.Unacked, st.UnackedLen = s.last.Load()-s.acked.Load(), s.bytes
	return st
}
