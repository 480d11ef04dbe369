package node

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/keystead/keystead/internal/httpapi"
)

// listenHTTP takes the port of the API as HTTP with JSON, if it is to be served.
func (n *Node) listenHTTP() error {
	if n.cfg.HTTPAddr == "" {
		return nil
	}
	l, err := n.cfg.Wires.Listen(n.cfg.HTTPAddr)
	if err != nil {
		return cannotListen("HTTP", "--http-addr", err)
	}
	n.httpPort = l
	n.stops = append(n.stops, func() { _ = l.Close() })
	return nil
}

// openHTTP serves the API as HTTP with JSON, if it is to be.
func (n *Node) openHTTP(reg prometheus.Registerer) (err error) {
	if n.httpPort == nil {
		return nil
	}
	n.http, err = httpapi.New(httpapi.Config{API: n.rpc, Listener: n.httpPort, MaxConns: n.cfg.MaxConns, Metrics: reg})
	if err != nil {
		return err
	}
	go func() { n.failed <- n.http.Serve() }()
	return nil
}

// stopAPI ends the calls of both doors, within grace.
func (n *Node) stopAPI(grace time.Duration) {
	if n.http == nil {
		n.rpc.Stop(grace)
		return
	}
	n.http.Stop(func() { n.rpc.Stop(grace) })
}

// HTTPAddr returns where the API listens for HTTP with JSON, "" if it does not.
func (n *Node) HTTPAddr() string {
	if n.httpPort == nil {
		return ""
	}
	return n.httpPort.Addr().String()
}
