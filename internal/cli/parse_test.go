package cli

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/keystead/keystead/client"
)

func TestRate(t *testing.T) {
	for _, tc := range []struct {
		text string
		want rate
		back string // as it prints itself
	}{
		{"20/1m", rate{limit: 20, period: time.Minute}, "20/1m"},
		{"100/s", rate{limit: 100, period: time.Second}, "100/1s"},
		{" 100/sec ", rate{limit: 100, period: time.Second}, "100/1s"},
		{"5/second", rate{limit: 5, period: time.Second}, "5/1s"},
		{"5/minute", rate{limit: 5, period: time.Minute}, "5/1m"},
		{"5/min", rate{limit: 5, period: time.Minute}, "5/1m"},
		{"5/hour", rate{limit: 5, period: time.Hour}, "5/1h"},
		{"5/h", rate{limit: 5, period: time.Hour}, "5/1h"},
		{"5/day", rate{5, 24 * time.Hour, client.CalendarDay}, "5/day"},
		{"5/week", rate{5, 0, client.CalendarWeek}, "5/week"},
		{"5/month", rate{5, 0, client.CalendarMonth}, "5/month"},
		{"5/year", rate{5, 0, client.CalendarYear}, "5/year"},
		{"1_000/7d", rate{limit: 1000, period: 7 * 24 * time.Hour}, "1000/168h"},
		{"5000/24h", rate{limit: 5000, period: 24 * time.Hour}, "5000/24h"},
		{"1/366d", rate{limit: 1, period: 366 * 24 * time.Hour}, "1/8784h"},
		{"1/1us", rate{limit: 1, period: time.Microsecond}, "1/1µs"},
		{"3/1h30m", rate{limit: 3, period: 90 * time.Minute}, "3/1h30m"},
		{"3/90s", rate{limit: 3, period: 90 * time.Second}, "3/1m30s"},
		{"3/10h0m10s", rate{limit: 3, period: 10*time.Hour + 10*time.Second}, "3/10h0m10s"},
		{"3/250ms", rate{limit: 3, period: 250 * time.Millisecond}, "3/250ms"},
		{"18446744073709551615/s", rate{limit: math.MaxUint64, period: time.Second}, "18446744073709551615/1s"},
	} {
		got, err := parseRate(tc.text)
		if err != nil || got != tc.want {
			t.Errorf("%q: got %v, %v, want %v", tc.text, got, err, tc.want)
		}
		if got.String() != tc.back {
			t.Errorf("%q: prints %q, want %q", tc.text, got.String(), tc.back)
		}
	}
	for _, text := range []string{
		"", "20", "/", "20/", "/1m", "0/1m", "-1/m", "1.5/s", "1e3/s", "0x10/s", "20/0s", "20/-1s", "20/1", "20/1w", "20/m/s",
		"20/0d", "20/367d", "20/70000d", "20/1ns", "20/999ns", "18446744073709551616/s", "20/9999999h", "20/1_0s", "20 /1m",
	} {
		if got, err := parseRate(text); err == nil || got != (rate{}) {
			t.Errorf("%q: got %v, %v, want an error", text, got, err)
		}
	}
	if s := new(rate).String(); s != "" {
		t.Errorf("no rate prints %q", s)
	}
}

func FuzzRate(f *testing.F) {
	for _, seed := range []string{"20/1m", "100/s", "1_000/7d", "3/1h30m", "1/1.5h", "0/1m", "x/y/z", "1/1us", "9/0.000001s"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, err := parseRate(text)
		if err != nil {
			return
		}
		if got.limit == 0 || got.period < time.Microsecond || got.period > 366*24*time.Hour {
			t.Errorf("%q: %v is out of bounds", text, got)
		}
		if again, err := parseRate(got.String()); err != nil || again != got {
			t.Errorf("%q prints as %q, which is %v, %v", text, got.String(), again, err)
		}
	})
}

func TestByteSize(t *testing.T) {
	for _, tc := range []struct {
		text string
		want byteSize
		back string
	}{
		{"0", 0, "0"},
		{"1", 1, "1"},
		{"1023B", 1023, "1023"},
		{"1KiB", 1 << 10, "1KiB"},
		{"512MiB", 512 << 20, "512MiB"},
		{" 2 GiB ", 2 << 30, "2GiB"},
		{"1.5GiB", 3 << 29, "1536MiB"},
		{"3TiB", 3 << 40, "3TiB"},
		{"1024MiB", 1 << 30, "1GiB"},
		{"4kB", 4000, "4000"},
		{"4MB", 4e6, "4000000"},
		{"4GB", 4e9, "3906250KiB"},
		{"1TB", 1e12, "976562500KiB"},
		{"1e9", 1e9, "1000000000"},
		{"2G", 2 << 30, "2GiB"},
		{"512Mi", 512 << 20, "512MiB"},
	} {
		var got byteSize
		if err := got.Set(tc.text); err != nil || got != tc.want {
			t.Errorf("%q: got %d, %v, want %d", tc.text, got, err, tc.want)
		}
		if got.String() != tc.back {
			t.Errorf("%q: prints %q, want %q", tc.text, got.String(), tc.back)
		}
	}
	for _, text := range []string{"", "GiB", "lots", "-1", "-1GiB", "12XB", "2g", "NaN", "Inf", "-Inf", "1e30", "9999999TiB", "1GiBB", "1 2"} {
		got := byteSize(7)
		if err := got.Set(text); err == nil || got != 7 {
			t.Errorf("%q: got %d, %v, want an error and no change", text, got, err)
		}
	}
}

func FuzzByteSize(f *testing.F) {
	for _, seed := range []string{"0", "512MiB", "1.5GiB", "1e9", "0x1p4", "-0", "3.7kB", "4611686018427387903"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var got, again byteSize
		if got.Set(text) != nil {
			return
		}
		if got < 0 {
			t.Errorf("%q: %d is negative", text, got)
		}
		if err := again.Set(got.String()); err != nil || again != got {
			t.Errorf("%q prints as %q, which is %d, %v", text, got.String(), again, err)
		}
	})
}

func TestSeconds(t *testing.T) {
	for ns, want := range map[seconds]string{
		0: "0", 1: "0.000000001", 1_500_000_000: "1.5", 100_000_000_000: "100", 10_000_000_001: "10.000000001",
		math.MaxInt64: "9223372036.854775807", -1: "-0.000000001", -1_500_000_000: "-1.5", math.MinInt64: "-9223372036.854775808",
	} {
		if got, err := ns.MarshalJSON(); err != nil || string(got) != want {
			t.Errorf("%d ns: got %s, %v, want %s", int64(ns), got, err, want)
		}
	}
}

func TestPeople(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0:                         "0s",
		123 * time.Nanosecond:     "100ns",
		1234 * time.Nanosecond:    "1.2µs",
		12_345_678:                "12.35ms",
		1_234_567_890:             "1.23s",
		59_600 * time.Millisecond: "1m0s",
		61_400 * time.Millisecond: "1m1s",
		25 * time.Hour:            "25h0m0s",
	} {
		if got := people(d); got != want {
			t.Errorf("%d ns: got %q, want %q", d, got, want)
		}
	}
}

func TestThousands(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 999.4: "999", 1000: "1,000", 123456: "123,456", 1234567.8: "1,234,568"} {
		if got := thousands(v); got != want {
			t.Errorf("%v: got %q, want %q", v, got, want)
		}
	}
	if got := micros(1500); got != "1.5ms" {
		t.Errorf("1500 µs: got %q", got)
	}
	if got := ratioText(0.756) + ratioText(0); got != "0.76" {
		t.Errorf("ratios: got %q", got)
	}
}

func TestRefusedConnection(t *testing.T) {
	err := (&remote{addr: "127.0.0.1:1", timeout: time.Second}).explain(nil)
	if err != nil {
		t.Errorf("no error became %v", err)
	}
	for _, addr := range []string{"", "nope", "127.0.0.1", "127.0.0.1:", "a:b:c"} {
		if _, err := (&remote{addr: addr, timeout: time.Second}).dial(); !isUsage(err) || !strings.Contains(err.Error(), "HOST:PORT") {
			t.Errorf("%q: got %v", addr, err)
		}
	}
}

// A limit that chunks may pay is of a key of its own.
func TestDemandAnywhere(t *testing.T) {
	f := admitFlags{limits: []string{"rpm=60/1m"}, anywhere: []string{"all//rpm=90000/1m:2"}, algorithm: defaultAlgorithm}
	if all, names, err := f.demands(nil); err != nil || len(all) != 2 || names[1] != "all//rpm" {
		t.Error(all, names, err)
	}
	f.anywhere = []string{"rpm2=90000/1m"}
	var usage usageError
	if _, _, err := f.demands(nil); !errors.As(err, &usage) {
		t.Error(err)
	}
}
