package history

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/anishathalye/porcupine"
)

// Replay is the part of an output that says that it repeats an earlier one.
type Replay struct {
	Replayed bool
	Age      int64 // ns since the operation took effect
}

func (r Replay) replay() Replay { return r }

// output is what the outputs of all models can do.
type output interface {
	replay() Replay
	// first is the part of the answer that every retry repeats.
	first() any
	// bare is the output without what it says of the state as it is now.
	bare() any
	// reads is what a replay says of the state as it is now, as an operation of
	// its own; nil if that is nothing.
	reads(in any) (readIn, readOut any)
}

// step is the input of a model's step: an operation and when it was decided, by
// the clock of the node.
//
// That is not quite when it took effect. A node reads its clock when it begins
// with a call, and may be held up before it decides: the moment that it goes by
// lies within the call, but an operation on the same object that took effect
// earlier may go by a later one. call and ret bound the moment; where the
// operation stands among the others is bounded by its Call and Return for
// porcupine.
type step struct {
	in    any
	call  int64 // at the earliest
	ret   int64 // at the latest; Never if there was no answer
	first int64 // when its request was sent first
	// split says that the object may be split, or have been, by the time at which it was
	// decided; less and more, of a Get of parts, by how much adds at the time may have
	// changed what was read, downward and upward.
	split      bool
	less, more int64
	drift      Drift // of the node's clock, against the recorder's
	// lost says that the answer of the attempt that acted was lost, though a
	// retry told its result.
	lost bool
	// number is that of an operation with replays, and after, in what a replay
	// reads, that of the operation that it repeats, which must come before. 0 is
	// none.
	number, after int
}

// operation is an entry of the folded history of one object.
type operation = porcupine.Operation

// Fold turns the attempts of requests into operations that took effect once
// each, by object, or says how they contradict each other.
func Fold(calls []Call) (map[string][]operation, error) { return foldAll(calls, 0, 0, nil) }

// foldAll is Fold of objects whose times may be late: the age of a replay is
// then too small by at most so many ns. Clocks may drift, and objects may be split.
func foldAll(calls []Call, delay int64, drift Drift, splits Splits) (map[string][]operation, error) {
	type name struct{ object, request string }
	requests := map[name][]Call{}
	objects := map[string][]operation{}
	for i, c := range calls {
		n := name{c.Object, c.Request}
		if c.Request == "" {
			n.request = fmt.Sprintf("\x00%d", i) // alone
		}
		requests[n] = append(requests[n], c)
	}
	numbers := map[string]int{}
	for n, attempts := range requests {
		ops, err := fold(attempts, numbers[n.object]+1, delay, drift)
		if err != nil {
			return nil, fmt.Errorf("history: %s, request %s: %w\n%s", n.object, n.request, err, describe(attempts))
		}
		if len(ops) > 1 {
			numbers[n.object]++
		}
		objects[n.object] = append(objects[n.object], ops...)
	}
	since := splits.since(calls)
	for object, ops := range objects {
		slices.SortStableFunc(ops, func(a, b operation) int { return cmp.Compare(a.Call, b.Call) })
		if from, ok := since[object]; ok {
			mark(ops, from)
		}
	}
	return objects, nil
}

// fold turns the attempts of one request into its operation, and the reads that
// its replays are. number is for the operation, if it has any; ages may be too
// small by the delay.
func fold(attempts []Call, number int, delay int64, drift Drift) ([]operation, error) {
	in, client := attempts[0].Input, attempts[0].Client
	s := step{in: in, call: attempts[0].Start, ret: Never, first: attempts[0].Start, drift: drift}
	var original *Call
	var replays []Call
	lost := false
	for i := range attempts {
		c := &attempts[i]
		s.first = min(s.first, c.Start)
		switch {
		case c.Input != in:
			return nil, fmt.Errorf("is used for %+v and for %+v", in, c.Input)
		case c.Output == nil:
			lost = true
		case c.Output.(output).replay().Replayed:
			replays = append(replays, *c)
		case original != nil:
			return nil, fmt.Errorf("acted twice")
		default:
			original = c
		}
	}
	s.call = s.first
	var out any
	switch {
	case original != nil:
		s.call, s.ret, out = original.Start, original.End, original.Output
	case len(replays) > 0 && !lost && !passedOn(replays[0], drift):
		return nil, fmt.Errorf("is a replay, but nothing went before it")
	case len(replays) > 0:
		s.lost, out = true, firstOf(replays).bare()
	}
	op := operation{ClientId: client, Output: out, Call: s.call, Return: s.ret}
	var ops []operation
	for _, r := range replays {
		told := r.Output.(output)
		age := told.replay().Age
		if !sameResult(told, out.(output)) {
			return nil, fmt.Errorf("has two results, %+v and %+v", out, r.Output)
		}
		if s.call, s.ret = max(s.call, r.Start-drift.most(age)-delay), min(s.ret, r.End-drift.least(age)); s.call > s.ret {
			return nil, fmt.Errorf("took effect when no attempt of it was under way, by the age of %+v", r.Output)
		}
		op.Call, op.Return = s.call, min(op.Return, r.End)
		if readIn, readOut := told.reads(in); readIn != nil {
			rs := step{in: readIn, call: r.Start, ret: r.End, first: r.Start, after: number, drift: drift}
			s.number = number
			ops = append(ops, operation{ClientId: client, Input: rs, Output: readOut, Call: rs.call, Return: rs.ret})
		}
	}
	op.Input = s
	return append(ops, op), nil
}

// passedOn reports whether a replay can be of its own attempt: the node that passed it on to the
// owner did so again, having had no answer, and it had acted before.
func passedOn(c Call, drift Drift) bool {
	age := c.Output.(output).replay().Age
	return age > 0 && drift.least(age) < c.End-c.Start
}

func describe(attempts []Call) string {
	text := ""
	for _, c := range attempts {
		text += fmt.Sprintf("  client %d [%d, %d] %+v → %+v\n", c.Client, c.Start, c.End, c.Input, c.Output)
	}
	return text
}
