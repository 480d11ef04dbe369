package owner

import (
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/keystead/keystead/owner/value"
)

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func await(t testing.TB, s *Store, seen Seen) (Sight, <-chan struct{}) {
	t.Helper()
	a, c, err := s.AwaitRegister(0, config, seen)
	if err != nil {
		t.Fatal(err)
	}
	return a, c
}

func TestAwaitRegister(t *testing.T) {
	s := newStore(t, nil)
	a, c := await(t, s, Seen{})
	if c != nil || a.Exists || a.Seen.Exists || a.Seen.Position == 0 {
		t.Fatalf("nothing seen: %+v", a)
	}
	_, c = await(t, s, a.Seen)
	_, other := await(t, s, a.Seen)
	if c == nil || closed(c) || c != other {
		t.Fatal("it is no news that there is none")
	}
	must(s.SetRegister(0, Ref{Key: config.Key, Name: "other"}, noID, puts("v")))
	if closed(c) {
		t.Error("another register has changed")
	}
	must(s.SetRegister(0, config, noID, puts("v")))
	if !closed(c) || len(s.shard(Hash(config.Key)).watched) != 0 {
		t.Error("nobody is told of a change")
	}
	b, c := await(t, s, a.Seen)
	if c != nil || string(b.Value) != "v" || b.Seen.Position <= a.Seen.Position {
		t.Errorf("%+v after %+v", b, a)
	}
	if _, c = await(t, s, b.Seen); c == nil {
		t.Error("it is no news")
	}
	if old, c := await(t, s, Seen{Position: math.MaxInt64, Exists: true}); c == nil {
		t.Errorf("one that has seen more is told %+v", old)
	}
	must(s.DeleteRegister(0, config, noID, DeleteRegister{}))
	gone, _ := await(t, s, b.Seen)
	if _, news := b.Seen.Then(gone.Seen); !closed(c) || gone.Exists || !news {
		t.Errorf("%+v", gone)
	}
	_, c = await(t, s, gone.Seen)
	sweepAll(s, second)
	if !closed(c) || len(s.shard(Hash(config.Key)).watched) != 0 {
		t.Error("who does not come again is kept")
	}
}

// What a copy is told by its owner is told to those who still await it there.
func TestAwaitCopy(t *testing.T) {
	s, standby := pair(t)
	must(s.SetRegister(0, config, noID, puts("1")))
	old := promote(standby)
	a, _ := await(t, old, Seen{})
	_, c := await(t, old, a.Seen)
	must(s.SetRegister(0, config, noID, puts("2")))
	if !closed(c) {
		t.Error("a record has come, and nobody looks")
	}
}

func TestUnknownIsNews(t *testing.T) {
	s, rule := lost(t, nil)
	now := cameAt + second
	a, _, err := s.AwaitRegister(now, config, Seen{Position: granted(3, 9), Exists: true})
	if err != nil || a.Exists || !a.Seen.Unknown {
		t.Fatalf("%+v, %v", a, err)
	}
	if _, c, _ := s.AwaitRegister(now, config, a.Seen); c == nil {
		t.Error("it is unknown still")
	}
	rule.lost, rule.lostAt = 0, 0
	b, c, _ := s.AwaitRegister(now, config, a.Seen)
	if c != nil || b.Seen.Unknown || b.Exists {
		t.Errorf("the grace is over: %+v", b)
	}
}

// Whatever the owners do, and in whatever order what was seen at them comes to a watcher: what
// it takes for news never goes back, and in the end it has what there is.
func TestSightsInAnyOrder(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		s, standby := pair(t)
		epoch := uint64(100)
		type sight struct {
			Seen
			at    int // how much had been done
			value string
		}
		var sights []sight
		own := func(next *Store) {
			epoch++
			s = next
			s.cfg.Rule = &testRule{epoch: epoch, since: math.MinInt64}
			standby = joiner(t, s)
			s.cfg.Sink = &copyTo{store: standby}
		}
		for i := range rapid.IntRange(1, 30).Draw(r, "steps") {
			switch rapid.IntRange(0, 6).Draw(r, "what") {
			case 0, 1:
				must(s.SetRegister(0, config, noID, puts(string(rune('a'+i)))))
			case 2:
				must(s.DeleteRegister(0, config, noID, DeleteRegister{Delete: value.Delete{Conditions: value.Conditions{Fence: rapid.Uint64Range(0, 1).Draw(r, "fence")}, Forget: false}}))
			case 3: // of another key
				must(s.SetRegister(0, Ref{Key: "other", Name: "n"}, noID, puts("v")))
			case 4:
				own(standby)
			case 5:
				own(joiner(t, s))
			}
			a, _ := await(t, s, Seen{})
			sights = append(sights, sight{a.Seen, i, string(a.Value)})
		}
		last := sights[len(sights)-1]
		has := sight{at: -1}
		for _, x := range rapid.Permutation(sights).Draw(r, "order") {
			next, news := has.Then(x.Seen)
			if has.Seen = next; !news {
				continue
			}
			if has.at >= 0 && x.at < has.at && (x.value != has.value || x.Exists != has.Exists) {
				r.Fatalf("%+v is taken for news after %+v", x, has)
			}
			has = x
		}
		if has.Exists != last.Exists || has.value != last.value {
			r.Fatalf("it has %+v, and there is %+v", has, last)
		}
	})
}
