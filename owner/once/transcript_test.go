package once

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
)

// TestTranscripts runs testdata/transcripts: each file tells one story of the protocol.
//
//	begin <holder> [print=] [ttl=10s] [at=]
//	renew    token= ttl= [at=]
//	complete token= [result=] [keep=24h] [at=]
//	abandon  token= [at=]
//	forget   [under-way] [at=]
//	reclaim <holder> token= [print=] left= [at=]
//	show     [at=]
//	new                    a key that nobody has used
//
// Without at=, a command happens at the moment of the one before it. Tokens are 1, 2, 3 …. The
// answer comes first, then the state as it is.
func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata/transcripts", func(t *testing.T, path string) {
		sc := &script{}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string { return sc.run(t, d) })
	})
}

type script struct {
	s     State
	token uint64 // the last one
	now   int64
}

func (sc *script) run(t *testing.T, d *datadriven.TestData) string {
	if at := moment(t, d, "at", -1); at >= 0 {
		sc.now = at
	}
	before := sc.s
	answer, changed := sc.do(t, d)
	if !changed && !reflect.DeepEqual(before, sc.s) {
		d.Fatalf(t, "the state changed, and the answer is %q", answer)
	}
	if sc.s.Phase != Absent {
		if err := sc.s.Valid(); err != nil {
			d.Fatalf(t, "%v", err)
		}
	}
	return answer + sc.s.Describe(sc.now) + "\n"
}

func (sc *script) do(t *testing.T, d *datadriven.TestData) (answer string, changed bool) {
	var token uint64
	print, result := "", ""
	d.MaybeScanArgs(t, "token", &token)
	d.MaybeScanArgs(t, "print", &print)
	d.MaybeScanArgs(t, "result", &result)
	op := Begin{Print: []byte(print), TTL: moment(t, d, "ttl", 10*second)}
	said := func(yes bool, what string) (string, bool) {
		if yes {
			return what + "\n", true
		}
		return "not in force\n", false
	}
	switch d.Cmd {
	case "new":
		sc.s = State{}
		return "", true
	case "show":
		return "", false
	case "begin":
		op.Holder = []byte(d.CmdArgs[0].Key)
		var o Outcome
		if sc.s, o = sc.s.Begin(op, sc.token+1, sc.now); o == First {
			sc.token++
			return fmt.Sprintf("first, token %d, attempt %d\n", sc.s.Token, sc.s.Attempt), true
		} else if o == Done {
			return fmt.Sprintf("done: %s\n", sc.s.Result), false
		} else {
			return o.String() + "\n", false
		}
	case "renew":
		var ok bool
		sc.s, ok = sc.s.Renew(token, op.TTL, sc.now)
		return said(ok, "renewed")
	case "complete":
		var c Concluded
		sc.s, c = sc.s.Complete(token, []byte(result), moment(t, d, "keep", DefaultKeep), sc.now)
		if c == Repeated {
			return "completed before\n", false
		}
		return said(c == Completed, "completed")
	case "abandon":
		var ok bool
		sc.s, ok = sc.s.Abandon(token, sc.now)
		return said(ok, "abandoned")
	case "forget":
		var ok bool
		if sc.s, _, ok = sc.s.Forget(d.HasArg("under-way"), sc.now); !ok {
			return "kept\n", false
		}
		return "forgotten\n", true
	case "reclaim":
		op.Holder = []byte(d.CmdArgs[0].Key)
		var ok bool
		sc.s, ok = sc.s.Reclaim(op, token, moment(t, d, "left", 0), sc.now)
		return said(ok, "reclaimed")
	}
	d.Fatalf(t, "no command %s", d.Cmd)
	return "", false
}

const second = int64(time.Second)

func moment(t *testing.T, d *datadriven.TestData, name string, otherwise int64) int64 {
	text := ""
	if d.MaybeScanArgs(t, name, &text); text == "" {
		return otherwise
	}
	v, err := time.ParseDuration(text)
	if err != nil {
		d.Fatalf(t, "%v", err)
	}
	return int64(v)
}
