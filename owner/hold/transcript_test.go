package hold

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/keystead/keystead/owner/reqid"
)

// TestTranscripts runs testdata/transcripts: each file tells one story of the protocol.
//
//	acquire <name> ttl= [n=1] [of=] [wait=] [keep=] [delay=] [ticket=] [max=] [at=]
//	renew   token= ttl= [at=]
//	release token= [at=]
//	revoke  token= [at=]
//	downgrade token= n= [at=]
//	update  token= metadata= [at=]
//	capacity n= [at=]
//	reclaim <name> token= left= of= [n=1] [at=]
//	expire  [at=]
//	cancel  ticket= [at=]
//	detach  ticket= grace= [at=]
//	supersede ticket= by= wait= [keep=] [at=]
//	verify  token= [at=]
//	new                    an object that never was
//
// Without at=, a command happens at the moment of the one before it. Candidates for tokens
// are 1, 2, 3 …, at most tokens= in a step. The answer comes first, then the effects ("→"),
// then the object as it is, then the next wake-up if somebody waits.
func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata/transcripts", func(t *testing.T, path string) {
		sc := &script{}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			return sc.run(t, d)
		})
	})
}

// recorded is what a record says of a state: what is remembered of claims stays here, and
// so does what follows from the holders.
func recorded(s State) State {
	s = s.Clone()
	s.over, s.due = nil, 0
	return s
}

type script struct {
	s   State
	now int64
	fx  Effects
}

func (sc *script) run(t *testing.T, d *datadriven.TestData) (out string) {
	if at, ok := duration(t, d, "at"); ok {
		sc.now = at
	}
	tokens := Tokens{First: sc.s.LastToken + 1, Count: MaxGrants}
	d.MaybeScanArgs(t, "next", &tokens.First)
	d.MaybeScanArgs(t, "tokens", &tokens.Count)
	before := sc.s.Clone()
	seen := recorded(before)
	defer func() {
		if r := recover(); r != nil {
			sc.s = before
			out = fmt.Sprint("panic: ", r)
		}
	}()
	sc.fx.Reset()
	answer := sc.do(t, d, tokens)
	if err := sc.s.Valid(); err != nil {
		d.Fatalf(t, "%v", err)
	}
	switch d.Cmd {
	case "new", "verify":
		return answer
	case "cancel", "supersede", "detach":
	default:
		if !sc.fx.Changed && !reflect.DeepEqual(seen, recorded(sc.s)) {
			d.Fatalf(t, "the state changed, and the effects do not say so")
		}
	}
	return answer + sc.effects() + sc.s.Describe(sc.now) + sc.wake()
}

func (sc *script) do(t *testing.T, d *datadriven.TestData, tokens Tokens) string {
	token, n := number(t, d, "token"), uint32(number(t, d, "n"))
	said := func(is bool, yes string) string {
		if is {
			return yes + "\n"
		}
		return "not held\n"
	}
	ttl, _ := duration(t, d, "ttl")
	switch d.Cmd {
	case "new":
		sc.s = State{}
		return ""
	case "acquire":
		return sc.acquire(t, d, tokens, ttl)
	case "renew":
		return said(sc.s.Renew(token, ttl, sc.now, tokens, &sc.fx).Renewed, "renewed")
	case "release":
		return said(sc.s.Release(token, sc.now, tokens, &sc.fx), "released")
	case "revoke":
		return said(sc.s.Revoke(token, sc.now, tokens, &sc.fx), "revoked")
	case "downgrade":
		res := sc.s.Downgrade(token, n, sc.now, tokens, &sc.fx)
		return said(res.Held, fmt.Sprintf("holds %d", res.Weight))
	case "update":
		arg, _ := d.Arg("metadata")
		return said(sc.s.Update(token, []byte(arg.Vals[0]), sc.now, tokens, &sc.fx), "updated")
	case "capacity":
		sc.s.SetCapacity(n, sc.now, tokens, &sc.fx)
		return ""
	case "expire":
		sc.s.Expire(sc.now, tokens, &sc.fx)
		return ""
	case "verify":
		h := sc.s.Find(token, sc.now)
		return said(h.Token != 0, fmt.Sprintf("%s holds %d for another %v", h.Name, h.Weight, time.Duration(h.Left)))
	}
	return sc.place(t, d)
}

// place does what is about claims and places.
func (sc *script) place(t *testing.T, d *datadriven.TestData) string {
	ticket := number(t, d, "ticket")
	switch d.Cmd {
	case "reclaim":
		op := Reclaim{Name: d.CmdArgs[0].Key, Token: number(t, d, "token"), Weight: max(1, uint32(number(t, d, "n"))), Capacity: uint32(number(t, d, "of"))}
		op.Left, _ = duration(t, d, "left")
		res := sc.s.Reclaim(op, sc.now, &sc.fx)
		if !res.Reclaimed {
			return "not reclaimed\n"
		}
		return fmt.Sprintf("reclaimed, %d ended for it\n", res.Ended)
	case "cancel":
		if place, ok := sc.s.Cancel(ticket, sc.now); ok {
			return fmt.Sprintf("left: place %d\n", place)
		}
	case "detach":
		grace, _ := duration(t, d, "grace")
		if sc.s.Detach(ticket, sc.now, grace) {
			return "away\n"
		}
	case "supersede":
		wait, _ := duration(t, d, "wait")
		keep, _ := duration(t, d, "keep")
		if place, ok := sc.s.Supersede(ticket, number(t, d, "by"), reqid.ID{}, wait+keep, sc.now); ok {
			sc.s.Keep(number(t, d, "by"), keep > 0)
			return fmt.Sprintf("superseded: place %d\n", place)
		}
	default:
		d.Fatalf(t, "unknown command %s", d.Cmd)
	}
	return "not in the queue\n"
}

func (sc *script) acquire(t *testing.T, d *datadriven.TestData, tokens Tokens, ttl int64) string {
	op := Acquire{Name: d.CmdArgs[0].Key, TTL: ttl, Weight: max(1, uint32(number(t, d, "n"))), Capacity: uint32(number(t, d, "of")), Ticket: number(t, d, "ticket")}
	op.Wait, _ = duration(t, d, "wait")
	op.Keep, _ = duration(t, d, "keep")
	op.Delay, _ = duration(t, d, "delay")
	limit := 100
	d.MaybeScanArgs(t, "max", &limit)
	switch res := sc.s.Acquire(op, sc.now, tokens, limit, &sc.fx); res.Outcome {
	case Granted:
		return fmt.Sprintf("granted: token %d\n", res.Token)
	case Refused, Queued, QueueFull:
		return fmt.Sprintf("%v: place %d\n", res.Outcome, res.Place)
	default:
		return fmt.Sprintf("%v: the capacity is %d\n", res.Outcome, res.Capacity)
	}
}

func (sc *script) effects() string {
	var b strings.Builder
	if sc.fx.Lapsed > 0 {
		fmt.Fprintf(&b, "→ %d ended by TTL\n", sc.fx.Lapsed)
	}
	for _, w := range sc.fx.TimedOut {
		fmt.Fprintf(&b, "→ ticket %d timed out: place %d, waited %v\n", w.Ticket, w.Position, time.Duration(w.Waited))
	}
	for _, w := range sc.fx.TooLarge {
		fmt.Fprintf(&b, "→ ticket %d wants too much: place %d, waited %v\n", w.Ticket, w.Position, time.Duration(w.Waited))
	}
	for _, g := range sc.fx.Grants {
		fmt.Fprintf(&b, "→ ticket %d granted: token %d, waited %v\n", g.Ticket, g.Token, time.Duration(g.Waited))
	}
	if sc.fx.Called > 0 {
		fmt.Fprintf(&b, "→ ticket %d called\n", sc.fx.Called)
	}
	if len(sc.fx.Holders) > 0 {
		fmt.Fprintf(&b, "→ told of tokens %v\n", sc.fx.Holders)
	}
	return b.String()
}

func (sc *script) wake() string {
	wake, ok := sc.s.NextWake(sc.now)
	if !ok {
		return ""
	}
	return fmt.Sprintf("\nwake at %v", time.Duration(wake))
}

func duration(t *testing.T, d *datadriven.TestData, key string) (int64, bool) {
	arg, ok := d.Arg(key)
	if !ok {
		return 0, false
	}
	v, err := time.ParseDuration(arg.Vals[0])
	if err != nil {
		d.Fatalf(t, "%v", err)
	}
	return int64(v), true
}

func number(t *testing.T, d *datadriven.TestData, key string) uint64 {
	arg, ok := d.Arg(key)
	if !ok {
		return 0
	}
	v, err := strconv.ParseUint(arg.Vals[0], 10, 64)
	if err != nil {
		d.Fatalf(t, "%v", err)
	}
	return v
}
