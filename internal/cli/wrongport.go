package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"
)

// probeTimeout bounds the test of what an address speaks that does not speak the API.
const probeTimeout = time.Second

// speaks names the protocol at an address where something listens that is not the API; ""
// if it is not known.
func speaks(addr string) string {
	ctx, cancel := context.WithTimeout(context.Background(), probeTimeout)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return ""
	}
	defer conn.Close()
	over, _ := ctx.Deadline()
	_ = conn.SetDeadline(over)
	if _, err := conn.Write([]byte("GET / HTTP/1.0\r\n\r\n")); err != nil {
		return ""
	}
	answer := make([]byte, 4096)
	n, err := conn.Read(answer)
	switch answer = answer[:n]; {
	case bytes.HasPrefix(answer, []byte("HTTP/1.")):
		return "HTTP"
	case n == 0 && err != nil && !errors.Is(err, os.ErrDeadlineExceeded):
		return "something else, like raft or gossip" // it hung up
	}
	return ""
}

// wrongPort returns the error of an address that speaks something else than the API.
func wrongPort(addr, what string) error {
	hint := "raft and gossip have ports of their own (--raft-addr, --gossip-addr)"
	if what == "HTTP" {
		hint = "it may be the port for operators (--admin-addr, 7480 by default) or for metrics"
	}
	return hinted{fmt.Errorf("%s speaks %s, not the API", addr, what), hint + "; the API is at the node's --grpc-addr, port 7400 by default"}
}
