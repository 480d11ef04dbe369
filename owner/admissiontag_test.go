package owner

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/admission"
)

func tagged(tag string, ttl int64, demands ...Demand) Admit {
	return Admit{Demands: demands, Hold: ttl, Tag: admission.TagOf(tag)}
}

// TestTagEndsOneHold: who ends a hold of a tag ends one that was made under it, and nothing if there is none: before
// the Admit, twice, or when its time is over.
func TestTagEndsOneHold(t *testing.T) {
	s := newStore(t, nil)
	release := func(now int64, tag string) admission.Phase {
		return must(s.Settle(now, gate7, noID, Tagged(tag), nil, true)).Phase
	}
	inUse := func(now int64) int64 { return must(s.Get(now, under7("slots"))).Value }
	one := slotsOf("slots", 1, 3)
	if p := release(0, "a"); p != admission.Unknown || inUse(0) != 0 {
		t.Errorf("before: %v", p)
	}
	a := must(s.Admit(0, gate7, noID, tagged("a", 10*second, one), nil))
	if !a.Admitted || a.Hold.Sequence != 1 || a.Left != 10*second {
		t.Fatalf("%+v", a)
	}
	must(s.Admit(0, gate7, noID, tagged("b", 5*second, one), nil))
	if again := must(s.Admit(second, gate7, noID, tagged("a", 10*second, one), nil)); !again.Admitted || again.Hold == a.Hold || inUse(second) != 3 {
		t.Errorf("the second one of a tag: %+v", again)
	}
	if full := must(s.Admit(second, gate7, noID, tagged("a", 10*second, one), nil)); full.Admitted {
		t.Errorf("%+v", full)
	}
	if p := release(2*second, "a"); p != admission.Held || inUse(2*second) != 2 {
		t.Errorf("%v, %d", p, inUse(2*second))
	}
	if left := must(s.InspectAdmission(2*second, gate7, admission.ID{}, 9)); left.Total != 2 || slices.IndexFunc(left.Holds, func(h AdmittedAnswer) bool { return h.Left == 9*second }) < 0 {
		t.Errorf("the hold that was made last is gone: %+v", left)
	}
	if p := release(5*second, "b"); p != admission.Released || inUse(5*second) != 1 {
		t.Errorf("after its time: %v, %d", p, inUse(5*second))
	}
	if p := release(5*second, "b"); p != admission.Unknown || inUse(5*second) != 1 {
		t.Errorf("twice: %v, %d", p, inUse(5*second))
	}
	if p := release(6*second, "a"); p != admission.Held || inUse(6*second) != 0 {
		t.Errorf("%v, %d", p, inUse(6*second))
	}
}

// TestTagsAreBounded: one more than may be of a tag is refused by all demands, and charges nothing; what is only
// remembered stands in nobody's way.
func TestTagsAreBounded(t *testing.T) {
	s := newStore(t, nil)
	op := tagged("a", 10*second, slotsOf("slots", 1, 100), tokens("day", 1, 1000))
	for range MaxTagged {
		if a := must(s.Admit(0, gate7, noID, op, nil)); !a.Admitted {
			t.Fatalf("%+v", a)
		}
	}
	a := must(s.Admit(0, gate7, noID, op, nil))
	if a.Admitted || !a.Demands[0].Refused || !a.Demands[1].Refused || a.Demands[0].Remaining != 100-MaxTagged || spentOf(t, s, 0, "day", 1000) != MaxTagged {
		t.Errorf("%+v", a)
	}
	if b := must(s.Admit(0, gate7, noID, tagged("b", second, slotsOf("slots", 1, 100)), nil)); !b.Admitted {
		t.Errorf("%+v", b)
	}
	for range MaxTagged {
		if a := must(s.Admit(11*second, gate7, noID, op, nil)); !a.Admitted {
			t.Fatalf("when the others are over: %+v", a)
		}
	}
	if _, err := s.Admit(0, gate7, id(1), op, nil); reason(err) != failure.Invalid || !strings.Contains(err.Error(), "hold_tag") {
		t.Error(err)
	}
	if op.Hold = 0; true {
		if _, err := s.Admit(0, gate7, noID, op, nil); reason(err) != failure.Invalid || !strings.Contains(err.Error(), "hold_tag") {
			t.Error(err)
		}
	}
}

// TestTagsThroughTakeovers: whatever comes in between, slots are in use as holds are, and each end of a tag takes
// one of them away.
func TestTagsThroughTakeovers(outer *testing.T) {
	rapid.Check(outer, func(t *rapid.T) {
		to := &changesTo{}
		s := newStore(outer, func(c *Config) { c.Sink = to })
		to.store = newStore(outer, func(c *Config) { c.Rule = ownsNothing })
		now, ends := int64(0), map[string][]int64{}
		live := func(tag string) (all []int64) {
			for _, e := range ends[tag] {
				if e > now {
					all = append(all, e)
				}
			}
			slices.Sort(all)
			return all
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			now += rapid.Int64Range(0, 3*second).Draw(t, "later")
			tag := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "tag")
			inUse := 0
			for _, tag := range []string{"a", "b", "c"} {
				inUse += len(live(tag))
			}
			switch rapid.IntRange(0, 7).Draw(t, "what") {
			default:
				op := tagged(tag, rapid.Int64Range(1, 20).Draw(t, "ttl")*second, slotsOf("slots", 1, 5))
				a := must(s.Admit(now, gate7, noID, op, nil))
				if a.Admitted != (inUse < 5) {
					t.Fatalf("%d in use: %+v", inUse, a)
				}
				if a.Admitted {
					inUse++
					ends[tag] = append(live(tag), now+op.Hold)
				}
			case 3, 4, 5:
				p := must(s.Settle(now, gate7, noID, Tagged(tag), nil, true)).Phase
				if (p == admission.Held) != (len(live(tag)) > 0) {
					t.Fatalf("%v of %v", p, live(tag))
				}
				if p == admission.Held {
					inUse--
					ends[tag] = live(tag)[1:]
				}
			case 6:
				s.Wake(now)
			case 7: // the owner dies, and its standby takes over
				to.store.cfg.Rule = &testRule{epoch: s.cfg.Rule.(*testRule).epoch + 1}
				s, to = to.store, &changesTo{}
				to.store = newStore(outer, func(c *Config) { c.Rule = ownsNothing })
				s.cfg.Sink, s.partial = to, to
				s.Export(func() int64 { return now }, always, to.emit, func() bool { return true })
			}
			must(s.InspectAdmission(now, gate7, admission.ID{}, 1)) // lets time pass
			if v := must(s.Get(now, under7("slots"))); v.Value != int64(inUse) {
				t.Fatalf("%d slots, not %d: %s", v.Value, inUse, fmt.Sprint(ends))
			}
		}
	})
}
