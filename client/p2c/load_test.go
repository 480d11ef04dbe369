package p2c

import (
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"pgregory.net/rapid"
)

const ms = int64(time.Millisecond)

// withDefaults returns the Config of the tests: the defaults.
func withDefaults(t testing.TB, c Config) Config {
	t.Helper()
	c, err := c.WithDefaults()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// call is one call, from begin on, that took so long.
func call(l *Load, begin, took int64, o Outcome) {
	l.Begin(begin)
	l.End(begin, begin+took, o)
}

func near(got, want float64) bool { return math.Abs(got-want) <= 1e-6*math.Abs(want)+1e-6 }

func TestCostFollowsLatency(t *testing.T) {
	l := NewLoad(withDefaults(t, Config{}), 0)
	call(l, 0, 10*ms, Answered)
	if got := l.Cost(10 * ms); !near(got, float64(10*ms)) {
		t.Fatalf("after one answer of 10 ms: %v", got)
	}
	call(l, 20*ms, 40*ms, Answered)
	if got := l.Cost(60 * ms); !near(got, float64(40*ms)) {
		t.Fatalf("a slower answer counts at once: %v", got)
	}
	// A quick answer after one time constant leaves 1/e of the difference.
	at := 60*ms + int64(DefaultDecay)
	call(l, at-10*ms, 10*ms, Answered)
	if got, want := l.Cost(at), float64(10*ms)+30*float64(ms)/math.E; !near(got, want) {
		t.Fatalf("got %v, want %v", got, want)
	}
	// Many answers at one moment say no more than one.
	for range 1000 {
		call(l, at-10*ms, 10*ms, Answered)
	}
	if got, want := l.Cost(at), float64(10*ms)+30*float64(ms)/math.E; !near(got, want) {
		t.Fatalf("got %v, want %v", got, want)
	}
	l.Begin(at)
	l.Begin(at)
	if got, want := l.Cost(at), 3*(float64(10*ms)+30*float64(ms)/math.E); !near(got, want) || l.InFlight() != 2 {
		t.Fatalf("two in flight: got %v, want %v", got, want)
	}
}

func TestUnseenFadesToAQuarter(t *testing.T) {
	l := NewLoad(withDefaults(t, Config{}), 0)
	call(l, 0, 80*ms, Answered)
	if got, want := l.Cost(80*ms+int64(DefaultDecay)), 80*float64(ms)/math.E; !near(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := l.Cost(int64(time.Hour)); !near(got, 20*float64(ms)) {
		t.Errorf("after an hour: %v", got)
	}
}

func TestNothingKnown(t *testing.T) {
	l := NewLoad(withDefaults(t, Config{}), 0)
	if l.Cost(0) != 0 {
		t.Fatalf("a new backend costs %v", l.Cost(0))
	}
	l.Begin(0)
	if got := l.Cost(0); !near(got, 2*float64(DefaultPenalty)) {
		t.Fatalf("with its first call under way it costs %v", got)
	}
	// The call never got there, so the next one is the first again.
	l.End(0, 1, Unknown)
	if l.Cost(1) != 0 {
		t.Fatalf("still nothing is known, and it costs %v", l.Cost(1))
	}
	call(l, 1, ms, Abandoned)
	if got := l.Cost(ms + 1); !near(got, float64(DefaultPenalty)) || l.Down() {
		t.Fatalf("without an answer yet: %v, down %t", got, l.Down())
	}
}

func TestFailures(t *testing.T) {
	cfg := withDefaults(t, Config{})
	l := NewLoad(cfg, 0)
	call(l, 0, 1, Failed)
	if !l.Down() || l.Cost(1) < float64(DefaultPenalty) {
		t.Fatalf("nothing but a failure: down %t, cost %v", l.Down(), l.Cost(1))
	}
	// One failure among many answers costs its share of the penalty, and is
	// forgotten.
	l = NewLoad(cfg, 0)
	at := int64(0)
	for range 1000 {
		at += 10 * ms
		call(l, at, ms, Answered)
	}
	before := l.Cost(at)
	at += 10 * ms
	call(l, at-1, 1, Failed)
	share := 1 - math.Exp(-float64(9*ms+1)/float64(cfg.Decay))
	if got, want := l.Cost(at)-before, share*float64(cfg.Penalty); math.Abs(got-want) > 0.02*want || l.Down() {
		t.Fatalf("one failure costs %v, want about %v", got, want)
	}
	if got := l.Cost(at + 10*int64(cfg.Decay)); got > before {
		t.Fatalf("not forgotten: %v", got)
	}
	call(l, at, 1, Failed)
	if l.Down() {
		t.Fatal("down after two failures in a row")
	}
	call(l, at, 1, Failed)
	if !l.Down() {
		t.Fatal("not down after three failures in a row")
	}
	call(l, at, ms, Answered)
	if l.Down() {
		t.Fatal("down after an answer")
	}
}

// An instant failure, or a caller who left at once, never makes a backend look
// fast.
func TestOnlyAnswersLowerTheLatency(t *testing.T) {
	for _, o := range []Outcome{Unknown, Abandoned, Failed} {
		l := NewLoad(withDefaults(t, Config{}), 0)
		call(l, 0, 50*ms, Answered)
		at := 50*ms + 100
		before := l.Cost(at)
		call(l, at-1, 1, o)
		if l.Cost(at) < before {
			t.Errorf("outcome %d: from %v to %v", o, before, l.Cost(at))
		}
		call(l, at-100*ms, 100*ms, o)
		if raised := l.Cost(at) >= 100*float64(ms); raised != (o != Unknown) {
			t.Errorf("outcome %d: 100 ms without an answer: cost %v", o, l.Cost(at))
		}
	}
}

func TestStreamsSayNothingOfLatency(t *testing.T) {
	l := NewLoad(withDefaults(t, Config{}), 0)
	call(l, 0, ms, Answered)
	for _, o := range []Outcome{Answered, Abandoned} {
		call(l, 0, int64(Longest)+1, o)
	}
	if got := l.Cost(int64(Longest)); got > float64(ms) {
		t.Errorf("cost %v", got)
	}
	for range downAfter {
		call(l, 0, int64(time.Hour), Failed)
	}
	if !l.Down() {
		t.Error("streams that break say nothing")
	}
}

func TestPatience(t *testing.T) {
	cfg := withDefaults(t, Config{})
	probe := int64(cfg.Probe)
	l := NewLoad(cfg, 0)
	if l.due() != probe {
		t.Fatalf("due at %d", l.due())
	}
	// Failures that were under way together are one.
	for range 50 {
		l.Begin(0)
	}
	for range 50 {
		l.End(0, ms, Failed)
	}
	if l.due() != probe {
		t.Fatalf("due at %d", l.due())
	}
	at := int64(0)
	for _, want := range []int64{2, 4, 8, 8} {
		at = l.due()
		call(l, at, ms, Failed)
		if l.due() != at+want*probe {
			t.Fatalf("due after %d, want %d", l.due()-at, want*probe)
		}
	}
	call(l, at+1, ms, Answered)
	if l.due() != at+1+probe {
		t.Fatalf("after an answer: due after %d", l.due()-at-1)
	}
}

// Whatever happens, in whatever order the clocks of callers say so: the load is a
// number, never negative, and nothing is counted in flight in the end.
func TestLoadProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := NewLoad(Config{Decay: DefaultDecay, Penalty: DefaultPenalty, Probe: DefaultProbe}, 0)
		var begun []int64
		now := int64(0)
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			now += rapid.Int64Range(-5, 5*int64(time.Second)).Draw(t, "later")
			now = max(now, 0)
			if len(begun) == 0 || rapid.Bool().Draw(t, "begin") {
				l.Begin(now)
				begun = append(begun, now)
			} else {
				i := rapid.IntRange(0, len(begun)-1).Draw(t, "which")
				before, o := l.Cost(now), Outcome(rapid.IntRange(0, 3).Draw(t, "outcome"))
				share, n := before/float64(len(begun)+1), len(begun)
				l.End(begun[i], now, o)
				begun = append(begun[:i], begun[i+1:]...)
				if o == Failed && l.Cost(now)/float64(n) < share*(1-1e-6) {
					t.Fatalf("a failure made it lighter: %v, was %v", l.Cost(now)/float64(n), share)
				}
			}
			if c := l.Cost(now); c < 0 || math.IsNaN(c) || math.IsInf(c, 0) {
				t.Fatalf("cost %v", c)
			}
			if f := math.Float64frombits(l.failing.Load()); f < 0 || f > 1 {
				t.Fatalf("failing %v", f)
			}
			if l.InFlight() != int64(len(begun)) {
				t.Fatalf("%d in flight, want %d", l.InFlight(), len(begun))
			}
			if p := l.patience.Load(); p < int64(DefaultProbe) || p > int64(DefaultProbe)<<maxDoublings {
				t.Fatalf("patience %d", p)
			}
		}
	})
}

func TestOutcomes(t *testing.T) {
	for c, want := range map[codes.Code]Outcome{
		codes.OK: Answered, codes.NotFound: Answered, codes.AlreadyExists: Answered, codes.Aborted: Answered,
		codes.FailedPrecondition: Answered, codes.OutOfRange: Answered, codes.InvalidArgument: Answered,
		codes.Canceled: Abandoned, codes.Unavailable: Failed, codes.DeadlineExceeded: Failed, codes.ResourceExhausted: Failed,
		codes.Internal: Failed, codes.Unknown: Failed, codes.DataLoss: Failed, codes.Unimplemented: Failed,
		codes.Unauthenticated: Failed, codes.PermissionDenied: Failed,
	} {
		if got := OutcomeOf(status.Error(c, "")); got != want {
			t.Errorf("%s: %d, want %d", c, got, want)
		}
	}
	unavailable, internal := status.Error(codes.Unavailable, ""), status.Error(codes.Internal, "")
	for _, x := range []struct {
		what string
		done balancer.DoneInfo
		want Outcome
	}{
		{"an answer", balancer.DoneInfo{BytesSent: true, BytesReceived: true}, Answered},
		{"the connection had gone: gRPC chooses again", balancer.DoneInfo{}, Unknown},
		{"it went while the call began", balancer.DoneInfo{Err: unavailable}, Failed},
		{"it could not be encoded", balancer.DoneInfo{Err: internal}, Unknown},
		{"the backend broke", balancer.DoneInfo{Err: internal, BytesSent: true}, Failed},
		{"no status", balancer.DoneInfo{Err: errors.New("x"), BytesSent: true, BytesReceived: true}, Failed},
		{"the caller left", balancer.DoneInfo{Err: status.Error(codes.Canceled, ""), BytesSent: true}, Abandoned},
	} {
		if got := judge(x.done); got != x.want {
			t.Errorf("%s: %d, want %d", x.what, got, x.want)
		}
	}
}

func TestConfig(t *testing.T) {
	for text, want := range map[string]Config{
		`{}`: {DefaultDecay, DefaultPenalty, DefaultProbe},
		`{"probe":"5s","decay":"0.5s","penalty":"100ms","later":[1]}`: {500 * time.Millisecond, 100 * time.Millisecond, 5 * time.Second},
	} {
		if got, err := parse([]byte(text)); err != nil || got != want {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
	for text, field := range map[string]string{
		`[]`: "", `{"probe":5}`: "", `{"probe":"5"}`: "probe", `{"probe":"0s"}`: "probe", `{"decay":"-1s"}`: "decay",
		`{"penalty":"1us"}`: "penalty", `{"decay":"2h"}`: "decay", ``: "",
	} {
		var e *Invalid
		if _, err := parse([]byte(text)); !errors.As(err, &e) || e.Field != field || e.Hint == "" || e.Message == "" {
			t.Errorf("%s: %v", text, err)
		}
	}
	// What a Config writes is what is read.
	rapid.Check(t, func(t *rapid.T) {
		d := func(name string) time.Duration {
			return time.Duration(rapid.Int64Range(int64(minSetting), int64(maxSetting)).Draw(t, name))
		}
		want := Config{Decay: d("decay"), Penalty: d("penalty"), Probe: d("probe")}
		text := want.ServiceConfig()
		const head, tail = `{"loadBalancingConfig":[{"keystead_p2c":`, `}]}`
		got, err := parse([]byte(text[len(head) : len(text)-len(tail)]))
		if err != nil || got != want || text[:len(head)] != head {
			t.Fatalf("%s: %+v, %v", text, got, err)
		}
	})
	if got := (Config{}).ServiceConfig(); got != `{"loadBalancingConfig":[{"keystead_p2c":{}}]}` {
		t.Error(got)
	}
	_, err := Config{Probe: -1}.WithDefaults()
	if got := fmt.Sprint(err); got != "keystead_p2c.probe: -1ns is out of range (choose 1ms to 1h0m0s, or leave it out for 10s)" {
		t.Error(got)
	}
}
