package node

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"runtime/pprof"
	"strings"
	"testing"
	"time"
)

// web is three nodes of a cluster that serve HTTP.
type web struct {
	t     *testing.T
	nodes map[string]*Node
	other *Node  // takes the calls
	owner *Node  // another one, which owns
	key   string // this key
}

// newWeb starts the nodes, and waits until they share the keys.
func newWeb(t *testing.T) *web {
	t.Helper()
	t.Cleanup(func() { // a probe of memberlist's outlives its node for a moment
		eventually(t, "nobody is probed any more", func() bool {
			var b strings.Builder
			return pprof.Lookup("goroutine").WriteTo(&b, 1) == nil && !strings.Contains(b.String(), "(*Memberlist).probeNode")
		})
	})
	w := &web{t: t, nodes: map[string]*Node{}}
	var first *Node
	for _, id := range []string{"n1", "n2", "n3"} {
		w.nodes[id] = start(t, oneOf(id, t.TempDir(), func(c *Config) {
			c.HTTPAddr, c.Cluster.Settle = "127.0.0.1:0", 50*time.Millisecond
			if first == nil {
				c.Cluster.Bootstrap = true
			} else {
				c.Cluster.Join = []string{first.cluster.pool.Addr()}
			}
		}))
		if first == nil {
			first = w.nodes[id]
		}
	}
	for _, n := range w.nodes {
		eventually(t, "the nodes share the keys", func() bool {
			st := n.cluster.status()
			return len(st.Members) == 3 && st.RowsToMove == 0 && st.RowsUnprotected == 0 && st.RowsOwned > 0 && st.Ready
		})
	}
	w.place()
	return w
}

// place looks for a key that one node owns and another is asked for.
func (w *web) place() {
	w.t.Helper()
	w.other = w.nodes["n1"]
	for i := range 1000 {
		w.key = fmt.Sprint("key", i)
		status, body := w.get(w.other, "/v1/cluster/get-owners?keys="+w.key)
		var got struct{ Owners []struct{ Owner string } }
		if err := json.Unmarshal([]byte(body), &got); err != nil || len(got.Owners) != 1 {
			w.t.Fatal(status, body, err)
		}
		if id := got.Owners[0].Owner; id != "n1" {
			w.owner = w.nodes[id]
			return
		}
	}
	w.t.Fatal("n1 owns all")
}

func (w *web) get(n *Node, path string) (int, string) {
	w.t.Helper()
	return w.do(n, http.MethodGet, path, "")
}

// do sends a request to a node; headers are "Name: value".
func (w *web) do(n *Node, method, path, body string, headers ...string) (int, string) {
	w.t.Helper()
	r, err := http.NewRequestWithContext(bounded(w.t), method, "http://"+n.HTTPAddr()+path, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Set(name, value)
	}
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(r)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// says calls the node that does not own the key, and expects a status and parts of the answer.
func (w *web) says(status int, parts []string, path, body string, headers ...string) {
	w.t.Helper()
	got, text := w.do(w.other, http.MethodPost, path, body, headers...)
	ok := got == status
	for _, p := range parts {
		ok = ok && strings.Contains(text, p)
	}
	if !ok {
		w.t.Errorf("%s %s %v: %d %s, want %d with %q", path, body, headers, got, text, status, parts)
	}
}

// waiting returns how many wait for the lock of the key, as its owner has it.
func (w *web) waiting() string {
	w.t.Helper()
	_, text := w.get(w.owner, "/v1/lock/inspect?name=lock&key="+url.QueryEscape(w.key))
	var got struct{ Waiting json.Number }
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		w.t.Fatal(text, err)
	}
	return got.Waiting.String()
}

// TestHTTPElsewhere: any node takes a request, and passes it on to the owner of the key with
// all that it has: key, time, and the end of its connection.
func TestHTTPElsewhere(t *testing.T) {
	t.Parallel()
	w := newWeb(t)
	owner := `"owner":"` + w.owner.cfg.ID + `"`
	add := fmt.Sprintf(`{"key":%q,"delta":5}`, w.key)
	eventually(t, "all members know idempotency keys", func() bool {
		status, _ := w.do(w.other, http.MethodPost, "/v1/counter/add", fmt.Sprintf(`{"key":%q,"name":"first","delta":1}`, w.key), "Idempotency-Key: first")
		return status == http.StatusOK
	})
	w.says(200, []string{`"value":"5"`, owner}, "/v1/counter/add", add, "Idempotency-Key: order-17")
	w.says(200, []string{`"value":"5"`, `"replay":`, owner}, "/v1/counter/add", add, "Idempotency-Key: order-17")
	w.says(422, []string{`"reason":"REQUEST_ID_REUSED"`, `"hint":"send the very same request again`, `"field":"idempotency_key"`},
		"/v1/counter/add", strings.Replace(add, "5", "6", 1), "Idempotency-Key: order-17")
	w.says(409, []string{`"reason":"KIND_MISMATCH"`, `"hint":"use another name`},
		"/v1/limit/check", fmt.Sprintf(`{"key":%q,"name":"first","rate":"20/1m"}`, w.key))
	w.says(421, []string{`"reason":"NOT_OWNER"`, owner, `"owner_addr":"` + w.owner.GRPCAddr() + `"`, `"epoch":"`}, "/v1/counter/add", add, "X-Keystead-No-Forward: 1")
	if status, text := w.get(w.other, "/v1/counter/get?key="+w.key); status != 200 || !strings.Contains(text, `"value":"5"`) {
		t.Errorf("%d %s", status, text)
	}

	w.says(200, []string{`"acquired":true`, owner}, "/v1/lock/acquire", fmt.Sprintf(`{"key":%q,"name":"lock","holder":"a","ttl":"10m"}`, w.key))
	waits := fmt.Sprintf(`{"key":%q,"name":"lock","holder":"b","ttl":"10m","wait":"1h"}`, w.key)
	w.says(504, []string{`"reason":"GAVE_UP"`}, "/v1/lock/acquire", waits, "Keystead-Timeout: 200ms")
	eventually(t, "whose time is over leaves the queue of the owner", func() bool { return w.waiting() == "0" })
	for _, more := range []string{"", "P"} {
		w.hangUp(waits, more)
	}
}

// hangUp waits for the lock at the node that does not own it, sends more and closes the
// connection: the place in the queue of the owner is free.
func (w *web) hangUp(waits, more string) {
	w.t.Helper()
	c, err := net.Dial("tcp", w.other.HTTPAddr())
	if err != nil {
		w.t.Fatal(err)
	}
	defer c.Close()
	if _, err := fmt.Fprintf(c, "POST /v1/lock/acquire HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(waits), waits); err != nil {
		w.t.Fatal(err)
	}
	eventually(w.t, "it waits at the owner", func() bool { return w.waiting() == "1" })
	_, _ = io.WriteString(c, more)
	_ = c.Close()
	eventually(w.t, "who hangs up leaves the queue of the owner", func() bool { return w.waiting() == "0" })
}
