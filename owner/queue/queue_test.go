package queue

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/keystead/keystead/owner/reqid"
)

// call is one operation of a random history. Numbers are small so that moments and
// tickets meet.
type call struct {
	op     string
	pass   int64 // time that passes before it
	wait   int64 // of Push, Append and Supersede; grace of Detach
	behind int64 // Append: how long before now its caller came
	ticket uint64
	named  bool // the caller has a request id
	busy   bool
}

var ops = []string{"push", "push", "push", "append", "cancel", "leave", "detach", "detach", "detachAll", "detachOne", "toEnd", "change", "shorten", "supersede", "supersede", "keep", "keep", "hasten", "expire", "serve", "serve"}

// run does the same to a queue and to a model and compares all that can be seen.
type run struct {
	q    Queue[int]
	m    model
	now  int64
	used uint64 // tickets
}

func (r *run) do(c call) error {
	r.now += c.pass
	caller := Caller{Print: uint32(c.ticket)}
	if c.named {
		caller.ID = reqid.ID{Client: reqid.Client{Hi: 1}, Sequence: r.used + 1}
	}
	var got, want any
	switch c.op {
	case "push":
		r.used++
		p := Place[int]{Ticket: r.used, Caller: caller, Request: int(r.used), Since: r.now, GiveUp: r.now + c.wait, Kept: c.behind > 3}
		if c.busy {
			r.q.Enter(p)
		} else {
			to := r.q.Push(p.Ticket)
			p.number = to.number
			*to = p
			p.number = 0
		}
		r.m.push(p, r.now)
	case "append":
		r.used++
		p := Place[int]{Ticket: r.used, Caller: caller, Request: int(r.used), Since: r.now - c.behind, GiveUp: r.now - c.behind + c.wait, Away: true, Kept: c.busy}
		r.q.Append(p, r.now)
		r.m.push(p, r.now)
	case "cancel":
		position, found := r.q.Cancel(c.ticket, r.now)
		wantPosition, wantFound := r.m.cancel(c.ticket, r.now)
		got, want = [2]any{position, found}, [2]any{wantPosition, wantFound}
	case "leave":
		got, want = r.q.Leave(c.ticket, r.now), r.m.leave(c.ticket, r.now)
	case "detach":
		got, want = r.q.Detach(c.ticket, r.now, c.wait, c.busy), r.m.detach(c.ticket, r.now, c.wait, c.busy)
	case "detachAll":
		r.q.DetachAll()
		r.m.detachAll()
	case "detachOne":
		got, want = r.q.DetachOne(c.ticket), r.m.detachOne(c.ticket)
	case "toEnd":
		got, want = r.q.ToEnd(c.ticket, caller.ID, r.now+c.wait-c.behind, r.now), r.m.toEnd(c.ticket, caller.ID, r.now+c.wait-c.behind, r.now)
	case "change":
		r.q.Change(c.ticket, caller.ID, r.now+c.wait-c.behind)
		r.m.change(c.ticket, caller.ID, r.now+c.wait-c.behind)
	case "shorten":
		r.q.Shorten(int(c.wait%3), func(ticket uint64, _ *Caller) {
			if r.m.line[0].Ticket != ticket {
				panic("shortened out of order")
			}
			r.m.line = r.m.line[1:]
		})
	case "supersede":
		r.used++
		position, found := r.q.Supersede(c.ticket, r.used, caller.ID, c.wait, r.now)
		wantPosition, wantFound := r.m.supersede(c.ticket, r.used, caller.ID, c.wait, r.now)
		got, want = [2]any{position, found}, [2]any{wantPosition, wantFound}
	case "keep":
		got, want = r.q.Keep(c.ticket, c.busy), r.m.keep(c.ticket, c.busy)
	case "hasten":
		if until := r.now - c.behind + c.wait; r.q.Len() > 0 {
			r.q.Hasten(until)
			head := &r.m.line[0]
			head.GiveUp = min(head.GiveUp, max(until, head.Since))
		}
	case "expire":
		got, want = r.q.Expire(r.now, nil), r.m.expire(r.now)
	case "serve": // as a machine's step does
		left, wantLeft := r.q.Expire(r.now, nil), r.m.expire(r.now)
		var served, wantServed uint64
		if head := r.q.Head(); head != nil {
			served = head.Ticket
			r.q.Pop()
		}
		if len(r.m.line) > 0 && !r.m.line[0].Away {
			wantServed = r.m.line[0].Ticket
			r.m.line = r.m.line[1:]
		}
		got, want = []any{left, served}, []any{wantLeft, wantServed}
	}
	if !reflect.DeepEqual(got, want) {
		return fmt.Errorf("answer is %+v, want %+v", got, want)
	}
	return r.compare()
}

func (r *run) compare() error {
	if err := r.q.Valid(r.now); err != nil {
		return err
	}
	places := r.q.places()
	if len(places) != len(r.m.line) || r.q.Len() != len(r.m.line) {
		return fmt.Errorf("%d places, want %d", r.q.Len(), len(r.m.line))
	}
	if err := r.q.counted(); err != nil {
		return err
	}
	last := uint64(0)
	for i, want := range r.m.line {
		got := places[i]
		number := got.number
		if got.number = 0; got != want.Place {
			return fmt.Errorf("place %d is %+v, want %+v", i+1, got, want.Place)
		}
		if p := r.q.Find(want.Ticket); p == nil || *r.q.Caller(want.Ticket) != want.Caller || p.Request != want.Request || p.Number() != number || number <= last {
			return fmt.Errorf("place %d is not found by ticket %d, or its number is not above %d", i+1, want.Ticket, last)
		}
		next := uint64(0)
		r.q.After(last, func(p *Place[int]) bool { next = p.Ticket; return false })
		if last = number; next != want.Ticket {
			return fmt.Errorf("after number %d comes ticket %d, want %d", last, next, want.Ticket)
		}
		for at := r.now - 2; at < r.now+10; at++ {
			if r.q.OverAt(&places[i], at) != r.m.over(want, at) {
				return fmt.Errorf("at %d place %d: over is %v", at, i+1, !r.m.over(want, at))
			}
		}
	}
	for at := r.now - 2; at < r.now+10; at++ {
		waiting := 0
		for _, s := range r.m.line {
			if !r.m.over(s, at) {
				waiting++
			}
		}
		if r.q.Waiting(at) != waiting || r.q.Over(at) != (len(r.m.line) > 0 && r.m.over(r.m.line[0], at)) {
			return fmt.Errorf("at %d, %d wait, want %d; over is %v", at, r.q.Waiting(at), waiting, r.q.Over(at))
		}
	}
	next := int64(math.MaxInt64)
	for at := r.now + 100; at >= r.now-100; at-- {
		if slices.ContainsFunc(r.m.line, func(p seat) bool { return r.m.over(p, at) }) {
			next = at
		}
	}
	if got := max(r.q.NextExpiry(), r.now-100); len(r.m.line) > 0 && got != next {
		return fmt.Errorf("the next expiry is %d, want %d", got, next)
	}
	return nil
}

// places returns all places.
func (q *Queue[R]) places() (all []Place[R]) {
	for _, p := range q.All() {
		all = append(all, *p)
	}
	return all
}

// counted reports what of the rest does not follow from its places.
func (q *Queue[R]) counted() error {
	if len(q.Places) == 0 && q.Len() > 0 {
		return fmt.Errorf("nobody stands in front of the rest")
	}
	if q.rest == nil {
		return nil
	}
	q.rest.settle()
	n, away, room, least := 0, 0, cap(q.rest.spare), int64(math.MaxInt64)
	for i, s := range q.rest.segments {
		if len(s.places) == 0 || i > 0 && len(s.places)+len(q.rest.segments[i-1].places) < segmentLen/4 {
			return fmt.Errorf("segment %d has %d places", i, len(s.places))
		}
		n, room = n+len(s.places), room+cap(s.places)
		for _, p := range s.places {
			if least = min(least, p.GiveUp); p.Away && !p.Kept {
				away++
			}
			if q.rest.of[p.Ticket] != s {
				return fmt.Errorf("ticket %d is not found", p.Ticket)
			}
		}
	}
	if r := q.rest; r.n != n || r.away != away || r.room != room || n > 0 && r.giveUp != least || len(r.of) != n {
		return fmt.Errorf("%d places, %d away, room for %d, the first gives up at %d; counted are %+v", n, away, room, least, *r)
	}
	return nil
}

// withSegments runs a test with segments of some lengths.
func withSegments(t *testing.T, test func(t *testing.T)) {
	defer func(n int) { segmentLen = n }(segmentLen)
	for _, segmentLen = range []int{segmentLen, 1, 2, 4, 8} {
		t.Run(fmt.Sprint("segments of ", segmentLen), test)
	}
}

// TestModel compares random histories with the model.
func TestModel(t *testing.T) { withSegments(t, testModel) }

func testModel(t *testing.T) {
	calls := rapid.Custom(func(t *rapid.T) call {
		return call{
			op: rapid.SampledFrom(ops).Draw(t, "op"), pass: rapid.SampledFrom([]int64{0, 0, 1, 1, 2, 5}).Draw(t, "pass"),
			wait: rapid.Int64Range(0, 9).Draw(t, "wait"), behind: rapid.Int64Range(-2, 6).Draw(t, "behind"),
			ticket: rapid.Uint64Range(1, 12).Draw(t, "ticket"), named: rapid.Bool().Draw(t, "named"), busy: rapid.Bool().Draw(t, "busy"),
		}
	})
	rapid.Check(t, func(t *rapid.T) {
		var r run
		for _, c := range rapid.SliceOfN(calls, 20, 60).Draw(t, "calls") {
			if err := r.do(c); err != nil {
				t.Fatalf("%+v: %v\n%+v", c, err, r.q)
			}
		}
	})
}

// model is the queue as a list of those that stand in it, each with its own deadline
// of being away.
type model struct {
	line  []seat
	grace int64 // the one of all; 0 = none runs
}

type seat struct{ Place[int] }

func (m *model) over(s seat, now int64) bool {
	return now >= s.GiveUp || s.Away && !s.Kept && m.grace != 0 && now >= m.grace
}

func (m *model) ahead(ticket uint64, now int64) (i, position int) {
	position = 1
	for i, s := range m.line {
		if s.Ticket == ticket {
			return i, position
		}
		if !m.over(s, now) {
			position++
		}
	}
	return -1, 0
}

func (m *model) push(p Place[int], now int64) {
	if p.Since > now {
		p.Since = now
	}
	for _, s := range m.line {
		if s.Since > p.Since {
			p.Since = s.Since
		}
	}
	if p.GiveUp < p.Since {
		p.GiveUp = p.Since
	}
	m.line = append(m.line, seat{p})
}

func (m *model) cancel(ticket uint64, now int64) (int, bool) {
	i, position := m.ahead(ticket, now)
	if i < 0 {
		return 0, false
	}
	m.line = slices.Delete(slices.Clone(m.line), i, i+1)
	return position, true
}

func (m *model) leave(ticket uint64, now int64) bool {
	i, _ := m.ahead(ticket, now)
	if i < 0 {
		return false
	}
	if m.line[i].GiveUp > now {
		m.line[i].GiveUp = now
	}
	m.line[i].Away = true
	return true
}

func (m *model) detach(ticket uint64, now, grace int64, busy bool) bool {
	i, _ := m.ahead(ticket, now)
	if i < 0 {
		return false
	}
	m.line[i].Away = true
	if runs := m.grace > now; !m.line[i].Kept && (busy || !runs) {
		m.grace = now + grace
	}
	return true
}

func (m *model) keep(ticket uint64, kept bool) bool {
	i, _ := m.ahead(ticket, 0)
	if i >= 0 {
		m.line[i].Kept = kept
	}
	return i >= 0
}

func (m *model) detachAll() {
	var kept []seat
	for _, s := range m.line {
		if s.Caller.ID.Given() {
			s.Away = true
			kept = append(kept, s)
		}
	}
	m.line, m.grace = kept, 0
}

func (m *model) detachOne(ticket uint64) bool {
	i, _ := m.ahead(ticket, 0)
	if i < 0 {
		return false
	}
	m.line, m.grace = slices.Clone(m.line), 0
	if m.line[i].Away = true; !m.line[i].Caller.ID.Given() {
		m.line = slices.Delete(m.line, i, i+1)
	}
	return true
}

func (m *model) toEnd(ticket uint64, id reqid.ID, giveUp, now int64) bool {
	i, _ := m.ahead(ticket, 0)
	if i < 0 {
		return false
	}
	p := m.line[i].Place
	p.Caller.ID, p.GiveUp = id, giveUp
	m.line = slices.Delete(slices.Clone(m.line), i, i+1)
	m.push(p, now)
	return true
}

func (m *model) change(ticket uint64, id reqid.ID, giveUp int64) {
	if i, _ := m.ahead(ticket, 0); i >= 0 {
		m.line[i].Caller.ID, m.line[i].GiveUp = id, max(giveUp, m.line[i].Since)
	}
}

func (m *model) supersede(old, ticket uint64, id reqid.ID, wait, now int64) (int, bool) {
	i, position := m.ahead(old, now)
	if i < 0 || m.over(m.line[i], now) {
		return 0, false
	}
	s := &m.line[i]
	s.Ticket, s.Caller.ID, s.GiveUp, s.Away = ticket, id, now+wait, false
	return position, true
}

func (m *model) expire(now int64) (left []Left) {
	var kept []seat
	for _, s := range m.line {
		if m.over(s, now) {
			left = append(left, Left{Ticket: s.Ticket, Caller: s.Caller, Position: len(kept) + 1, Waited: now - s.Since})
		} else {
			kept = append(kept, s)
		}
	}
	m.line = kept
	return left
}

// TestJudge: of two attempts of a request, the one that was sent later has the place.
func TestJudge(t *testing.T) {
	at := func(age int64, print uint32) *Caller { return &Caller{reqid.ID{Sequence: 1, Age: age}, print} }
	for _, c := range []struct {
		name      string
		has, asks *Caller
		away      bool
		want      Verdict
	}{
		{"a retry", at(0, 1), at(5, 1), false, Newer},
		{"sent at the same moment", at(5, 1), at(5, 1), false, Newer},
		{"held up", at(5, 1), at(4, 1), false, Older},
		{"held up, and the later one is gone", at(5, 1), at(4, 1), true, Newer},
		{"another request", at(0, 1), at(5, 2), false, Reused},
		{"another request, nobody is here", at(0, 1), at(5, 2), true, Reused},
	} {
		if got := c.has.Judge(c.asks, c.away); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// TestGraceIsShared: those that are away have one grace. It is prolonged while the
// object is busy, and not while it is kept for one of them.
func TestGraceIsShared(t *testing.T) {
	for _, busy := range []bool{false, true} {
		q := Queue[string]{}
		for i := range uint64(3) {
			q.Push(i).GiveUp = 1000
		}
		q.Detach(0, 10, 50, true)
		q.Detach(1, 40, 50, busy)
		if head := q.Head(); head != nil {
			t.Fatalf("served is %+v, whose caller is away", head)
		}
		left := q.Expire(60, nil)
		if busy && len(left) != 0 || !busy && len(left) != 2 {
			t.Errorf("busy %v: after the first grace %+v are over", busy, left)
		}
		if left = q.Expire(90, left); len(left) != 2 || q.Head().Ticket != 2 {
			t.Errorf("busy %v: in the end %+v are over", busy, left)
		}
	}
}

func TestTicketsDiffer(t *testing.T) {
	for name, again := range map[string]func(*Queue[int]){
		"push":      func(q *Queue[int]) { q.Push(1) },
		"supersede": func(q *Queue[int]) { q.Supersede(2, 1, reqid.ID{}, 5, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			q := Queue[int]{}
			q.Push(1).GiveUp = 9
			q.Push(2).GiveUp = 9
			defer func() {
				if r := fmt.Sprint(recover()); !strings.Contains(r, "ticket 1 is in the queue already") {
					t.Error(r)
				}
			}()
			again(&q)
		})
	}
}

// An emptied queue gives its room back, unless it is small.
func TestEmptyQueueRoom(t *testing.T) {
	for _, waiters := range []int{keepRoom / 2, 100} {
		q := Queue[string]{}
		for i := range waiters {
			*q.Push(uint64(i)) = Place[string]{Ticket: uint64(i), Request: "b", GiveUp: 5}
		}
		left := q.Expire(5, nil)
		if len(left) != waiters || q.Len() != 0 || cap(q.Places) > keepRoom {
			t.Errorf("%d waiters: %d timed out, room for %d stays", waiters, len(left), cap(q.Places))
		}
		if q.rest != nil {
			t.Errorf("%d waiters: the rest stays", waiters)
		}
		for _, p := range q.Places[:cap(q.Places)] {
			if p.Request != "" {
				t.Errorf("%d waiters: the queue still refers to %q", waiters, p.Request)
			}
		}
	}
}

// TestLongQueues: a long queue is not moved at each Pop, keeps its order and its room,
// and refers to nothing that has left it.
func TestLongQueues(t *testing.T) { withSegments(t, testLongQueues) }

func testLongQueues(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var q Queue[*int]
		var want []uint64
		next, most := uint64(0), 0
		for range 400 {
			for range rapid.IntRange(0, 12).Draw(t, "come") {
				next++
				q.Push(next).Request = new(int)
				want = append(want, next)
			}
			for range min(rapid.IntRange(0, 12).Draw(t, "go"), len(want)) {
				if q.Head().Ticket != want[0] {
					t.Fatalf("the head is %d, want %d", q.Head().Ticket, want[0])
				}
				q.Pop()
				want = want[1:]
			}
			if n := len(want); n > 0 && rapid.IntRange(0, 9).Draw(t, "leave") == 0 {
				q.Cancel(want[n/2], 0)
				want = slices.Delete(slices.Clone(want), n/2, n/2+1)
			}
			most = max(most, len(want))
			if q.Len() != len(want) || len(want) > 0 && q.last().Ticket != want[len(want)-1] {
				t.Fatalf("%d places, want %d", q.Len(), len(want))
			}
			held := 0
			all := q.Places[:cap(q.Places)]
			if q.array != nil {
				all = q.array
			}
			for i := range all {
				if all[i].Request != nil {
					held++
				}
			}
			if q.rest != nil {
				for _, s := range q.rest.segments {
					for _, p := range s.places[:cap(s.places)] {
						if p.Request != nil {
							held++
						}
					}
				}
				for _, p := range q.rest.spare[:cap(q.rest.spare)] {
					if p.Request != nil {
						held++
					}
				}
			}
			if held != len(want) || q.Room() > 4*most+2*keepRoom {
				t.Fatalf("%d places of %d are referred to, in room for %d; at most %d waited", held, len(want), q.Room(), most)
			}
		}
	})
}

// TestStepsAllocateNothing: a queue that has its room serves and expires without any.
func TestStepsAllocateNothing(t *testing.T) {
	q := Queue[string]{}
	var left []Left
	n := testing.AllocsPerRun(100, func() {
		for i := range uint64(4) {
			q.Push(i).GiveUp = 10
		}
		q.Detach(3, 1, 2, true)
		q.Supersede(3, 9, reqid.ID{}, 9, 2)
		q.Cancel(1, 2)
		q.Head()
		q.Pop()
		left = q.Expire(20, left[:0])
	})
	if n > 0 || q.Len() != 0 {
		t.Errorf("%v allocations, %d wait", n, q.Len())
	}
}
