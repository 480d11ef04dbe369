package console

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/net/html"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	adminpb "github.com/keystead/keystead/proto/keystead/admin/v1"
	clusterpb "github.com/keystead/keystead/proto/keystead/cluster/v1"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// node answers as a node does in whose objects somebody has written this text.
type node struct {
	text    string
	fault   error  // of InspectKey
	asked   string // the key
	waiting chan struct{}
}

func (n *node) Call(_ context.Context, method string, request any) (any, error) {
	switch method {
	case getStatus:
		if n.waiting != nil {
			<-n.waiting
		}
		return &clusterpb.GetStatusResponse{Id: "n1", Cluster: "prod", Epoch: 23340234121, Leader: "n1", Rows: 512, Serving: true, Incarnation: 7,
			LeaseLeftNs: 15e8, UptimeNs: int64(time.Hour), Voters: []string{"n1", "n2", "n3"},
			Warnings: []*clusterpb.Warning{{Problem: "the disk is full of " + n.text, Hint: "make room"}}}, nil
	case listMembers:
		return &clusterpb.ListMembersResponse{Members: []*clusterpb.MemberStatus{
			{Id: "n1", Raft: clusterpb.Raft_RAFT_LEADER, Gossip: clusterpb.Gossip_GOSSIP_ALIVE, OwnedShare: 0.6, RowsOwned: 256,
				Member: &clusterpb.Member{Id: "n1", Incarnation: 7, Phase: clusterpb.Phase_PHASE_ACTIVE, GrpcAddr: "10.0.0.1:7400", Version: n.text}},
			{Id: n.text, Gossip: clusterpb.Gossip_GOSSIP_FAILED, OwnedShare: 0.4},
		}}, nil
	case listHot:
		return &clusterpb.ListHotResponse{Policy: &clusterpb.HotPolicy{Floor: 1000, Factor: 10}, Keys: []*clusterpb.HotKey{
			{Key: n.text, Name: n.text, Kind: commonpb.Kind_KIND_LIMIT, RateMax: 2500, Hot: true, SinceNs: 12e9},
			{Key: "calm", Kind: commonpb.Kind_KIND_COUNTER, RateMax: 1.5},
		}}, nil
	case inspectKey:
		n.asked = request.(*adminpb.InspectKeyRequest).Key
		return &adminpb.InspectKeyResponse{Owner: &clusterpb.KeyOwner{Owner: n.text, OwnerAddr: "10.0.0.1:7400", Standby: "n2"}, Epoch: 9, LostEpoch: 8, Objects: []*adminpb.ObjectState{
			{Kind: commonpb.Kind_KIND_LIMIT, Name: n.text, IdleNs: 2e9, Limit: &adminpb.LimitState{Algorithm: limitpb.Algorithm_ALGORITHM_SLIDING_WINDOW, Limit: 1000, PeriodNs: 60e9, Spent: 7, ResetAfterNs: 3e9}},
			{Kind: commonpb.Kind_KIND_COUNTER, Name: "stock", Counter: &adminpb.CounterState{Value: -3, Version: 12}},
			{Kind: commonpb.Kind_KIND_LOCK, Name: "job", Lock: &adminpb.LockState{Waiting: 2, Holder: &lockpb.Holder{Id: n.text, Token: 99, HeldNs: 1e9, TtlNs: 2e9, Metadata: []byte(n.text)}}},
			{Kind: 77, Name: "new"},
		}}, n.fault
	}
	return nil, status.Error(codes.Unimplemented, "not of this node")
}

// serve serves the console of a node on loopback; nil = of one that starts.
func serve(t *testing.T, n *node) (*Console, *httptest.Server) {
	t.Helper()
	c := New(Config{Totals: func() Totals { return Totals{} }, Stock: func() Stock {
		return Stock{Objects: map[string]int64{"limit": 1234, "lock": 1}, Bytes: 3 << 20, MaxBytes: 1 << 30}
	}})
	if n != nil {
		c.Open(n)
	}
	s := httptest.NewServer(c)
	t.Cleanup(s.Close)
	return c, s
}

func get(t *testing.T, s *httptest.Server, target string, change ...func(*http.Request)) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+target, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range change {
		f(r)
	}
	resp, err := s.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(body)
}

// hostile are texts that callers may write into keys, names, holders and metadata.
var hostile = []string{
	`<script>alert(1)</script>`, `"><img src=x onerror=alert(1)>`, `' onmouseover='alert(1)`, `javascript:alert(1)`,
	`</title><script>alert(1)</script>`, `</style><svg onload=alert(1)>`, `--><script>alert(1)</script>`, `{{.Node}}`, `&lt;b&gt;`,
	"\u202egnp.exe", "\x1b[31mred", "a\x00b\r\n\tc", "\u2028", invalid, strings.Repeat("<i>", 500),
}

const invalid = "bad \xff utf8"

// skeleton returns the elements and attributes of a page, without what they hold.
func skeleton(t *testing.T, page string) string {
	t.Helper()
	var b strings.Builder
	for z := html.NewTokenizer(strings.NewReader(page)); ; {
		switch z.Next() {
		case html.ErrorToken:
			if !errors.Is(z.Err(), io.EOF) {
				t.Fatal(z.Err())
			}
			return b.String()
		case html.StartTagToken, html.SelfClosingTagToken:
			tag := z.Token()
			fmt.Fprintf(&b, "<%s", tag.Data)
			for _, a := range tag.Attr {
				fmt.Fprintf(&b, " %s", a.Key)
				if a.Key == "href" && !strings.HasPrefix(a.Val, "/") {
					t.Errorf("a link to elsewhere: %q", a.Val)
				}
			}
			b.WriteString(">\n")
		}
	}
}

// Nothing that callers write changes what the page is made of.
func TestHostileText(t *testing.T) {
	_, s := serve(t, &node{text: "harmless"})
	_, page := get(t, s, "/?key=harmless")
	want := skeleton(t, page)
	if strings.Count(want, "<script>") != 1 || strings.Count(page, "harmless") < 8 {
		t.Fatalf("the page shows too little:\n%s", page)
	}
	for _, text := range hostile {
		n := &node{text: text}
		_, s := serve(t, n)
		resp, page := get(t, s, "/?key="+inURL(text))
		if resp.StatusCode != 200 {
			t.Errorf("%q: %s", text, resp.Status)
		}
		switch {
		case text == invalid:
			if !strings.Contains(page, "the key is not valid UTF-8") || n.asked != "" {
				t.Errorf("%q was looked up: %q", text, n.asked)
			}
			_, page = get(t, s, "/?key=harmless")
		case n.asked != text:
			t.Errorf("%q was looked up, not %q", n.asked, text)
		}
		if got := skeleton(t, page); got != want {
			t.Errorf("%q makes another page of it:\n%s", text, got)
		}
		// But for the field of the form, which has the key as it was typed.
		shown := regexp.MustCompile(`(?s)<input[^>]*>`).ReplaceAllString(page, "")
		if i := strings.IndexAny(shown, "\u202e\x1b\x00\u2028\r\t"); i >= 0 {
			t.Errorf("%q: %q stands on the page", text, shown[max(0, i-20):i+4])
		}
	}
}

// inURL escapes every byte of a key.
func inURL(key string) string {
	var b strings.Builder
	for _, c := range []byte(key) {
		fmt.Fprintf(&b, "%%%02x", c)
	}
	return b.String()
}

// What cannot be seen is written as an escape.
func TestPrintable(t *testing.T) {
	for text, want := range map[string]string{
		"tenant 42": "tenant 42", "größe": "größe", "a\x1b[2J": `a\x1b[2J`, "\u202egnp": `\u202egnp`, "a\tb\n": `a\tb\n`, "x\xff": `x\xff`, "\ufffd": "\ufffd",
	} {
		if got := printable(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	if got := printable(strings.Repeat("ä", 5000)); len(got) > maxText+8 || !strings.HasSuffix(got, "…") {
		t.Errorf("%d bytes", len(got))
	}
}

// The browser is to run the page's own script, and nothing else.
func TestHeaders(t *testing.T) {
	_, s := serve(t, &node{text: "x"})
	resp, page := get(t, s, "/")
	policy := resp.Header.Get("Content-Security-Policy")
	for _, part := range []string{"default-src 'none'", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'self'", "connect-src 'self'"} {
		if !strings.Contains(policy, part) {
			t.Errorf("the policy lacks %s: %s", part, policy)
		}
	}
	if strings.Contains(policy, "unsafe") {
		t.Error(policy)
	}
	for _, element := range []string{"style", "script"} {
		found := regexp.MustCompile(`(?s)<`+element+`>(.*?)</`+element+`>`).FindAllStringSubmatch(page, -1)
		if len(found) != 1 {
			t.Fatalf("%d times <%s>", len(found), element)
		}
		sum := sha256.Sum256([]byte(found[0][1]))
		if want := element + "-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"; !strings.Contains(policy, want) {
			t.Errorf("the browser would refuse the <%s>: %s is not in %s", element, want, policy)
		}
	}
	for name, want := range map[string]string{"X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Cache-Control": "no-store", "Referrer-Policy": "no-referrer", "Content-Type": "text/html; charset=utf-8"} {
		if got := resp.Header.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if bad := regexp.MustCompile(`https?://|\sstyle=|\son[a-z]+=|@import|url\(`).FindString(page); bad != "" {
		t.Errorf("the page names something of elsewhere, or has code where the policy refuses it: %q", bad)
	}
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete} {
		if resp, _ := get(t, s, "/", func(r *http.Request) { r.Method = method }); resp.StatusCode != http.StatusMethodNotAllowed || resp.Header.Get("X-Frame-Options") == "" {
			t.Errorf("%s: %s", method, resp.Status)
		}
	}
}

// A page of elsewhere whose name leads to loopback cannot read this one.
func TestOwnName(t *testing.T) {
	_, s := serve(t, &node{text: "x"})
	for host, want := range map[string]int{
		"localhost": 200, "localhost:7480": 200, "LOCALHOST.:1": 200, "n1.localhost:80": 200, "node1:7480": 200, "n1.internal": 200, "127.0.0.1:7480": 200, "[::1]:7480": 200, "10.0.0.1": 200,
		"evil.example": 421, "evil.example:7480": 421, "localhost.evil.example": 421, "127.0.0.1.evil.example:80": 421,
	} {
		if resp, page := get(t, s, "/?key=k", func(r *http.Request) { r.Host = host }); resp.StatusCode != want || want != 200 && strings.Contains(page, "<") {
			t.Errorf("%s: %s", host, resp.Status)
		}
	}
	r := httptest.NewRequest(http.MethodGet, "http://node.example/", nil)
	r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, net.Addr(&net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 7480})))
	if !ownName(r) {
		t.Error("off loopback a node has names that it does not know")
	}
}

// The page says how it is, and what there is of a key.
func TestPage(t *testing.T) {
	n := &node{text: "tenant-42"}
	_, s := serve(t, n)
	_, page := get(t, s, "/?key=tenant-42")
	text := regexp.MustCompile(`\s+`).ReplaceAllString(regexp.MustCompile(`<[^>]*>`).ReplaceAllString(page, " "), " ")
	for _, want := range []string{
		"! n1 · prod", "of cluster prod · up 1h", "! Healthy, but", "the disk is full of tenant-42 make room", "Objects 1,235 1,234 limits, 1 lock", "Memory for objects 3 MiB of 1 GiB",
		"Epoch 23340234121", "Leader n1", "Lease left 1.5s", "n1 this node, leads active alive leader 60.0% 256", "tenant-42 – failed –",
		"tenant-42 tenant-42 limit 2,500 hot for 12s", "calm – counter 1.5", "Hot: from 1,000 a second and 10 times the average",
		"Owner tenant-42 10.0.0.1:7400 · standby n2 · epoch 9", "lost in epoch 8", "limit tenant-42 spent 7 limit 1,000 in 1m shape sliding window full again in 3s changed 2s ago",
		"counter stock value -3 version 12", "lock job held by tenant-42 for 1s lease left 2s fencing token 99 metadata tenant-42 waiting 2", "of a kind that this page does not show",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("it lacks %q:\n%s", want, text[strings.Index(text, "n1"):])
		}
	}
	n.fault = status.Error(codes.Unavailable, "the owner of <the key> does not answer")
	if _, page := get(t, s, "/?key=k"); !strings.Contains(page, "the owner of &lt;the key&gt; does not answer") {
		t.Error(page)
	}
	n.asked = ""
	if _, page := get(t, s, "/?key="); n.asked != "" || strings.Contains(page, "Owner <b>") {
		t.Error("something is looked up without a key")
	}
}

// A node that starts has a page that says so.
func TestPageBeforeTheNodeServes(t *testing.T) {
	_, s := serve(t, nil)
	if resp, page := get(t, s, "/?key=k"); resp.StatusCode != 200 || strings.Count(page, "the node starts, and does not serve yet") != 2 {
		t.Errorf("%s\n%s", resp.Status, page)
	}
}

// At most maxPages are made at a time.
func TestPagesAreBounded(t *testing.T) {
	n := &node{text: "x", waiting: make(chan struct{})}
	c, s := serve(t, n)
	for range maxPages {
		c.slots <- struct{}{}
	}
	if resp, _ := get(t, s, "/"); resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "" {
		t.Error(resp.Status)
	}
	<-c.slots
	close(n.waiting)
	for range 2 * maxPages {
		if resp, _ := get(t, s, "/"); resp.StatusCode != http.StatusOK {
			t.Error(resp.Status)
		}
	}
}

// slow is a reader that takes nothing.
type slow struct {
	http.ResponseWriter
	end time.Time // of the writes
}

func (w *slow) SetWriteDeadline(end time.Time) error {
	w.end = end
	return nil
}

func (w *slow) Write([]byte) (int, error) {
	if w.end.IsZero() {
		w.end = time.Now().Add(time.Hour)
	}
	time.Sleep(time.Until(w.end))
	return 0, os.ErrDeadlineExceeded
}

// Who does not read the page keeps it from others for no longer than a page may take.
func TestSlowReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(Config{Totals: func() Totals { return Totals{} }, Stock: func() Stock { return Stock{} }})
		c.Open(&node{text: "x"})
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, net.Addr(&net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 7480})))
		for range maxPages {
			go c.ServeHTTP(&slow{ResponseWriter: httptest.NewRecorder()}, r)
		}
		time.Sleep(pageTime + time.Second)
		w := httptest.NewRecorder()
		if c.ServeHTTP(w, r); w.Code != http.StatusOK {
			t.Error(w.Code)
		}
	})
}
