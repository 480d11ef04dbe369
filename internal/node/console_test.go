package node

import (
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
)

// browse gets the page of a node, as a browser does.
func browse(t *testing.T, n *Node, key string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(bounded(t), http.MethodGet, "http://"+n.AdminAddr()+"/?key="+url.QueryEscape(key), nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", "text/html")
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatal(resp.Status, err)
	}
	return string(b)
}

// The page asks the API of its node, in the chain in which all calls are counted and bounded.
func TestPage(t *testing.T) {
	n := start(t, func(c *Config) { c.HTTPAddr = "127.0.0.1:0" })
	const key = "<script>alert(1)</script>"
	if status, body := post(t, n, "/v1/counter/add", `{"key":"`+key+`","name":"stock","delta":42}`); status != http.StatusOK {
		t.Fatal(status, body)
	}
	page := browse(t, n, key)
	for _, want := range []string{"</span> Healthy</p>", "&lt;script&gt;alert(1)&lt;/script&gt;", "<bdi>stock</bdi>", "<dt>value</dt><dd><bdi>42</bdi>", "1 counter"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q:\n%s", want, page)
		}
	}
	if strings.Contains(page, key) {
		t.Error("the key is a script")
	}
	if page := browse(t, n, strings.Repeat("k", 513)); !strings.Contains(page, "has 513 bytes; at most 512 are allowed") {
		t.Errorf("a key that is too long:\n%s", page)
	}
	_, metrics := get(t, n, "/metrics")
	for _, want := range []string{`code="OK",method="InspectKey",service="keystead.admin.v1.AdminService"} 1`, `code="InvalidArgument",method="InspectKey",service="keystead.admin.v1.AdminService"} 1`} {
		if !strings.Contains(metrics, want) {
			t.Errorf("the metrics lack %s", want)
		}
	}
}
