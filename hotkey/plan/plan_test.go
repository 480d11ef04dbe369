package plan

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/keystead/keystead/hotkey/heat"
)

// stage is a scene for one object that is told in words.
type stage struct {
	t       *testing.T
	planner *Planner[string]
}

// at looks once. What is there: "hot RATE", or "ID open|opening|closing RATE PLACES", with
// "hand" and "silent" behind; nothing if it is neither.
func (s *stage) at(seconds float64, nodes, there, want string) {
	s.t.Helper()
	scene := Scene[string]{}
	for _, f := range strings.Fields(nodes) {
		if f == "moving" {
			scene.Moving = true
			continue
		}
		name, hot := strings.CutSuffix(f, "*")
		scene.Nodes = append(scene.Nodes, Node{name, hot})
	}
	if f := strings.Fields(there); len(f) > 0 {
		var rate float64
		if f[0] == "hot" {
			if _, err := fmt.Sscan(f[1], &rate); err != nil {
				s.t.Fatal(err)
			}
			scene.Hot = []Candidate[string]{{Key: "k", Rate: rate}}
		} else {
			d := Divided[string]{Key: "k", Open: f[1] == "open", Places: strings.Split(f[3], ",")}
			if _, err := fmt.Sscan(f[0]+" "+f[2], &d.ID, &rate); err != nil {
				s.t.Fatal(err)
			}
			d.Rate, d.ByHand = rate, slices.Contains(f, "hand")
			if slices.Contains(f, "silent") {
				d.Silent = 1
			}
			scene.Divided, scene.Splits = []Divided[string]{d}, 1
		}
	}
	var got []string
	for _, d := range s.planner.Decide(int64(seconds*heat.Tick), scene) {
		line := d.Action.String()
		if d.Parts > 0 {
			line += fmt.Sprintf(" %d", d.Parts)
		}
		if d.ByHand {
			line += " hand"
		}
		if (d.Action == Split) != (d.ID == 0) || d.ID != 0 && d.ID != scene.Divided[0].ID || d.Key != "k" {
			s.t.Errorf("at %v s: %+v names another split", seconds, d)
		}
		got = append(got, line+": "+d.Reason)
	}
	if said := strings.Join(got, "; "); said != want {
		s.t.Errorf("at %v s with %q: %q, want %q", seconds, there, said, want)
	}
}

func newStage(t *testing.T, p Policy) *stage {
	t.Helper()
	planner, err := NewPlanner[string](p)
	if err != nil {
		t.Fatal(err)
	}
	return &stage{t, planner}
}

const four = "a b c d"

// An object gets hot, is split, has less to do, and is whole again.
func TestPlanSplitAndMerge(t *testing.T) {
	s := newStage(t, Policy{})
	const two = "a b"
	s.at(0, two, "hot 1000", "")
	s.at(0.25, two, "hot 1050", "")
	s.at(1, two, "hot 1190", "split 2: it gets about 2900 operations a second, and 1000 are worth a part")
	s.at(2, two, "hot 1361", "")
	s.at(3, two, "hot 1515", "") // it is under way
	s.at(7, two, "hot 2000", "split 2: it gets about 2917 operations a second, and 1000 are worth a part")
	s.at(7.5, two, "9 opening 0 a,b", "")
	s.at(8, two, "9 open 0 a,b", "")
	s.at(9, two, "9 open 40 a,b", "")    // too early to tell
	s.at(14, two, "9 open 1000 a,b", "") // that is much for so short a time
	s.at(24, two, "9 open 450 a,b", "")
	s.at(25, two, "9 open 490 a,b", "") // counted from nothing, it is more than half of the floor
	s.at(30, two, "9 open 440 a,b", "")
	s.at(39.5, two, "9 open 440 a,b", "")
	s.at(40, two, "9 open 440 a,b", "merge: it has had less than 500 operations a second for 10s, half of the floor")
	s.at(44, two, "9 open 440 a,b", "")
	s.at(45, two, "9 open 440 a,b", "merge: it has had less than 500 operations a second for 10s, half of the floor")
	s.at(45.5, two, "9 closing 0 a,b", "")
	s.at(46, two, "hot 2000", "")
	s.at(54.5, two, "hot 2000", "") // it was merged a moment ago
	s.at(55, two, "hot 2000", "split 2: it gets about 2000 operations a second, and 1000 are worth a part")
}

// The number of parts follows the load, not at once, and not if it is off by little.
func TestPlanResize(t *testing.T) {
	s := newStage(t, Policy{})
	s.at(0, four, "9 open 0 a,b", "")
	s.at(30, four, "9 open 2380 a,b", "") // three would be right, two are not wrong
	s.at(31, four, "9 open 3600 a,b", "")
	s.at(40, four, "9 open 2300 a,b", "") // once is enough
	s.at(41, four, "9 open 3600 a,b", "")
	s.at(45, four+" moving", "9 open 3600 a,b", "")
	s.at(46, four, "9 open 3600 a,b", "")
	s.at(50, four, "9 open 3600 a,b silent", "") // who knows
	s.at(51, four, "9 open 3600 a,b", "")
	s.at(60.5, four, "9 open 3600 a,b", "")
	s.at(61, four, "9 open 3600 a,b", "resize 4: 2 parts have been too few for 10s: it gets 3606 operations a second, and 1000 are worth a part")
	s.at(61.5, four, "9 closing 0 a,b", "")
	s.at(90, four, "9 closing 0 a,b", "") // it takes its time
	s.at(90.5, four, "", "split 4: it was merged to be split anew")
	s.at(91, four, "", "")
	s.at(95.5, four, "", "split 4: it was merged to be split anew") // the first was lost
	s.at(96, four, "100 opening 0 a,b,c,d", "")
	s.at(100, four, "100 open 0 a,b,c,d", "")
	s.at(101, four, "100 open 0 a,b,c,d", "")
	s.at(103, four, "100 open 150 a,b,c,d", "")
	s.at(113, four, "100 open 415 a,b,c,d", "resize 2: 4 parts have been too many for 10s: it gets 556 operations a second, and 1000 are worth a part")
	s.at(114, four, "", "split 2: it was merged to be split anew")
	s.at(123, four, "", "") // it was not to be
	s.at(140, four, "", "")
}

// During a transition of the ring nothing is resized or placed anew, and the number of
// nodes counts only when it is over.
func TestPlanTransition(t *testing.T) {
	s := newStage(t, Policy{})
	s.at(0, four, "9 open 4000 a,b,c,d", "")
	s.at(25, four+" moving", "9 open 4000 a,a,c,d", "")
	s.at(60, "a b c moving", "9 open 4000 a,a,c,c", "")
	s.at(61, "a b c", "9 open 4000 a,a,c,c", "")
	s.at(70.5, "a b c", "9 open 4000 a,a,c,c", "")
	s.at(71, "a b c", "9 open 4000 a,a,c,c", "resize 3: 4 parts have been too many for 10s: it gets 4000 operations a second, and 1000 are worth a part")
	s.at(71.5, "a b c moving", "", "split 3: it was merged to be split anew")
	s.at(72, "a b c", "10 open 3000 a,a,c", "")
	s.at(81.5, "a b c", "10 open 3000 a,a,c", "")
	s.at(82, "a b c", "10 open 3000 a,a,c", "respread 3: a part belongs on node b, which has none, and not on a, for 10s")
	s.at(99, "a", "10 open 3000 a,a,a", "")
	s.at(109, "a", "10 open 3000 a,a,a", "merge: there have been no two nodes for its parts for 10s")
}

// Parts go to nodes for hot keys once there are enough.
func TestPlanHotNodes(t *testing.T) {
	s := newStage(t, Policy{})
	s.at(0, "a b c* d", "9 open 2000 a,b", "")
	s.at(30, "a b c* d*", "9 open 2000 a,b", "")
	s.at(39, "a b c* d*", "9 open 2000 c,d", "")
	s.at(40, "a b c* d*", "9 open 2000 a,b", "")
	s.at(50, "a b c* d*", "9 open 2000 a,b", "respread 2: a part belongs on node c, which has none, and not on a, for 10s")
}

// What a person has split stays so until an operation needs it whole.
func TestPlanByHand(t *testing.T) {
	s := newStage(t, Policy{})
	s.at(0, four, "9 open 0 a,b hand", "")
	s.at(100, four, "9 open 0 a,b hand", "")
	s.at(200, four, "9 open 90000 a,b hand", "")
	s.at(290, four, "9 open 90000 a,a hand", "")
	s.at(300, four, "9 open 90000 a,a hand", "respread 2: a part belongs on node b, which has none, and not on a, for 10s")
	s.at(301, four, "", "split 2 hand: it was merged to be split anew")
	s.at(302, four, "10 open 0 a,b hand", "")
	s.planner.NeedsWhole("k", 303*heat.Tick)
	s.at(303, four, "10 open 0 a,b hand", "merge: an operation needs it whole")
	s.at(304, four, "10 closing 0 a,b hand", "")
	s.at(305, four, "", "")
	s.at(306, four, "11 open 0 a,a hand", "") // the person insists
	s.at(316, four, "11 open 0 a,a hand", "respread 2: a part belongs on node b, which has none, and not on a, for 10s")
	s.at(317, four, "", "split 2 hand: it was merged to be split anew")
}

// What had to be made whole is left so for a while.
func TestPlanNeedsWhole(t *testing.T) {
	s := newStage(t, Policy{})
	s.at(0, four, "9 open 9000 a,b,c,d", "")
	s.planner.NeedsWhole("k", heat.Tick)
	s.at(1, four, "9 open 9000 a,b,c,d", "merge: an operation needs it whole") // before it has been split for Stay
	s.at(2, four, "9 open 9000 a,b,c,d", "")
	s.at(6, four, "9 open 9000 a,b,c,d", "merge: an operation needs it whole")
	s.at(7, four, "hot 9000", "")
	s.at(60.9, four, "hot 9000", "")
	s.at(61, four, "hot 9000", "split 4: it gets about 9000 operations a second, and 1000 are worth a part")

	// It is not split anew either, when it was merged for that.
	s.at(70, four, "20 open 0 a,a,c,d", "")
	s.at(80, four, "20 open 4000 a,a,c,d", "respread 4: a part belongs on node b, which has none, and not on a, for 10s")
	s.planner.NeedsWhole("k", 81*heat.Tick)
	s.at(82, four, "20 closing 0 a,a,c,d", "")
	s.at(83, four, "", "")
	s.at(84, four, "hot 9000", "")
	s.at(140.9, four, "hot 9000", "")
	s.at(141, four, "hot 9000", "split 4: it gets about 9000 operations a second, and 1000 are worth a part")
}

// There is room for so many, the busiest come first, and what is too calm is not split.
func TestPlanRoom(t *testing.T) {
	p, err := NewPlanner[string](Policy{Max: 5})
	if err != nil {
		t.Fatal(err)
	}
	scene := Scene[string]{
		Nodes: someNodes(8, 0), Splits: 3,
		Hot: []Candidate[string]{{"a", 2000}, {"b", 4000}, {"c", 5000}, {"d", 3000}, {"e", 999}},
	}
	p.Decide(0, scene)
	var got []string
	for _, d := range p.Decide(2*heat.Tick, scene) {
		got = append(got, fmt.Sprintf("%v %s %d", d.Action, d.Key, d.Parts))
	}
	if want := []string{"split c 5", "split b 4"}; !slices.Equal(got, want) || p.LeftOut() != 2 {
		t.Errorf("%v, %d left out; want %v, 2", got, p.LeftOut(), want)
	}
	for i := range 2 * maxNotes {
		p.NeedsWhole(fmt.Sprint(i), int64(i))
	}
	if _, ok := p.notes[fmt.Sprint(maxNotes-1)]; ok || len(p.notes) != maxNotes {
		t.Errorf("%d notes, the oldest among them: %v", len(p.notes), ok)
	}
	p.Decide(3600*heat.Tick, Scene[string]{})
	if len(p.notes)+len(p.hot)+len(p.divided) != 0 {
		t.Errorf("%d, %d and %d are remembered of nothing", len(p.notes), len(p.hot), len(p.divided))
	}
}

func TestSplitPolicyRefused(t *testing.T) {
	for says, p := range map[string]Policy{
		"floor 0.5: choose 1 to 1,000,000,000":        {Floor: 0.5},
		"per part NaN: choose 1 to":                   {PerPart: math.NaN()},
		"stay 1ms: choose 1s to 1h0m0s":               {Stay: 1e6},
		"hold-off 9s: choose 10s, which is stay, to ": {HoldOff: 9e9},
		"max 1001: choose 1 to 1000 splits":           {Max: 1001},
	} {
		if _, err := NewPlanner[string](p); !errors.Is(err, errPolicy) || !strings.Contains(err.Error(), says) {
			t.Errorf("%+v: %v, want %q", p, err, says)
		}
	}
}

// world is one object under a load, with real counts, whose planner is obeyed.
type world struct {
	planner *Planner[string]
	watch   *heat.Watch[string]
	nodes   []Node
	now     int64
	whole   *heat.Sketch // at the home
	parts   *heat.Sketch // at the owners of the parts; nil: it is whole
	places  []string
	id      uint64
	wait    int  // looks until what was begun is there
	opening bool // it is begun
	log     []string
	opened  int64 // when it was split last
}

func newWorld(t interface{ Fatal(...any) }, nodes int) *world {
	planner, err := NewPlanner[string](Policy{Floor: 100, PerPart: 100}) // the fewer, the quicker
	watch, err2 := heat.NewWatch[string](heat.Policy{Floor: 100})
	if err != nil || err2 != nil {
		t.Fatal(err, err2)
	}
	return &world{planner: planner, watch: watch, nodes: someNodes(nodes, 0), whole: heat.NewSketch(1)}
}

// run is half a second at a rate. It returns what was decided, if anything.
func (w *world) run(t interface{ Fatal(...any) }, rate float64) string {
	const slices = 50
	for i := range slices {
		w.now += heat.Tick / 2 / slices
		for range int(rate/2/slices*float64(i+1)) - int(rate/2/slices*float64(i)) {
			if w.parts != nil {
				w.parts.Touch(1, w.now)
			} else {
				w.whole.Touch(1, w.now)
			}
		}
	}
	counted := func(s *heat.Sketch) (c heat.Count) {
		s.Each(w.now, func(one heat.Count) { c = one })
		return c
	}
	home := counted(w.whole)
	w.watch.Update(w.now, heat.Load{Rate: home.RateMax, Keys: 1}, []heat.Seen[string]{{Key: "k", RateMax: home.RateMax, RateMin: home.RateMin}})
	scene := Scene[string]{Nodes: w.nodes}
	switch {
	case w.wait > 0:
		w.wait--
		scene.Divided = []Divided[string]{{Key: "k", ID: w.id, Places: w.places}}
		if w.wait == 0 && w.opening {
			w.parts, w.opened = heat.NewSketch(1), w.now
		}
	case w.parts != nil:
		scene.Divided = []Divided[string]{{Key: "k", ID: w.id, Open: true, Places: w.places, Rate: counted(w.parts).RateMax}}
	default:
		for _, h := range w.watch.Hot() {
			scene.Hot = append(scene.Hot, Candidate[string]{Key: h.Key, Rate: h.Rate})
		}
	}
	scene.Splits = len(scene.Divided)
	decisions := w.planner.Decide(w.now, scene)
	if len(decisions) == 0 {
		return ""
	}
	d := decisions[0]
	if len(decisions) > 1 || d.Action == Split && d.Parts > len(w.nodes) || (d.Action == Split) == (w.parts != nil) {
		t.Fatal(decisions)
	}
	w.wait, w.parts, w.opening = 2, nil, d.Action == Split
	if w.opening {
		w.id++
		w.places, _ = Spread("k", d.Parts, w.nodes)
	}
	line := fmt.Sprintf("%v: %v %d, %s", time.Duration(w.now), d.Action, d.Parts, d.Reason)
	w.log = append(w.log, line)
	return d.Action.String()
}

// Every constant load settles, within 90 seconds, with the number of parts that it is worth.
func TestLoadsSettle(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, rapid.IntRange(1, 20).Draw(t, "nodes"))
		for range rapid.IntRange(1, 3).Draw(t, "loads") {
			rate := rapid.SampledFrom([]float64{0, 10, 45, 70, 95, 110, 150, 210, 300, 550, 990, 1500}).Draw(t, "rate")
			for range 2 * 90 {
				w.run(t, rate)
			}
			for range 2 * 60 {
				if did := w.run(t, rate); did != "" {
					t.Fatalf("with %g: %s", rate, strings.Join(w.log, "\n"))
				}
			}
			n := 1
			if w.parts != nil {
				n = len(w.places)
			}
			least, most := Parts(rate/1.3, 100, len(w.nodes)), Parts(rate*1.3, 100, len(w.nodes))
			if rate < 100 {
				least = 1 // whether it is split depends on what was before
			}
			if rate < 49 {
				most = 1
			}
			if n < least || n > most {
				t.Fatalf("%d parts with %g on %d nodes: %s", n, rate, len(w.nodes), strings.Join(w.log, "\n"))
			}
		}
	})
}

// A load around the floor, however it goes up and down, is split once and stays so.
func TestNoFlapping(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, 5)
		period := rapid.IntRange(1, 120).Draw(t, "period") // of half seconds
		high, low := rapid.Float64Range(100, 190).Draw(t, "high"), rapid.Float64Range(54, 100).Draw(t, "low")
		for i := range 2 * 300 {
			rate := low
			if i%(2*period) < period {
				rate = high
			}
			w.run(t, rate)
		}
		if len(w.log) > 1 {
			t.Fatalf("%g to %g: %s", low, high, strings.Join(w.log, "\n"))
		}
	})
}

// Whatever the load does, an object is split for Stay at least, and takes turns.
func TestPlanInAnyOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, rapid.IntRange(2, 8).Draw(t, "nodes"))
		for range rapid.IntRange(1, 30).Draw(t, "turns") {
			rate := rapid.SampledFrom([]float64{0, 30, 90, 150, 400, 1000}).Draw(t, "rate")
			for range rapid.IntRange(1, 40).Draw(t, "halves") {
				opened := w.opened
				if did := w.run(t, rate); did != "" && did != "split" && w.now-opened < heat.DefaultStay {
					t.Fatalf("opened at %v: %s", time.Duration(opened), strings.Join(w.log, "\n"))
				}
			}
		}
	})
}
