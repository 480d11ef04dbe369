package history

import (
	"errors"
	"testing"
	"time"
)

// TestAdmissionModel: what the model lets pass, and what breaks it.
func TestAdmissionModel(t *testing.T) {
	admit := func(cost int64) AdmissionInput { return AdmissionInput{Op: AdmissionAdmit, Cost: cost} }
	settle := func(cost, real int64) AdmissionInput {
		return AdmissionInput{Op: AdmissionSettle, Cost: cost, Real: real}
	}
	left := func(ok bool, n ...int64) AdmissionOutput {
		return AdmissionOutput{OK: ok, Left: [AdmissionTwins]int64(n)}
	}
	type call struct {
		in  AdmissionInput
		out any
	}
	for what, c := range map[string]struct {
		calls []call
		good  bool
	}{
		"reserved and settled":   {[]call{{admit(10), left(true, 30, 30)}, {settle(10, 4), AdmissionOutput{OK: true}}, {admit(1), left(true, 35, 35)}}, true},
		"half of a step":         {[]call{{admit(10), left(true, 30, 40)}}, false},
		"above the bound":        {[]call{{admit(30), left(true, 10, 10)}, {admit(20), left(true, 0, 0)}}, false},
		"refused below it":       {[]call{{admit(30), left(false, 40, 40)}}, false},
		"settled twice":          {[]call{{admit(10), left(true, 30, 30)}, {settle(10, 0), AdmissionOutput{OK: true}}, {admit(1), left(true, 49, 49)}}, false},
		"lost, and not settled":  {[]call{{admit(10), left(true, 30, 30)}, {settle(10, 0), nil}, {admit(1), left(true, 29, 29)}}, true},
		"lost, and settled":      {[]call{{admit(10), left(true, 30, 30)}, {settle(10, 0), nil}, {admit(1), left(true, 39, 39)}}, true},
		"lost, and half of that": {[]call{{admit(10), left(true, 30, 30)}, {settle(10, 0), nil}, {admit(1), left(true, 39, 29)}}, false},
	} {
		var calls []Call
		for i, x := range c.calls {
			end := int64(2*i + 1)
			if x.out == nil {
				end = Never
			}
			calls = append(calls, Call{Object: "a", Start: int64(2 * i), End: end, Input: x.in, Output: x.out})
		}
		err := Check(Admission(0), calls, time.Minute)
		if v := (*Violation)(nil); errors.As(err, &v) == c.good {
			t.Errorf("%s: %v", what, err)
		}
	}
}
