package history

import "math"

// Splits says since when objects may be split, by object, in ns of the recorder: when
// somebody first ordered it. Objects that are not in it are whole until an answer says
// otherwise.
type Splits map[string]int64

// Split returns the model of objects of which some may be split into parts.
//
// What is judged as ever, at any time: answers that come from the whole object, but for
// its version, which may also rise when the object is put together again, and for
// tokens, of which some may be gone since it was split for the first time. So refusals
// of a bucket are always possible from then on. What it admits, and every add, is
// bounded and counted as if nobody had ever split it.
//
// What a part answers is judged by what it says of the whole:
//
//   - An add took effect once; its value and its version mean nothing. The same is true of
//     its replays, also by the whole object later on, which mark that in the version. A
//     replay by a part without that mark is of what the whole did before: that was exact.
//   - A Get is a sum of parts that were read one after the other: the value at some
//     moment of the call, and with it some adds that were under way with the call. Those
//     may be counted twice: the bound is a loose one where many are, but nothing that was
//     acknowledged before may be missing.
//   - A check that was allowed was so by a bucket that had been whole all the time, and
//     such a bucket would have at least what remains of the part.
func (m Model) Split(splits Splits) Model {
	m.splits = splits
	return m
}

// splitVersion marks what a part has answered: no version of a whole counter has it.
const splitVersion = 1 << 63

// inexact reports whether an answer of a counter is one of a part.
func (o CounterOutput) inexact() bool {
	return o.Version >= splitVersion || o.Parts > 0 && !o.Replayed
}

// Parts is into how many parts an object was split when it gave an output; 0 is whole.
func Parts(out any) uint32 {
	switch o := out.(type) {
	case CounterOutput:
		return o.Parts
	case BucketOutput:
		return o.Parts
	}
	return 0
}

// since returns when each object may have been split first: when that was ordered, or when a
// call on it began that was answered by a part.
func (s Splits) since(calls []Call) Splits {
	all := Splits{}
	for object, at := range s {
		all[object] = at
	}
	for _, c := range calls {
		if at, ok := all[c.Object]; Parts(c.Output) > 0 && (!ok || c.Start < at) {
			all[c.Object] = c.Start
		}
	}
	return all
}

// mark says in the steps of an object's operations what they need to know of its split,
// which may have been from a moment on.
func mark(ops []operation, from int64) {
	for i := range ops {
		s := ops[i].Input.(step)
		s.split = s.ret >= from
		if in, ok := s.in.(CounterInput); ok && in.Op == CounterGet && Parts(ops[i].Output) > 0 {
			s.less, s.more = concurrentAdds(ops, ops[i].Call, ops[i].Return)
		}
		ops[i].Input = s
	}
}

// concurrentAdds returns what adds that were under way between two moments may have changed in all,
// downward and upward.
func concurrentAdds(ops []operation, from, to int64) (less, more int64) {
	for _, op := range ops {
		in, ok := op.Input.(step).in.(CounterInput)
		if !ok || in.Op != CounterAdd || op.Call > to || op.Return < from {
			continue
		}
		less, more = less+min(in.Delta, 0), more+max(in.Delta, 0)
	}
	return less, more
}

// sameResult reports whether a replay can be of the result that is known of its request. What a
// part did is never told exactly later on.
func sameResult(replay, known output) bool {
	x, ok := replay.(CounterOutput)
	y, is := known.(CounterOutput)
	if !ok || !is || !x.inexact() {
		return replay.first() == known.first()
	}
	return x.Applied == y.Applied
}

// firstOf returns what is known of the result, if all answers that there are are replays: what
// one of them tells that knows it, or else any.
func firstOf(replays []Call) output {
	for _, r := range replays {
		if o, ok := r.Output.(CounterOutput); !ok || !o.inexact() {
			return r.Output.(output)
		}
	}
	return replays[0].Output.(output)
}

// ofParts returns the state after what parts have answered, or the whole of what a part did.
func (s counterState) ofParts(at step, in CounterInput, o CounterOutput) []counterState {
	switch {
	case o.Version < splitVersion: // a CompareAndSet could go by it
		return nil
	case in.Op == CounterGet && o.Parts > 0:
		return s.sum(at, o)
	case in.Op != CounterAdd || in.HasMin || in.HasMax || !o.Applied:
		return nil // that is for the whole to decide
	}
	return s.add(in, o, true)
}

// sum returns the state if the sum of parts can be what a Get was told.
func (s counterState) sum(at step, o CounterOutput) []counterState {
	if o.Value < s.value+at.less || o.Value > s.value+at.more {
		return nil
	}
	return []counterState{s}
}

// ever is later than any moment at which a bucket may be full again.
const ever = math.MaxInt64 / 4

// divided returns the state of a bucket that may have been split: how much of it is gone is not
// known from then on, and lo is what was spent for sure.
func (s bucketState) divided() bucketState {
	if s.split {
		return s
	}
	lo := s.lo
	if s.off {
		lo = s.base
	}
	return bucketState{split: true, lo: lo, hi: ever, base: lo, delay: s.delay}
}

// part is a step, with an answer, on a bucket that may have been split.
//
// The moment at which everything will have come back only gets later by what splits do.
// So lo is raised by what was spent, and by what the whole tells, less the time by which
// it may be late: an earlier copy may take over.
func (b bucket) part(s bucketState, at step, o BucketOutput) bucketState {
	from, to := b.units(at.call), b.units(at.ret)
	in, check := at.in.(BucketInput)
	cost := int64(in.Cost) * b.token
	room := b.burst*b.token - cost
	least := bucketState{lo: math.MinInt64 / 4, hi: ever, base: math.MinInt64 / 4} // what this answer tells of the whole
	switch {
	case check && o.Allowed:
		if s.lo > to+b.drift.most(room) || o.RetryAfter != 0 {
			return impossible
		}
		if !in.Peek {
			s.lo = max(s.lo, from) + b.drift.least(cost)
		}
	case check && o.Parts == 0:
		least = least.least(from + b.drift.least(room) + 1)
		if wait := o.RetryAfter * b.l; !o.Bare {
			least = least.most(to + b.drift.most(room+wait)).least(from + b.drift.least(room+wait-b.l) + 1)
		}
	}
	switch spent := b.burst - int64(o.Remaining); {
	case o.Bare:
	case o.Parts == 0:
		least = b.owing(least, o, from, to)
	case spent < 0:
		return impossible
	default:
		least = least.most(to + b.drift.most(spent*b.token))
	}
	if least.lo > least.hi || s.lo > least.hi {
		return impossible
	}
	s.lo = max(s.lo, least.lo-b.delay)
	s.base = s.lo
	return s
}

// owing uses what an answer tells of the whole after it. Each part rounds up what is spent,
// so that the whole may be less than empty when it is put together: then nothing remains,
// and more than the burst has to come back.
func (b bucket) owing(s bucketState, o BucketOutput, from, to int64) bucketState {
	reset := o.ResetAfter * b.l
	if o.Allowed || o.Remaining > 0 || reset <= b.burst*b.token {
		return b.narrow(s, o, from, to)
	}
	return s.most(to + b.drift.most(reset)).least(from + b.drift.least(reset-b.l) + 1)
}
