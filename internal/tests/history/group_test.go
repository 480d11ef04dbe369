package history

import (
	"errors"
	"testing"
	"time"
)

// TestGroupModel: what no group can tell is found, and what one can is not.
func TestGroupModel(t *testing.T) {
	join := func(id int, after uint64) GroupInput {
		return GroupInput{Op: GroupJoin, ID: id, TTL: 100, After: after}
	}
	got := func(token uint64) GroupOutput { return GroupOutput{OK: true, Token: token, TTL: 100} }
	under := func(op GroupOp, token uint64) GroupInput { return GroupInput{Op: op, Token: token, TTL: 100} }
	list, yes, no := GroupInput{Op: GroupList}, GroupOutput{OK: true, TTL: 100}, GroupOutput{}
	are := func(tokens ...uint64) (o GroupOutput) {
		copy(o.Members[:], tokens)
		return o
	}
	call := func(start, end int64, in GroupInput, out any) Call {
		return Call{Object: "g", Start: start, End: end, Input: in, Output: out}
	}
	first := call(0, 1, join(0, 0), got(1))
	for name, c := range map[string]struct {
		calls []Call
		bad   bool
	}{
		"members":              {[]Call{first, call(2, 3, join(1, 0), got(2)), call(4, 5, list, are(1, 2))}, false},
		"one is missing":       {[]Call{first, call(2, 3, join(1, 0), got(2)), call(4, 5, list, are(0, 2))}, true},
		"replaced":             {[]Call{first, call(2, 3, join(0, 0), got(2)), call(4, 5, list, are(2)), call(6, 7, under(GroupVerify, 1), no)}, false},
		"replaced, and there":  {[]Call{first, call(2, 3, join(0, 0), got(2)), call(4, 5, list, are(1))}, true},
		"two of an id":         {[]Call{first, call(2, 3, join(0, 0), got(2)), call(4, 5, under(GroupRenew, 1), yes)}, true},
		"token falls":          {[]Call{call(0, 1, join(0, 0), got(5)), call(2, 3, join(1, 0), got(4))}, true},
		"after its time":       {[]Call{first, call(102, 103, list, are())}, false},
		"listed after its end": {[]Call{first, call(102, 103, list, are(1))}, true},
		"renewed":              {[]Call{first, call(50, 51, under(GroupRenew, 1), yes), call(120, 121, list, are(1))}, false},
		"renewed, and gone":    {[]Call{first, call(50, 51, under(GroupRenew, 1), yes), call(120, 121, list, are())}, true},
		"left":                 {[]Call{first, call(2, 3, under(GroupLeave, 1), yes), call(4, 5, list, are())}, false},
		"left, and there":      {[]Call{first, call(2, 3, under(GroupLeave, 1), yes), call(4, 5, list, are(1))}, true},
		"left twice":           {[]Call{first, call(2, 3, under(GroupLeave, 1), yes), call(4, 5, under(GroupLeave, 1), yes)}, true},
		"comes back":           {[]Call{first, call(102, 103, join(0, 1), got(2)), call(104, 105, list, are(2))}, false},
		"comes back too late":  {[]Call{first, call(2, 3, join(0, 0), got(2)), call(4, 5, join(0, 1), GroupOutput{Later: 2}), call(6, 7, list, are(2))}, false},
		"ends a later one":     {[]Call{first, call(2, 3, join(0, 0), got(2)), call(4, 5, join(0, 1), got(3))}, true},
		"refused for nothing":  {[]Call{first, call(2, 3, join(0, 1), GroupOutput{Later: 1})}, true},
		"lost, perhaps done":   {[]Call{first, call(2, Never, join(0, 0), nil), call(5, 6, list, are(3))}, false},
		"lost, perhaps not":    {[]Call{first, call(2, Never, join(0, 0), nil), call(5, 6, list, are(1))}, false},
		"lost leave, done":     {[]Call{first, call(2, Never, under(GroupLeave, 1), nil), call(5, 6, list, are())}, false},
		"lost leave, back":     {[]Call{first, call(2, Never, under(GroupLeave, 1), nil), call(5, 6, list, are()), call(7, 8, list, are(1))}, true},
	} {
		err := Check(Group(0), c.calls, time.Minute)
		if v := (*Violation)(nil); errors.As(err, &v) != c.bad {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := Check(Group(30), []Call{first, call(120, 121, list, are(1))}, time.Minute); err != nil {
		t.Errorf("a copy's time runs on: %v", err)
	}
}
