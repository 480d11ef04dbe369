package bench

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"
)

// httpTimeout bounds one call over HTTP.
const httpTimeout = 30 * time.Second

// startHTTPCheck checks over HTTP, each caller on a connection of its own. The requests are
// written out and of the answers only the frame is read, so that what is measured is the
// node and not a client.
func startHTTPCheck(ctx context.Context, w *worker) (cycle, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", w.addr)
	if err != nil {
		return nil, err
	}
	w.close = conn.Close
	in := bufio.NewReader(conn)
	var body, out []byte
	return func(context.Context) error {
		body = append(body[:0], `{"key":"`...)
		body = append(body, w.key()...)
		body = append(body, `","name":"bench-limit","rate":"1000000/1s"}`...)
		out = append(out[:0], "POST /v1/limit/check HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nContent-Length: "...)
		out = append(append(strconv.AppendInt(out, int64(len(body)), 10), "\r\n\r\n"...), body...)
		if err := conn.SetDeadline(time.Now().Add(httpTimeout)); err != nil {
			return err
		}
		if _, err := conn.Write(out); err != nil {
			return err
		}
		return readAnswer(in)
	}, nil
}

var contentLength = []byte("Content-Length: ")

// readAnswer reads an answer of HTTP/1.1 whose length is given, as the node's is.
func readAnswer(in *bufio.Reader) error {
	status, err := in.ReadSlice('\n')
	if err != nil {
		return err
	}
	if !bytes.HasPrefix(status, []byte("HTTP/1.1 200 ")) {
		return fmt.Errorf("the node answers %q", status)
	}
	length := -1
	for {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return err
		}
		line = bytes.TrimSuffix(line, []byte("\r\n"))
		if len(line) == 0 {
			break
		}
		if n, ok := bytes.CutPrefix(line, contentLength); ok {
			if length, err = strconv.Atoi(string(n)); err != nil {
				return err
			}
		}
	}
	if length < 0 {
		return errors.New("the answer does not say how long it is")
	}
	_, err = in.Discard(length)
	return err
}
