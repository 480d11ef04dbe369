package member

import (
	"bytes"
	"fmt"
	"strings"
	"time"

	"github.com/hashicorp/serf/serf"
)

// EventPrefix begins the names of the user events that are ours.
const EventPrefix = "keystead-"

// maxEvents is the number of user events that wait to be read.
const maxEvents = 64

// Event is a user event: a word that somebody said to the whole pool, with
// Announce or `serf event`. It may come late, twice or never, and one from before
// this node joined may come as well: see Fresh.
type Event struct {
	Name    string // begins with EventPrefix
	Payload []byte
	LTime   uint64 // serf's Lamport time: orders events that knew of each other
}

// Events returns where user events whose name begins with EventPrefix are read. 64 of
// them wait; then the oldest is dropped and counted. The channel is never closed.
func (p *Pool) Events() <-chan Event { return p.events }

// Announce says something to the whole pool, oneself included. Name and payload
// have 512 bytes together, a little less with what serf adds.
func (p *Pool) Announce(name string, payload []byte) error {
	if !strings.HasPrefix(name, EventPrefix) {
		return fmt.Errorf("event %q: the name begins with %q", name, EventPrefix)
	}
	if err := p.serf.UserEvent(name, payload, false); err != nil {
		return fmt.Errorf("event %q: %w", name, err)
	}
	return nil
}

// drain takes serf's events, and never waits: serf holds its own lock while it
// hands one over.
func (p *Pool) drain(events <-chan serf.Event) {
	for {
		select {
		case e := <-events:
			p.received(e)
		case <-p.halt.Done():
			for {
				select {
				case <-events: // so that serf's goroutine does not wait for us
				default:
					return
				}
			}
		}
	}
}

func (p *Pool) received(e serf.Event) {
	switch e := e.(type) {
	case serf.MemberEvent:
		p.touchMu.Lock()
		for _, m := range e.Members {
			p.touched[m.Name] = true
		}
		p.touchMu.Unlock()
		p.pollSoon()
	case serf.UserEvent:
		if !strings.HasPrefix(e.Name, EventPrefix) {
			return
		}
		said := Event{Name: e.Name, Payload: bytes.Clone(e.Payload), LTime: uint64(e.LTime)}
		p.seen.note(time.Now(), said.digest())
		p.push(said)
	case *serf.Query:
		p.asked(e)
	}
}

// push queues an event. Only the drain calls it.
func (p *Pool) push(e Event) {
	for {
		select {
		case p.events <- e:
			return
		default:
		}
		select {
		case <-p.events:
			p.dropped.Add(1)
		default:
		}
	}
}
