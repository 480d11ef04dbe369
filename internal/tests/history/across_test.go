package history

import (
	"errors"
	"testing"
	"time"
)

// TestAcrossModel: what the model lets pass, and what breaks it.
func TestAcrossModel(t *testing.T) {
	t.Parallel()
	type call struct {
		op       AcrossOp
		cost     int64
		from, to int64
		maybe    bool
	}
	read := func(value, at int64) call { return call{AcrossRead, value, at, at + 1, false} }
	for what, c := range map[string]struct {
		calls []call
		good  bool
	}{
		"held and settled":                     {[]call{{AcrossCharge, 10, 0, 2, false}, read(10, 3), {AcrossChange, -6, 5, 7, false}, read(4, 8)}, true},
		"half of an Admit":                     {[]call{{AcrossCharge, 10, 0, 2, false}, read(0, 3)}, false},
		"above the bound":                      {[]call{{AcrossCharge, 30, 0, 2, false}, {AcrossCharge, 21, 3, 4, false}}, false},
		"up to the bound":                      {[]call{{AcrossCharge, 30, 0, 2, false}, {AcrossCharge, 20, 3, 4, false}, read(50, 5)}, true},
		"owed beyond the bound":                {[]call{{AcrossCharge, 50, 0, 2, false}, {AcrossChange, 3, 3, 4, false}, read(53, 5), {AcrossRefuse, 1, 6, 7, false}}, true},
		"refused below it":                     {[]call{{AcrossCharge, 30, 0, 2, false}, {AcrossRefuse, 20, 3, 4, false}}, false},
		"refused for a hold that was refused":  {[]call{{AcrossBrief, 31, 0, 9, false}, {AcrossGone, 31, 0, 9, false}, {AcrossRefuse, 20, 3, 4, false}, read(0, 10)}, true},
		"… that is over":                       {[]call{{AcrossBrief, 31, 0, 2, false}, {AcrossGone, 31, 0, 2, false}, {AcrossRefuse, 20, 3, 4, false}}, false},
		"… that is kept":                       {[]call{{AcrossBrief, 31, 0, 2, false}, {AcrossGone, 31, 0, 2, false}, read(31, 3)}, false},
		"… that was none":                      {[]call{{AcrossCharge, 40, 0, 1, false}, {AcrossBrief, 31, 2, 3, true}, {AcrossGone, 31, 2, 3, true}, read(40, 4)}, true},
		"… and cannot have been":               {[]call{{AcrossCharge, 40, 0, 1, false}, {AcrossBrief, 31, 2, 3, false}, {AcrossGone, 31, 2, 3, false}}, false},
		"ended before its time":                {[]call{{AcrossCharge, 10, 0, 2, false}, read(0, 20), {AcrossChange, -10, 50, 60, false}}, false},
		"ended when it is over":                {[]call{{AcrossCharge, 10, 0, 2, false}, read(0, 55), {AcrossChange, -10, 50, 60, false}}, true},
		"ended twice":                          {[]call{{AcrossCharge, 10, 0, 2, false}, {AcrossChange, -10, 5, 7, false}, read(-10, 8)}, false},
		"forgotten":                            {[]call{{AcrossCharge, 10, 0, 2, false}, {AcrossForget, 0, 3, 4, false}}, false},
		"not told, and not charged":            {[]call{{AcrossLoose, 10, 0, 2, false}, {AcrossCharge, 5, 3, 4, false}, read(5, 5)}, true},
		"not told, and charged":                {[]call{{AcrossLoose, 10, 0, 2, false}, {AcrossCharge, 5, 3, 4, false}, read(15, 5)}, true},
		"not told, and half of that":           {[]call{{AcrossLoose, 10, 0, 2, false}, {AcrossCharge, 5, 3, 4, false}, read(10, 5)}, false},
		"not told, and counted before it came": {[]call{read(10, 0), {AcrossLoose, 10, 2, 3, false}}, false},
	} {
		var calls []Call
		for _, x := range c.calls {
			in, out := AcrossInput{Op: x.op, Cost: x.cost, Slot: 3, Maybe: x.maybe}, AcrossOutput{}
			if x.op == AcrossRead {
				in, out = AcrossInput{Op: AcrossRead}, AcrossOutput{Value: x.cost}
			}
			calls = append(calls, Call{Object: "a", Start: 10 * x.from, End: 10*x.to - 5, Input: in, Output: out})
		}
		err := Check(Across(0), calls, time.Minute)
		if v := (*Violation)(nil); errors.As(err, &v) == c.good {
			t.Errorf("%s: %v", what, err)
		}
	}
}
