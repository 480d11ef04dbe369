package history

// OverrideInput sets the override of a limit to one of this limit, or clears it (0), or checks the
// limit (Check), of which callers state one of 1.
type OverrideInput struct {
	Limit uint64
	Check bool
}

// OverrideOutput is the answer to it.
type OverrideOutput struct {
	Existed bool   // there was an override, of a change
	Applied uint64 // the limit of the override that was in force; 0 = none. Of a check
	Replay
}

func (o OverrideOutput) first() any { return o.Existed }

func (o OverrideOutput) bare() any { return OverrideOutput{Existed: o.Existed} }

func (o OverrideOutput) reads(any) (readIn, readOut any) { return nil, nil }

// overrideState is the limit of the override, 0 if there is none.
type overrideState struct {
	limit  uint64
	unsure bool // it is not known
}

// Override returns the model of overrides that do not end by themselves: each check goes by the
// last one that was set before.
func Override() Model {
	return newModel(overrideState{}, func(s overrideState, at step, out any) []overrideState {
		in := at.in.(OverrideInput)
		o, told := out.(OverrideOutput)
		switch {
		case !in.Check && (!told || s.unsure || o.Existed == (s.limit != 0)):
			return []overrideState{{limit: in.Limit}}
		case in.Check && !told:
			return []overrideState{s}
		case in.Check && (s.unsure || o.Applied == s.limit):
			return []overrideState{{limit: o.Applied}}
		}
		return nil
	}, overrideState{unsure: true})
}
