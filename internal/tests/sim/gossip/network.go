package gossip

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/hashicorp/memberlist"
)

// Delays of a new network: that of a local one. There is always some, so that
// things do not happen at one moment in a bubble.
const (
	defaultMinDelay = 200 * time.Microsecond
	defaultMaxDelay = time.Millisecond
)

// Bounds.
const (
	packetRoom = 1024      // packets that wait at a receiver
	streamRoom = 64        // streams that wait to be taken by a listener
	maxPacket  = 64 * 1024 // bytes; longer ones are dropped, as UDP does
)

// Network connects transports. Its settings may be changed at any time.
type Network struct {
	seed uint64

	mu                 sync.Mutex // guards what is below
	at                 map[string]*Transport
	cut                map[way]bool
	alone              map[string]bool
	dice               map[way]*rand.Rand
	loss, twice        float64
	minDelay, maxDelay time.Duration
	stats              Stats
}

// way is a direction between two addresses.
type way struct{ from, to string }

// Stats count packets.
type Stats struct {
	Sent      uint64
	Lost      uint64 // by chance or by a cut
	Unwanted  uint64 // nobody was there, or had room
	Delivered uint64 // doubles included
}

// NewNetwork returns a network without losses, with delays of 0.2 to 1 ms.
func NewNetwork(seed uint64) *Network {
	return &Network{
		seed: seed, at: map[string]*Transport{}, cut: map[way]bool{}, alone: map[string]bool{}, dice: map[way]*rand.Rand{},
		minDelay: defaultMinDelay, maxDelay: defaultMaxDelay,
	}
}

// Transport returns what somebody at the address sends and receives with, an IP
// address and a port. The address is free again after Shutdown. It panics if the
// address is none, or is taken.
func (n *Network) Transport(addr string) *Transport {
	ap, err := netip.ParseAddrPort(addr)
	if err != nil {
		panic("gossip: " + err.Error())
	}
	t := &Transport{
		net: n, addr: ap, packets: make(chan *memberlist.Packet, packetRoom), streams: make(chan net.Conn, streamRoom),
		down: make(chan struct{}), open: map[*conn]struct{}{},
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.at[ap.String()] != nil {
		panic("gossip: " + addr + " is taken")
	}
	n.at[ap.String()] = t
	return t
}

// Cut stops, or lets pass again, what goes from one address to another. The other
// direction is not touched.
func (n *Network) Cut(from, to string, cut bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if cut {
		n.cut[way{from, to}] = true
	} else {
		delete(n.cut, way{from, to})
	}
}

// Isolate stops, or lets pass again, what goes to and from an address. Cuts made
// by Cut stay.
func (n *Network) Isolate(addr string, cut bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if cut {
		n.alone[addr] = true
	} else {
		delete(n.alone, addr)
	}
}

// Heal undoes all that Cut and Isolate did.
func (n *Network) Heal() {
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.cut)
	clear(n.alone)
}

// SetLoss sets the part of the packets that are lost, from 0 to 1.
func (n *Network) SetLoss(p float64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.loss = p
}

// SetDuplicates sets the part of the packets that come twice, from 0 to 1.
func (n *Network) SetDuplicates(p float64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.twice = p
}

// SetDelay sets how long packets, and pieces of streams, are under way. Packets
// whose delays differ overtake each other.
func (n *Network) SetDelay(from, to time.Duration) {
	if from < 0 || to < from {
		panic(fmt.Sprintf("gossip: delay of %v to %v", from, to))
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.minDelay, n.maxDelay = from, to
}

// Stats returns how many packets there were.
func (n *Network) Stats() Stats {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.stats
}

// send sends a packet.
func (n *Network) send(w way, from net.Addr, b []byte) {
	n.mu.Lock()
	n.stats.Sent++
	dice := n.diceLocked(w)
	lost, twice := dice.Float64() < n.loss, dice.Float64() < n.twice
	delays := []time.Duration{n.delayLocked(w), n.delayLocked(w)}
	if lost || n.isCutLocked(w) || len(b) > maxPacket {
		n.stats.Lost++
		n.mu.Unlock()
		return
	}
	n.mu.Unlock()
	if !twice {
		delays = delays[:1]
	}
	for _, d := range delays {
		// Each gets bytes of its own: memberlist decrypts in place.
		packet := &memberlist.Packet{Buf: append([]byte(nil), b...), From: from}
		time.AfterFunc(d, func() { n.deliver(w.to, packet) })
	}
}

func (n *Network) deliver(to string, packet *memberlist.Packet) {
	n.mu.Lock()
	defer n.mu.Unlock()
	packet.Timestamp = time.Now()
	if t := n.at[to]; t != nil {
		select {
		case t.packets <- packet:
			n.stats.Delivered++
			return
		default:
		}
	}
	n.stats.Unwanted++
}

// reach returns the transport at an address, or nil.
func (n *Network) reach(addr string) *Transport {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.at[addr]
}

func (n *Network) isCut(w way) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.isCutLocked(w)
}

func (n *Network) isCutLocked(w way) bool { return n.cut[w] || n.alone[w.from] || n.alone[w.to] }

func (n *Network) delay(w way) time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.delayLocked(w)
}

func (n *Network) delayLocked(w way) time.Duration {
	return n.minDelay + time.Duration(n.diceLocked(w).Float64()*float64(n.maxDelay-n.minDelay))
}

func (n *Network) diceLocked(w way) *rand.Rand {
	if n.dice[w] == nil {
		n.dice[w] = rand.New(rand.NewPCG(n.seed, xxhash.Sum64String(w.from+" "+w.to)))
	}
	return n.dice[w]
}
