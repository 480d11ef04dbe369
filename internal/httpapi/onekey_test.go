package httpapi

import (
	"fmt"
	"net"
	"strings"
	"testing"
)

// An Idempotency-Key that says nothing, or two things, is a mistake: no call without a key,
// and none under the first of them.
func TestOneIdempotencyKey(t *testing.T) {
	h := newHouse(t)
	for _, headers := range []string{`Idempotency-Key: ""`, "Idempotency-Key:", "Idempotency-Key: a\r\nIdempotency-Key: b"} {
		c, err := net.Dial("tcp", h.web.Addr())
		if err != nil {
			t.Fatal(err)
		}
		const body = `{"key":"k","delta":1}`
		_, _ = fmt.Fprintf(c, "POST /v1/counter/add HTTP/1.1\r\nHost: x\r\n%s\r\nContent-Length: %d\r\n\r\n%s", headers, len(body), body)
		b := make([]byte, 200)
		n, _ := c.Read(b)
		_ = c.Close()
		if !strings.Contains(string(b[:n]), " 400 ") {
			t.Errorf("%q: %s", headers, b[:n])
		}
	}
}
