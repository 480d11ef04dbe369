package owner

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/across"
	"github.com/keystead/keystead/owner/admission"
	"github.com/keystead/keystead/owner/counter"
	"github.com/keystead/keystead/owner/reqid"
)

// party is the owner of one key of an admission, with a standby.
type party struct {
	store *Store
	to    *changesTo
	ref   Ref
}

var acrossKeys = []string{"user:1", "team:2", "model:3"}

func newParty(t testing.TB, key string) *party {
	p := &party{to: &changesTo{}, ref: Ref{Key: key, Name: "admission"}}
	p.store = newStore(t, func(c *Config) { c.Sink = p.to })
	p.to.store = newStore(t, func(c *Config) { c.Rule = ownsNothing })
	return p
}

// fails has the standby take over, and gets it a new one.
func (p *party) fails(t testing.TB, now int64) {
	p.to.store.cfg.Rule = &testRule{epoch: p.store.cfg.Rule.(*testRule).epoch + 1, loss: p.store.cfg.Rule.(*testRule).loss, lossAt: p.store.cfg.Rule.(*testRule).lossAt}
	p.store, p.to = p.to.store, &changesTo{}
	p.to.store = newStore(t, func(c *Config) { c.Rule = ownsNothing })
	p.store.cfg.Sink, p.store.partial = p.to, p.to
	p.store.Export(func() int64 { return now }, always, p.to.emit, func() bool { return true })
}

func (p *party) used(now int64) int64 {
	return must(p.store.Get(now, Ref{Key: p.ref.Key, Name: "used"})).Value
}

func (p *party) vote(id across.ID) (v across.Vote) {
	t := target{ref: p.ref, kind: KindAdmission}
	if t.enter(p.store) == nil {
		defer t.leave()
		if found := t.voteLocked(id); found != nil {
			v = *found
		}
	}
	return v
}

// crossing is admissions of three keys, whose messages are lost, doubled, late and reordered.
type crossing struct {
	t        *rapid.T
	parties  []*party
	now      int64
	messages []func()
	requests []*crossed
	calm     bool
}

type crossed struct {
	id      reqid.ID
	terms   across.Terms
	demands [][]Demand
	told    *across.Outcome
	costs   []uint64
	names   []string
}

// called names the demands.
func called(terms *across.Terms, demands ...[]Demand) (names []string) {
	next := make([]int, len(demands))
	for _, of := range terms.Of {
		name := demands[of][next[of]].Name
		next[of]++
		names = append(names, name)
		terms.Names = append(terms.Names, NameAcross(terms.Keys[of], name))
	}
	return names
}

func (c *crossed) across() across.ID {
	return across.ID{Client: c.id.Client, Sequence: c.id.Sequence}
}

func (x *crossing) send(m func()) {
	if !x.calm && rapid.IntRange(0, 7).Draw(x.t, "lost") == 0 {
		return
	}
	x.messages = append(x.messages, m)
}

// deliver has one message arrive, and perhaps again later.
func (x *crossing) deliver() {
	if len(x.messages) == 0 {
		return
	}
	i := rapid.IntRange(0, len(x.messages)-1).Draw(x.t, "message")
	m := x.messages[i]
	if x.calm || rapid.IntRange(0, 5).Draw(x.t, "doubled") > 0 {
		x.messages = append(x.messages[:i:i], x.messages[i+1:]...)
	}
	m()
}

// admits has a node begin an admission, for the first time or again. It may die: what is sent to it is lost then.
func (x *crossing) admits(q *crossed, age int64) {
	c := across.NewCoordinator(q.across(), q.terms, 1, age, x.now+10*second)
	holds := c.Holds(age)
	dead := false
	hear := func(from uint8, a across.Answer) {
		if dead = dead || !x.calm && rapid.IntRange(0, 9).Draw(x.t, "dies") == 0; dead {
			return
		}
		done, words := c.Answered(from, a)
		if done != nil && done.Phase != across.Unknown && q.told == nil {
			q.told = done
		}
		for _, w := range words {
			x.send(func() { x.told(w, func(across.Answer) {}) })
		}
	}
	for _, h := range holds {
		x.send(func() {
			id := q.id
			id.Age = age
			a, err := x.parties[h.Self].store.HoldAcross(x.now, x.parties[h.Self].ref, id,
				HoldAcross{Terms: q.terms, Demands: q.demands[h.Self], Self: h.Self, Epoch: h.Epoch}, nil)
			if err == nil {
				x.send(func() { hear(h.Self, a.Answer) })
			}
		})
	}
}

func (x *crossing) told(w across.Word, hear func(across.Answer)) {
	if a, err := x.parties[w.To].store.TellAcross(x.now, x.parties[w.To].ref, w); err == nil {
		x.send(func() { hear(a.Answer) })
	}
}

// asks has a party send what it has to.
func (x *crossing) asks(p *party) {
	p.store.Wake(x.now)
	for range 2 * len(p.store.shards) { // a standby that has taken over is asked for nothing
		p.store.Sweep(x.now)
	}
	for _, ask := range p.store.Asks() {
		for _, q := range ask.Questions {
			x.send(func() {
				if a, err := x.parties[q.To].store.AskAcross(x.now, x.parties[q.To].ref, q); err == nil {
					x.send(func() { _, _ = p.store.Answered(x.now, p.ref, q.ID, q.To, a.Answer) })
				}
			})
		}
		for _, w := range ask.Words {
			x.send(func() { x.told(w, func(a across.Answer) { _, _ = p.store.Answered(x.now, p.ref, w.ID, w.To, a) }) })
		}
	}
}

func (x *crossing) begins() {
	q := &crossed{id: id(uint64(len(x.requests) + 1)), terms: across.Terms{Keys: acrossKeys}}
	for i := range acrossKeys {
		q.terms.Of = append(q.terms.Of, uint8(i))
		q.demands = append(q.demands, []Demand{bounded("used", rapid.Uint64Range(1, 20).Draw(x.t, "cost"), 40)})
	}
	if rapid.Bool().Draw(x.t, "with slots") {
		q.terms.Of = append(q.terms.Of, 1)
		q.demands[1] = append(q.demands[1], slotsOf("slots", 1, 3))
	}
	q.names = called(&q.terms, q.demands...)
	q.terms.Hold = rapid.Int64Range(1, 20).Draw(x.t, "hold") * second
	q.terms.Charge = rapid.Bool().Draw(x.t, "charge")
	x.requests = append(x.requests, q)
	x.admits(q, 0)
}

func (x *crossing) step(outer testing.TB) {
	x.now += rapid.Int64Range(0, 2).Draw(x.t, "later") * second / 2
	switch what := rapid.IntRange(0, 20).Draw(x.t, "what"); {
	case what < 3:
		x.begins()
	case what == 3 && len(x.requests) > 0:
		if q := rapid.SampledFrom(x.requests).Draw(x.t, "again"); q.told == nil {
			x.admits(q, second)
		}
	case what == 4 && len(x.requests) > 0:
		q := rapid.SampledFrom(x.requests).Draw(x.t, "settled")
		for range q.terms.Of {
			if len(q.costs) < len(q.terms.Of) {
				q.costs = append(q.costs, rapid.Uint64Range(0, 30).Draw(x.t, "real"))
			}
		}
		p := x.parties[0]
		var costs []CostAcross
		for i, of := range q.terms.Of {
			costs = append(costs, CostAcross{acrossKeys[of], q.names[i], q.costs[i]})
		}
		if _, err := p.store.SettleAcross(x.now, p.ref, q.across(), costs, false); err != nil {
			x.t.Fatal(err)
		}
	case what == 5 && !x.calm:
		rapid.SampledFrom(x.parties).Draw(x.t, "party").fails(outer, x.now)
	case what < 9:
		x.asks(rapid.SampledFrom(x.parties).Draw(x.t, "asker"))
	default:
		x.deliver()
	}
}

// settles has nothing fail any more, until nothing is open.
func (x *crossing) settles() {
	x.calm = true
	for range 20 {
		x.now += 31 * second / 4
		for _, p := range x.parties {
			x.asks(p)
		}
		for len(x.messages) > 0 {
			m := x.messages[0]
			x.messages = x.messages[1:]
			m()
		}
	}
}

// check compares what is charged with what all know of the admissions.
func (x *crossing) check() {
	want := make([]int64, len(x.parties))
	for _, q := range x.requests {
		admits, denies := 0, 0
		for i, p := range x.parties {
			v := p.vote(q.across())
			if v.Phase == across.Held || v.Phase == across.Admitted {
				x.t.Fatalf("%d is open at %s: %+v", q.id.Sequence, p.ref.Key, v)
			}
			if v.Phase.Admits() {
				admits++
			} else if v.Phase.Denies() {
				denies++
			}
			switch v.Phase {
			case across.Charged:
				want[i] += int64(q.demands[i][0].Cost)
			case across.Settled:
				want[i] += int64(q.costs[i])
			}
		}
		if admits != 0 && admits != len(x.parties) {
			x.t.Fatalf("%d is charged at %d of %d", q.id.Sequence, admits, len(x.parties))
		}
		if q.told != nil && (q.told.Phase == across.Admitted) != (admits > 0) {
			x.t.Fatalf("%d was told %+v, and %d charge, %d deny", q.id.Sequence, q.told, admits, denies)
		}
	}
	for i, p := range x.parties {
		if n := p.used(x.now); n != want[i] {
			x.t.Fatalf("%s: %d used, not %d", p.ref.Key, n, want[i])
		}
	}
	if v := must(x.parties[1].store.Get(x.now, Ref{Key: acrossKeys[1], Name: "slots"})); v.Value != 0 {
		x.t.Fatalf("%d slots are left taken", v.Value)
	}
}

// TestConservationAcrossKeys: what is charged at each key is what all have decided, and all charge or nobody, through
// messages that are lost, late and doubled, coordinators that die and standbys that take over.
func TestConservationAcrossKeys(outer *testing.T) {
	rapid.Check(outer, func(t *rapid.T) {
		x := &crossing{t: t, now: second}
		for _, key := range acrossKeys {
			x.parties = append(x.parties, newParty(outer, key))
		}
		for range rapid.IntRange(10, 80).Draw(t, "steps") {
			x.step(outer)
		}
		x.settles()
		x.check()
	})
}

func holdAt(t testing.TB, p *party, now int64, id reqid.ID, self uint8, hold int64, demands ...Demand) (AcrossAnswer, error) {
	t.Helper()
	terms := across.Terms{Keys: acrossKeys, Hold: hold}
	for i := range acrossKeys {
		n := 1
		if i == int(self) {
			n = len(demands)
		}
		for k := range n {
			terms.Of = append(terms.Of, uint8(i))
			name := "other"
			if i == int(self) {
				name = demands[k].Name
			}
			terms.Names = append(terms.Names, NameAcross(acrossKeys[i], name))
		}
	}
	return p.store.HoldAcross(now, p.ref, id, HoldAcross{Terms: terms, Demands: demands, Self: self, Epoch: 1}, nil)
}

// TestRefusalIsContended: a refusal says so if there would be room but for what may be given back, and only then.
func TestRefusalIsContended(t *testing.T) {
	p := newParty(t, acrossKeys[0])
	must(p.store.Add(0, Ref{Key: p.ref.Key, Name: "used"}, noID, counter.AddOp{Delta: 4}))
	must(holdAt(t, p, 0, id(1), 0, 60*second, bounded("used", 5, 10)))
	a := must(holdAt(t, p, 0, id(2), 0, 60*second, bounded("used", 6, 10)))
	if a.Phase != across.Refused || !a.Contended || a.Refusal.Demands != 1 {
		t.Errorf("%+v", a)
	}
	if a := must(holdAt(t, p, 0, id(3), 0, 60*second, bounded("used", 7, 10))); a.Phase != across.Refused || a.Contended {
		t.Errorf("it would not fit either way: %+v", a)
	}
	must(p.store.TellAcross(0, p.ref, across.Word{ID: across.ID{Client: id(1).Client, Sequence: 1}, Phase: across.Admitted}))
	if a := must(holdAt(t, p, 0, id(4), 0, 60*second, bounded("used", 6, 10))); a.Phase != across.Refused || a.Contended {
		t.Errorf("what all have held is not contended: %+v", a)
	}
}

// TestHoldAcrossIsOneRequest: an id is a hold under one key or under several, and of one request.
func TestHoldAcrossIsOneRequest(t *testing.T) {
	p := newParty(t, gate7.Key)
	op := HoldAcross{Terms: across.Terms{Keys: []string{gate7.Key, "b"}, Of: []uint8{0, 1}, Names: []uint32{NameAcross(gate7.Key, "a"), 2}, Hold: second, Print: 7}, Demands: []Demand{tokens("a", 1, 10)}, Epoch: 1}
	must(p.store.HoldAcross(0, gate7, id(1), op, nil))
	if a := must(p.store.HoldAcross(0, gate7, id(1), op, nil)); a.Phase != across.Held {
		t.Errorf("again: %+v", a)
	}
	other := op
	other.Print = 8
	if _, err := p.store.HoldAcross(0, gate7, id(1), other, nil); reason(err) != failure.RequestIDReused {
		t.Error(err)
	}
	if _, err := p.store.Admit(0, gate7, id(1), Admit{Demands: op.Demands, Hold: second}, nil); reason(err) != failure.RequestIDReused {
		t.Error(err)
	}
	admit(t, p.store, 0, id(2), second, tokens("a", 1, 10))
	if _, err := p.store.HoldAcross(0, gate7, id(2), op, nil); reason(err) != failure.RequestIDReused {
		t.Error(err)
	}
	if n := spentOf(t, p.store, 0, "a", 10); n != 2 {
		t.Errorf("%d spent", n)
	}
	second := across.ID{Client: id(2).Client, Sequence: 2}
	if a := must(p.store.AskAcross(0, gate7, across.Question{ID: second, Epoch: 1})); a.Phase != across.Aborted {
		t.Errorf("asked about an id of a hold under one key: %+v", a)
	}
	must(p.store.TellAcross(0, gate7, across.Word{ID: second, Phase: across.Cancelled}))
	if a := must(p.store.InspectAdmission(0, gate7, admission.ID(second), 1)); len(a.Holds) != 1 || p.vote(second).Phase != across.Unknown {
		t.Errorf("%+v", a)
	}
}

// TestMarkRefusesLateHold: who says that it never saw an admission never holds it, nor does its standby; without a trace
// of what was asked for otherwise.
func TestMarkRefusesLateHold(t *testing.T) {
	for name, asked := range map[string]func(p *party) AcrossAnswer{
		"asked": func(p *party) AcrossAnswer {
			return must(p.store.AskAcross(0, p.ref, across.Question{ID: across.ID{Client: id(1).Client, Sequence: 1}, Epoch: 1}))
		},
		"cancelled": func(p *party) AcrossAnswer {
			return must(p.store.TellAcross(0, p.ref, across.Word{ID: across.ID{Client: id(1).Client, Sequence: 1}, Epoch: 1, Phase: across.Cancelled}))
		},
	} {
		p := newParty(t, acrossKeys[0])
		if a := asked(p); a.Phase != across.Aborted {
			t.Errorf("%s: %+v", name, a)
		}
		p.fails(t, second)
		if a := must(holdAt(t, p, second, id(1), 0, second, bounded("used", 5, 10))); a.Phase != across.Aborted || p.used(second) != 0 {
			t.Errorf("%s: %+v, %d used", name, a, p.used(second))
		}
		window := p.store.cfg.RequestIDs.Window
		for range 2 * len(p.store.shards) {
			p.store.Sweep(2*window + second)
		}
		if n := p.store.objects[KindAdmission].Load(); n != 0 {
			t.Errorf("%s: %d admissions are left", name, n)
		}
	}
}

// TestLostRowCountsAsHeld: what was sent before the row was lost is neither held nor refused; what was sent after is.
func TestLostRowCountsAsHeld(t *testing.T) {
	p := newParty(t, acrossKeys[0])
	p.store.cfg.Rule = &testRule{epoch: 100, loss: 90, lossAt: 10 * second}
	q := across.Question{ID: across.ID{Client: id(1).Client, Sequence: 1}, Epoch: 80}
	if a := must(p.store.AskAcross(20*second, p.ref, q)); a.Phase != across.Lost {
		t.Errorf("%+v", a)
	}
	if a := must(holdAt(t, p, 20*second, id(2), 0, second, bounded("used", 5, 10))); a.Phase != across.Lost || p.used(20*second) != 0 {
		t.Errorf("%+v", a)
	}
	q.ID.Sequence, q.Epoch = 3, 90
	if a := must(p.store.AskAcross(20*second, p.ref, q)); a.Phase != across.Aborted {
		t.Errorf("sent after the loss: %+v", a)
	}
}

// TestDenialsMakeRoom: refusals of requests that clients are finished with are forgotten where there is no room, and stay
// refused.
func TestDenialsMakeRoom(t *testing.T) {
	p := newParty(t, acrossKeys[0])
	must(p.store.Add(0, Ref{Key: p.ref.Key, Name: "used"}, noID, counter.AddOp{Delta: 10}))
	refused := func(seq, settled uint64) (AcrossAnswer, error) {
		of := id(seq)
		of.Settled = settled
		return holdAt(t, p, 2*second, of, 0, second, bounded("used", 5, 10))
	}
	for n := range uint64(across.MaxDenied) {
		if a := must(refused(n+1, 0)); a.Phase != across.Refused {
			t.Fatalf("%d: %+v", n, a)
		}
	}
	const kept = DefaultIDsPerClient
	last := across.ID{Client: id(1).Client, Sequence: across.MaxDenied}
	for n := range uint64(kept) { // of those the ids say enough
		if a := must(refused(across.MaxDenied+1+n, 0)); a.Phase != across.Refused {
			t.Fatalf("%d: %+v", n, a)
		}
	}
	if v := p.vote(last); v.Phase != across.Unknown {
		t.Errorf("a request whose id is known: %+v", v)
	}
	if _, err := refused(across.MaxDenied+1+kept, 0); reason(err) != failure.StoreFull {
		t.Error(err)
	}
	if a := must(refused(across.MaxDenied+kept, 0)); a.Phase != across.Refused || !a.Replayed {
		t.Errorf("asked again: %+v", a)
	}
	p.store.Sweep(4 * second)
	p.store.Sweep(4 * second)
	if a := must(refused(across.MaxDenied+2+kept, across.MaxDenied)); a.Phase != across.Refused {
		t.Errorf("%+v", a)
	}
	if _, err := refused(1, 0); reason(err) != failure.RequestTooOld {
		t.Errorf("a request that is finished: %v", err)
	}
	if v := p.vote(across.ID{Client: id(1).Client, Sequence: 1}); v.Phase != across.Unknown {
		t.Errorf("%+v", v)
	}
	if v := p.vote(across.ID{Client: id(1).Client, Sequence: 5}); v.Phase != across.Unknown {
		t.Errorf("a request that is finished: %+v", v)
	}
}

// TestManyAcrossUnfinished: an object takes admissions for as long as callers say of none that it is finished. What became
// of them is told again, also by the next owner.
func TestManyAcrossUnfinished(t *testing.T) {
	p := newParty(t, acrossKeys[0])
	const many = 3 * across.MaxHeld
	at := int64(0)
	of := func(n uint64) across.ID { return across.ID{Client: id(n).Client, Sequence: n} }
	var err error
	for n := uint64(1); n <= many; n++ {
		at = int64(n) * second / 500
		if _, err = holdAt(t, p, at, id(n), 0, 0, bounded("used", 1, many)); err != nil {
			t.Fatalf("%d: %v", n, err)
		}
		w := across.Word{ID: of(n), Phase: across.Admitted, All: true}
		if n%2 == 0 {
			w = across.Word{ID: of(n), Phase: across.Cancelled}
		}
		must(p.store.TellAcross(at, p.ref, w))
	}
	for range 2 {
		if got := p.used(at); got != many/2 {
			t.Errorf("%d are charged", got)
		}
		forgotten := 0
		for n := uint64(many - 100); n <= many; n++ {
			if p.vote(of(n)).Phase == across.Unknown {
				forgotten++
			}
			a, err := holdAt(t, p, at, id(n), 0, 0, bounded("used", 1, many))
			if err != nil || a.Phase.Denies() != (n%2 == 0) || a.Phase.Admits() != (n%2 == 1) || !a.Replayed {
				t.Fatalf("%d asked again: %+v, %v", n, a.Answer, err)
			}
		}
		t.Log(forgotten, "votes are forgotten")
		p.fails(t, at)
	}
	for n := uint64(many - 900); n <= many; n++ { // of which the ids are known
		a, err := p.store.AskAcross(at, p.ref, across.Question{ID: of(n), Age: second, Print: p.vote(of(n)).Print})
		if err != nil || a.Phase.Denies() != (n%2 == 0) {
			t.Fatalf("the question about %d: %+v, %v", n, a.Answer, err)
		}
	}
}

// TestEndAcrossBesideASplit: what cannot be given back now is given back later, and the vote says so then only.
func TestEndAcrossBesideASplit(t *testing.T) {
	p := newParty(t, acrossKeys[0])
	must(holdAt(t, p, 0, id(1), 0, 5*second, bounded("used", 5, 10)))
	hold := across.ID{Client: id(1).Client, Sequence: 1}
	rule := &splitNames{testRule: testRule{epoch: 101}, names: map[string]bool{"used": true}}
	p.store.cfg.Rule, p.store.splits = rule, rule
	if _, err := p.store.TellAcross(second, p.ref, across.Word{ID: hold, Phase: across.Cancelled}); reason(err) != failure.Unavailable {
		t.Error(err)
	}
	if v := p.vote(hold); v.Phase != across.Held {
		t.Errorf("%+v", v)
	}
	rule.names = nil
	if a := must(p.store.TellAcross(2*second, p.ref, across.Word{ID: hold, Phase: across.Cancelled})); a.Phase != across.Cancelled || p.used(2*second) != 0 {
		t.Errorf("%+v, %d used", a, p.used(2*second))
	}
}

// TestBytesAcross: what a hold across owners takes at one of them.
func TestBytesAcross(t *testing.T) {
	s := newStore(t, nil)
	const holds = 1000
	before := s.bytes.Load()
	for n := range holds {
		key := fmt.Sprint("user:", n)
		_, err := s.HoldAcross(0, Ref{Key: "team:2", Name: "admission"}, id(uint64(n+1)), HoldAcross{
			Terms:   across.Terms{Keys: []string{"team:2", key, "model:3", "all"}, Of: []uint8{0, 1, 2, 3}, Names: []uint32{NameAcross("team:2", "tpm"), 2, 3, 4}, Hold: second},
			Demands: []Demand{tokens("tpm", 1, 1e6)}, Epoch: 1}, nil)
		if err != nil {
			t.Fatal(err)
		}
	}
	each := (s.bytes.Load() - before) / holds
	t.Log(each, "bytes a hold, with its request id")
	if each > 1024 {
		t.Errorf("%d bytes a hold", each)
	}
}

// TestSettleAcrossNamesDemands: costs name demands by key and name; what is not named has cost what it reserved, and what
// cannot be named changes nothing.
func TestSettleAcrossNamesDemands(t *testing.T) {
	p := newParty(t, acrossKeys[0])
	must(holdAt(t, p, 0, id(1), 0, 60*second, bounded("used", 5, 10), bounded("more", 4, 10)))
	hold := across.ID{Client: id(1).Client, Sequence: 1}
	must(p.store.TellAcross(0, p.ref, across.Word{ID: hold, Phase: across.Admitted}))
	for what, costs := range map[string][]CostAcross{
		"nothing that it has": {{"", "none", 1}},
		"another key":         {{acrossKeys[1], "used", 1}},
		"one twice":           {{"", "used", 1}, {acrossKeys[0], "used", 2}},
		"too much":            {{"", "used", 1 << 60}},
	} {
		if _, err := p.store.SettleAcross(second, p.ref, hold, costs, false); reason(err) != failure.Invalid {
			t.Errorf("%s: %v", what, err)
		}
	}
	a := must(p.store.SettleAcross(second, p.ref, hold, []CostAcross{{acrossKeys[0], "used", 2}, {acrossKeys[1], "other", 9}}, false))
	if a.Phase != across.Settled || a.Costs[0] != 2 || p.used(second) != 2 {
		t.Errorf("%+v, %d used", a, p.used(second))
	}
	if v := must(p.store.Get(second, Ref{Key: p.ref.Key, Name: "more"})); v.Value != 4 {
		t.Errorf("%d of what was not named", v.Value)
	}
	told := 0
	for _, ask := range p.store.Asks() {
		for _, w := range ask.Words {
			if told++; w.Phase != across.Settled || w.Costs[2] != 9 && w.Costs[3] != 9 {
				t.Errorf("%+v", w)
			}
		}
	}
	if told != 2 {
		t.Errorf("%d are told", told)
	}
}
