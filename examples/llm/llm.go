// Package llm is a gateway before a language model that counts tokens. What a request costs
// is known when it has run, so it reserves an estimate first, with everything else that it
// has to pass, and settles it with what the model has said or written in the end.
//
//	POST /v1/chat/completions   as the model's own, streamed or whole, with headers Org and User
//
// All levels of an organisation are names of one key, so that a request passes all of them,
// or is refused and has spent nothing:
//
//	org:ORG   user:USER/rpm    requests that a user may make
//	          tpm              tokens that the organisation may use in a minute
//	          month            tokens that it has bought for the month
//	          running          requests of the organisation that run at a time
//
// # Guarantee
//
// No request is passed on that its levels do not admit. One that ends costs what the model
// says; if its caller has left before, the prompt and the pieces that were sent. If the
// gateway dies, what it had reserved stays spent, for the model may have done the work, and
// its place is free within Config.Hold.
//
// # Non-guarantee
//
// Org and User are believed: what stands before the gateway has to set them.
package llm

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/keystead/keystead/client"
)

// Config says what each organisation may use. The zero Config is a small one.
type Config struct {
	RPM     client.Rate   // requests of a user; zero = 60 a minute
	TPM     client.Rate   // tokens of an organisation; zero = 100,000 a minute
	Month   uint64        // tokens of an organisation in a month; 0 = 100,000,000
	Running int64         // requests of an organisation at a time; 0 = 8
	Hold    time.Duration // how long a gateway that died keeps a place; 0 = 15 s
	Answer  uint64        // tokens of an answer, if max_tokens does not say; 0 = 1,024
}

// Bounds of what a caller sends.
const (
	maxBody = 1 << 20 // bytes of a request
	maxWho  = 64      // bytes of an Org and a User
	// clamp is the percentage of the tokens a minute that one estimate may reserve: most
	// callers ask for more than they use, and should not keep the others out.
	clamp = 25
	// settling is for how long a settlement is tried. If it fails the estimate stays spent.
	settling = 10 * time.Second
)

// Gateway passes requests on to a model.
type Gateway struct {
	c          *client.Client
	cfg        Config
	model      string // URL, without a path
	tpm, month client.Limit
}

// New returns a gateway to the model at a URL.
func New(c *client.Client, model string, cfg Config) *Gateway {
	cfg.RPM = cmp.Or(cfg.RPM, client.PerMinute(60))
	cfg.TPM = cmp.Or(cfg.TPM, client.PerMinute(100_000))
	cfg.Running = cmp.Or(cfg.Running, 8)
	cfg.Hold = cmp.Or(cfg.Hold, 15*time.Second)
	cfg.Answer = cmp.Or(cfg.Answer, 1024)
	month := client.PerCalendar(cmp.Or(cfg.Month, 100_000_000), client.CalendarMonth)
	return &Gateway{c: c, cfg: cfg, model: model, tpm: c.Limit("tpm", cfg.TPM), month: c.Limit("month", month)}
}

// Handler returns what serves the callers.
func (g *Gateway) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/chat/completions", g.complete)
	return mux
}

// complete passes one request on, if it is admitted.
func (g *Gateway) complete(w http.ResponseWriter, r *http.Request) {
	org, user := r.Header.Get("Org"), r.Header.Get("User")
	if org == "" || user == "" || len(org) > maxWho || len(user) > maxWho {
		refuse(w, http.StatusUnauthorized, "the headers Org and User say who asks, each with 1 to 64 bytes")
		return
	}
	q, err := g.read(w, r)
	if err != nil {
		refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	h, err := g.admit(r.Context(), org, user, q)
	if errors.Is(err, client.ErrNotAdmitted) {
		if h.RetryAfter > 0 {
			w.Header().Set("Retry-After", strconv.FormatFloat(math.Ceil(h.RetryAfter.Seconds()), 'f', 0, 64))
		}
		refuse(w, http.StatusTooManyRequests, "over the limit of "+refused(h))
		return
	}
	if errors.Is(err, client.ErrInvalid) {
		refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	if err != nil { // nobody can tell whether there is room: the model is dear, so none is taken
		refuse(w, http.StatusServiceUnavailable, err.Error())
		return
	}
	used, err := g.pass(w, r, q)
	// The caller may have left, and its context with it: what it used is settled all the same.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), settling)
	defer cancel()
	if used == 0 {
		err = cmp.Or(h.Release(ctx), err)
	} else if _, failed := h.Settle(ctx, client.Cost{Name: "tpm", Cost: used}, client.Cost{Name: "month", Cost: used}); failed != nil {
		err = failed
	}
	if err != nil && r.Context().Err() == nil {
		log.Printf("org %q: %v", org, err)
	}
}

// levels are the names of what a request has to pass, in the order of its demands.
var levels = [...]string{"requests a minute of the user", "tokens a minute of the organisation", "tokens a month of the organisation", "requests at a time of the organisation"}

// admit reserves all that a request needs. It is kept until the request ends, however long
// the model writes, and for a moment only if this process dies.
func (g *Gateway) admit(ctx context.Context, org, user string, q *request) (*client.Admitted, error) {
	rpm := g.c.Limit("user:"+user+"/rpm", g.cfg.RPM)
	return g.c.Admit(ctx, client.Admit{
		Key: "org:" + org,
		Demands: []client.Demand{
			rpm.Demand(1),
			g.tpm.Demand(q.prompt + q.answer).Clamped(clamp),
			g.month.Demand(q.prompt + q.answer).Clamped(clamp),
			client.Slots("running", 1, g.cfg.Running),
		},
		Hold: g.cfg.Hold, Keep: true, Charge: true,
	})
}

// refused names the first level that refuses.
func refused(h *client.Admitted) string {
	for i, d := range h.Demands {
		if d.Refused {
			return levels[i]
		}
	}
	return "something"
}

// request is what the gateway has to know of a request to the model.
type request struct {
	body   []byte
	stream bool
	prompt uint64 // tokens, about
	answer uint64 // tokens, at most
}

// read reads a request, and has the model tell at the end of a stream what it has used.
func (g *Gateway) read(w http.ResponseWriter, r *http.Request) (*request, error) {
	all, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		return nil, err
	}
	var known struct {
		Stream   bool   `json:"stream"`
		Max      uint64 `json:"max_tokens"`
		N        uint64 `json:"n"`
		Messages []struct {
			Content string `json:"content"`
		} `json:"messages"`
	}
	fields := map[string]json.RawMessage{}
	if err := cmp.Or(json.Unmarshal(all, &known), json.Unmarshal(all, &fields)); err != nil {
		return nil, fmt.Errorf("the body is no request to a model: %w", err)
	}
	const most = 1 << 30
	q := &request{stream: known.Stream, answer: min(cmp.Or(known.Max, g.cfg.Answer), most) * min(max(known.N, 1), 128)}
	for _, m := range known.Messages {
		q.prompt += tokens(len(m.Content))
	}
	if q.stream {
		fields["stream_options"] = json.RawMessage(`{"include_usage":true}`)
	}
	q.body, err = json.Marshal(fields)
	return q, err
}

// tokens returns how many tokens a text has, about: one for four bytes, as of English.
func tokens(n int) uint64 { return uint64(n/4) + 1 }

// pass passes a request on, and returns how many tokens it has used: 0 if the model has not
// answered.
func (g *Gateway) pass(w http.ResponseWriter, r *http.Request, q *request) (used uint64, err error) {
	up, err := http.NewRequestWithContext(r.Context(), http.MethodPost, g.model+"/v1/chat/completions", bytes.NewReader(q.body))
	if err != nil {
		refuse(w, http.StatusInternalServerError, "the model's address makes no request")
		return 0, err
	}
	up.Header.Set("Content-Type", "application/json")
	if auth := r.Header.Get("Authorization"); auth != "" {
		up.Header.Set("Authorization", auth)
	}
	answer, err := http.DefaultClient.Do(up)
	if err != nil && r.Context().Err() != nil {
		return q.prompt, err // the model may have read it
	}
	if err != nil {
		refuse(w, http.StatusBadGateway, "the model does not answer")
		return 0, err
	}
	defer answer.Body.Close()
	w.Header().Set("Content-Type", answer.Header.Get("Content-Type"))
	w.WriteHeader(answer.StatusCode)
	if answer.StatusCode != http.StatusOK {
		_, err = io.Copy(w, answer.Body)
		return 0, err
	}
	m := meter{prompt: q.prompt, answer: q.answer, whole: !q.stream}
	err = m.copy(w, answer.Body)
	return m.used(), err
}

// refuse answers as a model does.
func refuse(w http.ResponseWriter, code int, why string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(map[string]any{"error": map[string]any{"message": why, "code": code}})
}
