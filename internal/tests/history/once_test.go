package history

import (
	"errors"
	"testing"
	"time"
)

// TestOnceModel: what no work that is done once can tell is found, and what it can is not.
func TestOnceModel(t *testing.T) {
	begin, get := OnceInput{Op: OnceBegin, TTL: 100}, OnceInput{Op: OnceGet}
	first := func(token uint64) OnceOutput { return OnceOutput{Phase: OnceFirst, Token: token, TTL: 100} }
	busy := func(token uint64) OnceOutput { return OnceOutput{Phase: OnceUnderWay, Token: token, TTL: 1} }
	done := func(token uint64, result string) OnceOutput {
		return OnceOutput{Phase: OnceDone, Token: token, Result: result}
	}
	under := func(op OnceOp, token uint64) OnceInput { return OnceInput{Op: op, Token: token, TTL: 100} }
	complete := func(token uint64, result string) OnceInput {
		return OnceInput{Op: OnceComplete, Token: token, Result: result, Keep: 1000}
	}
	yes, no := OnceOutput{OK: true}, OnceOutput{}
	call := func(start, end int64, in OnceInput, out any) Call {
		return Call{Object: "o", Start: start, End: end, Input: in, Output: out}
	}
	begun := call(0, 1, begin, first(1))
	for name, c := range map[string]struct {
		calls []Call
		bad   bool
	}{
		"once":                        {[]Call{begun, call(2, 3, begin, busy(1)), call(4, 5, complete(1, "r"), yes), call(6, 7, begin, done(1, "r"))}, false},
		"two firsts":                  {[]Call{begun, call(2, 3, begin, first(2))}, true},
		"two firsts at an expiry":     {[]Call{begun, call(100, 102, begin, first(2)), call(101, 103, begin, first(3))}, true},
		"after the lease":             {[]Call{begun, call(100, 102, begin, first(2))}, false},
		"busy after the lease":        {[]Call{begun, call(102, 103, begin, busy(1))}, true},
		"renewed":                     {[]Call{begun, call(50, 51, under(OnceRenew, 1), yes), call(120, 130, begin, first(2))}, true},
		"shortened":                   {[]Call{begun, call(2, 3, OnceInput{Op: OnceRenew, Token: 1, TTL: 10}, yes), call(50, 51, begin, first(2))}, true},
		"token falls":                 {[]Call{call(0, 1, begin, first(5)), call(200, 201, begin, first(4))}, true},
		"token rises":                 {[]Call{call(0, 1, begin, first(5)), call(200, 201, begin, first(6))}, false},
		"late, and nobody else":       {[]Call{begun, call(500, 501, complete(1, "r"), yes), call(502, 503, begin, done(1, "r"))}, false},
		"late complete overwrites":    {[]Call{begun, call(200, 201, begin, first(2)), call(202, 203, complete(1, "late"), yes)}, true},
		"late complete is refused":    {[]Call{begun, call(200, 201, begin, first(2)), call(202, 203, complete(1, "late"), no)}, false},
		"complete is refused":         {[]Call{begun, call(2, 3, complete(1, "r"), no)}, true},
		"another result":              {[]Call{begun, call(2, 3, complete(1, "r"), yes), call(4, 5, begin, done(1, "other"))}, true},
		"another token's":             {[]Call{begun, call(2, 3, complete(1, "r"), yes), call(4, 5, begin, done(2, "r"))}, true},
		"result lost":                 {[]Call{begun, call(2, 3, complete(1, "r"), yes), call(4, 5, begin, first(2))}, true},
		"result not shown":            {[]Call{begun, call(2, 3, complete(1, "r"), yes), call(4, 5, get, OnceOutput{})}, true},
		"forgotten after a retention": {[]Call{begun, call(2, 3, complete(1, "r"), yes), call(1002, 1004, begin, first(2))}, false},
		"kept beyond its retention":   {[]Call{begun, call(2, 3, complete(1, "r"), yes), call(1010, 1011, begin, done(1, "r"))}, true},
		"completed twice":             {[]Call{begun, call(2, 3, complete(1, "r"), yes), call(4, 5, complete(1, "s"), yes), call(6, 7, begin, done(1, "r"))}, false},
		"the second overwrites":       {[]Call{begun, call(2, 3, complete(1, "r"), yes), call(4, 5, complete(1, "s"), yes), call(6, 7, begin, done(1, "s"))}, true},
		"abandoned":                   {[]Call{begun, call(2, 3, under(OnceAbandon, 1), yes), call(4, 5, begin, first(2))}, false},
		"abandoned twice":             {[]Call{begun, call(2, 3, under(OnceAbandon, 1), yes), call(4, 5, under(OnceAbandon, 1), yes)}, true},
		"there again":                 {[]Call{begun, call(2, 3, under(OnceAbandon, 1), yes), call(4, 5, complete(1, "r"), yes)}, true},
		"lost before its time":        {[]Call{begun, call(2, 3, under(OnceRenew, 1), no)}, true},
		"over, as shown":              {[]Call{begun, call(200, 201, get, OnceOutput{Phase: OnceUnderWay, Token: 1})}, false},
		"over before its time":        {[]Call{begun, call(2, 3, get, OnceOutput{Phase: OnceUnderWay, Token: 1})}, true},
		"lost begin, perhaps done":    {[]Call{call(0, Never, begin, nil), call(5, 6, begin, busy(3))}, false},
		"lost begin, perhaps not":     {[]Call{call(0, Never, begin, nil), call(5, 6, begin, first(1))}, false},
		"lost begin, seen as two":     {[]Call{call(0, Never, begin, nil), call(5, 6, begin, busy(3)), call(7, 8, begin, busy(4))}, true},
		"lost complete, done":         {[]Call{begun, call(2, Never, complete(1, "r"), nil), call(5, 6, begin, done(1, "r"))}, false},
		"lost complete, not":          {[]Call{begun, call(2, Never, complete(1, "r"), nil), call(5, 6, begin, busy(1))}, false},
		"lost complete, another's":    {[]Call{begun, call(2, Never, complete(1, "r"), nil), call(5, 6, begin, done(1, "s"))}, true},
	} {
		err := Check(Once(0), c.calls, time.Minute)
		if v := (*Violation)(nil); errors.As(err, &v) != c.bad {
			t.Errorf("%s: %v", name, err)
		}
	}
	late := []Call{begun, call(120, 121, begin, busy(1))}
	if err := Check(Once(30), late, time.Minute); err != nil {
		t.Errorf("a copy's time runs on: %v", err)
	}
}
