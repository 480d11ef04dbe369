package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner"
)

// newStandalone returns the rule of a node that begins in a directory with nothing else.
func newStandalone(dir string, floor uint64, wall time.Time) (*standalone, error) {
	s := &standalone{}
	_, next, err := s.choose(dir, floor, wall)
	if err != nil {
		return nil, err
	}
	return s, s.set(next)
}

func TestWallEpoch(t *testing.T) {
	for _, tc := range []struct {
		at   time.Time
		want uint64
	}{
		{epochBase.Add(-time.Hour), 0},
		{epochBase, 0},
		{epochBase.Add(time.Second - 1), epochsPerSecond - 1},
		{epochBase.Add(time.Second), epochsPerSecond},
		{epochBase.Add(time.Hour), 3600 * epochsPerSecond},
	} {
		if got := wallEpoch(tc.at); got != tc.want {
			t.Errorf("%s: epoch %d, want %d", tc.at, got, tc.want)
		}
	}
	// The clock's epochs fit into a fencing token for decades.
	if got := wallEpoch(epochBase.AddDate(60, 0, 0)); got > owner.MaxEpoch {
		t.Errorf("in 60 years: epoch %d is above %d", got, uint64(owner.MaxEpoch))
	}
}

// keep writes an epoch file.
func keep(t *testing.T, dir, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, "epoch.json"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// kept returns the epoch in the file.
func kept(t testing.TB, dir string) uint64 {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, "epoch.json"))
	if err != nil {
		t.Fatal(err)
	}
	var f epochFile
	if err := json.Unmarshal(b, &f); err != nil || f.Version != 1 {
		t.Fatalf("%q: %v", b, err)
	}
	return f.Epoch
}

func TestEpochOfAStart(t *testing.T) {
	now := epochBase.Add(1000 * time.Second)
	wall := wallEpoch(now)
	for _, tc := range []struct {
		name  string
		kept  uint64
		floor uint64
		at    time.Time
		want  uint64
	}{
		{name: "nothing but the clock", at: now, want: wall},
		{name: "a clock before all epochs", at: epochBase.AddDate(-10, 0, 0), want: 1},
		{name: "a clock that went on", kept: wall - 5, at: now, want: wall},
		{name: "a clock that stood still", kept: wall, at: now, want: wall + 1},
		{name: "a clock that was set back", kept: wall + 1000, at: now, want: wall + 1001},
		{name: "a floor above the clock", floor: wall + 7, at: now, want: wall + 7},
		{name: "a floor below the clock", floor: 7, at: now, want: wall},
		{name: "a floor below what was kept", kept: wall + 9, floor: wall + 7, at: now, want: wall + 10},
		{name: "the last epoch of all", kept: owner.MaxEpoch - 1, at: now, want: owner.MaxEpoch},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			if tc.kept > 0 {
				keep(t, dir, fmt.Sprintf(`{"version":1,"epoch":%d}`, tc.kept))
			}
			s, err := newStandalone(dir, tc.floor, tc.at)
			if err != nil {
				t.Fatal(err)
			}
			permit, err := s.Admit(0, 0)
			if permit.Epoch != tc.want || err != nil || s.Confirm(permit, 0) != nil {
				t.Errorf("epoch %d, %v, want %d", permit.Epoch, err, tc.want)
			}
			if got := kept(t, dir); got != tc.want {
				t.Errorf("kept %d, want %d", got, tc.want)
			}
		})
	}
}

func TestEpochsUsedUp(t *testing.T) {
	dir := t.TempDir()
	keep(t, dir, fmt.Sprintf(`{"version":1,"epoch":%d}`, uint64(owner.MaxEpoch)))
	if _, err := newStandalone(dir, 0, epochBase); err == nil || !strings.Contains(err.Error(), "above the greatest possible") || !strings.Contains(err.Error(), dir) {
		t.Errorf("got %v", err)
	}
	if _, err := newStandalone("", owner.MaxEpoch+1, epochBase); err == nil {
		t.Error("a floor above the greatest epoch was taken")
	}
}

// A floor ahead of the clock is served under once only: where nothing keeps the epoch
// the next start would give the same tokens and ids, so there is not even a first one.
func TestFloorNeedsADataDir(t *testing.T) {
	now := epochBase.Add(time.Hour)
	const ahead = 3600*epochsPerSecond + 1
	_, err := newStandalone("", ahead, now)
	for _, want := range []string{"--epoch-floor 921601", "ahead of the clock, which stands at 921600", "--data-dir"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("without a directory: %v, want %q", err, want)
		}
	}
	if s, err := newStandalone("", ahead-1, now); err != nil || s.epoch.Load() != ahead-1 {
		t.Errorf("a floor at the clock: %v", err)
	}
	dir, seen := t.TempDir(), map[uint64]bool{}
	for range 3 {
		s, err := newStandalone(dir, ahead, now)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			e, err := s.claim()
			if err != nil || e < ahead || seen[e] {
				t.Errorf("epoch %d, %v", e, err)
			}
			seen[e] = true
		}
	}
	if _, err := servedAlone(Config{EpochFloor: ahead, Wires: Wires{Wall: func() time.Time { return now }}}); err == nil {
		t.Error("a node of a cluster may begin at the floor again")
	}
}

// Whatever the clock does and however often the epoch is raised, each start is
// above all that was served under before.
func TestEpochsAlwaysRise(t *testing.T) {
	root := t.TempDir()
	runs := 0
	rapid.Check(t, func(t *rapid.T) {
		runs++
		dir := filepath.Join(root, fmt.Sprint(runs))
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		last := uint64(0)
		for range rapid.IntRange(1, 8).Draw(t, "starts") {
			at := epochBase.Add(time.Duration(rapid.Int64Range(-1e9, 1e12).Draw(t, "clock")))
			s, err := newStandalone(dir, rapid.Uint64Range(0, 300).Draw(t, "floor"), at)
			if err != nil {
				t.Fatal(err)
			}
			got := s.epoch.Load()
			if got <= last {
				t.Fatalf("epoch %d after %d", got, last)
			}
			for range rapid.IntRange(0, 3).Draw(t, "raises") {
				raised, err := s.Exhausted(got)
				if err != nil || raised != got+1 {
					t.Fatalf("raised from %d to %d, %v", got, raised, err)
				}
				got = raised
			}
			last = got
		}
	})
}

func TestEpochFileRefused(t *testing.T) {
	for name, text := range map[string]string{
		"empty":           "",
		"torn":            `{"version":1,"epo`,
		"zeros":           "\x00\x00\x00\x00",
		"another version": `{"version":2,"epoch":5}`,
		"no version":      `{"epoch":5}`,
		"no epoch":        `{"version":1}`,
		"a text":          `{"version":1,"epoch":"5"}`,
		"negative":        `{"version":1,"epoch":-5}`,
		"too large":       `{"version":1,"epoch":99999999999999999999}`,
		"a list":          `[1,5]`,
		"two of them":     `{"version":1,"epoch":5}{"version":1,"epoch":6}`,
		"foreign":         "epoch: 5\n",
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			keep(t, dir, text)
			s, err := newStandalone(dir, 0, time.Now())
			if err == nil {
				t.Fatalf("it was taken: epoch %d", s.epoch.Load())
			}
			for _, want := range []string{filepath.Join(dir, "epoch.json"), "does not hold an epoch of version 1", "restore it", "--epoch-floor"} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q is not in %q", want, err)
				}
			}
			if b, err := os.ReadFile(filepath.Join(dir, "epoch.json")); err != nil || string(b) != text {
				t.Errorf("the file was changed: %q, %v", b, err)
			}
		})
	}
}

// What a crash in the middle of writing leaves is no hindrance.
func TestEpochFileAfterACrash(t *testing.T) {
	dir := t.TempDir()
	keep(t, dir, `{"version":1,"epoch":5}`)
	tmp := filepath.Join(dir, "epoch.json.tmp")
	if err := os.WriteFile(tmp, []byte(`{"version":1,"epoch":600000000000000000000`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := newStandalone(dir, 0, epochBase); err != nil {
		t.Fatal(err)
	}
	if got := kept(t, dir); got != 6 {
		t.Errorf("kept %d", got)
	}
	if _, err := os.Stat(tmp); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the half-written file: %v", err)
	}
	info, err := os.Stat(filepath.Join(dir, "epoch.json"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}

func TestExhausted(t *testing.T) {
	dir := t.TempDir()
	s, err := newStandalone(dir, 100, epochBase)
	if err != nil {
		t.Fatal(err)
	}
	raise := func(from, want uint64) {
		t.Helper()
		if got, err := s.Exhausted(from); err != nil || got != want {
			t.Errorf("exhausted %d: %d, %v, want %d", from, got, err, want)
		}
		if permit, _ := s.Admit(0, 0); permit.Epoch != want || kept(t, dir) != want {
			t.Errorf("admits under %d and keeps %d, want %d", permit.Epoch, kept(t, dir), want)
		}
	}
	raise(100, 101)
	raise(100, 101) // another shard, which was at the same epoch
	raise(50, 101)  // a shard that lagged behind
	raise(101, 102)

	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if got, err := s.Exhausted(102); err != nil || got != 103 {
				t.Errorf("at once: %d, %v", got, err)
			}
		})
	}
	wg.Wait()
	raise(102, 103)

	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	_, err = s.Exhausted(103)
	var refused *failure.Error
	if !errors.As(err, &refused) || refused.Reason != failure.Unavailable || refused.RetryAfter <= 0 || !strings.Contains(refused.Message, "keeping the epoch") {
		t.Errorf("when the epoch cannot be kept: %v", err)
	}
	if permit, _ := s.Admit(0, 0); permit.Epoch != 103 {
		t.Errorf("it serves under %d, which is not on disk", permit.Epoch)
	}
}

func TestExhaustedAtTheEnd(t *testing.T) {
	s, err := newStandalone(t.TempDir(), owner.MaxEpoch, epochBase)
	if err != nil {
		t.Fatal(err)
	}
	var refused *failure.Error
	if got, err := s.Exhausted(owner.MaxEpoch); !errors.As(err, &refused) || refused.Reason != failure.Unavailable {
		t.Errorf("got %d, %v", got, err)
	}
}

// FuzzEpochFile: whatever is in the file, a start takes an epoch above it or
// says why not.
func FuzzEpochFile(f *testing.F) {
	for _, seed := range []string{"", "{}", `{"version":1,"epoch":5}`, `{"version":1,"epoch":549755813887}`, `{"epoch":1e3,"version":1}`, "null", "[]"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		path := filepath.Join(t.TempDir(), "epoch.json")
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		before, err := readEpoch(path)
		if err == nil && before == 0 {
			t.Errorf("%q was taken for an epoch of 0", text)
		}
		s, startErr := newStandalone(filepath.Dir(path), 0, epochBase)
		switch {
		case startErr != nil:
			if err == nil && before < owner.MaxEpoch {
				t.Errorf("%q: %v", text, startErr)
			}
		case err != nil || s.epoch.Load() <= before || kept(t, filepath.Dir(path)) != s.epoch.Load():
			t.Errorf("%q: epoch %d after %d, %v", text, s.epoch.Load(), before, err)
		}
	})
}
