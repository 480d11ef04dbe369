package main

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A probe writes and syncs as often as it says, and leaves nothing behind.
func TestProbe(t *testing.T) {
	dir, synced := t.TempDir(), 0
	for _, size := range []int64{0, 3 * 4096} {
		var at []int64
		took, err := probe(dir, size, func(f *os.File) error {
			synced++
			s, err := f.Stat()
			at = append(at, s.Size())
			return err
		})
		if err != nil || len(took) != syncsOfOne || len(at) != syncsOfOne {
			t.Errorf("%d times, %d syncs, %v", len(took), len(at), err)
		}
		if at[0] != max(size, 4096) || at[syncsOfOne-1] != syncsOfOne*4096 {
			t.Errorf("of %d bytes: %d at the first sync, %d at the last", size, at[0], at[syncsOfOne-1])
		}
	}
	broken := errors.New("the disk is broken")
	if _, err := probe(dir, 0, func(*os.File) error { return broken }); !errors.Is(err, broken) {
		t.Error(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Error(left, err)
	}
	times := make([]diskTime, len(probes))
	for range 2 {
		if err := probeAll(dir, times); err != nil {
			t.Fatal(err)
		}
	}
	for i, d := range times {
		if d.What != probes[i].what || len(d.all) != 2*syncsOfOne || d.P50 <= 0 || d.P99 < d.P50 {
			t.Errorf("%+v", d)
		}
	}
}

func TestInMemory(t *testing.T) {
	const ext4 = 0xef53
	if !inMemory(tmpfs) || !inMemory(ramfs) || inMemory(ext4) {
		t.Error("a sync in memory would be measured")
	}
	if err := onDisk("/nowhere"); err == nil {
		t.Error("a directory that is not there")
	}
}

// What a server has synced is read from its metrics, or from what the system says of it.
func TestSyncsAreRead(t *testing.T) {
	const text = "# TYPE x_count counter\nx_count_of_another 7\nx_count 12\nx_sum 1.5e-05\n"
	if n, err := metric(text, "x_count"); n != 12 || err != nil {
		t.Error(n, err)
	}
	if n, err := metric(text, "y_count"); err == nil {
		t.Error(n)
	}
	before, err1 := writes(os.Getpid())
	f, err2 := os.Create(t.TempDir() + "/f")
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for range 100 {
		_, _ = f.WriteString("x")
	}
	if after, err := writes(os.Getpid()); err != nil || after < before+100 {
		t.Error(before, after, err)
	}
	for ran, now := time.Duration(-1), time.Duration(-1); now <= ran || ran < 0; { // until it has run for a tick
		var err error
		if now, err = used([]int{os.Getpid()}); err != nil {
			t.Fatal(err)
		}
		if ran < 0 {
			ran = now
		}
	}
	if n, err := used([]int{-1}); err == nil {
		t.Error(n)
	}
	if got := percentile([]float64{4, 1, 3, 2}, 50); got != 3 {
		t.Error(got)
	}
}

// Of two callers, each of whose cycles is of ten items, a second of which syncs: what counts is the
// time that is measured, and not what made them ready.
func TestItemsThatShareASync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		counted := 0.0
		w := way{items: 10, Callers: 2, replies: 1, synced: func() (float64, error) { return counted, nil }}
		w.open = func(_ context.Context, _ *clients, i int) (cycle, func(), error) {
			return func(context.Context) error {
				time.Sleep(time.Second)
				counted++ // a reply
				if i == 0 {
					counted++ // a sync
				}
				return nil
			}, nothing, nil
		}
		results := make([]result, 1)
		for range 2 {
			if err := measureRound(t.Context(), nil, []way{w}, results, 10*time.Second-1, func(string) {}); err != nil {
				t.Fatal(err)
			}
		}
		if r := results[0]; !slices.Equal(r.Rounds, []float64{20, 20}) || !slices.Equal(r.PerSync, []float64{20, 20}) || r.Median != 20 {
			t.Errorf("%+v", r)
		}
		w.synced = func() (float64, error) { return 0, errors.New("no such metric") }
		if err := measureRound(t.Context(), nil, []way{w}, results, time.Second, func(string) {}); err == nil {
			t.Error("what cannot be counted is measured")
		}
	})
}

// What is compared is among what is measured, and what was not measured is left out.
func TestDurableRatios(t *testing.T) {
	l := &lab{alone: []nodes{{durability: none}, {durability: interval}, {durability: always}}, three: []nodes{{durability: none}, {durability: interval}, {durability: always}}}
	measured := func(l *lab) (results []result) {
		for i, w := range l.ways([]int{1, 64}) {
			results = append(results, result{way: w, Rounds: []float64{float64(i + 1)}})
		}
		return results
	}
	all := durableRatios(measured(l), []int{1, 64})
	if len(all) != 2*len(comparedOnDisk()) {
		t.Errorf("%d ratios of 2 × %d", len(all), len(comparedOnDisk()))
	}
	if r := all[0]; r.Of != alone(always) || r.To != etcd || r.Value != 13 || r.What != "1 caller: a second" {
		t.Errorf("%+v", r)
	}
	l.alone, l.three = l.alone[:1], nil
	if all := durableRatios(measured(l), []int{1, 64}); len(all) != 2*6 { // beside etcd and Redis
		t.Errorf("%+v", all)
	}
}

func TestDurableFlags(t *testing.T) {
	dir := t.TempDir()
	for _, args := range []string{"-callers 0", "-callers 1,x", "-rounds 0", "-duration 1ms", "nonsense"} {
		var f durableFlags
		if err := f.parse(append([]string{"-data", dir}, strings.Fields(args)...)); err == nil {
			t.Errorf("%s: %+v", args, f)
		}
	}
	report := durableReport{Versions: map[string]string{"b": "2", "a": "1"}, Disk: []diskTime{{What: "4 KiB", P50: 1.5}},
		Results: []result{{way: way{System: etcd, Callers: 64}, Median: 100, Rounds: []float64{90, 100, 110}, PerSync: []float64{7, 8, 9}, CPU: []float64{2, 3.5, 4}}},
		Ratios:  []ratio{{Of: alone(always), To: etcd, Value: 5}}}
	var out strings.Builder
	if err := report.write(&out); err != nil {
		t.Error(err)
	}
	for _, want := range []string{"a: 1\nb: 2\n", "4 KiB", "90 to 110", "8.0", "3.5", "keystead, always, one node ÷ etcd"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing:\n%s", want, out.String())
		}
	}
}
