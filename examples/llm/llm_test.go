package llm_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/keystead/keystead/client"
	"github.com/keystead/keystead/client/keysteadtest"
	"github.com/keystead/keystead/examples/llm"
)

// config has windows that do not end in a test.
var config = llm.Config{
	Month:   100_000,
	RPM:     client.Rate{Limit: 10, Period: time.Hour, Algorithm: client.FixedWindow},
	TPM:     client.Rate{Limit: 1000, Period: time.Hour, Algorithm: client.FixedWindow},
	Running: 2,
	Hold:    time.Second,
}

// place is a gateway to a parrot, and what looks at its limits.
type place struct {
	url  string
	node *keysteadtest.Node
	c    *client.Client
}

func open(t *testing.T, pause time.Duration) *place {
	t.Helper()
	node := keysteadtest.Start(t)
	return &place{serve(t, node.Client(t), pause), node, node.Client(t)}
}

// serve starts a gateway of a client.
func serve(t *testing.T, c *client.Client, pause time.Duration) (url string) {
	t.Helper()
	model := httptest.NewServer(llm.Parrot(pause))
	t.Cleanup(model.Close)
	gateway := httptest.NewServer(llm.New(c, model.URL, config).Handler())
	t.Cleanup(gateway.Close)
	return gateway.URL
}

// ask asks the model, and returns the answer without having read it.
func (p *place) ask(ctx context.Context, t *testing.T, body string) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Org", "acme")
	r.Header.Set("User", "ann")
	a, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.Body.Close() })
	return a
}

// used returns how many tokens the organisation has used or reserved, and how many holds it has.
func (p *place) used(t *testing.T) (tokens uint64, holds int) {
	t.Helper()
	d, err := p.c.Limit("tpm", config.TPM).Peek(t.Context(), "org:acme")
	if err != nil {
		t.Fatal(err)
	}
	of, _, err := p.c.Admission("").Holds(t.Context(), "org:acme", "")
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range of {
		if !h.Over {
			holds++
		}
	}
	return config.TPM.Limit - d.Remaining, holds
}

func (p *place) eventually(t *testing.T, what string, ok func(tokens uint64, holds int) bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for over := time.After(20 * time.Second); ; {
		tokens, holds := p.used(t)
		if ok(tokens, holds) {
			return
		}
		select {
		case <-tick.C:
		case <-over:
			t.Fatalf("%s: %d tokens, %d holds", what, tokens, holds)
		}
	}
}

const (
	short  = `{"stream": true, "max_tokens": 20, "messages": [{"role": "user", "content": "one two three four"}]}`
	whole  = `{"max_tokens": 20, "messages": [{"role": "user", "content": "one two three four"}]}`
	long   = `{"stream": true, "max_tokens": 200, "messages": [{"role": "user", "content": "one two three four"}]}`
	greedy = `{"stream": true, "max_tokens": 900, "messages": [{"role": "user", "content": "one two three four"}]}`
)

// TestAnswersCostWhatTheyUse: what was reserved is settled with what the model says.
func TestAnswersCostWhatTheyUse(t *testing.T) {
	p := open(t, 0)
	for i, body := range []string{short, whole} {
		a := p.ask(t.Context(), t, body)
		all, err := io.ReadAll(a.Body)
		if err != nil || a.StatusCode != http.StatusOK || strings.Count(string(all), "four") < 5 {
			t.Fatalf("%d %v: %s", a.StatusCode, err, all)
		}
		want := uint64(24 * (i + 1)) // 4 words in, 20 out
		p.eventually(t, "it is settled", func(tokens uint64, holds int) bool { return tokens == want && holds == 0 })
		d, err := p.c.Limit("month", client.PerCalendar(config.Month, client.CalendarMonth)).Peek(t.Context(), "org:acme")
		if err != nil || d.Capacity-d.Remaining != want {
			t.Errorf("of the month %d are used, %v", d.Capacity-d.Remaining, err)
		}
	}
}

// TestCallerLeaves: what was written before is charged, and no more.
func TestCallerLeaves(t *testing.T) {
	p := open(t, 20*time.Millisecond)
	ctx, leave := context.WithCancel(t.Context())
	a := p.ask(ctx, t, long)
	lines := bufio.NewScanner(a.Body)
	for range 10 {
		lines.Scan()
	}
	if tokens, holds := p.used(t); tokens < 200 || holds != 1 {
		t.Errorf("in the middle: %d tokens, %d holds", tokens, holds)
	}
	leave()
	p.eventually(t, "it is settled", func(tokens uint64, holds int) bool { return tokens >= 5 && tokens < 200 && holds == 0 })
}

// TestPlacesAreTaken: a request that one level refuses has spent nothing of the others.
func TestPlacesAreTaken(t *testing.T) {
	p := open(t, 50*time.Millisecond)
	for range 2 {
		p.ask(t.Context(), t, long)
	}
	before, _ := p.used(t)
	a := p.ask(t.Context(), t, short)
	all, _ := io.ReadAll(a.Body)
	if a.StatusCode != http.StatusTooManyRequests || !strings.Contains(string(all), "requests at a time") {
		t.Errorf("%d: %s", a.StatusCode, all)
	}
	if after, holds := p.used(t); after != before || holds != 2 {
		t.Errorf("%d tokens before, %d after, %d holds", before, after, holds)
	}
	d, err := p.c.Limit("user:ann/rpm", config.RPM).Peek(t.Context(), "org:acme")
	if err != nil || d.Remaining != 8 {
		t.Errorf("%d requests are left: %v", d.Remaining, err)
	}
}

// TestGreedyEstimate: an estimate near all of the limit keeps nobody out for ever, itself neither.
func TestGreedyEstimate(t *testing.T) {
	p := open(t, 50*time.Millisecond)
	if a := p.ask(t.Context(), t, greedy); a.StatusCode != http.StatusOK {
		t.Fatal(a.Status)
	}
	if tokens, _ := p.used(t); tokens != 250 {
		t.Errorf("%d tokens are reserved", tokens)
	}
}

// TestGatewayDies: its places are free when their time is over, and what it had reserved stays spent.
func TestGatewayDies(t *testing.T) {
	node := keysteadtest.Start(t)
	of := node.Client(t)
	p := &place{serve(t, of, 20*time.Millisecond), node, node.Client(t)}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	p.ask(ctx, t, long)
	spent, _ := p.used(t)
	of.Close() // nothing of it reaches the cluster any more
	p.eventually(t, "its place is free", func(tokens uint64, holds int) bool { return tokens == spent && holds == 0 })
	for range 2 {
		_, err := p.c.Admit(t.Context(), client.Admit{Key: "org:acme", Hold: time.Minute, Demands: []client.Demand{client.Slots("running", 1, 2)}})
		if err != nil {
			t.Error(err)
		}
	}
	_, err := p.c.Admit(t.Context(), client.Admit{Key: "org:acme", Hold: time.Minute, Demands: []client.Demand{client.Slots("running", 1, 2)}})
	if !errors.Is(err, client.ErrNotAdmitted) {
		t.Errorf("a third place: %v", err)
	}
}

// TestBadRequests: what is no request reserves nothing.
func TestBadRequests(t *testing.T) {
	p := open(t, 0)
	for _, body := range []string{"", "{", `{"max_tokens": -1}`, `{"messages": []}`, "[1]"} {
		a := p.ask(t.Context(), t, body)
		if a.StatusCode != http.StatusBadRequest {
			t.Errorf("%q: %s", body, a.Status)
		}
		_, _ = io.ReadAll(a.Body)
	}
	p.eventually(t, "nothing is spent", func(tokens uint64, holds int) bool { return tokens == 0 && holds == 0 })
}
