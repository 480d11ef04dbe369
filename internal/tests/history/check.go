package history

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// Model is how the objects of a kind behave.
type Model struct {
	model  porcupine.Model
	unsure *porcupine.Model // the same from an unknown state on
	delay  int64            // ns
	drift  Drift
	splits Splits
}

// Unsure returns the model of objects whose state was declared lost before: there may have been
// a copy all the same, an old one or the latest. ok is false if the kind has none.
func (m Model) Unsure() (_ Model, ok bool) {
	if m.unsure == nil {
		return Model{}, false
	}
	m.model = *m.unsure
	return m, true
}

// ErrTimeout says that a check took too long to come to a result.
var ErrTimeout = fmt.Errorf("history: not checked to the end in time")

// Violation is a history that no order of operations explains.
type Violation struct {
	Object string
	Ops    []porcupine.Operation
	// Model and Info are for porcupine.Visualize.
	Model porcupine.Model
	Info  porcupine.LinearizationInfo
}

// longest is how many operations a Violation lists.
const longest = 300

// Error lists the operations of the object by their call.
func (v *Violation) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "history: no order of the operations on %s explains what their callers were told:\n", v.Object)
	for i, op := range v.Ops {
		if i == longest {
			fmt.Fprintf(&b, "  and %d more\n", len(v.Ops)-i)
			break
		}
		end := fmt.Sprint(op.Return)
		if op.Return == Never {
			end = "never"
		}
		fmt.Fprintf(&b, "  client %d [%d, %s] %s\n", op.ClientId, op.Call, end, v.Model.DescribeOperation(op.Input, op.Output))
	}
	return b.String()
}

// maxListed is how many operations Stuck lists.
const maxListed = 12

// Stuck returns where the longest order that explains some of the operations ends: its last
// ones, and the first to end of those that are not in it.
func (v *Violation) Stuck() string {
	var best []porcupine.Operation
	for _, partition := range v.Info.PartialLinearizationsOperations() {
		for _, order := range partition {
			if len(order) > len(best) {
				best = order
			}
		}
	}
	type key struct {
		client    int
		call, ret int64
	}
	of := func(op porcupine.Operation) key { return key{op.ClientId, op.Call, op.Return} }
	in := map[key]int{}
	for _, op := range best {
		in[of(op)]++
	}
	next := slices.IndexFunc(byReturn(v.Ops), func(op porcupine.Operation) bool {
		in[of(op)]--
		return in[of(op)] < 0
	})
	var b strings.Builder
	for _, op := range best[max(0, len(best)-maxListed):] {
		fmt.Fprintf(&b, "  client %d [%d, %d] %s\n", op.ClientId, op.Call, op.Return, v.Model.DescribeOperation(op.Input, op.Output))
	}
	if next >= 0 {
		op := byReturn(v.Ops)[next]
		fmt.Fprintf(&b, "  and then not client %d [%d, %d] %s\n", op.ClientId, op.Call, op.Return, v.Model.DescribeOperation(op.Input, op.Output))
	}
	return b.String()
}

func byReturn(ops []porcupine.Operation) []porcupine.Operation {
	ops = slices.Clone(ops)
	slices.SortStableFunc(ops, func(a, b porcupine.Operation) int { return cmp.Compare(a.Return, b.Return) })
	return ops
}

// Check reports whether the calls on each object can be explained by the model:
// nil, a *Violation, ErrTimeout, or what contradicts itself among the attempts
// of one request. timeout bounds the check of each object; 0 is no bound.
func Check(m Model, calls []Call, timeout time.Duration) error {
	objects, err := foldAll(calls, m.delay, m.drift, m.splits)
	if err != nil {
		return err
	}
	names := make([]string, 0, len(objects))
	for name := range objects {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		result, info := porcupine.CheckOperationsVerbose(m.model, objects[name], timeout)
		switch result {
		case porcupine.Illegal:
			return &Violation{Object: name, Ops: objects[name], Model: m.model, Info: info}
		case porcupine.Unknown:
			return fmt.Errorf("%w: %d operations on %s", ErrTimeout, len(objects[name]), name)
		}
	}
	return nil
}

// ordered is how many operations with replays on one object are kept before what
// their replays read. Those beyond are checked all the same, but for that.
const ordered = 256

// state is that of a model, and which of the numbered operations are done.
type state[S comparable] struct {
	s    S
	done [ordered / 64]uint64
}

func (s *state[S]) isDone(number int) bool {
	return number >= ordered || s.done[number/64]&(1<<(number%64)) != 0
}

func (s *state[S]) setDone(number int) {
	if number > 0 && number < ordered {
		s.done[number/64] |= 1 << (number % 64)
	}
}

// newModel makes a model of a step function over states that can be compared
// with ==. The function returns the states that may follow, none if the output
// is impossible; out is nil if the answer was lost. unsure is the state of which nothing
// is known, if there is one.
func newModel[S comparable](initial S, next func(s S, at step, out any) []S, unsure ...S) Model {
	nm := porcupine.NondeterministicModel{
		Init: func() []any { return []any{state[S]{s: initial}} },
		Step: func(from, in, out any) []any {
			st, at := from.(state[S]), in.(step)
			if at.after > 0 && !st.isDone(at.after) {
				return nil
			}
			st.setDone(at.number)
			var all []any
			for _, s := range next(st.s, at, out) {
				st.s = s
				all = append(all, st)
			}
			return all
		},
		DescribeOperation: func(in, out any) string {
			if out == nil {
				return fmt.Sprintf("%+v → lost", in.(step).in)
			}
			return fmt.Sprintf("%+v → %+v", in.(step).in, out)
		},
		DescribeState: func(s any) string { return fmt.Sprintf("%+v", s.(state[S]).s) },
	}
	m := Model{model: nm.ToModel()}
	if len(unsure) > 0 {
		other := nm // a model keeps what it was made of
		other.Init = func() []any { return []any{state[S]{s: unsure[0]}} }
		from := other.ToModel()
		m.unsure = &from
	}
	return m
}
