package owner

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/hold"
	"github.com/keystead/keystead/owner/reqid"
)

var crew = Ref{Key: "crew", Name: "group"}

func joins(id, metadata string) JoinGroup {
	return JoinGroup{ID: id, Metadata: []byte(metadata), TTL: 10 * second}
}

// joined joins, and fails the test if that is refused.
func joined(t testing.TB, s *Store, now int64, id reqid.ID, j JoinGroup) JoinAnswer {
	t.Helper()
	a, err := s.JoinGroup(now, crew, id, j)
	if err != nil || !a.Joined || a.Token == 0 {
		t.Fatalf("%+v, %v", a, err)
	}
	return a
}

// watcher is what has been seen of a group: the metadata of each member.
type watcher struct {
	seen Seen
	here map[string]string
}

// look asks once, and reports whether there was news.
func (w *watcher) look(t testing.TB, s *Store, now int64) (changed <-chan struct{}, due int64) {
	t.Helper()
	a, changed, err := s.AwaitGroup(now, crew, w.seen)
	if err != nil {
		t.Fatal(err)
	}
	before := w.seen
	next, news := w.seen.Then(a.Seen)
	if news != (changed == nil) || next.Position < before.Position {
		t.Fatalf("%+v after %+v: news %v", a, before, news)
	}
	if w.seen = next; news {
		w.here = map[string]string{}
		for _, h := range a.Holders {
			if _, twice := w.here[h.Name]; twice {
				t.Fatalf("%q is there twice: %+v", h.Name, a.Holders)
			}
			w.here[h.Name] = string(h.Metadata)
		}
	}
	return changed, a.Due
}

// is reports what a watcher has that it should not, or lacks.
func (w *watcher) is(t testing.TB, s *Store, now int64, want ...string) {
	t.Helper()
	w.look(t, s, now)
	all := map[string]string{}
	for _, m := range want {
		id, metadata, _ := strings.Cut(m, "=")
		all[id] = metadata
	}
	if !maps.Equal(w.here, all) {
		t.Errorf("at %ds there are %v, want %v", now/second, w.here, all)
	}
}

// Watchers hear of members that join, update, leave, and are gone when their lease is over:
// each time the whole membership, once.
func TestGroup(t *testing.T) {
	s := newStore(t, nil)
	var w watcher
	w.is(t, s, 0)
	changed, due := w.look(t, s, 0)
	if due != 0 || closed(changed) {
		t.Errorf("something is to come in %d ns", due)
	}
	a := joined(t, s, 0, noID, joins("a", "1"))
	if !closed(changed) {
		t.Error("nobody was told")
	}
	w.is(t, s, 0, "a=1")
	b := joined(t, s, second, noID, joins("b", "2"))
	w.is(t, s, second, "a=1", "b=2")
	if r := must(s.UpdateMember(2*second, crew, noID, a.Token, []byte("3"))); !r.OK {
		t.Errorf("%+v", r)
	}
	w.is(t, s, 2*second, "a=3", "b=2")
	if changed, due = w.look(t, s, 2*second); due != 8*second {
		t.Errorf("it is to look again in %d ns", due)
	}
	if !must(s.RenewMember(5*second, crew, b.Token, 10*second)).OK || closed(changed) {
		t.Error("a renewal is news, or not done")
	}
	w.is(t, s, 10*second, "b=2")
	if !closed(changed) {
		t.Error("that a member is gone was told to nobody")
	}
	for what, ok := range map[string]bool{
		"renewed":  must(s.RenewMember(10*second, crew, a.Token, 10*second)).OK,
		"updated":  must(s.UpdateMember(10*second, crew, noID, a.Token, nil)).OK,
		"left":     must(s.Leave(10*second, crew, noID, a.Token)).Released,
		"verified": must(s.VerifyMember(10*second, crew, a.Token)).OK,
	} {
		if ok {
			t.Errorf("a member that is gone was %s", what)
		}
	}
	if !must(s.Leave(11*second, crew, noID, b.Token)).Released {
		t.Error("not left")
	}
	w.is(t, s, 11*second)
}

// Two processes of one id: the later one is the member, in one step, and the earlier one, which
// says what it had, does not come back beside it. In a retry, neither does.
func TestOneMemberOfAnID(t *testing.T) {
	s := newStore(t, nil)
	var w watcher
	a := joined(t, s, 0, noID, joins("a", "old"))
	joined(t, s, 0, noID, joins("b", ""))
	w.is(t, s, 0, "a=old", "b=")
	before := w.seen.Position
	later := joined(t, s, second, noID, joins("a", "new"))
	if w.is(t, s, second, "a=new", "b="); later.Token <= a.Token || w.seen.Position < later.Token || before >= later.Token {
		t.Errorf("%+v after %+v, at %+v", later, a, w.seen)
	}
	if must(s.RenewMember(second, crew, a.Token, second)).OK || must(s.Leave(second, crew, noID, a.Token)).Released {
		t.Error("the earlier one is a member, too")
	}
	back := joins("a", "old")
	back.After = a.Token
	for i := range 2 {
		r, err := s.JoinGroup(second, crew, retry(1, 0), back)
		if err != nil || r.Joined || r.Later != later.Token || r.Replayed != (i > 0) {
			t.Errorf("%d: %+v %v", i, r, err)
		}
	}
	w.is(t, s, second, "a=new", "b=")
	back.After = later.Token // it is that one, and has not heard that it is a member
	again := joined(t, s, second, noID, back)
	w.is(t, s, second, "a=old", "b=")
	must(s.Leave(second, crew, noID, again.Token))
	back.After = a.Token
	joined(t, s, second, noID, back)
	w.is(t, s, second, "a=old", "b=")
	back.After = 1 << 63
	if _, err := s.JoinGroup(second, crew, noID, back); reason(err) != failure.Invalid || err.(*failure.Error).Field != "after_token" {
		t.Errorf("%v", err)
	}
}

// A group has a bound, at which members of before may come back; what a member says has one, too.
func TestGroupIsFull(t *testing.T) {
	s := newStore(t, nil)
	large := strings.Repeat("m", hold.MaxMetadata)
	for i := range hold.MaxHolders {
		joined(t, s, 0, noID, joins(fmt.Sprint(i), large))
	}
	if a, err := s.JoinGroup(0, crew, noID, joins("more", "")); err != nil || a.Joined || a.Later != 0 {
		t.Errorf("%+v %v", a, err)
	}
	joined(t, s, 0, noID, joins("7", "again"))
	if all := membersOf(t, s, 0); len(all) != hold.MaxHolders || all[len(all)-1].Name != "7" {
		t.Errorf("%d members", len(all))
	}
	for field, j := range map[string]JoinGroup{"metadata": joins("x", large+"m"), "id": joins("", ""), "ttl_ns": {ID: "x", TTL: 1}} {
		if _, err := s.JoinGroup(0, crew, noID, j); reason(err) != failure.Invalid || err.(*failure.Error).Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	if a := joined(t, s, 10*second, noID, joins("more", "")); a.TTL != 10*second {
		t.Errorf("%+v", a)
	}
}

func membersOf(t testing.TB, s *Store, now int64) []hold.Holding {
	t.Helper()
	a, _, err := s.AwaitGroup(now, crew, Seen{})
	if err != nil {
		t.Fatal(err)
	}
	return a.Holders
}

// An Update that was held up brings nothing back that was replaced since.
func TestUpdateOfAMemberThatWasHeldUp(t *testing.T) {
	s := newStore(t, nil)
	a := joined(t, s, 0, noID, joins("a", "1"))
	must(s.UpdateMember(0, crew, id(1), a.Token, []byte("2")))
	must(s.UpdateMember(0, crew, id(2), a.Token, []byte("3")))
	if r := must(s.UpdateMember(0, crew, retry(1, second), a.Token, []byte("2"))); !r.OK || !r.Replayed {
		t.Errorf("%+v", r)
	}
	var w watcher
	w.is(t, s, 0, "a=3")
}

// After a loss members claim what they had, and others join at once, for they keep nobody out. Of
// an id, the later membership stays, in whatever order they come; what has left stays away.
func TestGroupAfterALoss(t *testing.T) {
	s, rule := lost(t, nil)
	now := cameAt + second
	claims := func(id string, token uint64) HeldAnswer {
		return must(s.ReclaimMember(now, crew, token, 10*second, MemberClaim{ID: id, Metadata: []byte(fmt.Sprint(token & 0xff)), Left: 5 * second}))
	}
	var w watcher
	if w.look(t, s, now); !w.seen.Unknown {
		t.Errorf("%+v", w.seen)
	}
	if _, err := s.RenewMember(now, crew, granted(4, 9), second); reason(err) != failure.Recovering {
		t.Errorf("%v", err)
	}
	joined(t, s, now, noID, joins("new", "n"))
	w.is(t, s, now, "new=n")
	if a := claims("a", granted(4, 9)); !a.Reclaimed {
		t.Errorf("%+v", a)
	}
	w.is(t, s, now, "new=n", "a=9")
	if a := claims("a", granted(3, 1)); !a.Reclaimed {
		t.Errorf("the later membership of the id: %+v", a)
	}
	w.is(t, s, now, "new=n", "a=1")
	for _, token := range []uint64{granted(4, 9), granted(4, 8)} {
		if a := claims("a", token); a.OK {
			t.Errorf("an earlier one: %+v", a)
		}
	}
	if a := claims("new", granted(2, 7)); a.OK {
		t.Errorf("one of an id that has joined since: %+v", a)
	}
	w.is(t, s, now, "new=n", "a=1")
	if !claims("b", granted(2, 2)).Reclaimed || !must(s.Leave(now, crew, noID, granted(2, 2))).Released {
		t.Error("not claimed, or not left")
	}
	joined(t, s, now, noID, joins("c", ""))
	if a := claims("b", granted(2, 2)); a.OK {
		t.Errorf("one that has left is there again: %+v", a)
	}
	w.is(t, s, now, "new=n", "a=1", "c=")
	rule.lost = 0
	w.is(t, s, now+6*second, "new=n", "c=")
}

// More claims than there may be members: the latest of them stay.
func TestClaimsOfAFullGroup(t *testing.T) {
	s, _ := lost(t, nil)
	now := cameAt + second
	for i := range hold.MaxHolders {
		joined(t, s, now, noID, joins(fmt.Sprint("n", i), ""))
	}
	if a := must(s.ReclaimMember(now, crew, granted(3, 1), second, MemberClaim{ID: "o", Left: second})); a.OK {
		t.Errorf("%+v", a)
	}
	if all := membersOf(t, s, now); len(all) != hold.MaxHolders {
		t.Errorf("%d members", len(all))
	}
}

// Whatever happens to a group and its owners, what a watcher is told goes forward; and when there is
// no news, it has all members.
func TestWatchersHaveWhoIsThere(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		sink, rule := &copies{t: t, partial: rapid.Bool().Draw(rt, "partial")}, &testRule{epoch: 100}
		s := newStore(t, func(c *Config) { c.Sink, c.Rule = sink, rule })
		sink.to = newStore(t, func(c *Config) { c.Rule = ownsNothing })
		type member struct {
			token    uint64
			until    int64
			metadata string
		}
		here := map[string]*member{}
		now, seq, w, moved := int64(0), uint64(0), watcher{}, false
		for range rapid.IntRange(1, 40).Draw(rt, "steps") {
			now += rapid.Int64Range(0, 4).Draw(rt, "pass") * second
			s.Wake(now)
			seq++
			name := rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(rt, "id")
			for id, m := range here {
				if m.until <= now {
					delete(here, id)
				}
			}
			m := here[name]
			token := uint64(1)
			if m != nil {
				token = m.token
			}
			switch rapid.IntRange(0, 7).Draw(rt, "op") {
			case 0, 1, 2:
				j := joins(name, fmt.Sprint(seq))
				j.After = rapid.SampledFrom([]uint64{0, token, 1}).Draw(rt, "after")
				a := must(s.JoinGroup(now, crew, id(seq), j))
				if a.Joined != (m == nil || j.After == 0 || j.After == m.token) || !a.Joined && a.Later != m.token {
					rt.Fatalf("%+v of %+v beside %+v", a, j, m)
				}
				if a.Joined {
					here[name] = &member{a.Token, now + 10*second, string(j.Metadata)}
				}
			case 3:
				if must(s.UpdateMember(now, crew, noID, token, fmt.Append(nil, seq))).OK {
					m.metadata = fmt.Sprint(seq)
				}
			case 4:
				if must(s.Leave(now, crew, noID, token)).Released {
					delete(here, name)
				}
			case 5:
				if must(s.RenewMember(now, crew, token, 5*second)).OK {
					m.until = now + 5*second
				}
			case 6: // another object of the shard uses tokens
				must(s.SetRegister(now, Ref{Key: crew.Key, Name: "r"}, noID, puts("v")))
			case 7: // the owner is another
				if !moved {
					s, moved = sink.to, true
					s.cfg.Rule = &testRule{epoch: rule.epoch + 1}
				}
			}
			if rapid.Bool().Draw(rt, "looks") {
				so := map[string]string{}
				for id, m := range here {
					so[id] = m.metadata
				}
				if w.look(t, s, now); !maps.Equal(w.here, so) {
					rt.Fatalf("at %d a watcher has %v, and there are %v", now, w.here, so)
				}
			}
		}
	})
}
