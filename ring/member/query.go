package member

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/serf/serf"
)

// MaxAnswer is how long an answer to a query may be, in bytes. Serf allows 1024
// with what it adds, which the name of the node is part of.
const MaxAnswer = 800

const (
	// maxQueries is the number of queries that wait to be answered.
	maxQueries = 64
	// maxSeen is the number of events whose arrival is remembered, as many as
	// serf keeps and passes on to those that join.
	maxSeen = 512
)

// seenQuery asks when the members have heard an event first. Its payload is the
// event's digest; the answer is its age in milliseconds, in decimal, or notSeen.
const (
	seenQuery = EventPrefix + "seen"
	notSeen   = "-"
)

// asked takes a query in, without waiting. The answerer answers it.
func (p *Pool) asked(q *serf.Query) {
	if !strings.HasPrefix(q.Name, EventPrefix) {
		return
	}
	select {
	case p.queries <- q:
	default:
		p.unanswered.Add(1)
	}
}

// answer answers queries, one after the other, until the pool stops.
func (p *Pool) answer() {
	for {
		select {
		case q := <-p.queries:
			text := p.answerTo(q.Name, q.Payload)
			switch {
			case text == nil:
			case len(text) > MaxAnswer:
				p.log.Warn("an answer to a query is too long", "query", q.Name, "bytes", len(text))
			default:
				if err := q.Respond(text); err != nil {
					p.log.Debug("answering a query", "query", q.Name, "error", err)
				}
			}
		case <-p.halt.Done():
			return
		}
	}
}

func (p *Pool) answerTo(name string, payload []byte) []byte {
	switch {
	case name == seenQuery && len(payload) == sha256.Size:
		at, ok := p.seen.when([sha256.Size]byte(payload))
		if !ok {
			return []byte(notSeen)
		}
		return strconv.AppendInt(nil, time.Since(at).Milliseconds(), 10)
	case name == seenQuery || p.cfg.Answer == nil:
		return nil
	}
	return p.cfg.Answer(name, bytes.Clone(payload))
}

// Bounds of how an event is judged.
const (
	// spreading is how much longer than this node another may know of an event
	// that was said to all of them just now.
	spreading = 5 * time.Second
	// hearing is how long others are given to hear of it, too, before they are
	// asked.
	hearing = 500 * time.Millisecond
	// asks is how often they are asked, if too few say that they know of it: questions
	// and answers are packets, which get lost.
	asks = 3
)

// ErrStale is the error of an event that is not news: a member has known of it
// since before this process began, or for much longer than this process has. Serf
// hands the events of the past to nodes that join, and after a cut.
var ErrStale = errors.New("the event is an old one")

// Fresh returns nil for an event that was said just now, while this process ran.
// It asks the other nodes of the cluster when they heard of it first, asks times if too
// few say that they did, which takes some seconds each, and at least half of those that are alive have to say that
// they know of it. ErrStale is the error of an old one; after any other error it
// is not known, and so nothing is to be done about it.
//
// Serf's own means, to ignore old events at a join, is used as well, but it does
// not help where others come to this node: it knows the time of nobody's past then.
func (p *Pool) Fresh(ctx context.Context, e Event) error {
	digest := e.digest()
	heard, ok := p.seen.when(digest)
	if !ok {
		return errors.New("the event was not heard here, or so long ago that it is forgotten")
	}
	others := map[string]bool{}
	for _, f := range p.Facts() {
		if f.Ours && f.State == Alive && f.Name != p.cfg.Self.Node {
			others[f.Name] = true
		}
	}
	if len(others) == 0 {
		return errors.New("nobody else of the cluster is there to tell when it was said")
	}
	select {
	case <-time.After(hearing):
	case <-ctx.Done():
		return ctx.Err()
	}
	if !p.ready() {
		return ErrStopped
	}
	v := verdict{began: p.began, heard: heard, others: others, answers: map[string]bool{}}
	for range asks {
		params := p.serf.DefaultQueryParams()
		params.RelayFactor = 1 // answers are single packets
		resp, err := p.serf.Query(seenQuery, digest[:], params)
		if err != nil {
			return fmt.Errorf("asking when the event was said: %w", err)
		}
		err = v.collect(ctx, resp)
		resp.Close()
		if err != nil || v.known() >= len(others)-v.known() {
			return err
		}
	}
	return fmt.Errorf("of %d other nodes %d have answered, and %d know of it", len(others), len(v.answers), v.known())
}

// verdict is what others say about an event.
type verdict struct {
	began, heard time.Time // this process, and the event by it
	others       map[string]bool
	answers      map[string]bool // by node: whether it knows of the event
}

// known returns how many know of the event.
func (v *verdict) known() (n int) {
	for _, knows := range v.answers {
		if knows {
			n++
		}
	}
	return n
}

// collect reads the answers to one question, until each node has answered it or its time
// is over. Its errors are ErrStale and those of ctx.
func (v *verdict) collect(ctx context.Context, resp *serf.QueryResponse) error {
	missing := maps.Clone(v.others)
	for open := true; open && len(missing) > 0; {
		var r serf.NodeResponse
		select {
		case r, open = <-resp.ResponseCh(): // closed when the time is over
		case <-ctx.Done():
			return ctx.Err()
		}
		if !open || !v.others[r.From] {
			continue
		}
		delete(missing, r.From)
		ms, err := strconv.ParseInt(string(r.Payload), 10, 64)
		v.answers[r.From] = v.answers[r.From] || err == nil // else notSeen
		if err != nil {
			continue
		}
		first := time.Now().Add(-time.Duration(ms) * time.Millisecond)
		if first.Before(v.began) || first.Before(v.heard.Add(-spreading)) {
			return fmt.Errorf("%w: %s has known of it for %v", ErrStale, r.From, time.Since(first).Round(time.Millisecond))
		}
	}
	return nil
}

// digest names an event.
func (e Event) digest() [sha256.Size]byte {
	b := binary.BigEndian.AppendUint64(nil, e.LTime)
	b = binary.BigEndian.AppendUint64(b, uint64(len(e.Name)))
	return sha256.Sum256(append(append(b, e.Name...), e.Payload...))
}

// seen remembers when events were heard first.
type seen struct {
	mu    sync.Mutex // guards what follows
	at    map[[sha256.Size]byte]time.Time
	order [][sha256.Size]byte // the oldest first; as many as there are in at
}

func newSeen() *seen { return &seen{at: map[[sha256.Size]byte]time.Time{}} }

func (s *seen) note(now time.Time, event [sha256.Size]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.at[event]; ok {
		return
	}
	if len(s.order) >= maxSeen {
		delete(s.at, s.order[0])
		s.order = s.order[1:]
	}
	s.at[event] = now
	s.order = append(s.order, event)
}

func (s *seen) when(event [sha256.Size]byte) (time.Time, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, ok := s.at[event]
	return at, ok
}
