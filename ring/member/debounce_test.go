package member

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestSettler plays scripts: at each moment what serf shows, and afterwards what
// is shown by the debouncer. "a1" is a alive in incarnation 1, "a1!" failed, "a1?"
// leaving, and "*" before it says that serf had an event of it.
func TestSettler(t *testing.T) {
	type step struct {
		at    int // in ms
		seen  string
		shown string
	}
	for _, tt := range []struct {
		name  string
		steps []step
	}{
		{name: "oneself at once", steps: []step{{at: 0, seen: "me1", shown: "me1"}, {at: 1, seen: "me2", shown: "me2"}}},
		{name: "a newcomer when it is stable", steps: []step{
			{at: 0, seen: "*a1"}, {at: 99, seen: "a1"}, {at: 100, seen: "a1", shown: "a1"},
		}},
		{name: "a flap is no change", steps: []step{
			{at: 0, seen: "a1"}, {at: 100, seen: "a1", shown: "a1"}, {at: 150, seen: "*a1!", shown: "a1"}, {at: 240, seen: "*a1", shown: "a1"},
			{at: 300, seen: "a1", shown: "a1"}, {at: 350, seen: "*a1!", shown: "a1"}, {at: 449, seen: "a1!", shown: "a1"}, {at: 450, seen: "a1!", shown: "a1!"},
		}},
		{name: "a flap between two looks begins the wait anew", steps: []step{
			{at: 0, seen: "a1"}, {at: 60, seen: "*a1"}, {at: 120, seen: "a1"}, {at: 160, seen: "a1", shown: "a1"},
		}},
		{name: "new tags wait", steps: []step{
			{at: 0, seen: "a1"}, {at: 100, seen: "a1", shown: "a1"}, {at: 110, seen: "*a2", shown: "a1"}, {at: 150, seen: "*a3", shown: "a1"},
			{at: 210, seen: "a3", shown: "a1"}, {at: 250, seen: "a3", shown: "a3"},
		}},
		{name: "leaving at once", steps: []step{
			{at: 0, seen: "a1"}, {at: 100, seen: "a1", shown: "a1"}, {at: 110, seen: "a1?", shown: "a1?"},
		}},
		{name: "forgotten at once", steps: []step{
			{at: 0, seen: "a1!"}, {at: 100, seen: "a1!", shown: "a1!"}, {at: 110, seen: ""},
		}},
		{name: "gone before it was shown", steps: []step{{at: 0, seen: "a1"}, {at: 50, seen: ""}, {at: 100, seen: "a1"}, {at: 199, seen: "a1"}, {at: 200, seen: "a1", shown: "a1"}}},
		{name: "a burst is one change", steps: []step{
			{at: 0, seen: "a1"}, {at: 30, seen: "a1 b1"}, {at: 60, seen: "a1 b1 c1"}, {at: 100, seen: "a1 b1 c1"}, {at: 130, seen: "a1 b1 c1"},
			{at: 160, seen: "a1 b1 c1", shown: "a1 b1 c1"},
		}},
		{name: "what is due waits for the rest, but not for ever", steps: []step{
			{at: 0, seen: "a1 z1"}, {at: 90, seen: "a1 *z1"}, {at: 180, seen: "a1 *z1"}, {at: 199, seen: "a1 z1"}, {at: 200, seen: "a1 z1", shown: "a1"},
		}},
		{name: "one that never rests is shown in the end", steps: func() []step {
			var s []step
			for at := 0; at < 1000; at += 50 {
				s = append(s, step{at: at, seen: fmt.Sprintf("*a%d", at)})
			}
			return append(s, step{at: 1000, seen: "*a1000", shown: "a1000"})
		}()},
		{name: "leaving takes what is due along, and no more", steps: []step{
			{at: 0, seen: "a1 b1"}, {at: 100, seen: "a1 b1", shown: "a1 b1"}, {at: 200, seen: "a2 b1", shown: "a1 b1"},
			{at: 250, seen: "a2 b1?", shown: "a1 b1?"}, {at: 300, seen: "a2 b1?", shown: "a2 b1?"},
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newDebouncer("me", 100*time.Millisecond)
			start := time.Unix(0, 0)
			for _, step := range tt.steps {
				now := start.Add(time.Duration(step.at) * time.Millisecond)
				before := printed(s.shown)
				seen, touched := script(step.seen)
				s.update(now, seen, touched)
				changed, next := s.turn(now)
				after := printed(s.shown)
				if after != step.shown {
					t.Fatalf("at %d ms: %q is shown, want %q", step.at, after, step.shown)
				}
				if changed != (before != after) {
					t.Errorf("at %d ms: changed is %v, from %q to %q", step.at, changed, before, after)
				}
				if (len(s.pending) > 0) != next.After(now) {
					t.Errorf("at %d ms: %d pending, ask again %v later", step.at, len(s.pending), next.Sub(now))
				}
			}
		})
	}
}

func script(text string) (map[string]Fact, map[string]bool) {
	seen, touched := map[string]Fact{}, map[string]bool{}
	for _, word := range strings.Fields(text) {
		plain := strings.Trim(word, "*!?")
		f := Fact{Name: strings.TrimRight(plain, "0123456789"), State: Alive}
		f.Self.Version = plain[len(f.Name):]
		switch word[len(word)-1] {
		case '!':
			f.State = Failed
		case '?':
			f.State = Leaving
		}
		seen[f.Name], touched[f.Name] = f, word[0] == '*'
	}
	return seen, touched
}

func printed(shown map[string]Fact) string {
	var words []string
	for _, f := range shown {
		words = append(words, f.Name+f.Self.Version+map[State]string{Failed: "!", Leaving: "?"}[f.State])
	}
	slices.Sort(words)
	return strings.Join(words, " ")
}
