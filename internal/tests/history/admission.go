package history

// AdmissionOp is what is done to an admission.
type AdmissionOp uint8

const (
	AdmissionAdmit AdmissionOp = iota + 1
	AdmissionSettle
	AdmissionPeek
)

func (op AdmissionOp) String() string { return [...]string{"", "admit", "settle", "peek"}[op] }

// AdmissionMax is the bound of the counters that are demanded, and AdmissionTwins how many they are: the same is
// demanded of each, in one step, so that they are equal at any time.
const (
	AdmissionMax   = 40
	AdmissionTwins = 2
)

// AdmissionInput is an operation on an admission. Holds stay charged when their time is over.
type AdmissionInput struct {
	Op   AdmissionOp
	Cost int64 // reserved
	Real int64 // of a settlement: what it cost in the end
}

// AdmissionOutput is the answer to it.
type AdmissionOutput struct {
	OK   bool                  // admitted, or settled
	Left [AdmissionTwins]int64 // of an Admit and a peek: what is left of each
	Bare bool                  // what is said of the state as it is now is not known
	Replay
}

func (o AdmissionOutput) first() any { return AdmissionOutput{OK: o.OK} }

func (o AdmissionOutput) bare() any { return AdmissionOutput{OK: o.OK, Bare: true} }

func (o AdmissionOutput) reads(in any) (readIn, readOut any) {
	if in.(AdmissionInput).Op != AdmissionAdmit {
		return nil, nil
	}
	return AdmissionInput{Op: AdmissionPeek}, AdmissionOutput{Left: o.Left}
}

// charged is what an admission has charged to each of its counters.
type charged int64

// left reports whether an answer tells what is left of each counter.
func (c charged) left(o AdmissionOutput) bool {
	want := max(AdmissionMax-int64(c), 0)
	for _, left := range o.Left {
		if left != want && !o.Bare {
			return false
		}
	}
	return true
}

// Admission is the model of an admission of counters that are demanded together.
//
// What breaks it: an Admit above the bound, or one that is refused below it; counters that are not equal, because half
// of a step was done; a hold that is settled twice, or not at all.
func Admission(delay int64) Model {
	m := newModel(charged(0), func(c charged, at step, out any) []charged {
		in := at.in.(AdmissionInput)
		o, told := out.(AdmissionOutput)
		switch in.Op {
		case AdmissionAdmit:
			fits := int64(c)+in.Cost <= AdmissionMax
			next := c
			if fits {
				next += charged(in.Cost)
			}
			switch {
			case !told && fits:
				return []charged{c, next}
			case !told:
				return []charged{c}
			case o.OK != fits || !next.left(o):
				return nil
			}
			return []charged{next}
		case AdmissionSettle:
			next := c + charged(in.Real-in.Cost)
			switch {
			case !told:
				return []charged{c, next}
			case o.OK:
				return []charged{next}
			}
			return []charged{c} // it was lost with all that was charged
		}
		if told && !c.left(o) {
			return nil
		}
		return []charged{c}
	})
	m.delay = delay
	return m
}
