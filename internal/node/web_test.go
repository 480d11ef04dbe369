package node

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

// post sends a call to the HTTP port of a node.
func post(t *testing.T, n *Node, path, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(bounded(t), http.MethodPost, "http://"+n.HTTPAddr()+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func TestHTTP(t *testing.T) {
	n := start(t, func(c *Config) { c.HTTPAddr = "127.0.0.1:0" })
	const check = `{"key":"alice","rate":"1/1h"}`
	for i, want := range []string{`"allowed":true`, `"allowed":false`} {
		if status, body := post(t, n, "/v1/limit/check", check); status != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("check %d: %d %s", i, status, body)
		}
	}
	if _, text := get(t, n, "/metrics"); !strings.Contains(text, `keystead_http_requests_total{status="200"} 2`) {
		t.Error("the requests are not counted")
	}
	addr := n.HTTPAddr()
	n.Stop()
	if _, err := http.Post("http://"+addr+"/v1/limit/check", "application/json", strings.NewReader(check)); err == nil {
		t.Error("a stopped node answers")
	}
	if alone := start(t, nil); alone.HTTPAddr() != "" {
		t.Error("HTTP is served unasked")
	}
}

func TestHTTPPortIsTaken(t *testing.T) {
	first := start(t, func(c *Config) { c.HTTPAddr = "127.0.0.1:0" })
	_, err := Start(Config{ID: "n2", GRPCAddr: "127.0.0.1:0", HTTPAddr: first.HTTPAddr()})
	if err == nil || !strings.Contains(err.Error(), "choose another with --http-addr") {
		t.Error(err)
	}
}
