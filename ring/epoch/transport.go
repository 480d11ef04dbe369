package epoch

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"sync"

	"github.com/hashicorp/raft"
)

// transport is what raft receives messages from. Raft judges an InstallSnapshot by its
// term alone. One that arrives late, in the same term, would take the table, the applied
// index and raft's configuration back: rows would return to nodes that gave them away, and
// voters of long ago would elect a leader of their own. And raft does nothing else while
// it waits for the bytes of a snapshot. So:
//
//   - raft gets a snapshot when all of it has arrived;
//   - raft gets one message at a time, the next one after the answer to the last one: a
//     snapshot is judged by what raft has made of all that came before it;
//   - a snapshot of which this node has everything is answered here.
type transport struct {
	*raft.NetworkTransport
	raft *raft.Raft
	logs raft.LogStore
	log  *slog.Logger
	dead <-chan struct{} // closed when raft has stopped

	running   *sync.WaitGroup
	in        <-chan raft.RPC
	rpcs      chan raft.RPC // to raft
	snapshots chan arrived  // snapshots
	arriving  chan struct{} // has a place for each snapshot of which more is to come
}

// arrived is a snapshot of which there is all.
type arrived struct {
	raft.RPC
	req  *raft.InstallSnapshotRequest
	data []byte
}

// maxArriving bounds the snapshots that arrive at once. The connections of a leader that
// tries again and again may end here one after the other, each with a part of one.
const maxArriving = 8

// The answers to snapshots that are not read.
var (
	errTooMany  = fmt.Errorf("%d snapshots are arriving already", maxArriving)
	errTooLarge = fmt.Errorf("a snapshot of more than %d bytes", maxSnapshot)
)

func newTransport(n *raft.NetworkTransport, logs raft.LogStore, g *Group) *transport {
	return &transport{NetworkTransport: n, logs: logs, log: g.cfg.Log, dead: g.dead, running: &g.running, in: n.Consumer(),
		rpcs: make(chan raft.RPC), snapshots: make(chan arrived), arriving: make(chan struct{}, maxArriving)}
}

// Consumer implements raft.Transport.
func (t *transport) Consumer() <-chan raft.RPC { return t.rpcs }

// run passes messages on to raft until raft has stopped.
func (t *transport) run(r *raft.Raft) {
	t.raft = r
	for {
		select {
		case rpc := <-t.in:
			if req, is := rpc.Command.(*raft.InstallSnapshotRequest); is {
				//guard:snapshot-whole -> _ = req; t.pass(rpc)
				t.arrive(rpc, req)
			} else {
				t.pass(rpc)
			}
		case s := <-t.snapshots:
			t.install(s)
		case <-t.dead:
			return
		}
	}
}

// pass gives raft a message and waits until raft has answered it.
func (t *transport) pass(rpc raft.RPC) {
	reply, answer := rpc.RespChan, make(chan raft.RPCResponse, 1)
	rpc.RespChan = answer
	select {
	case t.rpcs <- rpc:
	case <-t.dead:
		return
	}
	select {
	case a := <-answer:
		reply <- a
	//guard:snapshot-in-turn insert default:
	case <-t.dead:
	}
}

// arrive reads a snapshot, beside the messages that come meanwhile. What is refused here
// ends its connection: nobody reads the rest.
func (t *transport) arrive(rpc raft.RPC, req *raft.InstallSnapshotRequest) {
	if req.Size > maxSnapshot {
		rpc.Respond(nil, errTooLarge)
		return
	}
	select {
	case t.arriving <- struct{}{}:
	default:
		rpc.Respond(nil, errTooMany)
		return
	}
	t.running.Go(func() { // ends with the connection, at the latest with the listener
		data, err := io.ReadAll(rpc.Reader)
		<-t.arriving
		if err == nil && int64(len(data)) != req.Size {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			rpc.Respond(nil, fmt.Errorf("reading a snapshot: %w", err))
			return
		}
		select {
		case t.snapshots <- arrived{rpc, req, data}:
		case <-t.dead:
		}
	})
}

// install gives raft a snapshot that holds more than this node has. Any other one is
// answered: the leader may go on after it, if it leads this term.
func (t *transport) install(s arrived) {
	//guard:snapshot-applied true
	if !t.has(s.req) {
		s.Reader = bytes.NewReader(s.data)
		t.pass(s.RPC)
		return
	}
	term := t.raft.CurrentTerm()
	t.log.Info("a snapshot came that holds nothing new", "index", s.req.LastLogIndex, "applied", t.raft.AppliedIndex(), "its term", s.req.Term, "term", term)
	s.Respond(&raft.InstallSnapshotResponse{Term: term, Success: s.req.Term == term && t.raft.State() == raft.Follower}, nil)
}

// has reports whether all entries of a snapshot are here: applied, or at least in the
// log, from where they are applied as soon as the leader says that they are committed.
func (t *transport) has(req *raft.InstallSnapshotRequest) bool {
	if req.LastLogIndex <= t.raft.AppliedIndex() {
		return true
	}
	var last raft.Log
	return t.logs.GetLog(req.LastLogIndex, &last) == nil &&
		last.Term == req.LastLogTerm //guard:snapshot-in-log false
}
