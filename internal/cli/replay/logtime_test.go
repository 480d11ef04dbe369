package replay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/big"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
)

// timedLine is a line of a client at a time, as a server in some zone writes it.
func timedLine(client string, at time.Time, zone int) string {
	stamp := at.In(time.FixedZone("", zone*3600)).Format("02/Jan/2006:15:04:05 -0700")
	return client + ` - - [` + stamp + `] "GET /page HTTP/1.1" 200 5120 "-" "agent"` + "\n"
}

func logTimeConfig(log string, limit uint64) Config {
	return Config{Source: strings.NewReader(log), By: "client_ip", Clock: LogTime, Limit: limit, Period: time.Minute}
}

// call is a request as it was made.
type call struct {
	at     int64 // seconds
	client string
}

// exact returns how many of the calls a token bucket of limit a minute lets through: an
// account in fractions, that shares nothing with package limit.
func exact(calls []call, limit int64) (allowed map[string]int64) {
	slices.SortStableFunc(calls, func(a, b call) int { return int(a.at - b.at) })
	level, last := map[string]*big.Rat{}, map[string]int64{}
	allowed = map[string]int64{}
	for _, c := range calls {
		l := level[c.client]
		if l == nil {
			l = new(big.Rat)
			level[c.client] = l
		} else {
			l.Sub(l, big.NewRat((c.at-last[c.client])*limit, 60))
			if l.Sign() < 0 {
				l.SetInt64(0)
			}
		}
		last[c.client] = c.at
		if l.Cmp(big.NewRat(limit-1, 1)) <= 0 {
			l.Add(l, big.NewRat(1, 1))
			allowed[c.client]++
		}
	}
	return allowed
}

func TestLogTimeIsExact(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 5))
		limit := int64(1 + rng.IntN(20))
		at := time.Date(2024, 3, 31, 0, 50, 0, 0, time.UTC).Unix() // clocks go forward an hour later
		var calls []call
		var log strings.Builder
		for range 3000 {
			switch n := rng.IntN(1000); {
			case n == 0:
				at += int64(rng.IntN(72 * 3600)) // a quiet weekend
			case n < 300:
				at += int64(rng.IntN(4))
			}
			c := call{at - int64(rng.IntN(90)), fmt.Sprintf("192.0.2.%d", rng.IntN(8))} // its end is logged
			calls = append(calls, c)
			log.WriteString(timedLine(c.client, time.Unix(c.at, 0), rng.IntN(25)-12))
		}
		cfg := logTimeConfig(log.String(), uint64(limit))
		cfg.Top = 8
		rep, err := Run(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		want := exact(calls, limit)
		var sum int64
		for _, n := range want {
			sum += n
		}
		if rep.Allowed != sum || rep.Denied != 3000-sum || rep.Late != 0 || rep.Behind < 1000 || rep.Unanswered != 0 || rep.Time != "log" {
			t.Errorf("seed %d: allowed %d, denied %d, late %d, behind %d, unanswered %d; want %d allowed",
				seed, rep.Allowed, rep.Denied, rep.Late, rep.Behind, rep.Unanswered, sum)
		}
		for _, d := range rep.MostDenied {
			if d.Allowed != want[d.Key] {
				t.Errorf("seed %d: %s was allowed %d times, want %d", seed, d.Key, d.Allowed, want[d.Key])
			}
		}
	}
}

// A bucket is full again after a pause in the log, which takes no time here; and windows
// end by the log's time as well.
func TestLogTimeOfPauses(t *testing.T) {
	begin := time.Date(2024, 2, 28, 23, 59, 0, 0, time.UTC)
	var log strings.Builder
	for day := range 400 {
		for range 15 {
			log.WriteString(timedLine("a", begin.AddDate(0, 0, day), 0))
		}
	}
	for _, algorithm := range []limitpb.Algorithm{limitpb.Algorithm_ALGORITHM_TOKEN_BUCKET, limitpb.Algorithm_ALGORITHM_FIXED_WINDOW, limitpb.Algorithm_ALGORITHM_SLIDING_WINDOW} {
		cfg := logTimeConfig(log.String(), 10)
		cfg.Algorithm = algorithm
		rep, err := Run(t.Context(), cfg)
		if err != nil || rep.Allowed != 4000 || rep.Denied != 2000 || rep.SpanSeconds != 399*24*3600 {
			t.Errorf("%s: error %v, allowed %d, denied %d over %.0f s", algorithm, err, rep.Allowed, rep.Denied, rep.SpanSeconds)
		}
	}
	cfg := Config{Source: strings.NewReader(log.String()), By: "client_ip", Clock: LogTime, Mode: Count, Verify: true}
	rep, err := Run(t.Context(), cfg)
	if err != nil || !rep.VerifyOK || rep.Counted != 6000 || rep.Verified != 1 {
		t.Errorf("error %v, report %+v", err, rep)
	}
}

// Times that no store can have are taken for the nearest that it can.
func TestLogTimeOfStrangeYears(t *testing.T) {
	log := timedLine("a", time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC), 0) +
		timedLine("a", time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC), 0) + timedLine("a", time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC), 0)
	rep, err := Run(t.Context(), logTimeConfig(log, 1))
	if err != nil || rep.Allowed != 3 || rep.Behind != 2 {
		t.Errorf("error %v, allowed %d, behind %d", err, rep.Allowed, rep.Behind)
	}
}

// An interrupted run has decided what was read.
func TestLogTimeInterrupted(t *testing.T) {
	log, feed := io.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	cfg := logTimeConfig("", 2)
	cfg.Source = log
	cfg.Progress = func(p Progress) {
		if p.Lines == 5 {
			cancel()
		}
	}
	go func() { _, _ = io.WriteString(feed, strings.Repeat(logLine("a"), 5)) }()
	rep, err := Run(ctx, cfg)
	if !errors.Is(err, context.Canceled) || rep.Allowed != 2 || rep.Denied != 3 || rep.Unanswered != 0 {
		t.Errorf("error %v, allowed %d, denied %d, unanswered %d", err, rep.Allowed, rep.Denied, rep.Unanswered)
	}
	_ = feed.Close() // lets the reader go
}

// What comes out is what a stable sort by time gives, as long as no entry is further out
// of place than what is held back; and one that is, is taken for one of the moment
// reached.
func TestOrder(t *testing.T) {
	type decision struct {
		at int64
		s  *keyStat
	}
	rapid.Check(t, func(t *rapid.T) {
		times := rapid.SliceOf(rapid.Int64Range(0, 30)).Draw(t, "times")
		most := rapid.IntRange(0, 40).Draw(t, "most")
		var got, in []decision
		o := newOrder(most, func(at int64, s *keyStat) { got = append(got, decision{at, s}) })
		var late int64
		for _, at := range times {
			d := decision{at, &keyStat{}}
			if n := len(got); n > 0 && at < got[n-1].at {
				late++
				d.at = got[n-1].at
			}
			in = append(in, d)
			o.add(at, d.s)
			if o.held > most || len(got)+o.held != len(in) {
				t.Fatalf("%d are held, %d decided, of %d", o.held, len(got), len(in))
			}
		}
		o.flush()
		slices.SortStableFunc(in, func(a, b decision) int { return int(a.at - b.at) })
		if !slices.Equal(got, in) || o.late != late {
			t.Fatalf("decided %v, want %v; %d late, want %d", got, in, o.late, late)
		}
	})
}
