package feed

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
	"github.com/keystead/keystead/ring/epoch/serving"
	"github.com/keystead/keystead/ring/epoch/table"
)

// Bounds of an intake, with their reasons.
const (
	// MaxBehind is how long the target waits for the table by which a batch goes:
	// longer than an election, shorter than anybody waits for an answer.
	MaxBehind = 2 * time.Second
	// DefaultMaxSources is that of IntakeConfig: a cluster has fewer nodes, and
	// those that start anew leave one behind each time.
	DefaultMaxSources = 128
	// maxNode is the longest name of a source, in bytes.
	maxNode = 256
)

// IntakeConfig is what an Intake needs.
type IntakeConfig struct {
	// Self is the process that takes records in. Batches for another one, of a
	// former incarnation for example, are refused.
	Self func() table.Holder
	// Await waits until this node goes by a table of this epoch, or a later one.
	Await func(ctx context.Context, epoch uint64) error
	// Begin forgets what this process holds of some ranges. An error refuses the
	// stream.
	Begin func(from table.Holder, ranges []serving.Range) error
	// Versions has versions of objects rise above one that a source has reached. An error
	// refuses the stream.
	Versions func(last uint64) error
	// Install takes a record in, and does not keep its bytes. An error refuses the
	// stream. Neither it nor the two above are called twice at a time for one source.
	Install func(from table.Holder, record []byte) error
	// Urgent is told of each batch of which a source waits until this process's disk has it. It
	// must not wait. nil = nobody is.
	Urgent func()
	// Rounds returns how many rounds of this process its disk has; nil = it keeps none.
	Rounds func() uint64
	// MaxSources bounds the sources that are remembered. The one that was silent
	// longest is forgotten for a new one. Default 128.
	MaxSources int
	Log        *slog.Logger
}

// Intake is the target's end of the streams of all sources. It implements
// StateService and has no goroutines but those of its streams, which end with
// their server.
type Intake struct {
	peerv1.UnimplementedStateServiceServer
	cfg IntakeConfig

	mu      sync.Mutex
	sources map[table.Holder]*source // guarded by mu
	beat    uint64                   // guarded by mu: counts what is heard
	stats   IntakeStats              // guarded by mu
}

// IntakeStats are figures of an intake, since it was made.
type IntakeStats struct {
	Sources  int    // that are remembered now
	Records  uint64 // installed, control records included
	Batches  uint64 // installed as a whole or in part
	Refusals uint64 // of streams
}

// source is one process that sends records.
type source struct {
	from table.Holder
	// turn has room for one: the connection that has put something into it may install.
	turn  chan struct{}
	now   *session // guarded by Intake.mu; nil = it is forgotten
	heard uint64   // guarded by Intake.mu: when it was heard of last, by Intake.beat
}

// session is what a source sends under one number.
type session struct {
	number uint64
	// applied is the last record installed; written by the one whose turn it is.
	applied atomic.Uint64
	kept    uint64   // guarded by Intake.mu: all up to this one is on disk. Invariant: kept <= applied
	refused *Refused // guarded by source.turn: why no more is taken in
	conn    *inbound // guarded by Intake.mu
}

// inbound is one connection of a session.
type inbound struct {
	source  *source
	session *session
	number  uint64
	target  table.Holder
	kept    chan struct{}   // capacity 1: there is something to tell of session.kept
	ctx     context.Context // ends with the stream, or with errSuperseded
	end     context.CancelCauseFunc
	epoch   uint64 // this node goes by a table of this epoch, or a later one; of the stream's goroutine
}

var errSuperseded = errors.New("a later connection of the source has come, or the source was forgotten")

// NewIntake returns an intake that knows no sources.
func NewIntake(cfg IntakeConfig) *Intake {
	cfg.MaxSources = cmp.Or(cfg.MaxSources, DefaultMaxSources)
	return &Intake{cfg: cfg, sources: map[table.Holder]*source{}}
}

// Forget drops what is known of a source, and ends its stream. At most one more
// record of it is installed after that, which has begun before.
func (i *Intake) Forget(from table.Holder) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if s := i.sources[from]; s != nil {
		i.dropLocked(s)
	}
}

// Stats returns the present figures.
func (i *Intake) Stats() IntakeStats {
	i.mu.Lock()
	defer i.mu.Unlock()
	st := i.stats
	st.Sources = len(i.sources)
	return st
}

// Feed implements peerv1.StateServiceServer.
func (i *Intake) Feed(st grpc.BidiStreamingServer[peerv1.FeedRequest, peerv1.FeedResponse]) error {
	req, err := st.Recv()
	if err != nil {
		return err
	}
	c, applied, known, refused := i.welcome(st.Context(), req.GetHello())
	if refused != nil {
		return i.refuse(st, c, refused)
	}
	defer c.end(nil)
	i.cfg.Log.Debug("a source of copies has come", "source", c.source.from.Node, "session", c.session.number, "connection", c.number, "applied", applied)
	err = st.Send(&peerv1.FeedResponse{Response: &peerv1.FeedResponse_Welcome{Welcome: &peerv1.FeedWelcome{Known: known, Applied: applied}}})
	if err != nil {
		return err
	}
	requests := make(chan *peerv1.FeedRequest)
	go func() { // ends when this handler has returned
		defer close(requests)
		for {
			req, err := st.Recv()
			if err != nil {
				return
			}
			select {
			case requests <- req:
			case <-c.ctx.Done():
				return
			}
		}
	}()
	for {
		select {
		case req, ok := <-requests:
			if !ok {
				return nil
			}
			applied, refused := i.installBatch(c, req.GetBatch())
			if refused != nil {
				return i.refuse(st, c, refused)
			}
			// gofail: var feedAckSend struct{}
			if err := i.acknowledge(st, c, applied); err != nil {
				return err
			}
		case <-c.kept:
			if err := i.acknowledge(st, c, c.session.applied.Load()); err != nil {
				return err
			}
		case <-c.ctx.Done():
			return i.refuse(st, c, superseded())
		}
	}
}

func superseded() *Refused {
	return refuse(peerv1.FeedReason_FEED_REASON_SUPERSEDED, "%v", errSuperseded)
}

// refuse tells the source why its stream ends.
func (i *Intake) refuse(st grpc.BidiStreamingServer[peerv1.FeedRequest, peerv1.FeedResponse], c *inbound, r *Refused) error {
	if st.Context().Err() != nil {
		return st.Context().Err() // the source has left
	}
	i.mu.Lock()
	i.stats.Refusals++
	i.mu.Unlock()
	from := ""
	if c != nil {
		from = c.source.from.Node
	}
	i.cfg.Log.Info("a stream of copies is refused", "source", from, "reason", r.Reason.String(), "message", r.Message)
	return st.Send(&peerv1.FeedResponse{Response: &peerv1.FeedResponse_Refusal{Refusal: &peerv1.FeedRefusal{Reason: r.Reason, Message: r.Message}}})
}

// welcome admits a connection and finds where it goes on. When it returns, nobody
// else installs anything for the source any more.
func (i *Intake) welcome(ctx context.Context, h *peerv1.FeedHello) (c *inbound, applied uint64, known bool, refused *Refused) {
	if refused = i.judge(h); refused != nil {
		return nil, 0, false, refused
	}
	c, known, refused = i.admit(ctx, h)
	if refused != nil {
		return nil, 0, false, refused
	}
	if !c.begin() {
		c.end(nil)
		return c, 0, false, superseded()
	}
	defer i.release(c.source, 0)
	//guard:feed-refused
	if c.session.refused != nil {
		c.end(nil)
		return c, 0, known, c.session.refused
	}
	return c, c.session.applied.Load(), known, nil
}

// judge looks whether a hello makes sense, here.
func (i *Intake) judge(h *peerv1.FeedHello) *Refused {
	if h == nil {
		return refuse(peerv1.FeedReason_FEED_REASON_DAMAGED, "the first message is not a hello")
	}
	//guard:feed-version
	if h.Version != Version {
		return refuse(peerv1.FeedReason_FEED_REASON_VERSION, "this node speaks version %d, not %d", Version, h.Version)
	}
	self := i.cfg.Self()
	//guard:feed-target -> target.Node != self.Node
	if target := (table.Holder{Node: h.Target, Incarnation: h.TargetIncarnation}); target != self || self.None() {
		return refuse(peerv1.FeedReason_FEED_REASON_OTHER_TARGET, "this is %s/%d, not %s/%d", self.Node, self.Incarnation, target.Node, target.Incarnation)
	}
	from := table.Holder{Node: h.Source, Incarnation: h.SourceIncarnation}
	if h.Source == "" || len(h.Source) > maxNode || h.Session == 0 || h.Connection == 0 || from == self {
		return refuse(peerv1.FeedReason_FEED_REASON_DAMAGED, "the hello does not name its source")
	}
	return nil
}

// admit makes a connection that of its source, unless a later one has come.
func (i *Intake) admit(ctx context.Context, h *peerv1.FeedHello) (c *inbound, known bool, refused *Refused) {
	from := table.Holder{Node: h.Source, Incarnation: h.SourceIncarnation}
	i.mu.Lock()
	defer i.mu.Unlock()
	s := i.sources[from]
	if s == nil {
		s = &source{from: from, turn: make(chan struct{}, 1)}
		i.makeRoomLocked()
		i.sources[from] = s
	}
	was := s.now
	switch {
	case was == nil || h.Session > was.number:
		s.now = &session{number: h.Session}
	//guard:feed-session
	case h.Session < was.number:
		return nil, false, refuse(peerv1.FeedReason_FEED_REASON_STALE_SESSION, "session %d of %s/%d is over: there is %d", h.Session, from.Node, from.Incarnation, was.number)
	//guard:feed-connection
	case h.Connection <= was.conn.number:
		return nil, false, refuse(peerv1.FeedReason_FEED_REASON_SUPERSEDED, "there is a later connection than %d", h.Connection)
	default:
		known = true
	}
	if was != nil {
		was.conn.end(errSuperseded)
	}
	target := table.Holder{Node: h.Target, Incarnation: h.TargetIncarnation}
	c = &inbound{source: s, session: s.now, number: h.Connection, target: target, kept: make(chan struct{}, 1)}
	//guard:feed-kept-again s.now.kept > 0 -> false
	if s.now.kept > 0 {
		c.kept <- struct{}{} // what was told over the connection before may be lost
	}
	c.ctx, c.end = context.WithCancelCause(ctx)
	s.now.conn = c
	i.hearLocked(s)
	return c, known, nil
}

func (i *Intake) hearLocked(s *source) {
	i.beat++
	s.heard = i.beat
}

// makeRoomLocked forgets the source that was silent longest, if there is no room
// for another one.
func (i *Intake) makeRoomLocked() {
	if len(i.sources) < i.cfg.MaxSources {
		return
	}
	var silent *source
	for _, s := range i.sources {
		if s.now != nil && (silent == nil || s.heard < silent.heard) {
			silent = s
		}
	}
	if silent != nil {
		i.cfg.Log.Warn("a source of copies is forgotten: there are too many", "source", silent.from.Node, "incarnation", silent.from.Incarnation)
		i.dropLocked(silent)
	}
}

// dropLocked forgets a source: at once, or when the record is installed that is
// being installed for it. Until then it keeps its place, so that a new session of
// it has to wait for its turn.
func (i *Intake) dropLocked(s *source) {
	if s.now != nil {
		s.now.conn.end(errSuperseded)
		s.now = nil
	}
	select {
	case s.turn <- struct{}{}:
		<-s.turn
		i.removeLocked(s)
	default:
	}
}

func (i *Intake) removeLocked(s *source) {
	if s.now == nil && i.sources[s.from] == s {
		delete(i.sources, s.from)
	}
}

// begin waits for the turn of a connection. It returns false if the connection has
// ended. The caller calls release after true.
func (c *inbound) begin() bool {
	select {
	case c.source.turn <- struct{}{}:
	case <-c.ctx.Done():
		return false
	}
	if c.ctx.Err() != nil { // both were ready
		<-c.source.turn
		return false
	}
	return true
}

// release ends a turn in which some records were installed.
func (i *Intake) release(s *source, installed uint64) {
	<-s.turn
	i.mu.Lock()
	defer i.mu.Unlock()
	i.hearLocked(s)
	i.removeLocked(s)
	i.stats.Records += installed
	if installed > 0 {
		i.stats.Batches++
	}
}

// installBatch installs the records of a batch that are not installed yet, and returns the
// number of the last one.
func (i *Intake) installBatch(c *inbound, b *peerv1.FeedBatch) (applied uint64, refused *Refused) {
	if b == nil {
		return 0, refuse(peerv1.FeedReason_FEED_REASON_DAMAGED, "the message is not a batch")
	}
	if err := check(b); err != nil {
		return 0, refuse(peerv1.FeedReason_FEED_REASON_DAMAGED, "records %d and %d after it: %v", b.First, b.Count, err)
	}
	//guard:feed-batch-session
	if b.Session != c.session.number {
		return 0, refuse(peerv1.FeedReason_FEED_REASON_STALE_SESSION, "a batch of session %d came in session %d", b.Session, c.session.number)
	}
	if refused := i.await(c, b.Epoch); refused != nil {
		return 0, refused
	}
	if !c.begin() {
		return 0, superseded()
	}
	installed := uint64(0)
	defer func() { i.release(c.source, installed) }()
	s := c.session
	switch self := i.cfg.Self(); {
	//guard:feed-target-changes -> self.Node != c.target.Node
	case self != c.target:
		return 0, refuse(peerv1.FeedReason_FEED_REASON_OTHER_TARGET, "this is %s/%d now", self.Node, self.Incarnation)
	//guard:feed-gap
	case b.First > s.applied.Load()+1:
		return 0, refuse(peerv1.FeedReason_FEED_REASON_GAP, "record %d came after %d", b.First, s.applied.Load())
	}
	rest := b.Records
	for seq := b.First; seq < b.First+uint64(b.Count); seq++ {
		record, isControl, more, _ := cut(rest) // check has done so too
		rest = more
		if seq <= s.applied.Load() {
			continue // it was installed, and the acknowledgement was lost
		}
		if c.ctx.Err() != nil {
			return 0, superseded()
		}
		//guard:feed-ack-after-install
		if err := i.install(c.source.from, record, isControl); err != nil {
			s.refused = refuse(peerv1.FeedReason_FEED_REASON_NOT_TAKEN, "record %d: %v", seq, err)
			return 0, s.refused
		}
		s.applied.Store(seq)
		installed++
	}
	if b.Urgent && i.cfg.Urgent != nil {
		i.cfg.Urgent()
	}
	return s.applied.Load(), nil
}

// install takes one record in.
func (i *Intake) install(from table.Holder, record []byte, isControl bool) error {
	if !isControl {
		return i.cfg.Install(from, record)
	}
	is, err := decodeControl(record)
	switch {
	case err != nil:
		return err
	case is.begin == nil:
		return i.cfg.Versions(is.versions)
	}
	return i.cfg.Begin(from, is.begin)
}

// await waits until this node goes by the table of a batch, for MaxBehind at most.
func (i *Intake) await(c *inbound, epoch uint64) *Refused {
	//guard:feed-epoch true
	if epoch <= c.epoch {
		return nil
	}
	ctx, cancel := context.WithTimeout(c.ctx, MaxBehind)
	defer cancel()
	if err := i.cfg.Await(ctx, epoch); err != nil {
		if c.ctx.Err() != nil {
			return superseded()
		}
		return refuse(peerv1.FeedReason_FEED_REASON_BEHIND, "the table of epoch %d has not come: %v", epoch, err)
	}
	c.epoch = epoch
	return nil
}
