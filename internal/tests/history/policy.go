package history

// PolicyInput is a check of a limit that a policy has.
type PolicyInput struct{}

// PolicyOutput is the answer to it.
type PolicyOutput struct {
	Version  uint64 // of the policies that the owner went by; 0 = it was not asked
	Capacity uint64 // that the policy had
	Replay
}

func (o PolicyOutput) first() any { return nil }

func (o PolicyOutput) bare() any { return PolicyOutput{Version: o.Version, Capacity: o.Capacity} }

func (o PolicyOutput) reads(any) (readIn, readOut any) { return nil, nil }

// policyState is by what the last check of the key was decided.
type policyState struct{ version, capacity uint64 }

// Policy returns the model of a key whose limit is that of a policy: the versions by which it is
// decided never fall, and one of them is one limit.
func Policy() Model {
	return newModel(policyState{}, func(s policyState, _ step, out any) []policyState {
		o, told := out.(PolicyOutput)
		switch {
		case !told || o.Version == 0:
			return []policyState{s}
		case o.Version > s.version || o.Version == s.version && o.Capacity == s.capacity:
			return []policyState{{o.Version, o.Capacity}}
		}
		return nil
	})
}
