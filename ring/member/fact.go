package member

import (
	"fmt"
	"net"
	"strconv"

	"github.com/hashicorp/serf/serf"
)

// State is what gossip believes of a member.
type State uint8

// The states.
const (
	Alive   State = iota + 1 // it answers
	Failed                   // it does not answer, and has not said that it leaves
	Leaving                  // it says that it leaves
	Left                     // it has left, or was removed by hand
)

// String returns the state in lower case.
func (s State) String() string {
	switch s {
	case Alive:
		return "alive"
	case Failed:
		return "failed"
	case Leaving:
		return "leaving"
	case Left:
		return "left"
	}
	return fmt.Sprintf("state %d", uint8(s))
}

// states translates serf's.
var states = map[serf.MemberStatus]State{
	serf.StatusAlive: Alive, serf.StatusFailed: Failed, serf.StatusLeaving: Leaving, serf.StatusLeft: Left,
}

// Fact is what gossip says of one member of the pool. Facts are values: two are
// equal when they say the same.
type Fact struct {
	Name string // serf name
	Self Self   // parsed from the tags; zero when it is not one of ours
	Ours bool   // it carries valid tags of our kind and of our cluster name
	Why  string // why it is not ours, for people
	// Cluster is the name of the cluster that one says it is of that is not ours; "" = it
	// says none.
	Cluster string
	Addr    string // host:port at which it gossips
	State   State
	// Conflict is the gossip address of another process that claims the same
	// name, "" if none has in the last minute or so.
	Conflict string
}

// String prints the fact for people.
func (f Fact) String() string {
	s := fmt.Sprintf("%s %s at %s", f.Name, f.State, f.Addr)
	if f.Ours {
		s += fmt.Sprintf(" incarnation %d", f.Self.Incarnation)
	} else {
		s += ", not ours: " + f.Why
	}
	if f.Conflict != "" {
		s += ", name also claimed at " + f.Conflict
	}
	return s
}

// newFact returns the fact about a member as serf shows it.
func newFact(cluster string, m serf.Member) Fact {
	f := Fact{Name: m.Name, Addr: addrOf(m.Addr, m.Port), State: states[m.Status]}
	self, err := parse(cluster, m.Name, m.Tags)
	if err != nil {
		f.Why, f.Cluster = err.Error(), clip(m.Tags[tagCluster])
		return f
	}
	f.Self, f.Ours = self, true
	return f
}

func addrOf(ip net.IP, port uint16) string {
	return net.JoinHostPort(ip.String(), strconv.Itoa(int(port)))
}
