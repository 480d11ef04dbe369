package forward

import (
	"cmp"
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/keystead/keystead/internal/failure"
	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
	"github.com/keystead/keystead/ring/epoch/table"
)

const (
	// maxHeld bounds the answers that wait for one process: what comes in while a standby
	// that hangs is taken out, at 200,000 calls a second. That is 30 MB.
	maxHeld = 65_536
	// maxOutbox bounds the answers that a stream does not take: with more, no calls are
	// read from it.
	maxOutbox = 16_384
)

var errManyHeld = &failure.Error{Reason: failure.Overloaded, RetryAfter: 100 * time.Millisecond,
	Message: "as many answers as this node allows wait for the standby of the key, or for the disk; nothing happened",
	Hint:    "try again: the standby comes back, or is taken out; `keystead status` shows what is wrong with a disk"}

var errManyHeldUnknown = &failure.Error{Reason: failure.OutcomeUnknown, RetryAfter: 100 * time.Millisecond,
	Message: "as many answers as this node allows wait for the standby of the key, or for the disk; it may have taken effect",
	Hint:    "try again with the same request id to learn what became of it"}

// manyHeld returns the error of an answer for which there is no room.
func manyHeld(read bool) error {
	if read {
		return errManyHeld
	}
	return errManyHeldUnknown
}

// lanes hold answers to calls of other nodes back until the copies have what they speak
// of. There is a lane for each process that has to acknowledge something, and one for each
// disk: what waits for one that hangs stands in nobody else's way. A lane has one goroutine, whatever waits.
type lanes[D any] struct {
	s      *Service[D]
	ctx    context.Context // ends at close
	stop   context.CancelFunc
	wg     sync.WaitGroup
	most   int          // answers in a lane
	filled atomic.Int64 // lanes that are full

	mu  sync.Mutex
	all map[table.Holder]*lane[D] // guarded by mu
}

// lane are the answers that wait for one process, or for the disk. What is waited for is one stream,
// whose records are acknowledged in order, or the rounds of one disk: they hardly wait for each other.
type lane[D any] struct {
	of   table.Holder
	wake chan struct{} // capacity 1: there is something in queue, or the lane is closed

	queue  []held[D] // guarded by lanes.mu
	n      int       // guarded by lanes.mu: in queue, or taken out of it and not through
	closed bool      // guarded by lanes.mu
}

// held is an answer that waits.
type held[D any] struct {
	in     *inbound[D]
	answer *peerv1.ForwardAnswer
	Unconfirmed[D]
	behind table.Behind // it waits for; the first one is the lane's
}

func newLanes[D any](s *Service[D]) *lanes[D] {
	l := &lanes[D]{s: s, most: cmp.Or(s.cfg.MaxHeld, maxHeld), all: map[table.Holder]*lane[D]{}}
	l.ctx, l.stop = context.WithCancel(context.Background())
	return l
}

func (l *lanes[D]) close() {
	l.mu.Lock() // no lane begins later
	l.stop()
	l.mu.Unlock()
	l.wg.Wait()
}

// full reports whether so many answers wait for the standby of a call's key, for its disk, or for
// that of this node, that the call is not to be done.
func (l *lanes[D]) full(c *Call) bool {
	if l.filled.Load() == 0 {
		return false
	}
	t := l.s.r.cfg.Cluster.Table()
	i := t.Find(c.Hash)
	if i < 0 {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	standby := t.Rows[i].Standby
	//guard:lane-of-disk-full l.fullLocked(table.OwnDisk) || l.fullLocked(table.DiskOf(standby)) -> false
	disks := l.fullLocked(table.OwnDisk) || l.fullLocked(table.DiskOf(standby))
	return l.fullLocked(standby) || disks
}

func (l *lanes[D]) fullLocked(of table.Holder) bool {
	k := l.all[of]
	return k != nil && k.n >= l.most
}

// hold puts an answer into its lane, and returns nil; or it returns what to answer
// instead, because there is no room: what was decided may have taken effect.
func (l *lanes[D]) hold(h held[D]) *peerv1.ForwardAnswer {
	l.mu.Lock()
	defer l.mu.Unlock()
	var k *lane[D]
	if l.ctx.Err() == nil {
		k = l.laneLocked(h.behind[0])
	}
	if k == nil || k.n >= l.most {
		d := h.Decision // and not h, which would be allocated for all
		err := l.s.cfg.Confirm(&d, 0, manyHeld(h.Reads))
		return Failed(h.answer.Tag, l.s.r.cfg.Wire(err))
	}
	h.in.expect()
	l.putLocked(k, h)
	return nil
}

func (l *lanes[D]) putLocked(k *lane[D], h held[D]) {
	k.queue = append(k.queue, h)
	if k.n++; k.n == l.most {
		l.filled.Add(1)
	}
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// laneLocked returns the lane of a process. When one is made, those that have nothing are let
// go whose process is no member.
func (l *lanes[D]) laneLocked(of table.Holder) *lane[D] {
	//guard:answers-in-lanes of -> table.Holder{}
	if k := l.all[of]; k != nil {
		return k
	}
	t := l.s.r.cfg.Cluster.Table()
	for to, k := range l.all {
		if k.n == 0 && !t.MayBehind(to) {
			delete(l.all, to)
			k.closed = true
			close(k.wake)
		}
	}
	k := &lane[D]{of: of, wake: make(chan struct{}, 1)}
	//guard:answers-in-lanes of -> table.Holder{}
	l.all[of] = k
	l.wg.Go(func() { l.run(k) })
	return k
}

// run lets answers through in order.
func (l *lanes[D]) run(k *lane[D]) {
	var todo, through []held[D]
	for {
		select {
		case <-k.wake:
		case <-l.ctx.Done():
			l.drop(k)
			return
		}
		l.mu.Lock()
		todo, k.queue = k.queue, todo[:0]
		closed := k.closed
		l.mu.Unlock()
		for _, h := range todo {
			if behind := l.s.cfg.Copies.Behind(h.Hash); behind.Has(k.of) {
				through = l.answer(k, through, nil) // they need not wait with this one
				if !l.s.cfg.Copies.AwaitOf(l.ctx, h.Hash, k.of) {
					//guard:answer-not-told-forwarded l.s.cfg.Untold(h.Reads) -> nil
					l.answer(k, []held[D]{h}, l.s.cfg.Untold(h.Reads))
					continue
				}
			}
			if h.behind[1].None() {
				through = append(through, h)
			} else {
				l.pass(k, h)
			}
		}
		through = l.answer(k, through, nil)
		clear(todo)
		if closed {
			return
		}
	}
}

// pass has an answer wait for the other process that it waits for.
func (l *lanes[D]) pass(k *lane[D], h held[D]) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.leftLocked(k, 1)
	h.behind = h.behind.Next()
	l.putLocked(l.laneLocked(h.behind[0]), h)
}

func (l *lanes[D]) leftLocked(k *lane[D], n int) {
	if k.n >= l.most && k.n-n < l.most {
		l.filled.Add(-1)
	}
	k.n -= n
}

// answer does the check before the answer, under one look at the clock, and gives the
// answers to their streams. It returns the list, empty.
func (l *lanes[D]) answer(k *lane[D], hs []held[D], err error) []held[D] {
	if len(hs) == 0 {
		return hs
	}
	now := l.s.cfg.Now()
	for i := range hs {
		h := &hs[i]
		if err := l.s.cfg.Confirm(&h.Decision, now, err); err != nil {
			h.answer = Failed(h.answer.Tag, l.s.r.cfg.Wire(err))
		}
		h.in.put(h.answer)
		if i+1 == len(hs) || hs[i+1].in != h.in {
			h.in.nudge() // once for those that follow each other: they go out in one message
		}
	}
	l.mu.Lock()
	l.leftLocked(k, len(hs))
	l.mu.Unlock()
	clear(hs)
	return hs[:0]
}

// drop gives up what still waits when the server has stopped.
func (l *lanes[D]) drop(k *lane[D]) {
	l.mu.Lock()
	rest := k.queue
	k.queue = nil
	l.mu.Unlock()
	for i := range rest {
		l.answer(k, rest[i:i+1], l.s.cfg.Untold(rest[i].Reads))
	}
}

// expect counts an answer of the stream's that is held back. A stop waits for it.
func (in *inbound[D]) expect() {
	in.s.cfg.Calls.Busy(1)
	in.mu.Lock()
	in.held++
	in.mu.Unlock()
}

// put takes an answer that was held back, which goes out after the next nudge. It does not
// wait for the stream.
func (in *inbound[D]) put(a *peerv1.ForwardAnswer) {
	in.mu.Lock()
	if in.ended {
		in.held--
		in.s.cfg.Calls.Busy(-1)
	} else {
		in.outbox = append(in.outbox, a)
	}
	in.mu.Unlock()
}

func (in *inbound[D]) nudge() {
	select {
	case in.ready <- struct{}{}:
	default:
	}
}

// sendHeld sends what was held back, until the stream has ended or nothing is left of it.
func (in *inbound[D]) sendHeld() {
	var sending []*peerv1.ForwardAnswer
	for {
		in.mu.Lock()
		sending, in.outbox = in.outbox, sending[:0]
		over := in.ending && in.held == 0
		in.mu.Unlock()
		err := in.stream.Context().Err()
		if len(sending) > 0 && err == nil {
			err = in.sendMany(sending)
		}
		in.sent(len(sending), err != nil)
		clear(sending)
		switch {
		case over || err != nil:
			return
		case len(sending) > 0:
			continue
		}
		select {
		case <-in.ready:
			runtime.Gosched() // lanes that are about to put something do so first
		case <-in.stream.Context().Done():
		}
	}
}

// sent counts answers out. If the stream has ended, those that still come are dropped.
func (in *inbound[D]) sent(n int, ended bool) {
	in.mu.Lock()
	if ended {
		n += len(in.outbox)
		in.outbox, in.ended = nil, true
	}
	in.held -= n
	in.mu.Unlock()
	in.s.cfg.Calls.Busy(-int64(n))
	select {
	case in.room <- struct{}{}:
	default:
	}
}

// sendMany sends answers, in messages that are not too large.
func (in *inbound[D]) sendMany(answers []*peerv1.ForwardAnswer) error {
	from, bytes := 0, 0
	for i, a := range answers {
		size := a.SizeVT()
		if bytes += size; bytes > in.s.cfg.MaxMessage && i > from {
			if err := in.reply(&peerv1.ForwardResponse{Answers: answers[from:i]}); err != nil {
				return err
			}
			from, bytes = i, size
		}
	}
	return in.reply(&peerv1.ForwardResponse{Answers: answers[from:]})
}

// awaitRoom waits while the other end takes too few of the answers that were held back.
func (in *inbound[D]) awaitRoom() error {
	for {
		in.mu.Lock()
		room := len(in.outbox) < maxOutbox
		in.mu.Unlock()
		if room {
			return nil
		}
		select {
		case <-in.room:
		case <-in.stream.Context().Done():
			return in.stream.Context().Err()
		}
	}
}
