package replay

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/keystead/keystead/internal/cli/accesslog"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
)

func TestFit(t *testing.T) {
	long := strings.Repeat("a", 511)
	tests := []struct {
		name, key, want string // want "" = unchanged
	}{
		{name: "short", key: "203.0.113.9"},
		{name: "longest", key: long + "b"},
		{name: "too long", key: long + "bc",
			want: strings.Repeat("a", 472) + "~sha256:18b6973ae1ca7e07f83c9bdcfe67ae8a"},
		{name: "not UTF-8", key: "/caf\xe9/x", want: "/caf\uFFFD/x~sha256:3b3fe0cafbdb2bdccbf5256a3785a95a"},
		{name: "long, of wide characters", key: strings.Repeat("€", 171), want: strings.Repeat("€", 157) + "~sha256:4118446b88cd4b5b0a83c7ed6392e9e7"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, changed := fit([]byte(tt.key))
			if changed != (tt.want != "") {
				t.Fatalf("changed %v: %q", changed, got)
			}
			want := tt.want
			if !changed {
				want = tt.key
			}
			if string(got) != want {
				t.Errorf("got  %q\nwant %q", got, want)
			}
		})
	}
}

func TestFitKeepsKeysApart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		// Keys that share their beginning, so that only the hash tells them apart.
		start := bytes.Repeat(rapid.SliceOfN(rapid.Byte(), 1, 4).Draw(t, "start"), 200)
		draw := func(name string) []byte {
			return append(bytes.Clone(start), rapid.SliceOfN(rapid.Byte(), 0, 20).Draw(t, name)...)
		}
		a, b := draw("a"), draw("b")
		fa, _ := fit(a)
		fb, _ := fit(b)
		if bytes.Equal(a, b) != bytes.Equal(fa, fb) {
			t.Fatalf("%q and %q became %q and %q", a, b, fa, fb)
		}
		if len(fa) > maxKey || !utf8.Valid(fa) {
			t.Fatalf("%q became %q", a, fa)
		}
	})
}

func TestConfigIsChecked(t *testing.T) {
	tests := []struct {
		name   string
		change func(c *Config)
		want   string // "" = it is good
	}{
		{name: "good", change: func(*Config) {}},
		{name: "no field", change: func(c *Config) { c.By = "" }, want: "name a field"},
		{name: "no log", change: func(c *Config) { c.Source = nil }, want: "there is no log"},
		{name: "no client", change: func(c *Config) { c.Limits = nil }, want: "no client"},
		{name: "no client for counters", change: func(c *Config) { c.Mode = Count }, want: "no client"},
		{name: "mode", change: func(c *Config) { c.Mode = 7 }, want: "no mode 7"},
		{name: "limits verified", change: func(c *Config) { c.Verify = true }, want: "only counters"},
		{name: "no limit", change: func(c *Config) { c.Limit = 0 }, want: "a limit of 0 in 1m0s"},
		{name: "no period", change: func(c *Config) { c.Period = 0 }, want: "a limit of 5 in 0s"},
		{name: "name", change: func(c *Config) { c.Name = strings.Repeat("x", 129) }, want: "128 bytes"},
		{name: "batch", change: func(c *Config) { c.Batch = MaxBatch + 1 }, want: "a batch of 1001"},
		{name: "concurrency", change: func(c *Config) { c.Concurrency = -1 }, want: "a concurrency of -1"},
		{name: "timeout", change: func(c *Config) { c.Timeout = -1 }, want: "timeout"},
		{name: "patience", change: func(c *Config) { c.Patience = time.Hour }, want: "at most 2m0s"},
		{name: "keys", change: func(c *Config) { c.MaxKeys = -1 }, want: "keys"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := Config{Source: strings.NewReader(""), By: "path", Limit: 5, Period: time.Minute, Limits: limitpb.NewLimitServiceClient(nil)}
			tt.change(&c)
			rep, err := Run(t.Context(), c)
			if tt.want == "" {
				if err != nil || rep.Lines != 0 {
					t.Fatalf("error %v", err)
				}
				return
			}
			if rep != nil || err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want one with %q", err, tt.want)
			}
		})
	}
}

func TestTop(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var all []*keyStat
		for i, n := range rapid.SliceOf(rapid.Int64Range(0, 9)).Draw(t, "values") {
			all = append(all, &keyStat{key: fmt.Sprintf("%03d", i), no: n})
		}
		n := rapid.IntRange(-1, 12).Draw(t, "n")
		got := top(all, n, func(s *keyStat) int64 { return s.no })
		slices.SortStableFunc(all, func(a, b *keyStat) int { return int(b.no - a.no) })
		all = slices.DeleteFunc(all, func(s *keyStat) bool { return s.no == 0 })
		if want := all[:min(max(n, 0), len(all))]; !slices.Equal(got, want) {
			t.Fatalf("got %d keys, want %d, or in another order", len(got), len(want))
		}
	})
}

// begin and end are the first and the last time of a log.
var begin, end = time.Date(2024, 3, 2, 20, 0, 0, 0, time.UTC), time.Date(2024, 3, 4, 0, 7, 30, 0, time.UTC)

// reports are examples of what is printed.
var reports = map[string]Report{
	"limits": {
		Mode: "limits", Time: "node", First: &begin, Last: &end, SpanSeconds: 59, By: "client_ip", Name: "replay", Limit: 20, PeriodNs: int64(time.Minute), Algorithm: "token bucket",
		Lines: 1_234_569, Entries: 1_234_566, Broken: 2, Empty: 1, DistinctKeys: 1753, ShortenedKeys: 3,
		BrokenSamples: []accesslog.BrokenLine{{Line: 17, Reason: "no time", Text: `\x1b[2J`}, {Line: 1_000_000, Reason: "too long", Text: "x"}},
		Allowed:       1_000_000, Denied: 234_500, Unanswered: 36,
		MostDenied: []Denied{{Key: "203.0.113.9", Allowed: 20, Denied: 12_345}, {Key: "evil\x1b[31m\xff\n" + strings.Repeat("é", 100), Allowed: 20, Denied: 3}},
		Errors:     map[string]int64{"KIND_MISMATCH": 28, "STORE_FULL": 2}, FirstError: `key "a": holds a lock (KIND_MISMATCH)`,
		DurationSeconds: 12.3456, LinesPerSecond: 100_001.5, Concurrency: 8, Batch: 100, Calls: 12_346, Retries: 4,
		Latency: Latency{P50: 0.21234, P99: 1.5, P999: 22.1, Max: 1234.5, Mean: 0.3},
	},
	"logtime": {
		Mode: "limits", Time: "log", First: &begin, Last: &end, SpanSeconds: 101250, Behind: 1234, Late: 5, By: "client_ip", Name: "replay",
		Limit: 5, PeriodNs: int64(time.Second), Burst: 50, Cost: 2, Algorithm: "token bucket",
		Lines: 10_000, Entries: 10_000, DistinctKeys: 1753, Allowed: 7000, Denied: 3000, MostDenied: []Denied{{Key: "203.0.113.9", Allowed: 20, Denied: 3000}},
		DurationSeconds: 0.0123, LinesPerSecond: 813_008, Concurrency: 8, Batch: 100,
	},
	"logcount": {
		Mode: "count", Time: "log", First: &begin, Last: &end, SpanSeconds: 7500, Behind: 2, Late: 2, By: "path", Name: "replay",
		Lines: 3, Entries: 3, DistinctKeys: 1, Counted: 3, MostCounted: []Tally{{Key: "/", Count: 3}}, DurationSeconds: 0.001, LinesPerSecond: 3000,
	},
	"count": {
		Mode: "count", Time: "node", First: &begin, Last: &end, SpanSeconds: 7500, By: "client_ip,path", Name: "replay-01020304", Lines: 3, Entries: 3, DistinctKeys: 2, Counted: 3,
		MostCounted: []Tally{{Key: "a|/", Count: 2}, {Key: "b|/", Count: 1}},
		Verify:      true, VerifyOK: true, Verified: 2,
		DurationSeconds: 0.001, LinesPerSecond: 3000, Concurrency: 1, Batch: 1, Calls: 3, Latency: Latency{P50: 0.0123},
	},
	"mismatch": {
		Mode: "count", By: "path", Name: "mine", Lines: 30, Entries: 30, DistinctKeys: 3, Counted: 29,
		Verify: true, Verified: 1, Mismatches: 2, Errors: map[string]int64{"NO_RESULT": 1},
		MismatchSamples: []Mismatch{{Key: "/a", Log: 10, Counter: 11}, {Key: "/b", Log: 1000, Unread: true}},
		Concurrency:     8, Batch: 100, Calls: 1,
	},
}

func TestWriteText(t *testing.T) {
	for name, rep := range reports {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			if err := rep.WriteText(&out); err != nil {
				t.Fatal(err)
			}
			file := filepath.Join("testdata", name+".txt")
			if os.Getenv("KEYSTEAD_REWRITE") != "" {
				if err := os.WriteFile(file, out.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(out.Bytes(), want) {
				t.Errorf("got\n%s\nwant, as in %s (KEYSTEAD_REWRITE=1 writes it anew)\n%s", out.Bytes(), file, want)
			}
		})
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

func TestWriteTextFails(t *testing.T) {
	rep := reports["limits"]
	if err := rep.WriteText(failing{}); err != io.ErrClosedPipe {
		t.Errorf("error %v", err)
	}
}

func TestReportAsJSON(t *testing.T) {
	rep := reports["limits"]
	text, err := json.Marshal(&rep)
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{`"lines":1234569`, `"distinct_keys":1753`, `"most_denied":[{"key":"203.0.113.9","allowed":20,"denied":12345}`,
		`"verify_ok":false`, `"latency":{"p50_ms":0.21234,"p99_ms":1.5,"p99_9_ms":22.1`, `"broken_samples":[{"line":17,`} {
		if !bytes.Contains(text, []byte(part)) {
			t.Errorf("%s is not in %s", part, text)
		}
	}
}

func TestGrouped(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567", -999: "-999", -1000: "-1,000"} {
		if got := grouped(n); got != want {
			t.Errorf("grouped(%d) = %s, want %s", n, got, want)
		}
	}
}

func TestUnreadable(t *testing.T) {
	broken := []accesslog.BrokenLine{{Line: 3, Reason: "no time", Text: "{\x1b"}, {Line: 4}}
	for _, tt := range []struct {
		name string
		rep  Report
		want string
	}{
		{name: "empty", rep: Report{}},
		{name: "empty lines", rep: Report{Lines: 2, Empty: 2}},
		{name: "half", rep: Report{Lines: 4, Entries: 2, Broken: 2, BrokenSamples: broken}},
		{name: "most", rep: Report{Lines: 6, Entries: 2, Broken: 3, Empty: 1, BrokenSamples: broken},
			want: "3 of its 5 lines could not be read\n  line 3: no time\n    {\\x1b"},
		{name: "all", rep: Report{Lines: 2000, Broken: 1999, Empty: 1, BrokenSamples: broken},
			want: "this is no access log: none of its 1,999 lines could be read\n  line 3: no time\n    {\\x1b"},
		{name: "much of something else", rep: Report{Lines: accesslog.MaxStrange, Broken: accesslog.MaxStrange},
			want: "this is no access log: none of its first 100,000 lines could be read"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.rep.Unreadable(); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}
