package rpc

import (
	"context"
	"sync"
	"time"

	"github.com/keystead/keystead/internal/forward"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/across"
	"github.com/keystead/keystead/owner/admission"
	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
)

const (
	// newsPause is for how long words and questions to a node gather before they leave in one message, and
	// newsCall bounds the wait for its answers.
	newsPause = 10 * time.Millisecond
	newsCall  = 2 * time.Second
	// maxOutbox is how many of each wait for one node. More are dropped: participants ask for what they were not
	// told, and ask again what was not answered.
	maxOutbox = 1 << 14
)

// outboxes have what is to be told and asked of admissions of several keys, by the node that it goes to. Nothing in
// them has to survive: what is lost is asked for.
type outboxes struct {
	s *Server

	mu  sync.Mutex
	all map[newsTo]*outbox // guarded by mu: those with a goroutine
}

// newsTo is where news goes, and what they are: questions are not behind words.
type newsTo struct {
	node string
	op   *operation
}

type outbox struct {
	queue []outgoing // guarded by outboxes.mu
}

// outgoing is one word or question. hear is told the answer, nil if nobody is; it is not called without one.
type outgoing struct {
	news *peerv1.News
	hear func(a across.Answer)
}

// send has news leave for the owner of their key, soon.
func (o *outboxes) send(op *operation, x outgoing) {
	to := newsTo{o.s.cfg.Node, op}
	if c := o.s.cfg.Cluster; c != nil {
		m, _, ok := c.Table().Owner(owner.Hash(x.news.Key))
		if !ok {
			return // it is asked again
		}
		to.node = m.Node
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	b := o.all[to]
	if b == nil {
		if o.s.stopped.Load() {
			return
		}
		b = &outbox{}
		if o.all == nil {
			o.all = map[newsTo]*outbox{}
		}
		o.all[to] = b
		go o.run(to, b)
	}
	if len(b.queue) < maxOutbox {
		b.queue = append(b.queue, x)
	}
}

// run sends what is in an outbox until there is nothing left.
func (o *outboxes) run(to newsTo, b *outbox) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for {
		open := rest(ctx, o.s, newsPause)
		o.mu.Lock()
		n := min(len(b.queue), maxNews)
		if n == 0 || !open {
			delete(o.all, to)
			o.mu.Unlock()
			return
		}
		now := b.queue[:n:n]
		b.queue = b.queue[n:]
		o.mu.Unlock()
		o.deliver(ctx, to, now)
	}
}

// deliver sends news, and hands their answers over.
func (o *outboxes) deliver(ctx context.Context, to newsTo, all []outgoing) {
	s := o.s
	q := &peerv1.NewsRequest{News: make([]*peerv1.News, len(all))}
	for i := range all {
		q.News[i] = all[i].news
	}
	c := to.op.Call(q)
	ctx, cancel := context.WithTimeout(ctx, newsCall)
	defer cancel()
	var m forward.Message
	var err error
	if to.node == s.cfg.Node {
		m, err = to.op.decide(ctx, s, &c, nil)
	} else if member, ok := s.cfg.Cluster.Table().Member(to.node); ok {
		m, err = s.router.PassTo(ctx, &c, member)
	} else {
		return
	}
	if err != nil {
		return
	}
	r := m.(*peerv1.NewsResponse)
	now := s.cfg.Clock.Now()
	for i := range all {
		if i < len(r.Answers) && all[i].hear != nil {
			if a := knowledge(r.Answers[i], now); a.Phase != across.Unknown {
				all[i].hear(a)
			}
		}
	}
}

// askPause is the least time between two looks at what participants have to ask.
const askPause = 5 * time.Millisecond

// Across asks and tells other owners what the participants have to that are here, until the context ends or the
// server stops.
func (s *Server) Across(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.stopping:
			return
		case <-s.cfg.Store.AsksCame():
		}
		if !s.usesLevel(owner.AdmissionLevel) {
			continue
		}
		for _, ask := range s.cfg.Store.Asks() {
			s.asks(ask)
		}
		if !rest(ctx, s, askPause) {
			return
		}
	}
}

// asks sends what one participant has to send. Its words leave when the copies have what they tell.
func (s *Server) asks(ask owner.Ask) {
	for i := range ask.Questions {
		q := &ask.Questions[i]
		s.outboxes.send(acrossQuestion, outgoing{wireQuestion(ask.Name, q), s.answersTo(ask.Ref, q.ID, q.To)})
	}
	if len(ask.Words) == 0 {
		return
	}
	tell := func() {
		//guard:across-words-confirmed
		if s.cfg.Store.Confirm(ask.Permit, s.cfg.Clock.Now()) != nil {
			return
		}
		for i := range ask.Words {
			w := &ask.Words[i]
			s.outboxes.send(acrossWord, outgoing{wireWord(ask.Name, w), s.answersTo(ask.Ref, w.ID, w.To)})
		}
	}
	//guard:across-words-copied true
	if c := s.cfg.Copies; c == nil || c.Replicated(ask.Permit.Hash) {
		tell()
		return
	}
	go func() {
		if s.awaitCopies(ask.Permit.Hash, false) == nil {
			tell()
		}
	}()
}

// answersTo returns what tells a participant of this node the answer of another one.
func (s *Server) answersTo(ref owner.Ref, id across.ID, from uint8) func(across.Answer) {
	return func(a across.Answer) {
		now := s.cfg.Clock.Now()
		_, err := s.cfg.Store.Answered(now, ref, id, from, a)
		_ = s.heldWhole(frame{now: now, at: ref}, admission.ID(id), err) // it asks again
	}
}
