package deploy

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/pb33f/libopenapi"
	validator "github.com/pb33f/libopenapi-validator"
)

// TestOpenAPI: the document that a node serves is valid by the schema of OpenAPI 3.1, and
// requests and answers are as it says.
func TestOpenAPI(t *testing.T) {
	t.Parallel()
	base := "http://" + serveHTTP(t)
	doc, err := libopenapi.NewDocument([]byte(fetch(t, http.MethodGet, base+"/openapi.json", "")))
	if err != nil {
		t.Fatal(err)
	}
	v, errs := validator.NewValidator(doc)
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	if ok, wrong := v.ValidateDocument(); !ok {
		for _, w := range wrong {
			t.Error(w)
		}
	}
	for _, call := range []struct{ method, path, body string }{
		{http.MethodPost, "/v1/limit/check", `{"key":"alice","rate":"20/1m"}`},
		{http.MethodPost, "/v1/limit/check", `{"key":"alice","limit":"20","period":"1m","cost":2}`},
		{http.MethodPost, "/v1/limit/check", `{"key":"","rate":"20/1m"}`},
		{http.MethodPost, "/v1/counter/add", `{"key":"k","delta":-3}`},
		{http.MethodGet, "/v1/counter/get?key=k", ""},
		{http.MethodPost, "/v1/lock/acquire", `{"key":"l","holder":"me","ttl":"10s","metadata":"aGVsbG8="}`},
		{http.MethodGet, "/v1/lock/inspect?key=l", ""},
		{http.MethodGet, "/v1/cluster/get-status", ""},
		{http.MethodGet, "/v1/cluster/list-members", ""},
		{http.MethodPost, "/v1/admin/drain", `{"node":"dev"}`},
	} {
		req := request(t, call.method, base+call.path, call.body)
		resp := exchange(t, call.method, base+call.path, call.body)
		if ok, wrong := v.ValidateHttpRequestResponse(req, resp); !ok {
			for _, w := range wrong {
				t.Errorf("%s %s: %v", call.method, call.path, w)
			}
		}
	}
	if ok, _ := v.ValidateHttpRequest(request(t, http.MethodPost, base+"/v1/limit/check", `{"kee":"alice"}`)); ok {
		t.Error("a field that does not exist is allowed")
	}
}

var curl = regexp.MustCompile(`http://(\S+)/v1/limit/check`)

// serveHTTP runs a node until the test ends, and returns where it serves HTTP.
func serveHTTP(t *testing.T) string {
	t.Helper()
	cmd := exec.Command(binary, "dev", "--grpc-addr", "127.0.0.1:0", "--admin-addr", "")
	cmd.Env = environ(nil)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	for s := bufio.NewScanner(out); s.Scan(); {
		if m := curl.FindStringSubmatch(s.Text()); m != nil {
			return m[1]
		}
	}
	t.Fatal("the node does not say where it serves HTTP")
	return ""
}

func request(t *testing.T, method, url, body string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	return req
}

// exchange sends a request and returns the answer, read into memory.
func exchange(t *testing.T, method, url, body string) *http.Response {
	t.Helper()
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(request(t, method, url, body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body = io.NopCloser(bytes.NewReader(b))
	return resp
}

func fetch(t *testing.T, method, url, body string) string {
	t.Helper()
	b, err := io.ReadAll(exchange(t, method, url, body).Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
