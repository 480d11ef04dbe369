package feed

import (
	"google.golang.org/grpc"

	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
	"github.com/keystead/keystead/ring/epoch/table"
)

// Stream is how far a session is: all up to its last record was sent, or is installed.
type Stream struct {
	Peer    table.Holder // at the other end
	Session uint64
	Number  uint64 // of the last record; 0 = there is none
	Rounds  uint64 // that the target has on its disk, by its word; 0 = it has not said, or this is the target
}

// Streams returns how far those are that come in.
func (i *Intake) Streams() []Stream {
	i.mu.Lock()
	defer i.mu.Unlock()
	all := make([]Stream, 0, len(i.sources))
	for from, s := range i.sources {
		if s.now != nil {
			all = append(all, Stream{Peer: from, Session: s.now.number, Number: s.now.applied.Load()})
		}
	}
	return all
}

// Stream returns how far this one is.
func (s *Sender) Stream() Stream {
	return Stream{Peer: s.cfg.Target, Session: s.cfg.Session, Number: s.last.Load(), Rounds: s.rounds.Load()}
}

// noted is how far a session was.
type noted struct {
	session *session
	applied uint64
}

// Note notes what is installed now, of all sessions. The caller calls what it returns, when all
// of that is on disk: then the sources are told. Of what a round on disk finds beside, because it
// was installed after Note, nothing is told.
func (i *Intake) Note() (synced func()) {
	i.mu.Lock()
	notes := make([]noted, 0, len(i.sources))
	for _, s := range i.sources {
		if s.now != nil {
			notes = append(notes, noted{s.now, s.now.applied.Load()})
		}
	}
	i.mu.Unlock()
	return func() { i.keep(notes) }
}

// keep has connections tell that all is on disk that was noted.
func (i *Intake) keep(notes []noted) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, n := range notes {
		//guard:feed-note-first n.applied -> n.session.applied.Load()
		if n.applied <= n.session.kept {
			continue
		}
		//guard:feed-note-first n.applied -> n.session.applied.Load()
		n.session.kept = n.applied
		select {
		case n.session.conn.kept <- struct{}{}:
		default:
		}
	}
}

// acknowledge tells a source what is installed, and what of it is on disk.
func (i *Intake) acknowledge(st grpc.BidiStreamingServer[peerv1.FeedRequest, peerv1.FeedResponse], c *inbound, applied uint64) error {
	i.mu.Lock()
	kept := c.session.kept
	i.mu.Unlock()
	ack := &peerv1.FeedAck{Applied: applied, Kept: min(kept, applied), Rounds: i.rounds(c.target)}
	return st.Send(&peerv1.FeedResponse{Response: &peerv1.FeedResponse_Ack{Ack: ack}})
}

// rounds returns how many rounds a process, which is this one, has on disk. Those that this one
// does when it is the next one are not the former's.
func (i *Intake) rounds(of table.Holder) uint64 {
	if i.cfg.Rounds == nil {
		return 0
	}
	n := i.cfg.Rounds()
	//guard:feed-rounds-own i.cfg.Self() != of -> false
	if i.cfg.Self() != of {
		return 0
	}
	return n
}
