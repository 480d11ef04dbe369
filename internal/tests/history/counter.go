package history

import "math"

// CounterOp is what is done to a counter.
type CounterOp uint8

const (
	CounterAdd CounterOp = iota + 1
	CounterGet
	CounterCompareAndSet
	CounterReset
	CounterDelete

	counterValue // a Get that does not tell the version
)

func (op CounterOp) String() string {
	return [...]string{"", "add", "get", "compare-and-set", "reset", "delete", "value"}[op]
}

// CounterInput is an operation on a counter.
type CounterInput struct {
	Op             CounterOp
	Delta          int64 // of an add
	Min, Max       int64 // … within bounds
	HasMin, HasMax bool
	Value          int64  // to set
	Version        uint64 // that must be there to set it
}

// CounterOutput is the answer to it.
type CounterOutput struct {
	Applied bool   // of an add, a compare-and-set and a delete
	Value   int64  // after the operation; before it, of a reset and a delete
	Version uint64 // after the operation
	Current int64  // the value now, in a replay
	Parts   uint32 // into how many it was split; see Model.Split
	Replay
}

func (o CounterOutput) first() any {
	if !o.inexact() {
		o.Parts = 0 // it is what the whole has answered, whatever node tells it
	}
	o.Current, o.Replay = 0, Replay{}
	return o
}

func (o CounterOutput) bare() any { return o.first() }

func (o CounterOutput) reads(any) (readIn, readOut any) {
	if o.Parts > 0 {
		return nil, nil
	}
	return CounterInput{Op: counterValue}, CounterOutput{Value: o.Current}
}

// counterState is a counter. Invariant: version 0 and exact ⇒ it does not exist.
type counterState struct {
	value   int64
	version uint64
	floor   uint64 // of one that does not exist: versions rise above it, for they never repeat
	above   bool   // the version is not known, but above version: it was changed by a lost call
	split   bool   // it may have been split: the version, if there is any, may be above, too
	unsure  bool   // nothing is known of it
}

func (s counterState) exists() bool { return s.version != 0 || s.above }

// rises reports whether the version may be above the one that is known.
func (s counterState) rises() bool { return s.above || s.split && s.version != 0 }

// at returns the state if its version is v.
func (s counterState) at(v uint64) []counterState {
	if v >= splitVersion {
		return nil
	}
	if s.rises() && v > s.version || !s.above && v == s.version {
		return []counterState{{value: s.value, version: v, floor: s.floor, split: s.split}}
	}
	return nil
}

// to returns the state after a change to a value, under the version v, or an unknown
// one if the answer was lost.
func (s counterState) to(value int64, v uint64, lost bool) []counterState {
	last := max(s.version, s.floor)
	if lost {
		return []counterState{{value: value, version: last, above: true, split: s.split}}
	}
	if v <= last {
		return nil
	}
	return []counterState{{value: value, version: v, split: s.split}}
}

// Counter returns the model of an exact counter without an idle TTL.
func Counter() Model {
	return newModel(counterState{}, func(s counterState, at step, out any) []counterState {
		in := at.in.(CounterInput)
		o, told := out.(CounterOutput)
		if s.split = s.split || at.split; told && o.inexact() {
			return s.ofParts(at, in, o)
		}
		if s.unsure {
			return s.learned(in, o, told)
		}
		switch in.Op {
		case CounterAdd:
			return s.add(in, o, !told)
		case CounterCompareAndSet:
			return s.compareAndSet(in, o, !told)
		case CounterReset:
			return s.reset(o, !told)
		case CounterDelete:
			return s.delete(o, !told)
		}
		switch { // reads
		case !told:
			return []counterState{s}
		case o.Value != s.value:
			return nil
		case in.Op == counterValue:
			return []counterState{s}
		}
		return s.at(o.Version)
	}, counterState{unsure: true})
}

// learned is a counter of which nothing was known, after the first that is told of it.
func (s counterState) learned(in CounterInput, o CounterOutput, told bool) []counterState {
	switch {
	case !told:
		return []counterState{s}
	case in.Op == counterValue:
		return []counterState{{value: o.Value, above: true, split: s.split}}
	case in.Op == CounterReset:
		o.Value = 0
	case in.Op == CounterDelete:
		return []counterState{{floor: o.Version, split: s.split}}
	}
	return []counterState{{value: o.Value, version: o.Version, split: s.split}}
}

// DelayedCounter returns the model of counters that are copied: the ages of replays may be too
// small by so many ns. Nothing else depends on time.
func DelayedCounter(delay int64) Model {
	m := Counter()
	m.delay = delay
	return m
}

func (s counterState) add(in CounterInput, o CounterOutput, lost bool) []counterState {
	sum := s.value + in.Delta
	over := in.Delta > 0 && s.value > math.MaxInt64-in.Delta
	under := in.Delta < 0 && s.value < math.MinInt64-in.Delta
	above := in.Delta > 0 && in.HasMax && (over || sum > in.Max)
	below := in.Delta < 0 && in.HasMin && (under || sum < in.Min)
	refused := over || under || above || below
	switch {
	case lost && (refused || in.Delta == 0):
		return []counterState{s}
	case lost:
		return s.to(sum, 0, true)
	case o.Applied == refused:
		return nil
	case refused || in.Delta == 0:
		if o.Value != s.value {
			return nil
		}
		return s.at(o.Version)
	case o.Value != sum:
		return nil
	}
	return s.to(sum, o.Version, false)
}

func (s counterState) compareAndSet(in CounterInput, o CounterOutput, lost bool) []counterState {
	matches := s.at(in.Version)
	switch {
	case lost && matches == nil:
		return []counterState{s}
	case lost:
		next := matches[0].to(in.Value, 0, true)
		if s.rises() {
			next = append(next, s)
		}
		return next
	case !o.Applied:
		if o.Value != s.value || o.Version == in.Version {
			return nil
		}
		return s.at(o.Version)
	case matches == nil || o.Value != in.Value:
		return nil
	}
	return matches[0].to(in.Value, o.Version, false)
}

func (s counterState) reset(o CounterOutput, lost bool) []counterState {
	switch {
	case lost && !s.exists():
		return []counterState{s}
	case lost:
		return s.to(0, 0, true)
	case o.Value != s.value:
		return nil
	case !s.exists():
		return s.at(o.Version)
	}
	return s.to(0, o.Version, false)
}

func (s counterState) delete(o CounterOutput, lost bool) []counterState {
	last := max(s.version, s.floor)
	switch {
	case !s.exists():
		if !lost && (o.Applied || o.Value != 0 || o.Version != 0) {
			return nil
		}
		return []counterState{s}
	case lost:
		return []counterState{{floor: last, split: s.split}}
	case !o.Applied || o.Value != s.value || o.Version <= last:
		return nil
	}
	return []counterState{{floor: o.Version, split: s.split}}
}
