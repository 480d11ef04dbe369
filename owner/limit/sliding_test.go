package limit

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func sliding(limit uint64, period int64, cost uint64) Op {
	return Op{Params: Params{SlidingWindow, limit, period, 0}, Cost: cost}
}

func refund(op Op, n uint64) Op {
	op.Cost, op.Refund = 0, n
	return op
}

// slid is a limit with its marks, as its owner keeps them.
type slid struct {
	State
	marks []Mark
}

// apply decides op as the owner does, and checks what holds for any step.
func (x *slid) apply(t failer, op Op, now int64) Result {
	t.Helper()
	if err := op.Validate(); err != nil {
		t.Fatalf("%+v: %v", op, err)
	}
	was, counted := *x, x.counted(max(now, x.At))
	if x.Spent == 0 {
		counted = 0
	}
	var res Result
	var changed bool
	next := slid{}
	if op.Slides(&x.State) {
		room := append(make([]Mark, 0, MaxMarks+1), x.marks...)
		next.State, next.marks, res, changed = Slide(x.State, room, op, now)
	} else {
		next.State, res, changed = Apply(x.State, op, now)
	}
	if !changed {
		if next.State != x.State {
			t.Fatalf("%+v: changed to %+v and says no", *x, next)
		}
		next.marks = x.marks
	}
	*x = next
	if err := x.Valid(); err != nil {
		t.Fatalf("%+v after %+v at %d on %+v: %v", *x, op, now, was, err)
	}
	if err := x.ValidMarks(x.marks); err != nil {
		t.Fatalf("%+v after %+v at %d on %+v: %v", *x, op, now, was, err)
	}
	want := counted - min(counted, op.Refund)
	if res.Allowed && !op.Peek {
		want += op.Cost
	}
	if changed && x.Spent != want || op.Peek && changed || op.Refund != 0 && changed != (counted != 0) {
		t.Fatalf("%+v after %+v at %d on %+v, where %d counted: changed %v", *x, op, now, was, counted, changed)
	}
	if left := res.Capacity - min(res.Capacity, want); res.Remaining != left || res.Capacity != op.Capacity() {
		t.Fatalf("%+v at %d on %+v, where %d count: %+v", op, now, was, want, res)
	}
	return res
}

// counted returns the tokens that count at a moment, under the state's own parameters.
func (x *slid) counted(now int64) uint64 { return sum(x.counting(slices.Clone(x.marks), now)) }

// slidingLog is a sliding window as one would write it down: every hit, for as long as
// it counts.
type slidingLog struct {
	limit uint64
	span  int64 // ns for which a hit counts
	hits  []Mark
}

func (l *slidingLog) at(now int64) (spent uint64) {
	l.hits = slices.DeleteFunc(l.hits, func(h Mark) bool { return now-h.At >= l.span })
	return sum(l.hits)
}

func (l *slidingLog) allows(cost uint64, now int64) bool { return l.at(now)+cost <= l.limit }
func (l *slidingLog) spend(n uint64, now int64)          { l.hits = append(l.hits, Mark{now, n}) }

// refund takes from the oldest hits.
func (l *slidingLog) refund(n uint64, now int64) {
	l.at(now)
	for len(l.hits) > 0 && n > 0 {
		back := min(n, l.hits[0].Tokens)
		n -= back
		if l.hits[0].Tokens -= back; l.hits[0].Tokens == 0 {
			l.hits = l.hits[1:]
		}
	}
}

// backIn returns when n tokens are back.
func (l *slidingLog) backIn(n uint64, now int64) int64 {
	for _, h := range l.hits {
		if n <= h.Tokens {
			return h.At + l.span - now
		}
		n -= h.Tokens
	}
	return 0
}

// check returns what a sliding window that forgets nothing answers.
func (l *slidingLog) check(op Op, now int64) Result {
	res := Result{Allowed: true, Capacity: l.limit}
	switch spent := l.at(now); {
	case op.Refund != 0:
		l.refund(op.Refund, now)
	case spent+op.Cost > l.limit:
		res.Allowed, res.RetryAfter = false, l.backIn(spent+op.Cost-l.limit, now)
	case !op.Peek:
		l.spend(op.Cost, now)
	}
	spent := l.at(now)
	res.Remaining, res.ResetAfter = l.limit-spent, l.backIn(spent, now)
	return res
}

// drawSliding draws an operation: a hit, mostly.
func drawSliding(t *rapid.T, p Params) Op {
	op := anOp(t, p)
	if !rare(t, "much") {
		op.Cost = 1
	}
	if rare(t, "refunds") {
		op.Cost, op.Peek = 0, false
		op.Refund = rapid.OneOf(rapid.Uint64Range(1, 5), rapid.Uint64Range(1, 2*min(p.Limit, MaxLimit/2))).Draw(t, "refund")
	}
	return op
}

// rare is true one time in about ten. Small numbers are drawn more often than
// large ones.
func rare(t *rapid.T, what string) bool { return rapid.Uint8().Draw(t, what) >= 200 }

// step is a time after which some or all of what was spent is over, now and then
// exactly. One that is mostly a small part of the period makes many marks.
func step(t *rapid.T, period int64) int64 {
	if !rare(t, "long") {
		return rapid.Int64Range(0, period/20).Draw(t, "pause")
	}
	return rapid.OneOf(rapid.Int64Range(0, 2*period),
		rapid.SampledFrom([]int64{0, 1, period / 8, period - 1, period, period + 1})).Draw(t, "pause")
}

var slidings = rapid.Custom(func(t *rapid.T) Params {
	return Params{Algorithm: SlidingWindow, Limit: tokens64.Draw(t, "limit"), Period: periods.Draw(t, "period")}
})

var tokens64 = rapid.OneOf(rapid.SampledFrom([]uint64{18, 25, 40, 60}), rapid.Uint64Range(1, 1000), rapid.Uint64Range(1, MaxLimit))

// bounded is a window between two logs: it admits nothing that a log over one period
// does not, and all that a log over nine eighths of it does. A hit that is admitted
// is one in all of them, and refunds take from the oldest hits of each.
type bounded struct {
	slid
	exact, long slidingLog
}

func newBounded(p Params) *bounded {
	return &bounded{exact: slidingLog{limit: p.Limit, span: p.Period}, long: slidingLog{limit: p.Limit, span: p.Period + p.Period/8}}
}

func (b *bounded) check(t failer, op Op, now int64) {
	t.Helper()
	mayNot, must := !b.exact.allows(op.Cost, now), b.long.allows(op.Cost, now)
	res := b.apply(t, op, now)
	if res.Allowed && mayNot && op.Refund == 0 || !res.Allowed && must {
		t.Fatalf("%+v at %d: %+v\nwindow %+v\n  log over a period %+v\n  over nine eighths %+v", op, now, res, b.slid, b.exact.hits, b.long.hits)
	}
	if op.Refund != 0 {
		b.exact.refund(op.Refund, now)
		b.long.refund(op.Refund, now)
	} else if res.Allowed && !op.Peek {
		b.exact.spend(op.Cost, now)
		b.long.spend(op.Cost, now)
	}
}

func TestSlidingBetweenTwoLogs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := slidings.Draw(t, "params")
		b := newBounded(p)
		now := rapid.Int64Range(-1e15, 1e15).Draw(t, "start")
		for range rapid.SampledFrom([]int{10, 60, 200}).Draw(t, "steps") {
			now += step(t, p.Period)
			b.check(t, drawSliding(t, p), now)
		}
	})
}

// The same under load, for many periods: at all rates below and above the limit,
// with bursts and pauses.
func TestBusySlidingBetweenTwoLogs(t *testing.T) {
	const period = int64(1_000_000)
	rng := rand.New(rand.NewPCG(1, 2))
	for _, limit := range []uint64{1, 16, 18, 25, 40, 100, 1000} {
		for _, over := range []int64{-8, -2, 1, 2, 4, 12} { // times the limit, or a part of it
			p := Params{Algorithm: SlidingWindow, Limit: limit, Period: period}
			gap := 2 * period / int64(limit) / max(over, 1) * max(-over, 1)
			b := newBounded(p)
			now := int64(0)
			for range 1500 {
				switch rng.IntN(100) {
				case 0:
					now += rng.Int64N(2 * period)
				case 1, 2, 3:
				default:
					now += rng.Int64N(gap)
				}
				op := Op{Params: p, Cost: 1}
				switch rng.IntN(20) {
				case 0:
					op.Cost = 1 + rng.Uint64N(min(limit, 10))
				case 1:
					op = refund(op, 1+rng.Uint64N(min(limit, 5)))
				}
				b.check(t, op, now)
			}
		}
	}
}

// A small limit is an exact log, in every figure of every answer.
func TestSmallSlidingIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := Params{Algorithm: SlidingWindow, Limit: rapid.Uint64Range(1, MaxMarks).Draw(t, "limit"), Period: periods.Draw(t, "period")}
		log := slidingLog{limit: p.Limit, span: p.Period}
		var x slid
		var now int64
		for range rapid.SampledFrom([]int{10, 60}).Draw(t, "steps") {
			now += step(t, p.Period)
			op := drawSliding(t, p)
			if got, want := x.apply(t, op, now), log.check(op, now); got != want {
				t.Fatalf("%+v at %d: %+v, want %+v\n%+v", op, now, got, want, log.hits)
			}
		}
	})
}

// Tokens are given back of hits that still count, of any of them. What was spent
// and not given back is never more than limit within a period.
func TestRefundsOfWhatCountsAddNoRoom(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := slidings.Draw(t, "params")
		var x slid
		var now int64
		var hits []Mark // with the tokens that were not given back
		for range rapid.SampledFrom([]int{10, 60, 200}).Draw(t, "steps") {
			now += step(t, p.Period)
			hits = slices.DeleteFunc(hits, func(h Mark) bool { return now-h.At >= p.Period || h.Tokens == 0 })
			if len(hits) > 0 && rare(t, "refunds") {
				of := rapid.IntRange(0, len(hits)-1).Draw(t, "of")
				n := rapid.Uint64Range(1, hits[of].Tokens).Draw(t, "refund")
				hits[of].Tokens -= n
				x.apply(t, Op{Params: p, Refund: n}, now)
				continue
			}
			op := anOp(t, p)
			if !rare(t, "much") {
				op.Cost = 1
			}
			if x.apply(t, op, now).Allowed && !op.Peek {
				hits = append(hits, Mark{now, op.Cost})
			}
			if n := sum(hits); n > p.Limit {
				t.Fatalf("%d of %d within a period: %+v\n%+v", n, p.Limit, hits, x)
			}
		}
	})
}

// RetryAfter and ResetAfter are the first moments at which it is so, if nobody
// spends in between.
func TestSlidingTimesAreExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := slidings.Draw(t, "params")
		var x slid
		var now int64
		for range rapid.SampledFrom([]int{10, 60}).Draw(t, "steps") {
			now += step(t, p.Period)
			op := drawSliding(t, p)
			res := x.apply(t, op, now)
			passes := func(after int64) bool {
				y, probe := x, op
				probe.Peek = true
				return y.apply(t, probe, now+after).Allowed
			}
			if !res.Allowed && (res.RetryAfter <= 0 || passes(res.RetryAfter-1) || !passes(res.RetryAfter)) {
				t.Fatalf("%+v at %d on %+v: %+v", op, now, x, res)
			}
			if full := now + res.ResetAfter; !x.Absent(full) || res.ResetAfter > 0 && (x.Absent(full-1) || x.AbsentAt() != full) {
				t.Fatalf("%+v at %d on %+v: %+v, absent at %d", op, now, x, res, x.AbsentAt())
			}
		}
	})
}

// anything draws an operation of any algorithm, one time in four with parameters of
// its own.
func anything(t *rapid.T, choices []Params) Op {
	return drawSliding(t, rapid.SampledFrom(choices).Draw(t, "params"))
}

// Whatever the parameters and algorithms become, and if the clock goes back:
// what counts stays, and nothing comes back by the change (see slid.apply).
func TestChangesToAndFromSliding(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		choices := rapid.SliceOfN(rapid.OneOf(slidings, slidings, buckets, windows), 1, 4).Draw(t, "choices")
		var x slid
		now := rapid.Int64Range(-1e15, 1e15).Draw(t, "start")
		for range rapid.SampledFrom([]int{10, 60, 200}).Draw(t, "steps") {
			op := anything(t, choices)
			if by := step(t, op.Period); rapid.IntRange(0, 7).Draw(t, "back") == 0 {
				now -= by
			} else {
				now += by
			}
			x.apply(t, op, now)
		}
	})
}

func TestSlide(t *testing.T) {
	type step struct {
		at   int64
		op   Op
		want Result
	}
	minute := 60 * second
	tests := []struct {
		name  string
		steps []step
	}{
		{name: "each hit comes back a period after it", steps: []step{
			{op: sliding(3, minute, 2), want: Result{Allowed: true, Capacity: 3, Remaining: 1, ResetAfter: minute}},
			{at: 50 * second, op: sliding(3, minute, 1), want: Result{Allowed: true, Capacity: 3, ResetAfter: minute}},
			{at: minute - 1, op: sliding(3, minute, 1), want: Result{Capacity: 3, RetryAfter: 1, ResetAfter: 50*second + 1}},
			{at: minute - 1, op: sliding(3, minute, 3), want: Result{Capacity: 3, RetryAfter: 50*second + 1, ResetAfter: 50*second + 1}},
			{at: minute, op: sliding(3, minute, 2), want: Result{Allowed: true, Capacity: 3, ResetAfter: minute}},
			{at: 110 * second, op: peek(sliding(3, minute, 1)), want: Result{Allowed: true, Capacity: 3, Remaining: 1, ResetAfter: 10 * second}},
		}},
		{name: "a peek spends nothing", steps: []step{
			{op: peek(sliding(2, second, 2)), want: Result{Allowed: true, Capacity: 2, Remaining: 2}},
			{op: sliding(2, second, 2), want: Result{Allowed: true, Capacity: 2, ResetAfter: second}},
			{at: 1, op: peek(sliding(2, second, 1)), want: Result{Capacity: 2, RetryAfter: second - 1, ResetAfter: second - 1}},
		}},
		{name: "a raised and a lowered limit", steps: []step{
			{op: sliding(3, second, 3), want: Result{Allowed: true, Capacity: 3, ResetAfter: second}},
			{at: 1, op: sliding(4, second, 1), want: Result{Allowed: true, Capacity: 4, ResetAfter: second}},
			{at: 2, op: sliding(2, second, 1), want: Result{Capacity: 2, Debt: 2, RetryAfter: second - 2, ResetAfter: second - 1}},
		}},
		{name: "a longer period counts from the hits", steps: []step{
			{op: sliding(3, 10*second, 2), want: Result{Allowed: true, Capacity: 3, Remaining: 1, ResetAfter: 10 * second}},
			{at: 9 * second, op: sliding(3, 20*second, 2), want: Result{Capacity: 3, Remaining: 1, RetryAfter: 11 * second, ResetAfter: 11 * second}},
		}},
		{name: "a shorter period gives nothing back at once", steps: []step{
			{op: sliding(3, 10*second, 2), want: Result{Allowed: true, Capacity: 3, Remaining: 1, ResetAfter: 10 * second}},
			{at: 9 * second, op: sliding(3, 2*second, 2), want: Result{Capacity: 3, Remaining: 1, RetryAfter: 2 * second, ResetAfter: 2 * second}},
			{at: 11 * second, op: sliding(3, 2*second, 2), want: Result{Allowed: true, Capacity: 3, Remaining: 1, ResetAfter: 2 * second}},
		}},
		{name: "from a bucket, and back to one", steps: []step{
			{op: bucket(10, 10*second, 0, 8), want: Result{Allowed: true, Capacity: 10, Remaining: 2, ResetAfter: 8 * second}},
			{at: 3 * second, op: sliding(10, 10*second, 5), want: Result{Allowed: true, Capacity: 10, ResetAfter: 10 * second}},
			{at: 4 * second, op: bucket(10, 10*second, 0, 1), want: Result{Capacity: 10, RetryAfter: second, ResetAfter: 10 * second}},
		}},
		{name: "to a fixed window", steps: []step{
			{op: sliding(4, 10*second, 2), want: Result{Allowed: true, Capacity: 4, Remaining: 2, ResetAfter: 10 * second}},
			{at: 3 * second, op: sliding(4, 10*second, 1), want: Result{Allowed: true, Capacity: 4, Remaining: 1, ResetAfter: 10 * second}},
			{at: 10 * second, op: window(4, 10*second, 4), want: Result{Capacity: 4, Remaining: 3, RetryAfter: 10 * second, ResetAfter: 10 * second}},
		}},
		{name: "a clock that goes back stands still", steps: []step{
			{at: 10 * second, op: sliding(2, second, 1), want: Result{Allowed: true, Capacity: 2, Remaining: 1, ResetAfter: second}},
			{at: 5 * second, op: sliding(2, second, 2), want: Result{Capacity: 2, Remaining: 1, RetryAfter: second, ResetAfter: second}},
		}},
		{name: "a refund takes from the oldest hits", steps: []step{
			{op: sliding(5, minute, 2), want: Result{Allowed: true, Capacity: 5, Remaining: 3, ResetAfter: minute}},
			{at: 20 * second, op: sliding(5, minute, 3), want: Result{Allowed: true, Capacity: 5, ResetAfter: minute}},
			{at: 30 * second, op: refund(sliding(5, minute, 0), 3), want: Result{Allowed: true, Capacity: 5, Remaining: 3, ResetAfter: 50 * second}},
			{at: 30 * second, op: sliding(5, minute, 4), want: Result{Capacity: 5, Remaining: 3, RetryAfter: 50 * second, ResetAfter: 50 * second}},
			{at: 40 * second, op: refund(sliding(5, minute, 0), MaxLimit), want: Result{Allowed: true, Capacity: 5, Remaining: 5}},
			{at: 40 * second, op: refund(sliding(5, minute, 0), 1), want: Result{Allowed: true, Capacity: 5, Remaining: 5}},
		}},
		{name: "the largest of everything", steps: []step{
			{at: math.MinInt64 / 2, op: sliding(MaxLimit, MaxPeriod, MaxLimit), want: Result{Allowed: true, Capacity: MaxLimit, ResetAfter: MaxPeriod}},
			{at: math.MinInt64/2 + 1, op: sliding(MaxLimit, MaxPeriod, 1), want: Result{Capacity: MaxLimit, RetryAfter: MaxPeriod - 1, ResetAfter: MaxPeriod - 1}},
			{at: math.MaxInt64 / 2, op: sliding(MaxLimit, MaxPeriod, 1), want: Result{Allowed: true, Capacity: MaxLimit, Remaining: MaxLimit - 1, ResetAfter: MaxPeriod}},
		}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			var x slid
			for i, st := range tc.steps {
				if got := x.apply(t, st.op, st.at); got != st.want {
					t.Fatalf("step %d:\n got %+v\nwant %+v", i, got, st.want)
				}
			}
		})
	}
}

// A thousand hits of one, evenly: what is put together stays below an eighth of
// the period, and the marks within their number.
func TestSlidingUnderLoad(t *testing.T) {
	const period = int64(1_000_000)
	var x slid
	log := slidingLog{limit: MaxLimit, span: period}
	worst := int64(0)
	for now := int64(0); now < 3*period; now += 1_000 {
		x.apply(t, sliding(MaxLimit, period, 1), now)
		log.spend(1, now)
		if len(x.marks) > MaxMarks {
			t.Fatalf("%d marks", len(x.marks))
		}
		// The n-th oldest token that is counted is the n-th from the end of the log.
		end := len(log.hits)
		for i := len(x.marks) - 1; i >= 0; i-- {
			end -= int(x.marks[i].Tokens)
			worst = max(worst, x.marks[i].At-log.hits[end].At)
		}
	}
	if worst >= period/8 || worst < period/32 {
		t.Errorf("a hit counts %d of %d longer than a period: at least an eighth, or too little to be true", worst, period)
	}
}

func TestValidMarks(t *testing.T) {
	good := State{SlidingWindow, 0, 100, 6, 0, 10, 1_000}
	marks := []Mark{{-800, 1}, {50, 2}, {100, 3}}
	tests := []struct {
		name  string
		state State
		marks []Mark
		bad   bool
	}{
		{name: "good", state: good, marks: marks},
		{name: "none", state: good},
		{name: "none, of a bucket", state: State{TokenBucket, 0, 100, 6, 0, 10, 1_000}},
		{name: "of a bucket", state: State{TokenBucket, 0, 100, 6, 0, 10, 1_000}, marks: marks, bad: true},
		{name: "of a fixed window", state: State{FixedWindow, 0, 100, 6, 0, 10, 1_000}, marks: marks, bad: true},
		{name: "of nothing", state: State{}, marks: marks, bad: true},
		{name: "one", state: good, marks: []Mark{{100, 6}}, bad: true},
		{name: "another sum", state: State{SlidingWindow, 0, 100, 7, 0, 10, 1_000}, marks: marks, bad: true},
		{name: "another end", state: State{SlidingWindow, 0, 101, 6, 0, 10, 1_000}, marks: marks, bad: true},
		{name: "a period", state: good, marks: []Mark{{-900, 3}, {100, 3}}, bad: true},
		{name: "no tokens", state: good, marks: []Mark{{50, 0}, {100, 6}}, bad: true},
		{name: "a sum that wraps", state: good, marks: []Mark{{50, math.MaxUint64 - 2}, {100, 9}}, bad: true},
		{name: "out of order", state: good, marks: []Mark{{50, 1}, {20, 2}, {100, 3}}, bad: true},
		{name: "twice the same", state: good, marks: []Mark{{50, 1}, {50, 2}, {100, 3}}, bad: true},
		{name: "too many", state: State{SlidingWindow, 0, 17, MaxMarks + 1, 0, 100, 1_000}, marks: evenly(MaxMarks + 1), bad: true},
		{name: "as many as may be", state: State{SlidingWindow, 0, 16, MaxMarks, 0, 100, 1_000}, marks: evenly(MaxMarks)},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			if err := tc.state.ValidMarks(tc.marks); (err != nil) != tc.bad {
				t.Errorf("%v, want an error: %v", err, tc.bad)
			}
		})
	}
}

func evenly(n int) (marks []Mark) {
	for i := range n {
		marks = append(marks, Mark{int64(i), 1})
	}
	return marks
}

// FuzzSlide takes 12 bytes for an operation and the pause before it.
func FuzzSlide(f *testing.F) {
	f.Add([]byte("\x02\x05\x00\x00\x00\x01\x02\x00\x00\x00\x00\x00\x02\x05\x00\x00\x00\x01\x02\x00\x00\x00\x00\x80"))
	f.Add([]byte("\x02\xff\xff\xff\xff\x01\x00\x00\x00\x00\x01\x00\x00\xff\xff\xff\xff\x01\x00\x00\x00\x00\x01\x00\x12\x05\x00\x00\x00\x03\x02\x00\x00\x00\x00\x01"))
	f.Add(make([]byte, 12*40))
	f.Fuzz(func(t *testing.T, ops []byte) {
		var x slid
		var now int64
		for ; len(ops) >= 12; ops = ops[12:] {
			kind, count, cost := ops[0], uint64(binary.LittleEndian.Uint32(ops[1:])), uint64(ops[5])
			op := Op{Params: Params{Algorithm: Algorithm(kind % 3), Limit: count%MaxLimit + 1, Period: MinPeriod + int64(binary.LittleEndian.Uint32(ops[6:]))}}
			op.Cost, op.Peek = min(cost+1, op.Limit), kind&0x20 != 0
			if kind&0x10 != 0 {
				op.Cost, op.Refund, op.Peek = 0, cost+1, false
			}
			now += int64(binary.LittleEndian.Uint16(ops[10:])) * op.Period >> 14
			x.apply(t, op, now)
		}
	})
}

func TestSlideAllocatesNothing(t *testing.T) {
	var s State
	var now int64
	marks, room := make([]Mark, 0, MaxMarks), make([]Mark, 0, MaxMarks+1)
	ops := []Op{sliding(100, second, 3), refund(sliding(100, second, 0), 1), peek(sliding(100, second, 1)), sliding(90, 2*second, 1), window(90, second, 1)}
	i := 0
	if n := testing.AllocsPerRun(1000, func() {
		now += second / 40
		i++
		op := ops[0]
		if i%40 == 0 {
			op = ops[i/40%len(ops)]
		}
		next, after, _, changed := Slide(s, append(room[:0], marks...), op, now)
		if changed {
			s, marks = next, append(marks[:0], after...)
		}
	}); n != 0 {
		t.Errorf("%v allocations per check", n)
	}
}

func BenchmarkSlide(b *testing.B) {
	for name, step := range map[string]int64{"a few marks": second / 4, "all marks": second / 1000} {
		b.Run(name, func(b *testing.B) {
			var s State
			var now int64
			marks, room := make([]Mark, 0, MaxMarks), make([]Mark, 0, MaxMarks+1)
			op := sliding(MaxLimit, second, 1)
			b.ReportAllocs()
			for b.Loop() {
				now += step
				next, after, _, _ := Slide(s, append(room[:0], marks...), op, now)
				s, marks = next, append(marks[:0], after...)
			}
		})
	}
}
