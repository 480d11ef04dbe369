package lock

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
//	acquire <holder> ttl= [wait=] [ticket=] [max=] [at=]
//	renew   token= ttl= [at=]
//	release token= [at=]
//	reclaim <holder> token= left= [at=]
//	expire  [at=]
//	cancel  ticket= [at=]
//	supersede ticket= by= wait= [at=]
//	inspect [limit=] [at=]
//	reads   [at=]          what Held, Absent and NextWake say
//	new                    a lock that never was
//
// Without at=, a command happens at the moment of the one before it. Candidates
// for tokens are 1, 2, 3 …, or next=. The answer comes first, then the effects
// ("→"), then the lock as it is, then the next wake-up if somebody waits.
func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata/transcripts", func(t *testing.T, path string) {
		sc := &script{}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			return sc.run(t, d)
		})
	})
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
	next := sc.s.LastToken + 1
	d.MaybeScanArgs(t, "next", &next)
	before := sc.s.Clone()
	defer func() {
		if r := recover(); r != nil {
			sc.s = before
			out = fmt.Sprint("panic: ", r)
		}
	}()
	sc.fx.reset()
	answer := sc.do(t, d, next)
	if err := sc.s.Valid(); err != nil {
		d.Fatalf(t, "%v", err)
	}
	if d.Cmd == "inspect" || d.Cmd == "reads" || d.Cmd == "new" {
		return answer
	}
	quiet := !sc.fx.Changed && d.Cmd != "cancel" && d.Cmd != "supersede"
	if quiet && !reflect.DeepEqual(before.told(), sc.s.told()) {
		d.Fatalf(t, "the state changed, and the effects do not say so")
	}
	return answer + sc.effects() + sc.s.Describe(sc.now) + sc.wake()
}

func (sc *script) do(t *testing.T, d *datadriven.TestData, next uint64) string {
	switch d.Cmd {
	case "new":
		sc.s = State{}
		return ""
	case "acquire":
		op := Acquire{Holder: d.CmdArgs[0].Key, Ticket: number(t, d, "ticket")}
		op.TTL, _ = duration(t, d, "ttl")
		op.Wait, _ = duration(t, d, "wait")
		limit := DefaultMaxWaiters
		d.MaybeScanArgs(t, "max", &limit)
		res := sc.s.Acquire(op, sc.now, next, limit, &sc.fx)
		if res.Outcome == Granted {
			return fmt.Sprintf("granted: token %d\n", res.Token)
		}
		return fmt.Sprintf("%v: place %d\n", res.Outcome, res.Place)
	case "renew":
		ttl, _ := duration(t, d, "ttl")
		if sc.s.Renew(number(t, d, "token"), ttl, sc.now, next, &sc.fx).Renewed {
			return "renewed\n"
		}
		return "not held\n"
	case "release":
		if sc.s.Release(number(t, d, "token"), sc.now, next, &sc.fx).Released {
			return "released\n"
		}
		return "not held\n"
	case "reclaim":
		op := Reclaim{Holder: d.CmdArgs[0].Key, Token: number(t, d, "token")}
		op.Left, _ = duration(t, d, "left")
		switch res := sc.s.Reclaim(op, sc.now, next, &sc.fx); {
		case res.Revoked != 0:
			return fmt.Sprintf("reclaimed, token %d is revoked\n", res.Revoked)
		case res.Reclaimed:
			return "reclaimed\n"
		}
		return "not reclaimed\n"
	case "expire":
		sc.s.Expire(sc.now, next, &sc.fx)
		return ""
	case "cancel":
		if place, ok := sc.s.Cancel(number(t, d, "ticket"), sc.now); ok {
			return fmt.Sprintf("left: place %d\n", place)
		}
		return "not in the queue\n"
	case "supersede":
		wait, _ := duration(t, d, "wait")
		if place, ok := sc.s.Supersede(number(t, d, "ticket"), number(t, d, "by"), reqid.ID{}, wait, sc.now); ok {
			return fmt.Sprintf("superseded: place %d\n", place)
		}
		return "not in the queue\n"
	case "inspect":
		v := sc.s.Inspect(sc.now, int(number(t, d, "limit")))
		return fmt.Sprintf("%+v", v)
	case "reads":
		return fmt.Sprintf("held %v, absent %v%s", sc.s.Held(sc.now), sc.s.Absent(sc.now), sc.wake())
	}
	d.Fatalf(t, "unknown command %s", d.Cmd)
	return ""
}

func (sc *script) effects() string {
	var b strings.Builder
	if sc.fx.Lapsed {
		b.WriteString("→ the holder's TTL has ended\n")
	}
	for _, w := range sc.fx.TimedOut {
		fmt.Fprintf(&b, "→ ticket %d timed out: place %d, waited %v\n", w.Ticket, w.Position, time.Duration(w.Waited))
	}
	if g := sc.fx.Grant; g.Token != 0 {
		fmt.Fprintf(&b, "→ ticket %d granted: token %d, waited %v\n", g.Ticket, g.Token, time.Duration(g.Waited))
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
