package cluster

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"sync/atomic"
)

// Ports are picked from these: below those that the system picks, so that a
// process that comes back finds its own ones free, and apart from those of the
// tests of processes, internal/tests/system.
const firstPort, lastPort = 10_000, 20_000

// ports picks ports, each once.
type ports struct {
	first int64
	n     atomic.Int64
}

func newPorts() *ports { return &ports{first: rand.Int64N(lastPort - firstPort)} }

var errNoPort = errors.New("cluster: no port is free")

// next returns a port at which nothing listens on loopback.
func (p *ports) next() (string, error) {
	for range lastPort - firstPort {
		port := strconv.FormatInt(firstPort+(p.first+p.n.Add(1))%(lastPort-firstPort), 10)
		l, err := net.Listen("tcp", ":"+port)
		if err != nil {
			continue
		}
		_ = l.Close()
		u, err := net.ListenPacket("udp", ":"+port)
		if err != nil {
			continue
		}
		_ = u.Close()
		return port, nil
	}
	return "", errNoPort
}
