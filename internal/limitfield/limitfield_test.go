package limitfield_test

import (
	"math"
	"testing"
	"time"

	"github.com/keystead/keystead/internal/limitfield"
)

// TestDraftExamples: items are written as in the examples of the draft's revision 11.
func TestDraftExamples(t *testing.T) {
	const minute = time.Minute
	for _, tc := range []struct {
		section string
		policy  limitfield.Policy
		left    limitfield.Left
		want    [2]string
	}{
		{"3", limitfield.Policy{Name: "burst", Quota: 100, Window: minute}, limitfield.Left{}, [2]string{`"burst";q=100;w=60`}},
		{"3", limitfield.Policy{Name: "daily", Quota: 1000, Window: 24 * time.Hour}, limitfield.Left{}, [2]string{`"daily";q=1000;w=86400`}},
		{"3.2", limitfield.Policy{Name: "default", Quota: 100, Window: 10 * time.Second}, limitfield.Left{}, [2]string{`"default";q=100;w=10`}},
		{"3.2", limitfield.Policy{Name: "permin", Quota: 50, Window: minute}, limitfield.Left{}, [2]string{`"permin";q=50;w=60`}},
		{"3.2", limitfield.Policy{Name: "perhr", Quota: 1000, Window: time.Hour}, limitfield.Left{}, [2]string{`"perhr";q=1000;w=3600`}},
		{"4.2", limitfield.Policy{}, limitfield.Left{Name: "default", Remaining: 50, Until: 30 * time.Second, Known: true}, [2]string{"", `"default";r=50;t=30`}},
		{"4.2", limitfield.Policy{}, limitfield.Left{Name: "default", Remaining: 999}, [2]string{"", `"default";r=999`}},
		{"4.2", limitfield.Policy{}, limitfield.Left{Name: "default", Remaining: 300_000_000, Until: minute, Known: true}, [2]string{"", `"default";r=300000000;t=60`}},
		{"B.1.2", limitfield.Policy{}, limitfield.Left{Name: "dayLimit", Remaining: 100, Until: 10 * time.Hour, Known: true}, [2]string{"", `"dayLimit";r=100;t=36000`}},
		{"B.1.4", limitfield.Policy{}, limitfield.Left{Name: "default", Until: 5 * time.Second, Known: true}, [2]string{"", `"default";r=0;t=5`}},
		{"B.2.1", limitfield.Policy{Name: "fixedwindow", Quota: 100, Window: minute},
			limitfield.Left{Name: "fixedwindow", Remaining: 99, Until: 50 * time.Second, Known: true},
			[2]string{`"fixedwindow";q=100;w=60`, `"fixedwindow";r=99;t=50`}},
		{"B.2.2", limitfield.Policy{Name: "dynamic", Quota: 100, Window: minute},
			limitfield.Left{Name: "dynamic", Remaining: 9, Until: 50 * time.Second, Known: true},
			[2]string{`"dynamic";q=100;w=60`, `"dynamic";r=9;t=50`}},
	} {
		if got := string(tc.policy.Append(nil)); tc.want[0] != "" && got != tc.want[0] {
			t.Errorf("%s: RateLimit-Policy %s, want %s", tc.section, got, tc.want[0])
		}
		if got := string(tc.left.Append(nil)); tc.want[1] != "" && got != tc.want[1] {
			t.Errorf("%s: RateLimit %s, want %s", tc.section, got, tc.want[1])
		}
	}
}

// TestBounds: what structured fields cannot say is left out, or the most that they can.
func TestBounds(t *testing.T) {
	for got, want := range map[string]string{
		string(limitfield.Quote(nil, "a\"b\\c\r\n\x00\x7fé d")):                                                  `"a\"b\\c d"`,
		string(limitfield.Policy{Name: "x", Quota: math.MaxUint64, Window: 1500 * time.Millisecond}.Append(nil)): `"x";q=999999999999999`,
		string(limitfield.Policy{Name: "x", Quota: 5, Window: time.Second, Burst: 9}.Append(nil)):                `"x";q=5;w=1;keystead-burst=9`,
		string(limitfield.Policy{Name: "x", Window: time.Second, Burst: math.MaxUint64}.Append(nil)):             `"x";q=0;w=1;keystead-burst=999999999999999`,
		string(limitfield.Left{Name: "x", Until: -time.Hour, Known: true}.Append(nil)):                           `"x";r=0;t=0`,
		string(limitfield.Left{Name: "x", Until: 1, Known: true}.Append(nil)):                                    `"x";r=0;t=1`,
		string(limitfield.Left{Name: "x", Until: math.MaxInt64, Known: true}.Append(nil)):                        `"x";r=0;t=9223372037`,
	} {
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

func TestNextToken(t *testing.T) {
	for _, tc := range []struct {
		full           time.Duration
		missing, limit uint64
		want           time.Duration
	}{
		{14 * time.Second, 5, 20, 2 * time.Second}, // one in 3 s, of which one is over
		{time.Second, 1, 20, time.Second},
		{0, 0, 20, 0},
		{time.Second, 9, 20, 0}, // it says less than it should
		{time.Hour, 5, 0, 0},
		{math.MaxInt64, math.MaxUint64, 1, 0},
	} {
		if got := limitfield.NextToken(tc.full, tc.missing, tc.limit, time.Minute); got != tc.want {
			t.Errorf("%+v: %s", tc, got)
		}
	}
}
