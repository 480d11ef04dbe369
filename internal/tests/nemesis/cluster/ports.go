package cluster

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

// Ports are picked from these: below those that the system picks, so that a
// process that comes back finds its own ones free, and apart from those of the
// tests of processes, internal/tests/system.
const firstPort, lastPort = 10_000, 20_000

// blockSize is how many ports are claimed together. The first one of a block is
// the claim: who listens there has the rest of it. So clusters that start at one moment,
// in one process or in many, do not choose the same ports.
const blockSize = 25

// Ports picks ports, each once, out of blocks that are claimed until Close.
type Ports struct {
	mu     sync.Mutex
	claims []net.Listener // guarded by mu
	last   int            // guarded by mu; 0 = no block yet
	end    int            // guarded by mu; of the block
}

var errNoPort = errors.New("cluster: no port is free")

// Next returns a port at which nothing listens, and that no other cluster picks.
func (p *Ports) Next() (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		p.last++
		if p.last >= p.end {
			if err := p.claim(); err != nil {
				return "", err
			}
			continue
		}
		if port := strconv.Itoa(p.last); free(port) {
			return port, nil
		}
	}
}

// claim claims a block. Called with mu held.
func (p *Ports) claim() error {
	const blocks = (lastPort - firstPort) / blockSize
	at := rand.IntN(blocks)
	for i := range blocks {
		first := firstPort + (at+i)%blocks*blockSize
		l, err := net.Listen("tcp", ":"+strconv.Itoa(first))
		if err != nil {
			continue
		}
		p.claims = append(p.claims, l)
		p.last, p.end = first, first+blockSize
		return nil
	}
	return errNoPort
}

// free reports whether nothing listens at a port.
func free(port string) bool {
	l, err := net.Listen("tcp", ":"+port)
	if err != nil {
		return false
	}
	_ = l.Close()
	u, err := net.ListenPacket("udp", ":"+port)
	if err != nil {
		return false
	}
	_ = u.Close()
	return true
}

// Close gives up the claims: others may pick the ports.
func (p *Ports) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.claims {
		_ = l.Close()
	}
	p.claims, p.last, p.end = nil, 0, 0
}
