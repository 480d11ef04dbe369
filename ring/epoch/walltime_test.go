package epoch

import (
	"bytes"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/keystead/keystead/ring/epoch/serving"
	"github.com/keystead/keystead/ring/epoch/table"
)

// right reports whether a node goes by the time that is right.
func right(g *Group) bool {
	wall, ok := g.rule.Wall(g.cfg.Clock.Now())
	off := time.Since(time.Unix(0, wall))
	return ok && off < 30*time.Second && off > -30*time.Second
}

// TestTimeOfDayIsTheMajoritys: a node whose clock is ten years ahead goes by the time of the others,
// and so do they; the leader's clock is one of them.
func TestTimeOfDayIsTheMajoritys(t *testing.T) {
	t.Parallel()
	var years atomic.Int64
	years.Store(10)
	n := 0
	gs := form(t, newPool(), 3, func(cfg *Config) {
		if n++; n == 1 { // the one that makes the cluster, and leads it
			cfg.Wall = func() time.Time { return time.Now().AddDate(int(years.Load()), 0, 0) }
		}
	})
	for i, g := range gs {
		eventually(t, "the time is right", func() bool { return right(g) })
		if i == 0 {
			years.Store(-10) // it has agreed before: it goes on
		}
	}
	for range 3 {
		for _, g := range gs {
			asked := g.cfg.Clock.Now()
			eventually(t, "an answer", func() bool { return g.Heard(asked) })
			if !right(g) {
				t.Fatal("a clock that is wrong has a say")
			}
			if ahead, known := g.WallAhead(); !known || WallWrong(ahead) != (g == gs[0]) {
				t.Fatalf("%s: ahead by %s, %v", g.cfg.Node, ahead, known)
			}
		}
	}
}

// TestClocksDisagree: when one of two clocks is set years ahead, neither is a majority, and both nodes
// count on from the time of before.
func TestClocksDisagree(t *testing.T) {
	t.Parallel()
	var years atomic.Int64
	n := 0
	gs := form(t, newPool(), 2, func(cfg *Config) {
		if n++; n == 2 {
			cfg.Wall = func() time.Time { return time.Now().AddDate(int(years.Load()), 0, 0) }
		}
	})
	for _, g := range gs {
		eventually(t, "the time is right", func() bool { return right(g) })
	}
	years.Store(3)
	for range 3 {
		for _, g := range gs {
			asked := g.cfg.Clock.Now()
			eventually(t, "an answer", func() bool { return g.Heard(asked) })
			if !right(g) {
				t.Error("the time is another one")
			}
		}
	}
}

// setClock is a clock that shows what it is set to.
type setClock int64

func (c *setClock) Now() int64 { return int64(*c) }

// People are told once that a clock is wrong, and once that it is right again; and that no time is known,
// but not as soon as a cluster starts.
func TestWallIsJudged(t *testing.T) {
	var log bytes.Buffer
	var now setClock
	wall := time.Date(2026, 11, 23, 0, 0, 0, 0, time.UTC)
	g := &Group{rule: serving.New(table.Holder{}), cfg: Config{Clock: &now, Wall: func() time.Time { return wall }, Log: slog.New(slog.NewTextHandler(&log, nil))}}
	k := &keeper{g: g, cfg: g.cfg}
	answer := func(agreed int64) {
		now += setClock(time.Second)
		k.boot = int64(now)
		k.learnWall(int64(now), agreed)
	}
	for i := range 11 {
		if answer(0); g.Timeless() != (i == 10) {
			t.Errorf("no time is known after %d s: %v", i, g.Timeless())
		}
	}
	if _, known := g.WallAhead(); known || log.Len() > 0 {
		t.Errorf("a clock is judged by no time: %s", &log)
	}
	right := wall.UnixNano()
	for _, off := range []time.Duration{0, time.Minute, -time.Minute} {
		if answer(right - int64(off)); log.Len() > 0 || g.Timeless() {
			t.Errorf("%s is told of: %s", off, &log)
		}
	}
	for _, off := range []time.Duration{61 * time.Second, -61 * time.Second, 40 * 365 * 24 * time.Hour} {
		for range 3 {
			answer(right - int64(off))
		}
		if n := strings.Count(log.String(), "WARN"); n != 1 {
			t.Errorf("%s is told of %d times: %s", off, n, &log)
		}
		log.Reset()
		for range 3 {
			answer(right)
		}
		if n := strings.Count(log.String(), "INFO"); n != 1 {
			t.Errorf("and that it is right %d times: %s", n, &log)
		}
		log.Reset()
	}
	wall = time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC)
	if answer(right); !strings.Contains(log.String(), "WARN") {
		t.Error("a clock that shows the year 1 is right")
	}
	if answer(0); g.Timeless() {
		t.Error("the time is forgotten")
	}
}
