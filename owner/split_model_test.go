package owner

import (
	"errors"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/keystead/keystead/owner/counter"
	"github.com/keystead/keystead/owner/limit"
	"github.com/keystead/keystead/owner/reqid"
)

// life is a counter and a limit that are split, weighed anew and united again and
// again, their owner and its copy changing places, and what is known of them.
type life struct {
	t     *rapid.T
	tb    testing.TB
	rule  *splitRule
	kind  Kind
	s, to *Store // the owner, and the copy
	sink  *towards
	now   int64
	seq   uint64
	asked []did

	base  int64 // of the counter, while it is split
	value int64 // of the counter
	op    limit.Op
	room  uint64 // tokens·period of a bucket that was never split
}

// did is an operation that was answered.
type did struct {
	id      reqid.ID
	arg     int64
	allowed bool
}

// towards is the sink of both stores: to the copy.
type towards struct{ to *Store }

func (w *towards) Changed(r *Record) {
	if err := w.to.Install(r.At, r, always); err != nil {
		panic(err)
	}
}

func newLife(tb testing.TB, t *rapid.T, kind Kind) *life {
	l := &life{t: t, tb: tb, rule: &splitRule{home: "home"}, kind: kind, sink: &towards{}, now: 1000 * second}
	l.rule.epoch, l.rule.since = 100, math.MinInt64
	l.s = newStore(tb, func(c *Config) { c.Rule, c.Sink = l.rule, l.sink })
	l.to = newStore(tb, func(c *Config) { c.Rule = ownsNothing })
	l.sink.to = l.to
	l.op = limit.Op{Params: limit.Params{Limit: rapid.Uint64Range(1, 60).Draw(t, "limit"), Period: 7 * second, Burst: rapid.Uint64Range(0, 60).Draw(t, "burst")}}
	l.room = l.full()
	return l
}

func (l *life) full() uint64 { return l.op.Capacity() * uint64(l.op.Period) }

// handOver makes the copy the owner.
func (l *life) handOver() {
	l.s.cfg.Rule, l.s.splits, l.s.cfg.Sink = ownsNothing, nil, nil
	l.s, l.to = l.to, l.s
	l.s.cfg.Rule, l.s.splits, l.s.cfg.Sink = l.rule, l.rule, l.sink
	l.sink.to = l.to
}

func (l *life) pass(d int64) {
	l.now += d
	l.room = min(l.full(), l.room+uint64(d)*l.op.Limit)
}

// at returns where an operation goes.
func (l *life) at(id reqid.ID) Ref {
	if l.rule.phase == single {
		return Ref{Key: "home", Name: "n"}
	}
	i := rapid.IntRange(0, len(l.rule.weights)-1).Draw(l.t, "part")
	if id.Given() {
		i = ofPart(id.Client, id.Sequence, len(l.rule.weights))
	}
	return Ref{Key: partKey(i), Name: "n", Role: Share}
}

// ask does an operation; one that a part cannot decide has the object united.
func (l *life) ask(again *did) {
	d := did{arg: rapid.Int64Range(1, 9).Draw(l.t, "arg")}
	if rapid.Bool().Draw(l.t, "with id") {
		l.seq++
		d.id = reqid.ID{Client: reqid.Client{Hi: rapid.Uint64Range(1, 3).Draw(l.t, "client")}, Sequence: l.seq}
	}
	if again != nil {
		d = *again
		d.id.Age = 1
	}
	var replayed bool
	err := l.do(&d, &replayed)
	if errors.Is(err, ErrWhole) && l.rule.phase == open {
		l.rule.join(l.tb, l.s, l.now, "n", l.kind, l.base)
		err = l.do(&d, &replayed)
	}
	switch {
	case err != nil:
		l.t.Fatal(err)
	case again != nil && (!replayed || d.allowed != again.allowed):
		l.t.Fatalf("%+v again: %+v, replayed %v", *again, d, replayed)
	case again == nil && replayed:
		l.t.Fatalf("%+v is new", d)
	case again == nil && d.id.Given():
		l.asked = append(l.asked, d)
	}
}

func (l *life) do(d *did, replayed *bool) error {
	if l.kind == KindCounter {
		a, err := l.s.Add(l.now, l.at(d.id), d.id, counter.AddOp{Delta: d.arg})
		if d.allowed, *replayed = a.Applied, a.Replayed; err == nil && !a.Replayed {
			l.value += d.arg
		}
		return err
	}
	op := l.op
	op.Cost = min(uint64(d.arg), op.Capacity())
	a, err := l.s.Check(l.now, l.at(d.id), d.id, op)
	if d.allowed, *replayed = a.Allowed, a.Replayed; err != nil {
		return err
	}
	if a.Capacity != op.Capacity() || a.Remaining > a.Capacity-a.Slack {
		l.t.Fatalf("%+v", a)
	}
	if a.Allowed && !a.Replayed {
		if spent := op.Cost * uint64(op.Period); spent > l.room {
			l.t.Fatalf("%d admitted, when %d/%d are there", op.Cost, l.room, op.Period)
		} else {
			l.room -= spent
		}
	}
	return nil
}

// turn splits the object, unites it, or weighs its parts anew: what is cut has got to
// the states before others are raised.
func (l *life) turn() {
	switch {
	case l.rule.phase == single:
		left, ws := uint32(limit.FullWeight), []uint32(nil)
		for range rapid.IntRange(1, 4).Draw(l.t, "parts") {
			w := rapid.Uint32Range(1, max(left/2, 1)).Draw(l.t, "weight")
			ws, left = append(ws, w), left-w
		}
		ws[0] += left
		l.base = l.rule.split(l.tb, l.s, l.now, "n", l.kind, ws...)
	case rapid.Bool().Draw(l.t, "unite"):
		l.rule.join(l.tb, l.s, l.now, "n", l.kind, l.base)
	default:
		i := rapid.IntRange(0, len(l.rule.weights)-1).Draw(l.t, "cut")
		by := rapid.Uint32Range(0, l.rule.weights[i]-1).Draw(l.t, "by")
		l.rule.weights[i] -= by
		readAll(l.tb, l.s, l.now, Ref{Key: partKey(i), Name: "n", Role: Sample}, l.kind)
		l.rule.weights[rapid.IntRange(0, len(l.rule.weights)-1).Draw(l.t, "raised")] += by
	}
}

func (l *life) check() {
	if l.kind != KindCounter {
		return
	}
	sum := int64(0)
	if l.rule.phase == single {
		sum = must(l.s.Get(l.now, Ref{Key: "home", Name: "n"})).Value
	} else {
		sum = l.base
		for i := range l.rule.weights {
			sum += must(l.s.Get(l.now, Ref{Key: partKey(i), Name: "n", Role: Sample})).Value
		}
	}
	if sum != l.value {
		l.t.Fatalf("it is %d, want %d", sum, l.value)
	}
}

// However an object is split, united and handed over: a counter is exact, a limit
// admits no more than it would have, and no retry acts twice.
func TestSplitLives(t *testing.T) {
	for _, kind := range []Kind{KindCounter, KindLimit} {
		t.Run(kind.String(), func(tb *testing.T) {
			rapid.Check(tb, func(t *rapid.T) {
				l := newLife(tb, t, kind)
				for range rapid.IntRange(1, 60).Draw(t, "steps") {
					l.pass(rapid.SampledFrom([]int64{0, 0, 1, second / 7, 3 * second}).Draw(t, "pause"))
					switch rapid.IntRange(0, 9).Draw(t, "what") {
					case 0, 1:
						l.turn()
					case 2:
						l.handOver()
					case 3:
						sweepAll(l.s, l.now)
					case 4, 5:
						if len(l.asked) > 0 {
							again := rapid.SampledFrom(slices.Clone(l.asked)).Draw(t, "again")
							l.ask(&again)
						}
					default:
						l.ask(nil)
					}
					l.check()
				}
			})
		})
	}
}
